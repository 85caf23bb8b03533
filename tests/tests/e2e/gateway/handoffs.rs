//! Requests that are running when their engine has to go.

use super::{eager, pair};
use hotbunk_api::words::{Drain, Tier};
use hotbunk_tests::{Setup, Switch, until};

/// Until the gateway has nothing on any engine.
async fn until_empty(node: &hotbunk_tests::Node) {
    until("leases and queues to be empty", async || {
        let page = node.metrics().await;
        let of = |name: &str| page.lines().filter(|l| l.starts_with(name)).all(|l| l.ends_with(" 0"));
        of("hotbunk_gateway_in_flight{") && of("hotbunk_gateway_held{")
    })
    .await;
    for engine in node.engines() {
        let running = engine.metric("vllm:num_requests_running").await;
        assert!(running.is_none_or(|n| n == 0.0), "{} runs {running:?}", engine.name());
    }
}

#[tokio::test]
async fn a_stream_is_waited_for_while_the_other_model_is_asked_for() {
    let (node, agent) = pair(eager).await;
    let undisturbed = node.engine("A").complete(800).await.unwrap();
    let mut stream = node.model("A").stream(800).await;
    stream.until(5).await;
    let of_b = tokio::spawn({
        let b = node.model("B").clone();
        async move { b.complete(5).await }
    });
    assert_eq!(stream.end().await, (undisturbed, "length".to_owned()));
    of_b.await.unwrap().unwrap();
    agent.until_at("B", Tier::Awake).await;
    until_empty(&node).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_frozen_stream_goes_on_byte_for_byte_after_the_other_model_has_served() {
    // A is busy, so B's requests wait before they put it out: for a tenth of what they may have to wait, since B weighs
    // nine times as much. The stream runs for longer than that.
    let impatient = |setup: Setup| {
        let slow = setup.each(|e| e.speed(20.0).line("max_wait = \"10s\""));
        eager(slow).engine("B", |e| e.line("weight = 9")).policy_line("drain = \"freeze\"")
    };
    let (node, agent) = pair(impatient).await;
    let undisturbed = node.engine("A").complete(3000).await.unwrap();
    let mut stream = node.model("A").stream(3000).await;
    stream.until(5).await;
    node.model("B").complete(5).await.unwrap();
    // Nobody else asks for A: the frozen request is reason enough to wake it.
    assert_eq!(stream.end().await, (undisturbed, "length".to_owned()));
    agent.until_at("A", Tier::Awake).await;
    let handoffs = agent.entries("operation_accepted", 0).await;
    let by_gateway = handoffs.iter().filter(|e| e.record["by"] == "gateway").count();
    assert_eq!(by_gateway, 2, "to B and back, while the stream ran: {handoffs:#?}");
    until_empty(&node).await;
    agent.stop().await;
}

/// Its engine is removed from the configuration meanwhile: it gets its turn all the same, and goes when it has answered.
#[tokio::test]
async fn a_frozen_stream_is_finished_by_an_engine_that_is_not_configured_any_more() {
    let (node, agent) = pair(|setup| eager(setup).each(|e| e.line("max_wait = \"10s\""))).await;
    agent.done(Switch::to("B")).await;
    let undisturbed = node.engine("B").complete(2000).await.unwrap();
    let mut stream = node.model("B").stream(2000).await;
    stream.until(5).await;
    agent.done(Switch::to("A").drain(Drain::Freeze)).await;
    // A is busy, so B's turn is some time away.
    let of_a = node.model("A").stream(2000).await;
    node.file().without("B").write();
    assert_eq!(agent.reloaded().await, "A unchanged, B removed");
    drop(of_a);
    assert_eq!(stream.end().await, (undisturbed, "length".to_owned()));
    until("it to be gone", async || agent.status().await.engines.iter().all(|e| e.name != "B")).await;
    let refused = node.model("B").complete(3).await.unwrap_err();
    assert!(refused.contains("model_not_found"), "{refused}");
    node.model("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn an_aborted_stream_ends_with_an_error_and_a_plain_request_is_sent_again() {
    let (node, agent) = pair(eager).await;
    let plain = node.engine("A").complete(2000).await.unwrap();
    let mut stream = node.model("A").stream(4000).await;
    stream.until(5).await;
    let again = tokio::spawn({
        let a = node.model("A").clone();
        async move { a.complete(2000).await }
    });
    node.engine("A").until_running(2).await;
    agent.done(Switch::to("B").drain(Drain::Abort)).await;
    let (text, end) = stream.end().await;
    assert!(!text.is_empty() && end.starts_with("error: ") && end.contains("aborted"), "{end}");
    // It had brought nothing, so it waited for A's next turn.
    assert_eq!(again.await.unwrap().unwrap(), plain);
    agent.until_at("A", Tier::Awake).await;
    until_empty(&node).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_engines_death_is_an_error_to_those_it_served_and_a_wait_to_those_who_come() {
    let (node, agent) = pair(eager).await;
    let mut stream = node.model("A").stream(4000).await;
    stream.until(5).await;
    let core = node.core("A");
    hotbunk_tests::kill(core.pid);
    let (_, end) = stream.end().await;
    assert!(end.starts_with("error: "), "{end}");
    // It is started again, and serves.
    until("A to serve again", async || node.model("A").complete(3).await.is_ok()).await;
    until_empty(&node).await;
    agent.stop().await;
}

#[tokio::test]
async fn clients_that_go_leave_the_engine_idle() {
    let (node, agent) = pair(eager).await;
    let mut stream = node.model("A").stream(4000).await;
    stream.until(5).await;
    node.engine("A").until_running(1).await;
    drop(stream);
    // 4000 tokens would take four seconds and more; the engine hears at once that nobody waits for them.
    node.engine("A").until_running(0).await;
    until_empty(&node).await;
    agent.stop().await;
}
