//! Answers of `/v1/responses` and `/v1/messages` as streams of named events: what the two have in common.

use super::errors;
use super::link::Generation;
use super::openai::{self, Face, Wanted};
use super::state::{LoadGuard, Shared};
use crate::ipc::Finish;
use crate::tokens::word;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use std::convert::Infallible;
use tokio::sync::mpsc;

/// A chat that one of the two routes asks for.
pub(crate) struct Chat {
    pub(crate) wanted: Wanted,
    pub(crate) generation: Generation,
    pub(crate) id: String,
    pub(crate) load: LoadGuard,
}

impl Chat {
    /// Checks the request and hands it to the engine core.
    pub(crate) fn begin(
        shared: &Shared,
        body: &openai::Body,
        id: &str,
        load: LoadGuard,
    ) -> Result<Self, Box<Response>> {
        let wanted = openai::check(shared, Face::Chat, body)?;
        let dead = || errors::openai(StatusCode::INTERNAL_SERVER_ERROR, errors::ENGINE_DEAD, None);
        let generations = super::completions::generate(shared, Face::Chat, &wanted, id);
        let generation = generations.and_then(|all| all.into_iter().next()).ok_or_else(dead)?;
        Ok(Chat { wanted, generation, id: id.to_owned(), load })
    }
}

/// Writes an event; `false` when the client has gone.
pub(crate) struct Events(mpsc::Sender<String>);

impl Events {
    /// `event: KIND`, then the data, whose `type` is the kind.
    pub(crate) async fn send(&self, kind: &str, mut data: Value) -> bool {
        data["type"] = Value::from(kind);
        self.0.send(format!("event: {kind}\ndata: {data}\n\n")).await.is_ok()
    }

    /// The error event of a dead engine.
    pub(crate) async fn engine_dead(&self) {
        let error = errors::body(StatusCode::INTERNAL_SERVER_ERROR, errors::ENGINE_DEAD, None);
        // The client may have gone too.
        drop(self.0.send(format!("event: error\ndata: {error}\n\n")).await);
    }
}

/// How a streamed generation ended.
pub(crate) enum Ended {
    /// Its text, its tokens and the reason.
    Whole(String, u32, Finish),
    /// The engine died, or the client has gone.
    Cut,
}

/// Passes a generation on, each token's text as a delta.
pub(crate) async fn pass_on(
    generation: &mut Generation,
    events: &Events,
    kind: &str,
    delta: impl Fn(&str) -> Value,
) -> Ended {
    let (mut text, mut tokens) = (String::new(), 0);
    loop {
        let Some(event) = generation.events.recv().await else {
            events.engine_dead().await;
            return Ended::Cut;
        };
        if let Some((token, _)) = event.token {
            let word = format!(" {}", word(token));
            tokens += 1;
            text.push_str(&word);
            if !events.send(kind, delta(&word)).await {
                return Ended::Cut;
            }
        }
        if let Some(finish) = event.finish {
            return Ended::Whole(text, tokens, finish);
        }
    }
}

/// The answer that a task writes event by event.
pub(crate) fn answer<F>(write: impl FnOnce(Events) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(write(Events(sender)));
    let texts = stream::unfold(receiver, async |mut receiver| {
        let text = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), receiver))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (headers, Body::from_stream(texts)).into_response()
}
