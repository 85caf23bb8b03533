//! What grows over weeks is bounded, or led back.

use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, MIB, Node, Setup, Switch, restart, until};
use std::path::Path;

/// MiB that A loses with each sleep: five of them pass half the slack (128 MiB), and not the slack (256 MiB).
const LOSS_MIB: f64 = 48.0;

async fn to_and_fro(agent: &Agent, times: u32) {
    for _ in 0..times {
        agent.done(Switch::to("B").leave(Tier::Level1)).await;
        until("A to be looked at in its sleep", async || agent.engine("A").await.in_flight.is_some()).await;
        agent.done(Switch::to("A").leave(Tier::Level1)).await;
    }
}

#[tokio::test]
async fn an_engine_that_loses_memory_is_started_anew_once_it_is_idle() {
    let node: Node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    let began = node.used_by("A");
    node.engine("A").fault("residual_creep", Some(LOSS_MIB), None).await;
    let mark = agent.mark().await;
    to_and_fro(&agent, 4).await;
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    // Both are idle: A is started anew beside B, which goes on serving, and sleeps again.
    until("A to be started anew", async || agent.entries("spawned", mark).await.len() == 1).await;
    node.engine("B").serves().await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_idle().await;
    to_and_fro(&agent, 1).await;
    // What it lost is back, one process was started for it, and its neighbour was not suspected.
    assert!(node.used_by("A") <= began + 100 * MIB, "{} after {began}", node.used_by("A"));
    assert_eq!(agent.entries("spawned", mark).await.len(), 1, "one recycle");
    // A machine that is busy enough does not even read its device.
    let seen = agent.incident_codes(mark).await;
    let seen: Vec<&String> = seen.iter().filter(|code| !code.starts_with("device_")).collect();
    assert_eq!(seen, ["residual_creep A"]);
    agent.stop().await;
}

#[tokio::test]
async fn nobody_is_cut_off_for_it() {
    // Looked at seldom, so that the request is there before three looks have found nothing.
    let node: Node = Setup::pair()
        .node_line("reconcile_interval = \"600ms\"")
        .engine("A", |e| e.speed(25.0).line("recycle = { creep = \"0B\", sleeps = 2 }"))
        .build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    to_and_fro(&agent, 2).await;
    let stream = node.engine("A").stream(3_500).await;
    let (text, end) = stream.end().await;
    assert_eq!(end, "length", "cut off after {} bytes", text.len());
    until("A to be started anew", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(
        agent.incident_codes(mark).await,
        Vec::<String>::new(),
        "it was asked for, and is no incident"
    );
    agent.stop().await;
}

/// Files below a directory.
fn files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn restarts_leave_no_files_behind() {
    let node: Node = Setup::pair().each(|e| e.line("log = { keep = 2 }")).build();
    let agent = node.start().await;
    agent.until_up().await;
    let mut counts = Vec::new();
    for _ in 0..6 {
        agent.done(restart("B")).await;
        agent.until_at("B", Tier::Level1).await;
        counts.push(files(&node.dir().join("state")) + files(&node.dir().join("run")));
    }
    // The first restarts fill what is kept of the logs.
    assert!(counts[2..].windows(2).all(|pair| pair[1] <= pair[0]), "{counts:?}");
    agent.stop().await;
}
