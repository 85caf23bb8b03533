//! Demand: what the gateway holds for the engines, when they will serve it, and what keeps them from it.
//!
//! The gateway tells what it holds; [`waiting`] makes of it what [`crate::fairness`] decides on: who waits, what would have
//! to go, how long a switch would take by the planner. [`eta`] answers a client's question with the same figures.

use crate::fairness::{self, Against, Place, Waiting};
use crate::ids::EngineId;
use crate::plan::{self, Ask};
use crate::program::Step;
use crate::queue::Refusal;
use crate::spec::{DrainPolicy, Order};
use crate::state::{Condition, Engine, Node, Operation};
use crate::tier::Tier;
use crate::time::Moment;
use std::time::Duration;
use thiserror::Error;

/// Within this the gateway lets through what was held for an engine that has just come to serve.
const LET_THROUGH: Duration = Duration::from_millis(100);
/// Between the first failed switch and the next.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Most that lies between two.
const RETRY_MOST: Duration = Duration::from_secs(60);

/// What the gateway holds for one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Demand {
    /// Requests held.
    pub held: u32,
    /// When the oldest of them came; `None` where none is held.
    pub oldest: Option<Moment>,
}

/// So many switches in a row that an engine itself makes fail: what is wrong with it will not pass by itself.
const BROKEN: u32 = 3;

/// Switches that an engine's demand asked for and that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Retry {
    /// How many in a row.
    pub failures: u32,
    /// How many of them by the engine's own doing.
    pub own: u32,
    /// Not again before this.
    pub not_before: Moment,
}

impl Retry {
    /// One more, that took so long. The next is tried no sooner than the failed one took, so that whoever served
    /// before serves for at least half of the time; and less and less often.
    pub fn failed(&mut self, took: Duration, now: Moment) {
        let doubled = RETRY_FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + doubled.max(took).min(RETRY_MOST);
    }

    /// It was refused, or over, the moment it was begun: not again in the same breath, unless it waits already.
    pub fn not_at_once(&mut self, now: Moment) {
        if self.not_before <= now {
            self.failed(Duration::ZERO, now);
        }
    }

    /// Whether its engine should rather be ended and started than be asked again.
    pub fn is_hopeless(&self) -> bool {
        self.own >= BROKEN
    }
}

/// When an engine will serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eta {
    /// It serves.
    Serving,
    /// After this, if nothing else is asked for meanwhile.
    In(Duration),
    /// Not before something changes that nobody waits for.
    Never(Never),
}

/// Why an engine will not serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Never {
    /// It is given up.
    #[error("{engine} has failed ({reason}) and waits for an operator's `reset`")]
    Failed {
        /// Engine.
        engine: String,
        /// Why.
        reason: String,
    },
    /// Maintenance, until an operator ends it.
    #[error("the node is paused for maintenance")]
    Paused {
        /// Since when.
        since: Moment,
    },
    /// A cycle run measures.
    #[error("a cycle run has the engines to itself; it can be given up with `ctl cycle cancel`")]
    Cycle,
    /// The agent is going down.
    #[error("the agent is shutting down")]
    Closing,
    /// It is not configured any more.
    #[error("{engine} is not configured any more")]
    Retired {
        /// Engine.
        engine: String,
    },
    /// No switch to it is possible as things are.
    #[error("{0}")]
    Refused(Refusal),
}

/// What keeps an engine's demand from being served by a switch.
enum Hindrance {
    /// It will be over by then, and the engine's process has to be started.
    Until(Moment),
    Never(Never),
}

fn hindrance(node: &Node, id: EngineId, now: Moment) -> Result<(), Hindrance> {
    let e = node.engine(id);
    if node.closing {
        return Err(Hindrance::Never(Never::Closing));
    }
    if let Some(paused) = node.paused.as_ref().filter(|_| node.is_paused()) {
        return Err(Hindrance::Never(Never::Paused { since: paused.since }));
    }
    if node.cycle {
        return Err(Hindrance::Never(Never::Cycle));
    }
    if e.is_done_with() {
        return Err(Hindrance::Never(Never::Retired { engine: e.spec.name.clone() }));
    }
    match &e.condition {
        Condition::Failed(reason) => {
            let (engine, reason) = (e.spec.name.clone(), reason.clone());
            Err(Hindrance::Never(Never::Failed { engine, reason }))
        }
        Condition::Backoff(at) if *at > now => Err(Hindrance::Until(*at)),
        Condition::Moving | Condition::Adrift(_) => Err(Hindrance::Until(now)),
        Condition::Settled if e.dead => Err(Hindrance::Until(now)),
        Condition::Settled | Condition::NoRoom | Condition::PortTaken | Condition::Backoff(_) => Ok(()),
    }
}

/// How long an engine stays once it is awake: never so short that what it was woken for could not be let through.
fn residency(e: &Engine) -> Duration {
    let least = if e.demand.held > 0 { LET_THROUGH } else { Duration::ZERO };
    e.spec.turn.min_residency.max(least)
}

/// An engine with what a switch to it would take, as things are.
struct Candidate {
    waiting: Waiting,
    /// What the outgoing engines' requests will take before its first token.
    drain: Duration,
}

fn candidate(node: &Node, id: EngineId, oldest: Moment) -> Result<Candidate, Refusal> {
    let plan = plan::choose(node, &Ask::of_demand(node, id))?;
    let e = node.engine(id);
    let out = || plan.outgoing.iter().map(|id| node.engine(*id));
    let against = out()
        .map(|o| Against {
            // One that does not serve has no claim to stay.
            until: if o.is_serving() { o.awake_since + residency(o) } else { Moment(0) },
            weight: o.spec.turn.weight,
            busy: o.is_busy(),
        })
        .reduce(|a, b| Against {
            until: a.until.max(b.until),
            weight: a.weight.max(b.weight),
            busy: a.busy || b.busy,
        });
    let mut devices = e.spec.devices.clone();
    devices
        .extend(plan.steps.iter().filter_map(Step::engine).flat_map(|e| node.engine(e).spec.devices.clone()));
    let spoken_for = node.spoken_for();
    let free = node.is_free(&devices) && !devices.iter().any(|d| spoken_for.contains(d));
    let waits = plan.order == Order::BreakBeforeMake && node.policy.drain == DrainPolicy::Wait;
    let drains = out().filter(|o| waits && o.is_busy()).filter_map(|o| o.costs.drain);
    Ok(Candidate {
        drain: drains.fold(Duration::ZERO, Duration::saturating_add),
        waiting: Waiting {
            engine: id,
            devices: e.spec.devices.clone(),
            oldest,
            turn: e.spec.turn,
            first_token: plan.first_token,
            whole: plan.total,
            against,
            free,
        },
    })
}

/// Everybody whose requests wait for a switch that could be made.
pub fn waiting(node: &Node, now: Moment) -> Vec<Waiting> {
    let waits = |id: EngineId| {
        let e = node.engine(id);
        let oldest = e.demand.oldest.filter(|_| e.demand.held > 0 && !e.is_serving())?;
        if e.retry.not_before > now || hindrance(node, id, now).is_err() {
            return None;
        }
        candidate(node, id, oldest).ok().map(|c| c.waiting)
    };
    node.ids().filter_map(waits).collect()
}

/// Everybody who waits, in the order of their turns.
pub fn turns(node: &Node, now: Moment) -> Vec<Place> {
    fairness::order(&waiting(node, now))
}

/// When something may have to begin for somebody's demand.
pub(crate) fn instants(node: &Node, now: Moment) -> Vec<Moment> {
    let waiting = waiting(node, now);
    let free: Vec<EngineId> = waiting.iter().filter(|w| w.free).map(|w| w.engine).collect();
    let turns = fairness::order(&waiting).into_iter().filter(|p| free.contains(&p.engine)).map(|p| p.turn);
    let retries =
        node.engines.iter().filter(|e| e.demand.held > 0 && !e.is_done_with()).map(|e| e.retry.not_before);
    turns.chain(retries).collect()
}

/// Whether requests wait for an engine that shares a device with this one, itself included.
pub(crate) fn presses(node: &Node, id: EngineId) -> bool {
    let devices = &node.engine(id).spec.devices;
    let shares = |e: &Engine| e.spec.devices.iter().any(|d| devices.contains(d));
    node.engines.iter().any(|e| e.demand.held > 0 && !e.is_serving() && !e.is_done_with() && shares(e))
}

/// When an engine will serve if nothing else is asked for: from turn, drain and plan, by what was measured, else
/// estimated. For an engine that nobody waits for, as if somebody began to wait now.
pub fn eta(node: &Node, engine: EngineId, now: Moment) -> Eta {
    let e = node.engine(engine);
    if e.is_serving() {
        return Eta::Serving;
    }
    let start = || plan::leave_cost(e, Tier::Stopped);
    let hindrance = hindrance(node, engine, now);
    if let Err(Hindrance::Never(never)) = hindrance {
        return Eta::Never(never);
    }
    if let Some(op) = node.operation_on(&e.spec.devices) {
        return Eta::In(after(node, op, engine, now));
    }
    if let Err(Hindrance::Until(until)) = hindrance {
        return Eta::In(until.since(now).saturating_add(start()));
    }
    match candidate(node, engine, e.demand.oldest.unwrap_or(now)) {
        Err(refusal) => Eta::Never(Never::Refused(refusal)),
        Ok(candidate) => {
            let begins = begins(node, &candidate.waiting, now).max(e.retry.not_before);
            let ahead = begins.since(now).saturating_add(candidate.drain);
            Eta::In(ahead.saturating_add(candidate.waiting.first_token))
        }
    }
}

/// When the switch of one of those that wait would begin.
fn begins(node: &Node, one: &Waiting, now: Moment) -> Moment {
    let mut all = waiting(node, now);
    all.retain(|w| w.engine != one.engine);
    all.push(one.clone());
    fairness::forecast(&all, one.engine, now)
}

/// How long until an engine serves whose devices an operation has.
fn after(node: &Node, op: &Operation, engine: EngineId, now: Moment) -> Duration {
    let mut left = under_way(node, op, now);
    let opens = |step: &Step| matches!(step, Step::Rise(e) | Step::Launch { engine: e, .. } | Step::Open(e) if *e == engine);
    let falls = |step: &Step| matches!(step, Step::Fall { engine: e, .. } if *e == engine);
    let last = op.program.iter().rposition(|s| opens(s) || falls(s));
    let brought = last.filter(|at| op.program.get(*at).is_some_and(opens));
    let upto = brought.map_or(op.program.len(), |at| at + 1);
    for step in op.program.iter().take(upto) {
        left = left.saturating_add(leg_cost(node, step));
    }
    if brought.is_some() {
        return left;
    }
    // Somebody else comes in: it stays for a while, and then it is this one's turn.
    let e = node.engine(engine);
    let own = if e.process { plan::leave_cost(e, e.tier) } else { plan::leave_cost(e, Tier::Stopped) };
    let Some(incoming) = op.incoming.filter(|i| *i != engine) else { return left.saturating_add(own) };
    let other = node.engine(incoming);
    let until = now + left.saturating_add(residency(other));
    let against = Against { until, weight: other.spec.turn.weight, busy: other.is_busy() };
    let one = Waiting {
        engine,
        devices: e.spec.devices.clone(),
        oldest: e.demand.oldest.unwrap_or(now),
        turn: e.spec.turn,
        first_token: own,
        whole: own,
        against: Some(against),
        free: false,
    };
    begins(node, &one, now).since(now).saturating_add(own)
}

/// What is left of the leg that is being done.
fn under_way(node: &Node, op: &Operation, now: Moment) -> Duration {
    let Some(current) = &op.current else { return Duration::ZERO };
    let Some(engine) = current.step.engine() else { return Duration::ZERO };
    let e = node.engine(engine);
    let rest = op.program.iter().take_while(|s| !s.is_leg());
    let to = rest
        .filter_map(|s| match s {
            Step::Settle { engine: of, tier } if *of == engine => Some(*tier),
            _ => None,
        })
        .last();
    let whole = match to {
        Some(Tier::Awake) => plan::leave_cost(e, e.tier),
        Some(tier) => plan::enter_cost(e, tier),
        None => Duration::ZERO,
    };
    match current.step {
        Step::Drain(_) => {
            let drain = e.costs.drain.unwrap_or_default().min(op.drain_deadline);
            whole.saturating_add(drain.saturating_sub(now.since(current.began)))
        }
        _ => whole.saturating_sub(now.since(op.leg_began)),
    }
}

/// Predicted time of a leg to come; nothing for a single step.
fn leg_cost(node: &Node, step: &Step) -> Duration {
    match step {
        Step::Fall { engine, tier } => plan::enter_cost(node.engine(*engine), *tier),
        Step::Rise(engine) => plan::leave_cost(node.engine(*engine), node.engine(*engine).tier),
        Step::Launch { engine, .. } => plan::leave_cost(node.engine(*engine), Tier::Stopped),
        _ => Duration::ZERO,
    }
}
