//! Sleeping, waking, parking, freezing: where all goes well.

use crate::harness::*;
use hotbunk_sim::oplog::Op;
use serde_json::{Value, json};

#[tokio::test]
async fn level_1_gives_back_all_but_the_residual_and_the_text_stays() {
    let node = Node::new();
    let engine = node.start_slow("B", 5.0, &[]).await;
    assert_eq!(node.used(), B_FRESH);
    let text = engine.text(20).await;
    assert_eq!(engine.post("/sleep?level=1&mode=wait").await, 200);
    assert_eq!(node.used(), B_RESIDUAL);
    assert!(engine.is_sleeping().await);
    assert_eq!(engine.metric("vllm:engine_sleep_state{engine=\"0\",model_name=\"Qwen3-1.7B\",sleep_state=\"weights_offloaded\"}").await, Some(1.0));
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(node.used(), B_AWAKE);
    assert!(!engine.is_sleeping().await);
    assert_eq!(engine.text(20).await, text);
    assert_eq!(engine.post("/sleep").await, 200);
    let sleeps: Vec<u64> = node
        .operations()
        .iter()
        .filter(|o| o.op == Op::Sleep && o.ok)
        .map(|o| o.ended_ns - o.began_ns)
        .collect();
    // The first pins host memory: 2.07 s against 0.18 s in the profile.
    assert!(sleeps.len() == 2 && sleeps[0] >= 410_000_000 && sleeps[1] < sleeps[0], "{sleeps:?}");
}

#[tokio::test]
async fn is_sleeping_waits_for_the_copy() {
    let node = Node::new();
    let engine = node.start_slow("B", 20.0, &[]).await;
    let sleep = engine.post("/sleep?level=1");
    let ask = async {
        until("memory to go", async || node.used() < B_FRESH).await;
        (engine.is_sleeping().await, now())
    };
    let (status, (is_sleeping, answered)) = tokio::join!(sleep, ask);
    assert!(status == 200 && is_sleeping);
    let sleep = node.operations().into_iter().find(|o| o.op == Op::Sleep).unwrap();
    assert!(answered >= sleep.ended_ns);
}

#[tokio::test]
async fn level_2_without_reload_speaks_otherwise_and_with_it_the_same() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    let text = engine.text(20).await;
    assert_eq!(engine.post("/sleep?level=2&mode=abort").await, 200);
    assert_eq!(node.used(), B_RESIDUAL);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_ne!(engine.text(20).await, text);

    assert_eq!(engine.post("/sleep?level=2&mode=abort").await, 200);
    assert_eq!(engine.post("/wake_up?tags=weights").await, 200);
    assert_eq!(node.used(), B_RESIDUAL + B_WEIGHTS);
    assert!(engine.is_sleeping().await);
    assert_eq!(engine.rpc("reload_weights", json!({})).await, 200);
    assert_eq!(engine.post("/wake_up?tags=kv_cache").await, 200);
    let reset = engine.client.post(engine.url("/reset_prefix_cache")).send().await.unwrap();
    assert_eq!(reset.json::<Value>().await.unwrap(), json!({ "success": true }));
    assert_eq!(engine.text(20).await, text);
}

#[tokio::test]
async fn what_does_nothing_answers_200() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(engine.post("/sleep?level=2").await, 200);
    let discard =
        "vllm:engine_sleep_state{engine=\"0\",model_name=\"Qwen3-1.7B\",sleep_state=\"discard_all\"}";
    assert_eq!(engine.metric(discard).await, Some(1.0), "the front end believes the no-op");
    assert_eq!(engine.post("/wake_up?tags=nothing").await, 200);
    assert_eq!(node.used(), B_RESIDUAL);
    assert_eq!(engine.post("/wake_up?tags=weights").await, 200);
    assert_eq!(engine.post("/wake_up?tags=weights&tags=kv_cache").await, 200);
    assert_eq!(node.used(), B_RESIDUAL + B_WEIGHTS, "one tag that is awake makes the call a no-op");
    assert_eq!(engine.post("/wake_up?tags=kv_cache").await, 200);
    assert_eq!(node.used(), B_AWAKE);
    assert_eq!(engine.text(3).await.split_whitespace().count(), 3);
    // A body is no parameter: level 1.
    assert_eq!(engine.post_json("/sleep", &json!({ "level": 2 })).await.0, 200);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.rpc("no_such_method", json!({})).await, 500);
    assert_eq!(engine.post_json("/collective_rpc", &json!({})).await.0, 400);
    assert_eq!(engine.post("/sleep?level=abc").await, 500);
}

#[tokio::test]
async fn without_sleep_mode_nothing_is_freed_and_the_answer_is_200() {
    let node = Node::new();
    let engine = node.start("B", &[NO_SLEEP_MODE]).await;
    let before = node.used();
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert_eq!(node.used(), before);
    assert!(engine.is_sleeping().await);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.text(3).await.split_whitespace().count(), 3);
}

#[tokio::test]
async fn parking_needs_a_pause_and_returns_the_kv_cache_alone() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    let text = engine.text(20).await;
    assert_eq!(engine.post("/release_kv_cache_memory").await, 500);
    assert_eq!(engine.post("/sleep?level=0&mode=wait").await, 200);
    assert_eq!(node.used(), B_FRESH);
    assert_eq!(engine.post("/release_kv_cache_memory").await, 200);
    assert_eq!(node.used(), B_RESIDUAL + B_WEIGHTS);
    assert_eq!(engine.post("/release_kv_cache_memory").await, 500, "not all memory is resident");
    assert_eq!(engine.post("/wake_up?tags=kv_cache").await, 200);
    assert_eq!(node.used(), B_AWAKE);
    assert_eq!(engine.text(20).await, text);

    // Demoted from parked, and woken whole.
    assert_eq!(engine.post("/sleep?level=0&mode=wait").await, 200);
    assert_eq!(engine.post("/release_kv_cache_memory").await, 200);
    assert_eq!(engine.post("/sleep?level=1&mode=wait").await, 200);
    assert_eq!(node.used(), B_RESIDUAL);
    assert_eq!(engine.post("/wake_up").await, 200);
    assert_eq!(engine.text(20).await, text);
    // Level 0 alone is left by the tag `scheduling`.
    assert_eq!(engine.post("/sleep?level=0&mode=wait").await, 200);
    assert!(engine.is_sleeping().await);
    assert_eq!(engine.post("/wake_up?tags=scheduling").await, 200);
    assert!(!engine.is_sleeping().await);
}

#[tokio::test]
async fn frozen_streams_go_on_byte_for_byte_through_parking_level_1_and_demotion() {
    let node = Node::new();
    let engine = node.start_slow("B", 8.0, &[]).await;
    let expected = engine.text(1200).await;
    let park = ["/sleep?level=0&mode=keep", "/release_kv_cache_memory"];
    let level_1 = ["/sleep?level=1&mode=keep"];
    let demote = ["/sleep?level=0&mode=keep", "/release_kv_cache_memory", "/sleep?level=1&mode=keep"];
    let waits = ["/sleep?level=0&mode=keep", "/release_kv_cache_memory", "/sleep?level=1&mode=wait"];
    for (down, up) in [
        (&park[..], "/wake_up?tags=kv_cache"),
        (&level_1, "/wake_up"),
        (&demote, "/wake_up"),
        (&waits, "/wake_up"),
    ] {
        let mut stream = engine.stream(1200).await;
        stream.until(40).await;
        for call in down {
            assert_eq!(engine.post(call).await, 200, "{call}");
        }
        assert!(stream.tokens < 1200, "it was frozen on its way");
        assert!(node.used() < B_AWAKE);
        let steps = engine.metric("vllm:iteration_tokens_total_count{").await;
        assert_eq!(
            engine.metric("vllm:num_requests_running{").await,
            Some(1.0),
            "a frozen request still counts"
        );
        assert_eq!(engine.metric("vllm:iteration_tokens_total_count{").await, steps);
        assert_eq!(engine.post(up).await, 200);
        assert_eq!(stream.end().await, End::Finish("length".into()));
        assert!(stream.text == expected, "the text differs after {down:?}");
    }
}

#[tokio::test]
async fn a_sleep_that_aborts_ends_streams_and_plain_requests_with_200() {
    let node = Node::new();
    let engine = node.start_slow("B", 5.0, &["--enable-server-load-tracking"]).await;
    let mut stream = engine.stream(3000).await;
    stream.until(2).await;
    let plain = engine.complete(3000);
    let sleep = async {
        engine.until_load(2).await;
        engine.post("/sleep?level=0&mode=abort").await
    };
    let ((status, body), slept) = tokio::join!(plain, sleep);
    assert_eq!((status, slept), (200, 200));
    assert_eq!(body["choices"][0]["finish_reason"], "abort");
    assert_eq!(stream.end().await, End::Finish("abort".into()));
    assert_eq!(
        engine
            .metric(
                "vllm:request_success_total{engine=\"0\",model_name=\"Qwen3-1.7B\",finished_reason=\"abort\"}"
            )
            .await,
        Some(2.0)
    );

    // Queued in a sleeping engine: aborted by the next sleep.
    let queued = engine.complete(3);
    let again = async {
        engine.until_load(1).await;
        engine.post("/sleep?level=0").await
    };
    let ((status, body), _) = tokio::join!(queued, again);
    assert_eq!((status, &body["choices"][0]["finish_reason"]), (200, &json!("abort")));
}

#[tokio::test]
async fn mode_wait_returns_after_the_last_token_and_is_sleeping_is_true_before() {
    let node = Node::new();
    let engine = node.start_slow("B", 4.0, &[]).await;
    let mut stream = engine.stream(400).await;
    stream.until(2).await;
    let sleep = async {
        let status = engine.post("/sleep?level=1&mode=wait").await;
        (status, now())
    };
    let read = async {
        until("the pause", async || engine.is_sleeping().await).await;
        let used = node.used();
        let end = stream.end().await;
        (used, end)
    };
    let ((status, _), (used, end)) = tokio::join!(sleep, read);
    assert_eq!((status, used, end), (200, B_FRESH, End::Finish("length".into())));
    let operations = node.operations();
    let drain = operations.iter().find(|o| o.op == Op::Drain).unwrap();
    let sleep = operations.iter().find(|o| o.op == Op::Sleep).unwrap();
    assert!(drain.ended_ns <= sleep.began_ns, "the drain is not the sleep's own time");
}

#[tokio::test]
async fn a_request_asleep_waits_unseen_and_is_served_after_the_wake() {
    let node = Node::new();
    let engine = node.start("B", &["--enable-server-load-tracking"]).await;
    let text = engine.text(5).await;
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    let wake = async {
        engine.until_load(1).await;
        assert_eq!(engine.metric("vllm:num_requests_waiting{").await, Some(0.0));
        assert_eq!(engine.get("/health").await.status(), 200);
        assert_eq!(engine.post("/wake_up?tags=weights").await, 200);
        engine.until_load(1).await;
        engine.post("/wake_up?tags=kv_cache").await
    };
    let (answer, woken) = tokio::join!(engine.text(5), wake);
    assert_eq!((answer, woken), (text, 200));
}

#[tokio::test]
async fn release_0_32_tells_in_json_and_refuses_what_is_wrong() {
    let node = Node::new();
    let engine = node.start("B", &["--version", "0.32"]).await;
    let tell = async |path: &str| -> (u16, Value) {
        let response = engine.client.post(engine.url(path)).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    };
    assert_eq!(tell("/sleep?level=1").await, (200, json!({ "status": "sleeping", "level": 1 })));
    assert_eq!(
        tell("/wake_up?tags=weights").await,
        (200, json!({ "status": "sleeping", "tags": ["weights"] }))
    );
    assert_eq!(tell("/wake_up").await, (200, json!({ "status": "awake", "tags": null })));
    for bad in ["/sleep?level=3", "/sleep?level=abc", "/sleep?mode=gently"] {
        assert_eq!(tell(bad).await.0, 400, "{bad}");
    }
    assert_eq!(tell("/release_kv_cache_memory").await.0, 500);
    assert_eq!(
        engine.metric("vllm:sleep_mode_operation_duration_seconds_count{operation=\"wake\"}").await,
        Some(2.0)
    );
    assert_eq!(engine.metric("vllm:sleep_mode_operations_in_flight{operation=\"sleep\"}").await, Some(0.0));
    let (_, sums) = engine.post_json("/weight_checker", &json!({ "action": "checksum" })).await;
    let compare = json!({ "action": "compare", "baseline": sums["checksums"] });
    assert_eq!(engine.post_json("/weight_checker", &compare).await.1["match"], true);
    assert_eq!(tell("/sleep?level=2").await.0, 200);
    assert_eq!(tell("/wake_up").await.0, 200);
    assert_eq!(engine.post_json("/weight_checker", &compare).await.1["match"], false);
}

#[tokio::test]
async fn requests_that_come_while_it_sleeps_are_recorded() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    let arrivals = async || -> (Value, Value) {
        let body: Value = engine.get("/sim/arrivals").await.json().await.unwrap();
        (body["arrived"].clone(), body["asleep"].clone())
    };
    engine.text(2).await;
    assert_eq!(arrivals().await, (json!(1), json!(0)));
    assert_eq!(engine.post("/sleep?level=1&mode=keep").await, 200);
    let late = engine.text(2);
    let wake = async {
        until("the request to be there", async || arrivals().await.0 == 2).await;
        assert_eq!(engine.post("/wake_up").await, 200);
    };
    tokio::join!(late, wake);
    engine.text(2).await;
    assert_eq!(arrivals().await, (json!(3), json!(1)));
}
