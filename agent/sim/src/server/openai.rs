//! Requests of the two completion routes, read and checked.

use super::errors;
use super::state::Shared;
use crate::ipc::NewRequest;
use crate::tokens::{count_words, hash_text, mix};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

/// Which of the two routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    Completion,
    Chat,
}

/// The fields that matter here; others are accepted and ignored.
#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    #[serde(default)]
    prompt: Value,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    temperature: Option<f64>,
    seed: Option<i64>,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    logprobs: Value,
    n: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Value,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) model: String,
    pub(crate) prompt_tokens: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    prompt_hash: u64,
    chain: u64,
    max_tokens: u32,
    ignore_eos: bool,
}

impl Wanted {
    pub(crate) fn to_core(&self, id: u64) -> NewRequest {
        NewRequest {
            id,
            prompt_tokens: self.prompt_tokens,
            prompt_hash: self.prompt_hash,
            chain: self.chain,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
        }
    }
}

fn bad(message: &str, param: Option<&str>) -> Box<Response> {
    Box::new(errors::openai(StatusCode::BAD_REQUEST, message, param))
}

/// What FastAPI refuses before vLLM sees it.
fn invalid(message: &str) -> Box<Response> {
    Box::new(errors::validation(message))
}

/// Reads and checks a body, in vLLM's order: content type, JSON, model, parameters, length.
pub(crate) fn read(
    shared: &Shared,
    face: Face,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Wanted, Box<Response>> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if media.split(';').next().is_none_or(|m| m.trim().to_lowercase() != "application/json") {
        return Err(invalid("Unsupported Media Type: Only 'application/json' is allowed"));
    }
    let body: Body = serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))?;
    let settings = &shared.settings;
    let model = body.model.clone().unwrap_or_else(|| settings.model_name.clone());
    if !settings.serves(&model) {
        let message = format!("The model `{model}` does not exist.");
        return Err(Box::new(errors::openai(StatusCode::NOT_FOUND, &message, Some("model"))));
    }
    if body.n.is_some_and(|n| n != 1) {
        return Err(bad("n must be 1: parallel sampling is not simulated", Some("n")));
    }
    if body.temperature.is_some_and(|t| !t.is_finite() || t < 0.0) {
        return Err(bad("temperature must be non-negative", Some("temperature")));
    }
    if body.stream_options.is_some() && !body.stream.unwrap_or(false) {
        return Err(invalid("Stream options can only be defined when `stream=True`."));
    }
    let (text, prompt_tokens) = match face {
        Face::Completion => completion_prompt(&body.prompt, settings.engine.completion_overhead_tokens)?,
        Face::Chat => chat_prompt(body.messages.as_deref(), settings.engine.chat_overhead_tokens)?,
    };
    let room = settings.max_model_len.saturating_sub(prompt_tokens);
    if room == 0 {
        return Err(too_long(settings.max_model_len, prompt_tokens, 0));
    }
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let max_tokens = match (asked, face) {
        (Some(n), _) if n < 1 => {
            return Err(bad(&format!("max_tokens must be at least 1, got {n}."), Some("max_tokens")));
        }
        (Some(n), _) => u32::try_from(n).unwrap_or(u32::MAX),
        (None, Face::Completion) => 16.min(room),
        (None, Face::Chat) => room,
    };
    if max_tokens > room {
        return Err(too_long(settings.max_model_len, prompt_tokens, max_tokens));
    }
    let prompt_hash = hash_text(&text);
    // vLLM's default temperature is 1: without a seed no two answers are alike.
    let chain = match (body.temperature.unwrap_or(1.0) == 0.0, body.seed) {
        (true, _) => prompt_hash,
        (false, Some(seed)) => mix(prompt_hash, seed.cast_unsigned()),
        (false, None) => mix(prompt_hash, shared.nonce ^ crate::clock::now_ns()),
    };
    Ok(Wanted {
        model,
        prompt_tokens,
        stream: body.stream.unwrap_or(false),
        include_usage: body.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
        logprobs: !matches!(body.logprobs, Value::Null | Value::Bool(false)),
        prompt_hash,
        chain,
        max_tokens,
        ignore_eos: body.ignore_eos,
    })
}

fn too_long(limit: u32, prompt: u32, output: u32) -> Box<Response> {
    let message = format!(
        "This model's maximum context length is {limit} tokens. However, you requested {output} output tokens and \
         your prompt contains {prompt} input tokens, for a total of {} tokens. Please reduce the length of the input \
         prompt or the number of requested output tokens.",
        prompt.saturating_add(output)
    );
    bad(&message, Some("input_tokens"))
}

/// A string, one string in a list, or token ids.
fn completion_prompt(prompt: &Value, overhead: u32) -> Result<(String, u32), Box<Response>> {
    let prompt = match prompt {
        Value::Array(items) if items.len() == 1 && !items[0].is_number() => &items[0],
        other => other,
    };
    let (text, tokens) = match prompt {
        Value::String(text) => (text.clone(), count_words(text).saturating_add(overhead)),
        Value::Array(ids) if !ids.is_empty() && ids.iter().all(Value::is_u64) => {
            (prompt.to_string(), u32::try_from(ids.len()).unwrap_or(u32::MAX))
        }
        Value::Array(_) => {
            return Err(bad("one prompt a request: a string or a list of token ids", Some("prompt")));
        }
        _ => return Err(invalid("prompt: Field required")),
    };
    if tokens == 0 {
        return Err(bad("The decoder prompt cannot be empty", Some("prompt")));
    }
    Ok((text, tokens))
}

/// Roles and texts; the template's tokens come on top.
fn chat_prompt(messages: Option<&[Message]>, overhead: u32) -> Result<(String, u32), Box<Response>> {
    let Some(messages) = messages.filter(|m| !m.is_empty()) else {
        return Err(invalid("messages: Field required"));
    };
    let mut text = String::new();
    let mut tokens = overhead;
    for message in messages {
        let content = match &message.content {
            Value::String(content) => content.clone(),
            Value::Array(parts) => {
                parts.iter().filter_map(|p| p.get("text")?.as_str()).collect::<Vec<_>>().join(" ")
            }
            Value::Null => String::new(),
            _ => return Err(bad("content must be a string or a list of parts", Some("messages"))),
        };
        tokens = tokens.saturating_add(count_words(&content));
        text.push_str(&format!("<{}>{content}\n", message.role));
    }
    Ok((text, tokens))
}
