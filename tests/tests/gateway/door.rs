//! The gateway's door, as clients see it.

use crate::answer::{Complaint, End, Streamed, expected};
use hotbunk_tests::{Node, PATIENCE};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// When a client goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HangUp {
    /// Never.
    No,
    /// So long after its request, whatever came until then.
    After(Duration),
    /// With so many tokens read.
    AtToken(usize),
}

/// A completion to ask for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// `A` or `B`.
    pub(crate) role: &'static str,
    /// No two alike, so that no answer can be another's.
    pub(crate) prompt: String,
    /// How many.
    pub(crate) tokens: u32,
    /// Streamed or plain.
    pub(crate) stream: bool,
    /// When its client goes.
    pub(crate) hang_up: HangUp,
    /// Whose it is, where the gateway asks.
    pub(crate) key: Option<&'static str>,
}

/// How a request ended, where it ended as one may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With all that was asked for, byte for byte.
    Whole,
    /// Before its answer, with a status and an error in OpenAI's form.
    Refused(u16, Complaint),
    /// In its stream, with an error event; what came until then was right.
    Broken(Complaint),
    /// Its client went away.
    HungUp,
}

/// How it ended, what came meanwhile, and when.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// The wrong: a sentence.
    pub(crate) ended: Result<Ended, String>,
    /// SSE comments that came.
    pub(crate) comments: usize,
    /// When it was sent, on the boot's monotonic clock, ns, as the journal has it.
    pub(crate) began_ns: u64,
    /// When it ended.
    pub(crate) ended_ns: u64,
    /// Until the first byte of its answer's content.
    pub(crate) first: Option<Duration>,
    /// Until its end.
    pub(crate) took: Duration,
}

/// Where clients knock. Clones share connections.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    /// Its port on loopback.
    pub(crate) port: u16,
    http: Client,
}

impl Door {
    /// Of this node.
    pub(crate) fn of(node: &Node) -> Self {
        // Shorter than anybody keeps connections.
        let http = Client::builder().no_proxy().pool_idle_timeout(Duration::from_secs(2)).build();
        Door { port: node.gateway_port(), http: http.expect("a client") }
    }

    /// The same with a new connection for each request.
    pub(crate) fn of_strangers(node: &Node) -> Self {
        let http = Client::builder().no_proxy().pool_max_idle_per_host(0).build();
        Door { port: node.gateway_port(), http: http.expect("a client") }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn post(&self, path: &str) -> RequestBuilder {
        self.http.post(self.url(path))
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.http.get(self.url(path))
    }

    /// Asks for a completion and judges all that comes.
    pub(crate) async fn ask(&self, wanted: &Wanted) -> Report {
        let (began, began_ns) = (Instant::now(), now_ns());
        let mut watch = Watch { began, streamed: Streamed::default(), first: None };
        let answered = self.answered(wanted, &mut watch);
        let ended = match wanted.hang_up {
            HangUp::After(time) => match tokio::time::timeout(time, answered).await {
                Ok(ended) => ended,
                Err(_) => Ok(Ended::HungUp),
            },
            _ => tokio::time::timeout(2 * PATIENCE, answered)
                .await
                .unwrap_or_else(|_| Err("it never ended".to_owned())),
        };
        let ended = ended.map_err(|why| format!("{wanted:?}: {why}"));
        Report {
            ended,
            comments: watch.streamed.comments,
            began_ns,
            ended_ns: now_ns(),
            first: watch.first,
            took: began.elapsed(),
        }
    }

    async fn answered(&self, wanted: &Wanted, watch: &mut Watch) -> Result<Ended, String> {
        let model = model(wanted.role);
        let body = json!({ "model": model, "prompt": wanted.prompt, "max_tokens": wanted.tokens, "temperature": 0,
            "ignore_eos": true, "stream": wanted.stream });
        let mut request = self.post("/v1/completions").json(&body);
        if let Some(key) = wanted.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.map_err(|e| format!("no answer: {e:?}"))?;
        let status = response.status().as_u16();
        if status != 200 {
            return refused(status, response).await;
        }
        let text = expected(wanted.role, &wanted.prompt, wanted.tokens);
        if wanted.stream {
            return watch.stream(response, wanted, &text).await;
        }
        let body: Value = response.json().await.map_err(|e| format!("its body: {e:?}"))?;
        watch.first = Some(watch.began.elapsed());
        let choice = &body["choices"][0];
        let got = (&choice["text"], &choice["finish_reason"], &body["usage"]["completion_tokens"]);
        if got != (&json!(text), &json!("length"), &json!(wanted.tokens)) {
            return Err(format!("another answer than {text:?}: {body}"));
        }
        Ok(Ended::Whole)
    }
}

/// The boot's monotonic clock, ns.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

/// The model that a role's engine serves.
pub(crate) fn model(role: &str) -> String {
    let profile = hotbunk_sim::profile::Profile::load("l20").expect("the built-in profile");
    profile.engine(role).expect("a role of the profile").model.clone()
}

async fn refused(status: u16, response: Response) -> Result<Ended, String> {
    let retry = response.headers().get("retry-after").map(|v| v.to_str().unwrap_or_default().parse::<u64>());
    let body: Value = response.json().await.map_err(|e| format!("the body of a {status}: {e:?}"))?;
    let complaint = Complaint::read(&body).map_err(|why| format!("a {status}: {why}"))?;
    if matches!(status, 429 | 503) && !matches!(retry, Some(Ok(1..))) {
        return Err(format!("a {status} without a good Retry-After ({retry:?}): {body}"));
    }
    Ok(Ended::Refused(status, complaint))
}

struct Watch {
    began: Instant,
    streamed: Streamed,
    first: Option<Duration>,
}

impl Watch {
    async fn stream(&mut self, mut response: Response, wanted: &Wanted, text: &str) -> Result<Ended, String> {
        let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Err(format!("a stream of {kind:?}"));
        }
        let streamed = &mut self.streamed;
        while let Some(bytes) = response
            .chunk()
            .await
            .map_err(|e| format!("broken off after {} tokens: {e:?}", streamed.tokens))?
        {
            streamed.feed(&bytes)?;
            if streamed.tokens > 0 {
                self.first.get_or_insert_with(|| self.began.elapsed());
            }
            if !text.starts_with(&streamed.text) {
                return Err(format!(
                    "after {} tokens {:?} instead of {text:?}",
                    streamed.tokens, streamed.text
                ));
            }
            if matches!(wanted.hang_up, HangUp::AtToken(at) if streamed.tokens >= at) {
                return Ok(Ended::HungUp);
            }
        }
        match streamed.end()? {
            End::Whole if streamed.text == text => Ok(Ended::Whole),
            End::Whole => Err(format!("it ends after {} of {} tokens", streamed.tokens, wanted.tokens)),
            End::Error(complaint) => Ok(Ended::Broken(complaint)),
        }
    }
}
