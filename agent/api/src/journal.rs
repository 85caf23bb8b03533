//! The journal, as it is stored.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Query of `GET /v1/journal`. Filters are joined by *and*.
///
/// Without `after` the newest entries are given, with it the oldest ones after that place; in both cases in the
/// order of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JournalQuery {
    /// Only entries after this place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most so many; default 100, at most 10 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only this kind of record: `transition`, `step_ended`, `incident`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only records that concern this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Only records of this cycle run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Only records of this operation: its id, or its number in the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
}

impl JournalQuery {
    /// Entries in an answer where the query names no limit.
    pub const DEFAULT_LIMIT: u32 = 100;
    /// Most entries in one answer.
    pub const MAX_LIMIT: u32 = 10_000;

    /// How many entries to give.
    pub fn limit(&self) -> u32 {
        self.limit.unwrap_or(Self::DEFAULT_LIMIT).min(Self::MAX_LIMIT)
    }
}

/// Answer of `GET /v1/journal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalPage {
    /// Entries in the order of the journal.
    pub entries: Vec<JournalEntry>,
    /// Whether more entries follow the last one.
    pub more: bool,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JournalEntry {
    /// Its place, ascending.
    pub seq: u64,
    /// When it was made, nanoseconds on this boot's monotonic clock.
    pub at: u64,
    /// When it was made, epoch seconds.
    pub wall: f64,
    /// The cycle run that it belongs to.
    pub run: Option<String>,
    /// The operation's number.
    pub operation: Option<u64>,
    /// The fact, as stored; `kind` says which.
    pub record: serde_json::Value,
}
