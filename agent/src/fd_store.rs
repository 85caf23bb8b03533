//! Clients' connections that the service manager keeps between one agent and the next.
//!
//! ```text
//!   agent 1   answers end ── FDSTORE=1 ──► systemd ── LISTEN_FDS ──► agent 2
//!                connections on which       holds them, with what       serves them
//!                nothing is under way       their clients send
//! ```
//!
//! The protocol is systemd's (`sd_pid_notify_with_fds(3)`, `FileDescriptorStoreMax=` of the unit). That there is a store, and
//! how much goes into it, says `FDSTORE` in the environment; older releases of systemd do not set it, so the unit does.
//!
//! A store that is not emptied would keep open what the agent has long closed, so whoever has been given something of it
//! empties it before anything else.

use crate::gateway::proxy::Going;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use sd_notify::{NotifyState, notify, notify_with_fds};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// The name of such a descriptor.
pub const NAME: &str = "connection";
/// How long the manager may take to read what it was sent.
const PATIENCE: Duration = Duration::from_secs(5);

/// A store that the manager offers.
#[derive(Debug, Clone, Copy)]
pub struct FdStore {
    /// So many descriptors.
    most: usize,
}

impl FdStore {
    /// The one of whoever started this process; `None` where it offers none.
    pub fn offered() -> Option<Self> {
        std::env::var_os("NOTIFY_SOCKET")?;
        let most: usize = std::env::var("FDSTORE").ok()?.parse().ok()?;
        (most > 0).then_some(FdStore { most })
    }

    /// Takes connections until there are no more, and comes back when the manager has them. What is too much closes.
    pub async fn keep(self, mut going: Going) {
        let (mut all, mut closed) = (Vec::new(), 0_usize);
        while let Some(connection) = going.recv().await {
            if all.len() < self.most {
                all.push(connection);
            } else {
                closed += 1;
            }
        }
        let kept = all.len();
        let given = tokio::task::spawn_blocking(move || {
            for connection in &all {
                notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(NAME)], &[connection.as_fd()])?;
            }
            are_read()
        });
        match given.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => tracing::info!(kept, closed, "clients' connections wait for the next agent"),
            Err(error) => {
                tracing::warn!(%error, "clients' connections cannot be kept for the next agent, and close")
            }
        }
    }
}

/// Waits until the manager has read whatever it was sent: what a process that has ended has sent is nobody's.
fn are_read() -> io::Result<()> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
    drop(theirs);
    let limit = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&ours, PollFlags::HUP)], Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// Empties the store.
pub fn empty() {
    // Without a manager there is nothing to empty.
    drop(notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(NAME)]));
}
