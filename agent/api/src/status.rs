//! The node at one instant: devices, engines, what is going on.

use crate::cycle::CycleRun;
use crate::gateway::{GatewayStatus, Maintenance};
use crate::operation::Operation;
use crate::words::Tier;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Number of the last event that this includes; pass it as `since` to `/v1/events` to go on from here.
    pub seq: u64,
    /// The agent and its host.
    pub node: NodeStatus,
    /// Devices, in the configuration's order.
    pub devices: Vec<DeviceStatus>,
    /// Engines, in the configuration's order.
    pub engines: Vec<EngineStatus>,
    /// The operation that is running.
    pub operation: Option<Operation>,
    /// Operations that wait for their turn, next one first.
    pub queue: Vec<Operation>,
    /// The cycle run that is going on.
    pub cycle: Option<CycleRun>,
    /// The endpoint for clients; `null` from an agent that has none.
    #[serde(default)]
    pub gateway: Option<GatewayStatus>,
    /// Set while the node is paused for maintenance.
    #[serde(default)]
    pub maintenance: Option<Maintenance>,
}

/// The agent and its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    /// Host name.
    pub name: String,
    /// The agent's version.
    pub agent_version: String,
    /// The agent's pid.
    pub pid: u32,
    /// When it started, epoch seconds.
    pub started_at: f64,
    /// How long it has run, seconds.
    pub uptime_s: f64,
    /// Configuration file, absolute.
    pub config_path: Option<String>,
    /// Where engines are simulated: by which profile, how fast.
    pub simulated: Option<Simulated>,
    /// Host memory.
    pub host: HostStatus,
    /// What is wrong with the journal; `null` while it can be written.
    #[serde(default)]
    pub journal_trouble: Option<JournalTrouble>,
}

/// The journal cannot be written: serving goes on, events are only logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalTrouble {
    /// Why.
    pub reason: String,
    /// Since when, epoch seconds.
    pub since_at: f64,
    /// Events that stand in the log alone by now.
    pub lost_events: u64,
    /// Whether switching is refused meanwhile, by the configuration.
    pub refuses_switching: bool,
}

/// What a simulated node says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Simulated {
    /// Profile's name.
    pub profile: String,
    /// Engine times are divided by this.
    pub speed: f64,
}

/// Host memory and its ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostStatus {
    /// Physical memory (or the cgroup's limit, where lower).
    pub total_bytes: Option<u64>,
    /// What is available now.
    pub available_bytes: Option<u64>,
    /// What the engines may need at most, by the ledger.
    pub reserved_bytes: Option<u64>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceStatus {
    /// Name in the configuration.
    pub name: String,
    /// GPU UUID; `null` for `device = "none"`.
    pub uuid: Option<String>,
    /// Product name: `NVIDIA L20`.
    pub product: Option<String>,
    /// Whole memory.
    pub total_bytes: Option<u64>,
    /// Used, device-wide, as last read.
    pub used_bytes: Option<u64>,
    /// Never to be planned with.
    pub reserve_bytes: u64,
    /// What the ledger says engines hold.
    pub held_bytes: Option<u64>,
    /// What the running operation has reserved beyond that.
    pub reserved_bytes: Option<u64>,
    /// Used by processes that are not ours.
    pub foreign_bytes: Option<u64>,
    /// Age of the last reading, seconds.
    pub reading_age_s: Option<f64>,
    /// Whether it can be measured.
    pub health: DeviceHealth,
}

/// Whether a device can be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "health", rename_all = "snake_case")]
pub enum DeviceHealth {
    /// Readings are fresh.
    Ok,
    /// Readings are late or fail: nothing can be verified by them until they come again.
    Stale,
    /// Readings are fresh, but the driver does not tell the processes apart: bytes of single engines are unknown.
    ProcessesUnknown {
        /// What the driver said.
        reason: String,
    },
    /// It cannot be read.
    Lost {
        /// What the driver or the library said.
        reason: String,
    },
    /// `device = "none"`: nothing is measured, probes alone decide.
    None,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineStatus {
    /// Short name.
    pub name: String,
    /// Model id that it serves.
    pub model: String,
    /// Devices that it spans.
    pub devices: Vec<String>,
    /// Where it is reached.
    pub address: Option<String>,
    /// Where its state lives; during a move, the last tier that was verified; `null` where that is not known.
    pub tier: Option<Tier>,
    /// Whether it is settled there.
    pub condition: Condition,
    /// Raised at each wake and start.
    pub generation: u64,
    /// The process that it is now.
    pub incarnation: Option<IncarnationStatus>,
    /// vLLM's version, as it answers.
    pub version: Option<String>,
    /// What it can do; `null` before it was asked.
    pub capabilities: Option<Capabilities>,
    /// What it holds at each tier.
    pub footprints: Vec<Footprint>,
    /// Requests running or waiting in it, as last asked at rest; `null` while it moves or does not tell.
    pub in_flight: Option<u64>,
    /// State of its canary.
    pub canary: Canary,
    /// Restarts since the agent started.
    pub restarts: u32,
    /// Log file of this incarnation, absolute.
    pub log_path: Option<String>,
    /// Whether the configured settings are those that it runs with.
    #[serde(default)]
    pub settings: Settings,
    /// It is not configured any more: it finishes what it serves and is stopped at its next idle moment.
    #[serde(default)]
    pub retiring: bool,
}

/// Whether the configured settings of an engine are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Settings {
    /// They are.
    #[default]
    InForce,
    /// Newer ones come into force as soon as nothing is under way on its devices.
    Pending,
    /// Newer ones come into force with its next process: at its next idle moment, or with `ctl restart`.
    PendingRestart,
}

/// What an engine is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "snake_case")]
pub enum Condition {
    /// Verified in its tier.
    Settled,
    /// An operation moves it.
    Moving {
        /// The operation's id.
        operation: String,
    },
    /// Its process is starting.
    Starting {
        /// Since when, seconds.
        for_s: Option<f64>,
    },
    /// It died and waits to be started again.
    Backoff {
        /// When, epoch seconds.
        until_at: f64,
        /// Failures in a row.
        failures: u32,
        /// Why it died.
        reason: String,
    },
    /// It died too often, or cannot be repaired: `ctl reset` starts anew.
    Failed {
        /// Why.
        reason: String,
    },
    /// It has no process.
    Stopped {
        /// Why.
        why: StoppedWhy,
    },
    /// It was found in another state than it was left in.
    Drifted {
        /// What was found.
        reason: String,
    },
    /// Healthy, but its requests make no progress.
    Stalled {
        /// What was found.
        reason: String,
    },
}

/// Why an engine has no process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedWhy {
    /// Not started yet.
    NotStarted,
    /// An operator stopped it.
    Operator,
    /// It waits until there is room to start.
    NoRoom,
    /// Somebody else listens on its port: `ctl adopt` takes over a server of its model as it runs, `ctl doctor` says more.
    PortTaken,
    /// A handoff left it so.
    Handoff,
    /// It should sleep and cannot: it is switched by restart.
    CannotSleep,
    /// Nobody had used it for long: its idle ladder.
    Idle,
    /// The node is paused for maintenance.
    Maintenance,
    /// The agent is stopping.
    Shutdown,
}

/// One process life of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IncarnationStatus {
    /// Process id of its leader.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start_ticks: u64,
}

/// What an engine's release and routes allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// Sleep level 1.
    pub level1: bool,
    /// Sleep level 2, with a way back.
    pub level2: bool,
    /// The KV cache can be released alone.
    pub park: bool,
    /// Requests can be frozen into level 1.
    pub freeze: bool,
    /// Requests can be aborted as it goes to sleep.
    pub abort: bool,
    /// A failed sleep or wake may be tried again.
    pub retry: bool,
}

/// What an engine holds at a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Footprint {
    /// Tier.
    pub tier: Tier,
    /// Device bytes.
    pub device_bytes: Option<u64>,
    /// Host bytes.
    pub host_bytes: Option<u64>,
    /// Measured, or estimated from the configuration.
    pub measured: bool,
}

/// State of an engine's canary.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "canary", rename_all = "snake_case")]
pub enum Canary {
    /// None recorded yet, or switched off.
    None,
    /// Recorded, not compared yet.
    Recorded,
    /// It matched when last compared.
    Matched {
        /// When, epoch seconds.
        at: f64,
    },
    /// It did not match.
    Mismatched {
        /// When, epoch seconds.
        at: f64,
    },
}
