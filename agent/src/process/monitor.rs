//! The task that keeps the line to one shim: it carries questions and answers, turns the shim's events into the
//! agent's, and takes over when the shim is killed.

use std::collections::HashMap;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};

use super::handle::{Inner, ProcessEvent, reason};
use super::protocol::{Answer, Ask, Event, FromShim, Link, Request};
use super::scope::SessionHeld;
use super::signal;
use super::state::remove_record;
use super::sweep::sweep_orphans;
use super::tree::Member;

/// How long a shim whose connection has ended is given to be dead.
const DYING: Duration = Duration::from_secs(2);
/// Connections lost one after the other, without a line in between, until a living shim is given up.
const ATTEMPTS: u32 = 5;
/// Pause between two of them.
const PAUSE: Duration = Duration::from_millis(200);
/// The id of the agent's own last word, [`Ask::Forget`].
const FORGET: u64 = 0;

/// A question of a handle's.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) ask: Ask,
    pub(super) reply: oneshot::Sender<Answer>,
}

/// How one connection ended.
enum Ended {
    /// The shim has been told to forget, and has.
    Forgotten,
    /// Broken off.
    Broken,
}

#[derive(Debug)]
pub(super) struct Monitor {
    inner: Arc<Inner>,
    /// Not reaped before the end: as long as it is a zombie its pid and its session number are not given out again.
    /// `None` where a former agent started it: init reaps it then, and its numbers prove nothing once it is dead.
    shim: Option<Child>,
    questions: mpsc::UnboundedReceiver<Question>,
    /// All handles are gone.
    orphaned: bool,
    pending: HashMap<u64, oneshot::Sender<Answer>>,
    /// The question by which the shim is told to let go.
    letting_go: Option<u64>,
    next_id: u64,
    /// Events heard so far.
    heard: u64,
    /// Nothing of the tree is left.
    over: bool,
}

impl Monitor {
    pub(super) fn new(
        inner: Arc<Inner>,
        shim: Option<Child>,
        questions: mpsc::UnboundedReceiver<Question>,
    ) -> Monitor {
        Monitor {
            inner,
            shim,
            questions,
            orphaned: false,
            pending: HashMap::new(),
            letting_go: None,
            next_id: FORGET + 1,
            heard: 0,
            over: false,
        }
    }

    /// Runs until the tree is gone.
    pub(super) async fn run(mut self) {
        let mut attempts = 0;
        loop {
            let before = self.heard;
            let ended = match Link::connect(&self.inner.state.socket, self.inner.state.shim).await {
                Ok(link) => self.converse(link).await,
                Err(_) => Ended::Broken,
            };
            // Whoever still waits for an answer gets none.
            self.pending.clear();
            match ended {
                Ended::Forgotten => break,
                Ended::Broken if self.is_dead_within(DYING).await => {
                    return if self.over { self.bury().await } else { self.take_over().await };
                }
                Ended::Broken => {}
            }
            attempts = if self.heard > before { 1 } else { attempts + 1 };
            if attempts == ATTEMPTS {
                // It lives and does not speak: it is of no use as a supervisor.
                let _ = signal::send(self.inner.state.shim, Signal::KILL);
                return self.take_over().await;
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.bury().await;
    }

    async fn converse(&mut self, mut link: Link) -> Ended {
        loop {
            tokio::select! {
                line = link.next() => match line {
                    Ok(Some(FromShim::Answer { id: FORGET, answer: Answer::Accepted })) => return Ended::Forgotten,
                    Ok(Some(FromShim::Answer { id, answer })) => {
                        let gone = self.letting_go == Some(id) && answer == Answer::Accepted;
                        if let Some(reply) = self.pending.remove(&id) {
                            // Who asked may have stopped waiting.
                            let _ = reply.send(answer);
                        }
                        if gone {
                            self.over = true;
                            return Ended::Forgotten;
                        }
                    }
                    Ok(Some(FromShim::Event { seq, event })) if seq >= self.heard => {
                        self.heard = seq + 1;
                        let is_end = matches!(&event, Event::Swept(end) if end.left.is_empty());
                        self.over |= is_end;
                        self.pass_on(event);
                        if is_end && link.send(&Request { id: FORGET, ask: Ask::Forget }).await.is_err() {
                            return Ended::Broken;
                        }
                    }
                    // Told again after a reconnect. If it was the last one, the shim still waits to be dismissed.
                    Ok(Some(FromShim::Event { seq, .. })) if self.over && seq + 1 == self.heard => {
                        if link.send(&Request { id: FORGET, ask: Ask::Forget }).await.is_err() {
                            return Ended::Broken;
                        }
                    }
                    Ok(Some(FromShim::Event { .. })) => {}
                    Ok(None) | Err(_) => return Ended::Broken,
                },
                question = self.questions.recv(), if !self.orphaned => match question {
                    Some(Question { ask, reply }) => {
                        let id = self.next_id;
                        self.next_id += 1;
                        self.pending.insert(id, reply);
                        if ask == Ask::LetGo {
                            self.letting_go = Some(id);
                        }
                        if link.send(&Request { id, ask }).await.is_err() {
                            return Ended::Broken;
                        }
                    }
                    None => self.orphaned = true,
                },
            }
        }
    }

    fn pass_on(&self, event: Event) {
        match event {
            // The handle was made of this.
            Event::Spawned { .. } => {}
            Event::Exited(exit) if self.inner.state.adopted.is_some() => {
                let reason = "ended (how is not known, since the agent had not started it)".to_owned();
                self.inner.tell(ProcessEvent::Exited { reason, exit });
            }
            Event::Exited(exit) => self.inner.tell(ProcessEvent::Exited { reason: reason(&exit), exit }),
            Event::Swept(end) => self.inner.tell(ProcessEvent::Swept(end)),
            Event::LogLost(loss) => self.inner.tell(ProcessEvent::LogLost(loss)),
            Event::Contained(contained) => {
                self.inner.contained(&contained);
                self.inner.tell(ProcessEvent::Contained(contained));
            }
            Event::NotContained { why } => self.inner.not_contained(why),
            Event::ClientGone => self.inner.tell(ProcessEvent::ClientGone),
        }
    }

    async fn is_dead_within(&self, patience: Duration) -> bool {
        ends_within(self.inner.state.shim, patience).await
    }

    /// The shim is gone: nobody will say how the engine ends, nobody reads its output (at the next line it writes it
    /// blocks or dies). So the agent ends the tree, by everything that proves its members ours.
    async fn take_over(self) {
        self.inner.tell(ProcessEvent::ShimLost);
        let scope = self.inner.last_scope();
        if scope.is_only_held() {
            // Not ours to end: it runs on, and nobody here knows of it any more.
            remove_record(&self.inner.state_file, &self.inner.state.socket);
            return self.bury().await;
        }
        let held = if self.shim.is_some() { SessionHeld::Yes } else { SessionHeld::No };
        let end = sweep_orphans(&scope, held).await;
        let gone = end.left.is_empty();
        self.inner.tell(ProcessEvent::Swept(end));
        if gone {
            if let Some(cgroup) = self.inner.scope().cgroup() {
                cgroup.remove();
            }
            remove_record(&self.inner.state_file, &self.inner.state.socket);
        }
        self.bury().await;
    }

    /// Reaps the shim, and removes what it may have left where it was killed after its work was done.
    async fn bury(mut self) {
        if self.over {
            remove_record(&self.inner.state_file, &self.inner.state.socket);
        }
        let shim = self.inner.state.shim;
        if !self.is_dead_within(DYING).await {
            let _ = signal::send(shim, Signal::KILL);
        }
        let Some(mut child) = self.shim.take() else { return };
        if ends_within(shim, DYING).await {
            // Dead, so this returns at once.
            let _ = child.wait();
        } else {
            // Not even SIGKILL ends it: a thread may wait for that, the runtime may not.
            tokio::task::spawn_blocking(move || child.wait());
        }
    }
}

/// Whether a process ends (or has ended) within `patience`; told by the kernel, not by asking again and again.
pub(super) async fn ends_within(member: Member, patience: Duration) -> bool {
    tokio::task::spawn_blocking(move || signal::wait_for_end(member, patience)).await.unwrap_or(false)
}
