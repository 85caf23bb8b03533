//! The event stream: what changes, as it changes.
//!
//! `GET /v1/events` is a stream of server-sent events. Each has an `id` (its number), an `event` name (the kind) and
//! an [`Event`] as data. A client that lost the connection sends `Last-Event-ID` (or `?since=`) and gets everything
//! after that number, as far as the agent remembers; what it does not remember is announced by a
//! [gap](Happening::Gap), and then `/v1/status` tells where things stand.

use crate::cycle::CycleRun;
use crate::operation::Operation;
use crate::status::{DeviceStatus, EngineStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Query of `GET /v1/events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Begin after this number; the header `Last-Event-ID` takes precedence. Without either: from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number: ascending by one within one life of the agent.
    pub seq: u64,
    /// When, epoch seconds.
    pub at: f64,
    /// What happened.
    pub what: Happening,
}

/// What happened. Resources come whole, as they stand after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Happening {
    /// An operation was accepted, began or ended a step, or ended.
    Operation {
        /// The operation.
        operation: Box<Operation>,
    },
    /// An engine's tier or condition changed.
    Engine {
        /// The engine.
        engine: Box<EngineStatus>,
    },
    /// A device's health or ledger changed (not each reading).
    Device {
        /// The device.
        device: Box<DeviceStatus>,
    },
    /// A cycle run began, came forward, or ended.
    Cycle {
        /// The run.
        run: Box<CycleRun>,
    },
    /// Something happened that nobody asked for.
    Incident {
        /// Stable code, as in the journal.
        code: String,
        /// Engine, where one is concerned.
        engine: Option<String>,
        /// Device, where one is concerned.
        device: Option<String>,
        /// For people.
        message: String,
    },
    /// The agent began to stop.
    Stopping {
        /// Why.
        reason: String,
    },
    /// Events before this one are not remembered any more: read `/v1/status`.
    Gap {
        /// The first number that is remembered.
        resumes_at: u64,
    },
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Happening {
    /// The kind's word, also the `event` field of the stream.
    pub fn kind(&self) -> &'static str {
        match self {
            Happening::Operation { .. } => "operation",
            Happening::Engine { .. } => "engine",
            Happening::Device { .. } => "device",
            Happening::Cycle { .. } => "cycle",
            Happening::Incident { .. } => "incident",
            Happening::Stopping { .. } => "stopping",
            Happening::Gap { .. } => "gap",
            Happening::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_later_version_does_not_break_the_stream() {
        let event: Event =
            serde_json::from_str(r#"{"seq":7,"at":1.5,"what":{"kind":"novelty","extra":[1]}}"#).unwrap();
        assert_eq!(event.what, Happening::Unknown);
        let gap = Happening::Gap { resumes_at: 3 };
        assert_eq!(serde_json::to_value(&gap).unwrap()["kind"], gap.kind());
    }
}
