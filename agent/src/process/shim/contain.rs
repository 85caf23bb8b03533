//! The shim of an engine in a container: it looks for the container, hears of its end, and runs the runtime's commands.
//!
//! The child of this shim is the runtime's client. While the container has not been found, the client stands for it: if it
//! fails, the start has failed. Once found, the container's oldest process is the engine's leader, and the client's end
//! alone is no end (its output is lost, which is told).

use std::collections::{BTreeMap, BTreeSet};
use std::io::PipeWriter;
use std::path::PathBuf;
use std::time::Duration;

use hotbunk_core::time::Moment;
use rustix::process::WaitStatus;
use tokio::sync::oneshot;

use super::ShimSpec;
use crate::clock;
use crate::process::container::{Contained, ContainerState, Seeker, runtime_command};
use crate::process::port::listening_owner;
use crate::process::signal as signals;
use crate::process::state::ShimState;
use crate::process::tree::{Member, ProcStat};

/// Between two looks for a container.
const LOOK: Duration = Duration::from_millis(200);
/// Between two commands that are to end it.
const AGAIN: Duration = Duration::from_secs(2);
/// How long one wait for a leader's end takes at most.
const LONG: Duration = Duration::from_secs(24 * 3600);
/// How long a port that nobody of ours holds any more is waited for to be free.
const PORT: Duration = Duration::from_secs(2);

/// Which command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// In order.
    Stop,
    /// At once.
    Kill,
}

/// What came to pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    /// It is time for a look.
    LookDue,
    /// The container's leader has ended.
    LeaderEnded,
}

/// The shim's hold on a container.
pub(super) struct Contain {
    stop: Vec<String>,
    kill: Vec<String>,
    env: BTreeMap<String, String>,
    unset_env: Vec<String>,
    cwd: Option<PathBuf>,
    /// Where commands complain: the engine's own log.
    output: PipeWriter,
    watch: Option<oneshot::Receiver<()>>,
    next_look: Moment,
    /// What was said last of why it is not found.
    said: String,
    client_status: Option<WaitStatus>,
    /// The command that is running.
    runner: Option<u32>,
    ran: Option<Moment>,
    /// The leader has ended, or there never was one.
    over: bool,
    /// Since when nothing of it is left but its port.
    only_port_since: Option<Moment>,
}

impl Contain {
    pub(super) fn new(spec: &ShimSpec, output: PipeWriter) -> Option<Contain> {
        let container = spec.container.as_ref()?;
        let kill = if container.kill.is_empty() { &container.stop } else { &container.kill };
        Some(Contain {
            stop: container.stop.clone(),
            kill: kill.clone(),
            env: spec.env.clone(),
            unset_env: spec.unset_env.clone(),
            cwd: spec.cwd.clone(),
            output,
            watch: None,
            next_look: clock::now(),
            said: String::new(),
            client_status: None,
            runner: None,
            ran: None,
            over: false,
            only_port_since: None,
        })
    }

    /// The next thing that comes to pass; never, where nothing will. Cancel safe.
    pub(super) async fn next(contain: Option<&mut Contain>) -> Happened {
        match contain.filter(|c| !c.over) {
            None => std::future::pending().await,
            Some(Contain { watch: Some(leader), .. }) => {
                // An error would mean that its thread is gone without a word; then nothing holds the leader either.
                let _ = leader.await;
                Happened::LeaderEnded
            }
            Some(contain) => {
                tokio::time::sleep(contain.next_look.since(clock::now())).await;
                Happened::LookDue
            }
        }
    }

    /// Looks for it. `Ok(None)`: it was there, and is gone again.
    ///
    /// # Errors
    /// Why it is not found, where that is news; the empty text where it is not.
    pub(super) fn look(&mut self, state: &ShimState) -> Result<Option<Contained>, String> {
        self.next_look = clock::now() + LOOK;
        let Some(ContainerState { spec, client: Some(client), .. }) = &state.container else {
            return Err(String::new());
        };
        let seeker =
            Seeker { client: *client, shim: state.shim, session: state.session, token: &state.token, spec };
        let found = seeker.look().map_err(|why| {
            if why == self.said {
                return String::new();
            }
            self.said.clone_from(&why);
            why
        })?;
        if !ProcStat::read_member(found.leader).is_some_and(|stat| stat.is_running()) {
            return Ok(None);
        }
        let watch = watch(found.leader).map_err(|error| format!("its leader cannot be watched: {error}"))?;
        self.watch = Some(watch);
        Ok(Some(found))
    }

    /// A child was reaped. Whether it was the client.
    pub(super) fn reaped(&mut self, pid: Option<u32>, status: WaitStatus, client: Option<Member>) -> bool {
        if pid.is_some() && pid == self.runner {
            self.runner = None;
            return false;
        }
        let is_client =
            pid.is_some() && pid == client.map(|client| client.pid) && self.client_status.is_none();
        if is_client {
            self.client_status = Some(status);
        }
        is_client
    }

    /// How the client ended.
    pub(super) fn client_status(&self) -> Option<WaitStatus> {
        self.client_status
    }

    /// Whether nothing will be found any more: the client has failed, or has gone and the container was told to end.
    pub(super) fn never_found(&mut self, stopping: bool) -> bool {
        let failed = self.client_status.is_some_and(|status| status.exit_status() != Some(0));
        let told = stopping && self.client_status.is_some() && self.ran.is_some() && self.runner.is_none();
        let never = self.watch.is_none() && !self.over && (failed || told);
        self.over |= never;
        never
    }

    /// The leader has ended.
    pub(super) fn end(&mut self) {
        (self.watch, self.over) = (None, true);
    }

    /// Runs a command of the runtime's, unless one is running or has just run.
    pub(super) fn order(&mut self, order: Order, now: Moment) {
        let soon = self.ran.is_some_and(|ran| order == Order::Kill && now.since(ran) < AGAIN);
        if self.runner.is_some() || soon {
            return;
        }
        let words = if order == Order::Stop { &self.stop } else { &self.kill };
        self.ran = Some(now);
        let (Some(mut command), Ok(stderr)) = (runtime_command(words), self.output.try_clone()) else {
            return;
        };
        for name in &self.unset_env {
            command.env_remove(name);
        }
        command.envs(&self.env).stderr(stderr);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        match command.spawn() {
            // Reaped with the shim's other children.
            Ok(child) => self.runner = Some(child.id()),
            Err(error) => {
                use std::io::Write;
                // A closed log leaves nobody to tell.
                let _ = writeln!(self.output, "hotbunk: {words:?} cannot be run: {error}");
            }
        }
    }

    /// Whether a command is running.
    pub(super) fn is_running(&self) -> bool {
        self.runner.is_some()
    }

    /// Takes the running command and what it has started out of a list: they are ours, and no part of the engine.
    pub(super) fn without_runner(&self, found: Vec<ProcStat>) -> Vec<ProcStat> {
        let Some(runner) = self.runner else { return found };
        let mut family = BTreeSet::from([runner]);
        // Parents may stand after their children.
        loop {
            let before = family.len();
            family.extend(
                found
                    .iter()
                    .filter(|stat| family.contains(&stat.ppid))
                    .map(|stat| stat.pid)
                    .collect::<Vec<_>>(),
            );
            if family.len() == before {
                break;
            }
        }
        found.into_iter().filter(|stat| !family.contains(&stat.pid)).collect()
    }

    /// Whether the engine's port is free, or has been nobody's of ours for long enough to be somebody else's.
    pub(super) fn port_is_free(&mut self, port: u16, now: Moment) -> bool {
        if !listening_owner(port).is_ok_and(|owner| owner.is_some()) {
            return true;
        }
        now.since(*self.only_port_since.get_or_insert(now)) >= PORT
    }
}

/// Hears of a process's end from the kernel. Not our child, so nobody else will tell.
pub(super) fn watch(leader: Member) -> std::io::Result<oneshot::Receiver<()>> {
    let (ended, heard) = oneshot::channel();
    std::thread::Builder::new().name("leader".into()).spawn(move || {
        while !signals::wait_for_end(leader, LONG) {
            // Still there, or no descriptor to be had for the moment.
            std::thread::sleep(LOOK);
        }
        // The shim may be gone.
        let _ = ended.send(());
    })?;
    Ok(heard)
}
