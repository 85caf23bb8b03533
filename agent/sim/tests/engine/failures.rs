//! The assertion, memory that runs out, and the faults.

use crate::harness::*;
use serde_json::json;

#[tokio::test]
async fn the_wreck_is_repaired_by_the_workers_wake_up_below_0_28() {
    let node = Node::new();
    let engine = node.start("B", &["--version", "0.20"]).await;
    let text = engine.text(9).await;
    engine.fault("neighbour_alloc_in_sleep", None).await;
    assert_eq!(engine.post("/sleep?level=1").await, 500);
    engine.clear_faults().await;
    until("the neighbour to go", async || node.used() == B_RESIDUAL).await;
    assert_eq!(engine.post("/sleep?level=1").await, 500, "a second sleep copies from unmapped pages");
    assert_eq!(engine.rpc("wake_up", json!({})).await, 200);
    assert_eq!(engine.post("/resume").await, 200);
    assert_eq!(node.used(), B_AWAKE);
    assert_eq!(engine.text(9).await, text);
}

#[tokio::test]
async fn below_0_28_a_failed_wake_tried_again_leaks_and_fails() {
    let node = Node::new();
    let engine = node.start("B", &["--version", "0.27.1"]).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    engine.fault("wake_oom", None).await;
    assert_eq!(engine.post("/wake_up").await, 500);
    let half = node.used();
    assert!(half > B_RESIDUAL && half < B_FRESH);
    assert_eq!(engine.post("/wake_up").await, 500);
    let leaked = node.used();
    assert!(leaked > half);
    assert_eq!(engine.post("/wake_up").await, 500);
    assert!(node.used() > leaked);
}

#[tokio::test]
async fn calls_that_fail_on_demand_fail_once_and_change_no_memory() {
    let node = Node::new();
    let engine = node.start("B", &["--fault", "sleep_500", "--fault", "wake_500*2"]).await;
    let text = engine.text(9).await;
    assert_eq!(engine.post("/sleep?level=1").await, 500);
    assert_eq!(node.used(), B_FRESH);
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!([engine.post("/wake_up").await, engine.post("/wake_up").await], [500, 500]);
    assert_eq!(node.used(), B_RESIDUAL);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.text(9).await, text);
    let (status, body) = engine.post_json("/sim/fault", &json!({ "kind": "nonsense" })).await;
    assert_eq!(status, 400);
    assert!(body["detail"].as_str().unwrap().contains("residual_creep"));
}

#[tokio::test]
async fn half_a_release_creep_and_corruption_answer_200() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    let text = engine.text(9).await;
    engine.fault("sleep_frees_half", None).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert!(engine.is_sleeping().await);
    let left = node.used();
    assert!(
        left > B_RESIDUAL + (B_WEIGHTS + B_KV) / 2 - MIB && left < B_RESIDUAL + (B_WEIGHTS + B_KV) / 2 + MIB
    );
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(node.used(), B_AWAKE);
    engine.clear_faults().await;
    engine.fault("residual_creep", Some(100.0)).await;
    for round in 1..=2 {
        assert_eq!(engine.post("/sleep?level=1").await, 200);
        assert_eq!(node.used(), B_RESIDUAL + round * 100 * MIB);
        assert_eq!(engine.post("/wake_up").await, 200);
    }
    assert_eq!(engine.text(9).await, text);
    engine.clear_faults().await;
    engine.fault("corrupt_after_wake", None).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_ne!(engine.text(9).await, text);
    assert_eq!(engine.rpc("reload_weights", json!({})).await, 200);
    assert_eq!(engine.text(9).await, text);
}

#[tokio::test]
async fn a_hanging_sleep_is_not_failed_but_unknown() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    // 400 simulated seconds: 2 s.
    engine.fault("sleep_hang", Some(400.0)).await;
    let impatient =
        engine.client.post(engine.url("/sleep?level=1")).timeout(std::time::Duration::from_millis(600));
    assert!(impatient.send().await.is_err());
    // The call goes on; the next answer comes when it is done.
    assert!(engine.is_sleeping().await);
    assert_eq!(node.used(), B_RESIDUAL);
}

#[tokio::test]
async fn completions_hang_while_health_is_200() {
    let node = Node::new();
    let engine = node.start("B", &["--fault", "completions_hang"]).await;
    let clear = async {
        until("the request to be seen", async || {
            engine.metric("vllm:num_requests_running{").await == Some(1.0)
        })
        .await;
        assert_eq!(engine.get("/health").await.status(), 200);
        assert_eq!(engine.metric("vllm:generation_tokens_total{").await, Some(0.0));
        engine.clear_faults().await;
    };
    let (text, ()) = tokio::join!(engine.text(5), clear);
    assert_eq!(text.split_whitespace().count(), 5);
}

#[tokio::test]
async fn a_core_that_dies_in_sleep_or_wake_gives_all_back() {
    let node = Node::new();
    for fault in ["crash_in_sleep", "crash_in_wake"] {
        let mut engine = node.start("B", &["--fault", fault]).await;
        let slept = engine.post("/sleep?level=1").await;
        if fault == "crash_in_sleep" {
            assert_eq!(slept, 500);
        } else {
            assert_eq!((slept, engine.post("/wake_up").await), (200, 500));
        }
        assert_eq!(engine.ended().await.code(), Some(0));
        assert_eq!(node.used(), 0);
    }
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_stop_the_engine() {
    let node = Node::new();
    let engine = node.start("B", &["--fault", "flood_stderr=2"]).await;
    engine.text(3).await;
    until("the flood", async || engine.log().len() > 2 << 20).await;
}

#[tokio::test]
async fn a_neighbours_wake_in_the_window_of_the_first_sleep_fires_the_assertion() {
    let node = Node::new();
    let a = node.start_slow("A", 100.0, &[]).await;
    assert_eq!(a.post("/sleep?level=1").await, 200);
    // B pins for the first time: long enough for A to take more than B gives.
    let b = node.start_slow("B", 5.0, &[]).await;
    let before = node.used();
    let wake = async {
        until("B to begin", async || node.used() < before).await;
        a.post("/wake_up").await
    };
    let (slept, woken) = tokio::join!(b.post("/sleep?level=1"), wake);
    assert_eq!((slept, woken), (500, 200));
    assert!(a.text(3).await.len() > 3);
    until("A's workspace to go", async || node.used() == 33393 * MIB + B_RESIDUAL).await;
}
