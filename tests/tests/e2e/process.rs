//! Processes: killed, orphaned, deaf, talkative; and what is left when the agent goes.

use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Switch, kill, start, stop, until};
use rustix::process::Signal;
use std::collections::BTreeSet;

async fn pair() -> (Node, Agent) {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// Kills a process of an engine and waits until the engine is what it was, in a new process, and nothing else happened.
async fn killed_and_back(agent: &Agent, engine: &str, victim: u32) {
    let before = agent.engine(engine).await;
    let tier = before.tier.unwrap();
    let old: BTreeSet<u32> = agent.node.tree(engine).iter().map(|p| p.pid).collect();
    let mark = agent.mark().await;
    kill(victim);
    until("a new process", async || agent.entries("spawned", mark).await.len() == 1).await;
    // Swept before it was started again: nothing of the old tree is left beside the new one.
    let now: BTreeSet<u32> = agent.node.tree(engine).iter().map(|p| p.pid).collect();
    assert!(now.is_disjoint(&old), "{now:?} {old:?}");
    agent.until_at(engine, tier).await;
    agent.until_idle().await;
    assert_eq!(agent.incident_codes(mark).await, [format!("crashed {engine}")]);
    let device = &agent.status().await.devices[0];
    let (held, used) = (device.held_bytes.unwrap(), agent.node.used());
    assert!(held.abs_diff(used) <= 256 << 20, "{held} {used}");
}

#[tokio::test]
async fn a_killed_engine_is_swept_and_started_again() {
    let (node, agent) = pair().await;
    let leader = |name: &'static str| {
        let agent = &agent;
        async move { agent.engine(name).await.incarnation.unwrap().pid }
    };
    // The API server of the one that serves: its core would hold the memory for ever.
    killed_and_back(&agent, "A", leader("A").await).await;
    node.engine("A").serves().await;
    // Its core: the API server ends by itself, with exit code 0.
    killed_and_back(&agent, "A", node.core("A").pid).await;
    node.engine("A").serves().await;
    // The same of one that sleeps: it goes back to where it was, beside the one that serves.
    killed_and_back(&agent, "B", leader("B").await).await;
    killed_and_back(&agent, "B", node.core("B").pid).await;
    node.engine("A").serves().await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn an_orphan_in_a_session_of_its_own_is_found() {
    let (node, agent) = pair().await;
    node.engine("A").fault("orphan_worker", None, None).await;
    let core = node.core("A").pid;
    let session = |pid: u32| rustix::process::getsid(rustix::process::Pid::from_raw(pid as i32)).ok();
    until("the core to have left its session", async || {
        session(core) == rustix::process::Pid::from_raw(core as i32)
    })
    .await;
    killed_and_back(&agent, "A", agent.engine("A").await.incarnation.unwrap().pid).await;
    // And when it is stopped in order.
    node.engine("A").fault("orphan_worker", None, None).await;
    agent.done(stop("A")).await;
    assert_eq!(node.tree("A"), []);
    assert_eq!(node.used_by("A"), 0);
    agent.done(start("A")).await;
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn one_that_does_not_hear_sigterm_is_killed_after_its_grace() {
    let node = Setup::pair().each(|e| e.line("stop_grace = \"1s\"")).build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    node.engine("B").fault("ignore_sigterm", None, None).await;
    let op = agent.done(stop("B")).await;
    assert!(op.elapsed_s >= 1.0, "it had its grace: {op:#?}");
    agent.until_at("B", Tier::Stopped).await;
    assert_eq!(node.tree("B"), []);
    assert_eq!(node.used_by("B"), 0);
    assert_eq!(agent.incident_codes(mark).await, ["stop_forced B"]);
    node.engine("A").serves().await;
    agent.done(start("B")).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_flood_on_stderr_is_kept_within_its_bound() {
    let bound = "log = { max_size = \"1MiB\", keep = 3 }";
    let node = Setup::pair().each(|e| e.line(bound)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    node.engine("A").fault("flood_stderr", Some(12.0), None).await;
    node.engine("A").serves().await;
    agent.done(Switch::to("B")).await;
    agent.done(Switch::to("A")).await;
    until("the flood to be told", async || !agent.incidents(mark).await.is_empty()).await;
    let log = agent.engine("A").await.log_path.unwrap();
    let dir = std::path::Path::new(&log).parent().unwrap();
    let size: u64 = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!((1 << 20..=4 << 20).contains(&size), "{size} bytes of logs");
    assert_eq!(agent.incident_codes(mark).await, ["log_flooded A"]);
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_told_to_stop_while_engines_start_leaves_nothing() {
    let node = Setup::pair().each(|e| e.speed(5.0)).build();
    let agent = node.start().await;
    until("an engine to be starting", async || !node.tree("B").is_empty()).await;
    agent.stop().await;
    // Twice is a hurry.
    let mut agent = node.start().await;
    until("an engine to be starting", async || !node.tree("B").is_empty()).await;
    agent.signal(Signal::INT);
    agent.signal(Signal::TERM);
    agent.ended().await;
    assert_eq!(node.living(), []);
}

#[tokio::test]
async fn remains_without_a_shim_are_found_as_well() {
    let (node, agent) = pair().await;
    agent.kill().await;
    // Shims and API servers die too: what is left are cores and trackers that init has adopted.
    let shims_and_leaders =
        |p: &hotbunk_tests::Process| p.command.contains(" shim ") || p.comm == "hotbunk-agent";
    for process in node.living().iter().filter(|p| shims_and_leaders(p)) {
        kill(process.pid);
    }
    let cores: Vec<u32> = [node.core("A").pid, node.core("B").pid].into();
    let agent = node.start().await;
    let now: Vec<u32> = node.living().iter().map(|p| p.pid).collect();
    assert!(cores.iter().all(|pid| !now.contains(pid)), "{cores:?} {now:?}");
    agent.until_up().await;
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_told_to_stop_in_the_middle_of_a_handoff_leaves_nothing() {
    let limits = r#"timeouts = { wake = "3s", is_sleeping = "3s" }"#;
    let node = Setup::pair().each(|e| e.line(limits)).build();
    let agent = node.start().await;
    agent.until_up().await;
    node.engine("B").fault("wake_hang", None, None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("the wake to hang", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "wake")
    })
    .await;
    agent.stop().await;
    // What was begun has an end in the journal: the next agent finds nothing unfinished, and comes up.
    let agent = node.start().await;
    agent.until_up().await;
    node.engine("A").serves().await;
    agent.stop().await;
}
