//! What the core wants done, and how it may turn out.

use crate::adopt::Then;
use crate::call::{Call, CallOutcome, SleepingAnswer};
use crate::capability::Capabilities;
use crate::event::{By, Request};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::program::{Failure, Step};
use crate::spec::{DrainPolicy, Order, Strategy};
use crate::tier::Tier;
use crate::time::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Names one action, so that its reply can be told from a late one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// One thing to be done at the edge; it always comes back as [`crate::event::Event::Done`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wait until nothing runs on the engine (or end what runs).
    Drain {
        /// Engine.
        engine: EngineId,
        /// How.
        policy: DrainPolicy,
        /// Longest wait.
        deadline: Duration,
    },
    /// One control call.
    Call {
        /// Engine.
        engine: EngineId,
        /// Which.
        call: Call,
        /// After which it is unknown.
        deadline: Duration,
    },
    /// Ask `/is_sleeping`; it blocks while the engine works, so a long deadline is the long poll of CONTRACT 1.2.
    IsSleeping {
        /// Engine.
        engine: EngineId,
        /// After which it is unknown.
        deadline: Duration,
    },
    /// Wait until each device's used bytes are within its bounds.
    AwaitUsed {
        /// Engine concerned, for the journal.
        engine: EngineId,
        /// Bounds, bytes.
        bounds: Vec<Bound>,
        /// Longest wait.
        deadline: Duration,
    },
    /// One verified token.
    Probe {
        /// Engine.
        engine: EngineId,
        /// What must match.
        kind: ProbeKind,
        /// Longest wait.
        deadline: Duration,
    },
    /// Start the process under its shim.
    Spawn {
        /// Engine.
        engine: EngineId,
        /// The life it begins.
        life: u64,
    },
    /// Until healthy, identified and its capabilities detected.
    Ready {
        /// Engine.
        engine: EngineId,
        /// Longest wait.
        deadline: Duration,
    },
    /// Warm-up requests, then the canary is recorded.
    WarmUp {
        /// Engine.
        engine: EngineId,
        /// Longest wait.
        deadline: Duration,
    },
    /// End the process tree and sweep it.
    Stop {
        /// Engine.
        engine: EngineId,
        /// SIGTERM to SIGKILL; zero kills at once.
        grace: Duration,
    },
    /// Read device and host bytes now.
    Measure {
        /// Engine.
        engine: EngineId,
        /// At which tier.
        tier: Tier,
    },
    /// Find the server that listens on the engine's port, prove that it may be taken over, and take hold of it: its end is
    /// heard of from now on, and nothing else is done to it.
    Hold {
        /// Engine.
        engine: EngineId,
        /// The life that it will have been.
        life: u64,
        /// Longest wait for one answer.
        deadline: Duration,
    },
    /// What is held is ours from now on, to be ended as well; and measured.
    Keep {
        /// Engine.
        engine: EngineId,
        /// Longest wait for one answer.
        deadline: Duration,
    },
    /// What is held and not kept is left as it was found.
    LetGo {
        /// Engine.
        engine: EngineId,
    },
}

impl Action {
    /// The engine that it acts on.
    pub fn engine(&self) -> EngineId {
        match self {
            Action::Drain { engine, .. }
            | Action::Call { engine, .. }
            | Action::IsSleeping { engine, .. }
            | Action::AwaitUsed { engine, .. }
            | Action::Probe { engine, .. }
            | Action::Spawn { engine, .. }
            | Action::Ready { engine, .. }
            | Action::WarmUp { engine, .. }
            | Action::Stop { engine, .. }
            | Action::Measure { engine, .. }
            | Action::Hold { engine, .. }
            | Action::Keep { engine, .. }
            | Action::LetGo { engine } => *engine,
        }
    }
}

/// Bounds of one device's used bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bound {
    /// Device.
    pub device: DeviceId,
    /// At least.
    pub at_least: Option<u64>,
    /// At most.
    pub at_most: Option<u64>,
}

/// What a device shows, and whose that is, where the driver tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Device.
    pub device: DeviceId,
    /// Used bytes, everybody's.
    pub used: u64,
    /// Of that, what the engine's own processes hold.
    pub own: Option<u64>,
    /// Of that, what running processes hold that are no engine's.
    pub strangers: Option<u64>,
}

impl Shown {
    /// Used bytes of which nobody tells whose they are.
    pub fn only(device: DeviceId, used: u64) -> Shown {
        Shown { device, used, own: None, strangers: None }
    }
}

/// What a probe must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// A first token, after a start: there is no canary yet.
    FirstToken,
    /// One token that equals the canary's (after parked and level 1).
    Canary,
    /// Several tokens that equal the canary's (after level 2, timed apart from the first).
    LongCanary,
}

/// How an action ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StepResult {
    /// Nothing runs.
    Drained,
    /// Something still runs.
    DrainTimedOut {
        /// Running requests.
        running: u64,
        /// Waiting requests.
        waiting: u64,
    },
    /// Cannot be done on this engine.
    DrainImpossible(String),
    /// The call's own answer.
    Called(CallOutcome),
    /// `/is_sleeping`'s answer.
    Sleeping(SleepingAnswer),
    /// All devices are within their bounds.
    Reached {
        /// Used bytes by device.
        used: Vec<(DeviceId, u64)>,
    },
    /// A device is not.
    OutOfBounds {
        /// What each device shows.
        shown: Vec<Shown>,
    },
    /// A device cannot be read.
    NoEvidence(String),
    /// A token came and matched.
    Token {
        /// When the first one came.
        at: Moment,
    },
    /// Tokens came and did not match.
    Mismatch(String),
    /// No token came.
    ProbeFailed(String),
    /// The process runs.
    Spawned,
    /// It does not.
    SpawnFailed(String),
    /// Healthy and ours.
    Ready(Capabilities),
    /// Not.
    NotReady(String),
    /// Warmed up; the canary is recorded.
    Warmed,
    /// It could not be.
    WarmUpFailed(String),
    /// The tree is gone, or this many processes are left.
    Stopped {
        /// Processes that could not be ended.
        left: u32,
    },
    /// Bytes as read now.
    Measured {
        /// Device-wide used bytes by device; `None` without evidence.
        used: Vec<(DeviceId, Option<u64>)>,
        /// The engine's own bytes on each device, where pids can be mapped (the largest of them).
        engine: Option<u64>,
        /// Resident host bytes.
        host: Option<u64>,
    },
    /// The engine's process went while the action ran.
    Gone(String),
    /// No process was started: somebody else listens on the engine's port.
    PortTaken(String),
    /// A server was found, proven and taken hold of.
    Held,
    /// None was, or it may not be taken over: why, and what to do.
    NotHeld(String),
    /// What was held is ours from now on.
    TakenIn(Box<TakenIn>),
    /// It is not held any more.
    LetGo,
}

/// What is known of a server at the moment at which it becomes ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakenIn {
    /// What it can do.
    pub capabilities: Capabilities,
    /// Device-wide used bytes by device; `None` without evidence.
    pub used: Vec<(DeviceId, Option<u64>)>,
    /// Its own bytes on each device, where pids can be mapped (the largest of them).
    pub bytes: Option<u64>,
    /// Resident host bytes.
    pub host: Option<u64>,
    /// It runs with the settings that are configured, as far as can be told.
    pub as_configured: bool,
    /// What the operator should know, a sentence each.
    pub remarks: Vec<String>,
}

/// Something for the journal, the metrics and the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Note {
    /// An operation begins.
    Accepted {
        /// Number.
        id: OperationId,
        /// What was asked.
        request: Request,
        /// By whom.
        by: By,
        /// Outgoing engines.
        outgoing: Vec<EngineId>,
        /// Strategy in force.
        strategy: Option<Strategy>,
        /// Order chosen.
        order: Option<Order>,
        /// Tier left behind.
        leave: Option<Tier>,
        /// Drain policy in force.
        drain: DrainPolicy,
        /// Its steps.
        steps: Vec<Step>,
    },
    /// A command asked for nothing that is not so already.
    NothingToDo {
        /// Number.
        id: OperationId,
        /// What was asked.
        request: Request,
        /// By whom.
        by: By,
        /// Why nothing is to be done.
        because: String,
    },
    /// A command is refused.
    Refused {
        /// Number it would have had.
        id: OperationId,
        /// Why.
        refusal: crate::queue::Refusal,
    },
    /// A command does what an operation under way does already.
    Joined {
        /// Number it would have had.
        id: OperationId,
        /// The one under way.
        to: OperationId,
    },
    /// A command waits for the agent's own work to end.
    Queued {
        /// Number.
        id: OperationId,
        /// The one under way.
        behind: OperationId,
    },
    /// A step begins.
    StepBegan {
        /// Operation.
        id: OperationId,
        /// Its place.
        index: u32,
        /// What.
        step: Step,
    },
    /// A step ended.
    StepEnded {
        /// Operation.
        id: OperationId,
        /// Its place.
        index: u32,
        /// What.
        step: Step,
        /// Since when.
        began: Moment,
        /// `None` as planned, else why not.
        failure: Option<Failure>,
        /// First token, where the step showed one.
        first_token: Option<Moment>,
    },
    /// An engine's tier or condition changed.
    Transition {
        /// Engine.
        engine: EngineId,
        /// Before.
        from: &'static str,
        /// After.
        to: &'static str,
        /// Why.
        reason: String,
    },
    /// A footprint was measured.
    Measured {
        /// Engine.
        engine: EngineId,
        /// At which tier.
        tier: Tier,
    },
    /// Something that nobody asked for.
    Incident {
        /// What.
        incident: Incident,
        /// Engine concerned.
        engine: Option<EngineId>,
        /// Device concerned.
        device: Option<DeviceId>,
        /// Details.
        detail: String,
    },
    /// An operation ended.
    Ended {
        /// Number.
        id: OperationId,
        /// `None` as asked, else why not.
        failure: Option<Failure>,
        /// t0.
        accepted: Moment,
        /// The incoming engine's verified first token.
        first_token: Option<Moment>,
    },
    /// An operation that a former agent began goes on.
    Resumed {
        /// Number.
        id: OperationId,
        /// What was asked.
        request: Request,
        /// By whom.
        by: By,
        /// The step that it was in.
        step: Option<Step>,
        /// What becomes of that step.
        then: Then,
        /// Why.
        because: &'static str,
    },
    /// A cancellation came too late, or for nothing.
    NotCancelled {
        /// Operation.
        id: OperationId,
        /// Why not.
        refusal: crate::queue::Refusal,
    },
    /// A reply came that nobody waits for any more.
    Late(Ticket),
    /// A server that somebody else had started is an engine of this node from now on.
    TakenIn {
        /// Operation.
        id: OperationId,
        /// Engine.
        engine: EngineId,
        /// What the operator should know, a sentence each.
        remarks: Vec<String>,
    },
    /// Newer settings of an engine are in force: from here on they are the shell's as well.
    Revised {
        /// Engine.
        engine: EngineId,
        /// They are those of its next process; else only the agent's own dealings with it have changed.
        process: bool,
    },
}

/// Kinds of incident; each fault in the field ends in exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Incident {
    /// A process ended that nobody asked to end.
    Crashed,
    /// A start failed.
    StartFailed,
    /// `/sleep` answered an error.
    SleepFailed,
    /// `/sleep` answered 200 and nothing happened.
    SleepIgnored,
    /// `/sleep` answered 200 and memory did not come back.
    SleepIncomplete,
    /// `/release_kv_cache_memory` was refused.
    ParkRefused,
    /// `/wake_up` (or a reload) answered an error.
    WakeFailed,
    /// `/wake_up` answered 200 and the engine still sleeps.
    WakeIgnored,
    /// Awake, and its memory is not there.
    WakeIncomplete,
    /// A call got no answer.
    CallUnanswered,
    /// No token.
    ProbeFailed,
    /// Other tokens than recorded.
    CanaryMismatch,
    /// The world moved behind our back.
    Drifted,
    /// Requests run, no token comes.
    Stalled,
    /// Memory that none of our engines accounts for.
    ForeignMemory,
    /// Processes or bytes outlived a stop.
    Leftovers,
    /// The rehearsal failed: switched by restart from now on.
    RehearsalFailed,
    /// More crashes than the budget allows.
    GivenUp,
    /// Restoring what served before failed.
    RollbackFailed,
    /// A device cannot be read.
    DeviceLost,
    /// A device can be read again.
    DeviceRestored,
    /// An engine waits for room.
    NoRoom,
    /// An engine leaves more on its device with each sleep.
    ResidualCreep,
}

impl Incident {
    /// Every kind.
    pub const ALL: [Incident; 23] = [
        Incident::Crashed,
        Incident::StartFailed,
        Incident::SleepFailed,
        Incident::SleepIgnored,
        Incident::SleepIncomplete,
        Incident::ParkRefused,
        Incident::WakeFailed,
        Incident::WakeIgnored,
        Incident::WakeIncomplete,
        Incident::CallUnanswered,
        Incident::ProbeFailed,
        Incident::CanaryMismatch,
        Incident::Drifted,
        Incident::Stalled,
        Incident::ForeignMemory,
        Incident::Leftovers,
        Incident::RehearsalFailed,
        Incident::GivenUp,
        Incident::RollbackFailed,
        Incident::DeviceLost,
        Incident::DeviceRestored,
        Incident::NoRoom,
        Incident::ResidualCreep,
    ];

    /// Stable word for the journal and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Incident::Crashed => "crashed",
            Incident::StartFailed => "start_failed",
            Incident::SleepFailed => "sleep_failed",
            Incident::SleepIgnored => "sleep_ignored",
            Incident::SleepIncomplete => "sleep_incomplete",
            Incident::ParkRefused => "park_refused",
            Incident::WakeFailed => "wake_failed",
            Incident::WakeIgnored => "wake_ignored",
            Incident::WakeIncomplete => "wake_incomplete",
            Incident::CallUnanswered => "call_unanswered",
            Incident::ProbeFailed => "probe_failed",
            Incident::CanaryMismatch => "canary_mismatch",
            Incident::Drifted => "drifted",
            Incident::Stalled => "stalled",
            Incident::ForeignMemory => "foreign_memory",
            Incident::Leftovers => "leftovers",
            Incident::RehearsalFailed => "rehearsal_failed",
            Incident::GivenUp => "given_up",
            Incident::RollbackFailed => "rollback_failed",
            Incident::DeviceLost => "device_lost",
            Incident::DeviceRestored => "device_restored",
            Incident::NoRoom => "no_room",
            Incident::ResidualCreep => "residual_creep",
        }
    }
}

/// What [`crate::step::step`] wants done, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Make this durable before any action that follows it in the list.
    Note(Note),
    /// Do this; answer with the ticket.
    Run {
        /// Names it.
        ticket: Ticket,
        /// What.
        action: Action,
    },
    /// Look at an engine at rest; answer with [`crate::event::Event::Surveyed`].
    Survey {
        /// Engine.
        engine: EngineId,
        /// In which generation: a later answer is stale.
        generation: u64,
    },
}
