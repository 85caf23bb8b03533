//! Is a command accepted, asked for already, or refused, and why?

use crate::ids::OperationId;
use crate::ledger::human;
use crate::sequence::Cannot;
use crate::tier::Tier;
use thiserror::Error;

/// Why a command is refused: one variant a reason, each with its sentence and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// Another operation has the device.
    #[error("operation {} ({verb} {engine}) is under way; wait for it or join it by asking for the same", id.0)]
    Busy {
        /// Which.
        id: OperationId,
        /// What it does.
        verb: &'static str,
        /// To which engine.
        engine: String,
    },
    /// The engine cannot do it.
    #[error("{engine}: {cannot}")]
    Cannot {
        /// Engine.
        engine: String,
        /// Why.
        cannot: Cannot,
    },
    /// The operator or the rehearsal excluded that tier.
    #[error("{engine} may not be left at {tier}: {because}")]
    TierExcluded {
        /// Engine.
        engine: String,
        /// Tier.
        tier: Tier,
        /// Why.
        because: &'static str,
    },
    /// It does not fit.
    #[error("{what} does not fit on {device}: {} more would be needed than is free there (reserve kept)", human(*missing))]
    NoRoom {
        /// What would be done.
        what: String,
        /// Where.
        device: String,
        /// Bytes.
        missing: u64,
    },
    /// Host memory does not suffice for level 1.
    #[error("{engine} at level1 needs {} more host memory than the node has left; use level2 or stopped", human(*missing))]
    NoHostMemory {
        /// Engine.
        engine: String,
        /// Bytes.
        missing: u64,
    },
    /// Memory cannot be seen, so a release cannot be proven.
    #[error("device {device} cannot be read ({reason}); a handoff needs evidence of the release")]
    NoEvidence {
        /// Device.
        device: String,
        /// Why.
        reason: String,
    },
    /// The engine is in the wrong state.
    #[error("{engine} is {is}; {hint}")]
    WrongState {
        /// Engine.
        engine: String,
        /// Its state.
        is: String,
        /// What to do.
        hint: &'static str,
    },
    /// Waking one more would leave too many awake.
    #[error("{awake} is awake on that device and max_awake is {max}; use `switch` to hand the device over")]
    TooManyAwake {
        /// Engine that is awake.
        awake: String,
        /// The bound.
        max: u16,
    },
    /// No plan is possible; every alternative with its reason.
    #[error("no plan is possible: {}", .0.join("; "))]
    NoPlan(Vec<String>),
    /// Cancelling came too late.
    #[error("operation {} is already moving memory and will be finished; its end can be waited for", .0.0)]
    TooLate(OperationId),
    /// There is no such operation under way.
    #[error("operation {} is not under way", .0.0)]
    NotUnderWay(OperationId),
    /// The node is paused for maintenance.
    #[error("the node is paused for maintenance; `ctl resume` ends that")]
    Paused,
    /// What is done could not be recorded, and the configuration wants it recorded.
    #[error(
        "the journal cannot be written ({reason}), and nothing is switched without it (`on_failure`); make room for it, or \
         set `on_failure = \"go_on\"`"
    )]
    NoJournal {
        /// Why it cannot be written.
        reason: String,
    },
    /// Only an operator may put that engine to sleep.
    #[error("{engine} is pinned awake on {device}; only an operator's command puts it to sleep")]
    Pinned {
        /// The pinned engine.
        engine: String,
        /// Where it is in the way.
        device: String,
    },
    /// The agent is going down.
    #[error("the agent is shutting down")]
    Closing,
}

impl Refusal {
    /// Stable word for the API.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Busy { .. } => "busy",
            Refusal::Cannot { .. } => "cannot",
            Refusal::TierExcluded { .. } => "tier_excluded",
            Refusal::NoRoom { .. } => "no_room",
            Refusal::NoHostMemory { .. } => "no_host_memory",
            Refusal::NoEvidence { .. } => "no_evidence",
            Refusal::WrongState { .. } => "wrong_state",
            Refusal::TooManyAwake { .. } => "too_many_awake",
            Refusal::NoPlan(_) => "no_plan",
            Refusal::TooLate(_) => "too_late",
            Refusal::NotUnderWay(_) => "not_under_way",
            Refusal::Paused => "paused",
            Refusal::NoJournal { .. } => "no_journal",
            Refusal::Pinned { .. } => "pinned",
            Refusal::Closing => "closing",
        }
    }
}
