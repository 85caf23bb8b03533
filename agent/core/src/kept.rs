//! What is kept of a node, so that the agent's end is survived: all of the core's state that neither the configuration
//! nor a look at the world gives back. [`crate::adopt`] says what a later agent makes of it.

use crate::backoff::Crashes;
use crate::capability::Capabilities;
use crate::creep::Creep;
use crate::ids::{DeviceId, EngineId};
use crate::program::Step;
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
    /// Its process runs with other settings than are configured.
    #[serde(default)]
    pub other_settings: bool,
    /// Whether it runs was still the configuration's to say.
    #[serde(default)]
    pub to_boot: bool,
    /// Its process was started by somebody else.
    #[serde(default)]
    pub taken_over: bool,
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
    /// The same work with the ids of this node: engines and devices go by name, in whatever order they are configured
    /// now. What is about one that is not configured any more is left out.
    #[must_use]
    pub fn onto(self, node: &Node) -> KeptWork {
        let KeptWork { engines, devices, operations, queue, paused, closing } = self;
        let at = |index: u16, names: &[String], now: &dyn Fn(&str) -> Option<usize>| {
            u16::try_from(now(names.get(usize::from(index))?)?).ok()
        };
        let engine_now = |name: &str| node.engines.iter().position(|e| e.spec.name == name);
        let device_now = |name: &str| node.devices.iter().position(|d| d.spec.name == name);
        let engine = |id: EngineId| at(id.0, &engines, &engine_now).map(EngineId);
        let device = |id: DeviceId| at(id.0, &devices, &device_now).map(DeviceId);
        let operations = operations.into_iter().filter_map(|op| {
            let was = op.tiers_before.clone();
            let mut op = op.renamed(&engine, &device)?;
            op.tiers_before = vec![Tier::Stopped; node.engines.len()];
            for (name, tier) in engines.iter().zip(was) {
                if let Some(before) = engine_now(name).and_then(|at| op.tiers_before.get_mut(at)) {
                    *before = tier;
                }
            }
            Some(op)
        });
        let queue = queue.into_iter().filter_map(|mut queued| {
            if let Some(id) = queued.request.engine_mut() {
                *id = engine(*id)?;
            }
            Some(queued)
        });
        let paused = paused.map(|mut paused| {
            paused.served = paused.served.into_iter().filter_map(engine).collect();
            paused
        });
        KeptWork {
            operations: operations.collect(),
            queue: queue.collect(),
            paused,
            closing,
            engines: node.engines.iter().map(|e| e.spec.name.clone()).collect(),
            devices: node.devices.iter().map(|d| d.spec.name.clone()).collect(),
        }
    }
}

impl Operation {
    /// The same with other ids; `None` where one of them has none. Tiers before it began are left as they are.
    fn renamed(
        mut self,
        engine: &dyn Fn(EngineId) -> Option<EngineId>,
        device: &dyn Fn(DeviceId) -> Option<DeviceId>,
    ) -> Option<Operation> {
        let all = |ids: &[EngineId]| ids.iter().map(|id| engine(*id)).collect::<Option<Vec<_>>>();
        self.devices = self.devices.iter().map(|id| device(*id)).collect::<Option<_>>()?;
        self.incoming = match self.incoming {
            Some(id) => Some(engine(id)?),
            None => None,
        };
        self.outgoing = all(&self.outgoing)?;
        self.serving_before = all(&self.serving_before)?;
        self.reported = all(&self.reported)?;
        self.repaired = all(&self.repaired)?;
        self.relaunched = all(&self.relaunched)?;
        self.asked = all(&self.asked)?;
        if let Some(failure) = &mut self.failure {
            failure.engine = engine(failure.engine)?;
        }
        let steps = self.program.iter_mut().chain(self.current.as_mut().map(|current| &mut current.step));
        for id in steps.filter_map(Step::engine_mut).chain(self.request.engine_mut()) {
            *id = engine(*id)?;
        }
        Some(self)
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
        other_settings,
        to_boot,
        taken_over,
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
        // The next agent holds its own configuration against what the process was started with.
        revised: _,
        retired: _,
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
        other_settings: *other_settings,
        to_boot: *to_boot,
        taken_over: *taken_over,
        crashes: crashes.clone(),
        wanted_awake: *wanted_awake,
        awake_since: *awake_since,
        creep: *creep,
    }
}
