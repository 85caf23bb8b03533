//! One streamed request, timed.

use crate::error::Error;
use crate::stream;
use crate::target::{Api, Target};
use serde_json::json;
use std::time::Duration;

/// What to ask.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeSpec {
    /// Which route.
    pub api: Api,
    /// The prompt, or the user's message.
    pub prompt: String,
    /// `max_tokens`.
    pub max_tokens: u32,
    /// Go on past an end-of-sequence token, so that exactly `max_tokens` come.
    pub ignore_eos: bool,
    /// Ask for each token's id and log-probability, and keep them and the text.
    pub detail: bool,
    /// From sending to `[DONE]`.
    pub deadline: Duration,
}

impl ProbeSpec {
    /// The smallest proof that an engine answers: one token.
    pub fn one_token(prompt: &str, deadline: Duration) -> Self {
        ProbeSpec {
            api: Api::Completions,
            prompt: prompt.to_owned(),
            max_tokens: 1,
            ignore_eos: true,
            detail: false,
            deadline,
        }
    }

    /// The request's body. Always greedy and seeded: whoever measures wants the same work every time.
    ///
    /// Fields that a release does not know are ignored by vLLM, so `return_token_ids` (≥ 0.10.2) needs no check.
    pub(crate) fn body(&self, model: &str) -> Vec<u8> {
        let mut body = json!({
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "seed": 0,
            "ignore_eos": self.ignore_eos,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        match self.api {
            Api::Completions => body["prompt"] = json!(self.prompt),
            Api::Chat => body["messages"] = json!([{ "role": "user", "content": self.prompt }]),
        }
        if self.detail {
            body["return_token_ids"] = json!(true);
            // A number on the one route, a switch on the other.
            body["logprobs"] = match self.api {
                Api::Completions => json!(1),
                Api::Chat => json!(true),
            };
        }
        body.to_string().into_bytes()
    }
}

/// One token of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// Its id in the vocabulary, where the engine tells it (vLLM ≥ 0.10.2).
    pub id: Option<u32>,
    /// Its text, as the log-probabilities list it; may be empty.
    pub text: String,
    /// Its log-probability, where the engine told it.
    pub logprob: Option<f64>,
}

/// One request's measurement. Instants are monotonic nanoseconds ([`crate::clock::now`]).
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// When it was handed to the connection.
    pub sent: u64,
    /// When the first chunk with output arrived.
    pub first_token: Option<u64>,
    /// When `[DONE]` arrived, or when it failed.
    pub ended: u64,
    /// `usage.completion_tokens`.
    pub output_tokens: Option<u32>,
    /// `usage.prompt_tokens`.
    pub prompt_tokens: Option<u32>,
    /// The text, where detail was asked for.
    pub text: String,
    /// The tokens, where detail was asked for and the engine gave them.
    pub tokens: Vec<Token>,
    /// Why the engine ended it.
    pub finish_reason: Option<String>,
    /// Why it is not a success; `None` is a complete stream.
    pub error: Option<Error>,
}

impl Timed {
    /// Whether the stream was complete.
    pub fn ok(&self) -> bool {
        self.error.is_none()
    }
}

/// Streams one request to its end or its deadline. Dropping the future drops the connection, which ends the request in
/// the engine.
pub async fn probe(target: &Target, spec: &ProbeSpec) -> Timed {
    let run = stream::run(target, spec.api, spec.body(&target.model), spec.detail, spec.deadline).await;
    Timed {
        sent: run.sent,
        first_token: run.seen.first_token,
        ended: run.ended,
        output_tokens: run.seen.output_tokens,
        prompt_tokens: run.seen.prompt_tokens,
        text: run.seen.text,
        tokens: run.seen.tokens,
        finish_reason: run.seen.finish_reason,
        error: run.error,
    }
}
