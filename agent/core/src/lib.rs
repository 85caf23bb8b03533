//! Pure decisions and arithmetic of Hotbunk.
//!
//! Nothing in here reads a clock, a file, the environment or the network: time comes in as a [`time::Moment`], facts
//! come in as events, and what should be done comes out as a list of effects that the agent runs elsewhere.

pub mod call;
pub mod capability;
pub mod ids;
pub mod stats;
pub mod tier;
pub mod time;
