//! A device that others use too, and memory that takes its time.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Agent, GIB, Node, Setup, Switch, until};
use std::time::{Duration, Instant};

const GENEROUS: &str = r#"restart = { budget = 50, initial = "100ms", max = "200ms" }"#;

async fn pair(line: &str) -> (Node, Agent) {
    let node = Setup::pair().each(|e| e.line(line).line(GENEROUS)).build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// Begins a handoff in which an engine's call takes 2 s, and waits until that call is under way.
async fn begun(agent: &Agent, engine: &str, fault: &str, phase: &str) -> String {
    // 400 simulated seconds at 200-fold speed.
    agent.node.engine(engine).fault(fault, Some(400.0), None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("the call to be under way", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == phase)
    })
    .await;
    begun.id
}

/// The driver gives back 2 GiB of A's only two seconds after A has said that it sleeps (to whoever looks, bytes that are
/// still there are bytes that are still there, whosever name is on them). They are waited for, and nobody is told.
#[tokio::test]
async fn memory_that_comes_back_late_is_waited_for() {
    let (node, agent) = pair(r#"timeouts = { memory = "20s" }"#).await;
    let mark = agent.mark().await;
    let id = begun(&agent, "A", "sleep_hang", "sleep").await;
    let late = node.foreign(2 * GIB);
    until("A to be asleep and its memory to be awaited", async || {
        agent.api.operation(&id).await.unwrap().steps.iter().any(|s| s.phase == "await_release")
    })
    .await;
    let since = Instant::now();
    until("two seconds to pass", async || since.elapsed() >= Duration::from_secs(2)).await;
    assert!(!agent.api.operation(&id).await.unwrap().state.is_over(), "B is not woken into it");
    assert_eq!(agent.engine("B").await.tier, Some(Tier::Level1));
    drop(late);
    let op = agent.wait(&id).await;
    assert_eq!(op.error, None, "{op:#?}");
    let waited = op.steps.iter().find(|s| s.phase == "await_release").and_then(|s| s.duration_s);
    assert!(waited.is_some_and(|s| s >= 2.0), "{op:#?}");
    node.engine("B").serves().await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    agent.stop().await;
}

/// A foreign process takes the card between A's sleep and B's wake. B's wake runs out of memory, what it has mapped goes
/// back; A cannot come back either, as long as the stranger stays. When it goes, what served serves again, by itself.
#[tokio::test]
async fn a_stranger_takes_the_card_between_a_sleep_and_a_wake() {
    let (node, agent) = pair(r#"timeouts = { memory = "2s" }"#).await;
    let id = begun(&agent, "B", "wake_hang", "wake").await;
    let free = node.ledger(0).header().unwrap().total_bytes - node.used();
    let stranger = node.foreign(free - GIB);
    let op = agent.wait(&id).await;
    assert_eq!(op.error.as_ref().map(|e| e.code), Some(ErrorCode::WakeFailed), "{op:#?}");
    // Nothing of ours was put beside it: what we hold fits into what is left.
    let total = node.ledger(0).header().unwrap().total_bytes;
    assert!(node.used() <= total);
    drop(stranger);
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    agent.until_idle().await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    agent.stop().await;
}
