//! The calls themselves: one engine of each release, and what it was really asked, by its own request log.
//!
//! Every boundary of CONTRACT 1.2 and 1.3 has a release on either side of it. For each: the way down to and up from
//! level 1, level 2 and parked, or the refusal that says why not; what follows a sleep that failed and left the engine
//! believing that it is awake; what follows a wake that ran out of memory half way (CONTRACT 3.4).

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Agent, DeviceSetup, EngineSetup, Node, Requests, Setup, Sleep, Switch, wake};

const GENEROUS: &str = r#"restart = { budget = 50, initial = "100ms", max = "100ms" }"#;

/// The ranges of CONTRACT 1.3 and 3.4, by what an engine is asked.
struct Range {
    releases: &'static [&'static str],
    level1: (&'static str, &'static str),
    level2: Result<(&'static str, &'static str), &'static str>,
    parked: Result<(&'static str, &'static str), &'static str>,
    /// What is asked after a `/sleep` that answered 500 with the memory gone; `None`: nothing, it is started again.
    failed_sleep: Option<&'static str>,
    /// What is asked after a `/wake_up` that ran out of memory.
    failed_wake: Option<&'static str>,
}

const FOUR: &str = "wake-weights reload wake-kv reset";
const NO_RELOAD: &str = "cannot reload weights over HTTP";
const NO_PARKING: &str = "has no /release_kv_cache_memory";

const RANGES: &[Range] = &[
    Range {
        releases: &["0.8.5", "0.9.2"],
        level1: ("reset sleep1", "wake"),
        level2: Err(NO_RELOAD),
        parked: Err(NO_PARKING),
        failed_sleep: None,
        failed_wake: None,
    },
    Range {
        releases: &["0.10.2", "0.11.2"],
        level1: ("sleep1", "wake"),
        level2: Ok(("sleep2", FOUR)),
        parked: Err(NO_PARKING),
        failed_sleep: Some("rpc-wake"),
        failed_wake: None,
    },
    Range {
        releases: &["0.12", "0.13", "0.14.1", "0.15.1", "0.16"],
        level1: ("pause:wait sleep1", "wake resume"),
        level2: Ok(("pause:wait sleep2", "wake-weights reload wake-kv reset resume")),
        parked: Err(NO_PARKING),
        failed_sleep: Some("rpc-wake resume"),
        failed_wake: None,
    },
    Range {
        releases: &[
            "0.17.1", "0.18.1", "0.19.1", "0.20", "0.21", "0.22.1", "0.23", "0.24", "0.25.1", "0.26",
            "0.27.1",
        ],
        level1: ("sleep1:wait", "wake"),
        level2: Ok(("sleep2:wait", FOUR)),
        parked: Err(NO_PARKING),
        failed_sleep: Some("rpc-wake wake"),
        failed_wake: None,
    },
    Range {
        releases: &["0.28", "0.29", "0.30"],
        level1: ("sleep1:wait", "wake"),
        level2: Ok(("sleep2:wait", FOUR)),
        parked: Err(NO_PARKING),
        failed_sleep: Some("sleep1:wait"),
        failed_wake: Some("wake"),
    },
    Range {
        releases: &["0.31", "0.32"],
        level1: ("sleep1:wait", "wake"),
        level2: Ok(("sleep2:wait", FOUR)),
        parked: Ok(("sleep0:wait release-kv", "wake-kv")),
        failed_sleep: Some("sleep1:wait"),
        failed_wake: Some("wake"),
    },
];

/// An engine that writes down what it is asked, and how to read that.
async fn single(version: &str) -> (Agent, Requests) {
    let engine = EngineSetup::new("B", "B").version(version).line(GENEROUS).line("rehearse = false");
    let node = Setup::new(vec![engine.flag(&["--request-log", "{dir}/B.requests"])]).build();
    let requests = Requests::of(&node.dir().join("B.requests"));
    let agent = node.start().await;
    agent.until_up().await;
    (agent, requests)
}

/// Down to a tier and up again: what was asked for each.
async fn cycle(agent: &Agent, requests: &mut Requests, tier: Tier) -> (String, String) {
    drop(requests.calls());
    agent.done(Sleep::at("B", tier)).await;
    agent.until_at("B", tier).await;
    let down = requests.calls();
    agent.done(wake("B")).await;
    agent.node.engine("B").serves().await;
    (down, requests.calls())
}

async fn ways(version: &str, range: &Range, agent: &Agent, requests: &mut Requests) {
    let tiers =
        [(Tier::Level1, Ok(range.level1)), (Tier::Level2, range.level2), (Tier::Parked, range.parked)];
    for (tier, expected) in tiers {
        match expected {
            Ok((down, up)) => {
                let asked = cycle(agent, requests, tier).await;
                assert_eq!(asked, (down.to_owned(), up.to_owned()), "{version} {tier}");
            }
            Err(why) => {
                let refused = agent.submit(Sleep::at("B", tier)).await.unwrap_err();
                assert_eq!(refused.code, ErrorCode::Unsupported, "{version} {tier}: {refused:?}");
                assert!(refused.message.contains(why), "{version} {tier}: {refused:?}");
                assert_eq!(requests.calls(), "", "{version} {tier}");
            }
        }
    }
}

/// The assertion (CONTRACT 3.4): memory is gone, the engine believes that it is awake, and a plain wake would answer 200
/// and wake nothing.
async fn failed_sleep(version: &str, range: &Range, agent: &Agent, requests: &mut Requests) {
    drop(requests.calls());
    let pid = agent.engine("B").await.incarnation.unwrap().pid;
    let repairs_to_awake = range.failed_wake.is_none();
    // Only the repair that ends awake can do with a neighbour that stays.
    let fault = match range.failed_sleep {
        Some(_) if repairs_to_awake => "neighbour_alloc_in_sleep",
        _ => "sleep_500",
    };
    agent.node.engine("B").fault(fault, None, None).await;
    let op = agent.run(Sleep::at("B", Tier::Level1)).await;
    agent.node.engine("B").clear_faults().await;
    let down = range.level1.0;
    let now = agent.engine("B").await;
    match range.failed_sleep {
        Some(next) => {
            assert_eq!(requests.calls(), format!("{down} {next}"), "{version}");
            assert_eq!(now.incarnation.unwrap().pid, pid, "{version}: it was not started again");
            let ends = if repairs_to_awake { Some(ErrorCode::SleepFailed) } else { None };
            assert_eq!(op.error.map(|e| e.code), ends, "{version}");
        }
        None => {
            agent.until_idle().await;
            assert_eq!(requests.calls(), down, "{version}: nothing is tried, it is ended");
            assert_ne!(agent.engine("B").await.incarnation.unwrap().pid, pid, "{version}");
        }
    }
    back_to_awake(agent).await;
}

async fn failed_wake(version: &str, range: &Range, agent: &Agent, requests: &mut Requests) {
    let oom = async |count| {
        back_to_awake(agent).await;
        agent.done(Sleep::at("B", Tier::Level1)).await;
        agent.node.engine("B").fault("wake_oom", None, Some(count)).await;
    };
    oom(1).await;
    drop(requests.calls());
    let pid = agent.engine("B").await.incarnation.unwrap().pid;
    let op = agent.run(wake("B")).await;
    match range.failed_wake {
        Some(again) => {
            assert_eq!(op.error, None, "{version}");
            assert_eq!(requests.calls(), format!("{} {again}", range.level1.1), "{version}");
            // Twice: what was mapped is given back by the worker's own sleep, and it rests where it was.
            oom(2).await;
            drop(requests.calls());
            let op = agent.run(wake("B")).await;
            assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::WakeFailed), "{version}");
            assert_eq!(requests.calls(), "wake wake rpc-sleep1", "{version}");
            agent.until_at("B", Tier::Level1).await;
            assert_eq!(agent.engine("B").await.incarnation.unwrap().pid, pid, "{version}");
        }
        None => {
            assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::WakeFailed), "{version}");
            assert_eq!(requests.calls(), "wake", "{version}: a retry would map mapped pages");
            agent.until_idle().await;
            assert_ne!(agent.engine("B").await.incarnation.unwrap().pid, pid, "{version}");
        }
    }
    back_to_awake(agent).await;
}

async fn back_to_awake(agent: &Agent) {
    agent.until_idle().await;
    if agent.engine("B").await.tier != Some(Tier::Awake) {
        agent.done(wake("B")).await;
    }
    agent.node.engine("B").serves().await;
}

async fn check(range: &Range) {
    for version in range.releases {
        let (agent, mut requests) = single(version).await;
        let said = agent.engine("B").await.version;
        assert!(said.as_ref().is_some_and(|v| v.starts_with(version)), "{version}: {said:?}");
        ways(version, range, &agent, &mut requests).await;
        failed_sleep(version, range, &agent, &mut requests).await;
        failed_wake(version, range, &agent, &mut requests).await;
        agent.stop().await;
    }
}

#[tokio::test]
async fn up_to_0_9_an_engine_is_restarted_where_it_cannot_be_repaired() {
    check(&RANGES[0]).await;
}

#[tokio::test]
async fn from_0_10_2_weights_are_reloaded_and_the_worker_is_woken_behind_the_engine() {
    check(&RANGES[1]).await;
}

#[tokio::test]
async fn from_0_12_to_0_16_the_scheduler_is_paused_from_outside() {
    check(&RANGES[2]).await;
}

#[tokio::test]
async fn from_0_17_to_0_27_a_sleep_has_a_mode_and_nothing_is_tried_twice() {
    check(&RANGES[3]).await;
}

#[tokio::test]
async fn from_0_28_failed_calls_are_tried_again() {
    check(&RANGES[4]).await;
}

#[tokio::test]
async fn from_0_31_the_kv_cache_is_released_alone() {
    check(&RANGES[5]).await;
}

/// Every release that the contract names as a boundary is in one of the ranges, once.
#[test]
fn the_ranges_are_complete() {
    let all: Vec<&str> = RANGES.iter().flat_map(|range| range.releases).copied().collect();
    let boundaries = [
        "0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.12", "0.13", "0.14.1", "0.15.1", "0.16", "0.17.1", "0.18.1",
        "0.19.1", "0.20", "0.21", "0.22.1", "0.23", "0.24", "0.25.1", "0.26", "0.27.1", "0.28", "0.29",
        "0.30", "0.31", "0.32",
    ];
    assert_eq!(all, boundaries);
}

/// Two workers, one on each of two devices, and a neighbour on the first: after any 500 of a control call the engine is
/// restarted, and the call is never repeated, whatever the release (CONTRACT fact 8).
async fn tensor_parallel(version: &str) -> (Node, Agent, Requests) {
    let devices = vec![DeviceSetup::new("gpu0"), DeviceSetup::new("gpu1")];
    let large = EngineSetup::new("T", "B").devices(&[0, 1]).line("workers = 2");
    let large = large.flag(&["--request-log", "{dir}/T.requests"]);
    let engines = vec![large, EngineSetup::new("A", "A")];
    let node = Setup::new(engines)
        .devices(devices)
        .each(|e| e.version(version).line(GENEROUS).line("rehearse = false"))
        .build();
    let requests = Requests::of(&node.dir().join("T.requests"));
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent, requests)
}

async fn restarted_never_asked_again(version: &str) {
    let (node, agent, mut requests) = tensor_parallel(version).await;
    let pid = async || agent.engine("T").await.incarnation.unwrap().pid;
    // Its sleep fails: it is ended, which is what the handoff needs of it, and started again.
    let before = pid().await;
    drop(requests.calls());
    node.engine("T").fault("sleep_500", None, None).await;
    let op = agent.run(Switch::to("A").strategy(Strategy::SleepFirst)).await;
    assert_eq!(op.error, None, "{version}: {op:#?}");
    node.engine("A").serves().await;
    agent.until_at("T", Tier::Level1).await;
    agent.until_idle().await;
    assert_ne!(pid().await, before, "{version}");
    let asked = requests.calls();
    // Once before its end; and once more, in its new life, to go to rest.
    assert_eq!(asked, "sleep1:wait sleep1:wait", "{version}");
    // Its wake fails: what served before serves again, and it is started again.
    let before = pid().await;
    node.engine("T").fault("wake_500", None, None).await;
    let op = agent.run(Switch::to("T").strategy(Strategy::SleepFirst).leave(Tier::Level1)).await;
    assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::WakeFailed), "{version}");
    node.engine("A").serves().await;
    agent.until_at("T", Tier::Level1).await;
    agent.until_idle().await;
    assert_ne!(pid().await, before, "{version}");
    assert_eq!(requests.calls(), "wake sleep1:wait", "{version}");
    // And the new one works.
    agent.done(Switch::to("T").leave(Tier::Level1)).await;
    node.engine("T").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn with_two_workers_a_failed_call_means_a_restart_before_0_28() {
    restarted_never_asked_again("0.26").await;
}

#[tokio::test]
async fn with_two_workers_a_failed_call_means_a_restart_from_0_28_on() {
    restarted_never_asked_again("0.32").await;
}
