//! A node in the making: its engines, its devices, its configuration file.

use crate::binaries::agent_binary;
use crate::engine::Engine;
use crate::node::{Inner, Node};
use crate::ports::free_port;
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use hotbunk_sim::profile::{EngineProfile, Profile};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// By how much less host memory the simulated engines take.
const HOST_SCALE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// An engine in the making.
#[derive(Debug, Clone)]
pub struct EngineSetup {
    name: String,
    role: String,
    version: String,
    speed: f64,
    port: u16,
    devices: Vec<usize>,
    flags: Vec<String>,
    lines: Vec<String>,
    before: Vec<String>,
}

impl EngineSetup {
    /// An engine of this name that behaves as the profile's `A` (28 GiB of weights) or `B` (3.3 GiB).
    pub fn new(name: &str, role: &str) -> Self {
        EngineSetup {
            name: name.to_owned(),
            role: role.to_owned(),
            version: "0.31".to_owned(),
            speed: 200.0,
            port: free_port(),
            devices: vec![0],
            flags: Vec::new(),
            lines: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Words before its command: whoever starts it on the agent's behalf.
    #[must_use]
    pub fn started_by(mut self, words: &[&str]) -> Self {
        self.before = words.iter().map(|w| (*w).to_owned()).collect();
        self
    }

    /// The vLLM release that it behaves as.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// How many times faster than real time.
    #[must_use]
    pub fn speed(mut self, speed: f64) -> Self {
        self.speed = speed;
        self
    }

    /// On which devices, by their place.
    #[must_use]
    pub fn devices(mut self, devices: &[usize]) -> Self {
        devices.clone_into(&mut self.devices);
        self
    }

    /// A flag of the simulated engine, as two words or one.
    #[must_use]
    pub fn flag(mut self, words: &[&str]) -> Self {
        self.flags.extend(words.iter().map(|w| (*w).to_owned()));
        self
    }

    /// A line of its table in the configuration. It replaces a default line for the same key.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Ids are unique on a node: a second engine in one role serves a model of its own.
    fn model(&self, profile: &EngineProfile) -> String {
        if self.name == self.role {
            profile.model.clone()
        } else {
            format!("{}-{}", profile.model, self.name)
        }
    }

    fn table(&self, dir: &Path, profile: &EngineProfile, devices: &[DeviceSetup]) -> String {
        let on: Vec<&DeviceSetup> = self.devices.iter().map(|at| &devices[*at]).collect();
        let ledgers: Vec<String> = on.iter().map(|d| d.ledger(dir).display().to_string()).collect();
        let count = u64::try_from(on.len()).unwrap_or(1);
        let op_log = dir.join(format!("{}.ops.jsonl", self.name));
        let mut words = self.before.clone();
        words.extend([
            "/bin/sh".to_owned(),
            dir.join("launch.sh").display().to_string(),
            "sim-engine".to_owned(),
            "--name".to_owned(),
            self.name.clone(),
        ]);
        let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        flag("role", self.role.clone());
        if self.name != self.role {
            flag("model", self.model(profile));
        }
        flag("port", self.port.to_string());
        flag("speed", format!("{:?}", self.speed));
        flag("version", self.version.clone());
        flag("device-ledger", ledgers.join(","));
        flag("op-log", op_log.display().to_string());
        flag("host-scale", HOST_SCALE.to_string());
        flag("kv-cache-memory-bytes", (profile.kv_mib * MIB / count).to_string());
        flag("gpu-memory-utilization", share(profile).to_owned());
        flag("tensor-parallel-size", count.to_string());
        words.extend(["--enable-sleep-mode".to_owned(), "--enable-server-load-tracking".to_owned()]);
        words.extend(self.flags.iter().cloned());
        let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
        let names: Vec<String> = on.iter().map(|d| quote(&d.name)).collect();
        let defaults = [
            ("name", quote(&self.name)),
            ("model", quote(&self.model(profile))),
            ("port", self.port.to_string()),
            ("devices", format!("[{}]", names.join(", "))),
            ("command", format!("[{}]", words.join(", "))),
            ("env", "{ VLLM_SERVER_DEV_MODE = \"1\" }".to_owned()),
            ("weights", quote(&format!("{} B", profile.weights_mib * MIB))),
            ("host_memory", quote(&format!("{} B", host_bytes(profile)))),
            ("ready_interval", quote("20ms")),
            ("start_timeout", quote("60s")),
            ("stop_grace", quote("5s")),
            ("op_log", quote(&op_log.display().to_string())),
            ("restart", "{ initial = \"100ms\", max = \"500ms\" }".to_owned()),
            (
                "timeouts",
                "{ sleep = \"10s\", wake = \"10s\", is_sleeping = \"10s\", probe = \"10s\" }".to_owned(),
            ),
        ];
        let mut text = String::from("\n[[engine]]\n");
        for (key, value) in defaults {
            if !self.lines.iter().any(|line| line.starts_with(&format!("{key} "))) {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        self.lines.iter().for_each(|line| {
            let _ = writeln!(text, "{line}");
        });
        text
    }
}

/// What vLLM would demand to be free: a little more than the engine ever holds.
fn share(profile: &EngineProfile) -> &'static str {
    if profile.weights_mib > 10_000 { "0.78" } else { "0.22" }
}

fn host_bytes(profile: &EngineProfile) -> u64 {
    (profile.host_base_mib + profile.host_pinned_mib) * MIB / HOST_SCALE
}

fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A device in the making.
#[derive(Debug, Clone)]
pub struct DeviceSetup {
    name: String,
    source: Option<String>,
    lines: Vec<String>,
}

impl DeviceSetup {
    /// A simulated L20, read from its ledger.
    pub fn new(name: &str) -> Self {
        DeviceSetup { name: name.to_owned(), source: None, lines: Vec::new() }
    }

    /// Read in another way: `uuid = …`, or nothing at all for the device `none`.
    #[must_use]
    pub fn source(mut self, line: &str) -> Self {
        self.source = Some(line.to_owned());
        self
    }

    /// A line of its table.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    fn ledger(&self, dir: &Path) -> PathBuf {
        dir.join(format!("{}.json", self.name))
    }
}

/// A node in the making.
#[derive(Debug)]
pub struct Setup {
    engines: Vec<EngineSetup>,
    devices: Vec<DeviceSetup>,
    node_lines: Vec<String>,
    policy_lines: Vec<String>,
    gateway_lines: Vec<String>,
    gateway_port: u16,
    metrics_port: u16,
    more: String,
    env: Vec<(String, String)>,
}

impl Setup {
    /// These engines on one simulated L20; the first is awake at start.
    pub fn new(engines: Vec<EngineSetup>) -> Self {
        let first = engines.first().map_or("A", |e| &e.name).to_owned();
        Setup {
            engines,
            devices: vec![DeviceSetup::new("gpu0")],
            node_lines: Vec::new(),
            policy_lines: vec![format!("awake_at_start = \"{first}\"")],
            gateway_lines: Vec::new(),
            gateway_port: free_port(),
            metrics_port: free_port(),
            more: String::new(),
            env: Vec::new(),
        }
    }

    /// The reference's pair: A and B on an L20, A awake at start.
    pub fn pair() -> Self {
        Setup::new(vec![EngineSetup::new("A", "A"), EngineSetup::new("B", "B")])
    }

    /// Changes every engine.
    #[must_use]
    pub fn each(mut self, change: impl Fn(EngineSetup) -> EngineSetup) -> Self {
        self.engines = self.engines.into_iter().map(change).collect();
        self
    }

    /// Changes one engine.
    #[must_use]
    pub fn engine(mut self, name: &str, change: impl FnOnce(EngineSetup) -> EngineSetup) -> Self {
        if let Some(engine) = self.engines.iter_mut().find(|e| e.name == name) {
            *engine = change(engine.clone());
        }
        self
    }

    /// These devices instead.
    #[must_use]
    pub fn devices(mut self, devices: Vec<DeviceSetup>) -> Self {
        self.devices = devices;
        self
    }

    /// A line of `[node]`. It replaces a default line for the same key. `{dir}` becomes the node's directory, here and
    /// everywhere in the configuration.
    #[must_use]
    pub fn node_line(mut self, line: &str) -> Self {
        self.node_lines.push(line.to_owned());
        self
    }

    /// A line of `[gateway]`. It replaces a default line for the same key.
    #[must_use]
    pub fn gateway_line(mut self, line: &str) -> Self {
        self.gateway_lines.push(line.to_owned());
        self
    }

    /// A line of `[policy]`. It replaces a default line for the same key.
    #[must_use]
    pub fn policy_line(mut self, line: &str) -> Self {
        let key = line.split('=').next().unwrap_or_default().to_owned();
        self.policy_lines.retain(|old| !old.starts_with(&key));
        self.policy_lines.push(line.to_owned());
        self
    }

    /// Nothing starts by itself.
    #[must_use]
    pub fn by_hand(mut self) -> Self {
        self.policy_lines.retain(|line| !line.starts_with("awake_at_start"));
        self.each(|e| e.line("autostart = false"))
    }

    /// Further tables.
    #[must_use]
    pub fn tables(mut self, text: &str) -> Self {
        self.more.push_str(text);
        self
    }

    /// An environment variable of the agent; `{dir}` becomes the node's directory.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes everything into a directory of its own.
    ///
    /// # Panics
    /// That cannot be.
    pub fn build(self) -> Node {
        let dir = tempfile::Builder::new().prefix("hb").tempdir().expect("a directory");
        let profile = Profile::load("l20").expect("the built-in profile");
        for (index, device) in self.devices.iter().enumerate() {
            DeviceLedger::create(&device.ledger(dir.path()), LedgerHeader::l20(index)).expect("a ledger");
        }
        let launch = format!(
            "# Flags in NAME.flags are added to the next start.\n\
             exec {} \"$@\" $(cat {}/\"$3\".flags 2>/dev/null)\n",
            agent_binary().display(),
            dir.path().display()
        );
        fs::write(dir.path().join("launch.sh"), launch).expect("the launcher");
        let config = self.config(dir.path(), &profile).replace("{dir}", &dir.path().display().to_string());
        fs::write(dir.path().join("hotbunk.toml"), config).expect("the configuration");
        let engines = self.engines.iter().map(|e| {
            let figures = profile.engine(&e.role).expect("a role of the profile");
            Engine::new(&e.name, e.port, &e.model(figures))
        });
        let through = self.engines.iter().map(|e| {
            let figures = profile.engine(&e.role).expect("a role of the profile");
            Engine::new(&e.name, self.gateway_port, &e.model(figures))
        });
        let through = through.collect();
        let ledgers =
            self.devices.iter().map(|d| DeviceLedger::open(&d.ledger(dir.path())).expect("the ledger"));
        let inner = Inner {
            engines: engines.collect(),
            through,
            gateway_port: self.gateway_port,
            metrics_port: self.metrics_port,
            ledgers: ledgers.collect(),
            env: self.env,
            dir,
        };
        Node::of(inner)
    }

    fn config(&self, dir: &Path, profile: &Profile) -> String {
        let at = |name: &str| quote(&dir.join(name).display().to_string());
        let defaults = [
            ("state_dir", at("state")),
            ("runtime_dir", at("run")),
            ("metrics_listen", quote(&format!("127.0.0.1:{}", self.metrics_port))),
            ("log_filter", quote("info")),
            ("reconcile_interval", quote("200ms")),
            ("host_memory_reserve", quote("256MiB")),
            ("host_sample_interval", quote("500ms")),
            ("shutdown_grace", quote("30s")),
        ];
        let mut text = String::from("[node]\n");
        for (key, value) in defaults {
            if !self.node_lines.iter().any(|line| line.starts_with(&format!("{key} "))) {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        for line in &self.node_lines {
            let _ = writeln!(text, "{line}");
        }
        text.push_str("\n[gateway]\n");
        if !self.gateway_lines.iter().any(|line| line.starts_with("listen ")) {
            let _ = writeln!(text, "listen = \"127.0.0.1:{}\"", self.gateway_port);
        }
        for line in &self.gateway_lines {
            let _ = writeln!(text, "{line}");
        }
        text.push_str("\n[policy]\n");
        for line in &self.policy_lines {
            let _ = writeln!(text, "{line}");
        }
        let speed = self.engines.first().map_or(1.0, |e| e.speed);
        let _ =
            write!(text, "\n[simulated]\nprofile = \"l20\"\nspeed = {speed:?}\nhost_scale = {HOST_SCALE}\n");
        for device in &self.devices {
            let _ = write!(text, "\n[[device]]\nname = {}\n", quote(&device.name));
            let ledger = format!("ledger = {}", quote(&device.ledger(dir).display().to_string()));
            let _ = writeln!(text, "{}", device.source.as_ref().unwrap_or(&ledger));
            for line in &device.lines {
                let _ = writeln!(text, "{line}");
            }
        }
        for engine in &self.engines {
            let figures = profile.engine(&engine.role).expect("a role of the profile");
            text.push_str(&engine.table(dir, figures, &self.devices));
        }
        text.push_str(&self.more);
        text
    }
}
