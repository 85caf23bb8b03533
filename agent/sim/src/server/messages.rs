//! `/v1/messages` and its `count_tokens`: a chat in Anthropic's form (shape seen on 0.32 [run]).

use super::completions::{Answer, request_id};
use super::errors::{self, ENGINE_DEAD};
use super::events::{self, Chat, Ended, Events};
use super::openai::{self, Face, Message};
use super::state::{LoadGuard, Shared};
use crate::ipc::Finish;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    max_tokens: Option<i64>,
    temperature: Option<f64>,
    stream: Option<bool>,
}

impl Body {
    fn chat(self) -> openai::Body {
        openai::Body {
            model: self.model,
            messages: self.messages,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            stream: self.stream,
            ..openai::Body::default()
        }
    }
}

/// Reads a body, and refuses a model that is not served in this API's form.
fn read(shared: &Shared, headers: &HeaderMap, body: &[u8]) -> Result<Body, Box<Response>> {
    let body: Body = openai::parse(headers, body)?;
    if let Err(message) = openai::model(shared, body.model.as_deref()) {
        let error = json!({ "type": "error", "error": { "type": "NotFoundError", "message": message } });
        return Err(Box::new((StatusCode::NOT_FOUND, Json(error)).into_response()));
    }
    Ok(body)
}

pub(crate) async fn create(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let load = LoadGuard::enter(&shared);
    let body = match read(&shared, &headers, &body) {
        Ok(body) => body,
        Err(response) => return *response,
    };
    if body.max_tokens.is_none() {
        return errors::invalid("body.max_tokens", "missing", "Field required", "None");
    }
    let id = request_id(&shared, Face::Chat, &headers);
    let mut chat = match Chat::begin(&shared, &body.chat(), &id, load) {
        Ok(chat) => chat,
        Err(response) => return *response,
    };
    if chat.wanted.stream {
        return events::answer(|events| stream(chat, events));
    }
    let Some(answer) = Answer::whole(&mut chat.generation).await else {
        return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
    };
    let content = json!([{ "type": "text", "text": answer.text }]);
    Json(message(&chat, &content, Some(answer.finish), answer.output_tokens())).into_response()
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let wanted = read(&shared, &headers, &body).and_then(|body| {
        let chat = openai::Body { stream: None, ..body.chat() };
        openai::check(&shared, Face::Chat, &chat)
    });
    match wanted {
        Ok(wanted) => {
            let tokens = wanted.prompt_tokens;
            let context = json!({ "original_input_tokens": tokens });
            Json(json!({ "input_tokens": tokens, "context_management": context })).into_response()
        }
        Err(response) => *response,
    }
}

fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::Abort => "abort",
    }
}

fn message(chat: &Chat, content: &Value, finish: Option<Finish>, tokens: u32) -> Value {
    json!({
        "id": chat.id, "type": "message", "role": "assistant", "content": content, "model": chat.wanted.model,
        "stop_reason": finish.map(stop_reason),
        "usage": { "input_tokens": chat.wanted.prompt_tokens, "output_tokens": tokens },
    })
}

async fn stream(mut chat: Chat, events: Events) {
    let start = json!({ "message": message(&chat, &json!([]), None, 0) });
    let block = json!({ "index": 0, "content_block": { "type": "text", "text": "" } });
    for (kind, data) in [("message_start", start), ("content_block_start", block)] {
        if !events.send(kind, data).await {
            return;
        }
    }
    let delta = |text: &str| json!({ "index": 0, "delta": { "type": "text_delta", "text": text } });
    let ended = events::pass_on(&mut chat.generation, &events, "content_block_delta", delta).await;
    let Ended::Whole(_, tokens, finish) = ended else { return };
    let usage = json!({ "input_tokens": chat.wanted.prompt_tokens, "output_tokens": tokens });
    let end =
        json!({ "delta": { "stop_reason": stop_reason(finish), "stop_sequence": null }, "usage": usage });
    for (kind, data) in
        [("content_block_stop", json!({ "index": 0 })), ("message_delta", end), ("message_stop", json!({}))]
    {
        if !events.send(kind, data).await {
            return;
        }
    }
    drop(chat.load);
}
