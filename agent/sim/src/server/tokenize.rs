//! `/tokenize` and `/detokenize`: a word is a token.

use super::errors;
use super::state::Shared;
use crate::tokens::{hash_text, word};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// How many numbers there are; any will do, for numbers are never read as words.
const VOCABULARY: u64 = 50_000;

pub(crate) async fn tokenize(State(shared): State<Shared>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let Some(prompt) = body.get("prompt").and_then(Value::as_str) else {
        return errors::invalid("body.prompt", "missing", "Field required", "None");
    };
    let tokens: Vec<u64> = prompt.split_whitespace().map(|w| hash_text(w) % VOCABULARY).collect();
    let limit = shared.settings.max_model_len;
    let count = tokens.len();
    Json(json!({ "count": count, "max_model_len": limit, "tokens": tokens, "token_strs": null }))
        .into_response()
}

pub(crate) async fn detokenize(body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let Some(tokens) = body.get("tokens").and_then(Value::as_array) else {
        return errors::invalid("body.tokens", "missing", "Field required", "None");
    };
    let numbers = tokens.iter().filter_map(Value::as_u64);
    let words: Vec<&str> = numbers.map(|n| word(u32::try_from(n).unwrap_or(u32::MAX))).collect();
    Json(json!({ "prompt": words.join(" ") })).into_response()
}
