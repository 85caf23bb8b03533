//! Processes: the tree, and what each kind of end leaves (CONTRACT 1.4, 5; fact 10).

use crate::check::{Check, Needs, Start};
use crate::http::Reply;
use crate::server::Server;
use crate::stream::{End, Stream};
use crate::target::Kind;
use hotbunk_sim::ledger::Owner;
use rustix::process::Signal;
use std::sync::Arc;

const CORE: &str = "VLLM::EngineCor";
const WORKER: &str = "VLLM::Worker";

pub(crate) fn checks() -> Vec<Check> {
    let same_step =
        "the next step on unmapped memory is ending.deferred_kill's; a start more would show nothing new";
    vec![
        Check::new(
            "ending.the_tree",
            "5: API server, resource tracker, EngineCore, Worker; one process group",
            tree,
        ),
        // The first takes the shared server, the others one each.
        Check::new(
            "ending.deferred_kill",
            "3.4: after the failed sleep's wake the next request crashes the engine",
            deferred,
        )
        .needs(Needs::Own),
        Check::new("ending.resume_asleep_kills", "1.2: /resume asleep -> crash on next request", resumed)
            .needs(Needs::Own)
            .skip(Kind::Real, same_step),
        Check::new(
            "ending.sigterm_while_streaming",
            "5: engine gone, exit code 0; what clients are told is a race, and the API server may wait for them",
            sigterm,
        )
        .needs(Needs::Own),
        Check::new("ending.sigterm_asleep", "5: a queued client gets 500, or waits and is waited for; exit code 0", sigterm_asleep)
            .needs(Needs::Own),
        Check::new("ending.kill_worker", "5: SIGKILL worker: API port closed, all gone", kill_worker)
            .needs(Needs::Own),
        Check::new(
            "ending.kill_engine_core",
            "5, 1.4: 503 or closed, exit code 0, the worker leaves last",
            kill_core,
        )
        .needs(Needs::Own),
        Check::new(
            "ending.without_sleep_mode",
            "fact 1, 1.1: /sleep without --enable-sleep-mode: 200, frees nothing",
            no_sleep_mode,
        )
        .needs(Needs::Started(Start::AwakeForEver)),
        Check::new(
            "ending.kept_alive_after_death",
            "1.4: VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1 stays up answering 503",
            kept_alive,
        )
        .needs(Needs::OwnStarted(Start::AwakeForEver)),
        Check::new(
            "ending.without_dev_mode",
            "1.1: DEV routes are 404 without VLLM_SERVER_DEV_MODE=1",
            no_dev_mode,
        )
        .needs(Needs::Started(Start::NoDevMode)),
        Check::new(
            "ending.kill_api_server",
            "fact 10: SIGKILL leaves EngineCore + workers alive for ever",
            kill_api,
        )
        .needs(Needs::OwnStarted(Start::NoDevMode)),
    ]
}

async fn streaming(server: &Server) -> Stream {
    let mut stream = server.http.stream("/v1/completions", &Server::body(1900)).await;
    stream.until(5).await;
    stream
}

/// A plain request in the background; `None` where there is no answer.
fn blocking(server: &Arc<Server>) -> tokio::task::JoinHandle<Option<Reply>> {
    let server = Arc::clone(server);
    tokio::spawn(async move {
        let body = Server::body(1900);
        let post = reqwest::Method::POST;
        server.http.attempt(post, "/v1/completions", Some(&body), true, server.patience()).await.ok()
    })
}

/// Aborted, as by a sleep. An engine core that is told to end aborts what it has, and is killed almost at once: either
/// end may be seen of a request, an abort or an error.
fn aborted(reply: &Reply) -> bool {
    reply.status == 200 && reply.json["choices"][0]["finish_reason"] == "abort"
}

/// Asserts that a stream did not end as if it were whole.
#[track_caller]
fn cut_off(end: &End) {
    let told = matches!(end, End::Error | End::Broken) || *end == End::Finish("abort".into());
    assert!(told, "{end:?}");
}

async fn tree(server: Arc<Server>) {
    let all = server.processes();
    let core = server.process(CORE);
    assert_eq!(core.parent, server.pid());
    let worker = server.process(WORKER);
    assert_eq!(worker.parent, core.pid, "{all:?}");
    assert!(
        all.iter().any(|p| p.parent == server.pid() && p.command.contains("resource_tracker")),
        "{all:?}"
    );
    // The device's memory is the worker's.
    let holders: Vec<u32> =
        server.ledger.processes().expect("the ledger").iter().map(|(pid, _, _)| *pid).collect();
    assert_eq!(holders, [worker.pid]);
}

/// What an engine that died of itself leaves: nothing, and exit code 0.
async fn died(server: &Server) {
    assert_eq!(server.ended().await.code(), Some(0), "the exit code tells nothing");
    server.until_gone().await;
}

async fn deferred(server: Arc<Server>) {
    // Memory that a neighbour takes in the window and keeps for ever, as far as the sleep can tell.
    server.arm("neighbour_alloc_in_sleep").await;
    let reply = server.http.post("/sleep?level=1").await;
    assert!(reply.error(500).0.contains("Memory usage increased after sleeping."), "{}", reply.text);
    server.ok("/wake_up").await;
    assert!(!server.is_sleeping().await);
    assert_eq!(server.http.get("/health").await.status, 200);
    let reply = server.http.post_json("/v1/completions", &Server::body(3)).await;
    let (message, _) = reply.error(500);
    assert!(message.contains("EngineCore encountered an issue"), "{message}");
    assert_eq!(server.ended().await.code(), Some(0));
    server.until("the tree to go", async || server.processes().is_empty()).await;
    assert!(server.log().contains("illegal memory access"));
}

async fn resumed(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    server.ok("/resume").await;
    let reply = server.http.post_json("/v1/completions", &Server::body(3)).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    died(&server).await;
}

async fn sigterm(server: Arc<Server>) {
    let mut stream = streaming(&server).await;
    let plain = blocking(&server);
    let two = async || server.metric("vllm:num_requests_running", &[]).await == Some(2.0);
    server.until("both to run", two).await;
    server.signal(server.pid(), Signal::TERM);
    // The engine goes at once, and the device's memory with it.
    server.until("memory to return", async || server.used() == 0).await;
    server.settle().await;
    // What the clients are told is a race: an abort, an error, or nothing at all. In the last case the API server stays
    // until its clients hang up: so whoever stops it must not wait for it alone.
    if stream.is_over() {
        cut_off(&stream.end().await.0);
    }
    drop(stream);
    if plain.is_finished() {
        let reply = plain.await.expect("an end");
        assert!(reply.is_none_or(|r| r.status == 500 || aborted(&r)));
    } else {
        plain.abort();
    }
    died(&server).await;
}

async fn sigterm_asleep(server: Arc<Server>) {
    server.ok("/sleep?level=1").await;
    let queued = blocking(&server);
    server.settle().await;
    server.signal(server.pid(), Signal::TERM);
    server.until("memory to return", async || server.used() == 0).await;
    server.settle().await;
    if queued.is_finished() {
        let reply = queued.await.expect("an end");
        assert!(reply.is_none_or(|r| r.status == 500 || aborted(&r)));
    } else {
        queued.abort();
    }
    died(&server).await;
}

async fn kill_worker(server: Arc<Server>) {
    let mut stream = streaming(&server).await;
    server.signal(server.process(WORKER).pid, Signal::KILL);
    cut_off(&stream.end().await.0);
    server.until("memory to return", async || server.used() == 0).await;
    died(&server).await;
}

async fn kill_core(server: Arc<Server>) {
    let mut stream = streaming(&server).await;
    let worker = server.process(WORKER);
    server.signal(server.process(CORE).pid, Signal::KILL);
    cut_off(&stream.end().await.0);
    let noticed = async || matches!(server.http.try_get("/health").await, Some(503) | None);
    server.until("the death to be told", noticed).await;
    assert_eq!(server.ended().await.code(), Some(0));
    // It holds its memory until it leaves, which need not be before the API server does.
    assert!(Owner::of(worker.pid).is_some() || server.used() == 0);
    server.until_gone().await;
}

async fn kill_api(server: Arc<Server>) {
    let core = server.process(CORE).pid;
    server.signal(server.pid(), Signal::KILL);
    server.ended().await;
    assert_eq!(server.http.try_get("/health").await, None);
    // For ever cannot be shown; some time can.
    server.settle().await;
    server.process(CORE);
    server.process(WORKER);
    assert!(server.is_all_awake(), "they hold the device");
    server.signal(core, Signal::TERM);
    server.until_gone().await;
}

async fn kept_alive(server: Arc<Server>) {
    server.signal(server.process(CORE).pid, Signal::KILL);
    server.until("503", async || server.http.try_get("/health").await == Some(503)).await;
    let reply = server.http.post_json("/v1/completions", &Server::body(3)).await;
    assert_eq!(reply.status, 500, "{}", reply.text);
    assert_eq!(server.http.post("/sleep?level=1").await.status, 500);
    server.settle().await;
    assert_eq!(server.http.try_get("/health").await, Some(503));
    server.signal(server.pid(), Signal::TERM);
    died(&server).await;
}

async fn no_sleep_mode(server: Arc<Server>) {
    let text = server.text(8).await;
    let before = server.used();
    for call in ["/sleep?level=1", "/sleep?level=2"] {
        server.ok(call).await;
        assert!(server.is_sleeping().await);
        assert_eq!(server.used(), before, "{call}");
        server.ok("/wake_up").await;
    }
    server.ok("/sleep?level=0").await;
    server.ok("/release_kv_cache_memory").await;
    assert_eq!(server.used(), before);
    server.ok("/wake_up?tags=kv_cache").await;
    assert_eq!(server.text(8).await, text);
}

async fn no_dev_mode(server: Arc<Server>) {
    for path in [
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/pause",
        "/resume",
        "/abort_requests",
    ] {
        assert_eq!(server.http.post(path).await.status, 404, "{path}");
    }
    for path in ["/is_sleeping", "/is_paused", "/server_info", "/get_world_size"] {
        assert_eq!(server.http.get(path).await.status, 404, "{path}");
    }
    let paths = server.http.get("/openapi.json").await.json;
    assert!(paths["paths"].get("/sleep").is_none() && paths["paths"].get("/health").is_some());
    server.text(3).await;
}
