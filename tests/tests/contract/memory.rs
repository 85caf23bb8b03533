//! Memory that runs out or is taken by others: the assertion, its aftermath, repairs (CONTRACT 3.4, 3.5).

use crate::check::Check;
use crate::server::Server;
use serde_json::json;
use std::sync::Arc;
use tokio::task::JoinHandle;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "memory.the_assertion",
            "3.4: fires iff others took more in the window than was released; 500",
            assertion,
        ),
        Check::new(
            "memory.after_it_a_wake_wakes_nothing",
            "3.4: /wake_up -> 200, worker never called",
            wakes_nothing,
        ),
        Check::new(
            "memory.repaired_by_a_second_sleep",
            "3.4: 0.28+: POST /sleep again, same level",
            second_sleep,
        ),
        Check::new(
            "memory.repaired_by_the_workers_wake",
            "3.4: collective_rpc wake_up, then un-pause",
            rpc_wake,
        ),
        Check::new(
            "memory.less_than_released_is_no_failure",
            "3.4: it compares device-wide free memory",
            no_failure,
        ),
        Check::new(
            "memory.out_of_memory_on_wake",
            "3.4: 500, is_sleeping stays true, pages mapped so far stay",
            oom,
        ),
        Check::new(
            "memory.a_failed_wake_goes_on",
            "3.4: 0.28+: POST /wake_up again continues where it stopped",
            goes_on,
        ),
        Check::new(
            "memory.a_failed_wake_given_back",
            "3.4: /sleep is a no-op, collective_rpc sleep gives back",
            given_back,
        ),
        Check::new(
            "memory.a_failed_call_changes_nothing",
            "3.4: a worker that fails at once: 500, engine stays up",
            fails_at_once,
        ),
        Check::new("memory.a_sleep_that_frees_half_is_200", "fact 1: 200 proves little", half),
    ]
}

const ASSERTION: &str = "Memory usage increased after sleeping.";

/// A slow sleep in whose window a neighbour takes so many bytes; its status and body.
async fn sleep_beside(server: &Arc<Server>, bytes: u64) -> crate::http::Reply {
    server.slow().await;
    let sleeping = Arc::clone(server);
    let sleep: JoinHandle<_> =
        tokio::spawn(async move { sleeping.http.post("/sleep?level=1&mode=wait").await });
    server.until("memory to go", async || !server.is_all_awake()).await;
    assert!(server.crowd(bytes));
    assert!(!sleep.is_finished(), "the window has closed too soon");
    let reply = sleep.await.expect("an answer");
    server.fast().await;
    reply
}

/// A sleep that the assertion fails, with the neighbour gone again.
async fn failed(server: &Arc<Server>) {
    let released = server.figures.weights + server.figures.kv + server.figures.growth;
    let reply = sleep_beside(server, released + (1 << 28)).await;
    let (message, _) = reply.error(500);
    assert!(message.starts_with("Call to sleep method failed: Worker failed with error '"), "{message}");
    assert!(message.contains(ASSERTION), "{message}");
    server.uncrowd();
    assert_eq!(server.used(), server.figures.residual, "memory HAS been released");
}

async fn assertion(server: Arc<Server>) {
    failed(&server).await;
    assert!(server.is_sleeping().await, "because the scheduler is paused");
    assert!(server.is_paused().await);
    assert_eq!(server.sleep_state().await, [1.0, 0.0, 0.0]);
    assert_eq!(server.http.get("/health").await.status, 200);
    server.ok("/sleep?level=1").await;
}

async fn wakes_nothing(server: Arc<Server>) {
    let text = server.text(8).await;
    failed(&server).await;
    assert_eq!(server.ok("/wake_up").await, json!({ "status": "awake", "tags": null }));
    assert_eq!(server.used(), server.figures.residual);
    assert!(!server.is_sleeping().await && !server.is_paused().await, "the next request would kill it");
    // Not too late: no request has come.
    server.ok("/sleep?level=1").await;
    server.ok("/wake_up").await;
    assert!(server.is_all_awake());
    assert_eq!(server.text(8).await, text);
}

async fn second_sleep(server: Arc<Server>) {
    let text = server.text(8).await;
    failed(&server).await;
    server.ok("/sleep?level=1").await;
    assert_eq!(server.used(), server.figures.residual);
    assert_eq!(server.sleep_state().await, [0.0, 1.0, 0.0]);
    server.ok("/wake_up").await;
    assert!(server.is_all_awake());
    assert_eq!(server.text(8).await, text);
}

async fn rpc_wake(server: Arc<Server>) {
    let text = server.text(8).await;
    failed(&server).await;
    server.rpc("wake_up", json!({})).await;
    assert!(server.is_all_awake());
    assert!(server.is_sleeping().await, "still paused");
    server.ok("/resume").await;
    assert!(!server.is_sleeping().await);
    assert_eq!(server.text(8).await, text);
}

async fn no_failure(server: Arc<Server>) {
    let reply = sleep_beside(&server, server.figures.weights / 2).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(server.used(), server.figures.residual + server.figures.weights / 2);
    server.uncrowd();
}

/// A wake that runs out of memory with this much room; what it had mapped.
async fn short(server: &Server, room: u64) -> u64 {
    server.ok("/sleep?level=1").await;
    server.crowd_to(room);
    let before = server.used();
    let reply = server.http.post("/wake_up").await;
    let (message, _) = reply.error(500);
    assert!(message.starts_with("Call to wake_up method failed: Worker failed with error '"), "{message}");
    assert!(message.contains("out of memory"), "{message}");
    server.used() - before
}

async fn oom(server: Arc<Server>) {
    let mapped = short(&server, server.figures.weights / 2).await;
    assert!(mapped > 0 && mapped <= server.figures.weights / 2, "{mapped}");
    assert!(server.is_sleeping().await && server.is_paused().await);
    assert_eq!(server.http.get("/health").await.status, 200);
    assert_eq!(server.sleep_state().await, [0.0, 1.0, 0.0]);
}

async fn goes_on(server: Arc<Server>) {
    let text = server.text(8).await;
    // Room for the weights and not for the KV cache.
    let mapped = short(&server, server.figures.weights + (1 << 28)).await;
    assert!(mapped >= server.figures.weights, "{mapped}");
    assert_eq!(server.http.post("/wake_up").await.status, 500, "still no room");
    server.uncrowd();
    assert_eq!(server.ok("/wake_up").await["status"], "awake");
    assert!(server.is_all_awake());
    assert_eq!(server.text(8).await, text);
}

async fn given_back(server: Arc<Server>) {
    let text = server.text(8).await;
    let mapped = short(&server, server.figures.weights / 2).await;
    let held = server.used();
    server.ok("/sleep?level=1").await;
    assert_eq!(server.used(), held, "still flagged asleep");
    server.rpc("sleep", json!({ "level": 1 })).await;
    assert_eq!(server.used(), held - mapped);
    server.uncrowd();
    server.ok("/wake_up").await;
    assert!(server.is_all_awake());
    assert_eq!(server.text(8).await, text);
}

async fn fails_at_once(server: Arc<Server>) {
    let text = server.text(8).await;
    server.arm("sleep_500").await;
    assert_eq!(server.http.post("/sleep?level=1").await.status, 500);
    assert!(server.is_all_awake());
    assert!(server.is_sleeping().await, "paused");
    server.ok("/sleep?level=1").await;
    server.arm("wake_500").await;
    assert_eq!(server.http.post("/wake_up").await.status, 500);
    assert_eq!(server.used(), server.figures.residual);
    assert!(server.is_sleeping().await);
    server.ok("/wake_up").await;
    assert_eq!(server.text(8).await, text);
}

async fn half(server: Arc<Server>) {
    let text = server.text(8).await;
    server.arm("sleep_frees_half").await;
    server.ok("/sleep?level=1").await;
    assert!(server.is_sleeping().await);
    let left = server.used() - server.figures.residual;
    let kept = (server.figures.weights + server.figures.kv) / 2;
    assert!(left.abs_diff(kept) < 1 << 20, "{left} of {kept}");
    server.ok("/wake_up").await;
    assert!(server.is_all_awake());
    assert_eq!(server.text(8).await, text);
}
