//! Operations: everything that changes an engine, as a resource with an id.

use crate::error::{ApiError, ErrorCode};
use crate::explain::Plan;
use crate::words::{Drain, OperationKind, State, Strategy, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest id that a client may choose, in characters.
pub const MAX_ID_CHARS: usize = 64;

/// Body of `POST /v1/operations`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submit {
    /// The operation's id, chosen by the client: 1 to 64 of `A–Z a–z 0–9 . _ -`. The same id with the same request
    /// is the same operation; with another request it is a conflict. Without it the agent makes one (UUID v7).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What to do.
    pub request: OperationRequest,
}

/// Checks a client's id.
///
/// # Errors
/// [`ErrorCode::BadRequest`] where it is empty, too long, or has other characters.
pub fn check_id(id: &str) -> Result<(), ApiError> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.chars().count() > MAX_ID_CHARS || !id.chars().all(fine) || id.starts_with('.') {
        return Err(ApiError::new(ErrorCode::BadRequest, format!("`{}` cannot be an id", id.escape_debug()))
            .help(format!(
                "an id has 1 to {MAX_ID_CHARS} letters, digits, `.`, `_` or `-`, and no `.` in front"
            )));
    }
    Ok(())
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OperationRequest {
    /// Make this engine the one that is awake.
    Switch(SwitchRequest),
    /// Put an engine to sleep.
    Sleep(SleepRequest),
    /// Wake an engine beside what is awake; refused where it does not fit.
    Wake(EngineRequest),
    /// Start a stopped engine.
    Start(EngineRequest),
    /// Stop an engine and its whole process tree.
    Stop(StopRequest),
    /// Stop and start.
    Restart(StopRequest),
    /// Leave the failed state: back-off and budget begin anew.
    Reset(EngineRequest),
    /// Maintenance: put every engine out of the way, and wake none by demand until it is over.
    Pause(PauseRequest),
    /// The end of maintenance: what served before serves again.
    Resume(ResumeRequest),
    /// Take over a server of this engine's model that somebody else has started, as it runs.
    Adopt(EngineRequest),
}

/// What an operation on the whole node names instead of an engine.
pub const NODE: &str = "*";

impl OperationRequest {
    /// The engine that it is for; [`NODE`] where it is for the whole node.
    pub fn engine(&self) -> &str {
        match self {
            OperationRequest::Pause(_) | OperationRequest::Resume(_) => NODE,
            OperationRequest::Switch(r) => &r.engine,
            OperationRequest::Sleep(r) => &r.engine,
            OperationRequest::Stop(r) | OperationRequest::Restart(r) => &r.engine,
            OperationRequest::Wake(r)
            | OperationRequest::Start(r)
            | OperationRequest::Reset(r)
            | OperationRequest::Adopt(r) => &r.engine,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> OperationKind {
        match self {
            OperationRequest::Switch(_) => OperationKind::Switch,
            OperationRequest::Sleep(_) => OperationKind::Sleep,
            OperationRequest::Wake(_) => OperationKind::Wake,
            OperationRequest::Start(_) => OperationKind::Start,
            OperationRequest::Stop(_) => OperationKind::Stop,
            OperationRequest::Restart(_) => OperationKind::Restart,
            OperationRequest::Reset(_) => OperationKind::Reset,
            OperationRequest::Pause(_) => OperationKind::Pause,
            OperationRequest::Resume(_) => OperationKind::Resume,
            OperationRequest::Adopt(_) => OperationKind::Adopt,
        }
    }

    /// Checks what a type cannot: deadlines must be finite and not negative.
    ///
    /// # Errors
    /// [`ErrorCode::BadRequest`].
    pub fn check(&self) -> Result<(), ApiError> {
        let deadline = match self {
            OperationRequest::Switch(r) => r.deadline_s,
            OperationRequest::Sleep(r) => r.deadline_s,
            OperationRequest::Stop(r) | OperationRequest::Restart(r) => r.deadline_s,
            OperationRequest::Pause(r) => r.deadline_s,
            OperationRequest::Wake(_)
            | OperationRequest::Start(_)
            | OperationRequest::Reset(_)
            | OperationRequest::Resume(_)
            | OperationRequest::Adopt(_) => None,
        };
        match deadline {
            Some(s) if !(0.0..=MAX_DEADLINE_S).contains(&s) => Err(ApiError::new(
                ErrorCode::BadRequest,
                format!("`deadline_s` is {s}, but must lie between 0 and {MAX_DEADLINE_S} seconds"),
            )),
            _ => Ok(()),
        }
    }
}

/// Longest drain deadline: a day.
pub const MAX_DEADLINE_S: f64 = 86_400.0;

/// Make an engine the one that is awake. To see what it would do, post the same fields to `/v1/explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchRequest {
    /// Engine's name.
    pub engine: String,
    /// Plan by name; default from the configuration (`auto`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Tier that the outgoing engine is left in; default by strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave: Option<Tier>,
    /// What happens to the outgoing engine's running requests; default from the configuration (`wait`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// How long the drain may take, seconds; default from the configuration (30).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// Put an engine to sleep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SleepRequest {
    /// Engine's name.
    pub engine: String,
    /// `parked`, `level1` or `level2`; default from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// What happens to its running requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// How long the drain may take, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// Stop or restart an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Engine's name.
    pub engine: String,
    /// `wait` or `abort`: what happens to its running requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// How long the drain may take, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// A request that needs nothing but the engine's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineRequest {
    /// Engine's name.
    pub engine: String,
}

/// Put every engine out of the way for maintenance.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Where to, at least: `parked`, `level1`, `level2` or `stopped`; without it each engine's quickest tier that gives
    /// its memory back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// What happens to running requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// How long the drain may take, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
}

/// End maintenance.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {}

/// Who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Initiator {
    /// Somebody on the control socket.
    Operator {
        /// User id of the calling process.
        uid: u32,
        /// Its pid.
        pid: Option<i32>,
    },
    /// A cycle run.
    Cycle {
        /// The run's id.
        run: String,
    },
    /// The gateway: requests wait for the engine.
    Gateway,
    /// The agent itself: start-up, repair, idle ladders.
    Agent,
}

/// An operation as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// The id it was given.
    pub id: String,
    /// Its number in the journal.
    pub number: Option<u64>,
    /// Kind of work.
    pub kind: OperationKind,
    /// The engine it is for (the incoming one of a switch).
    pub engine: String,
    /// The outgoing engine of a switch.
    pub from: Option<String>,
    /// As it was asked for; `null` for the agent's own work.
    pub request: Option<OperationRequest>,
    /// Who asked.
    pub initiator: Initiator,
    /// How far it has come.
    pub state: State,
    /// What there is to say beside the state: `already awake`, `rolled back: A serves again`.
    pub note: Option<String>,
    /// Why it failed.
    pub error: Option<ApiError>,
    /// What it does, or did.
    pub plan: Option<Plan>,
    /// What has been done, in order.
    pub steps: Vec<Step>,
    /// When it was accepted (t0), epoch seconds.
    pub accepted_at: f64,
    /// When it ended, epoch seconds.
    pub ended_at: Option<f64>,
    /// From acceptance to the end, or until now, seconds (monotonic).
    pub elapsed_s: f64,
    /// From acceptance to the probe's first token of the incoming engine, seconds.
    pub first_token_s: Option<f64>,
    /// Predicted time to its end from now, seconds.
    pub eta_s: Option<f64>,
}

/// One step of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its place, ascending; rungs of the failure ladder and roll-back continue the count.
    pub index: u32,
    /// Phase, the metric's label: `drain`, `sleep`, `await_release`, `wake`, `probe`, …
    pub phase: String,
    /// On which engine.
    pub engine: String,
    /// `queued` before it begins.
    pub state: State,
    /// Begin after the operation's acceptance, seconds.
    pub began_s: Option<f64>,
    /// How long it took, or has taken so far, seconds.
    pub duration_s: Option<f64>,
    /// Device-wide used bytes when it began.
    pub device_before_bytes: Option<u64>,
    /// Device-wide used bytes when it ended.
    pub device_after_bytes: Option<u64>,
    /// Why it failed.
    pub error: Option<ApiError>,
}

/// Answer of `GET /v1/operations`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationList {
    /// Operations that the agent remembers.
    pub operations: Vec<Operation>,
}

/// Query of the routes that can wait for an end.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    /// Answer when it is over, or after so many seconds (at most 60), whichever comes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
}

/// Longest time that one request may wait, seconds. Ask again for longer.
pub const MAX_WAIT_S: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_refuse_unknown_fields_and_read_the_short_form() {
        let short: Submit = serde_json::from_str(r#"{"request":{"kind":"switch","engine":"B"}}"#).unwrap();
        assert_eq!((short.request.engine(), short.request.kind()), ("B", OperationKind::Switch));
        for wrong in [
            r#"{"request":{"kind":"switch","engine":"B","lave":"parked"}}"#,
            r#"{"request":{"kind":"switch"}}"#,
            r#"{"request":{"kind":"swap","engine":"B"}}"#,
            r#"{"request":{"kind":"wake","engine":"B"},"ID":"x"}"#,
        ] {
            assert!(serde_json::from_str::<Submit>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_checked() {
        for good in ["a", "nightly-2026.11.30_1", &"x".repeat(64)] {
            assert!(check_id(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "a b", "ä", "..", &"x".repeat(65), "a\n"] {
            assert_eq!(check_id(bad).unwrap_err().code, ErrorCode::BadRequest, "{bad:?}");
        }
    }

    #[test]
    fn deadlines_out_of_range_are_refused() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e9] {
            let request = OperationRequest::Stop(StopRequest {
                engine: "A".into(),
                drain: None,
                deadline_s: Some(bad),
            });
            assert!(request.check().is_err(), "{bad}");
        }
    }
}
