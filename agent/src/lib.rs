//! Hotbunk's agent: supervises vLLM servers that share a GPU, switches between them, measures every phase.

pub mod clock;
pub mod config;
pub mod control;
pub mod cycle;
pub mod device;
pub mod effects;
pub mod engine;
pub mod events;
pub mod host;
pub mod journal;
pub mod metrics;
pub mod process;
pub mod report;
pub mod switcher;
pub mod translate;
