//! Applying a changed configuration file in a running agent.

use crate::check::CheckReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/reload`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Only say what would happen.
    #[serde(default)]
    pub dry_run: bool,
}

/// Answer of `POST /v1/reload`: 200 whether or not the file can be applied; see `outcome`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// The configuration file, absolute.
    pub path: String,
    /// What became of it.
    pub outcome: ReloadOutcome,
    /// Whether that was only asked: nothing has been applied then.
    pub dry_run: bool,
    /// What the check of the file has found, warnings included.
    pub check: CheckReport,
    /// What becomes of each engine, in the agent's order; those that are not configured any more and have no process are
    /// not among them. Empty where the file is refused.
    pub engines: Vec<EngineReload>,
    /// Settings of the node that are applied: at once, those of devices as soon as nothing is under way on them.
    pub settings: Vec<SettingChange>,
    /// Settings that a running agent cannot change. Where there are any, nothing at all is applied.
    pub needs_restart: Vec<SettingChange>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReloadOutcome {
    /// It is the agent's configuration now (or would be).
    Applied,
    /// It says what it said before.
    Unchanged,
    /// It has errors; the agent goes on with what it had.
    Invalid,
    /// It changes what a running agent cannot change; the agent goes on with what it had.
    NeedsRestart,
}

impl ReloadOutcome {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            ReloadOutcome::Applied => "applied",
            ReloadOutcome::Unchanged => "unchanged",
            ReloadOutcome::Invalid => "invalid",
            ReloadOutcome::NeedsRestart => "needs_restart",
        }
    }

    /// Whether the agent goes by the file now.
    pub fn is_ok(self) -> bool {
        matches!(self, ReloadOutcome::Applied | ReloadOutcome::Unchanged)
    }
}

/// What becomes of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineReload {
    /// Its name.
    pub engine: String,
    /// What becomes of it.
    pub change: EngineChange,
    /// Keys of its table that are different from what is in force.
    pub keys: Vec<String>,
    /// Fingerprint of what its process was started with; without one, of what it would have been. `null` where it is new.
    pub from: Option<String>,
    /// Fingerprint of what its next process is started with; `null` where there is none.
    pub to: Option<String>,
}

/// What becomes of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineChange {
    /// Nothing; it is not touched.
    Unchanged,
    /// Its settings are in force as soon as nothing is under way on its devices; its process goes on.
    Settings,
    /// Its process runs with other settings: it is restarted at its next idle moment.
    Restart,
    /// It is new, and starts as at the agent's own start.
    Added,
    /// It is not configured any more: its models are gone, it finishes what it serves and is stopped at its next idle
    /// moment.
    Removed,
}

impl EngineChange {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            EngineChange::Unchanged => "unchanged",
            EngineChange::Settings => "settings",
            EngineChange::Restart => "restart",
            EngineChange::Added => "added",
            EngineChange::Removed => "removed",
        }
    }
}

/// A setting that is another one in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingChange {
    /// Its name: `policy.strategy`, `device gpu0: reserve`.
    pub key: String,
    /// What it is now; `null` where there is none. What is long or secret is only said to be set.
    pub from: Option<String>,
    /// What the file says; `null` where it says nothing.
    pub to: Option<String>,
}
