//! More than two engines, more than one awake, more than one device.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::Tier;
use hotbunk_tests::{DeviceSetup, EngineSetup, Setup, Sleep, Switch, wake};

fn three() -> Vec<EngineSetup> {
    vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B"), EngineSetup::new("C", "B")]
}

#[tokio::test]
async fn three_engines_on_one_device_take_turns() {
    let node = Setup::new(three()).build();
    let agent = node.start().await;
    agent.until_up().await;
    for to in ["B", "C", "A", "C", "B", "A"] {
        agent.done(Switch::to(to).leave(Tier::Level1)).await;
        agent.until_at(to, Tier::Awake).await;
        node.engine(to).serves().await;
        let awake = agent.status().await.engines.iter().filter(|e| e.tier == Some(Tier::Awake)).count();
        assert_eq!(awake, 1);
    }
    // Parked ones give way when room is needed: both small ones parked, then the large one.
    agent.done(Switch::to("B")).await;
    agent.done(Switch::to("C").leave(Tier::Parked)).await;
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn all_that_should_be_awake_at_the_start_are() {
    let device = DeviceSetup::new("gpu0").line("max_awake = 2");
    let setup = Setup::new(three()).policy_line("awake_at_start = [\"C\", \"A\"]");
    let node = setup.devices(vec![device]).build();
    let agent = node.start().await;
    for (engine, tier) in [("B", Tier::Level1), ("C", Tier::Awake), ("A", Tier::Awake)] {
        agent.until_at(engine, tier).await;
    }
    agent.until_idle().await;
    node.engine("C").serves().await;
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn two_may_be_awake_and_a_third_takes_a_place() {
    let device = DeviceSetup::new("gpu0").line("max_awake = 2");
    let node = Setup::new(three()).devices(vec![device]).build();
    let agent = node.start().await;
    agent.until_up().await;
    agent.done(wake("B")).await;
    node.engine("A").serves().await;
    node.engine("B").serves().await;
    let refused = agent.submit(wake("C")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused, "{refused:?}");
    // The one that has been awake longest goes.
    agent.done(Switch::to("C").leave(Tier::Level1)).await;
    agent.until_at("A", Tier::Level1).await;
    node.engine("B").serves().await;
    node.engine("C").serves().await;
    agent.done(Sleep::at("B", Tier::Level1)).await;
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    node.engine("C").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn devices_are_switched_apart_and_one_engine_may_span_two() {
    let devices = vec![DeviceSetup::new("gpu0"), DeviceSetup::new("gpu1")];
    let engines = vec![
        EngineSetup::new("A", "A"),
        EngineSetup::new("B", "B").devices(&[1]),
        EngineSetup::new("T", "B").devices(&[0, 1]).line("workers = 2"),
    ];
    let node = Setup::new(engines).devices(devices).build();
    let agent = node.start().await;
    agent.until_up().await;
    // Two devices, two engines awake at once.
    agent.done(wake("B")).await;
    node.engine("A").serves().await;
    node.engine("B").serves().await;
    // The one that spans both takes both.
    agent.done(Switch::to("T").leave(Tier::Level1)).await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_at("B", Tier::Level1).await;
    node.engine("T").serves().await;
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    agent.until_at("T", Tier::Level1).await;
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    node.engine("A").serves().await;
    node.engine("B").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}
