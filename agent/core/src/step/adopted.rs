//! What a former agent left is taken over: first everything is put back as it was kept, then held against what was
//! found, then what was under way goes on. The decisions are the tables' of [`crate::adopt`].

use super::Cx;
use crate::adopt::{self, Adopted, Adoption, Bytes, Found, Process, Rest, Says, Then};
use crate::effect::{Incident, Note};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::kept::{KeptEngine, KeptWork};
use crate::ledger;
use crate::program::{Cause, Failure, Step};
use crate::recover::Recovery;
use crate::sequence;
use crate::state::{Condition, Current, Drift, Watch};
use crate::tier::Tier;

impl Cx<'_> {
    /// Takes everything over.
    pub(super) fn adopted(&mut self, adoption: Adoption) {
        let Adoption { engines, devices, used, work } = adoption;
        for (device, kept) in devices {
            let d = &mut self.node.devices[usize::from(device.0)];
            (d.foreign, d.foreign_seen) = (kept.foreign, kept.foreign_seen);
        }
        let closing = work.as_ref().is_some_and(|w| w.closing);
        for a in &engines {
            self.put_back(a);
            if let Some(k) = &a.kept {
                // What a closing agent had stopped is started by the configuration, as ever.
                self.node.engine_mut(a.engine).to_boot = (k.to_boot || closing) && !k.process;
            }
        }
        self.take_up(work);
        // All bytes are told apart before anything is changed by them.
        let own: Vec<Option<u64>> = engines.iter().map(|a| self.own_bytes(a, &used)).collect();
        for (a, own) in engines.iter().zip(&own) {
            if self.in_its_step(a.engine).is_none() {
                self.at_rest(a, *own);
            }
        }
        let ids: Vec<OperationId> = self.node.operations.iter().map(|op| op.id).collect();
        for id in ids {
            self.go_on_with(id, &engines, &own);
        }
        self.unwanted_now();
    }

    /// An engine as it was kept, with what it can do now.
    fn put_back(&mut self, a: &Adopted) {
        let now = self.now;
        let e = self.node.engine_mut(a.engine);
        if let Some(k) = a.kept.clone() {
            let KeptEngine {
                tier,
                condition,
                admission,
                process,
                dead,
                life,
                generation,
                capabilities,
                footprints,
                costs,
                held,
                reserved,
                pinned,
                frozen,
                restart_only,
                level2_unsafe,
                cannot_park,
                other_settings,
                to_boot: _,
                taken_over,
                crashes,
                wanted_awake,
                awake_since,
                creep,
            } = k;
            (e.tier, e.condition, e.admission) = (tier, condition, admission);
            (e.process, e.dead, e.life, e.generation) = (process, dead, life, generation);
            (e.capabilities, e.footprints, e.costs) = (capabilities, footprints, costs);
            (e.held, e.reserved, e.pinned, e.frozen) = (held, reserved, pinned, frozen);
            (e.restart_only, e.level2_unsafe, e.cannot_park) = (restart_only, level2_unsafe, cannot_park);
            // What is kept was measured with other settings, whatever becomes of the file from now on: it holds as long as
            // a process of those lives, and is not that of the next one.
            (e.other_settings, e.taken_over) = (other_settings, taken_over);
            if let Some(newer) = e.revised.as_ref().filter(|newer| newer.process) {
                e.other_settings |= process;
                e.footprints = if process { footprints } else { newer.footprints };
            }
            (e.crashes, e.wanted_awake, e.awake_since, e.creep) = (crashes, wanted_awake, awake_since, creep);
            // Before it is ready nothing is known of what it can do; its operation asks it.
            if e.capabilities.is_some() {
                e.capabilities = a.found.capabilities.or(e.capabilities);
            }
        } else if matches!(a.found.process, Process::Lives | Process::Strange(_)) {
            // Nothing was kept: the most that it may be, until the tables have spoken.
            (e.tier, e.process, e.life, e.generation) = (Tier::Awake, true, e.life.max(1), 1);
            e.capabilities = a.found.capabilities;
            e.held = a.found.bytes.or(ledger::bytes_at(e, Tier::Awake)).unwrap_or(0);
            (e.wanted_awake, e.awake_since) = (true, now);
        }
        e.taken_over |= a.found.taken_over;
        e.watch = Watch { progress_at: now, ..Watch::default() };
        // Who used it last went with the former agent: its idleness begins now.
        e.used_at = now;
    }

    /// Operations and requests, of what is configured here as well.
    fn take_up(&mut self, work: Option<KeptWork>) {
        let Some(work) = work.map(|work| work.onto(self.node)) else { return };
        self.node.paused = work.paused;
        for op in work.operations {
            self.node.next_operation = self.node.next_operation.max(op.id.0 + 1);
            self.node.operations.push(op);
        }
        for queued in work.queue {
            self.node.next_operation = self.node.next_operation.max(queued.id.0 + 1);
            self.node.queue.push_back(queued);
        }
    }

    /// The operation that was in a step of this engine.
    fn in_its_step(&self, engine: EngineId) -> Option<OperationId> {
        let current = |op: &&crate::state::Operation| {
            op.current.as_ref().is_some_and(|c| c.step.engine() == Some(engine))
        };
        self.node.operations.iter().find(current).map(|op| op.id)
    }

    /// Device bytes of an engine: its own processes', else what the others do not account for, where all of them are at
    /// rest.
    fn own_bytes(&self, a: &Adopted, used: &[(DeviceId, u64)]) -> Option<u64> {
        if a.found.bytes.is_some() {
            return a.found.bytes;
        }
        let devices = &self.node.engine(a.engine).spec.devices;
        let each = devices.iter().map(|device| {
            let used = used.iter().find(|(d, _)| d == device)?.1;
            let others = self.node.engines_on(*device).filter(|id| *id != a.engine);
            let at_rest = |id: EngineId| {
                let e = self.node.engine(id);
                !e.dead && !matches!(e.condition, Condition::Moving | Condition::Adrift(_))
            };
            let mut sum = self.node.device(*device).foreign;
            for other in others {
                if !at_rest(other) {
                    return None;
                }
                sum = sum.saturating_add(self.node.engine(other).held);
            }
            Some(used.saturating_sub(sum))
        });
        each.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// An engine that no operation was in a step of.
    fn at_rest(&mut self, a: &Adopted, own: Option<u64>) {
        let id = a.engine;
        let e = self.node.engine(id);
        let of_an_operation = self.node.operation_on(&e.spec.devices).is_some();
        // An operation that is to come back to it brings it somewhere, or leaves it adrift at its end.
        if e.condition == Condition::Moving && of_an_operation && lives(&a.found) {
            return;
        }
        let place = adopt::place(a.kept.as_ref());
        let low = if e.tier == Tier::Awake { Tier::Level1 } else { e.tier };
        let bytes = adopt::bytes(self.node, id, own, low, Tier::Awake);
        let row = adopt::at_rest(place, adopt::says(&a.found), bytes);
        let Some(row) = row else { return };
        let name = e.spec.name.clone();
        let told = format!("{name}: {}", row.because);
        match row.then {
            Rest::Nothing => {}
            Rest::Believe => {
                let e = self.node.engine_mut(id);
                // Without the operation that had closed it, and with nobody to open it again.
                e.admission = e.tier == Tier::Awake && (e.admission || !of_an_operation);
            }
            Rest::Died => {
                let life = self.node.engine(id).life;
                let how = match &a.found.process {
                    Process::Ended(how) => format!("{} ({how})", row.because),
                    _ => row.because.to_owned(),
                };
                self.lay_down_reservation(id, of_an_operation);
                self.exited(id, life, &how);
            }
            Rest::FoundAsleep => self.adrift_now(id, Drift::FoundAsleep, &told),
            Rest::FoundAwake => self.adrift_now(id, Drift::FoundAwake, &told),
            Rest::Restart => self.adrift_now(id, Drift::Unresolved, &told),
        }
    }

    fn adrift_now(&mut self, id: EngineId, drift: Drift, told: &str) {
        let of_an_operation = self.node.operation_on(&self.node.engine(id).spec.devices).is_some();
        self.lay_down_reservation(id, of_an_operation);
        self.transit(id, told, |e| {
            (e.process, e.admission) = (true, false);
            // An operation may be at work on its devices; that it was to take something is over all the same.
            (e.held, e.reserved) = (e.held.saturating_add(e.reserved), 0);
            e.condition = Condition::Adrift(drift);
        });
        let devices = self.node.engine(id).spec.devices.clone();
        let op = self.node.operations.iter_mut().find(|op| op.devices.iter().any(|d| devices.contains(d)));
        // One incident for each engine and operation.
        match op {
            Some(op) if op.reported.contains(&id) => return,
            Some(op) => op.reported.push(id),
            None => {}
        }
        self.incident(Incident::Drifted, Some(id), told);
    }

    /// What it may have taken of a reservation that no operation answers for any more is held.
    fn lay_down_reservation(&mut self, id: EngineId, of_an_operation: bool) {
        let e = self.node.engine_mut(id);
        if e.condition == Condition::Moving && !of_an_operation {
            (e.held, e.reserved) = (e.held.saturating_add(e.reserved), 0);
            e.condition = Condition::Adrift(Drift::Unresolved);
        }
    }

    /// An operation goes on from the step that it was in.
    fn go_on_with(&mut self, id: OperationId, engines: &[Adopted], own: &[Option<u64>]) {
        let now = self.now;
        let Some(op) = self.op(id) else { return };
        op.leg_began = now;
        let (request, by) = (op.request.clone(), op.by);
        let Some(current) = op.current.take() else { return self.advance(id) };
        let step = current.step.clone();
        let Some(engine) = step.engine() else { return self.advance(id) };
        // What an operation has in hand is closed, whatever a damaged journal says. Who is merely asked serves on.
        if !matches!(step, Step::Ask(_)) {
            self.node.engine_mut(engine).admission = false;
        }
        let found = engines.iter().zip(own).find(|(a, _)| a.engine == engine);
        let (says, bytes) = match found {
            Some((a, own)) => {
                // What is being taken over is foreign memory still: no difference would show it.
                let own = if self.takes_over(id, engine) { a.found.bytes } else { *own };
                (adopt::says(&a.found), self.bytes_in_step(engine, &step, own))
            }
            None => (Says::Nobody, Bytes::Unknown),
        };
        let Some(op) = self.node.operations.iter().find(|op| op.id == id) else { return };
        let Some(row) = adopt::in_step(adopt::doing(op, &step, current.began, now), says, bytes) else {
            return self.advance(id);
        };
        let (then, because) = (row.then, row.because);
        self.note(Note::Resumed { id, request, by, step: Some(step.clone()), then, because });
        self.go_on(id, engine, current, then, because, found.map(|(a, _)| &a.found));
        self.advance(id);
    }

    fn go_on(
        &mut self,
        id: OperationId,
        engine: EngineId,
        current: Current,
        then: Then,
        because: &str,
        found: Option<&Found>,
    ) {
        let step = current.step.clone();
        let name = self.node.engine(engine).spec.name.clone();
        let detail = format!("{name}: {because} (found by the agent that took it over)");
        let wait = Step::Resolve { engine, asleep: self.leaves_asleep(engine, &step) };
        let taking_over = self.takes_over(id, engine);
        match then {
            // Not ours yet, and so not ours to end.
            Then::End if taking_over => self.recover_from(id, step, Cause::NotAdopted, detail),
            Then::Died if taking_over => self.step_failed(id, current, Cause::Gone, detail),
            Then::Again => {
                if step == Step::Spawn(engine) {
                    // No process came of it.
                    self.node.engine_mut(engine).process = false;
                }
                self.put_first(id, [step]);
            }
            Then::GoOn => {}
            Then::Wait => self.put_first(id, [wait]),
            Then::WaitAgain => self.put_first(id, [step, wait]),
            Then::Refused => self.recover_from(id, step, Cause::CallRefused, detail),
            Then::GiveUp => self.recover_from(id, step, Cause::DrainDeadline, detail),
            Then::Died => {
                self.died(engine);
                let detail = match found.map(|f| &f.process) {
                    Some(Process::Ended(how)) => format!("{name}: {how}"),
                    _ => detail,
                };
                self.step_failed(id, current, Cause::Gone, detail);
            }
            Then::End => {
                let lost = Recovery::Lost(engine);
                self.report(id, engine, &step, Cause::CallUnanswered, &detail, &lost);
                self.lose(id, engine, Failure { cause: Cause::CallUnanswered, engine, detail });
            }
        }
    }

    /// Puts steps before all others; the last of them is done first.
    fn put_first<const N: usize>(&mut self, id: OperationId, steps: [Step; N]) {
        if let Some(op) = self.op(id) {
            steps.into_iter().for_each(|step| op.program.push_front(step));
        }
    }

    /// What `/is_sleeping` will say once the call of this step is over.
    fn leaves_asleep(&self, engine: EngineId, step: &Step) -> bool {
        use crate::call::{Call, WakeTags};
        let Step::Call { call, .. } = step else { return false };
        let caps = self.node.engine(engine).capabilities;
        match call {
            Call::Sleep { .. } | Call::ReleaseKvCache | Call::WorkerSleep { .. } => true,
            Call::WakeUp { tags: WakeTags::Weights } | Call::ReloadWeights => true,
            // From 0.17 on a paused scheduler says that it sleeps.
            Call::Pause { .. } => caps.is_some_and(|c| !sequence::pauses_from_outside(&c)),
            Call::WakeUp { .. } | Call::WorkerWakeUp | Call::ResetPrefixCache | Call::Resume => false,
        }
    }

    /// What the bytes say of the move that the step was part of.
    fn bytes_in_step(&self, engine: EngineId, step: &Step, own: Option<u64>) -> Bytes {
        use crate::call::{Call, SleepLevel};
        let from = self.node.engine(engine).tier;
        let (low, high) = match step {
            Step::Call { call: Call::ReleaseKvCache, .. } => (Tier::Parked, Tier::Awake),
            Step::Call {
                call: Call::Sleep { level: SleepLevel::L1, .. } | Call::WorkerSleep { level: SleepLevel::L1 },
                ..
            } => (Tier::Level1, from),
            Step::Call {
                call: Call::Sleep { level: SleepLevel::L2, .. } | Call::WorkerSleep { level: SleepLevel::L2 },
                ..
            } => (Tier::Level2, from),
            Step::Call { call: Call::WorkerWakeUp, .. } | Step::Probe { .. } => (Tier::Level1, Tier::Awake),
            Step::Measure { tier: tier @ (Tier::Parked | Tier::Level1 | Tier::Level2), .. } => {
                (*tier, Tier::Awake)
            }
            _ if from == Tier::Awake => (Tier::Level1, Tier::Awake),
            _ => (from, Tier::Awake),
        };
        adopt::bytes(self.node, engine, own, low, high)
    }
}

fn lives(found: &Found) -> bool {
    matches!(found.process, Process::Lives)
}
