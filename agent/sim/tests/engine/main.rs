//! The simulated engine as real processes, asked over HTTP and killed with signals.

mod failures;
mod harness;
mod lifecycle;
mod serving;
mod sleeping;
mod versions;
