//! The configuration that the rest of the agent uses: plain types, every default filled in, every reference resolved.
//!
//! A value of [`Config`] comes only out of [`super::parse`] and [`super::load`], which refuse what is wrong; nothing
//! that reads it has to check it again. Names of engines and devices are unique, indices are in range, paths are
//! absolute wherever the file's own path was, sizes are bytes, times are [`Duration`]s.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::gateway::Gateway;
use hotbunk_core::spec::{Rung, Turn};
use hotbunk_core::tier::Tier;
use serde::Serialize;

/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;

/// A whole, checked configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file that it came from.
    pub file: PathBuf,
    /// What concerns the node as a whole.
    pub node: Node,
    /// Devices in the file's order; at least one. `DeviceId` is the index here.
    pub devices: Vec<Device>,
    /// Engines in the file's order; at least one. `EngineId` is the index here.
    pub engines: Vec<Engine>,
    /// How handoffs are made where the caller names nothing.
    pub policy: Policy,
    /// The endpoint for clients, and who they are.
    pub gateway: Gateway,
    /// How much the journal keeps.
    pub journal: Journal,
    /// Cycles that run by themselves.
    pub schedules: Vec<Schedule>,
    /// Set where the engines are simulated, so that every report says so.
    pub simulated: Option<Simulated>,
}

/// What concerns the node as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Journal, reports, logs, footprints, identities of running engines.
    pub state_dir: PathBuf,
    /// Sockets. Short enough for every socket that is made in it (108 bytes, `sockaddr_un`).
    pub runtime_dir: PathBuf,
    /// Where `/metrics` listens; `None` where it is switched off. Default `127.0.0.1:9464`.
    pub metrics_listen: Option<SocketAddr>,
    /// Filter in `tracing_subscriber`'s notation. Default `info`.
    pub log_filter: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Path of `libnvidia-ml.so` where it is not found by its usual name.
    pub nvml_library: Option<PathBuf>,
    /// How often memory is read.
    pub sampling: Sampling,
    /// How often the world is compared with what is believed of it. Default 5 s.
    pub reconcile_interval: Duration,
    /// How long requests may run without a single token before the engine counts as stalled. Default 60 s.
    pub stall_after: Duration,
    /// Host bytes that engines' pinned memory must leave free. Default 4 GiB.
    pub host_memory_reserve: u64,
    /// How long an orderly shutdown may take before what is left is killed. Default 60 s.
    pub shutdown_grace: Duration,
    /// What SIGTERM does with the engines. Default: stop.
    pub on_stop: OnStop,
}

impl Node {
    /// Path of the control API's unix socket.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime_dir.join("control.sock")
    }
}

/// What becomes of the engines when the agent is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// They are stopped, each by its grace.
    Stop,
    /// They go on; the next agent takes them over.
    Leave,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How often memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Device memory at rest. Default 100 ms.
    pub device: Duration,
    /// Device memory during a handoff. Default 10 ms.
    pub handoff: Duration,
    /// Resident host memory of each engine's process tree. Default 1 s.
    pub host: Duration,
}

/// One GPU, or what stands for one.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its name in configuration, metrics, journal and reports.
    pub name: String,
    /// Where its memory is read.
    pub source: Source,
    /// Its memory in bytes where the configuration states it; otherwise what the device itself reports counts.
    pub capacity_bytes: Option<u64>,
    /// Bytes that no engine may hold. Default 1 GiB.
    pub reserve_bytes: u64,
    /// How many engines may be left awake on it once a handoff has ended. Default 1, never 0.
    pub max_awake: u16,
    /// By how much used memory may exceed the sum of the footprints and still count as released. Default 256 MiB.
    pub slack_bytes: u64,
}

/// Where a device's memory is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// From the driver.
    Nvml(Selector),
    /// From the ledger file that simulated engines share.
    Simulated {
        /// The ledger file.
        ledger: PathBuf,
    },
    /// Nowhere: transitions are verified by probes alone.
    None,
}

/// Which GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// By UUID, `GPU-…`: the only name that survives a reboot and a moved card.
    Uuid(String),
    /// By NVML's index.
    Index(u32),
}

/// One supervised vLLM server.
#[derive(Debug, Clone, PartialEq)]
pub struct Engine {
    /// Short name, 1 to 32 of `A–Z a–z 0–9 _ -`.
    pub name: String,
    /// The id clients put in `model`, and the one that `/v1/models` must list.
    pub model: String,
    /// Other ids for the same model.
    pub aliases: Vec<String>,
    /// Indices into [`Config::devices`]; at least one, no index twice.
    pub devices: Vec<usize>,
    /// Program and arguments; at least the program.
    pub command: Vec<String>,
    /// Environment variables set for it, over the agent's own environment.
    pub env: BTreeMap<String, String>,
    /// Environment variables that it does not inherit.
    pub unset_env: Vec<String>,
    /// Its working directory; `None` is the agent's.
    pub cwd: Option<PathBuf>,
    /// Loopback address that it listens on. Default `127.0.0.1`.
    pub host: IpAddr,
    /// Port that it listens on, never 0.
    pub port: u16,
    /// Key that it demands under `/v1`.
    pub api_key: Option<Secret>,
    /// Whether it is started with the agent. Default true.
    pub autostart: bool,
    /// Starts are serialised by this, lowest first, then by the file's order. Default 0.
    pub start_order: i32,
    /// Tier that it is left in after its start, unless it is the one to be awake. Default level 1, or stopped where it
    /// may not sleep.
    pub rest_tier: Tier,
    /// Tiers that it may be put to, of parked, level 1 and level 2. Empty: it is stopped and restarted only.
    pub sleep_tiers: Vec<Tier>,
    /// Whether one verified sleep and wake follows its start. Default true (false where it may not sleep).
    pub rehearse: bool,
    /// From spawn to ready. Default 10 min.
    pub start_timeout: Duration,
    /// From SIGTERM to SIGKILL. Default 10 s.
    pub stop_grace: Duration,
    /// How often a starting engine is asked whether it is ready. Default 250 ms.
    pub ready_interval: Duration,
    /// vLLM's `--gpu-memory-utilization`, by the configuration or the command.
    pub gpu_memory_utilization: Option<f64>,
    /// Bytes of its KV cache on each of its devices, by the configuration or `--kv-cache-memory-bytes`.
    pub kv_cache_bytes: Option<u64>,
    /// Device bytes of its weights, over all its devices, until they are measured.
    pub weights_bytes: Option<u64>,
    /// Most device bytes while it starts, until that is measured.
    pub start_peak_bytes: Option<u64>,
    /// Pinned host bytes of a level-1 sleep, kept for the process's life, until they are measured.
    pub host_bytes: Option<u64>,
    /// Device bytes that stay while it sleeps, until they are measured. Default 1 GiB.
    pub residual_bytes: u64,
    /// Worker processes (tensor × pipeline parallel). Default 1, or what the command says.
    pub workers: u16,
    /// When it may take its turn, and when it must.
    pub turn: Turn,
    /// Where it is put while nobody uses it, later rungs deeper. Empty: it stays awake.
    pub idle: Vec<Rung>,
    /// Most requests that the gateway has on it at once.
    pub max_in_flight: Option<u32>,
    /// When it is started again after a crash.
    pub restart: Restart,
    /// When it is started anew for device memory that it loses.
    pub recycle: Recycle,
    /// How much of its output is kept.
    pub log: LogFiles,
    /// Where a simulated engine writes its operation log.
    pub op_log: Option<PathBuf>,
    /// Where its command is a container runtime's: how its container is found and ended.
    pub container: Option<Container>,
    /// Deadlines that replace the computed ones.
    pub timeouts: Timeouts,
    /// Whether the command runs the project's simulated engine.
    pub simulated: bool,
    /// It is not in the file any more; what stands here is what stood there last ([`Config::arranged`]).
    pub retired: bool,
}

impl Engine {
    /// `http://127.0.0.1:8101`
    pub fn base_url(&self) -> String {
        format!("http://{}", SocketAddr::new(self.host, self.port))
    }

    /// Whether it may be put to this tier (`awake` and `stopped` are always allowed).
    pub fn allows(&self, tier: Tier) -> bool {
        matches!(tier, Tier::Awake | Tier::Stopped) || self.sleep_tiers.contains(&tier)
    }

    /// Every id that a request's `model` may carry for it.
    pub fn model_ids(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.model.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// When an engine is started anew, at an idle moment, for device memory that it loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recycle {
    /// Bytes more on a device than when its process first slept; `None`: never. Default: half the slack of its device.
    pub creep_bytes: Option<u64>,
    /// Sleeps of one process; `None`: any number.
    pub sleeps: Option<u32>,
}

/// How an engine's container is found and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Ends it in order; at least the program.
    pub stop: Vec<String>,
    /// Ends it at once; `stop` again where it is empty.
    pub kill: Vec<String>,
    /// Where the runtime writes the container's id (`--cidfile`).
    pub id_file: Option<PathBuf>,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a value from being printed.
    pub fn new(value: String) -> Self {
        Secret(value)
    }

    /// The value itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// When an engine is started again after a crash: exponential back-off, and a budget after which it is `failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Restarts within `window`. Default 5; 0 is none.
    pub budget: u32,
    /// Default 10 min.
    pub window: Duration,
    /// First delay. Default 1 s.
    pub initial: Duration,
    /// Longest delay. Default 60 s.
    pub max: Duration,
}

/// How much of an engine's output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFiles {
    /// Size of one file. Default 16 MiB.
    pub max_bytes: u64,
    /// How many files. Default 5.
    pub keep: u32,
}

/// Deadlines that replace the ones computed from bytes and measured times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// `/sleep`.
    pub sleep: Option<Duration>,
    /// `/wake_up`.
    pub wake: Option<Duration>,
    /// `reload_weights`.
    pub reload: Option<Duration>,
    /// The probe's first token.
    pub probe: Option<Duration>,
    /// `/is_sleeping`, which blocks for as long as a copy runs.
    pub is_sleeping: Option<Duration>,
    /// Every other control call.
    pub control: Option<Duration>,
    /// Until device bytes are gone, or there.
    pub memory: Option<Duration>,
}

/// How handoffs are made where the caller names nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Default `auto`.
    pub strategy: Strategy,
    /// Tier that the outgoing engine is left in; `None` leaves it to the strategy.
    pub leave: Option<Tier>,
    /// What happens to running requests. Default `wait`.
    pub drain: Drain,
    /// How long `wait` waits before the handoff is given up. Default 30 s.
    pub drain_deadline: Duration,
    /// Indices of the engines that are awake once all have started, within every device's `max_awake`.
    pub awake_at_start: Vec<usize>,
}

/// A handoff plan asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Break before make, outgoing engine at level 1.
    SleepFirst,
    /// Make before break, outgoing engine at level 1.
    WakeFirst,
    /// Break before make, outgoing engine parked.
    Park,
    /// The fastest safe one.
    Auto,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Strategy; 4] =
        [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park, Strategy::Auto];

    /// The word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::SleepFirst => "sleep-first",
            Strategy::WakeFirst => "wake-first",
            Strategy::Park => "park",
            Strategy::Auto => "auto",
        }
    }
}

/// What happens to running requests of the engine that goes to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Drain {
    /// They are waited for.
    Wait,
    /// They are frozen and go on after the wake.
    Freeze,
    /// They are ended.
    Abort,
}

impl Drain {
    /// Every policy.
    pub const ALL: [Drain; 3] = [Drain::Wait, Drain::Freeze, Drain::Abort];

    /// The word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Drain::Wait => "wait",
            Drain::Freeze => "freeze",
            Drain::Abort => "abort",
        }
    }
}

/// What happens while the journal cannot be written. Serving goes on either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnFailure {
    /// Everything goes on; what happens is only logged.
    #[default]
    GoOn,
    /// What asks for engines to be moved is refused until it can be written again.
    RefuseSwitching,
}

impl OnFailure {
    /// Both.
    pub const ALL: [OnFailure; 2] = [OnFailure::GoOn, OnFailure::RefuseSwitching];

    /// The word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            OnFailure::GoOn => "go_on",
            OnFailure::RefuseSwitching => "refuse_switching",
        }
    }
}

/// How much the journal keeps, and what happens without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journal {
    /// Age of records. Default 30 days.
    pub retention: Duration,
    /// Age of samples. Default 7 days.
    pub sample_retention: Duration,
    /// Size of the file. Default 1 GiB.
    pub max_bytes: u64,
    /// What happens while it cannot be written. Default `go_on`.
    pub on_failure: OnFailure,
}

/// A cycle that runs by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Unique.
    pub name: String,
    /// Cron expression, five fields (or six, with seconds first), local time.
    pub cron: String,
    /// Which cycle plan.
    pub plan: PlanRef,
    /// Leave it out while requests are being served. Default true.
    pub unless_serving: bool,
}

/// Which cycle plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanRef {
    /// One that comes with the agent: `reference`, `handoffs`, `quick`.
    BuiltIn(String),
    /// A file.
    File(PathBuf),
}

/// What a simulated node says of itself in every report.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// Profile's name, `l20`.
    pub profile: String,
    /// Engine times are divided by this. Default 1.
    pub speed: f64,
    /// By how much less host memory the simulated engines really take. Default 1.
    pub host_scale: f64,
}

impl Config {
    /// Index of an engine by its name.
    pub fn engine_index(&self, name: &str) -> Option<usize> {
        self.engines.iter().position(|engine| engine.name == name)
    }

    /// Engines that are in the file, with their indices.
    pub fn configured(&self) -> impl Iterator<Item = (usize, &Engine)> {
        self.engines.iter().enumerate().filter(|(_, engine)| !engine.retired)
    }

    /// Whether an engine's transitions can be verified by device bytes; false means by probes alone.
    pub fn has_device_evidence(&self, engine: usize) -> bool {
        self.engines.get(engine).is_some_and(|e| {
            e.devices.iter().all(|&d| self.devices.get(d).is_some_and(|d| d.source != Source::None))
        })
    }

    /// Engines in the order in which they are started, by `start_order` and then as written.
    pub fn start_sequence(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.engines.len()).filter(|&i| self.engines[i].autostart).collect();
        order.sort_by_key(|&i| self.engines[i].start_order);
        order
    }

    /// A hash of all that a running engine would have to be restarted for, 16 hexadecimal digits; stable between
    /// releases of the agent. `None` for an index out of range.
    pub fn fingerprint(&self, engine: usize) -> Option<String> {
        let engine = self.engines.get(engine)?;
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let devices: Vec<String> = engine
            .devices
            .iter()
            .filter_map(|&device| self.devices.get(device))
            .map(|device| match &device.source {
                Source::Nvml(Selector::Uuid(uuid)) => format!("uuid {uuid}"),
                Source::Nvml(Selector::Index(index)) => format!("index {index}"),
                Source::Simulated { ledger } => format!("ledger {}", ledger.display()),
                Source::None => "none".to_owned(),
            })
            .collect();
        let facts = serde_json::json!([
            engine.model,
            engine.command,
            engine.env,
            engine.unset_env,
            path(&engine.cwd),
            engine.host,
            engine.port,
            engine.api_key.as_ref().map(Secret::reveal),
            path(&engine.op_log),
            devices,
        ]);
        Some(format!("{:016x}", fnv1a(facts.to_string().as_bytes())))
    }
}

/// FNV-1a, 64 bits: the standard library's hasher may change with every release, this one may not.
pub(super) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
