//! Times of sleeping: the contract suite has everything else that goes well.

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
