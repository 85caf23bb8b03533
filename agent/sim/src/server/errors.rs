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

/// A 400 that a handler raises itself: its type is the status' phrase [run].
pub(crate) fn validation(message: &str) -> Response {
    bad_request(message, None)
}

fn bad_request(message: &str, param: Option<&str>) -> Response {
    let body = json!({ "error": { "message": message, "type": "Bad Request", "param": param, "code": 400 } });
    (StatusCode::BAD_REQUEST, Json(body)).into_response()
}

/// The 400 of FastAPI's own checks: where (`query.level`), pydantic's kind, its sentence and what was given [run].
pub(crate) fn invalid(place: &str, kind: &str, sentence: &str, given: &str) -> Response {
    let quote = |text: &str| if text.contains('\'') { format!("\"{text}\"") } else { format!("'{text}'") };
    let message = format!(
        "1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': {}, 'input': {}}}",
        quote(sentence),
        quote(given)
    );
    bad_request(&message, Some(place))
}

/// A boolean query parameter, as pydantic reads it.
pub(crate) fn boolean(place: &str, given: Option<&str>, otherwise: bool) -> Result<bool, Box<Response>> {
    let Some(given) = given else { return Ok(otherwise) };
    match given.to_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "t" | "y" => Ok(true),
        "false" | "0" | "no" | "off" | "f" | "n" => Ok(false),
        _ => {
            let sentence = "Input should be a valid boolean, unable to interpret input";
            Err(Box::new(invalid(place, "bool_parsing", sentence, given)))
        }
    }
}

/// Marks an answer after which the server closes the connection without saying so: a 500 that no handler made [run].
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndsConnection;

pub(crate) fn openai(status: StatusCode, message: &str, param: Option<&str>) -> Response {
    (status, Json(body(status, message, param))).into_response()
}

/// The 500 of a control call: 0.32 tells the cause (CONTRACT 3.4 [run]), earlier ones are taken not to.
pub(crate) fn control(shared: &Shared, error: &CallError) -> Response {
    let message = match error {
        CallError::Failed(message) => message.as_str(),
        CallError::EngineDead => ENGINE_DEAD,
    };
    let mut response = if shared.settings.args.version.errors_are_told() {
        openai(StatusCode::INTERNAL_SERVER_ERROR, message, None)
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response()
    };
    response.extensions_mut().insert(EndsConnection);
    response
}
