//! Cycle runs: a scripted test of restarts, sleeps, wakes, load and handoffs that yields a switch report.

use crate::error::ApiError;
use crate::words::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/cycles`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCycle {
    /// The run's id, chosen by the client; the same rules as for operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What to run; default: the plan `reference`.
    #[serde(default)]
    pub plan: PlanSource,
}

/// Where a cycle plan comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "source", rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanSource {
    /// A plan that the agent knows by name.
    Named {
        /// `reference`, `handoffs`, `quick`, or a name from the configuration.
        name: String,
    },
    /// The text of a plan file.
    Inline {
        /// What to call it in errors and in the report: the file's path.
        origin: String,
        /// TOML.
        text: String,
    },
}

impl Default for PlanSource {
    fn default() -> Self {
        PlanSource::Named { name: "reference".to_owned() }
    }
}

/// A cycle run as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CycleRun {
    /// The id it was given.
    pub id: String,
    /// Plan's name.
    pub plan: String,
    /// How far it has come.
    pub state: State,
    /// Who began it: `operator`, `schedule`, `demo`.
    pub by: String,
    /// When it began, epoch seconds.
    pub started_at: f64,
    /// When it ended, epoch seconds.
    pub ended_at: Option<f64>,
    /// From the begin to the end, or until now, seconds.
    pub elapsed_s: f64,
    /// Predicted time to its end from now, seconds.
    pub eta_s: Option<f64>,
    /// Every step, in order. Left out in lists.
    pub steps: Vec<CycleStep>,
    /// Number of steps.
    pub steps_total: u32,
    /// Number of steps that have ended.
    pub steps_done: u32,
    /// Requests that were executed.
    pub requests_total: u64,
    /// Requests of these that ended well.
    pub requests_ok: u64,
    /// Why it failed.
    pub error: Option<ApiError>,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CycleStep {
    /// Its place, from 0.
    pub index: u32,
    /// What is done: `hand off A → B`.
    pub sentence: String,
    /// How far it has come.
    pub state: State,
    /// How long it took, or has taken so far, seconds.
    pub duration_s: Option<f64>,
    /// Ids of its operations.
    pub operations: Vec<String>,
    /// Why it failed.
    pub error: Option<ApiError>,
}

/// Answer of `GET /v1/cycles`, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CycleList {
    /// Runs in the journal, without their steps.
    pub runs: Vec<CycleRun>,
    /// Plans that can be run by name.
    pub plans: Vec<PlanSummary>,
}

/// A plan that the agent knows by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanSummary {
    /// Name.
    pub name: String,
    /// What it does, a sentence.
    pub about: String,
    /// Number of steps.
    pub steps: u32,
}
