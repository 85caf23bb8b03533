//! What is kept of a node, so that the agent's end is survived: all of the core's state that neither the configuration
//! nor a look at the world gives back. [`crate::adopt`] says what a later agent makes of it.

use crate::backoff::Crashes;
use crate::capability::Capabilities;
use crate::creep::Creep;
use crate::state::{Condition, Costs, Engine, Footprint, Node, Operation, Paused, Queued};
use crate::tier::Tier;
use crate::time::Moment;
use serde::{Deserialize, Serialize};

/// What is kept of one engine: everything that the core knows of it, but for the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeptEngine {
    /// Where it was last verified.
    pub tier: Tier,
    /// Whether that held.
    pub condition: Condition,
    /// Whether requests were admitted.
    pub admission: bool,
    /// Whether a process existed, or its remains.
    pub process: bool,
    /// Its leader had ended by itself.
    pub dead: bool,
    /// Process lives so far.
    pub life: u64,
    /// Verified changes of tier so far.
    pub generation: u64,
    /// What it could do.
    pub capabilities: Option<Capabilities>,
    /// Measured bytes, by tier.
    pub footprints: [Option<Footprint>; 5],
    /// Learned durations.
    pub costs: Costs,
    /// Device bytes held.
    pub held: u64,
    /// Device bytes reserved by the operation at work on it.
    pub reserved: u64,
    /// Its host backup is pinned.
    pub pinned: bool,
    /// Requests are frozen in it.
    pub frozen: bool,
    /// The rehearsal failed.
    pub restart_only: bool,
    /// A level-2 wake gave other tokens.
    pub level2_unsafe: bool,
    /// It cannot park.
    pub cannot_park: bool,
    /// Crashes within the window.
    pub crashes: Crashes,
    /// Whether it should come back awake.
    pub wanted_awake: bool,
    /// When it last became awake.
    pub awake_since: Moment,
    /// What this life has lost on the device.
    pub creep: Creep,
}

/// What is kept of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct KeptDevice {
    /// Bytes that none of our engines accounted for.
    pub foreign: u64,
    /// What the last look would have called so.
    pub foreign_seen: u64,
}

/// What is kept of the work of a node. Ids in it are places in the lists of names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct KeptWork {
    /// Engines, in the order that ids count them in.
    pub engines: Vec<String>,
    /// Devices, likewise.
    pub devices: Vec<String>,
    /// Operations under way.
    pub operations: Vec<Operation>,
    /// Requests that waited.
    pub queue: Vec<Queued>,
    /// Maintenance.
    pub paused: Option<Paused>,
    /// The node was being closed: that an engine is stopped is the agent's doing, not an operator's choice.
    pub closing: bool,
}

impl KeptWork {
    /// Whether ids mean the same in this node: it has the same engines and devices, further ones at most behind them.
    pub fn fits(&self, node: &Node) -> bool {
        let engines = node.engines.iter().map(|e| &e.spec.name);
        let devices = node.devices.iter().map(|d| &d.spec.name);
        self.engines.len() <= node.engines.len()
            && self.devices.len() <= node.devices.len()
            && engines.zip(&self.engines).all(|(a, b)| a == b)
            && devices.zip(&self.devices).all(|(a, b)| a == b)
    }
}

/// What is kept of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kept {
    /// Engines in the node's order.
    pub engines: Vec<KeptEngine>,
    /// Devices in the node's order.
    pub devices: Vec<KeptDevice>,
    /// What was under way.
    pub work: KeptWork,
}

/// What must survive the agent of this state.
pub fn keep(node: &Node) -> Kept {
    Kept {
        engines: node.engines.iter().map(keep_engine).collect(),
        devices: node
            .devices
            .iter()
            .map(|d| KeptDevice { foreign: d.foreign, foreign_seen: d.foreign_seen })
            .collect(),
        work: KeptWork {
            engines: node.engines.iter().map(|e| e.spec.name.clone()).collect(),
            devices: node.devices.iter().map(|d| d.spec.name.clone()).collect(),
            operations: node.operations.clone(),
            queue: node.queue.iter().cloned().collect(),
            paused: node.paused.clone(),
            closing: node.closing,
        },
    }
}

/// Every field of an engine is named here, so that whoever adds one decides whether it is kept.
fn keep_engine(e: &Engine) -> KeptEngine {
    let Engine {
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
        crashes,
        wanted_awake,
        awake_since,
        creep,
        // From the configuration.
        spec: _,
        // Observed, or told by the gateway, anew.
        watch: _,
        demand: _,
        in_flight: _,
        used_at: _,
        // Patience with what failed under the former agent: the next one may try at once.
        retry: _,
        ladder_from: _,
        fall_retry: _,
    } = e;
    KeptEngine {
        tier: *tier,
        condition: condition.clone(),
        admission: *admission,
        process: *process,
        dead: *dead,
        life: *life,
        generation: *generation,
        capabilities: *capabilities,
        footprints: *footprints,
        costs: *costs,
        held: *held,
        reserved: *reserved,
        pinned: *pinned,
        frozen: *frozen,
        restart_only: *restart_only,
        level2_unsafe: *level2_unsafe,
        cannot_park: *cannot_park,
        crashes: crashes.clone(),
        wanted_awake: *wanted_awake,
        awake_since: *awake_since,
        creep: *creep,
    }
}
