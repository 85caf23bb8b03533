//! Requests of the inference routes, read and checked.

use super::errors;
use super::state::Shared;
use crate::args::Settings;
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

/// vLLM's `--max-logprobs`.
const MAX_LOGPROBS: i64 = 20;

/// The fields that matter here; others are accepted and ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Body {
    pub(crate) model: Option<String>,
    #[serde(default)]
    pub(crate) prompt: Value,
    pub(crate) messages: Option<Vec<Message>>,
    pub(crate) max_tokens: Option<i64>,
    pub(crate) max_completion_tokens: Option<i64>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) seed: Option<i64>,
    #[serde(default)]
    pub(crate) ignore_eos: bool,
    #[serde(default)]
    pub(crate) logprobs: Value,
    pub(crate) n: Option<i64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    #[serde(default)]
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Value,
}

/// One answer that a request asks for: a prompt, or one of several answers to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    /// Which prompt of the request.
    pub(crate) prompt: usize,
    prompt_tokens: u32,
    prompt_hash: u64,
    chain: u64,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) model: String,
    /// Of each prompt once.
    pub(crate) prompt_tokens: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) logprobs: bool,
    /// In the order of their indices; at least one.
    pub(crate) choices: Vec<Choice>,
    max_tokens: u32,
    ignore_eos: bool,
}

impl Wanted {
    pub(crate) fn to_core(&self, choice: Choice, id: u64) -> NewRequest {
        NewRequest {
            id,
            prompt_tokens: choice.prompt_tokens,
            prompt_hash: choice.prompt_hash,
            chain: choice.chain,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
        }
    }
}

fn bad(message: &str, param: Option<&str>) -> Box<Response> {
    Box::new(errors::openai(StatusCode::BAD_REQUEST, message, param))
}

/// A refusal that names a parameter and its value, in vLLM's words.
fn wrong(what: &str, param: &str, value: &str) -> Box<Response> {
    bad(&format!("{what} (parameter={param}, value={value})"), Some(param))
}

/// What FastAPI refuses before vLLM sees it: content type, JSON, types.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, Box<Response>> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if media.split(';').next().is_none_or(|m| m.trim().to_lowercase() != "application/json") {
        return Err(Box::new(errors::validation(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
        )));
    }
    let invalid =
        |place: &str, kind: &str, sentence: &str| Box::new(errors::invalid(place, kind, sentence, "None"));
    if body.is_empty() {
        return Err(invalid("body", "missing", "Field required"));
    }
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| invalid(&format!("body.{}", error.column()), "json_invalid", "JSON decode error"))?;
    let Some(fields) = body.as_object() else {
        let sentence = "Input should be a valid dictionary or object to extract fields from";
        return Err(invalid("body", "model_attributes_type", sentence));
    };
    for (field, value) in fields {
        check_type(field, value)?;
    }
    serde_json::from_value(body).map_err(|error| Box::new(errors::validation(&error.to_string())))
}

/// The types of the fields that are read.
fn check_type(field: &str, value: &Value) -> Result<(), Box<Response>> {
    let (fits, kind, sentence) = match field {
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "n" | "seed" => (
            value.is_i64(),
            "int_parsing",
            "Input should be a valid integer, unable to parse string as an integer",
        ),
        "temperature" | "top_p" => (
            value.is_number(),
            "float_parsing",
            "Input should be a valid number, unable to parse string as a number",
        ),
        "messages" => (value.is_array(), "list_type", "Input should be a valid list"),
        "model" => (value.is_string(), "string_type", "Input should be a valid string"),
        "stream" | "ignore_eos" => {
            (value.is_boolean(), "bool_parsing", "Input should be a valid boolean, unable to interpret input")
        }
        _ => return Ok(()),
    };
    if fits || value.is_null() {
        return Ok(());
    }
    let given = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Err(Box::new(errors::invalid(&format!("body.{field}"), kind, sentence, &given)))
}

/// 404 for a model that is not served.
pub(crate) fn model(shared: &Shared, asked: Option<&str>) -> Result<String, String> {
    let settings = &shared.settings;
    match asked {
        None | Some("") => Ok(settings.model_name.clone()),
        Some(model) if settings.serves(model) => Ok(model.to_owned()),
        Some(model) => {
            Err(format!("The model `{model}` does not exist. Valid aliases: {}.", settings.served.join(", ")))
        }
    }
}

/// Checks a body, in vLLM's order: model, parameters, length.
pub(crate) fn check(shared: &Shared, face: Face, body: &Body) -> Result<Wanted, Box<Response>> {
    let settings = &shared.settings;
    if face == Face::Chat && body.messages.is_none() {
        return Err(Box::new(errors::invalid("body.messages", "missing", "Field required", "None")));
    }
    if body.stream_options.is_some() && !body.stream.unwrap_or(false) {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        return Err(bad(message, Some("stream_options")));
    }
    let model = model(shared, body.model.as_deref())
        .map_err(|message| Box::new(errors::openai(StatusCode::NOT_FOUND, &message, Some("model"))))?;
    let prompts = match face {
        Face::Completion => completion_prompts(&body.prompt, settings.engine.completion_overhead_tokens)?,
        Face::Chat => vec![chat_prompt(body.messages.as_deref(), settings.engine.chat_overhead_tokens)?],
    };
    let is_greedy = body.temperature == Some(0.0);
    match body.n.unwrap_or(1) {
        n if n < 1 => return Err(bad(&format!("n must be at least 1, got {n}."), None)),
        n if n > 1 && is_greedy => {
            return Err(bad(&format!("n must be 1 when using greedy sampling, got {n}."), None));
        }
        _ => {}
    }
    if let Some(t) = body.temperature.filter(|t| !t.is_finite() || *t < 0.0) {
        let what = format!("temperature must be non-negative, got {t:?}.");
        return Err(wrong(&what, "temperature", &format!("{t:?}")));
    }
    if let Some(p) = body.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
        return Err(wrong(&format!("top_p must be in (0, 1], got {p:?}."), "top_p", &format!("{p:?}")));
    }
    if let Some(count) = body.logprobs.as_i64().filter(|count| *count > MAX_LOGPROBS) {
        let what = format!(
            "Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
        );
        return Err(wrong(&what, "logprobs", &count.to_string()));
    }
    let longest = prompts.iter().map(|p| p.tokens).max().unwrap_or(0);
    let max_tokens = max_tokens(settings, longest, body, face)?;
    let mut choices = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        let prompt_hash = hash_text(&prompt.text);
        for index in 0..u64::try_from(body.n.unwrap_or(1)).unwrap_or(1) {
            // vLLM's default temperature is 1: without a seed no two answers are alike.
            let chain = match (is_greedy, body.seed) {
                (true, _) => prompt_hash,
                (false, Some(seed)) => mix(prompt_hash, seed.cast_unsigned().wrapping_add(index)),
                (false, None) => mix(prompt_hash, mix(shared.nonce ^ crate::clock::now_ns(), index)),
            };
            choices.push(Choice { prompt: at, prompt_tokens: prompt.tokens, prompt_hash, chain });
        }
    }
    Ok(Wanted {
        model,
        prompt_tokens: prompts.iter().map(|p| p.tokens).sum(),
        stream: body.stream.unwrap_or(false),
        include_usage: body.stream_options.as_ref().and_then(|o| o.include_usage).unwrap_or(false),
        logprobs: !matches!(body.logprobs, Value::Null | Value::Bool(false)),
        choices,
        max_tokens,
        ignore_eos: body.ignore_eos,
    })
}

fn max_tokens(settings: &Settings, prompt: u32, body: &Body, face: Face) -> Result<u32, Box<Response>> {
    let limit = settings.max_model_len;
    let room = limit.saturating_sub(prompt);
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let max_tokens = match (asked, face) {
        (Some(n), _) if n < 1 => {
            return Err(wrong(
                &format!("max_tokens must be at least 1, got {n}."),
                "max_tokens",
                &n.to_string(),
            ));
        }
        (Some(n), _) if n > i64::from(limit) => {
            let message = format!(
                "max_tokens={n} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
            );
            return Err(wrong(&message, "max_tokens", &n.to_string()));
        }
        (Some(n), _) => u32::try_from(n).unwrap_or(u32::MAX),
        (None, Face::Completion) => 16.min(room),
        (None, Face::Chat) => room,
    };
    if room > 0 && settings.args.version.clips_max_tokens() {
        return Ok(max_tokens.min(room));
    }
    if room == 0 || max_tokens > room {
        return Err(too_long(limit, prompt, max_tokens));
    }
    Ok(max_tokens)
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

/// A prompt's text, or what stands for it, and its length.
struct Prompt {
    text: String,
    tokens: u32,
}

/// A string, token ids, or a list of either.
fn completion_prompts(prompt: &Value, overhead: u32) -> Result<Vec<Prompt>, Box<Response>> {
    match prompt {
        Value::Array(items) if items.is_empty() => Err(bad("You must pass at least one prompt", None)),
        Value::Array(items) if !items.iter().all(Value::is_u64) => {
            items.iter().map(|item| one_prompt(item, overhead)).collect()
        }
        one => Ok(vec![one_prompt(one, overhead)?]),
    }
}

fn one_prompt(prompt: &Value, overhead: u32) -> Result<Prompt, Box<Response>> {
    let (text, tokens) = match prompt {
        Value::String(text) if !text.is_empty() => (text.clone(), count_words(text).saturating_add(overhead)),
        Value::Array(ids) if !ids.is_empty() && ids.iter().all(Value::is_u64) => {
            (prompt.to_string(), u32::try_from(ids.len()).unwrap_or(u32::MAX))
        }
        Value::Null | Value::String(_) => {
            let message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
            return Err(bad(message, Some("prompt")));
        }
        other => {
            let sentence = "Input should be a valid string";
            return Err(Box::new(errors::invalid(
                "body.prompt",
                "string_type",
                sentence,
                &other.to_string(),
            )));
        }
    };
    if tokens == 0 {
        return Err(bad("The decoder prompt cannot be empty", Some("prompt")));
    }
    Ok(Prompt { text, tokens })
}

/// Roles and texts; the template's tokens come on top.
fn chat_prompt(messages: Option<&[Message]>, overhead: u32) -> Result<Prompt, Box<Response>> {
    let Some(messages) = messages.filter(|m| !m.is_empty()) else {
        let message = "Cannot apply chat template to an empty conversation. Provide at least one message.";
        return Err(bad(message, None));
    };
    let mut prompt = Prompt { text: String::new(), tokens: overhead };
    for message in messages {
        let content = match &message.content {
            Value::String(content) => content.clone(),
            Value::Array(parts) => {
                parts.iter().filter_map(|p| p.get("text")?.as_str()).collect::<Vec<_>>().join(" ")
            }
            Value::Null => String::new(),
            _ => return Err(bad("content must be a string or a list of parts", Some("messages"))),
        };
        prompt.tokens = prompt.tokens.saturating_add(count_words(&content));
        prompt.text.push_str(&format!("<{}>{content}\n", message.role));
    }
    Ok(prompt)
}
