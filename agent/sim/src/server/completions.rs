//! `/v1/completions` and `/v1/chat/completions`, plain and streamed.
//!
//! A request to a sleeping engine is accepted and simply waits (fact 4 [run]); one that a sleep aborts ends with 200
//! and `finish_reason: "abort"` (CONTRACT 1.2 [run]).

use super::errors::{self, ENGINE_DEAD};
use super::link::Generation;
use super::openai::{self, Choice, Face, Wanted};
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
    let wanted = openai::parse(headers, body).and_then(|body| openai::check(&shared, face, &body));
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(response) => return *response,
    };
    let id = request_id(&shared, face, headers);
    let Some(mut generations) = generate(&shared, face, &wanted, &id) else {
        return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    if wanted.stream {
        let stream = TokenStream::new(generations, face, wanted, &id, created, load);
        let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        return (headers, Body::from_stream(stream)).into_response();
    }
    let mut answers = Vec::new();
    for generation in &mut generations {
        match Answer::whole(generation).await {
            Some(answer) => answers.push(answer),
            None => return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None),
        }
    }
    Json(body_of(&answers, face, &wanted, &id, created)).into_response()
}

/// The client's own id, or a new one.
pub(crate) fn request_id(shared: &Shared, face: Face, headers: &HeaderMap) -> String {
    let prefix = if face == Face::Chat { "chatcmpl" } else { "cmpl" };
    match headers.get("x-request-id").and_then(|v| v.to_str().ok()) {
        Some(id) => format!("{prefix}-{id}"),
        None => format!("{prefix}-{:016x}", mix(shared.nonce, crate::clock::now_ns())),
    }
}

/// Hands every choice to the engine core; `None` when there is none.
///
/// The engine knows a completion by its id and the prompt's number, `cmpl-…-0`, so that `/abort_requests` with the id
/// that the client has been told aborts nothing; a chat it knows by its id [run].
pub(crate) fn generate(shared: &Shared, face: Face, wanted: &Wanted, id: &str) -> Option<Vec<Generation>> {
    let known = |choice: &Choice| match face {
        Face::Completion => format!("{id}-{}", choice.prompt),
        Face::Chat => id.to_owned(),
    };
    let add = |choice: &Choice| shared.link.add(|core_id| wanted.to_core(*choice, core_id), &known(choice));
    wanted.choices.iter().map(add).collect()
}

/// One choice as it grows.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    tokens: Vec<String>,
    logprobs: Vec<f64>,
    offsets: Vec<usize>,
    pub(crate) finish: Finish,
}

impl Answer {
    /// Waits for the end; `None` when the engine dies before.
    pub(crate) async fn whole(generation: &mut Generation) -> Option<Self> {
        let mut answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            offsets: Vec::new(),
            finish: Finish::Stop,
        };
        loop {
            let event = generation.events.recv().await?;
            if let Some((token, logprob)) = event.token {
                answer.push(token, logprob);
            }
            if let Some(finish) = event.finish {
                return Some(Answer { finish, ..answer });
            }
        }
    }

    fn push(&mut self, token: u32, logprob: f64) {
        self.offsets.push(self.text.len());
        let token = format!(" {}", word(token));
        self.text.push_str(&token);
        self.tokens.push(token);
        self.logprobs.push(logprob);
    }

    pub(crate) fn output_tokens(&self) -> u32 {
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    fn choice(&self, face: Face, index: usize, has_logprobs: bool) -> Value {
        let pairs = || self.tokens.iter().zip(&self.logprobs);
        let mut choice = match face {
            Face::Completion => {
                let logprobs = json!({
                    "text_offset": self.offsets,
                    "token_logprobs": self.logprobs,
                    "tokens": self.tokens,
                    "top_logprobs": pairs().map(|(t, l)| json!({ t: l })).collect::<Vec<_>>(),
                });
                json!({ "text": self.text, "logprobs": if has_logprobs { logprobs } else { Value::Null } })
            }
            Face::Chat => {
                let content: Vec<_> = pairs()
                    .map(|(t, l)| json!({ "token": t, "logprob": l, "bytes": t.as_bytes(), "top_logprobs": [] }))
                    .collect();
                let logprobs = if has_logprobs { json!({ "content": content }) } else { Value::Null };
                json!({ "message": { "role": "assistant", "content": self.text }, "logprobs": logprobs })
            }
        };
        choice["index"] = json!(index);
        choice["finish_reason"] = json!(self.finish.as_str());
        choice["stop_reason"] = Value::Null;
        choice
    }
}

fn body_of(answers: &[Answer], face: Face, wanted: &Wanted, id: &str, created: u64) -> Value {
    let output: u32 = answers.iter().map(Answer::output_tokens).sum();
    let object = if face == Face::Chat { "chat.completion" } else { "text_completion" };
    let choices: Vec<Value> = answers
        .iter()
        .enumerate()
        .map(|(index, answer)| answer.choice(face, index, wanted.logprobs))
        .collect();
    let usage = json!({
        "prompt_tokens": wanted.prompt_tokens,
        "total_tokens": wanted.prompt_tokens.saturating_add(output),
        "completion_tokens": output,
        "prompt_tokens_details": null,
    });
    json!({
        "id": id, "object": object, "created": created, "model": wanted.model, "choices": choices, "usage": usage,
    })
}
