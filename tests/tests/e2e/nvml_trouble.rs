//! A driver in trouble: what it does not tell, what it tells late, what it loses and finds again. The agent goes on with
//! what it can prove, refuses what it cannot, says why, and what serves goes on serving.

use super::nvml_bench::{card, on, pair, until_evidence, until_health, until_well};
use fake_nvml::{Code, Library, Scenario};
use hotbunk_api::error::ErrorCode;
use hotbunk_api::status::DeviceHealth;
use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Agent, DeviceSetup, MIB, Setup, Sleep, Switch, start, until};
use std::time::{Duration, Instant};

/// There and back by the plan that needs evidence most, verified by device-wide bytes.
async fn handed_over_and_back(agent: &Agent) {
    for (to, from) in [("B", "A"), ("A", "B")] {
        let op = agent.done(Switch::to(to).strategy(Strategy::SleepFirst).leave(Tier::Level1)).await;
        assert!(op.steps.iter().any(|s| s.phase == "await_release"), "{op:#?}");
        agent.until_at(from, Tier::Level1).await;
        agent.node.engine(to).serves().await;
    }
}

/// What an engine has been seen to hold at level 1 (the bytes of the simulated profile), whatever its list of processes
/// says: alone on the device, its bytes are the difference.
async fn level1_bytes(agent: &Agent, engine: &str) -> Option<u64> {
    let footprints = agent.engine(engine).await.footprints;
    footprints.iter().find(|f| f.tier == Tier::Level1 && f.measured).and_then(|f| f.device_bytes)
}

/// Four ways not to tell processes apart: by an old driver, by a card, by a list that outgrows every buffer, by ids of
/// another namespace. Device-wide bytes are proof enough for a handoff.
#[tokio::test]
async fn without_the_processes_bytes_the_device_s_decide() {
    type Way = (&'static str, fn(&mut fake_nvml::Device), Option<&'static str>);
    let ways: [Way; 3] = [
        ("not supported", |d| d.processes_fail = Some(Code::NotSupported), Some("not supported")),
        ("growing", |d| d.grow_process_list = 40, Some("bigger")),
        // The list is there, and nobody in it is ours.
        ("another namespace", |d| d.pid_offset = 1_000_000, None),
    ];
    for (what, change, said) in ways {
        let (node, driver) = pair();
        driver.set(change);
        let agent = node.start().await;
        agent.until_up().await;
        let health = agent.status().await.devices[0].health.clone();
        match (&health, said) {
            (DeviceHealth::ProcessesUnknown { reason }, Some(_)) => assert!(!reason.is_empty(), "{what}"),
            (DeviceHealth::Ok, None) => {}
            _ => panic!("{what}: {health:?}"),
        }
        handed_over_and_back(&agent).await;
        assert_eq!(level1_bytes(&agent, "B").await, Some(455 * MIB), "{what}");
        // A stranger's bytes and an engine's unknown ones are told apart by nobody; nothing is called foreign that
        // the ledger accounts for.
        assert_eq!(agent.status().await.devices[0].foreign_bytes, Some(0), "{what}");
        assert_eq!(agent.incident_codes(0).await, Vec::<String>::new(), "{what}");
        // It gets better while the agent runs.
        driver.heal();
        until_well(&agent).await;
        handed_over_and_back(&agent).await;
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_list_that_grows_a_little_between_the_two_calls_is_listed() {
    let (node, driver) = pair();
    driver.set(|d| d.grow_process_list = 4);
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(agent.status().await.devices[0].health, DeviceHealth::Ok);
    handed_over_and_back(&agent).await;
    assert_eq!(level1_bytes(&agent, "B").await, Some(455 * MIB));
    agent.stop().await;
}

/// Symbols that an older driver lacks: with the process list gone the agent works; without a way to read memory it
/// says which symbol is missing and starts nothing.
#[tokio::test]
async fn symbols_that_are_missing_are_named() {
    let (node, driver) = pair();
    driver.library.remove_symbol("nvmlDeviceGetComputeRunningProcesses_v3").unwrap();
    let agent = node.start().await;
    agent.until_up().await;
    let DeviceHealth::ProcessesUnknown { reason } = agent.status().await.devices[0].health.clone() else {
        panic!("{:#?}", agent.status().await.devices)
    };
    assert!(reason.contains("nvmlDeviceGetComputeRunningProcesses_v3"), "{reason}");
    handed_over_and_back(&agent).await;
    agent.stop().await;

    let (node, driver) = pair();
    driver.library.remove_symbol("nvmlDeviceGetMemoryInfo_v2").unwrap();
    let agent = node.start().await;
    let DeviceHealth::Lost { reason } = agent.status().await.devices[0].health.clone() else {
        panic!("{:#?}", agent.status().await.devices)
    };
    assert!(reason.contains("nvmlDeviceGetMemoryInfo_v2"), "{reason}");
    let refused = agent.submit(start("A")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    assert!(node.tree("A").is_empty());
    agent.stop().await;
}

/// No driver at the agent's start (the module is loaded later), none in between (it is being upgraded): nothing is
/// started blindly, what serves goes on, and all comes up by itself once there is one.
#[tokio::test]
async fn a_driver_that_comes_late_goes_and_comes_back() {
    let device = DeviceSetup::new("gpu0").source("index = 0");
    let node =
        Setup::pair().devices(vec![device]).node_line("nvml_library = \"{dir}/libnvidia-ml.so.1\"").build();
    let agent = node.start().await;
    until_health(&agent, "the driver to be missed", |h| matches!(h, DeviceHealth::Lost { .. })).await;
    assert!(node.living().iter().all(|p| !p.command.contains("sim-engine")), "{:?}", node.living());
    let scenario = |change: &dyn Fn(&mut fake_nvml::Device), init_fails| {
        let mut device = card(&node, 0);
        change(&mut device);
        Scenario { devices: vec![device], init_fails, ..Scenario::default() }
    };
    let library = Library::install(node.dir(), &scenario(&|_| {}, None)).unwrap();
    // By itself: both engines start, are rehearsed, and A serves.
    agent.until_up().await;
    node.engine("A").serves().await;
    let codes = agent.incident_codes(0).await;
    assert_eq!(codes, ["device_lost gpu0", "device_restored gpu0"]);

    let mark = agent.mark().await;
    let gone = scenario(&|d| d.memory_fails = Some(Code::Uninitialized), Some(Code::DriverNotLoaded));
    library.set(&gone).unwrap();
    until("the loss to be told", async || agent.incident_codes(mark).await == ["device_lost gpu0"]).await;
    let refused = agent.submit(Switch::to("B")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    node.engine("A").serves().await;
    library.set(&scenario(&|_| {}, None)).unwrap();
    until("the restoration to be told", async || agent.incident_codes(mark).await.len() == 2).await;
    handed_over_and_back(&agent).await;
    agent.stop().await;
}

/// A card that does not tell its memory (some virtual GPUs) is as good as none, and says so; `device = "none"` is the
/// operator's way to do without.
#[tokio::test]
async fn a_card_that_does_not_tell_its_memory_is_refused_by_name() {
    let (node, driver) = pair();
    driver.set(|d| d.memory_fails = Some(Code::NotSupported));
    let agent = node.start().await;
    let DeviceHealth::Lost { reason } = agent.status().await.devices[0].health.clone() else {
        panic!("{:#?}", agent.status().await.devices)
    };
    assert!(reason.contains("gpu0") && reason.contains("read its memory"), "{reason}");
    let refused = agent.submit(start("A")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    driver.heal();
    agent.until_up().await;
    agent.stop().await;
}

/// A call that blocks for ten seconds, at rest: seen within a second or two, nothing else waits for it, handoffs are
/// refused, requests are served; and all is well when it returns.
#[tokio::test]
async fn a_driver_that_blocks_for_ten_seconds_holds_nobody_up() {
    let (node, driver) = pair();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    driver.set(|d| d.slow_ms = 10_000);
    let began = Instant::now();
    until_health(&agent, "the driver to be slow", |h| *h == DeviceHealth::Stale).await;
    until_evidence(&agent, false).await;
    // While it blocks: each answer comes long before the driver's.
    let asked = Instant::now();
    let refused = agent.submit(Switch::to("B")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    node.engine("A").serves().await;
    drop(agent.api.doctor().await.unwrap());
    let status = agent.status().await;
    assert!(status.devices[0].reading_age_s.is_some_and(|age| age > 0.5), "{:?}", status.devices[0]);
    assert!(asked.elapsed() < Duration::from_secs(9), "somebody waited for the driver");
    // The block is let run its course, then the driver is quick again.
    until("ten seconds to be over", async || began.elapsed() >= Duration::from_secs(10)).await;
    driver.heal();
    until_well(&agent).await;
    handed_over_and_back(&agent).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.incident_codes(mark).await, ["device_lost gpu0", "device_restored gpu0"]);
    agent.stop().await;
}

/// The same in the middle of a handoff, when A has been put to sleep and nobody can see whether its memory is gone:
/// A is woken again and serves, B stays where it was.
#[tokio::test]
async fn a_driver_that_blocks_in_a_handoff_brings_back_what_served() {
    let limits = r#"timeouts = { memory = "2s" }"#;
    let (node, driver) = on(Setup::pair().each(|e| e.line(limits)), "index = 0");
    let agent = node.start().await;
    agent.until_up().await;
    // A's worker takes 2 s (400 simulated at 200-fold speed) for its sleep: meanwhile the driver falls silent.
    node.engine("A").fault("sleep_hang", Some(400.0), None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("the sleep to be under way", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "sleep")
    })
    .await;
    driver.set(|d| d.slow_ms = 10_000);
    let op = agent.wait(&begun.id).await;
    assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::NoEvidence), "{:#?}", op.steps);
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    agent.until_at("B", Tier::Level1).await;
    driver.heal();
    until_well(&agent).await;
    agent.until_idle().await;
    handed_over_and_back(&agent).await;
    agent.stop().await;
}

/// The card falls off the bus while B is being woken: the wake goes on, B's own token proves that its memory is there.
#[tokio::test]
async fn a_card_lost_while_an_engine_wakes() {
    let (node, driver) = pair();
    let agent = node.start().await;
    agent.until_up().await;
    agent.done(Sleep::at("A", Tier::Level1)).await;
    node.engine("B").fault("wake_hang", Some(400.0), None).await;
    let begun = agent.submit(Switch::to("B")).await.unwrap();
    until("the wake to be under way", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "wake")
    })
    .await;
    driver.set(|d| d.gpu_lost = true);
    let op = agent.wait(&begun.id).await;
    assert_eq!(op.error, None, "{op:#?}");
    node.engine("B").serves().await;
    driver.heal();
    until_well(&agent).await;
    handed_over_and_back_from_b(&agent).await;
    agent.stop().await;
}

async fn handed_over_and_back_from_b(agent: &Agent) {
    for to in ["A", "B"] {
        agent.done(Switch::to(to).strategy(Strategy::SleepFirst)).await;
        agent.node.engine(to).serves().await;
    }
}
