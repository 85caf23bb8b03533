//! What API server and engine core say to each other: JSON lines over the core's stdin and stdout.
//!
//! All tokens of a decode step travel in one line, with the scheduler's counters: as in vLLM the front end learns of
//! running and waiting requests only when the engine steps.

use crate::faults::{Fault, FaultKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// API server to engine core.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToCore {
    Add(NewRequest),
    /// The client has gone, or `/abort_requests`.
    Abort {
        ids: Vec<u64>,
    },
    Call {
        id: u64,
        call: Call,
    },
    ArmFault(Fault),
    ClearFault(Option<FaultKind>),
    /// From now on engine times are divided by this.
    SetSpeed(f64),
}

/// A request as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct NewRequest {
    pub(crate) id: u64,
    pub(crate) prompt_tokens: u32,
    pub(crate) prompt_hash: u64,
    /// Start of the token chain: the prompt, and the seed where the temperature is not 0.
    pub(crate) chain: u64,
    pub(crate) max_tokens: u32,
    pub(crate) ignore_eos: bool,
}

/// What happens to running requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    Abort,
    Wait,
    Keep,
}

impl Mode {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "abort" => Some(Mode::Abort),
            "wait" => Some(Mode::Wait),
            "keep" => Some(Mode::Keep),
            _ => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Abort => "abort",
            Mode::Wait => "wait",
            Mode::Keep => "keep",
        }
    }
}

/// A utility call; EngineCore answers them one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    Sleep {
        level: u8,
        mode: Mode,
    },
    WakeUp {
        tags: Option<Vec<String>>,
    },
    IsSleeping,
    ReleaseKvCache,
    Pause {
        mode: Mode,
        clear_cache: bool,
    },
    Resume,
    IsPaused,
    Rpc {
        method: String,
        args: Vec<Value>,
        kwargs: Value,
    },
    ResetPrefixCache {
        running: bool,
    },
    /// `/reset_mm_cache`, `/reset_encoder_cache`: nothing to reset, but answered by the core.
    Nothing,
    /// The simulation's own: requests counted, and those that came while the engine was not awake.
    Arrivals,
    WeightChecksums,
}

/// Engine core to API server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromCore {
    Ready {
        kv_tokens: u64,
    },
    StartFailed {
        message: String,
    },
    Reply {
        id: u64,
        result: Result<Value, String>,
    },
    /// One step's tokens and counters.
    Step {
        #[serde(rename = "o")]
        outputs: Vec<Output>,
        #[serde(rename = "s")]
        stats: Stats,
    },
}

/// One request's share of a step.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Output {
    #[serde(rename = "r")]
    pub(crate) request: u64,
    /// Token and log-probability; none where the request only ends.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<(u32, f64)>,
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub(crate) finish: Option<Finish>,
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Finish {
    Stop,
    Length,
    Abort,
}

impl Finish {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Abort => "abort",
        }
    }
}

/// The scheduler's counters after a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stats {
    #[serde(rename = "r")]
    pub(crate) running: u32,
    #[serde(rename = "w")]
    pub(crate) waiting: u32,
    #[serde(rename = "k")]
    pub(crate) kv_usage: f64,
    /// Tokens that this step worked on, prompts included; `None` where nothing was stepped.
    #[serde(rename = "n")]
    pub(crate) iteration_tokens: Option<u64>,
    #[serde(rename = "q")]
    pub(crate) prefix_queries: u64,
    #[serde(rename = "h")]
    pub(crate) prefix_hits: u64,
    #[serde(rename = "p")]
    pub(crate) preemptions: u64,
}
