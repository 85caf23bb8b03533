//! Plans: what a switch would do, what else could be done and why not, and what would make it faster.

use crate::error::ApiError;
use crate::words::{Drain, Order, Strategy, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/explain`: the fields of a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest {
    /// Engine's name.
    pub engine: String,
    /// Plan by name; default from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Tier that the outgoing engine is left in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leave: Option<Tier>,
    /// What happens to the outgoing engine's running requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
}

/// What a switch to an engine would do now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The incoming engine.
    pub engine: String,
    /// The outgoing engine, where one is awake.
    pub from: Option<String>,
    /// What would be done; `null` where nothing is to do or nothing can be.
    pub chosen: Option<Plan>,
    /// Why nothing is to do: `already awake`.
    pub nothing_to_do: Option<String>,
    /// Why nothing can be done.
    pub refused: Option<ApiError>,
    /// Every other order and tier, with its verdict.
    pub alternatives: Vec<Alternative>,
    /// What would make it faster.
    pub faster: Vec<Faster>,
}

/// What an operation does, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Asked for.
    pub strategy: Option<Strategy>,
    /// Order of memory moves; `null` where only one engine moves.
    pub order: Option<Order>,
    /// Tier that the outgoing engine is left in.
    pub leave: Option<Tier>,
    /// Steps, in order.
    pub steps: Vec<PlanStep>,
    /// Predicted time to the incoming engine's first token, seconds; `null` without measured costs.
    pub first_token_s: Option<f64>,
    /// Predicted time to the end, seconds.
    pub total_s: Option<f64>,
    /// Highest use of each device on the way.
    pub peaks: Vec<Peak>,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanStep {
    /// What is done, a sentence: `wake B's KV cache (4.0 GiB)`.
    pub sentence: String,
    /// On which engine.
    pub engine: String,
    /// Predicted, seconds.
    pub eta_s: Option<f64>,
}

/// Highest use of a device during a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Peak {
    /// Device's name.
    pub device: String,
    /// Predicted used bytes at the highest point.
    pub peak_bytes: Option<u64>,
    /// Capacity less reserve.
    pub limit_bytes: Option<u64>,
}

/// Another way to do it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alternative {
    /// Order of memory moves.
    pub order: Order,
    /// Tier that the outgoing engine would be left in.
    pub leave: Tier,
    /// Whether it could be done.
    pub verdict: Verdict,
    /// Predicted time to the incoming engine's first token, seconds.
    pub first_token_s: Option<f64>,
    /// Predicted time to come back, seconds.
    pub return_s: Option<f64>,
    /// Highest use of each device on the way.
    pub peaks: Vec<Peak>,
}

/// Whether an alternative could be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It could, but the chosen plan is better.
    Fits,
    /// It could not.
    Refused {
        /// The reason, a sentence.
        because: String,
    },
}

/// One thing that would make the switch faster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Faster {
    /// What to change, a sentence.
    pub sentence: String,
    /// What to change, for programs.
    pub change: Change,
    /// What becomes possible.
    pub order: Option<Order>,
    /// The tier that the outgoing engine could then be left in.
    pub leave: Option<Tier>,
    /// Predicted saving in time to first token, seconds.
    pub saves_s: Option<f64>,
}

/// A change that an operator can make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Start the engines with a fixed KV cache of at most this size (`--kv-cache-memory-bytes`).
    KvCache {
        /// Largest sizes at which it fits.
        engines: Vec<KvSize>,
    },
    /// Give the host more memory, so that the engine's weights can stay there.
    HostMemory {
        /// Engine's name.
        engine: String,
        /// How much is missing.
        missing_bytes: u64,
    },
    /// A newer vLLM.
    Version {
        /// Engine's name.
        engine: String,
        /// First release that can do it.
        at_least: String,
    },
}

/// A KV cache size for one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KvSize {
    /// Engine's name.
    pub engine: String,
    /// Largest size that fits.
    pub at_most_bytes: u64,
    /// What it has now.
    pub now_bytes: Option<u64>,
}
