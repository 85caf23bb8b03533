//! What records are made of, where it is more than a number or a word.

use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use serde::{Deserialize, Serialize};

/// Device memory at one instant. Unknown is `None`, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Device-wide used bytes (what NVML reports).
    pub device: Option<u64>,
    /// The engine's own processes on the device, where pids can be mapped.
    pub engine: Option<u64>,
    /// Resident host bytes of the engine's process tree.
    pub rss: Option<u64>,
}

/// One interval of an engine's own work, by the engine's own clock (operation log, or vLLM ≥ 0.32's metric).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineWork {
    /// Engine's name.
    pub engine: String,
    /// The engine's word: `sleep`, `wake`, `release_kv_cache`, `reload_weights`, `first_token`, …
    pub work: String,
    /// Begin, monotonic.
    pub began: Moment,
    /// End, monotonic.
    pub ended: Moment,
}

/// What a simulated run says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedRun {
    /// Profile's name, `l20`.
    pub profile: String,
    /// Engine times are divided by this.
    pub speed: f64,
    /// By how much less host memory the simulated engines really take.
    pub host_scale: f64,
    /// What the times of starts are divided by, where that is another figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_speed: Option<f64>,
}

/// An engine's facts in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEngine {
    /// Short name (`A`).
    pub engine: String,
    /// Served model.
    pub model: String,
    /// `max_model_len`, where it was known when the run began.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Device bytes of its KV cache, where known: tells a release of the KV cache from a sleep.
    #[serde(default)]
    pub kv_bytes: Option<u64>,
}

/// A stage of a cycle, as planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum CycleStep {
    /// Start a stopped engine, or restart a running one; `initial` for the first start in the run.
    Start {
        /// Engine's name.
        engine: String,
        /// First start of the run (`restart_initial`), else `restart_warm`.
        initial: bool,
    },
    /// One load stage: rounds at one concurrency.
    Load {
        /// Engine's name.
        engine: String,
        /// `baseline` or `after-wake`.
        stage: String,
        /// Requests in flight.
        concurrency: u32,
        /// Rounds.
        rounds: u32,
        /// Requests of a round.
        requests: u32,
        /// Output tokens of a request.
        output_tokens: u32,
    },
    /// Sleep at a level, hold, wake, probe.
    SleepCycle {
        /// Engine's name.
        engine: String,
        /// `level1`, `level2` or `parked`.
        tier: Tier,
    },
    /// Sleep and stay asleep.
    Sleep {
        /// Engine's name.
        engine: String,
        /// Where to.
        tier: Tier,
    },
    /// Wake with nothing else awake.
    Activate {
        /// Engine's name.
        engine: String,
        /// In the `auto` series.
        auto: bool,
    },
    /// Hand the device over.
    Handoff {
        /// Outgoing engine.
        from: String,
        /// Incoming engine.
        to: String,
        /// In the `auto` series (reported apart).
        auto: bool,
    },
}

/// What a new configuration makes of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadedEngine {
    /// Engine's name.
    pub engine: String,
    /// `settings`, `restart`, `added` or `removed`.
    pub change: String,
    /// Fingerprint of what it ran with; `None` where it is new.
    pub from: Option<String>,
    /// Fingerprint of what it is started with next; `None` where it is not any more.
    pub to: Option<String>,
}
