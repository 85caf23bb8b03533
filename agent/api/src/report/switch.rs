//! The switch report: restarts, sleeps, load and handoffs of one cycle run.

use super::{Handoff, SleepRecord, Stat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The switch report of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchReport {
    /// PASS when every planned restart, sleep cycle, load round and handoff succeeded, the `auto` series included.
    pub status: Status,
    /// Engines' version, `vLLM 0.31.0`; says so where it is simulated.
    pub runtime: String,
    /// `1 × NVIDIA L20`; says so where it is simulated.
    pub gpu: String,
    /// Context length of the engines, tokens; `null` where they differ or it is unknown.
    pub context_tokens: Option<u32>,
    /// KV cache of an engine, GiB; `null` where they differ or it is unknown.
    pub kv_gib: Option<f64>,
    /// By engine name.
    pub models: BTreeMap<String, ModelReport>,
    /// Counts of requests, the `auto` series apart.
    pub requests: Requests,
    /// How p95 is to be read.
    pub percentile_method: String,
    /// What the restart figures are.
    pub restart_baseline: String,
    /// Whether dynamic resource allocation was used.
    pub dra: String,
    /// The handoffs.
    pub switch: Switch,
    /// Device and host memory.
    pub memory: Memory,
    /// Measuring windows by name: a stage, widened by 2 s (divided by the speed of a simulation) at both ends.
    pub windows: BTreeMap<String, Window>,

    /// Which run this is.
    #[serde(default)]
    pub run: Option<Run>,
    /// Present where the run was simulated.
    #[serde(default)]
    pub simulated: Option<Simulated>,
    /// How the device was sampled inside the windows.
    #[serde(default)]
    pub sampling: Option<Sampling>,
    /// Every sleep, in order, the `auto` series apart.
    #[serde(default)]
    pub sleeps: Vec<SleepRecord>,
    /// Every handoff, in order, the `auto` series apart.
    #[serde(default)]
    pub handoffs: Vec<Handoff>,
    /// The second series of handoffs, with the strategy `auto`. Nothing of it enters another field, `status` apart.
    #[serde(default)]
    pub switch_auto: Option<Switch>,
    /// Requests of that series.
    #[serde(default)]
    pub requests_auto: Option<AutoRequests>,
    /// Every handoff of that series, in order.
    #[serde(default)]
    pub handoffs_auto: Vec<Handoff>,
    /// The planned steps that did not succeed: why `status` is FAIL.
    #[serde(default)]
    pub failures: Vec<FailedStep>,
}

/// Verdict of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Status {
    /// Everything planned succeeded.
    Pass,
    /// Something planned failed or was not done.
    Fail,
}

/// Which run a report is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The run's id in the journal.
    pub id: Option<String>,
    /// Cycle plan's name.
    pub plan: String,
    /// Begin, seconds since the Unix epoch.
    pub started: f64,
    /// End, seconds since the Unix epoch; `null` where the journal holds none.
    pub finished: Option<f64>,
    /// `ok`, `failed`, `cancelled`, or `unfinished` where the journal holds no end.
    pub outcome: String,
}

/// What a simulated run says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Simulated {
    /// Profile's name.
    pub profile: String,
    /// Engine times, holds, pauses and margins were divided by this.
    pub speed: f64,
    /// By how much less host memory the simulated engines really took.
    pub host_scale: f64,
    /// What the times of starts were divided by, where that is another figure: `demo --plan handoffs` starts its
    /// engines at 20, whatever its handoffs pass at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_speed: Option<f64>,
}

/// How the device was sampled inside the measuring windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sampling {
    /// Where the readings came from; `null` where the run does not say.
    pub source: Option<String>,
    /// Spacing of consecutive readings of one device, s.
    pub interval_s: Option<Stat>,
    /// Readings that succeeded.
    pub samples: u32,
    /// Readings that failed; none of them is in any figure.
    pub missed: u32,
}

/// A planned step that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedStep {
    /// Place in the cycle plan, from 0; `null` where the run as a whole is meant.
    pub step: Option<u32>,
    /// The step in words.
    pub what: String,
    /// Stable code.
    pub code: String,
    /// For people.
    pub message: String,
}

/// One engine's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelReport {
    /// Served model.
    pub name: String,
    /// First start in the run: spawn to the first token of a probe, s.
    pub restart_initial: Option<Stat>,
    /// Later starts: spawn to the first token of a probe, s.
    pub restart_warm: Option<Stat>,
    /// Sleep cycles by level: `1`, `2`, and `parked` where such were run.
    pub sleep: BTreeMap<String, SleepReport>,
    /// Load stages, in the order in which they were planned.
    pub performance: Vec<Performance>,
    /// The same starts: spawn to ready.
    #[serde(default)]
    pub restart_ready: Option<RestartReady>,
    /// Context length, tokens.
    #[serde(default)]
    pub context_tokens: Option<u32>,
}

/// Spawn to ready, s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RestartReady {
    /// First start in the run.
    pub initial: Option<Stat>,
    /// Later starts.
    pub warm: Option<Stat>,
}

/// The sleep cycles of one engine at one level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SleepReport {
    /// Cycles that succeeded; the figures below are theirs.
    pub successful_cycles: u32,
    /// Begin of the sleep call to verified asleep.
    pub sleep_s: Option<Stat>,
    /// Begin of the first wake call to the end of the last, weight reload included.
    pub wake_api_s: Option<Stat>,
    /// Begin of the first wake call to the probe's first token.
    pub to_first_token_s: Option<Stat>,
    /// Device-wide used memory after the sleep: a sleeping neighbour is in it.
    pub residual_gib: Option<Stat>,
    /// Cycles that were planned.
    #[serde(default)]
    pub planned_cycles: Option<u32>,
    /// The cold ones of `sleep_s`: first level-1 sleep of a process started in this run.
    #[serde(default)]
    pub cold_sleep_s: Option<Stat>,
    /// Device memory of this engine's own processes after the sleep.
    #[serde(default)]
    pub process_residual_gib: Option<Stat>,
    /// Share of the device-wide used memory that went, percent.
    #[serde(default)]
    pub device_release_percent: Option<Stat>,
    /// Share of this engine's own device memory that went, percent.
    #[serde(default)]
    pub process_release_percent: Option<Stat>,
}

/// One load stage at one concurrency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Performance {
    /// `baseline` or `after-wake`.
    pub stage: String,
    /// Requests in flight.
    pub concurrency: u32,
    /// Rounds planned.
    pub rounds: u32,
    /// Requests planned.
    pub planned: u32,
    /// Requests whose stream was complete.
    pub success: u32,
    /// Rounds in which every request was complete.
    pub rounds_passed: u32,
    /// Output tokens of a round over its elapsed time, tokens/s; n = rounds.
    pub output_tps: Option<Stat>,
    /// Time to first token; n = successes.
    pub ttft_s: Option<Stat>,
    /// (end to end − time to first token)/(output tokens − 1) of a request; n = successes of two tokens or more.
    pub tpot_s: Option<Stat>,
    /// Distinct prompt lengths, tokens, ascending.
    pub prompt_token_counts: Vec<u32>,
}

/// Counts of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Requests {
    /// Planned in load stages.
    pub planned_performance: u32,
    /// Sent: load, and one probe per start, sleep cycle, activation and handoff.
    pub executed: u32,
    /// Of those, complete.
    pub success: u32,
    /// Of those, not complete.
    pub failure: u32,
    /// Requests made for verification, never in `executed`.
    #[serde(default)]
    pub verification: Option<Verification>,
}

/// Warm-up, rehearsal and canary requests, and probes of operations that no planned step asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// Sent.
    pub executed: u32,
    /// Of those, as expected.
    pub success: u32,
    /// Of those, not as expected.
    pub failure: u32,
    /// Sent, by purpose.
    pub by_purpose: BTreeMap<String, u32>,
}

/// Counts of requests of the `auto` series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AutoRequests {
    /// Sent: one probe per activation and handoff.
    pub executed: u32,
    /// Of those, complete.
    pub success: u32,
    /// Of those, not complete.
    pub failure: u32,
    /// Requests made for verification, not in `executed`.
    pub verification: Verification,
}

/// A series of handoffs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Switch {
    /// Wakes with nothing else awake that succeeded.
    pub initial_activation: u32,
    /// Handoffs that were begun.
    pub handoffs: u32,
    /// Handoffs that succeeded.
    pub success: u32,
    /// By direction, `A→B`; the figures are of the handoffs that succeeded.
    pub directions: BTreeMap<String, Direction>,
    /// Handoffs that were planned.
    #[serde(default)]
    pub planned: Option<u32>,
    /// Overhead over all directions.
    #[serde(default)]
    pub overhead_s: Option<Stat>,
}

/// Handoffs of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Direction {
    /// Handoffs that succeeded.
    pub n: u32,
    /// Acceptance of the command to the incoming engine's first token, minus drain on that path.
    pub to_first_token_s: Option<Stat>,
    /// Begin of the outgoing engine's sleep call to verified asleep.
    pub sleep_s: Option<Stat>,
    /// Begin of the incoming engine's first wake call to the end of the last.
    pub wake_s: Option<Stat>,
    /// `to_first_token_s` minus the engines' own work in that time, by the engines' clocks; `null` where an engine
    /// gives no clock.
    #[serde(default)]
    pub overhead_s: Option<Stat>,
    /// The engines' own work in that time.
    #[serde(default)]
    pub engine_s: Option<Stat>,
    /// Drain in that time.
    #[serde(default)]
    pub drain_s: Option<Stat>,
}

/// Device and host memory of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Device-wide used memory over the samples in the windows; only `max` is a peak.
    pub physical_peak_gib: Option<Stat>,
    /// Largest sum of RSS over an engine's process tree, as measured, by engine.
    pub rss_peak_gib: BTreeMap<String, Option<f64>>,
    /// (used before − used after)/used before, device-wide, percent; one value per level-1 sleep in the run.
    pub l1_release_fraction: BTreeMap<String, Option<Stat>>,
    /// The same of the engine's own processes on the device.
    #[serde(default)]
    pub l1_process_release_fraction: BTreeMap<String, Option<Stat>>,
    /// Host memory peaks by engine.
    #[serde(default)]
    pub host_peak_gib: BTreeMap<String, HostPeak>,
}

/// Host memory peaks of one engine's process tree, GiB as measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostPeak {
    /// Σ RSS: pages shared in the tree are counted once for each process.
    pub rss: Option<f64>,
    /// Σ PSS: shared pages are counted once; read on changes of state only.
    pub pss: Option<f64>,
}

/// A measuring window, seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// Begin.
    pub start: f64,
    /// End.
    pub end: f64,
}
