//! The agent's hold on a running engine.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hotbunk_core::ids::Incarnation;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::Error;
use super::container::{Contained, forwards};
use super::log::{LogLoss, MEMORY_LINES, tail_of_file, telling_line};
use super::monitor::{Monitor, Question};
use super::port::{Ownership, port_belongs_to};
use super::protocol::{Answer, Ask, Exit};
use super::scope::Scope;
use super::signal;
use super::state::{ShimState, read_json};
use super::sweep::{Leftover, SWEEP_DEADLINE, SweepEnd};
use crate::clock;

/// What a shim is given beyond grace and sweep before it is taken for hung.
const SLACK: Duration = Duration::from_secs(5);

/// What happens to an engine's processes, in this order: one of the first two, then the third, possibly again when
/// leftovers go at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The leader ended. Others of the tree may still run and hold memory.
    Exited {
        /// For people: how, and the line of the output that says most about why.
        reason: String,
        /// Whether, how, and the last lines.
        exit: Exit,
    },
    /// The shim was killed. The engine's tree is being ended, since nothing holds its output and exit status any more.
    ShimLost,
    /// Nothing of the tree runs any more, but for what is named.
    Swept(SweepEnd),
    /// At any time, once for each cause: some of the output is not kept.
    LogLost(LogLoss),
    /// Of an engine in a container: the container was found, and is its process from now on.
    Contained(Contained),
    /// The container runtime's client has ended alone: the container runs on, its output is not kept any more.
    ClientGone,
}

/// How a stop went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopReport {
    /// How the leader ended; `None` where its shim was lost.
    pub exit: Option<Exit>,
    /// Processes that had to be sent SIGKILL; 0 is a graceful end.
    pub killed: u32,
    /// Processes that SIGKILL has not ended: their memory is not free. A later [`ProcessEvent::Swept`] tells when they
    /// have gone.
    pub left: Vec<Leftover>,
    /// From the request to the end of the tree.
    pub took: Duration,
}

/// Everything that has happened, for whoever listens and whoever will.
#[derive(Debug, Default)]
pub(super) struct Bus {
    history: Vec<ProcessEvent>,
    listeners: Vec<mpsc::UnboundedSender<ProcessEvent>>,
}

impl Bus {
    pub(super) fn tell(&mut self, event: ProcessEvent) {
        self.listeners.retain(|listener| listener.send(event.clone()).is_ok());
        self.history.push(event);
    }

    fn listen(&mut self) -> mpsc::UnboundedReceiver<ProcessEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for event in &self.history {
            // The receiver is right here.
            let _ = sender.send(event.clone());
        }
        self.listeners.push(sender);
        receiver
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: ShimState,
    pub(super) state_file: PathBuf,
    pub(super) held: Mutex<Held>,
    pub(super) bus: Mutex<Bus>,
}

/// What is learned of the processes while they run.
#[derive(Debug)]
pub(super) struct Held {
    scope: Scope,
    /// Why its container is not found yet.
    not_contained: Option<String>,
}

impl Inner {
    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which processes are its own, as far as is known now.
    pub(super) fn scope(&self) -> Scope {
        self.held().scope.clone()
    }

    /// The same, with what the shim has written down of a server that it had not started: who was seen to belong to it.
    pub(super) fn last_scope(&self) -> Scope {
        let mut held = self.held();
        if let Some(adopted) = held.scope.adopted_mut()
            && let Ok(ShimState { adopted: Some(recorded), .. }) = read_json(&self.state_file)
        {
            *adopted = recorded;
        }
        held.scope.clone()
    }

    fn kept(&self) {
        if let Some(adopted) = self.held().scope.adopted_mut() {
            adopted.kept = true;
        }
    }

    pub(super) fn contained(&self, contained: &Contained) {
        let mut held = self.held();
        held.scope.found(contained);
        held.not_contained = None;
    }

    pub(super) fn not_contained(&self, why: String) {
        self.held().not_contained = Some(why);
    }

    pub(super) fn tell(&self, event: ProcessEvent) {
        self.bus.lock().unwrap_or_else(PoisonError::into_inner).tell(event);
    }
}

/// A running engine: one incarnation. Clones are the same engine. Dropping it ends nothing.
#[derive(Debug, Clone)]
pub struct EngineProcess {
    inner: Arc<Inner>,
    questions: mpsc::UnboundedSender<Question>,
}

impl EngineProcess {
    /// Takes hold of an engine whose shim has just reported for duty, or (without a child) of one that a former agent
    /// had started.
    pub(super) fn attach(state: ShimState, state_file: PathBuf, shim: Option<Child>) -> EngineProcess {
        let (questions, asked) = mpsc::unbounded_channel();
        let held = Mutex::new(Held { scope: Scope::of(&state), not_contained: None });
        let inner = Arc::new(Inner { held, state, state_file, bus: Mutex::default() });
        tokio::spawn(Monitor::new(Arc::clone(&inner), shim, asked).run());
        EngineProcess { inner, questions }
    }

    /// Which process life this is: the leader's pid, start time and boot. Of an engine in a container, the container's
    /// once it was found, its client's before.
    pub fn incarnation(&self) -> Incarnation {
        let state = &self.inner.state;
        let contained =
            self.inner.scope().container().and_then(|c| c.found.as_ref().map(|found| found.leader));
        // A shim reports only once its engine has a leader; without one the shim itself is the best name there is.
        let leader = contained.or(state.leader).unwrap_or(state.shim);
        Incarnation { pid: leader.pid, start_ticks: leader.start_ticks, boot_id: state.boot_id.clone() }
    }

    /// Whether it is a server that is held and not ours: it is not ended, whoever asks for it.
    pub fn is_only_held(&self) -> bool {
        self.inner.scope().is_only_held()
    }

    /// Makes a server that is held ours: from now on it is ended like any other engine.
    ///
    /// # Errors
    /// A sentence: it has ended, or that cannot be written down.
    pub async fn keep(&self) -> Result<(), String> {
        match self.ask(Ask::Keep).await {
            Some(Answer::Accepted) => {
                self.inner.kept();
                Ok(())
            }
            Some(Answer::Refused { why }) => Err(why),
            _ => Err("its shim does not answer".to_owned()),
        }
    }

    /// Leaves a server that is held as it is, and ends its shim.
    pub async fn let_go(&self) {
        if self.ask(Ask::LetGo).await == Some(Answer::Accepted) {
            return;
        }
        // Without a shim nobody holds it, and nobody will.
        if self.is_only_held() {
            let _ = signal::send(self.inner.state.shim, rustix::process::Signal::KILL);
        }
    }

    /// Whether it runs in a container that was not found yet: why not.
    pub fn not_contained(&self) -> Option<String> {
        let held = self.inner.held();
        let container = held.scope.container()?;
        let why = || {
            held.not_contained.clone().unwrap_or_else(|| "its container was not looked for yet".to_owned())
        };
        container.found.is_none().then(why)
    }

    /// Whose the engine's port is. A published port of a container is listened on by its runtime's forwarder.
    pub fn owns_port(&self, port: u16) -> Ownership {
        let owner = port_belongs_to(port, &self.pids());
        let scope = self.inner.scope();
        let client = scope.container().filter(|c| c.spec.id_file.is_some()).and_then(|c| c.client);
        match (owner, client) {
            (Ownership::Foreign { pid: Some(pid) }, Some(client)) if forwards(pid, client) => Ownership::Ours,
            (owner, _) => owner,
        }
    }

    /// What the shim wrote down about itself: its pid, cgroup (or why there is none), session.
    pub fn state(&self) -> &ShimState {
        &self.inner.state
    }

    /// Everything that has happened and will happen to these processes; nothing is missed by listening late. Ends
    /// (`None`) once the tree is gone and all handles are dropped.
    pub fn events(&self) -> mpsc::UnboundedReceiver<ProcessEvent> {
        self.inner.bus.lock().unwrap_or_else(PoisonError::into_inner).listen()
    }

    /// Whether somebody else had started it, who may start it again.
    pub fn is_taken_over(&self) -> bool {
        self.inner.state.adopted.is_some()
    }

    /// Running processes of the engine, without its shim. Reads `/proc` once (some 10 µs a process of the machine), so
    /// ask about once a second, not in a tight loop.
    pub fn pids(&self) -> Vec<u32> {
        self.inner.scope().look().iter().map(|stat| stat.pid).collect()
    }

    /// The incarnation's log. At its size limit it is renamed to `….log.N` and begun anew.
    pub fn log_path(&self) -> &Path {
        &self.inner.state.log
    }

    /// The last `lines` lines of output, oldest first; empty where there are none.
    pub async fn tail(&self, lines: usize) -> Vec<String> {
        // The shim knows the last ones even when the disk is full.
        if lines <= MEMORY_LINES
            && let Some(Answer::Tail(tail)) = self.ask(Ask::TailLog { lines }).await
        {
            return tail;
        }
        tail_of_file(self.log_path(), lines).unwrap_or_default()
    }

    /// SIGTERM to the leader, `grace`, then SIGKILL to whatever is left of the tree. Returns when nothing is left, or
    /// what is left does not go. On an engine that has ended already it reports that end.
    ///
    /// Dropping the future does not call the stop off.
    ///
    /// # Errors
    /// [`Error::Unconfirmed`] where neither the shim nor, after it was killed, the agent could end the tree.
    pub async fn stop(&self, grace: Duration) -> Result<StopReport, Error> {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.end(Ask::Stop { grace_ms }, grace).await
    }

    /// SIGKILL to the whole tree.
    ///
    /// # Errors
    /// As for [`EngineProcess::stop`].
    pub async fn kill(&self) -> Result<StopReport, Error> {
        self.end(Ask::Kill, Duration::ZERO).await
    }

    async fn end(&self, ask: Ask, grace: Duration) -> Result<StopReport, Error> {
        let began = clock::now();
        if self.is_only_held() {
            self.let_go().await;
            return Ok(StopReport {
                exit: None,
                killed: 0,
                left: Vec::new(),
                took: clock::now().since(began),
            });
        }
        let mut events = self.events();
        // The end is told by an event; the answer only says that the question arrived.
        let (reply, _) = oneshot::channel();
        let _ = self.questions.send(Question { ask, reply });
        let patience = grace.saturating_add(SWEEP_DEADLINE + SLACK);
        let end = match timeout(patience, swept(&mut events)).await {
            Ok(end) => end,
            // It hangs (stopped, or its disk does): without it the agent can do the same.
            Err(_) => {
                let _ = signal::send(self.inner.state.shim, rustix::process::Signal::KILL);
                timeout(SWEEP_DEADLINE + SLACK, swept(&mut events)).await.ok().flatten()
            }
        };
        match end {
            Some((exit, end)) => {
                Ok(StopReport { exit, killed: end.killed, left: end.left, took: clock::now().since(began) })
            }
            None => Err(Error::Unconfirmed {
                engine: self.inner.state.engine.clone(),
                shim_pid: self.inner.state.shim.pid,
                waited: clock::now().since(began),
            }),
        }
    }

    async fn ask(&self, ask: Ask) -> Option<Answer> {
        let (reply, answer) = oneshot::channel();
        self.questions.send(Question { ask, reply }).ok()?;
        timeout(SLACK, answer).await.ok()?.ok()
    }
}

/// Waits for the end of the tree; `None` where the monitor has gone (the runtime is shutting down).
async fn swept(events: &mut mpsc::UnboundedReceiver<ProcessEvent>) -> Option<(Option<Exit>, SweepEnd)> {
    let mut leader = None;
    loop {
        match events.recv().await? {
            ProcessEvent::Exited { exit, .. } => leader = Some(exit),
            ProcessEvent::ShimLost
            | ProcessEvent::LogLost(_)
            | ProcessEvent::Contained(_)
            | ProcessEvent::ClientGone => {}
            ProcessEvent::Swept(end) => return Some((leader, end)),
        }
    }
}

/// How a leader ended, in words, with the line of its output that says most.
pub(super) fn reason(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(0), _) if !exit.asked => "exited with code 0 though nobody had asked it to".to_owned(),
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(number)) => format!("killed by {}", signal_name(number)),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    match telling_line(&exit.tail) {
        Some(line) if !exit.asked => format!("{how}; its output ends: {line}"),
        _ => how,
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL (was memory short? the kernel log tells)",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(asked: bool, code: Option<i32>, signal: Option<i32>, tail: &[&str]) -> Exit {
        Exit { asked, code, signal, tail: tail.iter().map(|&line| line.to_owned()).collect() }
    }

    #[test]
    fn a_reason_says_how_and_why() {
        assert_eq!(
            reason(&exit(false, Some(1), None, &["ValueError: no room", ""])),
            "exited with code 1; its output ends: ValueError: no room"
        );
        assert!(reason(&exit(false, Some(0), None, &[])).contains("nobody had asked"));
        assert!(reason(&exit(false, None, Some(9), &[])).contains("SIGKILL"));
        assert_eq!(reason(&exit(true, Some(0), None, &["bye"])), "exited with code 0");
        assert_eq!(reason(&exit(false, None, Some(64), &[])), "killed by signal 64");
    }

    #[test]
    fn who_listens_late_hears_everything() {
        let mut bus = Bus::default();
        bus.tell(ProcessEvent::ShimLost);
        let mut late = bus.listen();
        bus.tell(ProcessEvent::Swept(SweepEnd::default()));
        assert_eq!(late.try_recv(), Ok(ProcessEvent::ShimLost));
        assert_eq!(late.try_recv(), Ok(ProcessEvent::Swept(SweepEnd::default())));
        assert!(late.try_recv().is_err());
    }
}
