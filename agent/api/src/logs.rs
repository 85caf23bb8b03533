//! The engines' own logs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Query of `GET /v1/engines/{engine}/logs` and `…/logs/follow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// How many of the last lines to give (first); default 100, at most 10 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u32>,
}

impl LogsQuery {
    /// Lines where the query names no number.
    pub const DEFAULT_LINES: u32 = 100;
    /// Most lines in one answer.
    pub const MAX_LINES: u32 = 10_000;

    /// How many lines to give.
    pub fn lines(&self) -> u32 {
        self.lines.unwrap_or(Self::DEFAULT_LINES).min(Self::MAX_LINES)
    }
}

/// Answer of `GET /v1/engines/{engine}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogTail {
    /// Engine's name.
    pub engine: String,
    /// The file, absolute.
    pub path: Option<String>,
    /// The last lines, oldest first.
    pub lines: Vec<LogLine>,
}

/// One line; the data of each event of `…/logs/follow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Pid of the incarnation that wrote it.
    pub pid: Option<u32>,
    /// Without its line end; bytes that are no UTF-8 are replaced.
    pub text: String,
}
