//! Which GPU is meant: by UUID, by index, among several, as an instance of a card in MIG mode.

use super::nvml_bench::{Driver, card};
use fake_nvml::scenario::Device;
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, DeviceSetup, EngineSetup, MIB, Node, Setup, Switch, until};

const LIBRARY: &str = "nvml_library = \"{dir}/libnvidia-ml.so.1\"";

/// One engine on each of two devices, which are found so.
fn two(sources: [&str; 2]) -> Node {
    let devices =
        vec![DeviceSetup::new("gpu0").source(sources[0]), DeviceSetup::new("gpu1").source(sources[1])];
    let engines = vec![
        EngineSetup::new("A", "A"),
        EngineSetup::new("B", "B").devices(&[1]),
        EngineSetup::new("C", "B"),
    ];
    Setup::new(engines).devices(devices).node_line(LIBRARY).build()
}

async fn uuids(agent: &Agent) -> Vec<Option<String>> {
    agent.status().await.devices.into_iter().map(|d| d.uuid).collect()
}

/// NVML lists the cards in the other order. `gpu0` is found by its UUID wherever it stands, `gpu1` by its index.
#[tokio::test]
async fn cards_are_found_by_uuid_and_by_index_and_stay_themselves() {
    let uuid = hotbunk_sim::ledger::LedgerHeader::l20(0).uuid;
    let node = two([&format!("uuid = \"{uuid}\""), "index = 0"]);
    let driver = Driver::install(&node, vec![card(&node, 1), card(&node, 0)]);
    let agent = node.start().await;
    agent.until_up().await;
    let found = uuids(&agent).await;
    assert_eq!(found[0].as_deref(), Some(uuid.as_str()));
    assert_eq!(found[1].as_deref(), Some(card(&node, 1).uuid.as_str()));
    // Each engine is seen on its own card: B's bytes on the second, A's and C's on the first.
    let held = |status: &hotbunk_api::status::Status| -> Vec<u64> {
        status.devices.iter().map(|d| d.used_bytes.unwrap_or(0) / MIB).collect()
    };
    let used = |at: usize| node.ledger(at).used().unwrap() / MIB;
    until("the readings to be the ledgers'", async || held(&agent.status().await) == [used(0), used(1)])
        .await;
    agent.done(Switch::to("C").leave(Tier::Level1)).await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_at("B", Tier::Level1).await;

    // The driver restarts, and lists them the other way round: an index is for the first look alone.
    driver.set(|d| d.gpu_lost = true);
    let lost = async || {
        let devices = agent.status().await.devices;
        devices.iter().all(|d| matches!(d.health, hotbunk_api::status::DeviceHealth::Lost { .. }))
    };
    until("both to be lost", lost).await;
    let swapped = fake_nvml::Scenario { devices: vec![card(&node, 0), card(&node, 1)], ..Default::default() };
    driver.library.set(&swapped).unwrap();
    let well = async || {
        let devices = agent.status().await.devices;
        devices.iter().all(|d| d.health == hotbunk_api::status::DeviceHealth::Ok)
    };
    until("both to be back", well).await;
    assert_eq!(uuids(&agent).await, found);
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    node.engine("A").serves().await;
    agent.stop().await;
}

/// Starts an agent that must refuse; what it says.
async fn refused(node: &Node) -> String {
    let mut child = Agent::spawn(node, &[]);
    let mut ended = None;
    until("the agent to refuse", async || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert_eq!(ended.and_then(|status| status.code()), Some(1));
    assert!(node.living().is_empty(), "nothing was started");
    std::fs::read_to_string(node.dir().join("agent.log")).unwrap()
}

#[tokio::test]
async fn what_is_not_there_and_what_is_there_twice_is_refused_before_anything_starts() {
    let node = two(["index = 0", "uuid = \"GPU-00000000-0000-0000-0000-000000000000\""]);
    Driver::install(&node, vec![card(&node, 0), card(&node, 1)]);
    let said = refused(&node).await;
    assert!(said.contains("this machine has no GPU GPU-00000000-0000-0000-0000-000000000000"), "{said}");
    assert!(said.contains(&format!("0: {} (NVIDIA L20)", card(&node, 0).uuid)), "{said}");

    let uuid = hotbunk_sim::ledger::LedgerHeader::l20(0).uuid;
    let node = two(["index = 0", &format!("uuid = \"{uuid}\"")]);
    Driver::install(&node, vec![card(&node, 0), card(&node, 1)]);
    let said = refused(&node).await;
    assert!(said.contains("device `gpu1` is the same GPU as `gpu0`"), "{said}");
}

/// One card, two instances; NVML gives each instance's own memory and processes.
fn cut(node: &Node) -> Device {
    let instance = |at: usize| Device { uuid: format!("MIG-{at}"), ..card(node, at) };
    Device {
        name: "NVIDIA A100-SXM4-80GB".into(),
        uuid: "GPU-whole".into(),
        total: 2 * card(node, 0).total,
        instances: vec![instance(0), instance(1)],
        ..Device::default()
    }
}

#[tokio::test]
async fn an_instance_is_a_device_and_a_card_in_mig_mode_is_none() {
    let node = two(["uuid = \"MIG-0\"", "uuid = \"MIG-1\""]);
    Driver::install(&node, vec![cut(&node)]);
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(uuids(&agent).await, [Some("MIG-0".to_owned()), Some("MIG-1".to_owned())]);
    assert_eq!(agent.status().await.devices[0].total_bytes, Some(card(&node, 0).total));
    agent.done(Switch::to("C").leave(Tier::Level1)).await;
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    node.engine("A").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;

    for source in ["index = 0", "uuid = \"GPU-whole\""] {
        let node = Setup::pair()
            .devices(vec![DeviceSetup::new("gpu0").source(source), DeviceSetup::new("gpu1")])
            .each(|e| e.devices(&[0]))
            .node_line(LIBRARY)
            .build();
        Driver::install(&node, vec![cut(&node)]);
        let said = refused(&node).await;
        assert!(said.contains("is in MIG mode, and engines run in its instances"), "{said}");
        assert!(said.contains("one of MIG-0 (NVIDIA L20), MIG-1 (NVIDIA L20)"), "{said}");
    }
}

/// The script for real GPUs, on a card that is not there: it says so where there is none, agrees where `nvidia-smi` and
/// the driver agree to the MiB, and names what differs where they do not.
#[tokio::test]
async fn the_script_for_real_gpus_tells_agreement_from_difference() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/real-gpu/compare");
    let node = Setup::pair().build();
    let mut device = card(&node, 0);
    device.reserved = 600 * MIB;
    (device.ledger, device.used) = (None, 1234 * MIB + 1);
    device.processes = vec![fake_nvml::Process { pid: 77, bytes: Some(1000 * MIB) }];
    let driver = Driver::install(&node, vec![device.clone()]);
    let smi = |used: u64| {
        let text = format!(
            "#!/bin/sh\ncase \"$1\" in\n*query-gpu*) echo '{}, {}, {used}, 600';;\n*) echo '{}, 77, 1000';;\nesac\n",
            device.uuid,
            device.total / MIB,
            device.uuid
        );
        let bin = node.dir().join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::write(bin.join("nvidia-smi"), text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(bin.join("nvidia-smi"), mode).unwrap();
    };
    let run = async || {
        let path = format!("{}:{}", node.dir().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = std::process::Command::new("python3");
        command.arg(script).env("PATH", path);
        command.arg("--agent").arg(hotbunk_tests::agent_binary());
        command.arg("--ctl").arg(hotbunk_tests::ctl_binary());
        command.arg("--nvml-library").arg(driver.library.path());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.code(), said)
    };
    let (code, said) = run().await;
    assert_eq!((code, said.as_str()), (Some(0), "no GPU\n"));
    smi(1234);
    let (code, said) = run().await;
    assert!(code == Some(0) && said.contains("agree to the MiB") && said.contains("1 processes"), "{said}");
    smi(1235);
    let (code, said) = run().await;
    assert!(code == Some(1) && said.contains("used 1234 MiB, nvidia-smi [635, 1235]"), "{said}");
}
