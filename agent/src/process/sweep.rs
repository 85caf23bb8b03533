//! Ending a whole process tree.
//!
//! One look at `/proc` is not atomic, and processes fork while they are being killed. So a sweep is rounds: kill the
//! cgroup, look, SIGKILL everything found, again, until a look finds nothing or the deadline has passed. What is left
//! then sits in the kernel (state `D`, typically in a GPU driver) and is reported by pid and state.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::scope::{Scope, SessionHeld};
use super::signal;
use super::tree::{Member, ProcStat};
use crate::clock;

/// How long a sweep is repeated before what is left is reported.
pub const SWEEP_DEADLINE: Duration = Duration::from_secs(10);

/// Pause between two rounds: SIGKILL takes effect within microseconds, freeing gigabytes takes longer.
pub(super) const ROUND: Duration = Duration::from_millis(10);

/// A process that SIGKILL has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Process id.
    pub pid: u32,
    /// Its name, at most 15 bytes.
    pub comm: String,
    /// State letter; `D` is uninterruptible.
    pub state: char,
}

impl From<&ProcStat> for Leftover {
    fn from(stat: &ProcStat) -> Leftover {
        Leftover { pid: stat.pid, comm: stat.comm.clone(), state: stat.state }
    }
}

/// How a sweep ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepEnd {
    /// Processes that had to be sent SIGKILL.
    pub killed: u32,
    /// Processes still there at the deadline.
    pub left: Vec<Leftover>,
}

/// A sweep in progress.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    killed: BTreeSet<Member>,
}

impl Sweep {
    /// Sends SIGKILL to everything in `found` and to the cgroup.
    pub(super) fn kill(&mut self, scope: &Scope, found: &[ProcStat]) {
        if found.is_empty() {
            return;
        }
        if let Some(cgroup) = scope.cgroup() {
            // Kernels before 5.14 have no such file; the signals below do the same, less surely against forks.
            let _ = cgroup.kill();
        }
        for stat in found {
            self.killed.insert(stat.member());
            // Gone already, or not permitted: either way the next look decides.
            let _ = signal::send(stat.member(), Signal::KILL);
        }
    }

    /// The result, with what the last look found.
    pub(super) fn end(&self, found: &[ProcStat]) -> SweepEnd {
        SweepEnd {
            killed: u32::try_from(self.killed.len()).unwrap_or(u32::MAX),
            left: found.iter().map(Leftover::from).collect(),
        }
    }
}

/// Sweeps a tree whose shim is gone.
pub(super) async fn sweep_orphans(scope: &Scope, held: SessionHeld) -> SweepEnd {
    let mut sweep = Sweep::default();
    let give_up = clock::now() + SWEEP_DEADLINE;
    let mut was_empty = false;
    loop {
        let found = scope.look_hard(held).proven;
        // Twice, because a process in the middle of an `exec` shows no environment.
        if (found.is_empty() && was_empty) || clock::now() >= give_up {
            return sweep.end(&found);
        }
        was_empty = found.is_empty();
        sweep.kill(scope, &found);
        tokio::time::sleep(ROUND).await;
    }
}
