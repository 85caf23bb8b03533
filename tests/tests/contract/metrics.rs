//! Metrics: their names, and what they say asleep (CONTRACT 2).

use crate::check::Check;
use crate::server::{Server, value};
use crate::stream::End;
use std::sync::Arc;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("metrics.names", "2: names of 0.12+ and of 0.32, labels engine and model_name", names),
        Check::new("metrics.sleep_state", "2: recorded by the API server, from the answers", sleep_state),
        Check::new("metrics.operations", "2: duration counts no-ops and failures too [run]", operations),
        Check::new(
            "metrics.outcomes_and_progress",
            "2: request_success, iteration and generation tokens",
            outcomes,
        ),
        Check::new(
            "metrics.load_needs_its_flag",
            "1.1: /load stays 0 unless --enable-server-load-tracking",
            load,
        ),
    ]
}

async fn names(server: Arc<Server>) {
    // Histograms that tell of operations appear with the first of a kind.
    server.ok("/sleep?level=0").await;
    server.ok("/release_kv_cache_memory").await;
    server.ok("/wake_up").await;
    server.text(3).await;
    let page = server.http.get("/metrics").await;
    assert!(page.content_type.starts_with("text/plain"), "{}", page.content_type);
    let labels = [("engine", "0"), ("model_name", crate::target::MODEL)];
    for name in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:engine_sleep_state",
        "vllm:time_to_first_token_seconds_sum",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_success_total",
        "vllm:iteration_tokens_total_count",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:num_preemptions_total",
    ] {
        assert!(value(&page.text, name, &labels).is_some(), "{name}");
    }
    for operation in ["sleep", "wake", "release_kv_cache_memory"] {
        for name in ["duration_seconds_sum", "duration_seconds_count", "in_flight"] {
            let name = match name {
                "in_flight" => "vllm:sleep_mode_operations_in_flight".to_owned(),
                other => format!("vllm:sleep_mode_operation_{other}"),
            };
            assert!(value(&page.text, &name, &[("operation", operation)]).is_some(), "{name} {operation}");
        }
    }
    assert!(value(&page.text, "process_resident_memory_bytes", &[]).is_some_and(|v| v > 0.0));
}

async fn sleep_state(server: Arc<Server>) {
    for (call, state) in [
        ("/wake_up", [1.0, 0.0, 0.0]),
        ("/sleep?level=1", [0.0, 1.0, 0.0]),
        // A no-op, and believed.
        ("/sleep?level=2", [0.0, 0.0, 1.0]),
        ("/wake_up?tags=weights", [0.0, 0.0, 1.0]),
        ("/wake_up?tags=kv_cache", [1.0, 0.0, 0.0]),
        ("/sleep?level=0&mode=wait", [0.0, 0.0, 0.0]),
        ("/release_kv_cache_memory", [0.0, 0.0, 0.0]),
        ("/wake_up?tags=kv_cache", [1.0, 0.0, 0.0]),
    ] {
        server.ok(call).await;
        assert_eq!(server.sleep_state().await, state, "{call}");
    }
}

async fn operations(server: Arc<Server>) {
    let count = async |operation: &str| {
        let name = "vllm:sleep_mode_operation_duration_seconds_count";
        server.metric(name, &[("operation", operation)]).await.unwrap_or(0.0)
    };
    let [sleeps, wakes, releases] =
        [count("sleep").await, count("wake").await, count("release_kv_cache_memory").await];
    server.ok("/wake_up").await;
    assert_eq!(server.http.post("/release_kv_cache_memory").await.status, 500);
    server.ok("/sleep?level=1").await;
    server.ok("/sleep?level=1").await;
    assert_eq!(server.http.post("/sleep?level=7").await.status, 400);
    server.ok("/wake_up").await;
    assert_eq!(count("sleep").await, sleeps + 2.0, "a refused one does not count");
    assert_eq!(count("wake").await, wakes + 2.0, "a no-op does");
    assert_eq!(count("release_kv_cache_memory").await, releases + 1.0, "a failed one does");
}

async fn outcomes(server: Arc<Server>) {
    let ended = async |reason: &str| {
        server.metric("vllm:request_success_total", &[("finished_reason", reason)]).await.unwrap_or(0.0)
    };
    let count = async |name: &str| server.metric(name, &[]).await.unwrap_or(0.0);
    let (length, abort) = (ended("length").await, ended("abort").await);
    let (tokens, steps) =
        (count("vllm:generation_tokens_total").await, count("vllm:iteration_tokens_total_count").await);
    server.text(40).await;
    server.until("the request to be counted", async || ended("length").await == length + 1.0).await;
    assert_eq!(count("vllm:generation_tokens_total").await, tokens + 40.0);
    let steps = count("vllm:iteration_tokens_total_count").await - steps;
    // A step that only tells of the end may come on top.
    assert!((40.0..=42.0).contains(&steps), "{steps}");
    let mut stream = server.http.stream("/v1/completions", &Server::body(1500)).await;
    stream.until(3).await;
    server.ok("/sleep?level=0&mode=abort").await;
    assert_eq!(stream.end().await.0, End::Finish("abort".into()));
    server.until("the abort to be counted", async || ended("abort").await == abort + 1.0).await;
}

async fn load(server: Arc<Server>) {
    let mut stream = server.http.stream("/v1/completions", &Server::body(1500)).await;
    stream.until(3).await;
    assert_eq!(server.http.get("/load").await.json["server_load"], 0);
}
