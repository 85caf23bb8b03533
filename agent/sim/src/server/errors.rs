//! Error answers.

use super::link::CallError;
use super::state::Shared;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// What a dead engine's clients are told [src].
pub(crate) const ENGINE_DEAD: &str =
    "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// The OpenAI form of an error.
pub(crate) fn body(status: StatusCode, message: &str, param: Option<&str>) -> Value {
    let kind = match status {
        StatusCode::NOT_FOUND => "NotFoundError",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalServerError",
        _ => "BadRequestError",
    };
    json!({ "error": { "message": message, "type": kind, "param": param, "code": status.as_u16() } })
}

/// The 400 of FastAPI's own checks, in vLLM's form: its type is the status' phrase [src].
pub(crate) fn validation(message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": "Bad Request", "param": null, "code": 400 } });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

pub(crate) fn openai(status: StatusCode, message: &str, param: Option<&str>) -> Response {
    (status, Json(body(status, message, param))).into_response()
}

/// The 500 of a control call: 0.32 tells the cause (CONTRACT 3.4 [run]), earlier ones are taken not to.
pub(crate) fn control(shared: &Shared, error: &CallError) -> Response {
    let message = match error {
        CallError::Failed(message) => message.as_str(),
        CallError::EngineDead => ENGINE_DEAD,
    };
    if shared.settings.args.version.errors_are_told() {
        openai(StatusCode::INTERNAL_SERVER_ERROR, message, None)
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response()
    }
}
