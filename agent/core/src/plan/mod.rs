//! The planner: node + what is asked in, ordered steps out, every alternative with its verdict.
//!
//! A handoff is an **order** × the **tier** that the outgoing engine is left in. All combinations are built and judged;
//! a strategy then picks among those that are possible:
//!
//! | strategy | picks |
//! |---|---|
//! | `auto` | make-before-break if any fits; then the quickest pair: first token and way back together |
//! | `sleep-first` | break-before-make × level1 (or `--leave`) |
//! | `wake-first` | make-before-break × level1 (or `--leave`) |
//! | `park` | break-before-make × parked (or `--leave`) |

mod after;
mod cost;
mod explain;
mod start;
#[cfg(test)]
mod tests;

pub use after::after;
pub use cost::{enter_cost, leave_cost};
pub use explain::{Faster, faster};
pub(crate) use start::make_room_to_start;

use crate::event::Request;
use crate::ids::{DeviceId, EngineId};
use crate::ledger;
use crate::program::Step;
use crate::queue::Refusal;
use crate::sequence;
use crate::spec::{DrainPolicy, Order, Strategy};
use crate::state::{Condition, Evidence, Node};
use crate::tier::Tier;
use std::time::Duration;

/// What a handoff is asked for with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Incoming engine.
    pub to: EngineId,
    /// Strategy in force.
    pub strategy: Strategy,
    /// Tier in force, where one is fixed.
    pub leave: Option<Tier>,
    /// Drain policy in force.
    pub drain: DrainPolicy,
    /// It is requests that ask for it: pinned engines stay where they are.
    pub spare_pinned: bool,
}

impl Ask {
    /// The node's defaults filled in.
    pub fn of(node: &Node, request: &Request) -> Option<Ask> {
        let Request::Switch { to, strategy, leave, drain } = request else { return None };
        Some(Ask {
            to: *to,
            strategy: strategy.unwrap_or(node.policy.strategy),
            leave: leave.or(node.policy.leave),
            drain: drain.policy.unwrap_or(node.policy.drain),
            spare_pinned: false,
        })
    }

    /// What requests that wait for an engine ask for.
    pub fn of_demand(node: &Node, to: EngineId) -> Ask {
        let policy = &node.policy;
        Ask { to, strategy: policy.strategy, leave: policy.leave, drain: policy.drain, spare_pinned: true }
    }
}

/// A possible way, with what it would cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Order.
    pub order: Order,
    /// Tier left behind; `awake` where nothing has to go.
    pub leave: Tier,
    /// Engines that go out.
    pub outgoing: Vec<EngineId>,
    /// Legs, in order.
    pub steps: Vec<Step>,
    /// Predicted time to the incoming engine's first token, drain excluded.
    pub first_token: Duration,
    /// Predicted time until all is done.
    pub total: Duration,
    /// Predicted time for the outgoing engine to serve again.
    pub back: Duration,
    /// Most bytes charged on any of the devices while it runs.
    pub peak: u64,
}

/// One combination with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Order.
    pub order: Order,
    /// Tier left behind.
    pub leave: Tier,
    /// The plan, or why not.
    pub verdict: Result<Plan, Refusal>,
}

/// The plan that the strategy picks.
pub fn choose(node: &Node, ask: &Ask) -> Result<Plan, Refusal> {
    reachable(node, ask.to)?;
    let chosen = pinned_fill(node, ask).map_or_else(|| pick(node, ask), Err);
    let Err(refusal) = chosen else { return chosen };
    // Whose memory is it that would be needed?
    let unsparing = Ask { spare_pinned: false, ..*ask };
    let in_the_way = ask.spare_pinned.then(|| pick(node, &unsparing).ok()).flatten().and_then(|plan| {
        let moved = plan.steps.iter().filter_map(Step::engine);
        moved.filter(|id| *id != ask.to).find(|id| node.engine(*id).spec.turn.pinned)
    });
    Err(in_the_way.map_or(refusal, |id| pinned(node, ask.to, id)))
}

/// Pinned engines are awake on a device where no more may be.
fn pinned_fill(node: &Node, ask: &Ask) -> Option<Refusal> {
    let devices = node.engine(ask.to).spec.devices.iter().filter(|_| ask.spare_pinned);
    devices.into_iter().find_map(|device| {
        let awake = |id: &EngineId| {
            let e = node.engine(*id);
            *id != ask.to && e.tier == Tier::Awake && e.spec.turn.pinned
        };
        let mut there = node.engines_on(*device).filter(awake);
        let last = usize::from(node.device(*device).spec.max_awake.max(1)) - 1;
        there.nth(last).map(|id| pinned(node, ask.to, id))
    })
}

/// That a pinned engine is in the way of another.
pub(crate) fn pinned(node: &Node, to: EngineId, id: EngineId) -> Refusal {
    let there = |d: &&DeviceId| node.engine(id).spec.devices.contains(d);
    let device = node.engine(to).spec.devices.iter().find(there);
    Refusal::Pinned {
        engine: node.engine(id).spec.name.clone(),
        device: device.map_or_else(String::new, |d| node.device(*d).spec.name.clone()),
    }
}

/// The order in which engines go where some have to: idle ones before busy ones, the longest unused first; pinned ones
/// last.
fn goes_first(node: &Node, id: EngineId) -> impl Ord + use<> {
    let e = node.engine(id);
    (e.spec.turn.pinned, e.is_busy(), e.idle_since())
}

fn pick(node: &Node, ask: &Ask) -> Result<Plan, Refusal> {
    let candidates = candidates(node, ask);
    let wanted = |c: &Candidate| {
        let (order, tier) = match ask.strategy {
            Strategy::Auto => (None, ask.leave),
            Strategy::SleepFirst => (Some(Order::BreakBeforeMake), Some(ask.leave.unwrap_or(Tier::Level1))),
            Strategy::WakeFirst => (Some(Order::MakeBeforeBreak), Some(ask.leave.unwrap_or(Tier::Level1))),
            Strategy::Park => (Some(Order::BreakBeforeMake), Some(ask.leave.unwrap_or(Tier::Parked))),
        };
        // Where nothing has to go, there is one plan, whatever was asked for.
        c.leave == Tier::Awake || (order.is_none_or(|o| o == c.order) && tier.is_none_or(|t| t == c.leave))
    };
    let mut refused = Vec::new();
    let mut possible = Vec::new();
    for candidate in candidates.into_iter().filter(wanted) {
        match candidate.verdict {
            Ok(plan) => possible.push(plan),
            Err(refusal) => refused.push((candidate.order, candidate.leave, refusal)),
        }
    }
    // By the first token alone level 2 would win wherever it is allowed: dropping weights is always quicker than copying
    // them, and who pays is the next handoff. Falling and rising are one pair.
    let key = |p: &Plan| (p.order == Order::BreakBeforeMake, p.first_token + p.back, p.first_token, p.leave);
    match possible.into_iter().min_by_key(key) {
        Some(plan) => Ok(plan),
        None if refused.len() == 1 => Err(refused.remove(0).2),
        None if refused.is_empty() => {
            let tier = ask.leave.map_or_else(|| "any tier".to_owned(), |t| t.to_string());
            Err(Refusal::NoPlan(vec![format!("no handoff leaves the outgoing engine at {tier}")]))
        }
        None => Err(Refusal::NoPlan(
            refused.iter().map(|(o, t, why)| format!("{} × {t}: {why}", o.as_str())).collect(),
        )),
    }
}

/// Whether an engine can be brought to awake at all.
fn reachable(node: &Node, to: EngineId) -> Result<(), Refusal> {
    let e = node.engine(to);
    match &e.condition {
        Condition::Failed(reason) => Err(Refusal::WrongState {
            engine: e.spec.name.clone(),
            is: format!("failed ({reason})"),
            hint: "look at its log, then `reset` it",
        }),
        Condition::Moving | Condition::Adrift(_) => Err(Refusal::WrongState {
            engine: e.spec.name.clone(),
            is: e.condition_word().to_owned(),
            hint: "a repair is due; try again when it has ended",
        }),
        Condition::PortTaken => Err(Refusal::WrongState {
            engine: e.spec.name.clone(),
            is: "stopped, and somebody else listens on its port".to_owned(),
            hint: "`ctl adopt` takes over a server of its model as it runs; else end it",
        }),
        Condition::Settled | Condition::Backoff(_) | Condition::NoRoom => evidence(node, &e.spec.devices),
    }
}

/// Whether the devices can be believed.
pub fn evidence(node: &Node, devices: &[DeviceId]) -> Result<(), Refusal> {
    for id in devices {
        let device = node.device(*id);
        if let Evidence::Lost(reason) = &device.evidence {
            return Err(Refusal::NoEvidence { device: device.spec.name.clone(), reason: reason.clone() });
        }
    }
    Ok(())
}

/// Every combination with its verdict, in a fixed order.
pub fn candidates(node: &Node, ask: &Ask) -> Vec<Candidate> {
    let outgoing = outgoing(node, ask);
    if outgoing.is_empty() {
        let order = Order::MakeBeforeBreak;
        return vec![Candidate {
            order,
            leave: Tier::Awake,
            verdict: build(node, ask, order, Tier::Awake, &[]),
        }];
    }
    let mut all = Vec::new();
    for order in [Order::MakeBeforeBreak, Order::BreakBeforeMake] {
        for leave in [Tier::Parked, Tier::Level1, Tier::Level2, Tier::Stopped] {
            all.push(Candidate { order, leave, verdict: build(node, ask, order, leave, &outgoing) });
        }
    }
    all
}

/// Which awake engines must go so that the one asked for can be awake: the longest unused first, as few as `max_awake`
/// asks, but all that share a device where those few would not make room.
fn outgoing(node: &Node, ask: &Ask) -> Vec<EngineId> {
    let to = ask.to;
    let spared = |id: EngineId| ask.spare_pinned && node.engine(id).spec.turn.pinned;
    let devices = &node.engine(to).spec.devices;
    let shares = |id: &EngineId, d: &DeviceId| node.engine(*id).spec.devices.contains(d);
    let mut awake: Vec<EngineId> = node
        .ids()
        .filter(|id| *id != to && node.engine(*id).tier == Tier::Awake)
        .filter(|id| devices.iter().any(|d| shares(id, d)))
        .collect();
    awake.sort_by_key(|id| goes_first(node, *id));
    let mut out: Vec<EngineId> = Vec::new();
    for device in devices {
        let there = awake.iter().filter(|id| shares(id, device)).count();
        let allowed = usize::from(node.device(*device).spec.max_awake.max(1));
        let surplus = (there + 1).saturating_sub(allowed);
        let gone = out.iter().filter(|id| shares(id, device)).count();
        let more = awake.iter().filter(|id| shares(id, device) && !out.contains(id) && !spared(**id));
        out.extend(more.take(surplus.saturating_sub(gone)).copied().collect::<Vec<_>>());
    }
    // Where even the last of what those few hold would not make room, more have to go.
    let Some(need) = need(node, to) else { return out };
    let parked = node.ids().filter(|id| *id != to && node.engine(*id).tier == Tier::Parked && !spared(*id));
    let demoted: Vec<(EngineId, u64)> = parked.map(|id| (id, least(node, id))).collect();
    loop {
        let fallen = out.iter().map(|id| (*id, least(node, *id))).chain(demoted.iter().copied());
        let overrides: Vec<(EngineId, u64)> = fallen.collect();
        let Some((device, _)) = room(node, to, need, &overrides) else { return out };
        match awake.iter().find(|id| shares(id, &device) && !out.contains(id) && !spared(**id)) {
            Some(id) => out.push(*id),
            None => return out,
        }
    }
}

/// The least that an engine can be made to hold while its process lives on; nothing where it has to be stopped.
fn least(node: &Node, id: EngineId) -> u64 {
    let e = node.engine(id);
    let tiers = [Tier::Level1, Tier::Level2, Tier::Parked];
    let lowest = tiers.into_iter().filter(|tier| may_fall(node, id, *tier, DrainPolicy::Abort).is_ok());
    lowest.filter_map(|tier| ledger::bytes_at(e, tier)).min().unwrap_or(0)
}

/// Device bytes that `to` needs at its peak on the way to awake.
fn need(node: &Node, to: EngineId) -> Option<u64> {
    let e = node.engine(to);
    if e.tier == Tier::Stopped { ledger::start_need(e) } else { ledger::bytes_at(e, Tier::Awake) }
}

/// What is missing for `to` to hold `need` while others hold what `overrides` says; `None` if it fits.
fn room(node: &Node, to: EngineId, need: u64, overrides: &[(EngineId, u64)]) -> Option<(DeviceId, u64)> {
    node.engine(to).spec.devices.iter().find_map(|device| {
        let limit = ledger::limit(node, *device)?;
        let sum = charged_with(node, *device, to, need, overrides);
        (sum > limit).then(|| (*device, sum - limit))
    })
}

fn charged_with(
    node: &Node,
    device: DeviceId,
    to: EngineId,
    need: u64,
    overrides: &[(EngineId, u64)],
) -> u64 {
    node.engines_on(device)
        .map(|id| {
            let e = node.engine(id);
            match overrides.iter().find(|(o, _)| *o == id) {
                _ if id == to => need.max(e.held),
                Some((_, bytes)) => *bytes,
                None => e.held.saturating_add(e.reserved),
            }
        })
        .fold(0, u64::saturating_add)
}

fn build(node: &Node, ask: &Ask, order: Order, leave: Tier, outgoing: &[EngineId]) -> Result<Plan, Refusal> {
    for id in outgoing {
        may_fall(node, *id, leave, ask.drain)?;
        evidence(node, &node.engine(*id).spec.devices)?;
    }
    let incoming = node.engine(ask.to);
    let rise = match incoming.tier {
        Tier::Stopped => Step::Launch { engine: ask.to, rehearse: incoming.spec.rehearse },
        _ => Step::Rise(ask.to),
    };
    let falls = || outgoing.iter().map(|id| Step::Fall { engine: *id, tier: leave });
    let left: Vec<(EngineId, u64)> = match order {
        Order::MakeBeforeBreak => Vec::new(),
        Order::BreakBeforeMake => {
            outgoing.iter().filter_map(|id| Some((*id, ledger::bytes_at(node.engine(*id), leave)?))).collect()
        }
    };
    let need = need(node, ask.to);
    let Room { demoted, left } = make_room(node, ask, need, left, &rise)?;

    let mut steps: Vec<Step> =
        demoted.iter().map(|(engine, tier)| Step::Fall { engine: *engine, tier: *tier }).collect();
    let demotions: Duration = demoted.iter().map(|(e, t)| enter_cost(node.engine(*e), *t)).sum();
    let fall: Duration = outgoing.iter().map(|id| enter_cost(node.engine(*id), leave)).sum();
    let wake = leave_cost(incoming, incoming.tier);
    let first_token = match order {
        Order::MakeBeforeBreak => {
            steps.push(rise);
            steps.extend(falls());
            demotions + wake
        }
        Order::BreakBeforeMake => {
            steps.extend(falls());
            steps.push(rise);
            demotions + fall + wake
        }
    };
    let back = outgoing.iter().map(|id| leave_cost(node.engine(*id), leave)).max().unwrap_or_default();
    let devices = incoming.spec.devices.iter();
    let peak = devices
        .map(|d| charged_with(node, *d, ask.to, need.unwrap_or(0), &left).max(ledger::charged(node, *d)))
        .max();
    Ok(Plan {
        order,
        leave,
        outgoing: outgoing.to_vec(),
        steps,
        first_token,
        total: demotions + fall + wake,
        back,
        peak: peak.unwrap_or(0),
    })
}

/// How room was made.
struct Room {
    /// Engines that must go further down, and where to.
    demoted: Vec<(EngineId, Tier)>,
    /// What each engine that has fallen holds when the incoming one takes its memory, bytes.
    left: Vec<(EngineId, u64)>,
}

/// Which parked engines must go further down so that `to` fits, the longest unused first; and what each engine that has
/// fallen holds when `to` takes its memory.
fn make_room(
    node: &Node,
    ask: &Ask,
    need: Option<u64>,
    mut left: Vec<(EngineId, u64)>,
    rise: &Step,
) -> Result<Room, Refusal> {
    let Some(need) = need else { return Ok(Room { demoted: Vec::new(), left }) };
    let mut demoted = Vec::new();
    let mut others: Vec<EngineId> = node
        .ids()
        .filter(|id| *id != ask.to && node.engine(*id).tier == Tier::Parked)
        .filter(|id| node.engine(*id).condition == Condition::Settled)
        .filter(|id| !(ask.spare_pinned && node.engine(*id).spec.turn.pinned))
        .collect();
    others.sort_by_key(|id| goes_first(node, *id));
    while let Some((device, missing)) = room(node, ask.to, need, &left) {
        let candidate = others.iter().position(|id| node.engine(*id).spec.devices.contains(&device));
        let Some(victim) = candidate.map(|at| others.remove(at)) else {
            return Err(Refusal::NoRoom {
                what: rise.sentence(node),
                device: node.device(device).spec.name.clone(),
                missing,
            });
        };
        let tiers = [Tier::Level1, Tier::Level2, Tier::Stopped];
        let tier = tiers.into_iter().find(|t| may_fall(node, victim, *t, DrainPolicy::Wait).is_ok());
        if let Some(tier) = tier {
            left.push((victim, ledger::bytes_at(node.engine(victim), tier).unwrap_or(0)));
            demoted.push((victim, tier));
        }
    }
    Ok(Room { demoted, left })
}

/// Whether an engine can be taken down to a tier from where it is.
pub fn may_fall(node: &Node, id: EngineId, tier: Tier, drain: DrainPolicy) -> Result<(), Refusal> {
    let e = node.engine(id);
    let engine = || e.spec.name.clone();
    if !e.may_rest_in(tier) {
        let because = if e.restart_only {
            "its rehearsal failed, so it is switched by restart"
        } else if tier == Tier::Level2 && e.level2_unsafe {
            "it gave other tokens after a level-2 wake"
        } else if tier == Tier::Parked && e.cannot_park {
            "it refused to release its KV cache"
        } else {
            "its configuration excludes that level"
        };
        return Err(Refusal::TierExcluded { engine: engine(), tier, because });
    }
    if e.frozen && matches!(tier, Tier::Level2 | Tier::Stopped) && drain != DrainPolicy::Abort {
        return Err(Refusal::WrongState {
            engine: engine(),
            is: "holding frozen requests".into(),
            hint: "they survive parked and level1 only; wake it, or drain with abort",
        });
    }
    if tier == Tier::Stopped {
        return match drain {
            DrainPolicy::Freeze => Err(Refusal::WrongState {
                engine: engine(),
                is: "to be stopped".into(),
                hint: "frozen requests do not survive that; drain with wait or abort",
            }),
            DrainPolicy::Wait | DrainPolicy::Abort => Ok(()),
        };
    }
    let Some(caps) = &e.capabilities else {
        return Err(Refusal::WrongState {
            engine: engine(),
            is: "not started".into(),
            hint: "start it first",
        });
    };
    sequence::enter(caps, e.tier, tier, drain)
        .map_err(|cannot| Refusal::Cannot { engine: engine(), cannot })?;
    match ledger::host_missing(node, id) {
        Some(missing) if tier == Tier::Level1 => Err(Refusal::NoHostMemory { engine: engine(), missing }),
        _ => Ok(()),
    }
}
