//! Coming up, and going down.

use hotbunk_api::status::{Canary, DeviceHealth};
use hotbunk_api::words::Tier;
use hotbunk_tests::{MIB, Setup, Switch};

#[tokio::test]
async fn both_engines_come_up_rehearsed_measured_and_one_serves() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;

    let status = agent.status().await;
    assert_eq!(status.devices[0].health, DeviceHealth::Ok);
    for engine in &status.engines {
        assert!(matches!(engine.canary, Canary::Matched { .. }), "{engine:#?}");
        assert_eq!(engine.version.as_deref(), Some("0.31.0"));
        let measured: Vec<Tier> = engine.footprints.iter().filter(|f| f.measured).map(|f| f.tier).collect();
        assert_eq!(measured, [Tier::Awake, Tier::Parked, Tier::Level1], "{engine:#?}");
    }
    // What was measured is what the simulated device says, not what the configuration declares.
    let bytes = |name: &str, tier: Tier| {
        let engine = status.engines.iter().find(|e| e.name == name).unwrap();
        engine.footprints.iter().find(|f| f.tier == tier).unwrap().device_bytes.unwrap() / MIB
    };
    assert_eq!(bytes("A", Tier::Level1), 597);
    assert_eq!(bytes("B", Tier::Level1), 455);
    assert_eq!(node.used_by("B"), 455 * MIB);
    // The ledger is right to within the device's slack (a wake makes A grow by 86 MiB).
    let held = status.devices[0].held_bytes.unwrap();
    assert!(held.abs_diff(node.used()) <= 256 * MIB, "{held} in the ledger, {} used", node.used());
    assert_eq!(status.devices[0].foreign_bytes, Some(0));
    node.engine("A").serves().await;

    // The rehearsal: one park and one sleep, each with its wake and its probe.
    let probes = agent.entries("probe", 0).await;
    let purposes = |engine: &str| -> Vec<String> {
        let of = probes.iter().filter(|e| e.record["engine"] == engine);
        of.map(|e| e.record["purpose"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(purposes("B").iter().filter(|p| *p == "rehearsal").count(), 2, "{:?}", purposes("B"));
    assert_eq!(purposes("B").first().map(String::as_str), Some("probe"));
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    // I2, as far as the journal tells: no step ever saw more than the device has.
    let capacity = status.devices[0].total_bytes.unwrap();
    for entry in agent.entries("step_ended", 0).await {
        let used = entry.record["after"]["device"].as_u64();
        assert!(used.is_none_or(|used| used <= capacity), "{entry:?}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn a_second_agent_on_the_same_state_is_refused() {
    let node = Setup::pair().by_hand().build();
    let agent = node.start().await;
    let mut second = hotbunk_tests::Agent::spawn(&node, &[]);
    let status = second.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(agent.log().contains("journal"), "{}", agent.log());
    assert_eq!(agent.api.version().await.unwrap().pid, agent.pid());
    agent.stop().await;
}

#[tokio::test]
async fn metrics_can_be_scraped_and_wake_nothing() {
    let port = hotbunk_tests::free_port();
    let node = Setup::pair().node_line(&format!("metrics_listen = \"127.0.0.1:{port}\"")).build();
    let agent = node.start().await;
    agent.until_up().await;
    agent.done(Switch::to("B")).await;
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    let mark = agent.mark().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut text = String::new();
    for _ in 0..20 {
        let answer = http.get(format!("http://127.0.0.1:{port}/metrics")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        text = answer.text().await.unwrap();
    }
    for name in ["hotbunk_engine_tier", "hotbunk_handoff_phase_seconds", "hotbunk_device_"] {
        assert!(text.contains(name), "no {name} in\n{text}");
    }
    agent.until_at("A", Tier::Awake).await;
    agent.until_at("B", Tier::Level1).await;
    assert_eq!(agent.entries("operation_accepted", mark).await.len(), 0);
    assert_eq!(agent.entries("transition", mark).await, []);
    agent.stop().await;
}
