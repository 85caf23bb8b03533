//! Samples: readings at short intervals, in tables of their own, since there are many.

use hotbunk_core::time::Moment;
use serde::{Deserialize, Serialize};

/// One device sample (its own table: there are many).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When the device was read, monotonic.
    pub at: Moment,
    /// The same, epoch seconds.
    pub wall: f64,
    /// Device's name.
    pub device: String,
    /// Device-wide used bytes; `None` is a missed sample.
    pub used: Option<u64>,
    /// Device bytes by engine name, where pids can be mapped.
    pub engines: Vec<(String, Option<u64>)>,
}

/// One host sample of an engine's process tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// When it was read, monotonic.
    pub at: Moment,
    /// The same, epoch seconds.
    pub wall: f64,
    /// Engine's name.
    pub engine: String,
    /// Σ RSS over the tree.
    pub rss: Option<u64>,
    /// Σ PSS over the tree, where it was read.
    pub pss: Option<u64>,
}
