//! The agent's NVML path, against a library that answers as NVIDIA's does; and a node without any device.

use fake_nvml::{Library, Scenario, scenario::Device};
use hotbunk_api::error::ErrorCode;
use hotbunk_api::status::DeviceHealth;
use hotbunk_api::words::Tier;
use hotbunk_sim::ledger::LedgerHeader;
use hotbunk_tests::{DeviceSetup, MIB, Setup, Switch, until};

#[tokio::test]
async fn handoffs_are_measured_through_nvml_and_refused_while_the_gpu_is_lost() {
    let uuid = LedgerHeader::l20(0).uuid;
    let device = DeviceSetup::new("gpu0").source(&format!("uuid = \"{uuid}\""));
    let node =
        Setup::pair().devices(vec![device]).node_line("nvml_library = \"{dir}/libnvidia-ml.so.1\"").build();
    let of = |lost: bool| Scenario {
        devices: vec![Device { gpu_lost: lost, ..Device::of_ledger(node.ledger(0).path()).unwrap() }],
        ..Scenario::default()
    };
    let library = Library::install(node.dir(), &of(false)).unwrap();
    let agent = node.start().await;
    agent.until_up().await;
    let status = agent.status().await;
    assert_eq!(status.devices[0].uuid.as_deref(), Some(uuid.as_str()));
    assert_eq!(status.devices[0].product.as_deref(), Some("NVIDIA L20"));
    // By process, through the driver's list: B's own bytes, not a difference.
    let b = status.engines.iter().find(|e| e.name == "B").unwrap();
    let asleep = b.footprints.iter().find(|f| f.tier == Tier::Level1).unwrap();
    assert_eq!((asleep.measured, asleep.device_bytes), (true, Some(455 * MIB)));
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    node.engine("B").serves().await;

    let mark = agent.mark().await;
    library.set(&of(true)).unwrap();
    until("the loss to be seen", async || {
        matches!(agent.status().await.devices[0].health, DeviceHealth::Lost { .. })
            && !agent.incidents(mark).await.is_empty()
    })
    .await;
    let refused = agent.submit(Switch::to("A")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    assert!(refused.message.contains("gpu0"), "{refused:?}");
    // What serves goes on serving.
    node.engine("B").serves().await;
    agent.until_at("B", Tier::Awake).await;

    library.set(&of(false)).unwrap();
    until("the device to be back", async || agent.status().await.devices[0].health == DeviceHealth::Ok).await;
    until("the restoration to be told", async || agent.incidents(mark).await.len() == 2).await;
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(mark).await, ["device_lost gpu0", "device_restored gpu0"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_library_that_is_not_there_degrades_what_depends_on_it() {
    let device = DeviceSetup::new("gpu0").source("index = 0");
    let node = Setup::pair().devices(vec![device]).node_line("nvml_library = \"{dir}/nothing.so\"").build();
    let agent = node.start().await;
    let status = agent.status().await;
    let DeviceHealth::Lost { reason } = &status.devices[0].health else { panic!("{:#?}", status.devices) };
    assert!(reason.contains("nothing.so"), "{reason}");
    assert_eq!(status.devices[0].used_bytes, None);
    let refused = agent.submit(hotbunk_tests::start("A")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoEvidence, "{refused:?}");
    assert!(node.tree("A").is_empty());
    agent.stop().await;
}

#[tokio::test]
async fn without_a_device_probes_alone_decide() {
    let device = DeviceSetup::new("none").source("");
    let node = Setup::pair().devices(vec![device]).build();
    let agent = node.start().await;
    agent.until_up().await;
    let status = agent.status().await;
    assert_eq!(status.devices[0].health, DeviceHealth::None);
    assert_eq!((status.devices[0].used_bytes, status.devices[0].held_bytes), (None, None));
    for to in ["B", "A"] {
        let op = agent.done(Switch::to(to).leave(Tier::Level1)).await;
        assert!(op.steps.iter().all(|s| s.device_after_bytes.is_none()), "{op:#?}");
        assert!(op.steps.iter().any(|s| s.phase == "probe"), "{op:#?}");
        node.engine(to).serves().await;
    }
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}
