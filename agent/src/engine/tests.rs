//! The client against a server that behaves as real ones do, well and badly.

use super::fake::{Does, Fake};
use super::*;
use hotbunk_core::call::{Call, CallOutcome, Mode, SleepLevel, SleepingAnswer, WakeTags};
use hotbunk_core::capability::{Capabilities, Routes, Version};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(30);
/// For what never ends.
const SHORT: Duration = Duration::from_millis(200);
/// For what never ends, but must have been asked once before: long enough on a busy machine.
const ENOUGH: Duration = Duration::from_millis(2500);

/// Listens, reads a request, hangs up.
async fn hangs_up() -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 1024]).await;
        }
    });
    client(base)
}

/// A port that nobody listens on.
async fn closed_port() -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    client(format!("http://{}", listener.local_addr().unwrap()))
}

fn client(base: String) -> Client {
    Client::new(Endpoint { base, model: "A".into(), api_key: None, load_tracking: false }).unwrap()
}

const SLEEP: Call = Call::Sleep { level: SleepLevel::L1, mode: Some(Mode::Wait) };

#[tokio::test]
async fn a_call_ends_in_one_of_four_ways() {
    let fake = Fake::start().await;
    let route = "POST /sleep?level=1&mode=wait";
    fake.says(route, 200, "").says(route, 200, r#"{"status":"sleeping","level":1}"#);
    fake.says(
        route,
        500,
        r#"{"error":{"message":"Call to sleep method failed: Worker failed with error 'Memory usage increased after sleeping.', please check the stack trace above for the root cause","type":"InternalServerError","param":null,"code":500}}"#,
    );
    fake.on(route, Does::Hangs);
    let client = fake.client();
    let accepted = CallOutcome::Accepted { success: None };
    assert_eq!(client.call(SLEEP, LONG).await, accepted, "an empty body, up to 0.31");
    assert_eq!(client.call(SLEEP, LONG).await, accepted, "0.32's body");
    let CallOutcome::Refused { status: 500, message } = client.call(SLEEP, LONG).await else {
        panic!("no refusal")
    };
    assert!(message.contains("Memory usage increased after sleeping."), "{message}");
    assert_eq!(client.call(SLEEP, SHORT).await, CallOutcome::Unknown);
    for gone in [hangs_up().await, closed_port().await] {
        assert!(matches!(gone.call(SLEEP, LONG).await, CallOutcome::Gone { .. }));
    }
}

/// As vLLM's server does after an error that nobody handled: a whole answer that promises nothing, and then no more.
#[tokio::test]
async fn a_connection_that_is_closed_after_a_500_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut connections = 0;
        while let Ok((mut socket, _)) = listener.accept().await {
            connections += 1;
            let status = if connections == 1 { "500 Internal Server Error" } else { "200 OK" };
            tokio::spawn(async move {
                let _ = socket.read(&mut [0; 1024]).await;
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                let _ = socket.write_all(answer.as_bytes()).await;
                // The next request is read and not answered.
                let _ = socket.read(&mut [0; 1024]).await;
            });
        }
    });
    let client = client(base);
    assert!(matches!(
        client.call(Call::ReleaseKvCache, LONG).await,
        CallOutcome::Refused { status: 500, .. }
    ));
    assert_eq!(client.call(Call::Resume, LONG).await, CallOutcome::Accepted { success: None });
}

#[tokio::test]
async fn the_prefix_caches_flag_is_kept() {
    let fake = Fake::start().await;
    fake.says("POST /reset_prefix_cache", 200, r#"{"success":false}"#);
    let outcome = fake.client().call(Call::ResetPrefixCache, LONG).await;
    assert_eq!(outcome, CallOutcome::Accepted { success: Some(false) });
}

#[tokio::test]
async fn worker_calls_carry_a_json_body() {
    let fake = Fake::start().await;
    fake.says("POST /collective_rpc", 200, r#"{"results":[null]}"#);
    let client = fake.client();
    assert_eq!(client.call(Call::ReloadWeights, LONG).await, CallOutcome::Accepted { success: None });
    assert_eq!(fake.last_body(), r#"{"method":"reload_weights"}"#);
    let wake = client.call(Call::WakeUp { tags: WakeTags::All }, LONG).await;
    assert_eq!(wake, CallOutcome::Refused { status: 404, message: "Not Found".into() });
    assert_eq!(fake.last_body(), "");
}

#[tokio::test]
async fn the_pace_of_a_simulated_engine_is_set_and_a_real_one_refuses() {
    let fake = Fake::start().await;
    let client = fake.client();
    let refused = client.set_simulated_speed(1.0, LONG).await;
    assert!(matches!(refused, Err(Error::Refused { status: 404, .. })), "{refused:?}");
    fake.says("POST /sim/speed", 200, r#"{"speed":2.5}"#);
    assert_eq!(client.set_simulated_speed(2.5, LONG).await, Ok(()));
    assert_eq!(fake.last_body(), r#"{"speed":2.5}"#);
}

#[tokio::test]
async fn is_sleeping_says_or_does_not() {
    let fake = Fake::start().await;
    let route = "GET /is_sleeping";
    fake.says(route, 200, r#"{"is_sleeping":true}"#)
        .says(route, 200, "{}")
        .says(route, 500, "boom")
        .on(route, Does::Hangs);
    let client = fake.client();
    assert_eq!(client.is_sleeping(LONG).await, SleepingAnswer::Says { is_sleeping: true });
    assert_eq!(client.is_sleeping(LONG).await, SleepingAnswer::Refused { status: 200, message: "{}".into() });
    assert_eq!(
        client.is_sleeping(LONG).await,
        SleepingAnswer::Refused { status: 500, message: "boom".into() }
    );
    assert_eq!(client.is_sleeping(SHORT).await, SleepingAnswer::Unknown);
    assert!(matches!(hangs_up().await.is_sleeping(LONG).await, SleepingAnswer::Gone { .. }));
}

#[tokio::test]
async fn health_tells_dead_from_gone() {
    let fake = Fake::start().await;
    let route = "GET /health";
    fake.says(route, 200, "")
        .says(route, 503, "")
        .says(route, 500, "Internal Server Error")
        .on(route, Does::Hangs);
    let client = fake.client();
    assert_eq!(client.health(LONG).await, Health::Ok);
    assert_eq!(client.health(LONG).await, Health::Dead);
    assert_eq!(
        client.health(LONG).await,
        Health::Refused { status: 500, message: "Internal Server Error".into() }
    );
    assert_eq!(client.health(SHORT).await, Health::Unknown);
    let Health::Gone { message } = closed_port().await.health(LONG).await else { panic!("not gone") };
    assert!(message.contains("refused"), "{message}");
}

#[tokio::test]
async fn identity_is_the_model_list() {
    let fake = Fake::start().await;
    let route = "GET /v1/models";
    fake.says(
        route,
        200,
        r#"{"object":"list","data":[{"id":"alias","max_model_len":512},{"id":"A","max_model_len":2048}]}"#,
    )
    .says(route, 200, r#"{"data":[{"id":"other"}]}"#)
    .says(route, 200, "<html>")
    .says(route, 401, r#"{"error":"Unauthorized"}"#)
    .says(route, 503, r#"{"detail":"loading"}"#);
    let client = fake.client_with(|e| e.api_key = Some("k1".into()));
    assert_eq!(client.identify("A", LONG).await, Identity::Ours { max_model_len: Some(2048) });
    assert_eq!(fake.asked(), ["GET /v1/models [Bearer k1]"]);
    assert_eq!(client.identify("A", LONG).await, Identity::Foreign { models: vec!["other".into()] });
    assert_eq!(client.identify("A", LONG).await, Identity::Foreign { models: Vec::new() });
    assert_eq!(client.identify("A", LONG).await, Identity::Foreign { models: Vec::new() });
    let message = "/v1/models answered 503: loading".to_owned();
    assert_eq!(client.identify("A", LONG).await, Identity::NotReady { message });
    assert!(matches!(closed_port().await.identify("A", LONG).await, Identity::NotReady { .. }));
}

#[tokio::test]
async fn the_key_goes_to_v1_alone() {
    let fake = Fake::start().await;
    let client = fake.client_with(|e| e.api_key = Some("k1".into()));
    client.health(LONG).await;
    assert_eq!(fake.asked(), ["GET /health"]);
}

const ALL: Routes = Routes {
    sleep: true,
    collective_rpc: true,
    release_kv_cache: true,
    reset_prefix_cache: true,
    pause: true,
    abort_requests: true,
};

#[tokio::test]
async fn detection_reads_the_document() {
    let fake = Fake::start().await;
    fake.says("GET /version", 200, r#"{"version":"0.32.0+cpu"}"#);
    fake.says("GET /openapi.json", 200, include_str!("fixtures/openapi-0.32.0.json"));
    fake.says("GET /get_world_size", 200, r#"{"world_size":2}"#);
    let client = fake.client();
    let version = Version::new(0, 32, 0);
    assert_eq!(
        client.detect(None, LONG).await,
        Ok(Detected {
            capabilities: Capabilities { version, routes: ALL, workers: 2 },
            routes_from: RoutesFrom::OpenApi,
            workers_from: WorkersFrom::WorldSize,
        })
    );
    let known = client.detect(Some(1), LONG).await.unwrap();
    assert_eq!((known.capabilities.workers, known.workers_from), (1, WorkersFrom::Configured));
}

#[tokio::test]
async fn without_the_document_routes_are_asked_for() {
    let fake = Fake::start().await;
    fake.says("GET /version", 200, r#"{"version":"0.24.0"}"#);
    for route in ["/sleep", "/wake_up", "/collective_rpc", "/pause", "/reset_prefix_cache"] {
        fake.says(&format!("GET {route}"), 405, r#"{"detail":"Method Not Allowed"}"#);
    }
    fake.says(
        "GET /server_info",
        200,
        r#"{"vllm_config":"model='/m', tensor_parallel_size=4, pipeline_parallel_size=1, x=y"}"#,
    );
    let found = fake.client().detect(None, LONG).await.unwrap();
    let routes = Routes { sleep: true, collective_rpc: true, reset_prefix_cache: true, ..Routes::default() };
    assert_eq!(found.capabilities.routes, routes, "pause without resume is none");
    assert_eq!((found.capabilities.workers, found.workers_from), (4, WorkersFrom::ServerInfo));
    assert_eq!(found.routes_from, RoutesFrom::Probing);
    assert!(fake.asked().iter().all(|route| route.starts_with("GET ")), "nothing was changed");
}

#[tokio::test]
async fn detection_fails_with_a_reason() {
    let fake = Fake::start().await;
    let version = "GET /version";
    fake.says(version, 200, r#"{"version":"main"}"#).on(version, Does::Hangs);
    let client = fake.client();
    let foreign = client.detect(None, LONG).await.unwrap_err().to_string();
    assert_eq!(
        foreign,
        r#"GET /version answered something that is not vLLM's: no version in {"version":"main"}"#
    );
    assert_eq!(client.detect(None, SHORT).await, Err(Error::Unknown { route: version.into() }));

    let fake = Fake::start().await;
    fake.says(version, 200, r#"{"version":"0.8.5"}"#);
    let bare = fake.client().detect(None, LONG).await.unwrap();
    assert_eq!(bare.capabilities.routes, Routes::default(), "development mode is off");
    assert_eq!((bare.capabilities.workers, bare.workers_from), (2, WorkersFrom::Assumed));
}

fn gauges(running: u32, waiting: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\"}} {running}.0\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}.0\n"
    )
}

#[tokio::test]
async fn load_is_asked_only_where_it_counts() {
    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, &gauges(0, 0)).says("GET /load", 200, r#"{"server_load":3}"#);
    let without = fake.client().in_flight(LONG).await.unwrap();
    assert_eq!(without, InFlight { running: Some(0), waiting: Some(0), server_load: None });
    let with = fake.client_with(|e| e.load_tracking = true).in_flight(LONG).await.unwrap();
    assert_eq!(with.server_load, Some(3));
    assert_eq!(with.is_idle(), Some(false), "requests before their first step");
}

fn can(minor: u16, routes: Routes) -> Capabilities {
    Capabilities { version: Version::new(0, minor, 0), routes, workers: 1 }
}

#[tokio::test]
async fn an_idle_engine_is_asked_once() {
    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, &gauges(0, 0));
    assert_eq!(fake.client().drain(can(31, ALL), DrainPolicy::Wait, LONG).await, Drain::Drained);
    assert_eq!(fake.asked(), ["GET /metrics"]);
}

#[tokio::test]
async fn a_drain_ends_with_the_last_request() {
    let fake = Fake::start().await;
    let route = "GET /metrics";
    fake.says(route, 200, &gauges(2, 1)).says(route, 200, &gauges(1, 0)).says(route, 200, &gauges(0, 0));
    assert_eq!(fake.client().drain(can(31, ALL), DrainPolicy::Wait, LONG).await, Drain::Drained);
    assert_eq!(fake.asked().len(), 3);
}

#[tokio::test]
async fn an_old_engine_settles_and_is_asked_again() {
    let fake = Fake::start().await;
    let route = "GET /metrics";
    fake.says(route, 200, &gauges(0, 0)).says(route, 200, &gauges(1, 0)).says(route, 200, &gauges(0, 0));
    assert_eq!(fake.client().drain(can(24, ALL), DrainPolicy::Wait, LONG).await, Drain::Drained);
    assert_eq!(fake.asked().len(), 4, "idle, busy again, idle, still idle");
}

#[tokio::test]
async fn a_drain_that_takes_too_long_says_what_runs() {
    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, &gauges(3, 1));
    let drained = fake.client().drain(can(31, ALL), DrainPolicy::Wait, ENOUGH).await;
    assert_eq!(drained, Drain::TimedOut { running: Some(3), waiting: Some(1) });

    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, &gauges(3, 1)).on("GET /metrics", Does::Hangs);
    let drained = fake.client().drain(can(31, ALL), DrainPolicy::Wait, ENOUGH).await;
    assert_eq!(drained, Drain::TimedOut { running: Some(3), waiting: Some(1) }, "the last that was seen");
}

#[tokio::test]
async fn aborting_depends_on_the_release() {
    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, &gauges(0, 0)).says(
        "POST /abort_requests",
        200,
        r#"{"status":"aborted","aborted":2}"#,
    );
    let client = fake.client();
    assert_eq!(client.drain(can(25, ALL), DrainPolicy::Abort, LONG).await, Drain::NotNeeded);
    assert_eq!(fake.asked().len(), 0);
    assert_eq!(client.drain(can(20, ALL), DrainPolicy::Abort, LONG).await, Drain::Drained);
    assert_eq!(fake.asked(), ["POST /abort_requests", "GET /metrics", "GET /metrics"]);
    let none = Routes { abort_requests: false, ..ALL };
    assert!(matches!(client.drain(can(11, none), DrainPolicy::Abort, LONG).await, Drain::Impossible { .. }));
}

#[tokio::test]
async fn a_drain_without_evidence_is_refused() {
    let fake = Fake::start().await;
    fake.says("GET /metrics", 200, "vllm:generation_tokens_total{} 1.0\n");
    let Drain::Blind { reason } = fake.client().drain(can(31, ALL), DrainPolicy::Wait, LONG).await else {
        panic!("possible")
    };
    assert!(reason.contains("--enable-server-load-tracking"), "{reason}");
    assert!(matches!(
        closed_port().await.drain(can(31, ALL), DrainPolicy::Wait, LONG).await,
        Drain::Failed(Error::Gone { .. })
    ));
}

/// A stream of tokens as real 0.32 sends it.
fn tokens(ids: &[u32], reason: &str) -> Does {
    let last = ids.len() - 1;
    let mut events: Vec<String> = ids
        .iter()
        .enumerate()
        .map(|(i, id)| {
            let finish = if i == last { format!("\"{reason}\"") } else { "null".into() };
            format!(
                r#"{{"id":"cmpl-1","choices":[{{"index":0,"text":"t{id}","logprobs":{{"text_offset":[0],"token_logprobs":[-1.5],"tokens":["t{id}"]}},"finish_reason":{finish},"token_ids":[{id}]}}]}}"#
            )
        })
        .collect();
    let n = ids.len();
    events.push(format!(
        r#"{{"id":"cmpl-1","choices":[],"usage":{{"prompt_tokens":30,"completion_tokens":{n}}}}}"#
    ));
    events.push("[DONE]".into());
    Does::Streams(events)
}

const COMPLETIONS: &str = "POST /v1/completions";

#[tokio::test]
async fn a_probe_ends_with_its_token_or_says_why_not() {
    let fake = Fake::start().await;
    fake.on(COMPLETIONS, tokens(&[5], "length")).on(COMPLETIONS, tokens(&[5], "abort"));
    fake.says(COMPLETIONS, 500, r#"{"error":{"message":"EngineCore encountered an issue."}}"#);
    fake.on(COMPLETIONS, Does::Hangs);
    let client = fake.client();
    let answered = client.probe(ProbeKind::FirstToken, LONG).await;
    assert!(answered.ok());
    assert!(answered.first_token.is_some_and(|t| answered.sent <= t && t <= answered.ended));
    let aborted = client.probe(ProbeKind::FirstToken, LONG).await;
    assert_eq!(aborted.end, ProbeEnd::Failed(hotbunk_measure::Error::Aborted));
    let ProbeEnd::Failed(refused) = client.probe(ProbeKind::FirstToken, LONG).await.end else {
        panic!("no failure")
    };
    assert!(refused.to_string().ends_with("answered 500: EngineCore encountered an issue."), "{refused}");
    let hung = client.probe(ProbeKind::FirstToken, SHORT).await;
    assert_eq!((hung.end, hung.first_token), (ProbeEnd::Unknown, None));
}

#[tokio::test]
async fn a_canary_is_recorded_and_sings_again() {
    let fake = Fake::start().await;
    let ids = [5, 6, 7, 8, 9, 10, 11, 12];
    for _ in 0..3 {
        fake.on(COMPLETIONS, tokens(&ids, "length"));
    }
    fake.on(COMPLETIONS, tokens(&[5], "length"));
    fake.on(COMPLETIONS, tokens(&[5, 6, 7, 99, 9, 10, 11, 12], "length"));
    let client = fake.client();
    let (probes, canary) = client.record_canary(LONG).await;
    let canary = canary.unwrap();
    assert_eq!(probes.len(), 3);
    assert_eq!(canary.tokens(Depth::All), 8);

    let one = client.probe(ProbeKind::Canary { recorded: &canary, depth: Depth::First }, LONG).await;
    assert_eq!(one.end, ProbeEnd::Matched);
    let body: serde_json::Value = serde_json::from_str(&fake.last_body()).unwrap();
    assert_eq!(
        (&body["max_tokens"], &body["temperature"], &body["logprobs"]),
        (&1.into(), &0.into(), &1.into())
    );

    let all = client.probe(ProbeKind::Canary { recorded: &canary, depth: Depth::All }, LONG).await;
    assert!(matches!(all.end, ProbeEnd::Mismatched(Mismatch { position: 3, .. })), "{:?}", all.end);
}

#[tokio::test]
async fn warming_up_stops_at_the_first_failure() {
    let fake = Fake::start().await;
    fake.on(COMPLETIONS, tokens(&[5], "length")).says(COMPLETIONS, 503, "no");
    let client = fake.client();
    let results = client.warm_up(5, LONG).await;
    assert_eq!(results.iter().map(ProbeResult::ok).collect::<Vec<_>>(), [true, false]);
    let (probes, canary) = client.record_canary(LONG).await;
    assert_eq!(probes.len(), 1);
    assert!(matches!(canary, Err(RecordError::Probe(_))));
}
