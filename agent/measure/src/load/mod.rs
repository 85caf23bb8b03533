//! Load: many requests, and what became of each.
//!
//! So far one shape, the round: N requests, C of them in flight, the next one sent when one has ended (closed loop, no
//! think time). It is what a cycle's load stages are made of.

mod round;

pub use round::{RequestResult, Round, RoundSpec, run_round};
