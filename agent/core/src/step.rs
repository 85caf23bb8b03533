//! `step`: one event in, the state changed, effects out. Total: no event panics it, in no state.
//!
//! What the shell promises in return: engine and device ids in an event are of this node's configuration, the number of
//! a command was drawn with [`Node::number`], and each ticket is answered once. Anything else may be late, doubled or
//! senseless.
//!
//! ```text
//!   command ──► admit ──► operation ──► advance ──► action at the edge ──► done ──► judge ──► advance …
//!                 │ refused / joined / queued            ▲                      │ failed
//!                 ▼                                      └────── recover ◄──────┘
//! ```
//!
//! An engine's process may also be one that somebody else has started: `take_in` has what becomes of it.
//!
//! After every event the idle devices are given their next work: sweeping what died, repairing what drifted, what waits
//! in the queue, restarts that are due.

mod admit;
mod adopted;
mod advance;
mod bytes;
mod demand;
mod expand;
mod idle;
mod judge;
mod maintain;
mod observe;
mod revise;
mod take_in;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod total;

use crate::effect::{Effect, Incident, Note};
use crate::event::Event;
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::state::{Condition, Node, Operation};
use crate::time::Moment;

/// Changes `node` by one event and says what is to be done, in order.
pub fn step(node: &mut Node, event: Event, now: Moment) -> Vec<Effect> {
    let mut cx = Cx { node, now, out: Vec::new() };
    match event {
        Event::Adopted(adoption) => cx.adopted(*adoption),
        Event::Revised(revision) => cx.revised(*revision),
        Event::Boot { awake } => cx.boot(&awake),
        Event::Command { id, request, by } => cx.admit(id, request, by),
        Event::Cancel(id) => cx.cancel(id),
        Event::Done { ticket, result } => cx.done(ticket, result),
        Event::Exited { engine, life, reason } => cx.exited(engine, life, &reason),
        Event::Surveyed { engine, generation, survey } => cx.surveyed(engine, generation, &survey),
        Event::DeviceRead { device, capacity, used } => cx.device_read(device, capacity, used),
        Event::DeviceLost { device, reason } => cx.device_lost(device, reason),
        Event::Demand { engine, demand } => cx.demanded(engine, demand),
        Event::Port { engine, taken } => cx.port(engine, taken.as_deref()),
        Event::JournalLost(reason) => cx.node.journal_lost = reason,
        Event::Uses(uses) => uses.into_iter().for_each(|u| cx.used(u.engine, u.in_flight, u.at)),
        Event::Tick => cx.survey_all(),
        Event::Cycle { runs } => cx.cycle(runs),
        Event::Close => cx.close(),
    }
    cx.revise_at_rest();
    cx.idle_work();
    let out = cx.out;
    #[cfg(debug_assertions)]
    if let Err(broken) = crate::invariants::check(node) {
        panic!("invariant broken: {broken}");
    }
    out
}

/// One call of [`step`].
struct Cx<'a> {
    node: &'a mut Node,
    now: Moment,
    out: Vec<Effect>,
}

impl Cx<'_> {
    fn note(&mut self, note: Note) {
        self.out.push(Effect::Note(note));
    }

    fn incident(&mut self, incident: Incident, engine: Option<EngineId>, detail: impl Into<String>) {
        // While everything is being stopped an engine that ends has not crashed.
        if self.node.closing && incident == Incident::Crashed {
            return;
        }
        self.note(Note::Incident { incident, engine, device: None, detail: detail.into() });
    }

    fn device_incident(&mut self, incident: Incident, device: DeviceId, detail: impl Into<String>) {
        self.note(Note::Incident { incident, engine: None, device: Some(device), detail: detail.into() });
    }

    /// Changes an engine's tier or condition and notes it.
    fn transit(&mut self, engine: EngineId, reason: &str, change: impl FnOnce(&mut crate::state::Engine)) {
        let e = self.node.engine_mut(engine);
        let from = e.condition_word();
        change(e);
        let to = e.condition_word();
        if from != to {
            self.note(Note::Transition { engine, from, to, reason: reason.to_owned() });
        }
    }

    fn op(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.node.operations.iter_mut().find(|op| op.id == id)
    }

    /// How many engines other than `except` are awake on its devices.
    fn others_awake(&self, except: EngineId) -> Vec<EngineId> {
        let devices = &self.node.engine(except).spec.devices;
        self.node
            .ids()
            .filter(|id| *id != except)
            .filter(|id| {
                let e = self.node.engine(*id);
                e.tier == crate::tier::Tier::Awake
                    && !e.dead
                    && e.condition != Condition::NoRoom
                    && e.spec.devices.iter().any(|d| devices.contains(d))
            })
            .collect()
    }

    /// The device on which an engine would be one too many awake, if those that `come_back` were awake as well, with
    /// one that is in its way; `None` where it may be awake.
    fn crowded(&self, engine: EngineId, come_back: &[EngineId]) -> Option<(EngineId, DeviceId)> {
        let awake = self.others_awake(engine);
        self.node.engine(engine).spec.devices.iter().find_map(|device| {
            let there = |id: &&EngineId| self.node.engine(**id).spec.devices.contains(device);
            let mut others: Vec<&EngineId> = awake.iter().filter(there).collect();
            let back = come_back.iter().filter(|id| **id != engine && !awake.contains(id));
            others.extend(back.filter(there));
            let full = others.len() >= usize::from(self.node.device(*device).spec.max_awake.max(1));
            others.first().filter(|_| full).map(|id| (**id, *device))
        })
    }
}
