//! Who holds what on a device, and what still fits.
//!
//! ```text
//!   capacity − reserve  ≥  foreign + Σ over engines (held + reserved)          invariant I2
//! ```
//!
//! `held` is what an engine holds at its verified tier (measured, else estimated), `reserved` what a move under way may
//! take beyond that. A reservation is made before memory is taken and ends when the engine is verified. Engines that
//! span several devices hold the same on each.

use crate::ids::{DeviceId, EngineId};
use crate::state::{Condition, Drift, Engine, Node};
use crate::tier::Tier;

const GIB: u64 = 1 << 30;

/// Device bytes of an engine at a tier: measured, else worked out from a measured neighbour tier, else declared.
///
/// `None` where neither a measurement nor a declaration gives it.
pub fn bytes_at(engine: &Engine, tier: Tier) -> Option<u64> {
    if let Some(bytes) = engine.measured(tier) {
        return Some(bytes);
    }
    let e = &engine.spec.estimate;
    match tier {
        Tier::Stopped => Some(0),
        Tier::Level1 => engine.measured(Tier::Level2).or(Some(e.residual)),
        Tier::Level2 => engine.measured(Tier::Level1).or(Some(e.residual)),
        Tier::Parked => match (engine.measured(Tier::Awake), e.kv_cache, e.weights) {
            (Some(awake), Some(kv), _) => Some(awake.saturating_sub(kv)),
            (None, _, Some(weights)) => Some(weights.saturating_add(residual(engine))),
            _ => None,
        },
        Tier::Awake => match (e.weights, e.kv_cache) {
            (Some(weights), Some(kv)) => Some(weights.saturating_add(kv).saturating_add(residual(engine))),
            _ => e.start_free,
        },
    }
}

/// Whether a measurement may be believed: it must not contradict what the configuration declares. Weights stay on the
/// device awake and parked; what is far below them was measured of an engine that was not where it was thought to be.
pub fn is_plausible(engine: &Engine, tier: Tier, bytes: u64) -> bool {
    match (tier, engine.spec.estimate.weights) {
        (Tier::Awake | Tier::Parked, Some(weights)) => bytes >= weights / 10 * 9,
        _ => true,
    }
}

/// Bytes of an engine's KV cache: measured as the difference that parking makes, else declared.
pub fn kv_bytes(engine: &Engine) -> Option<u64> {
    match (engine.measured(Tier::Awake), engine.measured(Tier::Parked)) {
        (Some(awake), Some(parked)) => awake.checked_sub(parked),
        _ => engine.spec.estimate.kv_cache,
    }
}

/// Bytes that stay on the device asleep.
pub fn residual(engine: &Engine) -> u64 {
    engine.measured(Tier::Level1).or(engine.measured(Tier::Level2)).unwrap_or(engine.spec.estimate.residual)
}

/// What a start needs on each device: what vLLM demands to be free, and its peak, whichever is more.
pub fn start_need(engine: &Engine) -> Option<u64> {
    let e = &engine.spec.estimate;
    [e.start_free, e.start_peak, bytes_at(engine, Tier::Awake)].into_iter().flatten().max()
}

/// Bytes of a device that engines may hold altogether: capacity − reserve − foreign; `None` where the device is
/// not known.
pub fn limit(node: &Node, device: DeviceId) -> Option<u64> {
    let d = node.device(device);
    d.spec.capacity.map(|c| c.saturating_sub(d.spec.reserve).saturating_sub(d.foreign))
}

/// Bytes held and reserved by all engines of a device.
pub fn charged(node: &Node, device: DeviceId) -> u64 {
    let each = node.engines_on(device).map(|id| node.engine(id));
    each.map(|e| e.held.saturating_add(e.reserved)).fold(0, u64::saturating_add)
}

/// What is missing for an engine to grow to `need` bytes on each of its devices; `None` if it fits.
///
/// Devices whose capacity is not known (no evidence, by configuration) refuse nothing.
pub fn shortfall(node: &Node, engine: EngineId, need: u64) -> Option<Shortfall> {
    let own = node.engine(engine);
    let current = own.held.saturating_add(own.reserved);
    own.spec.devices.iter().find_map(|device| {
        let limit = limit(node, *device)?;
        let others = charged(node, *device).saturating_sub(current);
        let after = others.saturating_add(need.max(own.held));
        (after > limit).then(|| Shortfall { device: *device, need, missing: after - limit })
    })
}

/// What does not fit where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shortfall {
    /// Device that is too full.
    pub device: DeviceId,
    /// Bytes that the engine needs there.
    pub need: u64,
    /// Bytes too many.
    pub missing: u64,
}

/// Bytes that a device is expected to show of an engine: what it holds, and what it is known to have lost.
pub fn resident(engine: &Engine) -> u64 {
    engine.held.saturating_add(engine.creep.growth())
}

/// Device-wide used bytes that are expected when every engine is where the ledger says, and one is at `tier`.
pub fn expected_used(node: &Node, device: DeviceId, moved: EngineId, tier: Tier) -> Option<u64> {
    let mut sum = node.device(device).foreign;
    for id in node.engines_on(device) {
        let e = node.engine(id);
        sum = sum.saturating_add(if id == moved { bytes_at(e, tier)? } else { resident(e) });
    }
    Some(sum)
}

/// The most that a device may show once `moved` has fallen to `tier`: expected + slack. Where the tier has not been
/// measured, nine tenths of what the tier should free must be gone (a first sleep without a rehearsal).
pub fn release_threshold(node: &Node, device: DeviceId, moved: EngineId, tier: Tier) -> Option<u64> {
    let e = node.engine(moved);
    let slack = node.device(device).spec.slack;
    // Bytes of a neighbour that has just died may be back already: were they counted as still there, they would pass
    // for what this engine should have given back.
    let died = |id: &EngineId| {
        let e = node.engine(*id);
        e.dead && !matches!(e.condition, Condition::Failed(_)) && tier != Tier::Stopped && *id != moved
    };
    let vanished: u64 =
        node.engines_on(device).filter(died).map(|id| node.engine(id).held).fold(0, u64::saturating_add);
    if tier == Tier::Stopped || e.measured(tier).is_some() {
        let expected = expected_used(node, device, moved, tier)?;
        return Some(expected.saturating_sub(vanished).saturating_add(slack));
    }
    let awake = bytes_at(e, Tier::Awake)?;
    let frees = match tier {
        Tier::Parked => kv_bytes(e)?,
        _ => awake.saturating_sub(residual(e)),
    };
    let left = awake.saturating_sub(frees / 10 * 9);
    let others = expected_used(node, device, moved, Tier::Stopped)?.saturating_sub(vanished);
    Some(others.saturating_add(left).saturating_add(slack))
}

/// The least that a device must show once `moved` is awake again: expected − slack. Where its awake bytes have never
/// been measured, nine tenths of the weights and KV cache that are declared; `None` where they are not.
pub fn residence_threshold(node: &Node, device: DeviceId, moved: EngineId) -> Option<u64> {
    let e = node.engine(moved);
    let declared = || Some((e.spec.estimate.weights?.saturating_add(e.spec.estimate.kv_cache?)) / 10 * 9);
    let own = e.measured(Tier::Awake).or_else(declared)?;
    // Engines whose process has ended count for nothing here: their bytes may be back already. So may those of one that
    // somebody else has put to sleep, or only paused: it counts for what it holds asleep.
    let others = node.engines_on(device).filter(|id| *id != moved).map(|id| node.engine(id));
    let others = others.filter(|e| !e.dead && !matches!(e.condition, Condition::Failed(_)));
    let there = |e: &Engine| match e.condition {
        Condition::Adrift(Drift::FoundAsleep) => e.held.min(residual(e)),
        _ => e.held,
    };
    let others = others.map(there).fold(0, u64::saturating_add);
    let expected = node.device(device).foreign.saturating_add(own).saturating_add(others);
    Some(expected.saturating_sub(node.device(device).spec.slack))
}

/// The least that the engine's own processes must hold on a device once it is awake, where that can be told: what was measured
/// so, and what it is known to have lost since, less slack.
pub fn own_threshold(node: &Node, device: DeviceId, moved: EngineId) -> Option<u64> {
    let e = node.engine(moved);
    let awake = e.measured(Tier::Awake)?.saturating_add(e.creep.growth());
    Some(awake.saturating_sub(node.device(device).spec.slack))
}

/// Host bytes that level 1 takes of an engine: measured, else declared, else twice the weights (pinned blocks are
/// rounded up to powers of two, CONTRACT fact 9).
pub fn host_need(engine: &Engine) -> Option<u64> {
    engine.footprints[Tier::Level1 as usize].and_then(|f| f.host).or(engine.spec.estimate.host).or(engine
        .spec
        .estimate
        .weights
        .map(|w| w.saturating_mul(2)))
}

/// Host bytes missing for an engine to go to level 1; `None` if it fits or the budget is unknown. Pinned memory stays
/// for a process's life, so every engine that has been there counts.
pub fn host_missing(node: &Node, engine: EngineId) -> Option<u64> {
    let budget = node.policy.host_budget?;
    let pinned = |id: &EngineId| node.engine(*id).pinned || *id == engine;
    let sum: u64 =
        node.ids().filter(pinned).filter_map(|id| host_need(node.engine(id))).fold(0, u64::saturating_add);
    sum.checked_sub(budget).filter(|missing| *missing > 0)
}

/// Bytes for people: `28.0 GiB`, `597 MiB`.
pub fn human(bytes: u64) -> String {
    if bytes >= GIB {
        format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB)
    } else {
        format!("{} MiB", bytes >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::BackoffPolicy;
    use crate::spec::{
        DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Policy, Strategy as Named, Timeouts,
    };
    use crate::state::Footprint;
    use proptest::prelude::*;
    use std::time::Duration;

    const CAPACITY: u64 = 1000;
    const RESERVE: u64 = 50;
    const SLACK: u64 = 7;

    fn node(on: &[Vec<u16>], foreign: &[u64]) -> Node {
        let engine = |(at, devices): (usize, &Vec<u16>)| EngineSpec {
            name: format!("E{at}"),
            devices: devices.iter().map(|d| DeviceId(*d)).collect(),
            levels: Levels { parked: true, level1: true, level2: true },
            rest: Tier::Level1,
            autostart: true,
            rehearse: false,
            estimate: Estimate::default(),
            timeouts: Timeouts::default(),
            stop_grace: Duration::from_secs(5),
            backoff: BackoffPolicy::default(),
            turn: crate::spec::Turn::default(),
            ladder: Vec::new(),
            recycle: crate::creep::Recycle::default(),
        };
        let device = |at: usize| DeviceSpec {
            name: format!("gpu{at}"),
            evidence: true,
            capacity: Some(CAPACITY),
            reserve: RESERVE,
            slack: SLACK,
            max_awake: 1,
        };
        let policy = Policy {
            strategy: Named::Auto,
            leave: None,
            drain: DrainPolicy::Wait,
            drain_deadline: Duration::from_secs(30),
            host_budget: None,
            stall_after: Duration::from_secs(60),
        };
        let specs = on.iter().enumerate().map(engine).collect();
        let mut node = Node::new(specs, (0..foreign.len()).map(device).collect(), policy, 1);
        node.devices.iter_mut().zip(foreign).for_each(|(d, f)| d.foreign = *f);
        node
    }

    /// What the test keeps by hand: of each engine on each device, bytes held and reserved.
    type ByHand = Vec<Vec<(u64, u64)>>;

    proptest! {
        #[test]
        fn any_course_of_reservations_equals_counting_by_hand(
            on in prop::collection::vec(
                prop_oneof![Just(vec![0u16]), Just(vec![1]), Just(vec![0, 1])], 1..6),
            foreign in prop::array::uniform2(0u64..200),
            course in prop::collection::vec((0usize..6, 0u64..700, 0usize..5, any::<bool>()), 1..60),
        ) {
            let mut node = node(&on, &foreign);
            let mut hand: ByHand = vec![vec![(0, 0); on.len()]; 2];
            for (at, bytes, tier, reserve) in course {
                let at = at % on.len();
                let engine = EngineId(u16::try_from(at).unwrap_or(0));
                let tier = Tier::ALL[tier];
                // By hand: it fits if on each of its devices all others and the larger of now and then fit.
                let missing = |hand: &ByHand| on[at].iter().find_map(|d| {
                    let d = usize::from(*d);
                    let mut sum = foreign[d] + RESERVE;
                    for (other, (held, reserved)) in hand[d].iter().enumerate() {
                        sum += if other == at { bytes.max(*held) } else { held + reserved };
                    }
                    (sum > CAPACITY).then(|| (d, sum - CAPACITY))
                });
                let short = shortfall(&node, engine, bytes).map(|s| (usize::from(s.device.0), s.missing));
                prop_assert_eq!(short, missing(&hand));
                if reserve {
                    if short.is_some() {
                        continue;
                    }
                    let e = node.engine_mut(engine);
                    e.reserved = bytes.saturating_sub(e.held);
                    for d in &on[at] {
                        let (held, reserved) = &mut hand[usize::from(*d)][at];
                        *reserved = bytes.saturating_sub(*held);
                    }
                } else {
                    // Verified somewhere: never more than was charged.
                    let e = node.engine_mut(engine);
                    let held = bytes.min(e.held + e.reserved);
                    (e.held, e.reserved) = (held, 0);
                    e.footprints[tier as usize] = Some(Footprint { device: Some(held), host: None });
                    for d in &on[at] {
                        hand[usize::from(*d)][at] = (held, 0);
                    }
                }
                for d in 0..2u16 {
                    let device = DeviceId(d);
                    let of_all = |f: fn(&(u64, u64)) -> u64| hand[usize::from(d)].iter().map(f).sum::<u64>();
                    prop_assert_eq!(charged(&node, device), of_all(|(held, reserved)| held + reserved));
                    // I2, at every instant.
                    prop_assert!(charged(&node, device) + foreign[usize::from(d)] + RESERVE <= CAPACITY);
                    if let (Some(bytes), true) = (node.engine(engine).measured(tier), on[at].contains(&d)) {
                        let others = of_all(|(held, _)| *held) - hand[usize::from(d)][at].0;
                        let expected = foreign[usize::from(d)] + others + bytes;
                        prop_assert_eq!(expected_used(&node, device, engine, tier), Some(expected));
                        prop_assert_eq!(release_threshold(&node, device, engine, tier), Some(expected + SLACK));
                    }
                }
            }
        }
    }

    #[test]
    fn what_nobody_measured_or_declared_is_not_known() {
        let node = node(&[vec![0]], &[0, 0]);
        let e = node.engine(EngineId(0));
        assert_eq!((bytes_at(e, Tier::Awake), bytes_at(e, Tier::Parked), kv_bytes(e)), (None, None, None));
        assert_eq!((start_need(e), host_need(e)), (None, None));
        assert_eq!(bytes_at(e, Tier::Stopped), Some(0));
        assert_eq!(residence_threshold(&node, DeviceId(0), EngineId(0)), None);
    }

    #[test]
    fn an_unmeasured_tier_must_free_nine_tenths_of_what_it_should() {
        let mut node = node(&[vec![0], vec![0]], &[30, 0]);
        node.engine_mut(EngineId(1)).held = 100;
        let e = node.engine_mut(EngineId(0));
        e.spec.estimate =
            Estimate { weights: Some(200), kv_cache: Some(80), residual: 20, ..Estimate::default() };
        // 30 foreign, 100 of the neighbour, 300 awake less 0.9 × 280 (or × 80, parked), slack.
        assert_eq!(release_threshold(&node, DeviceId(0), EngineId(0), Tier::Level1), Some(130 + 48 + SLACK));
        assert_eq!(release_threshold(&node, DeviceId(0), EngineId(0), Tier::Parked), Some(130 + 228 + SLACK));
    }
}
