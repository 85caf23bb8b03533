//! What the configuration says, as far as decisions need it.

use crate::backoff::BackoffPolicy;
use crate::creep::Recycle;
use crate::ids::DeviceId;
use crate::tier::Tier;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// Configured name.
    pub name: String,
    /// Whether there is evidence of memory at all (`false` only for `device = "none"`: probes alone).
    pub evidence: bool,
    /// Physical bytes; `None` until the device has been read.
    pub capacity: Option<u64>,
    /// Bytes never given to an engine.
    pub reserve: u64,
    /// Tolerance of every comparison with measured bytes.
    pub slack: u64,
    /// How many engines may be left awake once a handoff has ended.
    pub max_awake: u16,
}

/// Which sleeping tiers the operator allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Levels {
    /// KV cache released, weights stay.
    pub parked: bool,
    /// Weights to host memory.
    pub level1: bool,
    /// Weights dropped.
    pub level2: bool,
}

impl Levels {
    /// Whether a tier is among them (`awake` and `stopped` always are).
    pub fn allow(self, tier: Tier) -> bool {
        match tier {
            Tier::Awake | Tier::Stopped => true,
            Tier::Parked => self.parked,
            Tier::Level1 => self.level1,
            Tier::Level2 => self.level2,
        }
    }
}

/// What the operator declares of an engine's memory, used until it has been measured. Bytes per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Estimate {
    /// Weights on the device.
    pub weights: Option<u64>,
    /// KV cache on the device.
    pub kv_cache: Option<u64>,
    /// What stays on the device asleep: context, graphs, communicators.
    pub residual: u64,
    /// Resident host bytes once slept at level 1 (pinned backup included).
    pub host: Option<u64>,
    /// Most that a start takes for a moment.
    pub start_peak: Option<u64>,
    /// Bytes that vLLM demands to be free when it starts (utilisation × total).
    pub start_free: Option<u64>,
}

/// Deadlines of control calls. A call that misses its deadline is unknown, not failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// `/sleep` and `/release_kv_cache_memory`.
    pub sleep: Duration,
    /// `/wake_up`.
    pub wake: Duration,
    /// `reload_weights`.
    pub reload: Duration,
    /// Everything that answers at once (`/is_sleeping` on an idle engine, `/pause`, `/reset_prefix_cache`).
    pub control: Duration,
    /// The long poll after an unanswered call.
    pub resolve: Duration,
    /// A probe.
    pub probe: Duration,
    /// Device bytes to be seen gone, or back.
    pub evidence: Duration,
    /// Spawn to ready.
    pub start: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            sleep: Duration::from_secs(120),
            wake: Duration::from_secs(120),
            reload: Duration::from_secs(600),
            control: Duration::from_secs(10),
            resolve: Duration::from_secs(120),
            probe: Duration::from_secs(60),
            evidence: Duration::from_secs(5),
            start: Duration::from_secs(600),
        }
    }
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EngineSpec {
    /// Configured name.
    pub name: String,
    /// Devices it spans; bytes are the same on each.
    pub devices: Vec<DeviceId>,
    /// Tiers it may be left in.
    pub levels: Levels,
    /// Tier that it is left in after a start that nobody waits for.
    pub rest: Tier,
    /// Started with the agent.
    pub autostart: bool,
    /// Rehearse after a start.
    pub rehearse: bool,
    /// Declared memory.
    pub estimate: Estimate,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// Restarts after crashes.
    pub backoff: BackoffPolicy,
    /// When it may take its turn, and when it must.
    pub turn: Turn,
    /// Where it goes while nobody uses it, from the shallowest rung to the deepest; empty: it stays where it is.
    pub ladder: Vec<Rung>,
    /// When it is started anew for what it loses on the device.
    pub recycle: Recycle,
}

/// Whose turn it is, as far as one engine is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Turn {
    /// Once awake, other models' requests do not put it to sleep before this has passed.
    pub min_residency: Duration,
    /// Longest that one of its requests may wait for the switch to begin and end, where that can be met.
    pub max_wait: Duration,
    /// Its patience while another model is busy: twice the weight, half the wait. Never 0.
    pub weight: u32,
    /// Never put to sleep by other models' requests or by its ladder; an operator may.
    pub pinned: bool,
}

impl Default for Turn {
    fn default() -> Self {
        Turn {
            min_residency: Duration::from_secs(2),
            max_wait: Duration::from_secs(60),
            weight: 1,
            pinned: false,
        }
    }
}

/// One rung of an idle ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rung {
    /// Since the last inference ended.
    pub after: Duration,
    /// The tier that it is put into then, if it is not in a deeper one.
    pub tier: Tier,
}

/// What happens to the running requests of the engine that goes to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPolicy {
    /// Wait until they have ended, up to a deadline; then give the handoff up.
    Wait,
    /// Freeze them; they go on when the engine wakes.
    Freeze,
    /// End them.
    Abort,
}

impl DrainPolicy {
    /// The word in configuration and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            DrainPolicy::Wait => "wait",
            DrainPolicy::Freeze => "freeze",
            DrainPolicy::Abort => "abort",
        }
    }
}

/// A handoff plan asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// The fastest safe one.
    Auto,
    /// Break before make, outgoing engine to level 1.
    SleepFirst,
    /// Make before break, outgoing engine to level 1.
    WakeFirst,
    /// Break before make, outgoing engine parked.
    Park,
}

impl Strategy {
    /// The word in configuration and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Auto => "auto",
            Strategy::SleepFirst => "sleep-first",
            Strategy::WakeFirst => "wake-first",
            Strategy::Park => "park",
        }
    }
}

/// In which order a handoff sleeps and wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The incoming engine answers before the outgoing one drains.
    MakeBeforeBreak,
    /// The outgoing engine is verified asleep before the incoming one takes memory.
    BreakBeforeMake,
}

impl Order {
    /// The word in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Order::MakeBeforeBreak => "make-before-break",
            Order::BreakBeforeMake => "break-before-make",
        }
    }
}

/// Defaults of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Strategy of a handoff that names none.
    pub strategy: Strategy,
    /// Tier left behind, where the operator fixed it.
    pub leave: Option<Tier>,
    /// Drain policy.
    pub drain: DrainPolicy,
    /// Longest drain under `wait`.
    pub drain_deadline: Duration,
    /// Host memory that level 1 may use altogether, bytes; `None` where it is unknown.
    pub host_budget: Option<u64>,
    /// An engine with requests running and no token for this long has stalled.
    pub stall_after: Duration,
}
