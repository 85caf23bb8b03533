//! Hotbunk installed on a booted machine, by README.

use crate::machine::{Machine, programs, sources};
use hotbunk_api::status::{Condition, Status};
use hotbunk_api::words::Tier;
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use hotbunk_sim::profile::Profile;
use hotbunk_tests::{Done, Engine, until};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

/// Where the file stands that README installs.
pub(crate) const CONFIG: &str = "/etc/hotbunk/hotbunk.toml";
/// How many times faster than real time.
const SPEED: f64 = 200.0;
const HOST_SCALE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A machine with Hotbunk on it.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) machine: Machine,
    models: BTreeMap<String, String>,
}

impl Installed {
    /// Boots a machine and installs, with lines of `[node]` that the configuration is to have; nothing is started.
    pub(crate) async fn with(node: &str) -> Installed {
        let machine = Machine::boot().await;
        let profile = Profile::load("l20").expect("the built-in profile");
        let model = |role: &str| (role.to_owned(), profile.engine(role).expect("a role").model.clone());
        let installed = Installed { machine, models: ["A", "B"].map(model).into() };
        installed.machine.write("/tmp/hotbunk.toml", &config(&profile, node)).await;
        for line in readme_lines().iter().filter(|line| !line.contains("systemctl")) {
            installed.machine.sh(line).await;
        }
        // The simulated card.
        installed.machine.sh("install -d -o hotbunk -g hotbunk -m 750 /var/lib/hotbunk").await;
        let ledger = installed.machine.path("/var/lib/hotbunk/gpu0.json");
        DeviceLedger::create(&ledger, LedgerHeader::l20(0)).expect("a ledger");
        installed.machine.sh("chown hotbunk:hotbunk /var/lib/hotbunk/gpu0*").await;
        installed
    }

    /// Starts it by README's line and waits until engines have settled.
    pub(crate) async fn start(&self) {
        let lines = readme_lines();
        let mut starting = lines.iter().filter(|line| line.contains("enable --now hotbunk-agent.socket"));
        self.machine.sh(starting.next().expect("README says how it is started")).await;
        self.settled("A").await;
    }

    /// Both.
    pub(crate) async fn started(node: &str) -> Installed {
        let installed = Installed::with(node).await;
        installed.start().await;
        installed
    }

    /// Changes the configuration file.
    pub(crate) async fn edit(&self, change: impl FnOnce(String) -> String) {
        let text = self.machine.sh(&format!("cat {CONFIG}")).await;
        self.machine.write(CONFIG, &format!("{}\n", change(text))).await;
    }

    /// A property of the service.
    pub(crate) async fn show(&self, property: &str) -> String {
        self.machine.sh(&format!("systemctl show -p {property} --value hotbunk-agent")).await
    }

    /// Asserts properties of the service: `ActiveState=active …`.
    #[track_caller]
    pub(crate) fn is(&self, wanted: &str) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        let wanted: Vec<String> = wanted.split(' ').map(str::to_owned).collect();
        async move {
            for wanted in wanted {
                let (property, value) = wanted.split_once('=').expect("PROPERTY=VALUE");
                assert_eq!(self.show(property).await, value, "{place}: {property}");
            }
        }
    }

    /// The service's main process, as numbered there.
    pub(crate) async fn main_pid(&self) -> u32 {
        self.show("MainPID").await.parse().expect("a pid")
    }

    /// Processes in the service's control group and below, with the group's path below the service's.
    pub(crate) async fn members(&self) -> Vec<(u32, String)> {
        let group = "/sys/fs/cgroup/system.slice/hotbunk-agent.service";
        let script =
            format!("[ -d {group} ] || exit 0; cd {group}; grep -r . --include cgroup.procs . || true");
        let text = self.machine.sh(&script).await;
        let lines = text.lines().filter_map(|line| line.split_once("/cgroup.procs:"));
        lines
            .map(|(path, pid)| (pid.parse().expect("a pid"), path.trim_start_matches('.').to_owned()))
            .collect()
    }

    /// Runs the client as root.
    pub(crate) async fn ctl(&self, args: &str) -> Done {
        self.machine.run(&format!("hotbunk-ctl {args}"), "").await
    }

    /// The agent's status, where one answers.
    pub(crate) async fn status(&self) -> Option<Status> {
        let done = self.ctl("--json status").await;
        (done.code == Some(0)).then(|| serde_json::from_str(&done.stdout).expect("a status"))
    }

    /// Pids of the engines' leaders, as numbered there.
    pub(crate) async fn pids(&self) -> BTreeMap<String, u32> {
        let status = self.status().await.expect("an agent");
        status.engines.into_iter().filter_map(|e| Some((e.name, e.incarnation?.pid))).collect()
    }

    /// Waits until this engine is awake, the other one is not, and nothing is under way.
    pub(crate) async fn settled(&self, awake: &str) {
        until("the engines to settle", async || {
            let Some(status) = self.status().await else { return false };
            let is_placed = |e: &hotbunk_api::status::EngineStatus| {
                let rests = e.condition == Condition::Settled || e.tier == Some(Tier::Stopped);
                (e.tier == Some(Tier::Awake)) == (e.name == awake) && rests
            };
            status.engines.iter().all(is_placed) && status.operation.is_none() && status.queue.is_empty()
        })
        .await;
    }

    /// A model as clients reach it: through the gateway.
    pub(crate) fn model(&self, name: &str) -> Engine {
        Engine::new(name, 8000, &self.models[name])
    }

    /// An engine behind the agent's back.
    pub(crate) fn engine(&self, name: &str) -> Engine {
        Engine::new(name, if name == "A" { 8101 } else { 8102 }, &self.models[name])
    }

    /// The service's lines in the journal.
    pub(crate) async fn journal(&self) -> String {
        self.machine.sh("journalctl --no-pager -o cat -u hotbunk-agent").await
    }

    /// Processes there whose command line has this word, as numbered there.
    pub(crate) fn living(&self, word: &str) -> Vec<u32> {
        let proc = self.machine.path("/proc");
        let entries = fs::read_dir(&proc).expect("its processes").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has = |pid: &u32| {
            let command = fs::read_to_string(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
            command.split('\0').any(|of| of == word)
        };
        pids.filter(has).collect()
    }
}

/// The lines of README's section, with the programs that cargo has built and the configuration of the test.
pub(crate) fn readme_lines() -> Vec<String> {
    let readme = fs::read_to_string(sources().join("README.md")).expect("README");
    let (_, section) = readme.split_once("\n## Install under systemd\n").expect("the section");
    let (_, block) = section.split_once("```sh\n").expect("its lines");
    let (block, _) = block.split_once("```").expect("their end");
    let lines = block.lines().filter(|line| !line.starts_with("cargo build"));
    let built = format!("{}/", programs().display());
    let ours = |line: &str| {
        line.replace("target/release/", &built).replace(" systemd/hotbunk.toml", " /tmp/hotbunk.toml")
    };
    lines.map(ours).collect()
}

fn config(profile: &Profile, node: &str) -> String {
    let gateway = if node.contains("[gateway]") { "" } else { "[gateway]" };
    let mut text = format!(
        "[node]\nhost_memory_reserve = \"256MiB\"\n{node}\n\
         {gateway}\nlisten = \"127.0.0.1:8000\"\n\n\
         [policy]\nawake_at_start = \"A\"\n\n\
         [simulated]\nprofile = \"l20\"\nspeed = {SPEED:?}\nhost_scale = {HOST_SCALE}\n\n\
         [[device]]\nname = \"gpu0\"\nledger = \"/var/lib/hotbunk/gpu0.json\"\n"
    );
    for (name, port, share) in [("A", 8101, "0.78"), ("B", 8102, "0.22")] {
        let engine = profile.engine(name).expect("a role");
        let model = &engine.model;
        let (kv, weights) = (engine.kv_mib * MIB, engine.weights_mib * MIB);
        let host = (engine.host_base_mib + engine.host_pinned_mib) * MIB / HOST_SCALE;
        let _ = write!(
            text,
            "\n[[engine]]\nname = \"{name}\"\nmodel = \"{model}\"\nport = {port}\n\
             command = [\n    \"/usr/bin/hotbunk-agent\", \"sim-engine\", \"--name\", \"{name}\", \"--port\", \"{port}\",\n    \
             \"--speed\", \"{SPEED:?}\", \"--host-scale\", \"{HOST_SCALE}\", \"--device-ledger\", \"/var/lib/hotbunk/gpu0.json\",\n    \
             \"--kv-cache-memory-bytes\", \"{kv}\", \"--gpu-memory-utilization\", \"{share}\", \"--enable-sleep-mode\",\n]\n\
             env = {{ VLLM_SERVER_DEV_MODE = \"1\" }}\nweights = \"{weights} B\"\nhost_memory = \"{host} B\"\n\
             ready_interval = \"20ms\"\nrestart = {{ initial = \"100ms\", max = \"500ms\" }}\n"
        );
    }
    text
}
