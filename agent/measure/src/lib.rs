//! Measures an OpenAI-compatible endpoint: when the first token came, when the last, how many there were.
//!
//! Everything here is built from three layers, each usable alone:
//!
//! ```text
//!  load::run_round      N requests, C at a time: what a cycle's load stage sends
//!        │
//!  probe::probe         one streamed request, timed, with its tokens where they are asked for
//!        │
//!  sse::Parser          bytes as they arrive → events
//! ```
//!
//! Instants are nanoseconds on `CLOCK_MONOTONIC` ([`clock::now`]), the clock that every process of the node shares.
//! A request is a success only if its stream was complete: a finish reason that is not `abort`, then `[DONE]`. All
//! else is an [`Error`] that says which of the ways to fail it was.

pub mod clock;
pub mod error;
pub mod load;
pub mod probe;
pub mod sse;
mod stream;
pub mod target;

#[cfg(test)]
mod http_tests;

pub use error::Error;
pub use probe::{ProbeSpec, Timed, Token, probe};
pub use target::{Api, Target};
