//! Requests before, during and after a sleep, in its three modes (CONTRACT 1.2, 7).

use crate::check::Check;
use crate::server::Server;
use crate::stream::{End, Stream};
use serde_json::json;
use std::sync::Arc;

/// Tokens of a stream that must not end before it is disturbed.
const LONG: u32 = 1500;
const COMPLETIONS: &str = "/v1/completions";

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new(
            "requests.asleep_they_hang_and_are_served",
            "fact 4: accepted, HANG until wake, then served [run]",
            hang,
        ),
        Check::new(
            "requests.asleep_a_partial_wake_serves_none",
            "1.2: partial wake keeps the scheduler paused (0.24+)",
            hang_partially,
        ),
        Check::new("requests.asleep_and_gone", "a queued request whose client has gone is forgotten", gone),
        Check::new(
            "requests.abort_ends_them",
            "1.2: mode=abort: 200 with finish_reason abort, partial tokens [run]",
            abort,
        ),
        Check::new(
            "requests.queued_are_aborted_by_the_next_sleep",
            "1.2: the same for requests queued in a sleeping engine",
            queued,
        ),
        Check::new(
            "requests.queued_outlive_mode_wait",
            "seen on 0.32: a 2nd sleep with mode=wait leaves them",
            queued_wait,
        ),
        Check::new(
            "requests.wait_drains",
            "1.2: mode=wait returns after the last request ends; fact 3",
            wait,
        ),
        Check::new(
            "requests.wait_holds_new_ones",
            "fact 4, mode=wait: PAUSED_NEW queues what comes",
            wait_new,
        ),
        Check::new(
            "requests.keep_freezes_level_1",
            "7: sleep?level=1&mode=keep, wake_up: identical",
            keep_level_1,
        ),
        Check::new(
            "requests.keep_freezes_parked",
            "7: level 0 keep, release, wake kv_cache: identical",
            keep_parked,
        ),
        Check::new(
            "requests.keep_freezes_demoted",
            "7: level 0 keep, release, level 1 keep: identical",
            keep_demoted,
        ),
        Check::new(
            "requests.keep_then_wait_unfreezes",
            "seen on 0.32: level 1 wait after a level 0 keep lets them run",
            unfreeze,
        ),
        Check::new(
            "requests.parked_then_wait_stays_frozen",
            "seen on 0.32: after the release it sleeps at once",
            parked_wait,
        ),
        Check::new(
            "requests.frozen_then_abort_ends_them",
            "1.2: mode=abort ends whatever there is",
            frozen_abort,
        ),
        Check::new(
            "requests.frozen_hold_their_blocks",
            "1.1: reset_prefix_cache is {\"success\":false} while blocks are held",
            frozen_reset,
        ),
        Check::new(
            "requests.pause_keep_and_resume",
            "1.1: /pause?mode=keep, /resume: the stream goes on",
            pause_keep,
        ),
        Check::new("requests.one_of_two_is_aborted", "1.1: /abort_requests {\"request_ids\"}", abort_one),
        Check::new(
            "requests.a_client_that_goes_frees_the_engine",
            "seen on 0.32: running is 0 soon after",
            client_gone,
        ),
    ]
}

/// A long stream that has begun.
async fn begun(server: &Server, chunks: usize) -> Stream {
    let mut stream = server.http.stream(COMPLETIONS, &Server::body(LONG)).await;
    assert_eq!(stream.status, 200);
    stream.until(chunks).await;
    stream
}

/// Freezes a long stream on its way by these calls. On a machine whose cores are all taken a stream may end before the
/// call reaches the scheduler; then it is done again.
async fn frozen(server: &Server, calls: &[&str]) -> Stream {
    for _ in 0..6 {
        let stream = begun(server, 10).await;
        for call in calls {
            server.ok(call).await;
        }
        // What was made before the freeze may still be on its way.
        let mut before = usize::MAX;
        while stream.chunks() != before {
            before = stream.chunks();
            server.settle().await;
        }
        if !stream.is_over() {
            return stream;
        }
        server.ok("/wake_up").await;
    }
    panic!("no stream could be frozen on its way in six attempts");
}

/// The undisturbed text.
async fn whole(server: &Server) -> &str {
    server.whole(LONG).await
}

/// A request of a few tokens that waits, in the background.
fn waiting(server: &Arc<Server>, tokens: u32) -> tokio::task::JoinHandle<crate::http::Reply> {
    let server = Arc::clone(server);
    tokio::spawn(async move { server.http.post_json(COMPLETIONS, &Server::body(tokens)).await })
}

async fn running(server: &Server) -> Option<f64> {
    server.metric("vllm:num_requests_running", &[]).await
}

async fn hang(server: Arc<Server>) {
    let text = server.text(8).await;
    server.ok("/sleep?level=1").await;
    let answer = waiting(&server, 8);
    server.settle().await;
    assert!(!answer.is_finished(), "no 503, no timeout");
    // Updated only when the engine steps: it shows nowhere.
    assert_eq!(running(&server).await, Some(0.0));
    assert_eq!(server.metric("vllm:num_requests_waiting", &[]).await, Some(0.0));
    assert_eq!(server.http.get("/health").await.status, 200);
    server.ok("/wake_up").await;
    let reply = answer.await.expect("an answer");
    assert_eq!((reply.status, &reply.json["choices"][0]["text"]), (200, &json!(text)));
}

async fn hang_partially(server: Arc<Server>) {
    let text = server.text(8).await;
    server.ok("/sleep?level=1").await;
    let answer = waiting(&server, 8);
    server.settle().await;
    server.ok("/wake_up?tags=weights").await;
    server.settle().await;
    assert!(!answer.is_finished());
    server.ok("/wake_up?tags=kv_cache").await;
    let reply = answer.await.expect("an answer");
    assert_eq!((reply.status, &reply.json["choices"][0]["text"]), (200, &json!(text)));
}

async fn gone(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    let answer = waiting(&server, LONG);
    server.settle().await;
    answer.abort();
    server.settle().await;
    server.ok("/wake_up").await;
    server.until("an idle engine", async || running(&server).await == Some(0.0)).await;
    server.text(3).await;
}

async fn abort(server: Arc<Server>) {
    for level in [0, 1] {
        let mut stream = begun(&server, 5).await;
        let plain = waiting(&server, LONG);
        server.until("both to run", async || running(&server).await == Some(2.0)).await;
        server.ok(&format!("/sleep?level={level}&mode=abort")).await;
        let (end, _) = stream.end().await;
        assert_eq!(end, End::Finish("abort".into()));
        let reply = plain.await.expect("an answer");
        assert_eq!((reply.status, &reply.json["choices"][0]["finish_reason"]), (200, &json!("abort")));
        let tokens = reply.json["usage"]["completion_tokens"].as_u64().expect("a count");
        assert!(tokens < u64::from(LONG), "{tokens}");
        server.ok("/wake_up").await;
    }
}

async fn queued(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    let answer = waiting(&server, 8);
    server.settle().await;
    // A no-op but for this. The default mode is abort.
    server.ok("/sleep?level=1").await;
    let reply = answer.await.expect("an answer");
    let choice = &reply.json["choices"][0];
    assert_eq!((reply.status, &choice["finish_reason"], &choice["text"]), (200, &json!("abort"), &json!("")));
    assert_eq!(reply.json["usage"]["completion_tokens"], 0);
    server.ok("/wake_up").await;
}

async fn queued_wait(server: Arc<Server>) {
    let text = server.text(8).await;
    server.ok("/sleep?level=1").await;
    let answer = waiting(&server, 8);
    server.settle().await;
    server.ok("/sleep?level=1&mode=wait").await;
    server.settle().await;
    assert!(!answer.is_finished());
    server.ok("/wake_up").await;
    assert_eq!(answer.await.expect("an answer").json["choices"][0]["text"], text);
}

/// A sleep in the background.
fn sleeping(server: &Arc<Server>, path: &'static str) -> tokio::task::JoinHandle<u16> {
    let server = Arc::clone(server);
    tokio::spawn(async move { server.http.post(path).await.status })
}

async fn wait(server: Arc<Server>) {
    let mut stream = begun(&server, 5).await;
    let sleep = sleeping(&server, "/sleep?level=1&mode=wait");
    server.until("the pause", async || server.is_sleeping().await || stream.is_over()).await;
    // True before memory is freed: the drain is still on.
    assert!(stream.is_over() || (!sleep.is_finished() && server.is_all_awake()));
    let (end, text) = stream.end().await;
    assert_eq!(end, End::Finish("length".into()));
    assert_eq!(sleep.await.expect("a status"), 200);
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
    assert!(whole(&server).await == text, "it ran to its own end");
}

async fn wait_new(server: Arc<Server>) {
    let text = server.text(8).await;
    let mut stream = begun(&server, 5).await;
    let sleep = sleeping(&server, "/sleep?level=1&mode=wait");
    server.until("the pause", async || server.is_sleeping().await).await;
    let late = waiting(&server, 8);
    assert_eq!(stream.end().await.0, End::Finish("length".into()));
    assert_eq!(sleep.await.expect("a status"), 200);
    server.settle().await;
    assert!(!late.is_finished(), "it came too late to be waited for");
    server.ok("/wake_up").await;
    assert_eq!(late.await.expect("an answer").json["choices"][0]["text"], text);
}

/// Frozen by some calls, with this much of the device in use, woken by another: the text is the undisturbed one's.
async fn goes_on(server: &Server, down: &[&str], used: impl Fn(&Server), up: &str) {
    let text = whole(server).await;
    let mut stream = frozen(server, down).await;
    used(server);
    assert!(server.is_sleeping().await);
    let before = stream.chunks();
    let steps = server.metric("vllm:iteration_tokens_total_count", &[]).await;
    server.settle().await;
    assert_eq!(stream.chunks(), before, "nothing comes");
    assert_eq!(server.metric("vllm:iteration_tokens_total_count", &[]).await, steps);
    assert_eq!(running(server).await, Some(1.0), "a frozen request still counts");
    server.ok(up).await;
    let (end, got) = stream.end().await;
    assert_eq!(end, End::Finish("length".into()));
    assert!(got == text, "the text differs after {down:?}");
}

async fn keep_level_1(server: Arc<Server>) {
    let asleep = |s: &Server| assert_eq!(s.used(), s.figures.residual);
    goes_on(&server, &["/sleep?level=1&mode=keep"], asleep, "/wake_up").await;
}

const PARK: [&str; 2] = ["/sleep?level=0&mode=keep", "/release_kv_cache_memory"];

async fn keep_parked(server: Arc<Server>) {
    goes_on(&server, &PARK, Server::holds_weights_alone, "/wake_up?tags=kv_cache").await;
}

async fn keep_demoted(server: Arc<Server>) {
    let asleep = |s: &Server| assert_eq!(s.used(), s.figures.residual);
    goes_on(&server, &[PARK[0], PARK[1], "/sleep?level=1&mode=keep"], asleep, "/wake_up").await;
}

async fn unfreeze(server: Arc<Server>) {
    let text = whole(&server).await;
    let mut stream = frozen(&server, &["/sleep?level=0&mode=keep"]).await;
    let sleep = sleeping(&server, "/sleep?level=1&mode=wait");
    let (end, got) = stream.end().await;
    assert_eq!(end, End::Finish("length".into()));
    assert!(got == text);
    assert_eq!(sleep.await.expect("a status"), 200);
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
}

async fn parked_wait(server: Arc<Server>) {
    let asleep = |s: &Server| assert_eq!(s.used(), s.figures.residual);
    goes_on(&server, &[PARK[0], PARK[1], "/sleep?level=1&mode=wait"], asleep, "/wake_up").await;
}

async fn frozen_abort(server: Arc<Server>) {
    let mut stream = frozen(&server, &PARK).await;
    server.ok("/sleep?level=1&mode=abort").await;
    assert_eq!(stream.end().await.0, End::Finish("abort".into()));
    assert_eq!(server.used(), server.figures.residual);
    server.ok("/wake_up").await;
}

async fn frozen_reset(server: Arc<Server>) {
    let text = whole(&server).await;
    let mut stream = frozen(&server, &["/sleep?level=0&mode=keep"]).await;
    assert_eq!(server.ok("/reset_prefix_cache").await, json!({ "success": false }));
    assert_eq!(
        server.ok("/reset_prefix_cache?reset_running_requests=true").await,
        json!({ "success": true })
    );
    server.ok("/wake_up").await;
    let (end, got) = stream.end().await;
    assert_eq!(end, End::Finish("length".into()));
    assert!(got == text, "it is computed again");
}

async fn pause_keep(server: Arc<Server>) {
    let text = whole(&server).await;
    let mut stream = frozen(&server, &["/pause?mode=keep"]).await;
    assert!(server.is_paused().await);
    server.ok("/resume").await;
    let (end, got) = stream.end().await;
    assert_eq!(end, End::Finish("length".into()));
    assert!(got == text);
}

async fn abort_one(server: Arc<Server>) {
    let mut doomed = begun(&server, 2).await;
    let mut spared = begun(&server, 1).await;
    let id = doomed.seen().id.clone();
    let aborts = async |id: &str| {
        let reply = server.http.post_json("/abort_requests", &json!({ "request_ids": [id] })).await;
        assert_eq!((reply.status, reply.json), (200, json!({ "status": "aborted", "aborted": 1 })));
    };
    // The engine knows a completion by its prompt's number too: with the id alone nothing happens, and it says 1.
    aborts(&id).await;
    server.settle().await;
    let was_spared = !doomed.is_over();
    aborts(&format!("{id}-0")).await;
    let (end, _) = doomed.end().await;
    assert!(end == End::Finish("abort".into()) || !was_spared, "{end:?}");
    assert_ne!(spared.seen().end, Some(End::Finish("abort".into())));
    // A chat it knows by its id.
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": LONG, "ignore_eos": true });
    let mut chat = server.http.stream("/v1/chat/completions", &body).await;
    chat.until(2).await;
    let id = chat.seen().id.clone();
    aborts(&id).await;
    assert_eq!(chat.end().await.0, End::Finish("abort".into()));
    let told = server.http.post_json("/abort_requests", &json!({})).await.json;
    assert_eq!(told["status"], "aborted");
    assert!(told["aborted"].is_u64(), "{told}");
    let (end, _) = spared.end().await;
    assert!(matches!(end, End::Finish(_)), "{end:?}");
}

async fn client_gone(server: Arc<Server>) {
    let stream = begun(&server, 5).await;
    drop(stream);
    server.until("an idle engine", async || running(&server).await == Some(0.0)).await;
}
