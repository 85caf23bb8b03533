//! Refusals and failures: a stable code, a sentence, and what can be done about it.
//!
//! Three things follow from a code and are decided here, once: the HTTP status of the answer, the exit code of
//! `ctl`, and nothing else. Scripts should look at codes; sentences may be reworded.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ApiError,
}

/// A refusal, or the failure of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Stable code.
    pub code: ErrorCode,
    /// What was wrong and where, one sentence for people.
    pub message: String,
    /// What can be done about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// Id of the operation or run that it concerns, or that stands in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// After how many seconds a new attempt has a chance; absent where none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<f64>,
}

impl ApiError {
    /// An error with its code and sentence.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ApiError { code, message: message.into(), help: None, operation: None, retry_after_s: None }
    }

    /// Adds what can be done.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the operation or run that it concerns.
    #[must_use]
    pub fn operation(mut self, id: impl Into<String>) -> Self {
        self.operation = Some(id.into());
        self
    }

    /// Adds when to try again, in seconds.
    #[must_use]
    pub fn retry_after_s(mut self, seconds: f64) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// There is no engine of that name: lists those there are.
    pub fn unknown_engine<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        ApiError::new(ErrorCode::UnknownEngine, format!("there is no engine `{name}`"))
            .help(format!("configured engines: {list}"))
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal, $status:literal, $exit:ident;)+) => {
        /// What went wrong, as a stable word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum ErrorCode {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
            /// A code that this version does not know.
            #[serde(other, rename = "unknown_code")]
            Other,
        }

        impl ErrorCode {
            /// Every code that has a meaning of its own.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),+];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $word,)+ ErrorCode::Other => "unknown_code" }
            }

            /// The HTTP status of an answer with it.
            pub fn http_status(self) -> u16 {
                match self { $(ErrorCode::$variant => $status,)+ ErrorCode::Other => 500 }
            }

            /// The exit code of a `ctl` that meets it.
            pub fn exit_code(self) -> ExitCode {
                match self { $(ErrorCode::$variant => ExitCode::$exit,)+ ErrorCode::Other => ExitCode::Failed }
            }

            /// Reads a word; one that is not known becomes [`ErrorCode::Other`].
            pub fn from_word(word: &str) -> Self {
                match word { $($word => ErrorCode::$variant,)+ _ => ErrorCode::Other }
            }
        }
    };
}

codes! {
    /// The request cannot be read: bad JSON, an unknown field, a value out of range.
    BadRequest = "bad_request", 400, Usage;
    /// The caller may not use this socket.
    Forbidden = "forbidden", 403, Forbidden;
    /// The API has no such route.
    NoRoute = "no_route", 404, Failed;
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed", 405, Failed;
    /// The body is larger than the agent reads.
    TooLarge = "too_large", 413, Usage;
    /// No engine has this name.
    UnknownEngine = "unknown_engine", 404, Unknown;
    /// No operation has this id.
    UnknownOperation = "unknown_operation", 404, Unknown;
    /// No cycle run has this id.
    UnknownRun = "unknown_run", 404, Unknown;
    /// No cycle plan has this name.
    UnknownPlan = "unknown_plan", 404, Unknown;
    /// The id belongs to another request.
    IdConflict = "id_conflict", 409, Refused;
    /// Something else is running; `operation` names it.
    Busy = "busy", 409, Refused;
    /// The engine's condition does not allow it.
    Refused = "refused", 409, Refused;
    /// There is not enough memory, on the device or on the host.
    NoRoom = "no_room", 409, Refused;
    /// This release of vLLM cannot do it.
    Unsupported = "unsupported", 409, Refused;
    /// Memory cannot be measured, so its release cannot be proved.
    NoEvidence = "no_evidence", 409, Refused;
    /// It is over; nothing can be cancelled.
    AlreadyOver = "already_over", 409, Refused;
    /// Requests were still running when the drain deadline passed; the operation was given up.
    DrainDeadline = "drain_deadline", 409, DrainDeadline;
    /// The cycle plan has errors.
    PlanInvalid = "plan_invalid", 422, BadFile;
    /// The configuration has errors.
    ConfigInvalid = "config_invalid", 422, BadFile;
    /// The run has no report yet.
    ReportUnavailable = "report_unavailable", 409, Failed;
    /// The process could not be started, or never became ready.
    StartFailed = "start_failed", 500, Failed;
    /// The process tree could not be ended.
    StopFailed = "stop_failed", 500, Failed;
    /// The engine did not go to sleep.
    SleepFailed = "sleep_failed", 500, Failed;
    /// The engine says that it sleeps, but its memory is still there.
    SleepIncomplete = "sleep_incomplete", 500, Failed;
    /// The engine did not wake.
    WakeFailed = "wake_failed", 500, Failed;
    /// The device ran out of memory.
    OutOfMemory = "out_of_memory", 500, Failed;
    /// The probe got no answer.
    ProbeFailed = "probe_failed", 500, Failed;
    /// The probe's tokens are not the recorded ones.
    CanaryMismatch = "canary_mismatch", 500, Failed;
    /// The engine's process died.
    Crashed = "crashed", 500, Failed;
    /// The engine is healthy but makes no progress.
    Stalled = "stalled", 500, Failed;
    /// The engine's state was changed from outside.
    Drifted = "drifted", 500, Failed;
    /// Somebody cancelled it.
    Cancelled = "cancelled", 409, Failed;
    /// How it ended is not known: no answer came in time.
    Timeout = "timeout", 504, OutcomeUnknown;
    /// The agent is starting or stopping.
    Unavailable = "unavailable", 503, Refused;
    /// A fault of the agent itself.
    Internal = "internal", 500, Failed;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How `ctl` ends. Stable: scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Done, or nothing was to do.
    Ok = 0,
    /// The operation, the cycle or a check failed.
    Failed = 1,
    /// Wrong flags or arguments.
    Usage = 2,
    /// No agent answers on the socket.
    Unreachable = 3,
    /// No engine, plan, run or operation has this name.
    Unknown = 4,
    /// Busy, or refused with a reason.
    Refused = 5,
    /// The drain deadline passed; nothing was changed.
    DrainDeadline = 6,
    /// A plan or configuration file has errors, or cannot be read.
    BadFile = 7,
    /// The outcome is not known: no answer in time, or the agent went away meanwhile.
    OutcomeUnknown = 8,
    /// The caller may not use the agent's socket.
    Forbidden = 9,
    /// Interrupted by Ctrl-C. The operation goes on.
    Interrupted = 130,
}

impl ExitCode {
    /// Every exit code with its meaning, for help texts.
    pub const MEANINGS: &'static [(ExitCode, &'static str)] = &[
        (ExitCode::Ok, "done, or nothing was to do"),
        (ExitCode::Failed, "the operation, the cycle or a check failed"),
        (ExitCode::Usage, "wrong flags or arguments"),
        (ExitCode::Unreachable, "no agent answers on the socket"),
        (ExitCode::Unknown, "unknown engine, plan, run or operation"),
        (ExitCode::Refused, "busy, or refused with a reason"),
        (ExitCode::DrainDeadline, "the drain deadline passed, nothing was changed"),
        (ExitCode::BadFile, "a plan or configuration file has errors"),
        (ExitCode::OutcomeUnknown, "the outcome is not known"),
        (ExitCode::Forbidden, "not allowed to use the agent's socket"),
        (ExitCode::Interrupted, "interrupted; the operation goes on"),
    ];

    /// The number.
    pub fn number(self) -> u8 {
        self as u8
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        std::process::ExitCode::from(code.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_unknown_ones_are_kept_readable() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert_eq!(ErrorCode::from_word(code.as_str()), *code);
            assert!((400..600).contains(&code.http_status()), "{code}");
        }
        let later: ErrorCode = serde_json::from_value("from_a_later_version".into()).unwrap();
        assert_eq!(later, ErrorCode::Other);
    }

    #[test]
    fn every_exit_code_is_documented_once() {
        let mut numbers: Vec<u8> = ExitCode::MEANINGS.iter().map(|(code, _)| code.number()).collect();
        numbers.dedup();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130]);
        for code in ErrorCode::ALL {
            assert_ne!(code.exit_code(), ExitCode::Ok, "{code}");
        }
    }
}
