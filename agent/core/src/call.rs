//! The control calls that the core asks for, and how each may end.
//!
//! A call names vLLM's route and parameters; the agent's vLLM client only turns it into HTTP. Which calls in which
//! order reach a tier is decided in [`crate::capability`].

use serde::{Deserialize, Serialize};

/// vLLM's `level` parameter of `/sleep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepLevel {
    /// Pause the scheduler only (≥ 0.17).
    L0,
    /// Offload weights to host memory, drop the KV cache.
    L1,
    /// Drop weights and KV cache.
    L2,
}

impl SleepLevel {
    /// The number in the query string.
    pub fn number(self) -> u8 {
        match self {
            SleepLevel::L0 => 0,
            SleepLevel::L1 => 1,
            SleepLevel::L2 => 2,
        }
    }
}

/// vLLM's `mode` parameter of `/sleep` and `/pause`: what happens to running requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// End them with `finish_reason: "abort"`.
    Abort,
    /// Let them finish first.
    Wait,
    /// Freeze them; they go on after the wake.
    Keep,
}

impl Mode {
    /// The word in the query string.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Abort => "abort",
            Mode::Wait => "wait",
            Mode::Keep => "keep",
        }
    }
}

/// vLLM's `tags` parameter of `/wake_up`. One tag a call: a list with an already-awake tag is ignored whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeTags {
    /// No `tags` parameter: everything that sleeps.
    All,
    /// `tags=weights`.
    Weights,
    /// `tags=kv_cache`.
    KvCache,
}

/// One control call to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// `POST /sleep?level=&mode=` (`mode` left out where it is `None`: before 0.17).
    Sleep {
        /// Depth.
        level: SleepLevel,
        /// Fate of running requests.
        mode: Option<Mode>,
    },
    /// `POST /wake_up?tags=`.
    WakeUp {
        /// What to wake.
        tags: WakeTags,
    },
    /// `POST /release_kv_cache_memory` (≥ 0.31).
    ReleaseKvCache,
    /// `POST /collective_rpc {"method":"reload_weights"}`.
    ReloadWeights,
    /// `POST /reset_prefix_cache`.
    ResetPrefixCache,
    /// `POST /pause` (0.12–0.16 with `wait_for_inflight_requests`/`mode`, later with `mode`).
    Pause {
        /// Fate of running requests.
        mode: Mode,
    },
    /// `POST /resume`.
    Resume,
    /// `POST /collective_rpc {"method":"wake_up"}`: reaches the worker past an engine that believes itself awake.
    WorkerWakeUp,
    /// `POST /collective_rpc {"method":"sleep","kwargs":{"level":n}}`: gives back what a failed wake has mapped.
    WorkerSleep {
        /// Depth.
        level: SleepLevel,
    },
}

/// How a control call ended, as far as its own answer tells.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CallOutcome {
    /// A 2xx answer. It proves little (CONTRACT: 200 is also returned when nothing happened).
    Accepted {
        /// The body's `success` where the route has one (`/reset_prefix_cache` from 0.26).
        success: Option<bool>,
    },
    /// Any other status.
    Refused {
        /// HTTP status.
        status: u16,
        /// The engine's own words, shortened.
        message: String,
    },
    /// The deadline passed without an answer: the call may still be running. Not failed: unknown.
    Unknown,
    /// The connection was refused, reset or closed: the API server is not there.
    Gone {
        /// What the socket said.
        message: String,
    },
}

/// What `/is_sleeping` said.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum SleepingAnswer {
    /// It answered. From 0.17 `true` also means "scheduler paused", so it does not prove that memory is free.
    Says {
        /// The body's `is_sleeping`.
        is_sleeping: bool,
    },
    /// Any status but 200, or a body without the field.
    Refused {
        /// HTTP status.
        status: u16,
        /// The engine's own words, shortened.
        message: String,
    },
    /// No answer before the deadline: an operation is running in the engine, or it hangs.
    Unknown,
    /// The API server is not there.
    Gone {
        /// What the socket said.
        message: String,
    },
}
