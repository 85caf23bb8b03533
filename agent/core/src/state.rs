//! The state of one node, owned by one task and changed by [`crate::step::step`] alone.
//!
//! An engine's place has two sides. Its **tier** is where it was last *verified*; its **condition** says whether that
//! still holds:
//!
//! ```text
//!              operation takes it            operation verified it
//!   settled ───────────────────────► moving ───────────────────────► settled
//!      │                               │
//!      │ world moved behind our back   │ process died, or was killed as the last rung of the failure ladder
//!      ▼                               ▼
//!   adrift ──── repair operation     backoff ──► (start operation)      no room ──► (start operation once there is)
//!                                      │ budget used up
//!                                      ▼
//!                                    failed ──── operator's reset
//! ```
//!
//! `backoff`, `no room`, `port taken` and `failed` imply the tier `stopped`.

use crate::backoff::Crashes;
use crate::capability::Capabilities;
use crate::comeback;
use crate::creep::Creep;
use crate::demand::{self, Demand, Retry};
use crate::effect::Ticket;
use crate::event::{By, Request};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::ladder;
use crate::program::{Failure, Step};
use crate::revise::{DeviceSettings, Revised};
use crate::spec::{DeviceSpec, DrainPolicy, EngineSpec, Policy};
use crate::surplus;
use crate::tier::Tier;
use crate::time::Moment;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Measured bytes of one engine at one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Footprint {
    /// On each of its devices; `None` where there is no evidence.
    pub device: Option<u64>,
    /// Resident in host memory.
    pub host: Option<u64>,
}

/// Learned durations of one engine: the latest of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Costs {
    /// From awake into a tier, verified; indexed by tier.
    pub enter: [Option<Duration>; 5],
    /// From a tier to awake and verified, the probe's first token included; indexed by tier.
    pub leave: [Option<Duration>; 5],
    /// Until its running requests had ended.
    pub drain: Option<Duration>,
}

/// Why the world and our belief differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Drift {
    /// `/is_sleeping` says true of an engine that should be awake.
    FoundAsleep,
    /// `/is_sleeping` says false of an engine that should be asleep.
    FoundAwake,
    /// Requests run, no token comes.
    Stalled,
    /// An operation could not bring it to a verified tier.
    Unresolved,
}

/// Whether an engine's tier can be relied on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// Verified.
    Settled,
    /// An operation is at work on it.
    Moving,
    /// The world moved behind our back; a repair follows.
    Adrift(Drift),
    /// Crashed; started again at this instant.
    Backoff(Moment),
    /// Cannot start for want of room.
    NoRoom,
    /// Cannot start: somebody else listens on its port.
    PortTaken,
    /// Given up, with the reason.
    Failed(String),
}

/// Consecutive observations that reconcile an engine with reality.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Watch {
    /// Surveys in a row that contradicted the state.
    pub contradictions: u8,
    /// Tokens produced at the last survey that showed progress (or nothing running).
    pub tokens: u64,
    /// When progress was last seen.
    pub progress_at: Moment,
    /// The tokens have been counted since it came to rest: more of them are somebody's.
    pub counted: bool,
    /// Surveys in a row that found it asleep or without a request; counted up to [`crate::creep::IDLE_SURVEYS`], and only
    /// where the answer matters.
    pub idle: u8,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Engine {
    /// From the configuration.
    pub spec: EngineSpec,
    /// Where it was last verified.
    pub tier: Tier,
    /// Whether that still holds.
    pub condition: Condition,
    /// Whether requests may be sent to it.
    pub admission: bool,
    /// Whether a process of it exists (or its remains have not been swept).
    pub process: bool,
    /// Its leader has exited by itself and the remains have not been swept.
    pub dead: bool,
    /// Raised at each spawn: events of an earlier life are stale.
    pub life: u64,
    /// Raised at each verified change of tier, each wake and start among them: what was asked before is stale.
    pub generation: u64,
    /// Detected once it is ready.
    pub capabilities: Option<Capabilities>,
    /// Measured, indexed by tier.
    pub footprints: [Option<Footprint>; 5],
    /// Learned durations.
    pub costs: Costs,
    /// Device bytes it holds, on each of its devices.
    pub held: u64,
    /// Device bytes reserved for a move under way, beyond what it holds.
    pub reserved: u64,
    /// Its host backup is pinned for this life: it has been at level 1.
    pub pinned: bool,
    /// Requests are frozen in it.
    pub frozen: bool,
    /// The rehearsal failed: it is switched by restart.
    pub restart_only: bool,
    /// A level-2 wake gave other tokens.
    pub level2_unsafe: bool,
    /// It has been seen to be unable to park.
    pub cannot_park: bool,
    /// Its process was started by somebody else, or by a former agent, and runs with other settings than are configured: what
    /// was measured of it says nothing of the next one.
    pub other_settings: bool,
    /// Whether it runs is the configuration's to say, at the agent's boot: nobody has asked anything of it yet, or an agent that
    /// closed has stopped it. What anybody else has decided, a boot leaves as it is.
    pub to_boot: bool,
    /// Its process was started by somebody else, who may start it again as soon as it has ended.
    pub taken_over: bool,
    /// Crashes within the window.
    pub crashes: Crashes,
    /// Whether it should be awake when it comes back from a crash.
    pub wanted_awake: bool,
    /// When it last became awake, to choose who goes first.
    pub awake_since: Moment,
    /// Reconciliation.
    pub watch: Watch,
    /// What this life has lost on the device.
    pub creep: Creep,
    /// What the gateway holds for it.
    pub demand: Demand,
    /// Requests that are with it, as last told by the gateway.
    pub in_flight: u32,
    /// When an inference last ended (or, while some run, last began); the clock's origin before the first.
    pub used_at: Moment,
    /// Switches that its demand has asked for in vain.
    pub retry: Retry,
    /// Its idle ladder counts from here at the earliest: a fall that failed is not tried again at once.
    pub ladder_from: Moment,
    /// Falls that the agent began of its own accord and that failed.
    pub fall_retry: Retry,
    /// Newer settings, which come into force at rest, or with its next process.
    pub revised: Option<Box<Revised>>,
    /// It is not configured any more: it goes at its next idle moment, and is never started again.
    pub retired: bool,
}

impl Engine {
    /// A stopped engine.
    pub fn new(spec: EngineSpec) -> Self {
        Engine {
            spec,
            tier: Tier::Stopped,
            condition: Condition::Settled,
            admission: false,
            process: false,
            dead: false,
            life: 0,
            generation: 0,
            capabilities: None,
            footprints: [None; 5],
            costs: Costs::default(),
            held: 0,
            reserved: 0,
            pinned: false,
            frozen: false,
            restart_only: false,
            level2_unsafe: false,
            cannot_park: false,
            other_settings: false,
            to_boot: true,
            taken_over: false,
            crashes: Crashes::default(),
            wanted_awake: false,
            awake_since: Moment(0),
            watch: Watch::default(),
            creep: Creep::default(),
            demand: Demand::default(),
            in_flight: 0,
            used_at: Moment(0),
            retry: Retry::default(),
            ladder_from: Moment(0),
            fall_retry: Retry::default(),
            revised: None,
            retired: false,
        }
    }

    /// Requests are with it or held for it.
    pub fn is_busy(&self) -> bool {
        self.in_flight > 0 || self.demand.held > 0
    }

    /// Not configured any more, with nothing that it owes. Requests that are frozen in it are still to be answered: it gets
    /// its turn for them, as if it were configured, and goes afterwards.
    pub fn is_done_with(&self) -> bool {
        self.retired && !(self.frozen && self.is_busy())
    }

    /// Since when it would be idle, if it is not busy: its last use, or its last wake where that is later.
    pub fn idle_since(&self) -> Moment {
        self.used_at.max(self.awake_since)
    }

    /// Verified awake and not about to leave.
    pub fn is_serving(&self) -> bool {
        self.tier == Tier::Awake && self.condition == Condition::Settled && self.admission
    }

    /// Whether it may be left in a tier, by the operator's word and by what was learned.
    pub fn may_rest_in(&self, tier: Tier) -> bool {
        match tier {
            Tier::Awake | Tier::Stopped => true,
            _ if self.restart_only => false,
            Tier::Parked => self.spec.levels.parked && !self.cannot_park,
            Tier::Level1 => self.spec.levels.level1,
            Tier::Level2 => self.spec.levels.level2 && !self.level2_unsafe,
        }
    }

    /// The condition in a word, for status and journal.
    pub fn condition_word(&self) -> &'static str {
        match self.condition {
            Condition::Settled => self.tier.as_str(),
            Condition::Moving => "moving",
            Condition::Adrift(_) => "adrift",
            Condition::Backoff(_) => "backoff",
            Condition::NoRoom => "no_room",
            Condition::PortTaken => "port_taken",
            Condition::Failed(_) => "failed",
        }
    }

    /// Measured device bytes at a tier.
    pub fn measured(&self, tier: Tier) -> Option<u64> {
        self.footprints[tier as usize].and_then(|f| f.device)
    }
}

/// Why a device that has not been read yet cannot be believed.
pub(crate) const NOT_READ: &str = "not read yet";

/// Whether a device can be believed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Evidence {
    /// Readings come.
    Good,
    /// There are none, by configuration.
    Off,
    /// There should be and are not.
    Lost(String),
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Device {
    /// From the configuration.
    pub spec: DeviceSpec,
    /// Bytes that none of our engines accounts for.
    pub foreign: u64,
    /// What the last look would have called foreign: believed when it is seen again.
    pub foreign_seen: u64,
    /// Whether it can be believed.
    pub evidence: Evidence,
    /// Newer settings, which come into force at rest.
    pub revised: Option<DeviceSettings>,
}

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Towards its goal.
    Forward,
    /// The goal is given up; what served before is being restored.
    Restoring,
    /// Restoring failed as well.
    Abandoned,
}

/// The step that is being done.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Current {
    /// What.
    pub step: Step,
    /// The reply that ends it.
    pub ticket: Ticket,
    /// Since when.
    pub began: Moment,
    /// Its place in the operation.
    pub index: u32,
}

/// One operation under way: the only thing that moves memory on its devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operation {
    /// Number.
    pub id: OperationId,
    /// What was asked.
    pub request: Request,
    /// Who asked.
    pub by: By,
    /// t0.
    pub accepted: Moment,
    /// Devices that it has for itself.
    pub devices: Vec<DeviceId>,
    /// The engine that comes in.
    pub incoming: Option<EngineId>,
    /// The engines that go out.
    pub outgoing: Vec<EngineId>,
    /// What served when it began, to be restored on failure.
    pub serving_before: Vec<EngineId>,
    /// Tiers when it began, by engine.
    pub tiers_before: Vec<Tier>,
    /// Drain policy.
    pub drain: DrainPolicy,
    /// Longest drain.
    pub drain_deadline: Duration,
    /// Steps to come.
    pub program: VecDeque<Step>,
    /// The step being done.
    pub current: Option<Current>,
    /// Steps begun.
    pub steps: u32,
    /// Engines whose trouble has been reported: one incident for each.
    pub reported: Vec<EngineId>,
    /// Engines that a worker call has repaired once.
    pub repaired: Vec<EngineId>,
    /// Engines that have been started again to restore service.
    pub relaunched: Vec<EngineId>,
    /// Engines whose bytes were missing, and whose neighbours have been asked since.
    #[serde(default)]
    pub asked: Vec<EngineId>,
    /// Attempts at the step being done.
    pub attempts: u8,
    /// It has begun to move memory.
    pub moved: bool,
    /// How far it has come.
    pub stage: Stage,
    /// Why its goal was given up.
    pub failure: Option<Failure>,
    /// The incoming engine's verified first token.
    pub first_token: Option<Moment>,
    /// When the engine under way began to fall or rise, for its costs.
    pub leg_began: Moment,
}

/// The whole node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// Engines in the configuration's order.
    pub engines: Vec<Engine>,
    /// Devices in the configuration's order.
    pub devices: Vec<Device>,
    /// Defaults.
    pub policy: Policy,
    /// Operations under way, on disjoint devices.
    pub operations: Vec<Operation>,
    /// An operator's request that waits for the agent's own work to end.
    pub queue: VecDeque<Queued>,
    /// Next ticket.
    pub next_ticket: u64,
    /// Next operation number.
    pub next_operation: u64,
    /// No new work of the agent's own: it is shutting down.
    pub closing: bool,
    /// The agent was begun so that engines are started by commands and requests alone, those too that a reload adds.
    pub by_hand: bool,
    /// A cycle run has the engines to itself.
    pub cycle: bool,
    /// Maintenance, from the acceptance of a pause to the end of its resumption.
    pub paused: Option<Paused>,
    /// Why nothing may be switched: the journal cannot be written, and the configuration wants what is done recorded.
    pub journal_lost: Option<String>,
}

/// How far maintenance has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pausing {
    /// Engines are being put out of the way.
    Begins,
    /// They are; somebody else may use the devices.
    Lasts,
    /// What served before is coming back.
    Ends,
}

/// Maintenance: the node does nothing of its own accord that takes device memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub since: Moment,
    /// What served then, to serve again afterwards.
    pub served: Vec<EngineId>,
    /// How far it has come.
    pub stage: Pausing,
}

/// A request that waits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Queued {
    /// Number it will have.
    pub id: OperationId,
    /// What was asked.
    pub request: Request,
    /// Who asked.
    pub by: By,
    /// When.
    pub at: Moment,
}

impl Node {
    /// A node at rest with everything stopped.
    pub fn new(
        engines: Vec<EngineSpec>,
        devices: Vec<DeviceSpec>,
        policy: Policy,
        next_operation: u64,
    ) -> Self {
        let device = |spec: DeviceSpec| {
            let evidence = match (spec.evidence, spec.capacity) {
                (false, _) => Evidence::Off,
                (true, Some(_)) => Evidence::Good,
                (true, None) => Evidence::Lost(NOT_READ.into()),
            };
            Device { spec, foreign: 0, foreign_seen: 0, evidence, revised: None }
        };
        Node {
            engines: engines.into_iter().map(Engine::new).collect(),
            devices: devices.into_iter().map(device).collect(),
            policy,
            operations: Vec::new(),
            queue: VecDeque::new(),
            next_ticket: 1,
            next_operation,
            closing: false,
            by_hand: false,
            cycle: false,
            paused: None,
            journal_lost: None,
        }
    }

    /// Whether nothing is under way, and nothing will be before something happens. While the node is paused, starts that
    /// wait for the end of that wait on.
    pub fn is_at_rest(&self) -> bool {
        self.operations.is_empty() && (self.queue.is_empty() || self.is_paused())
    }

    /// Whether maintenance keeps clients out: from the acceptance of a pause until a resumption begins.
    pub fn is_paused(&self) -> bool {
        self.paused.as_ref().is_some_and(|p| p.stage != Pausing::Ends)
    }

    /// The devices that a request works on: those of its engine, or all of them.
    pub fn devices_of(&self, request: &Request) -> Vec<DeviceId> {
        match request.engine() {
            Some(engine) => self.engine(engine).spec.devices.clone(),
            None => (0..u16::try_from(self.devices.len()).unwrap_or(u16::MAX)).map(DeviceId).collect(),
        }
    }

    /// What a request is about, for people: its engine's name, `*` for the whole node.
    pub fn subject(&self, request: &Request) -> String {
        request.engine().map_or_else(|| "*".to_owned(), |engine| self.engine(engine).spec.name.clone())
    }

    /// Draws the number of the next operation.
    pub fn number(&mut self) -> OperationId {
        let id = OperationId(self.next_operation);
        self.next_operation += 1;
        id
    }

    /// An engine. Ids come from this node, so they are always within it.
    pub fn engine(&self, id: EngineId) -> &Engine {
        &self.engines[usize::from(id.0)]
    }

    /// An engine, to change.
    pub fn engine_mut(&mut self, id: EngineId) -> &mut Engine {
        &mut self.engines[usize::from(id.0)]
    }

    /// A device.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[usize::from(id.0)]
    }

    /// All engine ids.
    pub fn ids(&self) -> impl Iterator<Item = EngineId> + use<> {
        (0..u16::try_from(self.engines.len()).unwrap_or(u16::MAX)).map(EngineId)
    }

    /// Finds an engine by its configured name.
    pub fn by_name(&self, name: &str) -> Option<EngineId> {
        self.ids().find(|id| self.engine(*id).spec.name == name)
    }

    /// The engines that have a device, in the configuration's order.
    pub fn engines_on(&self, device: DeviceId) -> impl Iterator<Item = EngineId> + '_ {
        self.ids().filter(move |id| self.engine(*id).spec.devices.contains(&device))
    }

    /// The operation at work on any of these devices.
    pub fn operation_on(&self, devices: &[DeviceId]) -> Option<&Operation> {
        self.operations.iter().find(|op| op.devices.iter().any(|d| devices.contains(d)))
    }

    /// Whether nobody works on any of these devices.
    pub fn is_free(&self, devices: &[DeviceId]) -> bool {
        self.operation_on(devices).is_none()
    }

    /// Devices that somebody's request waits for: nothing of the agent's own accord begins on them.
    pub fn spoken_for(&self) -> Vec<DeviceId> {
        let asked = self.queue.iter().filter(|q| q.by != By::Agent);
        asked.flat_map(|q| self.devices_of(&q.request)).collect()
    }

    /// When the core next wants an [`crate::event::Event::Tick`] even if nothing happens: the next instant after `now`,
    /// the moment of the last step, at which a back-off ends, a turn comes, a rung of an idle ladder is due, or an engine
    /// that failed to sleep or to wake may be asked again.
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        if self.closing || self.is_paused() {
            return None;
        }
        let free = self.engines.iter().filter(|e| self.is_free(&e.spec.devices));
        let backoffs = free.filter_map(|e| match e.condition {
            Condition::Backoff(at) => Some(at),
            _ => None,
        });
        let turns = demand::instants(self, now);
        let rungs = self.ids().flat_map(|id| ladder::instants(self, id));
        let awake = surplus::instants(self).into_iter().chain(comeback::instants(self));
        let own = turns.into_iter().chain(rungs).chain(awake).filter(|_| !self.cycle);
        backoffs.chain(own).filter(|at| *at > now).min()
    }
}
