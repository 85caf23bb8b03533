//! The world moves behind the agent's back.

use hotbunk_api::status::DeviceHealth;
use hotbunk_api::words::{State, Tier};
use hotbunk_tests::{Agent, MIB, Node, Setup, Switch, until};

async fn pair() -> (Node, Agent) {
    let node = Setup::pair().node_line("stall_after = \"1s\"").build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

#[tokio::test]
async fn somebody_puts_the_serving_engine_to_sleep() {
    let (node, agent) = pair().await;
    for level in [1, 2] {
        let mark = agent.mark().await;
        let generation = agent.engine("A").await.generation;
        assert_eq!(node.engine("A").post(&format!("/sleep?level={level}")).await, 200);
        until("the drift to be repaired", async || agent.engine("A").await.generation > generation).await;
        agent.until_at("A", Tier::Awake).await;
        agent.until_idle().await;
        node.engine("A").serves().await;
        assert_eq!(agent.incident_codes(mark).await, ["drifted A"], "level {level}");
        // The repair is an operation like any other, and the engine has not been restarted for it.
        let repairs = agent.api.operations().await.unwrap().operations;
        assert_eq!(repairs[0].state, State::Succeeded, "{:#?}", repairs[0]);
        assert_eq!(agent.entries("spawned", mark).await, []);
    }
    agent.stop().await;
}

#[tokio::test]
async fn somebody_wakes_the_sleeping_engine() {
    let (node, agent) = pair().await;
    let mark = agent.mark().await;
    assert_eq!(node.engine("B").post("/wake_up").await, 200);
    until("the engine to be put back", async || {
        node.used_by("B") < 1024 * MIB && agent.entries("operation_ended", mark).await.len() == 1
    })
    .await;
    agent.until_at("B", Tier::Level1).await;
    agent.until_idle().await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(mark).await, ["drifted B"]);
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
}

#[tokio::test]
async fn a_serving_engine_makes_no_progress() {
    let (node, agent) = pair().await;
    let mark = agent.mark().await;
    let a = node.engine("A").clone();
    a.fault("completions_hang", None, None).await;
    let request = tokio::spawn(async move { a.complete(50).await });
    until("the stall to be seen", async || !agent.incidents(mark).await.is_empty()).await;
    assert_eq!(agent.incident_codes(mark).await, ["stalled A"]);
    // Ended and started again: that alone helps. Whoever waited gets an end.
    assert!(request.await.unwrap().is_err());
    until("a new process", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    node.engine("A").serves().await;
    agent.until_at("B", Tier::Level1).await;
    assert_eq!(agent.incident_codes(mark).await, ["stalled A"]);
}

#[tokio::test]
async fn an_idle_engine_is_no_stalled_one() {
    let (node, agent) = pair().await;
    let mark = agent.mark().await;
    // Long requests with progress, one after another, for well over the limit.
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(2500) {
        node.engine("A").complete(2000).await.unwrap();
    }
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    assert_eq!(agent.status().await.devices[0].health, DeviceHealth::Ok);
}

#[tokio::test]
async fn foreign_memory_counts_while_it_is_there() {
    let (node, agent) = pair().await;
    let mark = agent.mark().await;
    let foreign = node.foreign(3000 * MIB);
    until("the foreign memory to be seen", async || {
        agent.status().await.devices[0].foreign_bytes >= Some(3000 * MIB)
    })
    .await;
    // A handoff takes it into account: A's bytes are gone when they are gone, not when the foreign ones are.
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(mark).await, ["foreign_memory gpu0"]);
    drop(foreign);
    until("the foreign memory to be gone", async || agent.status().await.devices[0].foreign_bytes == Some(0))
        .await;
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    assert_eq!(agent.incident_codes(mark).await, ["foreign_memory gpu0"]);
}
