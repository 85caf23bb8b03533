//! Demand: what the gateway holds for the engines.

use crate::time::Moment;

/// What the gateway holds for one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Demand {
    /// Requests held.
    pub held: u32,
    /// When the oldest of them came; `None` where none is held.
    pub oldest: Option<Moment>,
}

/// Switches that an engine's demand asked for and that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Retry {
    /// How many in a row.
    pub failures: u32,
    /// Not again before this.
    pub not_before: Moment,
}
