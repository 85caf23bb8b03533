//! Streamed answers. All that does not change from chunk to chunk is written once; a token's chunk is a copy of it
//! around the token, and goes out as one write.

use super::errors::{self, ENGINE_DEAD};
use super::link::{Event, Generation};
use super::openai::{Face, Wanted};
use super::state::LoadGuard;
use crate::tokens::word;
use axum::body::Bytes;
use axum::http::StatusCode;
use futures_util::Stream;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

/// One choice on its way.
struct Choice {
    generation: Generation,
    /// `data: {"id":…,"choices":[{"index":0,`
    prefix: String,
    produced: u32,
    text_offset: usize,
    is_over: bool,
}

/// The chunks of one answer.
pub(crate) struct TokenStream {
    choices: Vec<Choice>,
    face: Face,
    wanted: Wanted,
    /// `data: {"id":…,`
    head: String,
    is_over: bool,
    _load: LoadGuard,
}

impl TokenStream {
    pub(crate) fn new(
        generations: Vec<Generation>,
        face: Face,
        wanted: Wanted,
        id: &str,
        created: u64,
        load: LoadGuard,
    ) -> Self {
        let object = match face {
            Face::Completion => "text_completion",
            Face::Chat => "chat.completion.chunk",
        };
        let model = serde_json::Value::from(wanted.model.as_str());
        let id = serde_json::Value::from(id);
        let head = format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},\"choices\":["
        );
        let choice = |(index, generation)| Choice {
            generation,
            prefix: format!("{head}{{\"index\":{index},"),
            produced: 0,
            text_offset: 0,
            is_over: false,
        };
        let choices = generations.into_iter().enumerate().map(choice).collect();
        TokenStream { choices, face, wanted, head, is_over: false, _load: load }
    }

    fn chunk(&mut self, index: usize, event: Event) -> String {
        let Some(choice) = self.choices.get_mut(index) else { return String::new() };
        let mut out = String::with_capacity(2 * choice.prefix.len() + 160);
        if self.face == Face::Chat && choice.produced == 0 {
            out.push_str(&choice.prefix);
            out.push_str("\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
            out.push_str("}\n\n");
        }
        let text = event.token.map_or("", |(token, _)| word(token));
        let gap = if text.is_empty() { "" } else { " " };
        out.push_str(&choice.prefix);
        // Writing to a string cannot fail.
        let _ = match self.face {
            Face::Completion => write!(out, "\"text\":\"{gap}{text}\",\"logprobs\":"),
            Face::Chat => write!(out, "\"delta\":{{\"content\":\"{gap}{text}\"}},\"logprobs\":"),
        };
        match event.token {
            Some((_, logprob)) if self.wanted.logprobs => {
                out.push_str(&logprob_json(self.face, text, logprob, choice.text_offset));
            }
            _ => out.push_str("null"),
        }
        match event.finish {
            Some(finish) => {
                let _ = write!(out, ",\"finish_reason\":\"{}\",\"stop_reason\":null}}]", finish.as_str());
            }
            None => out.push_str(",\"finish_reason\":null}]"),
        }
        choice.produced += u32::from(event.token.is_some());
        choice.text_offset += gap.len() + text.len();
        choice.is_over = event.finish.is_some();
        out.push_str("}\n\n");
        if self.choices.iter().all(|choice| choice.is_over) {
            if self.wanted.include_usage {
                out.push_str(&self.head);
                out.push(']');
                self.usage(&mut out);
                out.push_str("}\n\n");
            }
            out.push_str("data: [DONE]\n\n");
            self.is_over = true;
        }
        out
    }

    /// The last event's usage.
    fn usage(&self, out: &mut String) {
        let output: u32 = self.choices.iter().map(|choice| choice.produced).sum();
        let prompt = self.wanted.prompt_tokens;
        let total = prompt + output;
        let _ = write!(
            out,
            ",\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{output}}}"
        );
    }
}

/// The `logprobs` object of one token, streamed.
fn logprob_json(face: Face, text: &str, logprob: f64, offset: usize) -> String {
    match face {
        Face::Completion => format!(
            "{{\"text_offset\":[{offset}],\"token_logprobs\":[{logprob}],\"tokens\":[\" {text}\"],\
             \"top_logprobs\":[{{\" {text}\":{logprob}}}]}}"
        ),
        Face::Chat => {
            let bytes: Vec<u8> = std::iter::once(b' ').chain(text.bytes()).collect();
            format!(
                "{{\"content\":[{{\"token\":\" {text}\",\"logprob\":{logprob},\"bytes\":{bytes:?},\
                 \"top_logprobs\":[]}}]}}"
            )
        }
    }
}

impl Stream for TokenStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        if stream.is_over {
            return Poll::Ready(None);
        }
        for index in 0..stream.choices.len() {
            let choice = &mut stream.choices[index];
            if choice.is_over {
                continue;
            }
            let Poll::Ready(event) = choice.generation.events.poll_recv(cx) else { continue };
            let text = match event {
                Some(event) => stream.chunk(index, event),
                None => {
                    // The engine died: an error event inside the 200 answer (CONTRACT 5 [run]).
                    stream.is_over = true;
                    let error = errors::body(StatusCode::INTERNAL_SERVER_ERROR, ENGINE_DEAD, None);
                    format!("data: {error}\n\ndata: [DONE]\n\n")
                }
            };
            return Poll::Ready(Some(Ok(Bytes::from(text))));
        }
        Poll::Pending
    }
}
