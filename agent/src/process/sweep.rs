//! Ending a whole process tree.
//!
//! One look at `/proc` is not atomic, and processes fork while they are being killed. So a sweep is rounds: kill the
//! cgroup, look, SIGKILL everything found, again, until a look finds nothing or the deadline has passed. What is left
//! then sits in the kernel (state `D`, typically in a GPU driver) and is reported by pid and state.
//!
//! A container's processes are not killed but ended by its runtime's commands, which take longer.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use hotbunk_core::time::Moment;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::container::{ContainerSpec, ContainerState, runtime_command};
use super::scope::{Found, Scope, SessionHeld};
use super::signal;
use super::tree::{Member, ProcStat};
use crate::clock;

/// How long a sweep is repeated before what is left is reported.
pub const SWEEP_DEADLINE: Duration = Duration::from_secs(10);

/// The same where a container's runtime has to end it.
const CONTAINER_DEADLINE: Duration = Duration::from_secs(40);
/// Between two commands to a runtime.
const COMMAND_AGAIN: Duration = Duration::from_secs(5);

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
    let mut runtime = scope.container().map(Runtime::new);
    let patience = if runtime.is_some() { CONTAINER_DEADLINE } else { SWEEP_DEADLINE };
    let give_up = clock::now() + patience;
    let mut was_empty = false;
    loop {
        let Found { proven, contained, .. } = scope.look_hard(held);
        let busy = runtime.as_mut().is_some_and(|runtime| runtime.end(!contained.is_empty()));
        let is_empty = proven.is_empty() && contained.is_empty() && !busy;
        // Twice, because a process in the middle of an `exec` shows no environment.
        if (is_empty && was_empty) || clock::now() >= give_up {
            let left: Vec<ProcStat> = proven.into_iter().chain(contained).collect();
            return sweep.end(&left);
        }
        was_empty = is_empty;
        sweep.kill(scope, &proven);
        tokio::time::sleep(ROUND).await;
    }
}

/// A container's runtime, told to end it by whoever sweeps: once, where it is not known whether there is a container, and
/// again for as long as one is there.
struct Runtime<'a> {
    spec: &'a ContainerSpec,
    running: Option<std::process::Child>,
    told: Option<Moment>,
}

impl<'a> Runtime<'a> {
    fn new(container: &'a ContainerState) -> Self {
        Runtime { spec: &container.spec, running: None, told: None }
    }

    /// Tells it, if that is due; whether a command is running.
    fn end(&mut self, there: bool) -> bool {
        if let Some(child) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return true,
                // Whether it has helped is seen by looking.
                Ok(Some(_)) | Err(_) => self.running = None,
            }
        }
        let now = clock::now();
        let first = self.told.is_none();
        let again = there && self.told.is_some_and(|told| now.since(told) >= COMMAND_AGAIN);
        if !first && !again {
            return false;
        }
        let words = if first || self.spec.kill.is_empty() { &self.spec.stop } else { &self.spec.kill };
        self.told = Some(now);
        match runtime_command(words).map(|mut command| command.stderr(Stdio::null()).spawn()) {
            Some(Ok(child)) => self.running = Some(child),
            Some(Err(error)) => tracing::error!(?words, %error, "the container's command cannot be run"),
            None => {}
        }
        self.running.is_some()
    }
}
