//! The reports, as JSON.
//!
//! The switch report keeps the form of the reference report field for field: a program that reads the reference reads
//! ours. What Hotbunk adds are further fields, none of which a reader needs; where a report lacks them (the reference
//! does) they read as `None` or empty. What could not be measured is `null`, never 0.
//!
//! Names: a field that ends in `_s` is in seconds, `_gib` in GiB (2³⁰ bytes), `_bytes` in bytes.

mod handoff;
mod sleep;
mod switch;

pub use handoff::{Handoff, HandoffPlan, MemoryBytes, PhaseBar};
pub use sleep::SleepRecord;
pub use switch::{
    AutoRequests, Direction, FailedStep, HostPeak, Memory, ModelReport, Performance, Requests, RestartReady,
    Run, Sampling, Simulated, SleepReport, Status, Switch, SwitchReport, Verification, Window,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Summary of a small sample: `null` in its place means that there was nothing to summarise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stat {
    /// How many values.
    pub n: u32,
    /// Middle value; mean of the two middle ones for even n.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Nearest rank: the ⌈0.95·n⌉-th smallest value.
    pub p95: f64,
}
