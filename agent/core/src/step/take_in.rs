//! A server that somebody else has started becomes an engine of this node, without being restarted or put to sleep.
//!
//! ```text
//!   hold ──► probe ──► warm up ──► keep ──► open
//!     │        │                    │
//!     └────────┴── any failure ─────┴──► let go: it is left as it was found, and the engine is where it was
//! ```
//!
//! `hold` finds the server by the engine's port, proves what has to be proven, and takes hold of it: its end is heard of
//! from then on. Nothing of that changes the state: until `keep` has succeeded the engine has no process here, its server's
//! bytes are foreign, and no step of the failure ladder that would end a process can reach it. So there is nothing to be
//! rolled back, and an agent that is killed in the middle leaves a server that nobody touches. With `keep` everything
//! changes at once: the bytes go from foreign to held, and from then on it is an engine like any other.
//!
//! An engine whose port is somebody else's when it is to be started is the other side of this: no process was made, so it
//! has not crashed, and it waits.

use super::Cx;
use crate::creep::Creep;
use crate::effect::{Incident, Note, ProbeKind, TakenIn};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::ledger;
use crate::plan;
use crate::program::{Cause, Step};
use crate::queue::Refusal;
use crate::state::{Condition, Engine, Evidence, Footprint, Watch};
use crate::tier::Tier;

impl Cx<'_> {
    /// The steps of taking over.
    pub(super) fn adopt(&self, id: EngineId) -> Result<Vec<Step>, Refusal> {
        let e = self.node.engine(id);
        if e.process {
            let hint = match e.condition {
                Condition::Failed(_) if e.dead => {
                    "what the one before it has left is not accounted for; `reset` it first, which leaves to other processes \
                     what is theirs"
                }
                _ => "it has a process already; `stop` it first if another one is to take its place",
            };
            let (engine, is) = (e.spec.name.clone(), e.condition_word().to_owned());
            return Err(Refusal::WrongState { engine, is, hint });
        }
        plan::evidence(self.node, &e.spec.devices)?;
        Ok(vec![
            Step::Hold(id),
            Step::Probe { engine: id, kind: ProbeKind::FirstToken, counted: true },
            Step::WarmUp(id),
            Step::Keep(id),
            Step::Open(id),
        ])
    }

    /// Whether this operation is taking over a server that is not ours yet.
    pub(super) fn takes_over(&self, id: OperationId, engine: EngineId) -> bool {
        let op = self.node.operations.iter().find(|op| op.id == id);
        op.is_some_and(|op| op.takes_over(self.node, engine))
    }

    /// A server ended that was held and not ours yet.
    pub(super) fn exited_while_held(&mut self, engine: EngineId, reason: &str) {
        let of_it = self.node.operations.iter().find(|op| op.takes_over(self.node, engine)).map(|op| op.id);
        let Some(id) = of_it else { return };
        let Some(op) = self.op(id) else { return };
        match op.current.take() {
            Some(current) if current.step.engine() == Some(engine) && current.step != Step::LetGo(engine) => {
                let detail = format!("the server on {}'s port: {reason}", self.node.engine(engine).spec.name);
                self.step_failed(id, current, Cause::Gone, detail);
                self.advance(id);
            }
            current => op.current = current,
        }
    }

    /// It is ours: everything that is known of it, at once.
    pub(super) fn taken_in(&mut self, id: OperationId, engine: EngineId, taken: TakenIn) {
        if !self.takes_over(id, engine) {
            return;
        }
        let now = self.now;
        let TakenIn { capabilities, used, bytes, host, as_configured, mut remarks } = taken;
        let bytes = bytes.or_else(|| self.unaccounted(engine, &used));
        let e = self.node.engine_mut(engine);
        if !as_configured {
            // What was measured with the configured settings says nothing of these.
            e.footprints = [None; 5];
        }
        let device = bytes.or(e.measured(Tier::Awake));
        if device.is_some() || host.is_some() {
            e.footprints[Tier::Awake as usize] = Some(Footprint { device, host });
        }
        let held = ledger::bytes_at(e, Tier::Awake).unwrap_or(0);
        self.transit(engine, "adopt", |e| {
            (e.tier, e.condition, e.process, e.dead) = (Tier::Awake, Condition::Settled, true, false);
            (e.held, e.reserved) = (held, 0);
            (e.pinned, e.frozen) = (false, false);
            (e.other_settings, e.taken_over) = (!as_configured, true);
            e.capabilities = Some(capabilities);
            e.generation += 1;
            e.crashes.reset();
            e.awake_since = now;
            e.creep = Creep::default();
            e.watch = Watch { progress_at: now, ..Watch::default() };
        });
        for device in self.node.engine(engine).spec.devices.clone() {
            let ours: u64 = self
                .node
                .engines_on(device)
                .map(|id| ledger::resident(self.node.engine(id)))
                .fold(0, u64::saturating_add);
            let read = used.iter().find(|(d, _)| *d == device).and_then(|(_, used)| *used);
            let d = &mut self.node.devices[usize::from(device.0)];
            // What is held is not foreign any more; and no more is foreign than is there beside what is ours.
            let most = read.map_or(u64::MAX, |used| used.saturating_sub(ours));
            let left = |foreign: u64| {
                let left = foreign.saturating_sub(held).min(most);
                if left > d.spec.slack { left } else { 0 }
            };
            (d.foreign, d.foreign_seen) = (left(d.foreign), left(d.foreign_seen));
        }
        if let Some((other, device)) = self.crowded(engine, &[]) {
            let (other, d) = (&self.node.engine(other).spec.name, &self.node.device(device).spec);
            remarks.push(format!(
                "{other} is awake on {} as well, and max_awake there is {}",
                d.name,
                d.max_awake.max(1)
            ));
        }
        if device.is_some() || host.is_some() {
            self.note(Note::Measured { engine, tier: Tier::Awake });
        }
        self.note(Note::TakenIn { id, engine, remarks });
    }

    /// What a device shows beside our engines, where nothing says how much of it is the server's: all of it, or, where
    /// more is known of the engine, what that says.
    fn unaccounted(&self, engine: EngineId, used: &[(DeviceId, Option<u64>)]) -> Option<u64> {
        if ledger::bytes_at(self.node.engine(engine), Tier::Awake).is_some() {
            return None;
        }
        let beside = |(device, used): &(DeviceId, Option<u64>)| {
            let good = self.node.device(*device).evidence == Evidence::Good;
            let ours = self.node.engines_on(*device).map(|id| ledger::resident(self.node.engine(id)));
            Some((*used.as_ref().filter(|_| good)?).saturating_sub(ours.fold(0, u64::saturating_add)))
        };
        used.iter().filter_map(beside).max()
    }

    /// Its port is somebody else's: nothing was started and nothing has crashed. It waits for the port.
    pub(super) fn defer(&mut self, engine: EngineId) {
        self.transit(engine, "its port is taken", |e| {
            (e.process, e.dead, e.admission) = (false, false, false);
            (e.held, e.reserved) = (0, 0);
            e.tier = Tier::Stopped;
            e.condition = Condition::PortTaken;
        });
    }

    /// Somebody looked at the port of an engine that has no process.
    pub(super) fn port(&mut self, engine: EngineId, taken: Option<&str>) {
        let now = self.now;
        let e = self.node.engine(engine);
        let at_rest = !e.process && self.node.operation_on(&e.spec.devices).is_none();
        match (&e.condition, taken) {
            (Condition::PortTaken, None) if at_rest => {
                self.transit(engine, "its port is free", |e| e.condition = Condition::Backoff(now));
            }
            // What keeps the room from it may be its own server, and then no room would ever be enough.
            (Condition::NoRoom | Condition::Backoff(_), Some(why)) if at_rest => {
                let detail = format!("{}: {why}", e.spec.name);
                self.transit(engine, "its port is taken", |e| e.condition = Condition::PortTaken);
                self.incident(Incident::StartFailed, Some(engine), detail);
            }
            _ => {}
        }
    }
}

/// The process is gone: what was measured of it says nothing of the next one, if it ran with other settings than are
/// configured; neither does it say how much is to be reserved for that one.
pub(super) fn own_settings_again(e: &mut Engine) {
    if std::mem::take(&mut e.other_settings) {
        e.footprints = [None; 5];
    }
}

impl crate::state::Operation {
    /// Whether it is taking over a server that is not ours yet as this engine.
    pub(crate) fn takes_over(&self, node: &crate::state::Node, engine: EngineId) -> bool {
        self.request == crate::event::Request::Adopt(engine) && !node.engine(engine).process
    }
}
