//! Hotbunk's agent: supervises vLLM servers that share a GPU, switches between them, measures every phase.
//!
//! Read [`app`] first: it builds every part in order. The decisions are in the crate `hotbunk_core`; [`switcher`] owns
//! the state and asks it, [`effects`] does what it says, [`journal`] keeps what happened, [`report`] computes from that.

pub mod adopt;
pub mod app;
pub mod backend;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod cycle;
pub mod demo;
pub mod device;
pub mod doctor;
pub mod effects;
pub mod engine;
pub mod events;
pub mod explain;
pub mod fd_store;
pub mod gateway;
pub mod host;
pub mod inherited;
pub mod journal;
pub mod logs;
pub mod metrics;
pub mod orphan;
pub mod process;
pub mod reload;
pub mod report;
pub mod reports;
pub mod schedule;
pub mod status;
pub mod successor;
pub mod switcher;
pub mod translate;
