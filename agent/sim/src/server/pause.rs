//! `/pause`, `/resume`, `/is_paused` (0.12) and `/abort_requests` (0.13), CONTRACT 1.1 [src].

use super::errors;
use super::link::CallError;
use super::sleep::{first, query_pairs, wrong_mode};
use super::state::Shared;
use crate::ipc::{Call, Mode};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// `POST /pause?mode=&clear_cache=` (0.12–0.15: `wait_for_inflight_requests`).
pub(crate) async fn pause(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    let version = shared.settings.args.version;
    let clear_cache = match errors::boolean("query.clear_cache", first(&pairs, "clear_cache"), true) {
        Ok(clear_cache) => clear_cache,
        Err(response) => return *response,
    };
    let waits = first(&pairs, "wait_for_inflight_requests")
        .is_some_and(|v| matches!(v.to_lowercase().as_str(), "true" | "1" | "yes" | "on"));
    let mode = match first(&pairs, "mode") {
        // From 0.32 the old parameter is one that nobody knows, and ignored [run].
        None if waits && !version.has_json_bodies() => Some(Mode::Wait),
        None => Some(Mode::Abort),
        Some(text) => Mode::parse(text),
    };
    let Some(mode) = mode else {
        if version.has_json_bodies() {
            return wrong_mode(first(&pairs, "mode").unwrap_or_default());
        }
        let error = json!({ "error": "Invalid pause mode: it must be abort, wait or keep" });
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    };
    let call = Call::Pause { mode, clear_cache };
    answer(shared.link.call(call).await, "pause", |_| json!({ "status": "paused" }))
}

/// `POST /resume`.
pub(crate) async fn resume(State(shared): State<Shared>) -> Response {
    answer(shared.link.call(Call::Resume).await, "resume", |_| json!({ "status": "resumed" }))
}

/// `GET /is_paused`.
pub(crate) async fn is_paused(State(shared): State<Shared>) -> Response {
    answer(
        shared.link.call(Call::IsPaused).await,
        "fetch pause status of",
        |paused| json!({ "is_paused": paused }),
    )
}

fn answer(result: Result<Value, CallError>, what: &str, body: impl FnOnce(Value) -> Value) -> Response {
    match result {
        Ok(value) => Json(body(value)).into_response(),
        Err(error) => {
            let cause = match &error {
                CallError::Failed(message) => message.as_str(),
                CallError::EngineDead => errors::ENGINE_DEAD,
            };
            let body = json!({ "error": format!("Failed to {what} generation: {cause}") });
            (StatusCode::INTERNAL_SERVER_ERROR, Json(body)).into_response()
        }
    }
}

/// `POST /abort_requests {"request_ids":[…]}`; none or an empty list aborts all.
pub(crate) async fn abort_requests(State(shared): State<Shared>, body: Bytes) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return errors::validation("Invalid JSON format");
    };
    let Some(body) = body.as_object() else {
        return errors::validation("Request body must be a JSON object");
    };
    let ids: Vec<String> = body
        .get("request_ids")
        .and_then(Value::as_array)
        .map(|ids| ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
        .unwrap_or_default();
    let aborted = shared.link.abort((!ids.is_empty()).then_some(&ids));
    Json(json!({ "status": "aborted", "aborted": aborted })).into_response()
}
