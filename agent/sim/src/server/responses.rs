//! `/v1/responses`: a chat in OpenAI's newer form (shape seen on 0.32 [run]).

use super::completions::Answer;
use super::errors::{self, ENGINE_DEAD};
use super::events::{self, Chat, Ended, Events};
use super::openai::{self, Message};
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
    #[serde(default)]
    input: Value,
    max_output_tokens: Option<i64>,
    temperature: Option<f64>,
    stream: Option<bool>,
}

pub(crate) async fn create(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let load = LoadGuard::enter(&shared);
    let body: Body = match openai::parse(&headers, &body) {
        Ok(body) => body,
        Err(response) => return *response,
    };
    if body.input.is_null() {
        return errors::invalid("body.input", "missing", "Field required", "None");
    }
    let content = match &body.input {
        Value::Array(items) => {
            items.iter().filter_map(|i| i["content"].as_str()).collect::<Vec<_>>().join(" ").into()
        }
        other => other.clone(),
    };
    let chat = openai::Body {
        model: body.model,
        messages: Some(vec![Message { role: "user".to_owned(), content }]),
        max_tokens: body.max_output_tokens,
        temperature: body.temperature,
        stream: body.stream,
        ..openai::Body::default()
    };
    let id = format!("{:016x}", crate::tokens::mix(shared.nonce, crate::clock::now_ns()));
    let mut chat = match Chat::begin(&shared, &chat, &format!("resp_{id}"), load) {
        Ok(chat) => chat,
        Err(response) => return *response,
    };
    if chat.wanted.stream {
        return events::answer(|events| stream(chat, events));
    }
    let Some(answer) = Answer::whole(&mut chat.generation).await else {
        return errors::openai(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
    };
    let output = json!([item(&chat, &answer.text)]);
    Json(response(&chat, Some((answer.finish, answer.output_tokens())), &output)).into_response()
}

/// The response object; `ended` is the reason and the tokens.
fn response(chat: &Chat, ended: Option<(Finish, u32)>, output: &Value) -> Value {
    let prompt = chat.wanted.prompt_tokens;
    let usage = ended.map(|(_, tokens)| {
        json!({ "input_tokens": prompt, "output_tokens": tokens, "total_tokens": prompt + tokens })
    });
    let (status, reason) = match ended {
        None => ("in_progress", Value::Null),
        Some((Finish::Length, _)) => ("incomplete", json!({ "reason": "max_output_tokens" })),
        Some(_) => ("completed", Value::Null),
    };
    json!({
        "id": chat.id, "object": "response", "model": chat.wanted.model, "status": status,
        "incomplete_details": reason, "output": output, "usage": usage,
    })
}

fn item(chat: &Chat, text: &str) -> Value {
    json!({
        "id": chat.id.replace("resp_", "msg_"), "type": "message", "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": null }],
    })
}

async fn stream(mut chat: Chat, events: Events) {
    let mut sequence = 0;
    let mut numbered = |mut data: Value| {
        data["sequence_number"] = json!(sequence);
        sequence += 1;
        data
    };
    let begun = json!({ "response": response(&chat, None, &json!([])) });
    for kind in ["response.created", "response.in_progress"] {
        if !events.send(kind, numbered(begun.clone())).await {
            return;
        }
    }
    let delta = |text: &str| json!({ "delta": text, "output_index": 0, "content_index": 0 });
    let ended = events::pass_on(&mut chat.generation, &events, "response.output_text.delta", delta).await;
    let Ended::Whole(text, tokens, finish) = ended else { return };
    let output = json!([item(&chat, &text)]);
    let done = json!({ "response": response(&chat, Some((finish, tokens)), &output) });
    // The last one: whether somebody reads it is all the same.
    events.send("response.completed", numbered(done)).await;
    drop(chat.load);
}
