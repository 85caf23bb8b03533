//! The words of the records: kinds of operations, phases, outcomes. Journal, metrics and reports use the same ones.

use serde::{Deserialize, Serialize};

/// What kind of work an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// One engine to sleep or stop, another to wake.
    Handoff,
    /// A wake with nothing else awake.
    Activation,
    /// An engine into a sleeping tier.
    Sleep,
    /// A process started.
    Start,
    /// A process stopped.
    Stop,
    /// Stop and start.
    Restart,
    /// A repair begun by the agent itself.
    Repair,
    /// Every engine out of the way for maintenance.
    Pause,
    /// What served before maintenance serves again.
    Resume,
    /// A server that somebody else has started is taken over.
    Adopt,
}

impl OperationKind {
    /// The word used in metrics and journal.
    pub fn as_str(self) -> &'static str {
        match self {
            OperationKind::Handoff => "handoff",
            OperationKind::Activation => "activation",
            OperationKind::Sleep => "sleep",
            OperationKind::Start => "start",
            OperationKind::Stop => "stop",
            OperationKind::Restart => "restart",
            OperationKind::Repair => "repair",
            OperationKind::Pause => "pause",
            OperationKind::Resume => "resume",
            OperationKind::Adopt => "adopt",
        }
    }
}

/// A phase of an operation: the `phase` label of the histogram and the bar of the waterfall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for running requests.
    Drain,
    /// `/pause`.
    Pause,
    /// `/sleep`.
    Sleep,
    /// `/release_kv_cache_memory`.
    ReleaseKv,
    /// `/is_sleeping` says true.
    VerifyAsleep,
    /// Device bytes are gone.
    AwaitRelease,
    /// Tagless `/wake_up`.
    Wake,
    /// `/wake_up?tags=weights`.
    WakeWeights,
    /// `reload_weights`.
    Reload,
    /// `/wake_up?tags=kv_cache`.
    WakeKv,
    /// `/reset_prefix_cache`.
    ResetPrefixCache,
    /// `/resume`.
    Resume,
    /// `/is_sleeping` says false.
    VerifyAwake,
    /// Device bytes are there.
    AwaitResidence,
    /// The one-token request, or the canary.
    Probe,
    /// Process spawned under its shim.
    Spawn,
    /// Until `/health` and identity.
    Ready,
    /// Warm-up requests.
    WarmUp,
    /// SIGTERM to nothing left of the tree.
    Stop,
    /// Device and host bytes are read for a footprint.
    Measure,
    /// A worker call that repairs (CONTRACT 3.4).
    Repair,
    /// Long poll after an unanswered call.
    Resolve,
    /// A server that somebody else has started is found, proven and held.
    Hold,
    /// What is held becomes ours.
    Keep,
    /// What is held is left as it was found.
    LetGo,
}

impl Phase {
    /// The word used in metrics and journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Drain => "drain",
            Phase::Pause => "pause",
            Phase::Sleep => "sleep",
            Phase::ReleaseKv => "release_kv",
            Phase::VerifyAsleep => "verify_asleep",
            Phase::AwaitRelease => "await_release",
            Phase::Wake => "wake",
            Phase::WakeWeights => "wake_weights",
            Phase::Reload => "reload",
            Phase::WakeKv => "wake_kv",
            Phase::ResetPrefixCache => "reset_prefix_cache",
            Phase::Resume => "resume",
            Phase::VerifyAwake => "verify_awake",
            Phase::AwaitResidence => "await_residence",
            Phase::Probe => "probe",
            Phase::Spawn => "spawn",
            Phase::Ready => "ready",
            Phase::WarmUp => "warm_up",
            Phase::Stop => "stop",
            Phase::Measure => "measure",
            Phase::Repair => "repair",
            Phase::Resolve => "resolve",
            Phase::Hold => "hold",
            Phase::Keep => "keep",
            Phase::LetGo => "let_go",
        }
    }
}

/// The code of what a killed agent had begun and nobody goes on with. Its record was made when that was found.
pub const AGENT_ENDED: &str = "agent_ended";

/// How a step, an operation or a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// As planned.
    Ok,
    /// Not: a stable code (see the API's error codes) and a sentence.
    Failed {
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
    },
    /// Given up because somebody asked.
    Cancelled,
    /// As planned, but by another agent than the one that began it, which was killed meanwhile.
    Recovered,
    /// Not, and begun by an agent that was killed meanwhile: what served before serves again, as far as it can.
    RolledBack {
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
    },
}

impl Outcome {
    /// The bounded word used as a metric's label: `ok`, `failed`, `cancelled`, `recovered`, `rolled_back`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed { .. } => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Recovered => "recovered",
            Outcome::RolledBack { .. } => "rolled_back",
        }
    }
}
