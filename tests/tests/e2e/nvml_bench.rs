//! A node whose GPU the agent sees through NVML alone, with a driver that does as a test says.

use fake_nvml::{Library, Scenario, scenario::Device};
use hotbunk_api::status::DeviceHealth;
use hotbunk_tests::{Agent, DeviceSetup, Node, Setup, until};

/// The pair on one card, found by index, and its driver.
pub(super) fn pair() -> (Node, Driver) {
    on(Setup::pair(), "index = 0")
}

/// These engines on one card.
pub(super) fn on(setup: Setup, source: &str) -> (Node, Driver) {
    let node = setup
        .devices(vec![DeviceSetup::new("gpu0").source(source)])
        .node_line("nvml_library = \"{dir}/libnvidia-ml.so.1\"")
        .build();
    let driver = Driver::install(&node, vec![card(&node, 0)]);
    (node, driver)
}

/// A card that follows one of the node's ledgers.
pub(super) fn card(node: &Node, ledger: usize) -> Device {
    Device::of_ledger(node.ledger(ledger).path()).expect("the ledger")
}

/// A fake driver and what it says while nothing is wrong.
pub(super) struct Driver {
    pub(super) library: Library,
    healthy: Vec<Device>,
}

impl Driver {
    pub(super) fn install(node: &Node, devices: Vec<Device>) -> Self {
        let scenario = Scenario { devices: devices.clone(), ..Scenario::default() };
        Driver { library: Library::install(node.dir(), &scenario).expect("the library"), healthy: devices }
    }

    /// Something is wrong with every card from now on.
    pub(super) fn set(&self, change: impl Fn(&mut Device)) {
        let mut devices = self.healthy.clone();
        devices.iter_mut().for_each(change);
        self.library.set(&Scenario { devices, ..Scenario::default() }).expect("the scenario");
    }

    /// All is well again.
    pub(super) fn heal(&self) {
        self.set(|_| {});
    }
}

/// Waits until the first device is said to be so.
pub(super) async fn until_health(agent: &Agent, what: &str, is: impl Fn(&DeviceHealth) -> bool) {
    until(what, async || is(&agent.status().await.devices[0].health)).await;
}

/// Waits until it is well, and whoever decides has heard of it.
pub(super) async fn until_well(agent: &Agent) {
    until_health(agent, "the device to be well", |health| *health == DeviceHealth::Ok).await;
    until_evidence(agent, true).await;
}

/// Waits until handoffs are refused for want of evidence, or are not.
pub(super) async fn until_evidence(agent: &Agent, there: bool) {
    until("the decider to have heard of it", async || {
        let doctor = agent.api.doctor().await.expect("the doctor");
        let of_switches = || doctor.checks.iter().filter(|check| check.name.starts_with("switch to "));
        let refused = of_switches().any(|check| check.found.contains("a handoff needs evidence"));
        of_switches().next().is_some() && refused != there
    })
    .await;
}
