//! Reconciliation: what is seen at rest is held against what we believe.

use super::Cx;
use crate::call::SleepingAnswer;
use crate::creep::{self, Due, IDLE_SURVEYS};
use crate::effect::{Effect, Incident, Note};
use crate::event::Survey;
use crate::ids::{DeviceId, EngineId};
use crate::ledger;
use crate::program::{Cause, Step};
use crate::state::{Condition, Drift, Engine, Evidence, Footprint, NOT_READ, Operation};
use crate::tier::Tier;

/// Surveys in a row that must contradict us before we believe them: one may have been asked before a change.
const CONTRADICTIONS: u8 = 2;

impl Cx<'_> {
    /// Asks every engine how it is that is at rest, or should be awake while an operation moves others on its devices
    /// or waits for its requests to end.
    pub(super) fn survey_all(&mut self) {
        for engine in self.node.ids() {
            let e = self.node.engine(engine);
            let at_rest = self.node.operation_on(&e.spec.devices).is_none() || e.tier == Tier::Awake;
            if e.process && !e.dead && at_rest && e.condition == Condition::Settled {
                self.out.push(Effect::Survey { engine, generation: e.generation });
            }
        }
    }

    /// One engine was surveyed.
    pub(super) fn surveyed(&mut self, engine: EngineId, generation: u64, survey: &Survey) {
        let now = self.now;
        let stall_after = self.node.policy.stall_after;
        let e = self.node.engine(engine);
        let at_rest = self.node.operation_on(&e.spec.devices).is_none();
        let stale = e.generation != generation || e.condition != Condition::Settled || e.dead;
        let awake = e.tier == Tier::Awake;
        if stale || !e.process || !(at_rest || awake) {
            return;
        }
        let contradicts = match survey.sleeping {
            SleepingAnswer::Says { is_sleeping } => is_sleeping == awake,
            _ => false,
        };
        if !at_rest && !contradicts {
            // What else it says is said under an operation's hands.
            self.node.engine_mut(engine).watch.contradictions = 0;
            return;
        }
        if let (false, Some(bytes)) = (awake || contradicts, survey.device_bytes) {
            let e = self.node.engine_mut(engine);
            e.creep.left(&e.spec.recycle, e.tier, bytes);
            self.tell_creep(engine);
        }
        // Counted only where somebody waits for an idle moment.
        let tells_idle = self.node.engines.iter().any(|e| creep::waits(e) || e.retired);
        let e = self.node.engine_mut(engine);
        e.watch.contradictions = if contradicts { e.watch.contradictions.saturating_add(1) } else { 0 };
        if e.watch.contradictions >= CONTRADICTIONS {
            if awake {
                return self.found_asleep(engine);
            }
            let what = "it should be asleep and says that it is awake";
            return self.adrift(engine, Drift::FoundAwake, Incident::Drifted, what);
        }
        if !at_rest {
            return;
        }
        if let (true, false, Some(bytes)) = (awake, contradicts, survey.device_bytes) {
            self.learn_awake(engine, bytes);
        }
        let e = self.node.engine_mut(engine);
        let idle = tells_idle && (!awake || survey.running == Some(0));
        e.watch.idle = if idle { e.watch.idle.saturating_add(1).min(IDLE_SURVEYS) } else { 0 };
        let (Some(running), Some(tokens)) = (survey.running, survey.tokens) else { return };
        // Who asks an engine directly uses it as well. What operations ask of it is over before it is counted first.
        if awake && (running > 0 || (e.watch.counted && tokens != e.watch.tokens)) {
            e.used_at = now;
        }
        e.watch.counted = true;
        if !awake || running == 0 || tokens != e.watch.tokens {
            e.watch.tokens = tokens;
            e.watch.progress_at = now;
        } else if now.since(e.watch.progress_at) >= stall_after {
            self.adrift(engine, Drift::Stalled, Incident::Stalled, "requests run and no token comes");
        }
    }

    /// It serves, and nobody has measured what it takes: the journal that knew was lost, or the device could not be seen when
    /// it was woken. Until its next wake it would be charged with an estimate.
    fn learn_awake(&mut self, engine: EngineId, bytes: u64) {
        let e = self.node.engine(engine);
        if e.measured(Tier::Awake).is_some() || !ledger::is_plausible(e, Tier::Awake, bytes) {
            return;
        }
        let e = self.node.engine_mut(engine);
        let host = e.footprints[Tier::Awake as usize].and_then(|footprint| footprint.host);
        e.footprints[Tier::Awake as usize] = Some(Footprint { device: Some(bytes), host });
        e.held = bytes;
        self.note(Note::Measured { engine, tier: Tier::Awake });
    }

    /// Says once in each life that an engine loses memory.
    fn tell_creep(&mut self, engine: EngineId) {
        let e = self.node.engine_mut(engine);
        let Some(Due::Creep(bytes)) = e.creep.due(&e.spec.recycle).filter(|_| !e.creep.said) else { return };
        e.creep.said = true;
        let detail = format!(
            "{} leaves {} more on the device asleep than at first: it is started anew at the next idle moment",
            e.spec.name,
            ledger::human(bytes)
        );
        self.incident(Incident::ResidualCreep, Some(engine), detail);
    }

    /// It should be awake, nothing of ours has moved it, and it says that it sleeps. Whatever waits for its requests to
    /// end would wait in vain: what was asked of it asleep hangs until it is awake (CONTRACT fact 4).
    pub(super) fn found_asleep(&mut self, engine: EngineId) {
        let e = self.node.engine(engine);
        if e.tier != Tier::Awake || e.condition != Condition::Settled || e.dead || !e.process {
            return;
        }
        let what = "it should be awake and says that it sleeps";
        self.adrift(engine, Drift::FoundAsleep, Incident::Drifted, what);
        let drains = |op: &&mut Operation| op.current.as_ref().is_some_and(|c| c.step == Step::Drain(engine));
        let drain = self.node.operations.iter_mut().find(drains);
        if let Some((id, current)) = drain.and_then(|op| Some((op.id, op.current.take()?))) {
            let name = &self.node.engine(engine).spec.name;
            let detail = format!("{name} was put to sleep by somebody else: it is repaired first");
            self.step_failed(id, current, Cause::Drifted, detail);
            self.advance(id);
        }
    }

    fn adrift(&mut self, engine: EngineId, drift: Drift, incident: Incident, what: &str) {
        self.transit(engine, what, |e| {
            e.admission = false;
            e.watch.contradictions = 0;
            e.condition = Condition::Adrift(drift);
        });
        let e = self.node.engine(engine);
        let detail = format!("{}: {what}", e.spec.name);
        // One incident for each engine and operation, as where the operation itself comes upon it.
        let devices = e.spec.devices.clone();
        let of_its = |op: &&mut Operation| op.devices.iter().any(|d| devices.contains(d));
        if let Some(op) = self.node.operations.iter_mut().find(of_its) {
            if op.reported.contains(&engine) {
                return;
            }
            op.reported.push(engine);
        }
        self.incident(incident, Some(engine), detail);
    }

    /// A device was read at rest: what our engines do not account for is foreign.
    pub(super) fn device_read(&mut self, device: DeviceId, capacity: u64, used: u64) {
        let busy = self.node.operation_on(&[device]).is_some();
        let d = &mut self.node.devices[usize::from(device.0)];
        if d.evidence == Evidence::Off {
            return;
        }
        // What an operation has reserved was checked against the capacity that was known then.
        if !busy || d.spec.capacity.is_none() {
            d.spec.capacity = Some(capacity);
        }
        if let Evidence::Lost(reason) = &d.evidence {
            let first = reason == NOT_READ;
            d.evidence = Evidence::Good;
            let name = d.spec.name.clone();
            if !first {
                self.device_incident(Incident::DeviceRestored, device, format!("{name} can be read again"));
            }
        }
        if !busy {
            self.leftovers_gone(device, used);
        }
        let unsettled = |id: EngineId| {
            let e = self.node.engine(id);
            e.dead || matches!(e.condition, Condition::Moving | Condition::Adrift(_))
        };
        // An engine that seems to have been woken behind our back is the better explanation: its surveys will tell.
        let in_doubt = |id: EngineId| unsettled(id) || self.node.engine(id).watch.contradictions > 0;
        if busy || self.node.engines_on(device).any(in_doubt) {
            return;
        }
        let ours: u64 = self
            .node
            .engines_on(device)
            .map(|id| ledger::resident(self.node.engine(id)))
            .fold(0, u64::saturating_add);
        // Where no engine has a process there is nothing that a survey could explain.
        let nobody = self.node.engines_on(device).all(|id| !self.node.engine(id).process);
        let d = &mut self.node.devices[usize::from(device.0)];
        let seen = Some(used.saturating_sub(ours)).filter(|bytes| *bytes > d.spec.slack).unwrap_or(0);
        // What is new counts once it has been seen twice: the first look may come before the survey that explains it, or
        // before the news that an engine of ours has just died, whose bytes would be taken for theirs that have gone.
        let (least, most) = (d.foreign.min(d.foreign_seen), d.foreign.max(d.foreign_seen));
        let foreign = if nobody { seen } else { seen.clamp(least, most) };
        d.foreign_seen = seen;
        let appeared = foreign > d.foreign.saturating_add(d.spec.slack);
        d.foreign = foreign;
        if appeared {
            let detail =
                format!("{} on {} that no engine of ours accounts for", ledger::human(foreign), d.spec.name);
            self.device_incident(Incident::ForeignMemory, device, detail);
        }
    }

    /// Bytes that outlived an ended engine have gone at last (an uninterruptible process ended, a neighbour went that
    /// had taken them): the engine need not wait for an operator. Where several wait on one device they are judged
    /// together, or each would wait for the other.
    fn leftovers_gone(&mut self, device: DeviceId, used: u64) {
        // One that spans several devices would have to be seen gone from all of them in one look.
        let waits = |e: &Engine| {
            matches!(e.condition, Condition::Failed(_)) && e.dead && e.held > 0 && e.spec.devices == [device]
        };
        let d = self.node.device(device);
        let (slack, mut expected) = (d.spec.slack, d.foreign);
        let mut waiting = Vec::new();
        for id in self.node.engines_on(device) {
            let e = self.node.engine(id);
            if waits(e) {
                waiting.push(id);
            } else if e.dead || e.condition != Condition::Settled {
                // Room that its end has made would pass for theirs.
                return;
            } else {
                expected = expected.saturating_add(e.held);
            }
        }
        let there = used > expected.saturating_add(slack);
        for engine in waiting {
            let e = self.node.engine_mut(engine);
            e.watch.contradictions = if there { 0 } else { e.watch.contradictions.saturating_add(1) };
            // Seen twice: the first look may come before the news that a neighbour has just died.
            if e.watch.contradictions < CONTRADICTIONS {
                continue;
            }
            let now = self.now;
            self.transit(engine, "what it had left on the device is gone", |e| {
                (e.process, e.dead) = (false, false);
                (e.held, e.reserved) = (0, 0);
                e.watch.contradictions = 0;
                e.condition = if e.wanted_awake { Condition::Backoff(now) } else { Condition::Settled };
            });
        }
    }

    /// A device cannot be read any more.
    pub(super) fn device_lost(&mut self, device: DeviceId, reason: String) {
        let d = &mut self.node.devices[usize::from(device.0)];
        let known = matches!(&d.evidence, Evidence::Lost(old) if old != NOT_READ);
        match &d.evidence {
            Evidence::Off => {}
            Evidence::Lost(_) if known => d.evidence = Evidence::Lost(reason),
            // One that has never been read was never there to be lost, and that is told all the same.
            Evidence::Lost(_) | Evidence::Good => {
                let detail = format!("{} cannot be read: {reason}", d.spec.name);
                d.evidence = Evidence::Lost(reason);
                self.device_incident(Incident::DeviceLost, device, detail);
            }
        }
    }
}
