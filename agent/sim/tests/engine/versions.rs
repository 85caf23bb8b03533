//! What older releases do with sleeping engines.

use crate::harness::*;
use serde_json::json;

#[tokio::test]
async fn up_to_0_16_a_request_to_a_sleeping_engine_kills_it() {
    let node = Node::new();
    let mut engine = node.start("B", &["--version", "0.16"]).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert!(engine.is_sleeping().await);
    assert_eq!(engine.complete(3).await.0, 500);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn up_to_0_16_sleep_lands_on_running_requests_and_kills() {
    let node = Node::new();
    let mut engine = node.start_slow("B", 20.0, &["--version", "0.11.2"]).await;
    let mut stream = engine.stream(3000).await;
    stream.until(3).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(stream.end().await, End::Error);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn from_0_12_to_0_16_a_pause_shields_the_sleeping_engine() {
    let node = Node::new();
    let engine = node.start("B", &["--version", "0.15.1", "--enable-server-load-tracking"]).await;
    let text = engine.text(5).await;
    assert_eq!(engine.post("/pause?wait_for_inflight_requests=true").await, 200);
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    let wake = async {
        engine.until_load(1).await;
        assert_eq!(engine.post("/wake_up").await, 200);
        assert!(!engine.is_sleeping().await);
        engine.until_load(1).await;
        engine.post("/resume").await
    };
    let (answer, resumed) = tokio::join!(engine.text(5), wake);
    assert_eq!((answer, resumed), (text, 200));
}

#[tokio::test]
async fn from_0_17_to_0_23_a_partial_wake_lets_requests_onto_unmapped_memory() {
    let node = Node::new();
    let mut engine = node.start("B", &["--version", "0.20"]).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(engine.post("/wake_up?tags=weights").await, 200);
    assert_eq!(engine.complete(3).await.0, 500);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn resume_on_a_sleeping_engine_is_the_same_trap_in_every_release() {
    let node = Node::new();
    let mut engine = node.start("B", &[]).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(engine.post("/resume").await, 200);
    assert_eq!(engine.complete(3).await.0, 500);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn up_to_0_30_sleep_after_a_partial_wake_does_nothing() {
    let node = Node::new();
    for (version, left) in [("0.30", B_RESIDUAL + B_WEIGHTS), ("0.31", B_RESIDUAL)] {
        let engine = node.start("B", &["--version", version]).await;
        assert_eq!(engine.post("/sleep?level=1").await, 200);
        assert_eq!(engine.post("/wake_up?tags=weights").await, 200);
        let awake = "vllm:engine_sleep_state{engine=\"0\",model_name=\"Qwen3-1.7B\",sleep_state=\"awake\"}";
        let told = if version == "0.30" { 1.0 } else { 0.0 };
        assert_eq!(engine.metric(awake).await, Some(told), "{version}");
        assert_eq!(engine.post("/sleep?level=1").await, 200);
        assert_eq!(node.used(), left, "{version}");
        drop(engine);
        assert_eq!(node.used(), 0);
    }
}

#[tokio::test]
async fn up_to_0_9_2_a_prefix_hit_after_the_wake_is_garbage() {
    let node = Node::new();
    let prompt = json!({ "prompt": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen \
                                    fifteen sixteen seventeen eighteen", "max_tokens": 9, "temperature": 0 });
    for (version, resets, same) in [("0.9.2", false, false), ("0.9.2", true, true), ("0.10.2", false, true)] {
        let engine = node.start("B", &["--version", version, "--kv-cache-memory-bytes", "256MiB"]).await;
        let (_, before) = engine.post_json("/v1/completions", &prompt).await;
        if resets {
            assert_eq!(engine.post("/reset_prefix_cache").await, 200);
        }
        assert_eq!(engine.post("/sleep?level=1").await, 200);
        assert_eq!(engine.post("/wake_up").await, 200);
        let (_, after) = engine.post_json("/v1/completions", &prompt).await;
        let equal = before["choices"][0]["text"] == after["choices"][0]["text"];
        assert_eq!(equal, same, "{version} {resets}");
    }
}

#[tokio::test]
async fn with_two_workers_one_failure_spoils_all_later_calls() {
    let node = Node::new();
    let second = node.second_device();
    let ledgers = format!("{},{}", node.ledger.path().display(), second.path().display());
    let engine = node.start_on(&ledgers, "B", &["--tensor-parallel-size", "2"]).await;
    assert_eq!(node.used(), second.used().unwrap());
    engine.fault("wake_oom", None).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(engine.post("/wake_up").await, 500);
    assert_eq!(engine.post("/wake_up").await, 500);
    assert_eq!(engine.rpc("reload_weights", json!({})).await, 500);
}

#[tokio::test]
async fn from_0_17_to_0_24_a_sleep_must_find_no_request_running() {
    let node = Node::new();
    let mut engine = node.start_slow("B", 20.0, &["--version", "0.24"]).await;
    let mut stream = engine.stream(3000).await;
    stream.until(3).await;
    assert_eq!(engine.post("/sleep?level=1&mode=keep").await, 500);
    assert_eq!(stream.end().await, End::Error);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn level_2_has_its_traps_below_0_27() {
    let node = Node::new();
    let mut engine = node.start("B", &["--version", "0.26"]).await;
    assert_eq!(engine.post("/sleep?level=2").await, 200);
    assert_eq!(engine.post("/wake_up?tags=kv_cache").await, 500, "buffers are written into unmapped weights");
    assert_eq!(engine.ended().await.code(), Some(0));
    // A is quantised: reloading it fails before 0.16.
    let engine = node.start("A", &["--version", "0.15.1"]).await;
    assert_eq!(engine.post("/sleep?level=2").await, 200);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.rpc("reload_weights", json!({})).await, 500);
}

#[tokio::test]
async fn up_to_0_31_bodies_are_empty_and_bad_levels_are_500_or_taken() {
    let node = Node::new();
    let engine = node.start("B", &["--version", "0.31"]).await;
    for call in ["/sleep?level=3", "/wake_up", "/sleep?level=0", "/wake_up?tags=scheduling"] {
        let response = engine.client.post(engine.url(call)).send().await.unwrap();
        assert_eq!(
            (response.status().as_u16(), response.text().await.unwrap().as_str()),
            (200, ""),
            "{call}"
        );
    }
    for call in ["/sleep?level=abc", "/sleep?level=1.0"] {
        assert_eq!(engine.post(call).await, 500, "{call}");
    }
    assert!(!engine.is_sleeping().await);
}
