//! A closed-loop round.

use crate::clock::now;
use crate::error::Error;
use crate::probe::ProbeSpec;
use crate::stream;
use crate::target::{Api, Target, client};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::oneshot;

/// What a round sends.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundSpec {
    /// Which route.
    pub api: Api,
    /// How many requests.
    pub requests: u32,
    /// How many of them in flight (at least 1 is taken).
    pub concurrency: u32,
    /// `max_tokens` of each.
    pub output_tokens: u32,
    /// The prompt of each.
    pub prompt: String,
    /// Go on past an end-of-sequence token, so that every request costs the same.
    pub ignore_eos: bool,
    /// Of one request, from sending to `[DONE]`.
    pub deadline: Duration,
}

/// What became of one request. Instants are monotonic nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestResult {
    /// Whether its stream was complete.
    pub ok: bool,
    /// Why not.
    pub error: Option<Error>,
    /// Sent.
    pub began: u64,
    /// First chunk with output.
    pub first_token: Option<u64>,
    /// `[DONE]`, or the failure.
    pub ended: u64,
    /// `usage.completion_tokens`.
    pub output_tokens: Option<u32>,
    /// `usage.prompt_tokens`.
    pub prompt_tokens: Option<u32>,
}

/// A finished round.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// Before the first request, monotonic nanoseconds.
    pub began: u64,
    /// When the last request had ended.
    pub ended: u64,
    /// One for each request, in the order in which they were sent.
    pub results: Vec<RequestResult>,
}

impl Round {
    /// Whether every request was complete.
    pub fn passed(&self) -> bool {
        self.results.iter().all(|r| r.ok)
    }
}

/// Sends a round and waits for its last request. Dropping the future ends the requests in flight.
///
/// The round runs on a thread of its own, with connections of its own: connection and reader then never wake each other
/// across threads, which made a chunk cost 4.7 µs instead of 14 µs (8 streams of 3,500 tokens/s, 4 at a time, two cores:
/// 6.5 % of a core instead of 20 %). What it costs is one connect for each request in flight.
///
/// # Errors
/// [`Error::Client`] where the thread or its HTTP client cannot be had. Failed requests are results, not errors.
pub async fn run_round(target: &Target, spec: &RoundSpec) -> Result<Round, Error> {
    let (done, result) = oneshot::channel();
    // Dropped with this future: the thread sees it and ends.
    let (_alive, gone) = oneshot::channel::<Infallible>();
    let (target, spec) = (target.clone(), spec.clone());
    let work = move || {
        let round = on_this_thread(&target, &spec, gone);
        // Nobody listens any more where the future was dropped.
        let _ = done.send(round);
    };
    let spawned = std::thread::Builder::new().name("load".to_owned()).spawn(work);
    spawned.map_err(|e| Error::Client { reason: format!("no thread for the load: {e}") })?;
    match result.await {
        Ok(Ok(Some(round))) => Ok(round),
        Ok(Err(e)) => Err(e),
        Ok(Ok(None)) | Err(_) => Err(Error::Client { reason: "the load's thread ended early".to_owned() }),
    }
}

/// `None` where the caller has gone.
fn on_this_thread(
    target: &Target,
    spec: &RoundSpec,
    gone: oneshot::Receiver<Infallible>,
) -> Result<Option<Round>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Client { reason: format!("no runtime for the load: {e}") })?;
    let target = Target { client: client()?, ..target.clone() };
    Ok(runtime.block_on(async {
        tokio::select! {
            round = send_all(&target, spec) => Some(round),
            _ = gone => None,
        }
    }))
}

async fn send_all(target: &Target, spec: &RoundSpec) -> Round {
    let probe = ProbeSpec {
        api: spec.api,
        prompt: spec.prompt.clone(),
        max_tokens: spec.output_tokens,
        ignore_eos: spec.ignore_eos,
        detail: false,
        deadline: spec.deadline,
    };
    let body = probe.body(&target.model);
    let send = |place: usize| {
        let body = body.clone();
        async move { (place, stream::run(target, spec.api, body, false, spec.deadline).await) }
    };
    let requests = spec.requests as usize;
    let began = now();
    let mut in_flight = FuturesUnordered::new();
    let mut next = 0;
    let mut results = vec![None; requests];
    while next < requests.min(spec.concurrency.max(1) as usize) {
        in_flight.push(send(next));
        next += 1;
    }
    while let Some((place, run)) = in_flight.next().await {
        if next < requests {
            in_flight.push(send(next));
            next += 1;
        }
        results[place] = Some(RequestResult {
            ok: run.error.is_none(),
            error: run.error,
            began: run.sent,
            first_token: run.seen.first_token,
            ended: run.ended,
            output_tokens: run.seen.output_tokens,
            prompt_tokens: run.seen.prompt_tokens,
        });
    }
    let results: Vec<RequestResult> = results.into_iter().flatten().collect();
    let ended = results.iter().map(|r| r.ended).max().unwrap_or(began);
    Round { began, ended, results }
}
