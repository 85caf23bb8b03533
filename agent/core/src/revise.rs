//! A new configuration under running engines.
//!
//! What is unchanged is left alone, admission and all. Settings that only the agent uses (turns, ladders, deadlines,
//! levels) come into force as soon as nothing is under way on the engine's devices. Settings that its process was
//! started with come into force with its next process: as long as the old one lives it is what the old settings say, and
//! so is its place in the ledger.
//!
//! ```text
//!   settings of the agent  ──► nothing under way on its devices ──────────────────────────► in force
//!   settings of its process ─► no process ────────────────────────────────────────────────► in force
//!                              process ──► idle moment (or any other end of it) ──► restart ► in force
//!   not configured any more ─► no process ──► a tombstone: its id is never another engine's
//!                              process ──► its own idle moment ──► stopped ──► a tombstone
//! ```
//!
//! The idle moment is that of recycling ([`crate::creep`]): nobody is served on the engine's devices. What is retired
//! waits for its own idleness alone, since its end takes nothing from anybody.

use crate::ids::{DeviceId, EngineId};
use crate::ledger::{self, Shortfall};
use crate::plan;
use crate::queue::Refusal;
use crate::spec::{EngineSpec, Policy};
use crate::state::{Costs, Engine, Footprint, Node};

/// Newer settings of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revised {
    /// What is configured now, under the same name.
    pub spec: EngineSpec,
    /// They are about its process, which has to be started anew for them.
    pub process: bool,
    /// What was measured before with these settings, by tier.
    pub footprints: [Option<Footprint>; 5],
}

/// What a new configuration makes of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// It is as it was, or as it was before a change that has not come into force.
    Same,
    /// Its settings are others.
    Settings(Box<Revised>),
    /// It is not configured any more.
    Retired,
}

/// Settings of a device that can change while the agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceSettings {
    /// Bytes never given to an engine.
    pub reserve: u64,
    /// Tolerance of every comparison with measured bytes.
    pub slack: u64,
    /// How many engines may be left awake once a handoff has ended.
    pub max_awake: u16,
}

/// A whole new configuration, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision {
    /// What becomes of each engine there is, in the order of their ids; further ones stay as they are.
    pub engines: Vec<Change>,
    /// New ones; they get the ids that follow. Their `process` means nothing.
    pub added: Vec<Revised>,
    /// Settings of each device, in the order of their ids.
    pub devices: Vec<DeviceSettings>,
    /// Defaults of the node.
    pub policy: Policy,
}

/// Puts newer settings into force. What was learned of a process with other settings does not hold of the next one.
pub(crate) fn put_in_force(engine: &mut Engine) {
    let Some(revised) = engine.revised.take() else { return };
    let Revised { spec, process, footprints } = *revised;
    // Whatever else, it is the same engine.
    engine.spec = EngineSpec { name: std::mem::take(&mut engine.spec.name), ..spec };
    if process {
        engine.footprints = footprints;
        engine.costs = Costs::default();
        engine.crashes.reset();
        (engine.restart_only, engine.level2_unsafe, engine.cannot_park) = (false, false, false);
    }
}

/// Whether an engine can be started, or started anew, with the settings that its next process will have.
///
/// # Errors
/// Why not: no evidence, or no room.
pub(crate) fn can_start(node: &Node, id: EngineId) -> Result<(), Refusal> {
    let e = node.engine(id);
    if !e.revised.as_ref().is_some_and(|revised| revised.process) {
        return room(node, id);
    }
    // Once in a reload, not on anybody's path.
    let mut then = node.clone();
    let e = then.engine_mut(id);
    // The old process is gone by then, from wherever it was.
    (e.held, e.reserved) = (0, 0);
    put_in_force(e);
    room(&then, id)
}

fn room(node: &Node, id: EngineId) -> Result<(), Refusal> {
    let e = node.engine(id);
    plan::evidence(node, &e.spec.devices)?;
    match ledger::start_need(e).and_then(|need| ledger::shortfall(node, id, need)) {
        None => Ok(()),
        Some(Shortfall { device, missing, .. }) => Err(Refusal::NoRoom {
            what: format!("starting {}{}", e.spec.name, if e.process { " again" } else { "" }),
            device: node.device(device).spec.name.clone(),
            missing,
        }),
    }
}

/// The devices that an engine has, and those that it will have.
pub(crate) fn devices(engine: &Engine) -> Vec<DeviceId> {
    let then = engine.revised.iter().flat_map(|revised| &revised.spec.devices);
    let mut all: Vec<DeviceId> = engine.spec.devices.iter().chain(then).copied().collect();
    all.sort_unstable();
    all.dedup();
    all
}
