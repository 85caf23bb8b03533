//! `doctor`: what the agent finds when it looks at its surroundings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorReport {
    /// Findings, in the order that they were looked for.
    pub checks: Vec<DoctorCheck>,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoctorCheck {
    /// What was looked at: `NVML`, `cgroup`, `host memory`, `engine A: routes`.
    pub name: String,
    /// Verdict.
    pub verdict: DoctorVerdict,
    /// What was found, a sentence.
    pub found: String,
    /// What can be done about it.
    pub help: Option<String>,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DoctorVerdict {
    /// As it should be.
    Ok,
    /// Could not be looked at.
    Skipped,
    /// Works, but worse than it could.
    Warning,
    /// Something will not work.
    Error,
}
