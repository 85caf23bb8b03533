//! Probes and rounds against a server in this process that behaves, and misbehaves, as told by the prompt.

use crate::load::{RoundSpec, run_round};
use crate::{Api, Error, ProbeSpec, Target, probe};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::stream::{self, StreamExt};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    all: AtomicUsize,
    closed: AtomicUsize,
}

/// Counts the end of an answer, however it comes.
struct Closing(Arc<Counts>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.closed.fetch_add(1, SeqCst);
    }
}

fn token(text: &str) -> String {
    format!(
        "data: {}\n\n",
        serde_json::json!({"choices": [{"index": 0, "text": text, "finish_reason": null}]})
    )
}

fn end(reason: &str) -> String {
    let last = serde_json::json!({"choices": [{"index": 0, "text": "z", "finish_reason": reason}]});
    format!(
        "data: {last}\n\ndata: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":4}}}}\n\n"
    )
}

async fn answer(State(counts): State<Arc<Counts>>, body: Bytes) -> Response {
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let prompt = body["prompt"].as_str().unwrap_or_default().to_owned();
    counts.all.fetch_add(1, SeqCst);
    counts.most.fetch_max(counts.now.fetch_add(1, SeqCst) + 1, SeqCst);
    let mut parts: Vec<Result<String, io::Error>> =
        vec![Ok(": keep-alive\n\n".into()), Ok(token("a")), Ok(token("b") + &token("c"))];
    match prompt.as_str() {
        "ok" => parts.extend([Ok(end("length")), Ok("data: [DO".into()), Ok("NE]\n\n".into())]),
        "abort" => parts.extend([Ok(end("abort")), Ok("data: [DONE]\n\n".into())]),
        "no finish" => parts.push(Ok("data: [DONE]\n\n".into())),
        "no done" => parts.push(Ok(end("stop"))),
        "reset" => parts.push(Err(io::Error::other("cut"))),
        "error" => parts.push(Ok("data: {\"error\":{\"message\":\"engine died\"}}\n\n".into())),
        "busy" => {
            counts.now.fetch_sub(1, SeqCst);
            return (StatusCode::TOO_MANY_REQUESTS, "{\"error\":{\"message\":\"slow down\"}}")
                .into_response();
        }
        "json" => {
            counts.now.fetch_sub(1, SeqCst);
            return ([(header::CONTENT_TYPE, "application/json")], "{}").into_response();
        }
        "hang" => {}
        other => panic!("unknown prompt {other}"),
    }
    let hang = prompt == "hang";
    let closing = Closing(counts.clone());
    let parts = stream::iter(parts).then(|part| async {
        tokio::task::yield_now().await;
        part
    });
    let left = stream::once(async move {
        let _closing = closing;
        if hang {
            std::future::pending::<()>().await;
        }
        counts.now.fetch_sub(1, SeqCst);
        Ok(String::new())
    });
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(parts.chain(left)))
        .into_response()
}

async fn server() -> (Target, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let app = Router::new().route("/v1/completions", post(answer)).with_state(counts.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (Target::new(&base, "A", None).unwrap(), counts)
}

fn spec(prompt: &str) -> ProbeSpec {
    ProbeSpec { max_tokens: 4, detail: true, ..ProbeSpec::one_token(prompt, LONG) }
}

#[tokio::test]
async fn a_complete_stream_is_timed_in_order() {
    let (target, _) = server().await;
    let timed = probe(&target, &spec("ok")).await;
    assert_eq!(timed.error, None);
    let first = timed.first_token.unwrap();
    assert!(timed.sent <= first && first <= timed.ended);
    assert_eq!((timed.output_tokens, timed.prompt_tokens), (Some(4), Some(3)));
    assert_eq!((timed.text.as_str(), timed.finish_reason.as_deref()), ("abcz", Some("length")));
}

#[tokio::test]
async fn every_way_to_fail_has_its_error() {
    let (target, _) = server().await;
    let mut kinds = Vec::new();
    for prompt in ["abort", "no finish", "no done", "reset", "error", "busy", "json"] {
        let timed = probe(&target, &spec(prompt)).await;
        let error = timed.error.unwrap();
        kinds.push((prompt, error.kind(), error.status(), timed.first_token.is_some()));
    }
    assert_eq!(
        kinds,
        [
            ("abort", "aborted", Some(200), true),
            ("no finish", "truncated", Some(200), true),
            ("no done", "truncated", Some(200), true),
            ("reset", "truncated", Some(200), true),
            ("error", "stream_error", Some(200), true),
            ("busy", "rejected_429", Some(429), false),
            ("json", "stream_error", Some(200), false),
        ]
    );
    let busy = probe(&target, &spec("busy")).await.error.unwrap().to_string();
    assert!(busy.ends_with("answered 429: slow down"), "{busy}");
}

#[tokio::test]
async fn a_deadline_is_a_timeout_and_keeps_the_first_token() {
    let (target, _) = server().await;
    // Time enough for a first token on a busy machine.
    let after = Duration::from_secs(2);
    let timed = probe(&target, &ProbeSpec { deadline: after, ..spec("hang") }).await;
    assert_eq!(timed.error, Some(Error::Timeout { after, first_token: true }));
    assert!(timed.first_token.is_some());
    assert!(timed.ended - timed.sent >= 2_000_000_000);
}

#[tokio::test]
async fn a_closed_port_is_a_connect_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let timed = probe(&Target::new(&base, "A", None).unwrap(), &spec("ok")).await;
    let error = timed.error.unwrap();
    assert_eq!(error.kind(), "connect");
    assert!(error.to_string().contains("refused"), "{error}");
}

fn round(prompt: &str, requests: u32, concurrency: u32) -> RoundSpec {
    RoundSpec {
        api: Api::Completions,
        requests,
        concurrency,
        output_tokens: 4,
        prompt: prompt.to_owned(),
        ignore_eos: true,
        deadline: LONG,
    }
}

#[tokio::test]
async fn a_round_sends_all_and_keeps_to_its_concurrency() {
    let (target, counts) = server().await;
    let done = run_round(&target, &round("ok", 40, 4)).await.unwrap();
    assert!(done.passed());
    assert_eq!(done.results.len(), 40);
    assert_eq!(counts.all.load(SeqCst), 40);
    assert!(counts.most.load(SeqCst) <= 4, "{} in flight", counts.most.load(SeqCst));
    for r in &done.results {
        assert!(done.began <= r.began && r.ended <= done.ended);
        assert_eq!((r.output_tokens, r.prompt_tokens), (Some(4), Some(3)));
    }
    assert!(done.results.is_sorted_by_key(|r| r.began), "in the order of sending");
}

#[tokio::test]
async fn a_round_counts_failures_and_ends() {
    let (target, _) = server().await;
    let done = run_round(&target, &round("abort", 5, 9)).await.unwrap();
    assert_eq!(done.results.iter().filter(|r| r.error == Some(Error::Aborted) && !r.ok).count(), 5);
    assert!(!done.passed());
    assert!(run_round(&target, &round("ok", 0, 1)).await.unwrap().results.is_empty());
}

#[tokio::test]
async fn dropping_a_round_ends_its_requests() {
    let (target, counts) = server().await;
    let spec = round("hang", 8, 3);
    let running = run_round(&target, &spec);
    let mut running = std::pin::pin!(running);
    while counts.now.load(SeqCst) < 3 {
        let tick = Duration::from_millis(5);
        assert!(
            tokio::time::timeout(tick, running.as_mut()).await.is_err(),
            "a hanging round ends at its deadline only"
        );
    }
    running.set(run_round(&target, &spec));
    let began = std::time::Instant::now();
    while counts.closed.load(SeqCst) < 3 {
        assert!(began.elapsed() < LONG, "{} of 3 streams were closed", counts.closed.load(SeqCst));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(counts.all.load(SeqCst), 3, "the second round was never begun");
}
