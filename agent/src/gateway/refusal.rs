//! Why a request is not served, in HTTP's words and in OpenAI's.
//!
//! Whether to try again is told by `Retry-After` alone: it is there wherever trying again may help, and it is missing
//! where only an operator can.

use hyper::StatusCode;
use std::time::Duration;

/// Why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No API key, or one that belongs to nobody.
    #[error("{}", if *.missing { "an API key is required: send it as `Authorization: Bearer …`" } else { "this API key is not known here" })]
    UnknownKey {
        /// None was sent.
        missing: bool,
    },
    /// The tenant has as many requests running on this model as it may.
    #[error("{tenant} has {limit} requests running on this model, which is its limit")]
    TooManyInFlight {
        /// Whose limit.
        tenant: String,
        /// `max_in_flight`.
        limit: u32,
        /// A guess: one of them has to end.
        retry_after: Duration,
    },
    /// The tenant has as many requests waiting for this model as it may.
    #[error("{tenant} has {limit} requests waiting for this model, which is its limit")]
    TooManyQueued {
        /// Whose limit.
        tenant: String,
        /// `max_queued`.
        limit: u32,
        /// Until those that wait should be served.
        retry_after: Duration,
    },
    /// The tenant asks faster than it may.
    #[error("{tenant} is over its rate of {limit}")]
    RateLimited {
        /// Whose limit.
        tenant: String,
        /// Which rate, for people: "60 requests/s".
        limit: String,
        /// Tokens rather than requests.
        tokens: bool,
        /// Until this request would pass.
        retry_after: Duration,
    },
    /// Too many wait, or too many bytes.
    #[error("{what}")]
    QueueFull {
        /// Which bound.
        what: String,
        /// Until those that wait should be served.
        retry_after: Duration,
    },
    /// It waited as long as it may.
    #[error("the model did not get ready within {} s", .waited.as_secs())]
    Deadline {
        /// How long it was held.
        waited: Duration,
        /// Until the model should be ready.
        retry_after: Duration,
    },
    /// `X-No-Switch` was sent, and the model is not ready.
    #[error("the model is not ready (it is {state}), and X-No-Switch forbids making it so")]
    WouldSwitch {
        /// The engine's state, in a word.
        state: String,
    },
    /// The engine has failed, and nothing will start it again but an operator.
    #[error("the model's engine has failed: {reason}")]
    EngineFailed {
        /// Why, its last log line included.
        reason: String,
    },
    /// The engine crashed; it is started again.
    #[error("the model's engine has ended and is being started again: {reason}")]
    EngineDown {
        /// Why, its last log line included.
        reason: String,
        /// Until it should be back.
        retry_after: Duration,
    },
    /// The switch to the model failed; what served before serves again.
    #[error("the switch to this model failed: {reason}")]
    SwitchFailed {
        /// Why.
        reason: String,
        /// Until it is tried again.
        retry_after: Duration,
    },
    /// No switch to the model is possible as things are.
    #[error("no switch to this model is possible now: {reason}")]
    NoWay {
        /// What stands in the way.
        reason: String,
        /// When to ask again; nobody knows when it ends.
        retry_after: Duration,
    },
    /// An operator has taken the engines off the device for a while.
    #[error("the node is paused for maintenance")]
    Paused {
        /// When to ask again; nobody knows when it ends.
        retry_after: Duration,
    },
    /// The model's engine is not configured any more.
    #[error("this model is not served here any more")]
    NotConfigured,
    /// The agent goes and leaves its engines to the next one, which will be there at once.
    #[error("the gateway is being restarted; send the request again")]
    Restarting {
        /// When to ask again.
        retry_after: Duration,
    },
    /// The agent is ending.
    #[error("the gateway is shutting down")]
    ShuttingDown {
        /// When to ask again.
        retry_after: Duration,
    },
}

impl Refusal {
    /// Status of the answer.
    pub fn status(&self) -> StatusCode {
        match self {
            Refusal::UnknownKey { .. } => StatusCode::UNAUTHORIZED,
            Refusal::TooManyInFlight { .. } | Refusal::TooManyQueued { .. } | Refusal::RateLimited { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Refusal::WouldSwitch { .. } => StatusCode::CONFLICT,
            Refusal::NotConfigured => StatusCode::NOT_FOUND,
            Refusal::QueueFull { .. }
            | Refusal::Deadline { .. }
            | Refusal::EngineFailed { .. }
            | Refusal::EngineDown { .. }
            | Refusal::SwitchFailed { .. }
            | Refusal::NoWay { .. }
            | Refusal::Paused { .. }
            | Refusal::Restarting { .. }
            | Refusal::ShuttingDown { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// OpenAI's `error.code`; also the metric's label.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::UnknownKey { .. } => "invalid_api_key",
            Refusal::TooManyInFlight { .. } => "too_many_in_flight",
            Refusal::TooManyQueued { .. } => "too_many_queued",
            Refusal::RateLimited { .. } => "rate_limit_exceeded",
            Refusal::QueueFull { .. } => "queue_full",
            Refusal::Deadline { .. } => "not_ready_in_time",
            Refusal::WouldSwitch { .. } => "would_switch",
            Refusal::EngineFailed { .. } => "engine_failed",
            Refusal::EngineDown { .. } => "engine_down",
            Refusal::SwitchFailed { .. } => "switch_failed",
            Refusal::NoWay { .. } => "no_way",
            Refusal::Paused { .. } => "paused",
            Refusal::NotConfigured => "model_not_found",
            Refusal::Restarting { .. } => "restarting",
            Refusal::ShuttingDown { .. } => "shutting_down",
        }
    }

    /// OpenAI's `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Refusal::UnknownKey { .. } | Refusal::WouldSwitch { .. } | Refusal::NotConfigured => {
                "invalid_request_error"
            }
            Refusal::RateLimited { tokens: true, .. } => "tokens",
            Refusal::TooManyInFlight { .. } | Refusal::TooManyQueued { .. } | Refusal::RateLimited { .. } => {
                "requests"
            }
            Refusal::QueueFull { .. }
            | Refusal::Deadline { .. }
            | Refusal::EngineFailed { .. }
            | Refusal::EngineDown { .. }
            | Refusal::SwitchFailed { .. }
            | Refusal::NoWay { .. }
            | Refusal::Paused { .. }
            | Refusal::Restarting { .. }
            | Refusal::ShuttingDown { .. } => "server_error",
        }
    }

    /// When trying again may help; `None` where it will not.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Refusal::UnknownKey { .. }
            | Refusal::WouldSwitch { .. }
            | Refusal::EngineFailed { .. }
            | Refusal::NotConfigured => None,
            Refusal::TooManyInFlight { retry_after, .. }
            | Refusal::TooManyQueued { retry_after, .. }
            | Refusal::RateLimited { retry_after, .. }
            | Refusal::QueueFull { retry_after, .. }
            | Refusal::Deadline { retry_after, .. }
            | Refusal::EngineDown { retry_after, .. }
            | Refusal::SwitchFailed { retry_after, .. }
            | Refusal::NoWay { retry_after, .. }
            | Refusal::Paused { retry_after }
            | Refusal::Restarting { retry_after }
            | Refusal::ShuttingDown { retry_after } => Some(*retry_after),
        }
    }

    /// The header's value: whole seconds, rounded up, never 0.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after()?;
        Some((wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1))
    }
}
