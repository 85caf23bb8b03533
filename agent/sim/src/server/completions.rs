//! `/v1/completions` and `/v1/chat/completions`, plain and streamed.
//!
//! A request to a sleeping engine is accepted and simply waits (fact 4 [run]); one that a sleep aborts ends with 200
//! and `finish_reason: "abort"` (CONTRACT 1.2 [run]).

use super::errors::{self, ENGINE_DEAD};
use super::openai::{self, Face, Wanted};
use super::sse::TokenStream;
use super::state::{LoadGuard, Shared};
use crate::ipc::Finish;
use crate::tokens::{mix, word};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) async fn completions(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    serve(shared, Face::Completion, &headers, &body).await
}

pub(crate) async fn chat(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    serve(shared, Face::Chat, &headers, &body).await
}

async fn serve(shared: Shared, face: Face, headers: &HeaderMap, body: &[u8]) -> Response {
    let load = LoadGuard::enter(&shared);
    let wanted = match openai::read(&shared, face, headers, body) {
        Ok(wanted) => wanted,
        Err(response) => return *response,
    };
    let prefix = if face == Face::Chat { "chatcmpl" } else { "cmpl" };
    let id = match headers.get("x-request-id").and_then(|v| v.to_str().ok()) {
        Some(id) => format!("{prefix}-{id}"),
        None => format!("{prefix}-{:016x}", mix(shared.nonce, crate::clock::now_ns())),
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let Some(mut generation) = shared.link.add(|core_id| wanted.to_core(core_id), &id) else {
        return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
    };
    if wanted.stream {
        let stream = TokenStream::new(generation, face, wanted, &id, created, load);
        let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        return (headers, Body::from_stream(stream)).into_response();
    }
    let mut answer = Answer::default();
    loop {
        let Some(event) = generation.events.recv().await else {
            return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
        };
        if let Some((token, logprob)) = event.token {
            answer.push(token, logprob);
        }
        if let Some(finish) = event.finish {
            return Json(answer.body(face, &wanted, &id, created, finish)).into_response();
        }
    }
}

/// A plain answer as it grows.
#[derive(Default)]
struct Answer {
    text: String,
    tokens: Vec<String>,
    logprobs: Vec<f64>,
    offsets: Vec<usize>,
}

impl Answer {
    fn push(&mut self, token: u32, logprob: f64) {
        self.offsets.push(self.text.len());
        let token = format!(" {}", word(token));
        self.text.push_str(&token);
        self.tokens.push(token);
        self.logprobs.push(logprob);
    }

    fn body(&self, face: Face, wanted: &Wanted, id: &str, created: u64, finish: Finish) -> Value {
        let output = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        let usage = json!({
            "prompt_tokens": wanted.prompt_tokens,
            "total_tokens": wanted.prompt_tokens.saturating_add(output),
            "completion_tokens": output,
            "prompt_tokens_details": null,
        });
        let pairs = || self.tokens.iter().zip(&self.logprobs);
        let (object, choice) = match face {
            Face::Completion => {
                let logprobs = json!({
                    "text_offset": self.offsets,
                    "token_logprobs": self.logprobs,
                    "tokens": self.tokens,
                    "top_logprobs": pairs().map(|(t, l)| json!({ t: l })).collect::<Vec<_>>(),
                });
                let logprobs = if wanted.logprobs { logprobs } else { Value::Null };
                ("text_completion", json!({ "index": 0, "text": self.text, "logprobs": logprobs }))
            }
            Face::Chat => {
                let content: Vec<_> = pairs()
                    .map(|(t, l)| json!({ "token": t, "logprob": l, "bytes": t.as_bytes(), "top_logprobs": [] }))
                    .collect();
                let logprobs = if wanted.logprobs { json!({ "content": content }) } else { Value::Null };
                let message = json!({ "role": "assistant", "content": self.text });
                ("chat.completion", json!({ "index": 0, "message": message, "logprobs": logprobs }))
            }
        };
        let mut choice = choice;
        choice["finish_reason"] = json!(finish.as_str());
        choice["stop_reason"] = Value::Null;
        json!({
            "id": id, "object": object, "created": created, "model": wanted.model, "choices": [choice], "usage": usage,
        })
    }
}
