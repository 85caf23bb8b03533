//! Works an operation's program off until it waits for the edge or ends.

use super::Cx;
use super::take_in::own_settings_again;
use crate::backoff::Verdict;
use crate::call::Call;
use crate::creep::Creep;
use crate::effect::{Action, Bound, Effect, Incident, Note, Ticket};
use crate::event::{By, Request};
use crate::ids::{EngineId, OperationId};
use crate::ledger;
use crate::program::{Cause, Failure, Step, incident_of};
use crate::recover::{Recovery, is_glance, recover};
use crate::spec::DrainPolicy;
use crate::state::{Condition, Current, Drift, Evidence, Stage};
use crate::tier::Tier;
use std::time::Duration;

/// While a neighbour may be to blame, missing bytes are waited for so much shorter before it is asked.
const GLANCE: u32 = 10;

/// How a step went that acts at once.
pub(super) enum Flow {
    /// Done.
    Next,
    /// It became an action at the edge.
    Wait,
    /// Not.
    Fail(Cause, String),
}

impl Cx<'_> {
    /// Runs steps until one waits for the edge, or the program ends.
    pub(super) fn advance(&mut self, id: OperationId) {
        loop {
            let Some(op) = self.op(id) else { return };
            if op.current.is_some() {
                return;
            }
            let Some(step) = op.program.pop_front() else { return self.finish(id) };
            match self.begin_step(id, &step) {
                Flow::Next => {}
                Flow::Wait => return,
                Flow::Fail(cause, detail) => self.recover_from(id, step, cause, detail),
            }
        }
    }

    fn begin_step(&mut self, id: OperationId, step: &Step) -> Flow {
        if let Some(expanded) = self.expand(id, step) {
            return match expanded {
                Ok(steps) => {
                    if let Some(op) = self.op(id) {
                        steps.into_iter().rev().for_each(|s| op.program.push_front(s));
                    }
                    Flow::Next
                }
                Err(detail) => {
                    let drifted = step.engine().is_some_and(|e| {
                        self.node.engine(e).condition == Condition::Adrift(Drift::FoundAsleep)
                    });
                    Flow::Fail(if drifted { Cause::Drifted } else { Cause::WrongTier }, detail)
                }
            };
        }
        let Some(engine) = step.engine() else { return Flow::Next };
        let lives_on =
            matches!(step, Step::Open(_)) || matches!(step, Step::Settle { tier, .. } if tier.has_process());
        let e = self.node.engine(engine);
        if lives_on && (e.dead || !e.process) {
            let name = &self.node.engine(engine).spec.name;
            return Flow::Fail(Cause::Gone, format!("{name}'s process has ended"));
        }
        match step {
            Step::Close(_) => self.node.engine_mut(engine).admission = false,
            Step::Open(_) => {
                let serves = self.op(id).and_then(|op| op.leads_to_awake(engine)).unwrap_or(true);
                let e = self.node.engine_mut(engine);
                (e.admission, e.wanted_awake) = (true, serves);
                e.retry = crate::demand::Retry::default();
            }
            Step::Rehearsed(_) => self.node.engine_mut(engine).creep.rehearsed(),
            Step::Take(_) => {
                let now = self.now;
                if let Some(op) = self.op(id) {
                    (op.leg_began, op.moved) = (now, true);
                    op.asked.retain(|asked| *asked != engine);
                }
                self.transit(engine, "an operation takes it", |e| e.condition = Condition::Moving);
            }
            Step::ReserveWake(_) => {
                return self.reserve(engine, ledger::bytes_at(self.node.engine(engine), Tier::Awake));
            }
            Step::ReserveStart(_) => {
                return self.reserve(engine, ledger::start_need(self.node.engine(engine)));
            }
            Step::Settle { tier, .. } => self.settle(id, engine, *tier),
            Step::Bury(_) => self.bury(engine),
            Step::Defer(_) => self.defer(engine),
            _ => return self.begin_action(id, engine, step),
        }
        Flow::Next
    }

    fn reserve(&mut self, engine: EngineId, need: Option<u64>) -> Flow {
        let Some(need) = need else { return Flow::Next };
        if let Some(short) = ledger::shortfall(self.node, engine, need) {
            let device = self.node.device(short.device).spec.name.clone();
            let missing = ledger::human(short.missing);
            return Flow::Fail(Cause::NoRoom, format!("{} are missing on {device}", missing));
        }
        let e = self.node.engine_mut(engine);
        e.reserved = need.saturating_sub(e.held);
        Flow::Next
    }

    /// Verified in a tier: the ledger, the generation and the learned costs follow.
    fn settle(&mut self, id: OperationId, engine: EngineId, tier: Tier) {
        let now = self.now;
        let Some(op) = self.op(id) else { return };
        let (began, freeze) = (op.leg_began, op.drain == DrainPolicy::Freeze);
        let ladder = op.by == By::Agent && matches!(op.request, Request::Sleep { .. });
        let reason = if ladder { "idle" } else { op.request.verb() };
        let wanted_awake = op.leads_to_awake(engine).unwrap_or(tier == Tier::Awake);
        let bytes = ledger::bytes_at(self.node.engine(engine), tier);
        self.transit(engine, reason, |e| {
            let before = e.tier;
            let cold = tier == Tier::Level1 && !e.pinned;
            match (before, tier) {
                (Tier::Awake, Tier::Awake) => {}
                (Tier::Awake, _) if !cold => e.costs.enter[tier as usize] = Some(now.since(began)),
                (_, Tier::Awake) => e.costs.leave[before as usize] = Some(now.since(began)),
                _ => {}
            }
            // Whatever was asked of it before is stale: a survey of the awake engine says nothing of the sleeping one.
            e.generation += 1;
            e.held = bytes.unwrap_or(e.held);
            e.reserved = 0;
            e.tier = tier;
            e.condition = Condition::Settled;
            e.wanted_awake = wanted_awake;
            e.watch = crate::state::Watch { progress_at: now, ..Default::default() };
            if before == Tier::Awake && tier.has_process() && tier != Tier::Awake {
                e.creep.slept(&e.spec.recycle);
            }
            match tier {
                Tier::Awake => {
                    e.awake_since = now;
                    e.frozen = false;
                }
                Tier::Stopped => {
                    (e.process, e.dead, e.pinned, e.frozen, e.admission) =
                        (false, false, false, false, false);
                    e.capabilities = None;
                    e.creep = Creep::default();
                    own_settings_again(e);
                }
                Tier::Parked | Tier::Level1 | Tier::Level2 => {
                    e.frozen = e.frozen || (freeze && before == Tier::Awake);
                    e.pinned |= tier == Tier::Level1;
                }
            }
        });
    }

    /// The process is gone and nobody asked for it: what follows is up to the back-off.
    fn bury(&mut self, engine: EngineId) {
        let now = self.now;
        let mut given_up = None;
        self.transit(engine, "its process is gone", |e| {
            (e.process, e.dead, e.pinned, e.frozen, e.admission) = (false, false, false, false, false);
            (e.held, e.reserved) = (0, 0);
            e.tier = Tier::Stopped;
            e.capabilities = None;
            e.creep = Creep::default();
            own_settings_again(e);
            e.condition = match e.crashes.crashed(&e.spec.backoff, now) {
                Verdict::RestartAt(at) => Condition::Backoff(at),
                Verdict::GiveUp => {
                    let reason = format!("{} crashes within {:?}", e.crashes.count(), e.spec.backoff.window);
                    given_up = Some(reason.clone());
                    Condition::Failed(reason)
                }
            };
        });
        if let Some(reason) = given_up {
            let name = &self.node.engine(engine).spec.name;
            let reason = format!("{name} is left alone after {reason}: mend the cause, then `reset` it");
            self.incident(Incident::GivenUp, Some(engine), reason);
        }
    }

    fn begin_action(&mut self, id: OperationId, engine: EngineId, step: &Step) -> Flow {
        let e = self.node.engine(engine);
        let ends_it = matches!(step, Step::Stop { .. } | Step::AwaitRelease { tier: Tier::Stopped, .. });
        if e.dead && !ends_it {
            return Flow::Fail(Cause::Gone, format!("{}'s process has ended", e.spec.name));
        }
        let t = e.spec.timeouts;
        let op = self.node.operations.iter().find(|op| op.id == id);
        let Some(op) = op else { return Flow::Next };
        let action = match step {
            Step::Drain(_) => {
                // Frozen requests stay where they are; aborted ones are ended by the gateway, whatever the engine can.
                if e.tier != Tier::Awake || op.drain == DrainPolicy::Freeze {
                    return Flow::Next;
                }
                Action::Drain { engine, policy: op.drain, deadline: op.drain_deadline }
            }
            Step::Call { call, .. } => Action::Call { engine, call: *call, deadline: deadline_of(&t, call) },
            Step::ConfirmAsleep(_) | Step::ConfirmAwake(_) => {
                Action::IsSleeping { engine, deadline: t.control }
            }
            Step::Resolve { .. } => Action::IsSleeping { engine, deadline: t.resolve },
            Step::AwaitRelease { tier, .. } => {
                let bounds = e.spec.devices.iter().filter_map(|d| {
                    let at_most = ledger::release_threshold(self.node, *d, engine, *tier);
                    let seen = self.node.device(*d).evidence != Evidence::Off;
                    seen.then_some(Bound { device: *d, at_least: None, at_most })
                });
                let bounds: Vec<Bound> = bounds.collect();
                if bounds.is_empty() {
                    return Flow::Next;
                }
                Action::AwaitUsed { engine, bounds, deadline: t.evidence }
            }
            Step::AwaitResidence(_) => {
                let bounds = e.spec.devices.iter().filter_map(|d| {
                    let at_least = Some(ledger::residence_threshold(self.node, *d, engine)?);
                    let seen = self.node.device(*d).evidence != Evidence::Off;
                    seen.then_some(Bound { device: *d, at_least, at_most: None })
                });
                let bounds: Vec<Bound> = bounds.collect();
                if bounds.is_empty() {
                    return Flow::Next;
                }
                let glance = is_glance(self.node, op, engine);
                let deadline = if glance { t.evidence / GLANCE } else { t.evidence };
                Action::AwaitUsed { engine, bounds, deadline }
            }
            Step::Ask(_) => Action::IsSleeping { engine, deadline: t.control },
            Step::Probe { kind, .. } => Action::Probe { engine, kind: *kind, deadline: t.probe },
            Step::Spawn(_) => {
                let life = e.life + 1;
                let e = self.node.engine_mut(engine);
                (e.life, e.process, e.dead, e.capabilities) = (life, true, false, None);
                e.taken_over = false;
                e.creep = Creep::default();
                Action::Spawn { engine, life }
            }
            Step::Ready(_) => Action::Ready { engine, deadline: t.start },
            Step::WarmUp(_) => Action::WarmUp { engine, deadline: t.probe },
            Step::Measure { tier, .. } => Action::Measure { engine, tier: *tier },
            Step::Stop { grace, .. } => Action::Stop { engine, grace: *grace },
            Step::Hold(_) => {
                let e = self.node.engine_mut(engine);
                e.life += 1;
                Action::Hold { engine, life: e.life, deadline: t.control }
            }
            Step::Keep(_) => Action::Keep { engine, deadline: t.control },
            Step::LetGo(_) => Action::LetGo { engine },
            _ => return Flow::Next,
        };
        self.run(id, step.clone(), action);
        Flow::Wait
    }

    fn run(&mut self, id: OperationId, step: Step, action: Action) {
        let ticket = Ticket(self.node.next_ticket);
        self.node.next_ticket += 1;
        let now = self.now;
        let Some(op) = self.op(id) else { return };
        let index = op.steps;
        op.steps += 1;
        op.current = Some(Current { step: step.clone(), ticket, began: now, index });
        self.note(Note::StepBegan { id, index, step });
        self.out.push(Effect::Run { ticket, action });
    }

    /// A step at the edge failed: it is noted, and the ladder says what follows.
    pub(super) fn step_failed(&mut self, id: OperationId, current: Current, cause: Cause, detail: String) {
        let Some(engine) = current.step.engine() else { return };
        let failure = Failure { cause, engine, detail: detail.clone() };
        self.note(Note::StepEnded {
            id,
            index: current.index,
            step: current.step.clone(),
            began: current.began,
            failure: Some(failure),
            first_token: None,
        });
        self.recover_from(id, current.step, cause, detail);
    }

    /// Rewrites the program by the failure ladder.
    pub(super) fn recover_from(&mut self, id: OperationId, step: Step, cause: Cause, detail: String) {
        let Some(op) = self.node.operations.iter().find(|op| op.id == id) else { return };
        let recovery = recover(self.node, op, &step, cause);
        let Some(engine) = step.engine() else { return };
        if !matches!(recovery, Recovery::Accept | Recovery::AskAround(_)) {
            self.report(id, engine, &step, cause, &detail, &recovery);
        }
        let failure = Failure { cause, engine, detail };
        match recovery {
            Recovery::Accept => {}
            Recovery::Retry => {
                let Some(op) = self.op(id) else { return };
                op.attempts += 1;
                op.program.push_front(step);
            }
            Recovery::First(steps) => {
                let Some(op) = self.op(id) else { return };
                if steps.iter().any(|s| matches!(s, Step::Call { call: Call::WorkerSleep { .. }, .. })) {
                    op.repaired.push(engine);
                }
                steps.into_iter().rev().for_each(|s| op.program.push_front(s));
            }
            Recovery::AskAround(neighbours) => {
                let Some(op) = self.op(id) else { return };
                op.asked.push(engine);
                op.program.push_front(step);
                neighbours.into_iter().rev().for_each(|other| op.program.push_front(Step::Ask(other)));
            }
            Recovery::NeverPark(engine, steps) => {
                self.node.engine_mut(engine).cannot_park = true;
                let Some(op) = self.op(id) else { return };
                // What is left of the parking: up to and including its wake.
                let end = op.program.iter().position(|s| *s == Step::Settle { engine, tier: Tier::Awake });
                if let Some(end) = end {
                    op.program.drain(..=end);
                }
                steps
                    .into_iter()
                    .filter(|s| *s != Step::Open(engine))
                    .rev()
                    .for_each(|s| op.program.push_front(s));
            }
            Recovery::RehearsalFailed(engine) => {
                let e = self.node.engine_mut(engine);
                e.restart_only = true;
                // What was measured in an earlier life and does not hold of this one is measured anew in the next.
                if let (Step::AwaitRelease { tier, .. }, Cause::ReleaseIncomplete) = (&step, cause) {
                    e.footprints[*tier as usize] = None;
                }
                let Some(op) = self.op(id) else { return };
                op.skip_leg(engine);
                op.program.push_front(Step::Launch { engine, rehearse: false });
                op.program.push_front(Step::Kill(engine));
            }
            Recovery::GiveUp(steps) => self.give_up(id, failure, steps),
            Recovery::Leftovers(engine) => {
                let reason = failure.detail.clone();
                self.transit(engine, "it could not be ended", |e| {
                    (e.process, e.dead, e.admission) = (true, true, false);
                    // What it was about to take may be among what is left.
                    (e.held, e.reserved) = (e.held.saturating_add(e.reserved), 0);
                    e.tier = Tier::Stopped;
                    e.condition = Condition::Failed(reason);
                });
                let Some(op) = self.op(id) else { return };
                op.failure.get_or_insert(failure);
                op.skip_leg(engine);
                // Its memory is not free, so the pause is none: whoever has made way for it serves again.
                if matches!(op.request, Request::Pause { .. }) && op.stage == Stage::Forward {
                    op.stage = Stage::Restoring;
                    op.program = [Step::Restore].into();
                }
                // Processes are left; whether bytes are, the device tells.
                if matches!(step, Step::Stop { .. }) {
                    op.program.push_front(Step::AwaitRelease { engine, tier: Tier::Stopped });
                }
            }
            Recovery::Lost(engine) => self.lose(id, engine, failure),
        }
    }

    /// One incident for each engine and operation: the first, which names the cause.
    pub(super) fn report(
        &mut self,
        id: OperationId,
        engine: EngineId,
        step: &Step,
        cause: Cause,
        detail: &str,
        next: &Recovery,
    ) {
        // Nothing has happened to an engine of ours.
        if self.takes_over(id, engine) {
            return;
        }
        let incident = match next {
            Recovery::RehearsalFailed(_) if cause != Cause::Gone => Some(Incident::RehearsalFailed),
            _ => incident_of(step, cause),
        };
        let Some(incident) = incident else { return };
        // A fact about the engine, whatever else has been said of it; one mismatch alone is asked again first.
        let from_level2 = self.node.engine(engine).tier == Tier::Level2;
        let reload =
            matches!(step, Step::Call { call: Call::ReloadWeights, .. }) && cause == Cause::CallRefused;
        let mismatch = incident == Incident::CanaryMismatch && *next != Recovery::Retry;
        if from_level2 && (mismatch || reload) {
            self.node.engine_mut(engine).level2_unsafe = true;
        }
        let Some(op) = self.op(id) else { return };
        if op.reported.contains(&engine) {
            return;
        }
        op.reported.push(engine);
        self.incident(incident, Some(engine), detail);
    }

    fn give_up(&mut self, id: OperationId, failure: Failure, steps: Vec<Step>) {
        let Some(op) = self.op(id) else { return };
        op.attempts = 0;
        op.failure.get_or_insert(failure.clone());
        match op.stage {
            // What cannot come back does not keep the others from it.
            Stage::Forward if op.request == Request::Resume => {
                op.program.retain(|s| s.engine() != Some(failure.engine));
                steps.into_iter().rev().for_each(|s| op.program.push_front(s));
            }
            Stage::Forward => {
                op.stage = Stage::Restoring;
                // What came in meanwhile is not frozen on its way back: it may have no tier that keeps requests.
                if op.drain == DrainPolicy::Freeze {
                    op.drain = DrainPolicy::Wait;
                }
                op.program = steps.into_iter().chain([Step::Restore]).collect();
            }
            Stage::Restoring | Stage::Abandoned => {
                op.skip_leg(failure.engine);
                steps.into_iter().rev().for_each(|s| op.program.push_front(s));
                op.stage = Stage::Abandoned;
                self.incident(Incident::RollbackFailed, Some(failure.engine), failure.detail);
            }
        }
    }

    /// The last rung: its process tree goes. On its way out that is as good as asleep; else the goal is given up.
    pub(super) fn lose(&mut self, id: OperationId, engine: EngineId, failure: Failure) {
        let failed = matches!(self.node.engine(engine).condition, Condition::Failed(_));
        let Some(op) = self.op(id) else { return };
        op.attempts = 0;
        let kill = Step::Kill(engine);
        let pauses = matches!(op.request, Request::Pause { .. });
        let replaces = pauses || (op.incoming.is_some() && op.outgoing.contains(&engine));
        match op.stage {
            // What cannot come back does not keep the others from it.
            Stage::Forward if op.request == Request::Resume => {
                op.failure.get_or_insert(failure);
                op.program.retain(|s| s.engine() != Some(engine));
                op.program.push_front(kill);
            }
            Stage::Forward if replaces => {
                op.skip_leg(engine);
                op.program.push_front(kill);
                // It was on its way out: when it comes back it goes to its rest tier.
                self.node.engine_mut(engine).wanted_awake = false;
            }
            Stage::Forward => self.give_up(id, failure, vec![kill]),
            Stage::Restoring
                if op.serving_before.contains(&engine) && !op.relaunched.contains(&engine) && !failed =>
            {
                op.relaunched.push(engine);
                op.skip_leg(engine);
                op.program.push_front(Step::Launch { engine, rehearse: false });
                op.program.push_front(kill);
            }
            // Not one of those that must serve again: they can, without it.
            Stage::Restoring if !op.serving_before.contains(&engine) => {
                op.skip_leg(engine);
                op.program.push_front(kill);
            }
            Stage::Restoring | Stage::Abandoned => {
                op.skip_leg(engine);
                op.program.push_front(kill);
                if op.stage == Stage::Restoring {
                    op.stage = Stage::Abandoned;
                    self.incident(Incident::RollbackFailed, Some(engine), failure.detail);
                }
            }
        }
    }

    /// Somebody chose who serves: an engine that is down meanwhile does not take the place back when it returns.
    fn settle_who_is_wanted(&mut self, devices: &[crate::ids::DeviceId]) {
        for engine in self.node.ids() {
            let e = self.node.engine(engine);
            let down = e.wanted_awake && e.tier == Tier::Stopped;
            let concerned = down && e.spec.devices.iter().any(|d| devices.contains(d));
            if concerned && self.crowded(engine, &[]).is_some() {
                self.node.engine_mut(engine).wanted_awake = false;
            }
        }
    }

    fn finish(&mut self, id: OperationId) {
        let Some(at) = self.node.operations.iter().position(|op| op.id == id) else { return };
        let op = self.node.operations.remove(at);
        let unresolved: Vec<EngineId> = self
            .node
            .ids()
            .filter(|e| self.node.engine(*e).condition == Condition::Moving)
            .filter(|e| self.node.engine(*e).spec.devices.iter().any(|d| op.devices.contains(d)))
            .collect();
        for engine in unresolved {
            self.transit(engine, "no operation verified it", |e| {
                e.admission = false;
                // What it was about to take may be taken.
                (e.held, e.reserved) = (e.held.saturating_add(e.reserved), 0);
                e.condition = Condition::Adrift(Drift::Unresolved);
            });
        }
        // What was not taken over is where it was.
        let changes_nothing = matches!(op.request, Request::Adopt(_));
        if op.failure.is_some() && !changes_nothing {
            // What could not be restored is still wanted: it is awake again when its back-off has ended.
            let reached = op.incoming.is_some_and(|to| self.node.engine(to).is_serving());
            for engine in &op.serving_before {
                // Unless the operation has come to its end all the same, and somebody else has its place.
                let replaced =
                    reached && op.incoming != Some(*engine) && self.crowded(*engine, &[]).is_some();
                self.node.engine_mut(*engine).wanted_awake = !replaced;
            }
            // What did not come in has no claim against those that were there, nor against one due to come back.
            if let Some(incoming) = op.incoming.filter(|e| !op.serving_before.contains(e)) {
                let wanted = |id: &EngineId| self.node.engine(*id).wanted_awake;
                let others: Vec<EngineId> = self.node.ids().filter(wanted).collect();
                if !self.node.engine(incoming).is_serving() && self.crowded(incoming, &others).is_some() {
                    self.node.engine_mut(incoming).wanted_awake = false;
                }
            }
        }
        if op.failure.is_none() && op.by != By::Agent && op.incoming.is_some() {
            self.settle_who_is_wanted(&op.devices);
        }
        self.maintenance_ended(&op);
        self.own_work_ended(&op);
        let first_token = op.first_token.filter(|_| op.failure.is_none());
        self.note(Note::Ended { id, failure: op.failure, accepted: op.accepted, first_token });
    }
}

impl crate::state::Operation {
    /// Whether what is still to be done ends with an engine awake; `None` where nothing more is done to it. A start that
    /// goes on to a rest tier passes through awake, a rehearsal or a restart through the sleeping tiers: where such an
    /// operation dies, what it was for still holds.
    fn leads_to_awake(&self, engine: EngineId) -> Option<bool> {
        self.program.iter().rev().find_map(|step| match step {
            Step::Fall { engine: e, .. } if *e == engine => Some(false),
            Step::Rise(e) | Step::Launch { engine: e, .. } | Step::Rehearsed(e) if *e == engine => Some(true),
            _ => None,
        })
    }

    /// Drops what is left of an engine's leg at the front of the program.
    pub(crate) fn skip_leg(&mut self, engine: EngineId) {
        while self.program.front().is_some_and(|s| s.engine() == Some(engine) && !s.is_leg()) {
            self.program.pop_front();
        }
    }
}

fn deadline_of(t: &crate::spec::Timeouts, call: &Call) -> Duration {
    match call {
        Call::Sleep { .. } | Call::WorkerSleep { .. } | Call::ReleaseKvCache => t.sleep,
        Call::WakeUp { .. } | Call::WorkerWakeUp => t.wake,
        Call::ReloadWeights => t.reload,
        Call::Pause { .. } => t.sleep,
        Call::ResetPrefixCache | Call::Resume => t.control,
    }
}
