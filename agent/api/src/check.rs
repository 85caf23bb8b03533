//! Checking a configuration's text without applying it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// The file's path, as it should stand in messages.
    pub path: String,
    /// The file's text.
    pub text: String,
}

/// Answer of `POST /v1/check`: 200 whether or not there are errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckReport {
    /// Whether an agent would start with it.
    pub ok: bool,
    /// All findings at once.
    pub diagnostics: Vec<Diagnostic>,
    /// The same for people, with the lines concerned.
    pub rendered: String,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// `true` where an agent would not start.
    pub error: bool,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
    /// What is wrong.
    pub message: String,
    /// What can be done about it.
    pub help: Option<String>,
}
