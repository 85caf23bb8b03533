//! Reading one completion stream: from events to "first token", "last token", "why it ended".
//!
//! At full speed thousands of chunks a second pass through here, on cores that the engines need too, so a chunk is
//! parsed into a few borrowed fields and never into a JSON tree; text and tokens are built only for those who asked.
//!
//! **What counts as output.** Not "the first non-empty text": a token may decode to nothing (special tokens, half of a
//! character), and real vLLM then sends a chunk whose `text` is empty. vLLM sends no chunk without a token, but for two:
//! the chat route's first one, which carries the role alone, and the last one of an aborted request. Chunks are not
//! counted as tokens either: a server that is faster than its reader puts several tokens into one. Counts come from
//! `usage`.

use crate::clock::now;
use crate::error::{Error, cause, shorten, words};
use crate::probe::Token;
use crate::sse::Parser;
use crate::target::{Api, Target};
use serde::de::{Deserializer, IgnoredAny, Visitor};
use serde::{Deserialize, de};
use std::fmt;
use std::time::Duration;

/// The largest error body that is read, in bytes.
const ERROR_BODY: usize = 64 << 10;

/// How long the end of the body is waited for after `[DONE]`, so that the connection can be used again.
const BODY_END: Duration = Duration::from_secs(1);

/// What a stream has told so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) first_token: Option<u64>,
    pub(crate) done: Option<u64>,
    pub(crate) chunks: u64,
    pub(crate) output_tokens: Option<u32>,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    error: Option<Error>,
}

/// One request's instants and what came.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) sent: u64,
    pub(crate) ended: u64,
    pub(crate) seen: Seen,
    pub(crate) error: Option<Error>,
}

/// Sends `body` and reads the stream to its end, or to `deadline`.
pub(crate) async fn run(target: &Target, api: Api, body: Vec<u8>, detail: bool, deadline: Duration) -> Run {
    let mut seen = Seen::default();
    let mut rest = None;
    let sent = now();
    let outcome = tokio::time::timeout(deadline, read(target, api, body, detail, &mut seen, &mut rest)).await;
    let error = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(e)) => Some(e),
        Err(_) => Some(Error::Timeout { after: deadline, first_token: seen.first_token.is_some() }),
    };
    let ended = seen.done.unwrap_or_else(now);
    if let Some(mut response) = rest {
        let end = async { while let Ok(Some(_)) = response.chunk().await {} };
        // A server that does not end its body only costs the connection.
        let _ = tokio::time::timeout(BODY_END, end).await;
    }
    Run { sent, ended, seen, error }
}

async fn read(
    target: &Target,
    api: Api,
    body: Vec<u8>,
    detail: bool,
    seen: &mut Seen,
    rest: &mut Option<reqwest::Response>,
) -> Result<(), Error> {
    let url = format!("{}{}", target.base, api.path());
    let mut request = target.client.post(&url).header("content-type", "application/json").body(body);
    if let Some(key) = &target.api_key {
        request = request.bearer_auth(key);
    }
    let mut response =
        request.send().await.map_err(|e| Error::Connect { url: url.clone(), reason: cause(&e) })?;
    let status = response.status().as_u16();
    if status != 200 {
        let mut body = Vec::new();
        while body.len() < ERROR_BODY
            && let Ok(Some(chunk)) = response.chunk().await
        {
            body.extend_from_slice(&chunk);
        }
        return Err(Error::Http { url, status, message: words(&body) });
    }
    let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or("none");
    if !kind.starts_with("text/event-stream") {
        return Err(Error::Stream { message: format!("not an event stream but content type {kind}") });
    }
    let mut parser = Parser::default();
    while seen.done.is_none() {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Err(seen.truncated("the connection closed before [DONE]")),
            Err(e) => return Err(seen.truncated(&cause(&e))),
        };
        let at = now();
        parser
            .feed(&chunk, |event| seen.take(event.data, api, detail, at))
            .map_err(|e| Error::Stream { message: e.to_string() })?;
        if let Some(e) = seen.error.take() {
            return Err(e);
        }
    }
    *rest = Some(response);
    match seen.finish_reason.as_deref() {
        None => Err(seen.truncated("[DONE] without a finish reason")),
        Some("abort") => Err(Error::Aborted),
        Some("error") => Err(Error::Stream { message: "finish_reason \"error\"".to_owned() }),
        Some(_) => Ok(()),
    }
}

impl Seen {
    fn truncated(&self, missing: &str) -> Error {
        Error::Truncated { chunks: self.chunks, missing: missing.to_owned() }
    }

    fn take(&mut self, data: &[u8], api: Api, detail: bool, at: u64) {
        if self.done.is_some() || self.error.is_some() {
            return;
        }
        if data == b"[DONE]" {
            self.done = Some(at);
            return;
        }
        let taken = if detail {
            serde_json::from_slice::<Chunk<Full>>(data).map(|chunk| {
                for choice in chunk.choices.iter().flatten() {
                    self.keep(choice);
                }
                self.count(&chunk, api, at)
            })
        } else {
            serde_json::from_slice::<Chunk<Light>>(data).map(|chunk| self.count(&chunk, api, at))
        };
        match taken {
            Ok(true) => {}
            Ok(false) => self.error = Some(Error::Stream { message: words(data) }),
            Err(e) => {
                let message =
                    format!("a chunk that is not one ({e}): {}", shorten(&String::from_utf8_lossy(data)));
                self.error = Some(Error::Stream { message });
            }
        }
    }

    /// Whether the chunk was one of a completion; if not, its text is an error's.
    fn count<C: Choice>(&mut self, chunk: &Chunk<C>, api: Api, at: u64) -> bool {
        if chunk.error.is_some() || (chunk.choices.is_none() && chunk.usage.is_none()) {
            return false;
        }
        if let Some(usage) = &chunk.usage {
            self.output_tokens = usage.completion_tokens.or(self.output_tokens);
            self.prompt_tokens = usage.prompt_tokens.or(self.prompt_tokens);
        }
        for choice in chunk.choices.iter().flatten() {
            if choice.is_output(api) {
                self.chunks += 1;
                self.first_token.get_or_insert(at);
            }
            if let Some(reason) = choice.finish_reason() {
                self.finish_reason = Some(reason.to_owned());
            }
        }
        true
    }

    fn keep(&mut self, choice: &Full) {
        let text = choice.text.as_deref().or(choice.delta.as_ref().and_then(|d| d.content.as_deref()));
        self.text.push_str(text.unwrap_or_default());
        let ids = choice.token_ids.as_deref().unwrap_or_default();
        let logprobs = choice.logprobs.as_ref();
        let named: Vec<(String, Option<f64>)> = match logprobs {
            Some(Logprobs { content: Some(content), .. }) => {
                content.iter().map(|t| (t.token.clone(), t.logprob)).collect()
            }
            Some(Logprobs { tokens: Some(tokens), token_logprobs, .. }) => {
                let values = token_logprobs.as_deref().unwrap_or_default();
                let value = |i: usize| values.get(i).copied().flatten();
                tokens.iter().enumerate().map(|(i, t)| (t.clone(), value(i))).collect()
            }
            _ => Vec::new(),
        };
        for i in 0..ids.len().max(named.len()) {
            let (text, logprob) = named.get(i).cloned().unwrap_or_default();
            self.tokens.push(Token { id: ids.get(i).copied(), text, logprob });
        }
    }
}

#[derive(Deserialize)]
struct Chunk<C> {
    #[serde(default = "Option::default")]
    choices: Option<Vec<C>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u32>,
    prompt_tokens: Option<u32>,
}

trait Choice {
    fn finish_reason(&self) -> Option<&str>;
    /// Text, or token ids.
    fn has_content(&self) -> bool;
    fn has_role(&self) -> bool;

    fn is_output(&self, api: Api) -> bool {
        self.has_content()
            || match (self.finish_reason(), api) {
                (Some("abort" | "error"), _) => false,
                (Some(_), _) | (None, Api::Completions) => true,
                (None, Api::Chat) => !self.has_role(),
            }
    }
}

/// Only what timing needs.
#[derive(Deserialize)]
struct Light {
    #[serde(default)]
    text: Filled,
    delta: Option<LightDelta>,
    finish_reason: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct LightDelta {
    #[serde(default)]
    role: Filled,
    #[serde(default)]
    content: Filled,
}

impl Choice for Light {
    fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }
    fn has_content(&self) -> bool {
        self.text.0
            || self.delta.as_ref().is_some_and(|d| d.content.0)
            || self.token_ids.as_ref().is_some_and(|ids| !ids.is_empty())
    }
    fn has_role(&self) -> bool {
        self.delta.as_ref().is_some_and(|d| d.role.0)
    }
}

/// Text and tokens too.
#[derive(Deserialize)]
struct Full {
    text: Option<String>,
    delta: Option<FullDelta>,
    finish_reason: Option<String>,
    token_ids: Option<Vec<u32>>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct FullDelta {
    role: Option<String>,
    content: Option<String>,
}

/// `/v1/completions` has parallel lists, `/v1/chat/completions` a list of objects.
#[derive(Deserialize)]
struct Logprobs {
    tokens: Option<Vec<String>>,
    token_logprobs: Option<Vec<Option<f64>>>,
    content: Option<Vec<ChatToken>>,
}

#[derive(Deserialize)]
struct ChatToken {
    token: String,
    logprob: Option<f64>,
}

impl Choice for Full {
    fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }
    fn has_content(&self) -> bool {
        let filled = |s: &Option<String>| s.as_ref().is_some_and(|s| !s.is_empty());
        filled(&self.text)
            || self.delta.as_ref().is_some_and(|d| filled(&d.content))
            || self.token_ids.as_ref().is_some_and(|ids| !ids.is_empty())
    }
    fn has_role(&self) -> bool {
        self.delta.as_ref().is_some_and(|d| d.role.is_some())
    }
}

/// Whether a string is there and not empty, without keeping it.
#[derive(Default)]
struct Filled(bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;
        impl<'de> Visitor<'de> for Look {
            type Value = Filled;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or null")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Filled, E> {
                Ok(Filled(!s.is_empty()))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Filled, E> {
                Ok(Filled(false))
            }
        }
        deserializer.deserialize_any(Look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds chunks as both readers see them; they must agree on everything but the tokens.
    fn seen(api: Api, chunks: &[&str]) -> Seen {
        let mut full = Seen::default();
        let mut light = Seen::default();
        for (at, chunk) in (1..).zip(chunks) {
            full.take(chunk.as_bytes(), api, true, at);
            light.take(chunk.as_bytes(), api, false, at);
        }
        assert_eq!(
            (full.first_token, full.done, full.chunks, full.output_tokens, &full.finish_reason, &full.error),
            (
                light.first_token,
                light.done,
                light.chunks,
                light.output_tokens,
                &light.finish_reason,
                &light.error
            ),
        );
        full
    }

    /// As vLLM 0.32.0 sent it: the first token decodes to nothing.
    #[test]
    fn a_token_without_text_is_a_first_token() {
        let s = seen(
            Api::Completions,
            &[
                r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"A","choices":[{"index":0,"text":"","logprobs":{"text_offset":[0],"token_logprobs":[-5.95197057723999],"tokens":[""],"top_logprobs":[{"":-5.95197057723999}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":[54,74],"token_ids":[142]}]}"#,
                r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"A","choices":[{"index":0,"text":"�ion","logprobs":{"text_offset":[0],"token_logprobs":[-6.025206565856934],"tokens":["ion"],"top_logprobs":[{"ion":-6.025206565856934}]},"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":[385]}]}"#,
                r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"A","choices":[],"usage":{"prompt_tokens":13,"total_tokens":15,"completion_tokens":2},"system_fingerprint":"vllm-0.32.0-7672327e"}"#,
                "[DONE]",
            ],
        );
        assert_eq!((s.first_token, s.done, s.chunks), (Some(1), Some(4), 2));
        assert_eq!((s.output_tokens, s.prompt_tokens), (Some(2), Some(13)));
        assert_eq!(s.text, "�ion");
        assert_eq!(
            s.tokens,
            [
                Token { id: Some(142), text: String::new(), logprob: Some(-5.95197057723999) },
                Token { id: Some(385), text: "ion".into(), logprob: Some(-6.025206565856934) },
            ]
        );
    }

    #[test]
    fn without_token_ids_an_empty_text_still_counts() {
        let s = seen(Api::Completions, &[r#"{"choices":[{"index":0,"text":"","finish_reason":"length"}]}"#]);
        assert_eq!(s.first_token, Some(1));
        assert!(s.tokens.is_empty());
    }

    #[test]
    fn the_chat_routes_role_is_no_token() {
        let s = seen(
            Api::Chat,
            &[
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[87]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":""},"logprobs":{"content":[{"token":"","logprob":-5.8,"bytes":[],"top_logprobs":[]}]},"finish_reason":null,"token_ids":[147]}]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-1.5,"bytes":[120],"top_logprobs":[]}]},"finish_reason":"length","stop_reason":null,"token_ids":[148]}]}"#,
            ],
        );
        assert_eq!((s.first_token, s.chunks), (Some(2), 2));
        assert_eq!(s.tokens[1], Token { id: Some(148), text: "x".into(), logprob: Some(-1.5) });
    }

    #[test]
    fn an_abort_before_the_first_token_has_none() {
        let s = seen(
            Api::Completions,
            &[r#"{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}"#, "[DONE]"],
        );
        assert_eq!((s.first_token, s.finish_reason.as_deref()), (None, Some("abort")));
    }

    #[test]
    fn several_tokens_may_come_in_one_chunk() {
        let s = seen(
            Api::Completions,
            &[
                r#"{"choices":[{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-0.5,null]},"finish_reason":null,"token_ids":[1,2]}]}"#,
            ],
        );
        assert_eq!(s.chunks, 1);
        assert_eq!(
            s.tokens.iter().map(|t| (t.id, t.logprob)).collect::<Vec<_>>(),
            [(Some(1), Some(-0.5)), (Some(2), None)]
        );
    }

    #[test]
    fn errors_inside_the_stream_keep_their_words() {
        for (chunk, expected) in [
            (
                r#"{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}"#,
                "EngineCore died",
            ),
            (r#"{"object":"error","message":"old shape","code":500}"#, "old shape"),
        ] {
            let s = seen(Api::Completions, &[chunk, "[DONE]"]);
            assert_eq!(s.error, Some(Error::Stream { message: expected.to_owned() }));
            assert_eq!(s.done, None, "what follows an error is not looked at");
        }
        let s = seen(Api::Completions, &["{nonsense"]);
        assert!(matches!(s.error, Some(Error::Stream { message }) if message.contains("{nonsense")));
    }
}
