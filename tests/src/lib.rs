//! The harness of the tests that run real processes.
//!
//! A [`Node`] is a configuration in a directory of its own: simulated engines on simulated devices, free ports, short
//! deadlines. [`Node::start`] runs the agent on it as anybody would; [`Agent`] talks to it through the control API,
//! [`Engine`] to one engine behind its back. Tests wait for levels, never for edges and never for a time: every wait
//! has a condition and a deadline that only a broken program reaches.
//!
//! Nothing outlives a test: an agent that is dropped is told to stop, then killed, and whatever of its engines is left
//! is found by the directory's name in its command line and killed too. A test that fails prints the agent's log.

mod agent;
mod ask;
mod binaries;
mod body;
mod by_hand;
mod ctl;
mod engine;
mod fd_store;
mod handed;
mod node;
mod ports;
mod processes;
mod reload;
mod requests;
mod runtime;
mod setup;
mod wait;

pub use agent::{Agent, IncidentSeen};
pub use ask::{Sleep, Switch, adopt, reset, restart, start, stop, wake};
pub use binaries::{agent_binary, ctl_binary};
pub use by_hand::ByHand;
pub use ctl::{Done, ctl};
pub use engine::{Engine, Stream};
pub use handed::Handed;
pub use node::{Foreign, Node};
pub use ports::free_port;
pub use processes::{Process, kill, living, living_in_group, signal};
pub use reload::{File, changes};
pub use requests::Requests;
pub use runtime::{EXIT as RUNTIME_EXIT, Request as RuntimeRequest, Runtime};
pub use setup::{DeviceSetup, EngineSetup, Setup};
pub use wait::{PATIENCE, until, until_some};

/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
