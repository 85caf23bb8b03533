//! Reports: pure functions of journal records.
//!
//! ```text
//!  journal records ──► read ──► run (planned steps, their operations, phases, probes, load)
//!  of one run            │
//!                        ├─► sleeps    every sleep with its evidence     ─┐
//!                        ├─► models    restarts, sleep cycles, load       │
//!                        ├─► handoffs  waterfalls, directions, overhead   ├─► switch: the switch report
//!                        ├─► requests  who is counted where               │
//!                        └─► memory    peaks, release, sampling          ─┘        │
//!                                                                                  ├─► table: for people
//!                                     reference: the report to compare with ──────┴─► compare: for benches
//! ```
//!
//! Nothing in here reads a clock, a file or a network: the same records give the same report at any time. A figure
//! that its records do not hold is `None`; none is made up.

mod compare;
mod handoffs;
mod memory;
mod models;
mod read;
mod reference;
mod requests;
mod run;
mod sleeps;
mod switch;
mod table;
#[cfg(test)]
mod tests;

pub use compare::{Deviation, Quantity, REFERENCE_OVERHEAD_S, compare};
pub use reference::reference;
pub use switch::switch_report;
pub use table::table;

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The records are not those of a run.
    #[error("these {entries} journal records hold no start of a run; give the records of one cycle run")]
    NoRun {
        /// How many records there were.
        entries: usize,
    },
    /// The records of several runs were given at once.
    #[error(
        "these journal records hold the starts of two runs (records {first} and {second}); give those of one"
    )]
    SeveralRuns {
        /// Sequence number of the first start.
        first: u64,
        /// Sequence number of the second.
        second: u64,
    },
    /// A record names a step that the plan does not have.
    #[error(
        "journal record {seq} is about step {step} of a plan that has {planned} steps: the journal is damaged"
    )]
    UnknownStep {
        /// Sequence number of the record.
        seq: u64,
        /// The step it names, from 0.
        step: u32,
        /// How many the plan has.
        planned: usize,
    },
    /// The report that the agent carries to compare with cannot be read.
    #[error("the reference report built into the agent does not read as a switch report: {message}")]
    Reference {
        /// What the parser said.
        message: String,
    },
}
