//! Measuring host memory: what the engines' process trees hold, and what the machine (or its cgroup) still has.
//!
//! * [`rss`]: resident bytes of a tree, from each process's `statm` (some 30 µs a process): once a second by
//!   [`HostSampler`], and before and after each step. Pages that processes share count in each of them.
//! * [`pss`]: proportional bytes, which count a shared page once; the kernel walks the page tables for it (over 100 ms
//!   for 4 GiB), so it is read on request only, when an engine's state has changed.
//! * [`HostMemory`]: capacity and room for the host ledger: `MemTotal` and `MemAvailable`, or what the agent's cgroup
//!   allows where that is less.
//!
//! Process ids come from whoever knows the trees. They must be processes, not threads: `/proc` shows a thread's process
//! under the thread's id too, and would count its memory again.

mod memory;
mod sampler;
mod tree;

pub use memory::HostMemory;
pub use sampler::{HostReading, HostSampler};
pub use tree::{pss, rss};

/// Why host memory cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of `/proc` cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// `/proc/meminfo` lacks a line.
    #[error("{} has no `{field}`", path.display())]
    Missing {
        /// Which file.
        path: std::path::PathBuf,
        /// Which line.
        field: &'static str,
    },
    /// The sampling thread could not be started.
    #[error("the thread that samples host memory cannot be started")]
    Thread(#[source] std::io::Error),
}
