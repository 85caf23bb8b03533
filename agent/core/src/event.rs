//! What can happen to a node.

use crate::adopt::Adoption;
use crate::call::SleepingAnswer;
use crate::demand::Demand;
use crate::effect::{StepResult, Ticket};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::revise::Revision;
use crate::spec::{DrainPolicy, Strategy};
use crate::tier::Tier;
use crate::time::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Who asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum By {
    /// A person or a program, over the control API.
    Operator,
    /// A cycle.
    Cycle,
    /// The gateway's demand: requests wait for the engine.
    Gateway,
    /// The agent itself.
    Agent,
}

impl By {
    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            By::Operator => "operator",
            By::Cycle => "cycle",
            By::Gateway => "gateway",
            By::Agent => "agent",
        }
    }
}

/// How running requests are treated, where the command says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Drain {
    /// Policy; the node's default where it is `None`.
    pub policy: Option<DrainPolicy>,
    /// Longest wait; the node's default where it is `None`.
    pub deadline: Option<Duration>,
}

/// What can be asked of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Request {
    /// Make this the engine that serves.
    Switch {
        /// Incoming engine.
        to: EngineId,
        /// By which plan.
        strategy: Option<Strategy>,
        /// Where to leave the outgoing engine.
        leave: Option<Tier>,
        /// Running requests.
        drain: Drain,
    },
    /// Wake one engine without putting another to sleep.
    Wake(EngineId),
    /// Put an engine to sleep; `tier` is its rest tier where it is `None`.
    Sleep {
        /// Engine.
        engine: EngineId,
        /// Where to.
        tier: Option<Tier>,
        /// Running requests.
        drain: Drain,
    },
    /// Start a stopped engine.
    Start {
        /// Engine.
        engine: EngineId,
        /// The specification's default where it is `None`.
        rehearse: Option<bool>,
        /// Left awake, or sent to its rest tier.
        awake: bool,
    },
    /// Stop an engine's processes.
    Stop {
        /// Engine.
        engine: EngineId,
        /// Running requests.
        drain: Drain,
    },
    /// Stop it and start it.
    Restart {
        /// Engine.
        engine: EngineId,
        /// The specification's default where it is `None`.
        rehearse: Option<bool>,
        /// Running requests.
        drain: Drain,
    },
    /// Leave the failed state and forget crashes.
    Reset(EngineId),
    /// Sweep what a dead engine left (the agent's own).
    Bury(EngineId),
    /// Bring an engine that is adrift back to a verified tier (the agent's own).
    Repair(EngineId),
    /// Take over a server of this engine's model that somebody else has started.
    Adopt(EngineId),
    /// Maintenance: every engine out of the way, and nothing woken by demand until [`Request::Resume`].
    Pause {
        /// Where to, at least; where it is `None`, each engine's quickest tier that gives its memory back.
        tier: Option<Tier>,
        /// Running requests.
        drain: Drain,
    },
    /// The end of maintenance: what served before serves again.
    Resume,
}

/// The engine of a request, borrowed as the request is.
macro_rules! engine_of {
    ($request:expr) => {
        match $request {
            Request::Pause { .. } | Request::Resume => None,
            Request::Switch { to: engine, .. }
            | Request::Wake(engine)
            | Request::Sleep { engine, .. }
            | Request::Start { engine, .. }
            | Request::Stop { engine, .. }
            | Request::Restart { engine, .. }
            | Request::Reset(engine)
            | Request::Bury(engine)
            | Request::Repair(engine)
            | Request::Adopt(engine) => Some(engine),
        }
    };
}

impl Request {
    /// The engine that it is about; `None` where it is about the whole node.
    pub fn engine(&self) -> Option<EngineId> {
        engine_of!(self).copied()
    }

    /// The same, to be renamed.
    pub fn engine_mut(&mut self) -> Option<&mut EngineId> {
        engine_of!(self)
    }

    /// The word for people.
    pub fn verb(&self) -> &'static str {
        match self {
            Request::Switch { .. } => "switch",
            Request::Wake(_) => "wake",
            Request::Sleep { .. } => "sleep",
            Request::Start { .. } => "start",
            Request::Stop { .. } => "stop",
            Request::Restart { .. } => "restart",
            Request::Reset(_) => "reset",
            Request::Bury(_) => "sweep",
            Request::Repair(_) => "repair",
            Request::Adopt(_) => "adopt",
            Request::Pause { .. } => "pause",
            Request::Resume => "resume",
        }
    }
}

/// What a survey of one engine found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Survey {
    /// `/is_sleeping`.
    pub sleeping: SleepingAnswer,
    /// Requests running; `None` where metrics do not say.
    pub running: Option<u64>,
    /// Tokens produced so far; `None` where metrics do not say.
    pub tokens: Option<u64>,
    /// Bytes that its own processes hold on its fullest device; `None` where pids cannot be mapped, or nobody asks.
    pub device_bytes: Option<u64>,
}

/// How an engine is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Use {
    /// Engine.
    pub engine: EngineId,
    /// Requests that are with it now.
    pub in_flight: u32,
    /// When the last inference ended; where some run, when the last of them began.
    pub at: Moment,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// What a former agent left, all of it at once; before anything else, and before [`Event::Boot`].
    Adopted(Box<Adoption>),
    /// The configuration has changed.
    Revised(Box<Revision>),
    /// The agent is up: start what should be started, leaving these engines awake.
    Boot {
        /// Engines to be left awake; they are started last.
        awake: Vec<EngineId>,
    },
    /// Something is asked.
    Command {
        /// The number that the request will have (the shell draws it with [`crate::state::Node::number`]).
        id: OperationId,
        /// What.
        request: Request,
        /// By whom.
        by: By,
    },
    /// An operation should be given up if it has not begun to move memory.
    Cancel(OperationId),
    /// An action ended.
    Done {
        /// Which.
        ticket: Ticket,
        /// How.
        result: StepResult,
    },
    /// An engine's leader process ended.
    Exited {
        /// Engine.
        engine: EngineId,
        /// In which life.
        life: u64,
        /// What is known of the cause, the last log lines included.
        reason: String,
    },
    /// An engine was surveyed.
    Surveyed {
        /// Engine.
        engine: EngineId,
        /// In which generation.
        generation: u64,
        /// What was found.
        survey: Survey,
    },
    /// A device was read at rest.
    DeviceRead {
        /// Device.
        device: DeviceId,
        /// Physical bytes.
        capacity: u64,
        /// Used bytes.
        used: u64,
    },
    /// A device cannot be read any more.
    DeviceLost {
        /// Device.
        device: DeviceId,
        /// Why.
        reason: String,
    },
    /// What the gateway holds for an engine has changed: from nothing to something, to nothing, or its oldest request
    /// is another one.
    Demand {
        /// Engine.
        engine: EngineId,
        /// What is held for it now.
        demand: Demand,
    },
    /// Who listens on the port of an engine that has no process: a sentence with what to do, or nobody.
    Port {
        /// Engine.
        engine: EngineId,
        /// Who.
        taken: Option<String>,
    },
    /// The journal cannot be written, and the configuration wants nothing switched without it; `None`: it can again.
    JournalLost(Option<String>),
    /// How engines are used, of each of which something is new. Told when one falls idle while something is held, and before
    /// each other event, so that turns and idle ladders are decided on what is so of all engines at once.
    Uses(Vec<Use>),
    /// Time passed: back-offs may have ended, turns and idle ladders may be due, and it is time to survey.
    Tick,
    /// A cycle run has begun or ended. As long as one runs, what it measures is its own: no turn comes, no ladder falls.
    Cycle {
        /// Whether one runs.
        runs: bool,
    },
    /// Take no new work; the shell stops the engines through commands and ends.
    Close,
}
