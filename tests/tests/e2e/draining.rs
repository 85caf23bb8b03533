//! Running requests of the engine that goes to sleep: waited for, frozen, aborted.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{Drain, State, Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Switch, until};

/// Slow enough that a stream of A lasts: a token takes a millisecond.
async fn pair() -> (Node, Agent) {
    let node = Setup::pair().each(|e| e.speed(40.0)).build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

fn to_b(drain: Drain) -> Switch {
    Switch::to("B").strategy(Strategy::SleepFirst).drain(drain)
}

#[tokio::test]
async fn a_deadline_that_passes_changes_nothing() {
    let (node, agent) = pair().await;
    let a = node.engine("A");
    let undisturbed = a.complete(3000).await.unwrap();
    let mark = agent.mark().await;
    let mut stream = a.stream(3000).await;
    stream.until(5).await;
    let op = agent.run(to_b(Drain::Wait).deadline_s(0.3)).await;
    let error = op.error.as_ref().unwrap();
    assert_eq!(error.code, ErrorCode::DrainDeadline);
    assert!(error.message.contains("A still had 1 running"), "{error:?}");
    let phases: Vec<&str> = op.steps.iter().map(|s| s.phase.as_str()).collect();
    assert_eq!(phases, ["drain"], "nothing was moved");
    // It serves on: the stream, and new requests.
    agent.until_at("A", Tier::Awake).await;
    a.serves().await;
    assert_eq!(stream.end().await, (undisturbed, "length".to_owned()));
    agent.until_at("B", Tier::Level1).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    // And the handoff is possible afterwards.
    agent.done(to_b(Drain::Wait)).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_cancelled_drain_changes_nothing() {
    let (node, agent) = pair().await;
    let mut stream = node.engine("A").stream(3000).await;
    stream.until(5).await;
    let begun = agent.submit(to_b(Drain::Wait).deadline_s(60.0)).await.unwrap();
    until("the drain to run", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "drain")
    })
    .await;
    agent.api.cancel_operation(&begun.id).await.unwrap();
    let op = agent.wait(&begun.id).await;
    assert_eq!((op.state, op.error.map(|e| e.code)), (State::Cancelled, Some(ErrorCode::Cancelled)));
    node.engine("A").serves().await;
    assert_eq!(stream.end().await.1, "length");
    agent.until_at("A", Tier::Awake).await;
    agent.until_at("B", Tier::Level1).await;
    let late = agent.api.cancel_operation(&begun.id).await.unwrap_err();
    assert!(late.to_string().contains("not under way"), "{late}");
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
}

#[tokio::test]
async fn frozen_streams_go_on_byte_for_byte() {
    let (node, agent) = pair().await;
    let a = node.engine("A");
    let undisturbed = a.complete(600).await.unwrap();
    for (strategy, leave) in [
        (Strategy::SleepFirst, Tier::Level1),
        (Strategy::Park, Tier::Parked),
        (Strategy::WakeFirst, Tier::Level1),
    ] {
        let mut stream = a.stream(600).await;
        stream.until(20).await;
        agent.done(Switch::to("B").strategy(strategy).leave(leave).drain(Drain::Freeze)).await;
        agent.until_at("A", leave).await;
        node.engine("B").serves().await;
        agent.done(Switch::to("A").leave(Tier::Level1)).await;
        assert_eq!(stream.end().await, (undisturbed.clone(), "length".to_owned()), "{strategy} × {leave}");
    }
    // Into level 2 nothing can be frozen.
    let refused = agent.submit(to_b(Drain::Freeze).leave(Tier::Level2)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported, "{refused:?}");
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
}

#[tokio::test]
async fn aborted_streams_end_well_formed() {
    let (node, agent) = pair().await;
    let mut stream = node.engine("A").stream(4000).await;
    stream.until(5).await;
    let op = agent.done(to_b(Drain::Abort)).await;
    let (text, end) = stream.end().await;
    assert_eq!(end, "abort");
    assert!(!text.is_empty());
    assert_eq!(op.plan.unwrap().leave, Some(Tier::Level1));
    node.engine("B").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
}
