//! `/sleep`, `/wake_up`, `/is_sleeping`, `/release_kv_cache_memory` (CONTRACT 1.1).
//!
//! Parameters are query parameters; a body is ignored [run]. The sleep gauge is recorded here, from the call's answer
//! and not from the engine's state: hence its lies (section 2 [run]).

use super::errors;
use super::link::CallError;
use super::metrics::{Operation, SleepState};
use super::state::{Shared, lock};
use crate::ipc::{Call, Mode};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::Instant;

/// Decoded query parameters, in order.
pub(crate) fn query_pairs(query: Option<&str>) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode(&text.replace('+', " "));
    query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let hex = |b: u8| (b as char).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let pair = (bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex));
        if let (b'%', (Some(high), Some(low))) = (bytes[i], pair) {
            out.push(high * 16 + low);
            i += 3;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The first value of a parameter.
pub(crate) fn first<'a>(pairs: &'a [(String, String)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
}

/// Level and mode, by release: up to 0.31 a level that is no number is an unhandled error (500) and any number goes;
/// 0.32 answers 400 (CONTRACT 1.1 [run][src]). Before 0.17 `mode` does not exist.
fn parse_sleep(shared: &Shared, pairs: &[(String, String)]) -> Result<(u8, Mode), Box<Response>> {
    let version = shared.settings.args.version;
    let given = first(pairs, "level").unwrap_or("1");
    let strict = version.has_json_bodies();
    let level = match (strict, python_int(given, strict)) {
        (true, level) => strict_level(given, level)?,
        (false, Some(level)) => u8::try_from(level).unwrap_or(u8::MAX),
        (false, None) => {
            let error = (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
            return Err(Box::new(error));
        }
    };
    if !version.sleep_pauses() {
        return Ok((level, Mode::Abort));
    }
    let given = first(pairs, "mode").unwrap_or("abort");
    match Mode::parse(given) {
        Some(mode) => Ok((level, mode)),
        None if strict => Err(Box::new(wrong_mode(given))),
        None => Err(Box::new((StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response())),
    }
}

/// A whole number as Python reads it, and as pydantic does: that one takes `1.0` too [run].
fn python_int(text: &str, fractions: bool) -> Option<i64> {
    let text = text.trim();
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if fractions && zeros.bytes().all(|b| b == b'0') => whole,
        _ => text,
    };
    whole.parse().ok()
}

fn strict_level(given: &str, level: Option<i64>) -> Result<u8, Box<Response>> {
    let (kind, sentence) = match level {
        Some(level @ 0..=2) => return Ok(u8::try_from(level).unwrap_or(0)),
        Some(3..) => ("less_than_equal", "Input should be less than or equal to 2"),
        Some(_) => ("greater_than_equal", "Input should be greater than or equal to 0"),
        None => ("int_parsing", "Input should be a valid integer, unable to parse string as an integer"),
    };
    Err(Box::new(errors::invalid("query.level", kind, sentence, given)))
}

/// 0.32's answer to a mode that there is not.
pub(crate) fn wrong_mode(given: &str) -> Response {
    errors::invalid("query.mode", "literal_error", "Input should be 'abort', 'wait' or 'keep'", given)
}

/// Runs a call to its end even if the client goes meanwhile, and keeps the operation's metrics (0.32: duration and
/// in-flight gauge count no-ops and failures, and the gauge outlives the caller's connection [run]).
async fn operation(
    shared: &Shared,
    operation: Operation,
    call: Call,
    state: impl Fn(&Value) -> Option<SleepState> + Send + 'static,
) -> Result<Value, CallError> {
    let shared = Shared::clone(shared);
    let task = tokio::spawn(async move {
        let began = Instant::now();
        lock(&shared.metrics).operation_began(operation);
        let result = shared.link.call(call).await;
        let mut metrics = lock(&shared.metrics);
        metrics.operation_ended(operation, began.elapsed());
        if let Ok(value) = &result
            && let Some(state) = state(value)
        {
            metrics.set_sleep_state(state);
        }
        drop(metrics);
        result
    });
    task.await.unwrap_or(Err(CallError::EngineDead))
}

/// `POST /sleep?level=&mode=`.
pub(crate) async fn sleep(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    let (level, mode) = match parse_sleep(&shared, &pairs) {
        Ok(parsed) => parsed,
        Err(response) => return *response,
    };
    let state = move |_: &Value| Some(SleepState::asleep(level));
    match operation(&shared, Operation::Sleep, Call::Sleep { level, mode }, state).await {
        Ok(_) => done(&shared, json!({ "status": "sleeping", "level": level })),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /wake_up?tags=a&tags=b`.
pub(crate) async fn wake_up(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let tags: Vec<String> =
        query_pairs(query.as_deref()).into_iter().filter(|(k, _)| k == "tags").map(|(_, v)| v).collect();
    let tags = (!tags.is_empty()).then_some(tags);
    // From 0.31 only a full wake is recorded, before any (section 2).
    let knows = shared.settings.args.version.sleep_state_knows_partial();
    let state = move |awake: &Value| (!knows || awake == &Value::Bool(true)).then_some(SleepState::Awake);
    let call = Call::WakeUp { tags: tags.clone() };
    match operation(&shared, Operation::Wake, call, state).await {
        Ok(awake) => {
            let status = if awake == Value::Bool(true) { "awake" } else { "sleeping" };
            done(&shared, json!({ "status": status, "tags": tags }))
        }
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /release_kv_cache_memory`.
pub(crate) async fn release_kv_cache_memory(State(shared): State<Shared>) -> Response {
    let state = |_: &Value| Some(SleepState::asleep(0));
    match operation(&shared, Operation::ReleaseKvCache, Call::ReleaseKvCache, state).await {
        Ok(_) => done(&shared, json!({ "status": "kv_cache_released" })),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `GET /is_sleeping`: answered by EngineCore, so it waits for whatever runs there (fact 3 [run]).
pub(crate) async fn is_sleeping(State(shared): State<Shared>) -> Response {
    match shared.link.call(Call::IsSleeping).await {
        Ok(value) => Json(json!({ "is_sleeping": value })).into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// 0.32 answers JSON, earlier releases an empty body.
fn done(shared: &Shared, body: Value) -> Response {
    if shared.settings.args.version.has_json_bodies() {
        Json(body).into_response()
    } else {
        StatusCode::OK.into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded_in_order() {
        let pairs = query_pairs(Some("tags=weights&tags=kv%5Fcache&level=&x&y=a+b%zz"));
        let expected = [("tags", "weights"), ("tags", "kv_cache"), ("level", ""), ("x", ""), ("y", "a b%zz")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert!(query_pairs(None).is_empty());
    }
}
