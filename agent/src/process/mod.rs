//! Engines as process trees.
//!
//! An engine is not one process: vLLM is an API server, an engine core, workers, a resource tracker. `kill -9` of the
//! first leaves the others holding the GPU for ever (CONTRACT 5). And the agent may itself be killed at any instant,
//! with engines running that must go on. Three ideas follow.
//!
//! **A shim owns each tree.** [`Shims::spawn`] starts `hotbunk-agent shim` ([`shim`]), which starts the engine. The
//! shim outlives the agent, adopts orphans, keeps output and exit status, and ends the tree when told to. The agent
//! holds an [`EngineProcess`], which talks to it over a unix socket and turns what happens into [`ProcessEvent`]s.
//!
//! **Everything is named so that it can be proven.** Pid, start time and boot id name a process ([`tree`]); session,
//! cgroup and a token in the environment name a tree ([`scope`]). A signal goes through a pidfd whose start time has
//! been checked ([`signal`]). What is not proven ours is reported and never signalled.
//!
//! **An end has two parts.** The leader's exit is told at once, with its last lines, because requests must fail fast;
//! that nothing is left of the tree is told apart, because only then is its memory free. So each life is: one
//! [`ProcessEvent::Exited`] (or [`ProcessEvent::ShimLost`]), then [`ProcessEvent::Swept`].
//!
//! ```text
//!   agent ──spawn──► shim (session leader, subreaper) ──fork──► engine's leader ──► children …
//!     │                │  owns: log, exit status, cgroup
//!     └──unix socket───┘  writes: STATE/shims/ENGINE-TOKEN/shim.json
//! ```
//!
//! Where things are: `STATE/shims/ENGINE-TOKEN/` (the record, mode 0700), `STATE/logs/ENGINE/*.log*`,
//! `RUNTIME/shims/ENGINE-TOKEN.sock`. An agent that starts calls [`find_predecessors`] first. Two agents must not share
//! a state directory.

mod adopted;
mod cgroup;
mod container;
mod handle;
mod launcher;
mod log;
mod monitor;
mod port;
mod predecessor;
mod protocol;
mod scope;
mod shim;
mod signal;
mod state;
mod sweep;
pub mod tree;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use adopted::{AdoptedState, Server, Unfit, find_server, running_command};
pub use container::{Contained, ContainerSpec, ContainerState, Group};
pub use handle::{EngineProcess, ProcessEvent, StopReport};
pub use launcher::{Hold, Launch, Shims};
pub use log::{LogLoss, LogPolicy, LossCause, telling_line};
pub use port::{Ownership, is_listened, listening_owner, port_belongs_to, ports_of};
pub use predecessor::{LeftAlone, Predecessor, Scan, find_predecessors, let_go, stop_tree};
pub use protocol::Exit;
pub use shim::run_shim;
pub use state::ShimState;
pub use sweep::{Leftover, SWEEP_DEADLINE, SweepEnd};

/// Lines of output that an exit is reported with.
pub const TAIL_LINES: usize = 40;

/// What can go wrong with processes, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's name cannot be part of a path.
    #[error(
        "engine name {0:?} cannot be used in file names: use letters, digits, '-', '_' and '.', not first"
    )]
    Name(String),
    /// Nothing to start.
    #[error("engine {0} has no command: set `command` in its configuration")]
    NoCommand(String),
    /// A unix socket's path has at most 107 bytes.
    #[error("the socket path {} has {} bytes, more than a unix socket may have (107): use a shorter runtime directory",
        .0.display(), .0.as_os_str().len())]
    SocketPath(PathBuf),
    /// A file or directory of the agent's own.
    #[error("{what} {} failed", path.display())]
    File {
        /// What was done, `creating`, `reading`, …
        what: &'static str,
        /// To which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The shim could not be started.
    #[error("the shim {} could not be started", exe.display())]
    Shim {
        /// The program.
        exe: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The shim ran but the engine could not be started.
    #[error("engine {engine} could not be started: {why}")]
    Start {
        /// Engine's name.
        engine: String,
        /// The shim's words.
        why: String,
    },
    /// No answer from the shim of a starting engine.
    #[error("the shim of engine {engine} did not report within {}s and was killed", waited.as_secs())]
    StartTimeout {
        /// Engine's name.
        engine: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The tree could not be ended, or it is not known whether it was.
    #[error(
        "the end of engine {engine} (shim {shim_pid}) could not be confirmed within {}s: look at its processes by hand",
        waited.as_secs()
    )]
    Unconfirmed {
        /// Engine's name.
        engine: String,
        /// Its shim.
        shim_pid: u32,
        /// How long it was waited for.
        waited: Duration,
    },
}

impl Error {
    /// Whether the state directory has no room, or cannot be written now: that says nothing of the engine.
    pub fn is_no_room(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        matches!(self, Error::File { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem))
    }
}
