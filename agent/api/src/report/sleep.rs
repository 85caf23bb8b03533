//! One sleep: what was asked for, what the bytes say happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One sleep of one engine, with the evidence of its memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SleepRecord {
    /// Engine's short name.
    pub engine: String,
    /// Number of the operation in the journal.
    pub operation: u64,
    /// Place in the cycle plan, from 0; `null` for a sleep that no planned step asked for.
    pub step: Option<u32>,
    /// `level1`, `level2`, `parked` or `stopped`.
    pub level_requested: Option<String>,
    /// The same, or `awake` where no memory was given back; judged from device and host bytes alone. `null` where they
    /// do not tell: from its second level-1 sleep on, a process keeps its pinned host memory, so that level 1 and
    /// level 2 leave the same bytes.
    pub level_observed: Option<String>,
    /// The first level-1 sleep of a process started in this run and not rehearsed: vLLM allocates its pinned host
    /// memory in it.
    pub cold: bool,
    /// Begin of the call to verified asleep, s.
    pub sleep_s: Option<f64>,
    /// Device-wide used memory when the call began, GiB.
    pub device_before_gib: Option<f64>,
    /// Device-wide used memory after it, GiB (a sleeping neighbour is in it).
    pub device_residual_gib: Option<f64>,
    /// Share of the device-wide used memory that went, percent.
    pub device_release_percent: Option<f64>,
    /// Device memory of this engine's own processes when the call began, GiB.
    pub process_before_gib: Option<f64>,
    /// Device memory of this engine's own processes after it, GiB.
    pub process_residual_gib: Option<f64>,
    /// Share of this engine's own device memory that went, percent.
    pub process_release_percent: Option<f64>,
    /// Growth of the engine's resident host memory, GiB as measured; negative where it shrank.
    pub host_growth_gib: Option<f64>,
}
