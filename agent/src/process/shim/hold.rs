//! The shim of a server that somebody else has started: it hears of its end, writes down who belongs to it, and ends it only
//! once it was told that it is ours.
//!
//! It is nobody's parent here: how the server ended is not known, and its output goes where it went before. All else is as
//! for an engine of ours once it is kept: the same stages, the same sweep, the same record.

use std::io::{PipeWriter, Write};
use std::time::Duration;

use hotbunk_core::time::Moment;
use tokio::sync::oneshot;

use super::clients::Clients;
use super::contain::watch;
use super::stage::{Input, Stage};
use super::{AdoptOrder, Shim};
use crate::clock;
use crate::process::adopted::AdoptedState;
use crate::process::protocol::{Answer, Event, Exit};
use crate::process::state::write_json;
use crate::process::tree::{ProcStat, Snapshot};

/// Between two looks at who belongs to it: nobody tells of a fork. A look reads `/proc` once.
const LOOK: Duration = Duration::from_secs(1);

/// The shim's hold on a server.
pub(super) struct Holding {
    watch: Option<oneshot::Receiver<()>>,
    next_look: Moment,
}

impl Holding {
    /// The next thing that comes to pass: whether its leader has ended, else it is time for a look. Never, where nothing
    /// will. Cancel safe.
    pub(super) async fn next(holding: Option<&mut Holding>) -> bool {
        let Some(Holding { watch: Some(leader), next_look }) = holding else {
            return std::future::pending().await;
        };
        tokio::select! {
            // An error would mean that its thread is gone without a word; then nothing holds the leader either.
            _ = leader => true,
            () = tokio::time::sleep(next_look.since(clock::now())) => false,
        }
    }
}

/// Takes hold, and says in the log where the output is.
///
/// # Errors
/// A sentence: it has ended, or cannot be watched.
pub(super) fn take(order: &AdoptOrder, mut log: PipeWriter) -> Result<(Holding, AdoptedState), String> {
    let pid = order.leader.pid;
    let snapshot = Snapshot::read();
    let leader = snapshot.get(pid).filter(|stat| stat.member() == order.leader && stat.is_running());
    let leader = leader.ok_or_else(|| format!("process {pid} has ended"))?;
    let watch = watch(order.leader).map_err(|error| format!("process {pid} cannot be watched: {error}"))?;
    let output = match &order.output {
        Some(path) => format!("its output goes to {}", path.display()),
        None => "its output goes where whoever started it has sent it".to_owned(),
    };
    // A log that cannot be written says so by itself.
    let _ = writeln!(
        log,
        "[hotbunk: process {pid} was not started by the agent but taken over while it ran; {output}. From its next start \
         on it is kept here]"
    );
    Ok((
        Holding { watch: Some(watch), next_look: clock::now() + LOOK },
        AdoptedState::hold(leader, &snapshot),
    ))
}

impl Shim {
    /// Its leader has ended, or it is time for a look.
    pub(super) async fn held_happened(&mut self, ended: bool, clients: &mut Clients) {
        let Some(holding) = &mut self.holding else { return };
        holding.next_look = clock::now() + LOOK;
        if !ended {
            return self.see_members();
        }
        holding.watch = None;
        if self.state.is_only_held() {
            // What it leaves is not ours to sweep. Whoever had it held lets go now.
            clients.tell(Event::Exited(Exit { asked: false, code: None, signal: None, tail: Vec::new() }));
        } else {
            self.step(Input::LeaderExited, clients).await;
        }
    }

    /// Writes down who belongs to it now, where that is news.
    pub(super) fn see_members(&mut self) {
        let Some(adopted) = &mut self.state.adopted else { return };
        // Once its leader has gone, what was seen of it is all that will be known.
        let leads = ProcStat::read_member(adopted.leader).is_some_and(|stat| stat.is_running());
        if leads && adopted.see(&Snapshot::read()) {
            if let Some(scope) = self.scope.adopted_mut() {
                scope.clone_from(adopted);
            }
            // A record that cannot be written lacks them; a later look tries again only where there is more news.
            let _ = write_json(&self.state_file, &self.state);
        }
    }

    /// It is ours from now on, and that is written down before anybody acts on it.
    pub(super) fn keep(&mut self) -> Answer {
        self.see_members();
        let leads = |adopted: &AdoptedState| {
            ProcStat::read_member(adopted.leader).is_some_and(|stat| stat.is_running())
        };
        let runs = self.state.adopted.as_ref().is_some_and(leads) && self.stage == Stage::Running;
        if !runs {
            return Answer::Refused { why: "it has ended".to_owned() };
        }
        if let Some(adopted) = &mut self.state.adopted {
            adopted.kept = true;
        }
        if let Err(error) = write_json(&self.state_file, &self.state) {
            if let Some(adopted) = &mut self.state.adopted {
                adopted.kept = false;
            }
            return Answer::Refused {
                why: format!("{} cannot be written: {error}", self.state_file.display()),
            };
        }
        if let (Some(scope), Some(adopted)) = (self.scope.adopted_mut(), &self.state.adopted) {
            scope.clone_from(adopted);
        }
        Answer::Accepted
    }
}
