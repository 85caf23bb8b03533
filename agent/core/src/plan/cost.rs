//! How long a leg will take: learned, else estimated from bytes.
//!
//! The estimates are for the first time only; every leg that ends replaces them with its own duration.

use crate::ledger;
use crate::state::Engine;
use crate::tier::Tier;
use std::time::Duration;

/// Pinned host allocation, the first level-1 sleep of a life (CONTRACT 3.2: ~2.7 GB/s).
const PIN: u64 = 2_500_000_000;
/// Device to host and back over PCIe 4 ×16.
const COPY: u64 = 20_000_000_000;
/// Weights from the page cache or disk, with post-processing.
const RELOAD: u64 = 2_000_000_000;
/// Mapping memory: 0.018 s/GiB.
const MAP: u64 = 60_000_000_000;
/// Fixed part of unmapping (and of every control call's work).
const FIXED: Duration = Duration::from_millis(20);
/// Without any measurement: a start.
const START: Duration = Duration::from_secs(90);
/// Without any measurement: a probe.
const PROBE: Duration = Duration::from_millis(100);

fn at(bytes: u64, rate: u64) -> Duration {
    Duration::from_micros(bytes / (rate / 1_000_000))
}

/// From awake (or parked) down into a tier.
pub fn enter_cost(engine: &Engine, tier: Tier) -> Duration {
    if let Some(learned) = engine.costs.enter[tier as usize] {
        return learned;
    }
    let awake = ledger::bytes_at(engine, Tier::Awake).unwrap_or(0);
    // The KV cache is dropped, not copied.
    let weights = awake.saturating_sub(ledger::kv_bytes(engine).unwrap_or(0));
    let estimate = match tier {
        Tier::Awake => Duration::ZERO,
        Tier::Parked => FIXED,
        Tier::Level1 if engine.pinned => FIXED + at(weights, COPY),
        Tier::Level1 => FIXED + at(weights, PIN),
        Tier::Level2 => FIXED + at(awake, MAP),
        Tier::Stopped => Duration::from_secs(5).min(engine.spec.stop_grace),
    };
    // Parking is a part of every deeper sleep.
    let deeper = engine.costs.enter[Tier::Level1 as usize]
        .into_iter()
        .chain(engine.costs.enter[Tier::Level2 as usize]);
    if tier == Tier::Parked { deeper.fold(estimate, Duration::min) } else { estimate }
}

/// From a tier up to awake, the first token included.
pub fn leave_cost(engine: &Engine, tier: Tier) -> Duration {
    if let Some(learned) = engine.costs.leave[tier as usize] {
        return learned;
    }
    let awake = ledger::bytes_at(engine, Tier::Awake).unwrap_or(0);
    let kv = ledger::kv_bytes(engine).unwrap_or(0);
    let estimate = match tier {
        Tier::Awake => Duration::ZERO,
        Tier::Parked => at(kv, MAP) + PROBE,
        Tier::Level1 => at(awake.saturating_sub(kv), COPY) + at(awake, MAP) + PROBE,
        Tier::Level2 => at(awake.saturating_sub(kv), RELOAD) + at(awake, MAP) + PROBE,
        Tier::Stopped => START,
    };
    // What a shallower tier needs is a part of what a deeper one needs: what was seen of one bounds a guess at the other.
    let seen = |t: Tier| engine.costs.leave[t as usize];
    let shallower = Tier::ALL.into_iter().filter(|t| *t < tier).filter_map(seen);
    let deeper = Tier::ALL.into_iter().filter(|t| *t > tier).filter_map(seen);
    if tier == Tier::Awake {
        return estimate;
    }
    deeper.fold(shallower.fold(estimate, Duration::max), Duration::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::BackoffPolicy;
    use crate::spec::{EngineSpec, Estimate, Levels, Timeouts};

    fn engine() -> Engine {
        Engine::new(EngineSpec {
            name: "A".into(),
            devices: Vec::new(),
            levels: Levels { parked: true, level1: true, level2: true },
            rest: Tier::Level1,
            autostart: true,
            rehearse: true,
            estimate: Estimate { weights: Some(28 << 30), kv_cache: Some(4 << 30), ..Estimate::default() },
            timeouts: Timeouts::default(),
            stop_grace: Duration::from_secs(10),
            backoff: BackoffPolicy::default(),
            turn: crate::spec::Turn::default(),
            ladder: Vec::new(),
            recycle: crate::creep::Recycle::default(),
        })
    }

    #[test]
    fn parking_is_never_estimated_dearer_than_a_learned_level_1_sleep() {
        let mut engine = engine();
        let slow = Duration::from_secs(3);
        for (learned, bounds) in [(slow, false), (Duration::from_millis(2), true)] {
            engine.costs.enter[Tier::Level1 as usize] = Some(learned);
            engine.costs.leave[Tier::Level1 as usize] = Some(learned);
            assert_eq!(enter_cost(&engine, Tier::Parked) == learned, bounds);
            assert_eq!(leave_cost(&engine, Tier::Parked) == learned, bounds);
        }
        // Level 2 has not been seen: it is no guess that makes it quicker than what level 1 was seen to need.
        engine.costs.leave[Tier::Level1 as usize] = Some(Duration::from_secs(60));
        assert_eq!(leave_cost(&engine, Tier::Level2), Duration::from_secs(60));
        // What was learned of parking itself is what counts.
        engine.costs.leave[Tier::Parked as usize] = Some(slow);
        assert_eq!(leave_cost(&engine, Tier::Parked), slow);
    }
}
