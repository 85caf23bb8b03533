//! What the gateway tells, and what follows from it at once.

use super::Cx;
use crate::comeback;
use crate::demand::{self, Demand, Retry};
use crate::event::{By, Drain, Request};
use crate::fairness;
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::ladder;
use crate::program::{Cause, Step};
use crate::spec::DrainPolicy;
use crate::state::{Condition, Drift, Operation, Stage};
use crate::surplus;
use crate::tier::Tier;
use crate::time::Moment;

impl Cx<'_> {
    /// What is held for an engine has changed.
    pub(super) fn demanded(&mut self, engine: EngineId, demand: Demand) {
        // A count and an instant that contradict each other: there is somebody if either says so.
        let oldest = demand.oldest.or((demand.held > 0).then_some(self.now));
        let held = demand.held.max(u32::from(demand.oldest.is_some()));
        self.node.engine_mut(engine).demand = Demand { held, oldest };
        let given_up = if held == 0 {
            // A switch that nobody wants any more.
            self.revocable(|op| op.by == By::Gateway && op.request.engine() == Some(engine))
        } else {
            // A ladder would take the device away from who is needed.
            let devices = self.node.engine(engine).spec.devices.clone();
            self.revocable(|op| is_ladder(op) && op.devices.iter().any(|d| devices.contains(d)))
        };
        for id in given_up {
            self.cancel(id);
        }
    }

    /// Who waited for a switch was waiting for an agent that is gone: what had not begun is given up.
    pub(super) fn unwanted_now(&mut self) {
        let nobody = |op: &Operation| {
            op.by == By::Gateway && op.incoming.is_some_and(|to| self.node.engine(to).demand.held == 0)
        };
        for id in self.revocable(nobody) {
            self.cancel(id);
        }
    }

    /// A cycle run has begun or ended.
    pub(super) fn cycle(&mut self, runs: bool) {
        self.node.cycle = runs;
        if runs {
            for id in self.revocable(own_accord) {
                self.cancel(id);
            }
        }
    }

    /// How an engine is used.
    pub(super) fn used(&mut self, engine: EngineId, in_flight: u32, at: Moment) {
        let now = self.now;
        let e = self.node.engine_mut(engine);
        e.in_flight = in_flight;
        e.used_at = e.used_at.max(at.min(now));
    }

    /// Begins the switch of whoever's turn it is; `false` where it is nobody's.
    pub(super) fn next_turn(&mut self) -> bool {
        let waiting = demand::waiting(self.node, self.now);
        let Some(to) = fairness::next(&waiting, self.now) else { return false };
        let request = Request::Switch { to, strategy: None, leave: None, drain: Drain::default() };
        let begun = self.attempt(request, By::Gateway);
        let now = self.now;
        let e = self.node.engine_mut(to);
        if !begun && !e.is_serving() {
            e.retry.not_at_once(now);
        }
        true
    }

    /// Begins what nobody commands at this moment; `false` where it was refused, or over at once. Something then has to keep
    /// it from being tried again in the same breath.
    fn attempt(&mut self, request: Request, by: By) -> bool {
        let id = self.node.number();
        self.begin(id, request, by);
        self.op(id).is_some()
    }

    /// Lets an engine fall that nobody has used for long.
    pub(super) fn next_rung(&mut self) {
        let now = self.now;
        let due = self.node.ids().find_map(|id| Some((id, ladder::due(self.node, id, now)?)));
        let Some((engine, tier)) = due else { return };
        // Until the fall has ended well, the ladder does not begin it again.
        self.node.engine_mut(engine).ladder_from = now;
        let drain = Drain { policy: Some(DrainPolicy::Wait), deadline: None };
        self.attempt(Request::Sleep { engine, tier: Some(tier), drain }, By::Agent);
    }

    /// Lets an engine fall that is one too many awake; `false` where there is none to be taken now.
    pub(super) fn one_less_awake(&mut self) -> bool {
        let Some((engine, tier)) = surplus::due(self.node, self.now) else { return false };
        let drain = Drain { policy: Some(DrainPolicy::Wait), deadline: None };
        let begun = self.attempt(Request::Sleep { engine, tier: Some(tier), drain }, By::Agent);
        let now = self.now;
        let e = self.node.engine_mut(engine);
        if !begun && e.tier == Tier::Awake {
            e.fall_retry.not_at_once(now);
        }
        true
    }

    /// Wakes an engine that a failed operation has left asleep; `false` where there is none to be woken now.
    pub(super) fn one_comes_back(&mut self) -> bool {
        let Some(engine) = comeback::due(self.node, self.now) else { return false };
        let begun = self.attempt(Request::Wake(engine), By::Agent);
        let now = self.now;
        let e = self.node.engine_mut(engine);
        if !begun && e.tier != Tier::Awake {
            e.retry.not_at_once(now);
        }
        true
    }

    /// An operation has ended: what it means for those who would ask for it again.
    pub(super) fn own_work_ended(&mut self, op: &Operation) {
        let now = self.now;
        let cancelled = op.failure.as_ref().is_some_and(|f| f.cause == Cause::Cancelled);
        let drifted = op.failure.as_ref().is_some_and(|f| f.cause == Cause::Drifted);
        let Some(engine) = op.request.engine() else { return };
        let pressed = demand::presses(self.node, engine);
        let e = self.node.engine_mut(engine);
        let comeback = op.by == By::Agent && matches!(op.request, Request::Wake(_));
        let brings_awake = comeback || op.by == By::Gateway;
        match op.by {
            // Given up because nobody wants it any more: whoever comes next is no repetition.
            By::Gateway if cancelled && e.demand.held == 0 => {}
            // Nor because another engine has to be repaired first: what follows the repair is no repetition either.
            By::Gateway if drifted => {}
            _ if brings_awake && op.failure.is_some() => {
                // It is wanted as before.
                e.wanted_awake |= comeback;
                let own =
                    op.failure.as_ref().is_some_and(|f| f.engine == engine && f.cause.is_of_the_engine());
                e.retry.own = if own { e.retry.own.saturating_add(1) } else { 0 };
                e.retry.failed(now.since(op.accepted), now);
                if e.retry.is_hopeless() && e.process && e.condition == Condition::Settled {
                    e.retry.own = 0;
                    let reason = "it cannot be woken: it is ended and started anew";
                    self.transit(engine, reason, |e| e.condition = Condition::Adrift(Drift::Unresolved));
                }
            }
            // Well ended, or given up for somebody's demand: the rungs still count from the last use.
            By::Agent if op.failure.is_none() || (cancelled && pressed) => {
                e.ladder_from = Moment(0);
                e.fall_retry = Retry::default();
            }
            By::Agent if matches!(op.request, Request::Sleep { .. }) => {
                e.fall_retry.failed(now.since(op.accepted), now);
            }
            _ => {}
        }
    }

    /// What somebody asks for goes before what the agent does of its own accord and has not really begun.
    pub(super) fn make_way(&mut self, devices: &[DeviceId], request: &Request, by: By) {
        if !matches!(by, By::Operator | By::Cycle) {
            return;
        }
        let own = |op: &Operation| own_accord(op) && op.request != *request;
        for id in self.revocable(|op| own(op) && op.devices.iter().any(|d| devices.contains(d))) {
            self.cancel(id);
        }
    }

    /// Operations of this kind that have not begun to move memory, and so can be given up without harm.
    fn revocable(&self, kind: impl Fn(&Operation) -> bool) -> Vec<OperationId> {
        let drains = |op: &Operation| {
            op.current.as_ref().is_some_and(|c| matches!(c.step, Step::Drain(_)))
                && op.stage == Stage::Forward
                && !op.moved
        };
        self.node.operations.iter().filter(|op| kind(op) && drains(op)).map(|op| op.id).collect()
    }
}

/// The fall of an idle ladder.
fn is_ladder(op: &Operation) -> bool {
    op.by == By::Agent && matches!(op.request, Request::Sleep { .. })
}

/// What nobody has asked for: a switch for requests that wait, the fall of an idle ladder.
fn own_accord(op: &Operation) -> bool {
    op.by == By::Gateway || is_ladder(op)
}
