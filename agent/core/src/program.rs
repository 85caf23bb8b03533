//! The steps that an operation is made of.
//!
//! An operation is a flat list of steps. *Legs* (`Fall`, `Rise`, `Launch`, `Kill`, `Restore`) are what a plan is
//! written in; each is replaced by its single steps when its turn comes, so that it always starts from what is true
//! then. Single steps either change the ledger and the conditions at once, or are one action at the edge.
//!
//! ```text
//!   Fall    close · drain · take · calls… · confirm asleep · await release · settle
//!   Rise    reserve · take · calls… · confirm awake · await residence · probe · settle · open
//!   Launch  reserve · take · spawn · ready · probe · warm up · measure · rehearse · settle · open
//!   Kill    close · take · stop · await release · bury
//! ```
//!
//! Taking over a server that somebody else has started has no leg: `hold · probe · warm up · keep · open`, and `let go`
//! where any of it fails ([`crate::step`]).

use crate::call::{Call, SleepLevel, WakeTags};
use crate::effect::{Incident, ProbeKind};
use crate::ids::EngineId;
use crate::state::Node;
use crate::tier::Tier;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One step of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    // Legs.
    /// Down the ladder.
    Fall {
        /// Engine.
        engine: EngineId,
        /// Where to.
        tier: Tier,
    },
    /// Up to awake, from wherever it sleeps.
    Rise(EngineId),
    /// A process, up to awake.
    Launch {
        /// Engine.
        engine: EngineId,
        /// With a rehearsal.
        rehearse: bool,
    },
    /// The last rung: the process tree goes, and a restart is due by back-off.
    Kill(EngineId),
    /// What served before serves again.
    Restore,

    // Steps that act at once.
    /// No request any more.
    Close(EngineId),
    /// Requests again.
    Open(EngineId),
    /// From here on its tier does not hold.
    Take(EngineId),
    /// Room for the wake.
    ReserveWake(EngineId),
    /// Room for the start.
    ReserveStart(EngineId),
    /// Verified in a tier.
    Settle {
        /// Engine.
        engine: EngineId,
        /// Tier.
        tier: Tier,
    },
    /// Its process is gone; a restart is due by back-off.
    Bury(EngineId),
    /// Parks and sleeps once, each with its wake, to measure and to prove.
    Rehearse(EngineId),
    /// The rehearsal has ended: before this mark, failures are the rehearsal's.
    Rehearsed(EngineId),
    /// Its port is somebody else's: it has no process, and waits for it.
    Defer(EngineId),

    // Steps that are one action.
    /// Running requests end by policy.
    Drain(EngineId),
    /// One control call.
    Call {
        /// Engine.
        engine: EngineId,
        /// Which.
        call: Call,
    },
    /// `/is_sleeping` says true.
    ConfirmAsleep(EngineId),
    /// `/is_sleeping` says false.
    ConfirmAwake(EngineId),
    /// Long poll of `/is_sleeping` after a call that got no answer.
    Resolve {
        /// Engine.
        engine: EngineId,
        /// What is hoped for.
        asleep: bool,
    },
    /// Device bytes are gone.
    AwaitRelease {
        /// Engine.
        engine: EngineId,
        /// Down to what this tier leaves.
        tier: Tier,
    },
    /// Device bytes are there.
    AwaitResidence(EngineId),
    /// Whether a neighbour that should be awake is: the bytes that are missing may be its own.
    Ask(EngineId),
    /// A verified token.
    Probe {
        /// Engine.
        engine: EngineId,
        /// What it must show.
        kind: ProbeKind,
        /// The one probe of a start, wake or activation that reports count (rehearsals are not counted).
        counted: bool,
    },
    /// Process under its shim.
    Spawn(EngineId),
    /// Healthy, identified, capabilities known.
    Ready(EngineId),
    /// Warm-up and canary.
    WarmUp(EngineId),
    /// Footprint.
    Measure {
        /// Engine.
        engine: EngineId,
        /// At this tier.
        tier: Tier,
    },
    /// Process tree ends.
    Stop {
        /// Engine.
        engine: EngineId,
        /// SIGTERM to SIGKILL.
        grace: Duration,
    },
    /// A running server is found, proven and held.
    Hold(EngineId),
    /// What is held is the engine from now on.
    Keep(EngineId),
    /// What is held is left as it was found.
    LetGo(EngineId),
}

/// The engine of a step, borrowed as the step is.
macro_rules! engine_of {
    ($step:expr) => {
        match $step {
            Step::Restore => None,
            Step::Rise(e)
            | Step::Kill(e)
            | Step::Close(e)
            | Step::Open(e)
            | Step::Take(e)
            | Step::ReserveWake(e)
            | Step::ReserveStart(e)
            | Step::Bury(e)
            | Step::Rehearse(e)
            | Step::Rehearsed(e)
            | Step::Drain(e)
            | Step::ConfirmAsleep(e)
            | Step::ConfirmAwake(e)
            | Step::AwaitResidence(e)
            | Step::Ask(e)
            | Step::Spawn(e)
            | Step::Ready(e)
            | Step::WarmUp(e)
            | Step::Defer(e)
            | Step::Hold(e)
            | Step::Keep(e)
            | Step::LetGo(e) => Some(e),
            Step::Fall { engine, .. }
            | Step::Launch { engine, .. }
            | Step::Settle { engine, .. }
            | Step::Call { engine, .. }
            | Step::Resolve { engine, .. }
            | Step::AwaitRelease { engine, .. }
            | Step::Probe { engine, .. }
            | Step::Measure { engine, .. }
            | Step::Stop { engine, .. } => Some(engine),
        }
    };
}

impl Step {
    /// The engine that it acts on; `None` for `Restore`.
    pub fn engine(&self) -> Option<EngineId> {
        engine_of!(self).copied()
    }

    /// The same, to be renamed.
    pub fn engine_mut(&mut self) -> Option<&mut EngineId> {
        engine_of!(self)
    }

    /// Whether it stands for several single steps.
    pub fn is_leg(&self) -> bool {
        matches!(
            self,
            Step::Fall { .. }
                | Step::Rise(_)
                | Step::Launch { .. }
                | Step::Kill(_)
                | Step::Restore
                | Step::Rehearse(_)
        )
    }

    /// What it does, for people.
    pub fn sentence(&self, node: &Node) -> String {
        let name = |e: &EngineId| node.engine(*e).spec.name.clone();
        match self {
            Step::Fall { engine, tier: Tier::Parked } => {
                format!("park {}: release its KV cache", name(engine))
            }
            Step::Fall { engine, tier: Tier::Stopped } => format!("stop {}", name(engine)),
            Step::Fall { engine, tier } => format!("put {} to sleep at {tier}", name(engine)),
            Step::Rise(e) => format!("wake {} from {} and probe it", name(e), node.engine(*e).tier),
            Step::Launch { engine, rehearse: true } => format!("start {} and rehearse it", name(engine)),
            Step::Launch { engine, rehearse: false } => format!("start {}", name(engine)),
            Step::Kill(e) => format!("end {}'s processes", name(e)),
            Step::Restore => "restore what served before".to_owned(),
            Step::Close(e) => format!("close admission to {}", name(e)),
            Step::Open(e) => format!("open admission to {}", name(e)),
            Step::Take(e) => format!("take {}", name(e)),
            Step::ReserveWake(e) => format!("reserve room to wake {}", name(e)),
            Step::ReserveStart(e) => format!("reserve room to start {}", name(e)),
            Step::Settle { engine, tier } => format!("{} is verified at {tier}", name(engine)),
            Step::Bury(e) => format!("{} is gone", name(e)),
            Step::Rehearse(e) => format!("rehearse {}", name(e)),
            Step::Rehearsed(e) => format!("{} is rehearsed", name(e)),
            Step::Drain(e) => format!("drain {}", name(e)),
            Step::Call { engine, call } => format!("{}: {}", name(engine), call_sentence(call)),
            Step::ConfirmAsleep(e) => format!("{} says that it sleeps", name(e)),
            Step::ConfirmAwake(e) => format!("{} says that it is awake", name(e)),
            Step::Resolve { engine, .. } => format!("wait until {} answers again", name(engine)),
            Step::AwaitRelease { engine, tier } => format!("{}'s bytes are down to {tier}", name(engine)),
            Step::AwaitResidence(e) => format!("{}'s bytes are back", name(e)),
            Step::Ask(e) => format!("ask {} whether it is awake", name(e)),
            Step::Probe { engine, .. } => format!("probe {}", name(engine)),
            Step::Spawn(e) => format!("spawn {}", name(e)),
            Step::Ready(e) => format!("{} is ready", name(e)),
            Step::WarmUp(e) => format!("warm {} up", name(e)),
            Step::Measure { engine, tier } => format!("measure {} {tier}", name(engine)),
            Step::Stop { engine, .. } => format!("stop {}'s processes", name(engine)),
            Step::Defer(e) => format!("{} waits for its port", name(e)),
            Step::Hold(e) => format!("find and prove the server on {}'s port", name(e)),
            Step::Keep(e) => format!("take it over as {}", name(e)),
            Step::LetGo(e) => format!("leave the server on {}'s port as it was", name(e)),
        }
    }
}

fn call_sentence(call: &Call) -> String {
    match call {
        Call::Sleep { level, mode: Some(mode) } => {
            format!("POST /sleep?level={}&mode={}", level.number(), mode.as_str())
        }
        Call::Sleep { level, mode: None } => format!("POST /sleep?level={}", level.number()),
        Call::WakeUp { tags: WakeTags::All } => "POST /wake_up".into(),
        Call::WakeUp { tags: WakeTags::Weights } => "POST /wake_up?tags=weights".into(),
        Call::WakeUp { tags: WakeTags::KvCache } => "POST /wake_up?tags=kv_cache".into(),
        Call::ReleaseKvCache => "POST /release_kv_cache_memory".into(),
        Call::ReloadWeights => "POST /collective_rpc reload_weights".into(),
        Call::ResetPrefixCache => "POST /reset_prefix_cache".into(),
        Call::Pause { mode } => format!("POST /pause?mode={}", mode.as_str()),
        Call::Resume => "POST /resume".into(),
        Call::WorkerWakeUp => "POST /collective_rpc wake_up".into(),
        Call::WorkerSleep { level } => format!("POST /collective_rpc sleep level={}", level.number()),
    }
}

/// Why a step, and with it perhaps its operation, did not go as planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// Requests were still running at the deadline.
    DrainDeadline,
    /// The drain policy cannot be carried out.
    DrainImpossible,
    /// It does not fit.
    NoRoom,
    /// A control call was refused.
    CallRefused,
    /// A control call got no answer.
    CallUnanswered,
    /// 200, and still awake.
    NotAsleep,
    /// 200, and still asleep.
    NotAwake,
    /// Device bytes did not go.
    ReleaseIncomplete,
    /// Device bytes did not come back.
    ResidenceMissing,
    /// The device cannot be read.
    NoEvidence,
    /// No token.
    ProbeFailed,
    /// Wrong tokens.
    CanaryMismatch,
    /// No process.
    SpawnFailed,
    /// Not ready in time, or not ours.
    NotReady,
    /// Warm-up requests failed.
    WarmUpFailed,
    /// Processes outlived their stop.
    Leftovers,
    /// The process went.
    Gone,
    /// Somebody asked.
    Cancelled,
    /// The engine is not in a tier that the step could begin from.
    WrongTier,
    /// Somebody else has moved the engine: it is repaired first.
    Drifted,
    /// Somebody else listens on the engine's port: no process was started.
    PortTaken,
    /// What runs there may not be taken over.
    NotAdopted,
}

impl Cause {
    /// Whether it is the engine that did not do what was asked of it, and not what was around it.
    pub fn is_of_the_engine(self) -> bool {
        match self {
            Cause::CallRefused
            | Cause::CallUnanswered
            | Cause::NotAsleep
            | Cause::NotAwake
            | Cause::ReleaseIncomplete
            | Cause::ResidenceMissing
            | Cause::ProbeFailed
            | Cause::CanaryMismatch
            | Cause::SpawnFailed
            | Cause::NotReady
            | Cause::WarmUpFailed
            | Cause::Leftovers
            | Cause::Gone => true,
            Cause::DrainDeadline
            | Cause::DrainImpossible
            | Cause::NoRoom
            | Cause::NoEvidence
            | Cause::Cancelled
            | Cause::WrongTier
            | Cause::Drifted
            | Cause::PortTaken
            | Cause::NotAdopted => false,
        }
    }

    /// Stable word for the API and the journal.
    pub fn code(self) -> &'static str {
        match self {
            Cause::DrainDeadline => "drain_deadline",
            Cause::DrainImpossible => "drain_impossible",
            Cause::NoRoom => "no_room",
            Cause::CallRefused => "call_refused",
            Cause::CallUnanswered => "call_unanswered",
            Cause::NotAsleep => "not_asleep",
            Cause::NotAwake => "not_awake",
            Cause::ReleaseIncomplete => "release_incomplete",
            Cause::ResidenceMissing => "residence_missing",
            Cause::NoEvidence => "no_evidence",
            Cause::ProbeFailed => "probe_failed",
            Cause::CanaryMismatch => "canary_mismatch",
            Cause::SpawnFailed => "spawn_failed",
            Cause::NotReady => "not_ready",
            Cause::WarmUpFailed => "warm_up_failed",
            Cause::Leftovers => "leftovers",
            Cause::Gone => "engine_gone",
            Cause::Cancelled => "cancelled",
            Cause::WrongTier => "wrong_tier",
            Cause::Drifted => "drifted",
            Cause::PortTaken => "port_taken",
            Cause::NotAdopted => "not_adopted",
        }
    }
}

/// A cause with its engine and details.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    /// Kind.
    pub cause: Cause,
    /// On which engine.
    pub engine: EngineId,
    /// In the engine's or the device's words.
    pub detail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// The incident that a failed step is reported as.
pub fn incident_of(step: &Step, cause: Cause) -> Option<Incident> {
    let falling = matches!(
        step,
        Step::Call { call: Call::Sleep { .. } | Call::Pause { .. } | Call::WorkerSleep { .. }, .. }
    );
    Some(match cause {
        Cause::DrainDeadline
        | Cause::DrainImpossible
        | Cause::NoRoom
        | Cause::Cancelled
        | Cause::WrongTier
        | Cause::Drifted
        | Cause::NotAdopted
        | Cause::NoEvidence => return None,
        Cause::CallRefused if matches!(step, Step::Call { call: Call::ReleaseKvCache, .. }) => {
            Incident::ParkRefused
        }
        Cause::CallRefused if falling => Incident::SleepFailed,
        Cause::CallRefused => Incident::WakeFailed,
        Cause::CallUnanswered => Incident::CallUnanswered,
        Cause::NotAsleep => Incident::SleepIgnored,
        Cause::NotAwake => Incident::WakeIgnored,
        Cause::ReleaseIncomplete => match step {
            Step::AwaitRelease { tier: Tier::Stopped, .. } => Incident::Leftovers,
            _ => Incident::SleepIncomplete,
        },
        Cause::ResidenceMissing => Incident::WakeIncomplete,
        Cause::ProbeFailed => Incident::ProbeFailed,
        Cause::CanaryMismatch => Incident::CanaryMismatch,
        Cause::SpawnFailed | Cause::NotReady | Cause::WarmUpFailed | Cause::PortTaken => {
            Incident::StartFailed
        }
        Cause::Leftovers => Incident::Leftovers,
        Cause::Gone => Incident::Crashed,
    })
}

/// vLLM's level of a tier.
pub fn level_of(tier: Tier) -> Option<SleepLevel> {
    match tier {
        Tier::Parked => Some(SleepLevel::L0),
        Tier::Level1 => Some(SleepLevel::L1),
        Tier::Level2 => Some(SleepLevel::L2),
        Tier::Awake | Tier::Stopped => None,
    }
}
