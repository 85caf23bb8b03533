//! Pure decisions and arithmetic of Hotbunk.
//!
//! Nothing in here reads a clock, a file, the environment or the network: time comes in as a [`time::Moment`], facts
//! come in as [`event::Event`]s, and what should be done comes out as a list of [`effect::Effect`]s that the agent runs
//! elsewhere. Start reading at [`state`] (what a node is), then [`program`] (what an operation is made of), then
//! [`step`] (how it goes on), [`recover`] (when it does not) and [`plan`] (which one is chosen).

pub mod adopt;
pub mod backoff;
pub mod bucket;
pub mod call;
pub mod capability;
pub mod comeback;
pub mod creep;
pub mod demand;
pub mod effect;
pub mod event;
pub mod fairness;
pub mod hold;
pub mod ids;
pub mod invariants;
pub mod kept;
pub mod ladder;
pub mod ledger;
pub mod plan;
pub mod program;
pub mod queue;
pub mod recover;
pub mod revise;
pub mod sequence;
pub mod spec;
pub mod state;
pub mod stats;
pub mod step;
pub mod surplus;
pub mod tier;
pub mod time;
