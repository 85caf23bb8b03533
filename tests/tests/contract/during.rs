//! While an operation runs: what blocks, what answers, what goes on without its caller (facts 2 and 3, CONTRACT 1.2).

use crate::check::Check;
use crate::server::{Server, value};
use hotbunk_sim::clock::now_ns;
use hotbunk_sim::oplog::Op;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "during.is_sleeping_blocks",
            "fact 3: /is_sleeping BLOCKS for as long as a sleep or wake runs [run]",
            blocks,
        ),
        Check::new(
            "during.other_calls_wait",
            "1.2: during a copy no other control call is served",
            others_wait,
        ),
        Check::new("during.health_and_metrics_answer", "fact 2, 2: 200 meanwhile; in_flight is 1", answer),
        Check::new(
            "during.wake_runs_after_sleep",
            "1.2: a /wake_up sent during /sleep runs right after it [run]",
            wake_after,
        ),
        Check::new(
            "during.a_dropped_call_goes_on",
            "1.2, 2: it is not cancelled; in_flight=1 persists [run]",
            dropped,
        ),
        Check::new("during.a_request_waits", "1.2: during a copy no generation is served", request),
        Check::new("during.a_wake_blocks_too", "fact 3", wake_blocks),
    ]
}

fn call(server: &Arc<Server>, path: &'static str) -> JoinHandle<u16> {
    let server = Arc::clone(server);
    tokio::spawn(async move { server.http.post(path).await.status })
}

/// A slow sleep that has begun to free memory.
async fn under_way(server: &Arc<Server>) -> JoinHandle<u16> {
    server.slow().await;
    let sleep = call(server, "/sleep?level=1");
    server.until("memory to go", async || !server.is_all_awake()).await;
    assert!(
        !sleep.is_finished() && server.used() > server.figures.residual,
        "the sleep is over too soon to be seen"
    );
    sleep
}

/// When the last operation of a kind ended, by the worker's clock.
fn ended(server: &Server, op: Op) -> u64 {
    server.operations().iter().filter(|o| o.op == op).map(|o| o.ended_ns).max().expect("it was recorded")
}

async fn blocks(server: Arc<Server>) {
    let sleep = under_way(&server).await;
    assert!(server.is_sleeping().await);
    let answered = now_ns();
    assert!(answered >= ended(&server, Op::Sleep));
    assert_eq!(server.used(), server.figures.residual);
    assert_eq!(sleep.await.expect("a status"), 200);
}

async fn others_wait(server: Arc<Server>) {
    let sleep = under_way(&server).await;
    let paused = server.is_paused().await;
    assert!(paused && now_ns() >= ended(&server, Op::Sleep));
    assert_eq!(sleep.await.expect("a status"), 200);
    server.fast().await;
    server.ok("/wake_up").await;
    let sleep = under_way(&server).await;
    server.rpc("check_health", json!({})).await;
    assert!(now_ns() >= ended(&server, Op::Sleep));
    assert_eq!(sleep.await.expect("a status"), 200);
}

async fn answer(server: Arc<Server>) {
    let sleep = under_way(&server).await;
    for path in ["/health", "/ping", "/version", "/load", "/v1/models", "/openapi.json"] {
        assert_eq!(server.http.get(path).await.status, 200, "{path}");
    }
    let page = server.http.get("/metrics").await.text;
    let still = !sleep.is_finished();
    let in_flight = value(&page, "vllm:sleep_mode_operations_in_flight", &[("operation", "sleep")]);
    assert!(still, "it answered during the sleep");
    assert_eq!(in_flight, Some(1.0));
    assert_eq!(sleep.await.expect("a status"), 200);
    let after = server.metric("vllm:sleep_mode_operations_in_flight", &[("operation", "sleep")]).await;
    assert_eq!(after, Some(0.0));
}

async fn wake_after(server: Arc<Server>) {
    let sleep = under_way(&server).await;
    let wake = call(&server, "/wake_up");
    assert_eq!(sleep.await.expect("a status"), 200);
    assert_eq!(wake.await.expect("a status"), 200);
    let operations = server.operations();
    let last = |op: Op| operations.iter().rposition(|o| o.op == op).expect("it was recorded");
    assert!(last(Op::Wake) > last(Op::Sleep));
    assert!(ended(&server, Op::Wake) > ended(&server, Op::Sleep));
    assert!(server.is_all_awake() && !server.is_sleeping().await);
}

async fn dropped(server: Arc<Server>) {
    let sleep = under_way(&server).await;
    sleep.abort();
    // The caller has gone before the answer.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let gauge = &[("operation", "sleep")];
    assert_eq!(server.metric("vllm:sleep_mode_operations_in_flight", gauge).await, Some(1.0));
    assert!(server.is_sleeping().await);
    assert_eq!(server.used(), server.figures.residual, "it was done all the same");
    server
        .until("the gauge to fall", async || {
            server.metric("vllm:sleep_mode_operations_in_flight", gauge).await == Some(0.0)
        })
        .await;
}

async fn request(server: Arc<Server>) {
    let text = server.text(6).await;
    let sleep = under_way(&server).await;
    let asking = Arc::clone(&server);
    let asked = tokio::spawn(async move { asking.text(6).await });
    assert_eq!(sleep.await.expect("a status"), 200);
    server.fast().await;
    assert!(!asked.is_finished());
    server.ok("/wake_up").await;
    assert_eq!(asked.await.expect("an answer"), text);
}

async fn wake_blocks(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    server.slow().await;
    let wake = call(&server, "/wake_up");
    server.until("memory to come", async || server.used() > server.figures.residual).await;
    assert!(!server.is_sleeping().await);
    assert!(now_ns() >= ended(&server, Op::Wake) && server.is_all_awake());
    assert_eq!(wake.await.expect("a status"), 200);
}
