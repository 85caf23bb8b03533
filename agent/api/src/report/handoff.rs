//! One handoff as a waterfall: every phase with its time and its bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One handoff of the device from one engine to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Handoff {
    /// Number of the operation in the journal.
    pub operation: u64,
    /// Place in the cycle plan, from 0; `null` for a handoff that no planned step asked for.
    pub step: Option<u32>,
    /// Outgoing engine.
    pub from: String,
    /// Incoming engine.
    pub to: String,
    /// Asked for: `sleep-first`, `wake-first`, `park`, `auto`.
    pub strategy: Option<String>,
    /// Done.
    pub plan: HandoffPlan,
    /// Drain policy: `wait`, `freeze`, `abort`.
    pub drain: Option<String>,
    /// `ok`, `failed`, `cancelled`, or `unfinished` where the journal holds no end.
    pub outcome: String,
    /// Why not `ok`: stable code.
    pub error_code: Option<String>,
    /// Why not `ok`, for people.
    pub error: Option<String>,
    /// Acceptance of the command, seconds since the Unix epoch.
    pub accepted: f64,
    /// Acceptance of the command to the incoming engine's first token, minus drain on that path.
    pub to_first_token_s: Option<f64>,
    /// Drain on that path, s.
    pub drain_s: Option<f64>,
    /// Begin of the outgoing engine's sleep call to verified asleep.
    pub sleep_s: Option<f64>,
    /// Begin of the incoming engine's first wake call to the end of the last (a start: spawn to ready).
    pub wake_s: Option<f64>,
    /// Acceptance of the command to the end of the operation, s.
    pub total_s: Option<f64>,
    /// The engines' own work on the path to the first token, by the engines' clocks; overlaps counted once.
    pub engine_s: Option<f64>,
    /// `to_first_token_s` minus `engine_s`: what the agent and its calls cost. `null` where an engine gives no clock.
    pub overhead_s: Option<f64>,
    /// Tier asked for the outgoing engine.
    pub level_requested: Option<String>,
    /// Tier of the outgoing engine by its bytes; `null` where they do not tell.
    pub level_observed: Option<String>,
    /// Every phase, in the order in which they began; repairs and roll-back included.
    pub phases: Vec<PhaseBar>,
}

/// What a handoff did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandoffPlan {
    /// `make-before-break` or `break-before-make`.
    pub order: Option<String>,
    /// Tier the outgoing engine is left in.
    pub leave: Option<String>,
}

/// One bar of the waterfall.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseBar {
    /// `drain`, `sleep`, `verify_asleep`, `await_release`, `wake`, `probe`, …
    pub phase: String,
    /// On which engine.
    pub engine: String,
    /// Begin, seconds after the acceptance of the command.
    pub start_s: f64,
    /// Duration; `null` where the journal holds no end.
    pub duration_s: Option<f64>,
    /// `ok`, `failed`, `cancelled` or `unfinished`.
    pub outcome: String,
    /// Memory when it began.
    pub before: MemoryBytes,
    /// Memory when it ended.
    pub after: MemoryBytes,
    /// Device-wide bytes that came or went, over the duration; `null` where none did or it is unknown.
    pub gib_per_s: Option<f64>,
}

/// Memory at one instant, bytes. Unknown is `null`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MemoryBytes {
    /// Device-wide used.
    pub device: Option<u64>,
    /// The engine's own processes on the device.
    pub process: Option<u64>,
    /// Resident host memory of the engine's process tree.
    pub rss: Option<u64>,
}
