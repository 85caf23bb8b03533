//! Starting a process that is nobody's child.
//!
//! ```text
//!   agent ── runs ──► hotbunk-agent beget PROGRAM … ── starts ──► PROGRAM …
//!     ◄─── its pid ────────┘ gone                                    └ a child of the first process from here on
//! ```
//!
//! A service's main process must be a child of the service manager. systemd takes any process of the unit for the main one
//! when it is told so (`MAINPID=`), but of one that is not its own child it does not hear that it has ended, and when it
//! stops the service it does not wait for it: SIGKILL follows SIGTERM at once, so that no engine is stopped. Whose child a
//! process is it looks up once, when it is told. So a successor must have been given away before.
//!
//! The process between the two has one thing to do and ends; the kernel then gives its child to the nearest reaper.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;
use tokio::process::Command;

/// The subcommand of the process between.
pub(crate) const SUBCOMMAND: &str = "beget";

/// A process that was given away.
#[derive(Debug)]
pub struct Orphan {
    pid: u32,
    handle: OwnedFd,
}

impl Orphan {
    /// Runs a program with this standard input; both of its outputs go where this process's errors go.
    ///
    /// # Errors
    /// It cannot be run, or ended at once.
    pub async fn start(words: &[OsString], stdin: OwnedFd, without: &str) -> io::Result<Orphan> {
        // What has this program's file is this program, whatever lies at its path by now.
        let mut between = Command::new("/proc/self/exe");
        between.arg(SUBCOMMAND).args(words).env_remove(without);
        between.stdin(Stdio::from(stdin)).stdout(Stdio::piped()).kill_on_drop(true);
        let child = between.spawn()?;
        // It holds the other end of the standard input.
        drop(between);
        let output = child.wait_with_output().await?;
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.trim();
        let pid: u32 = said.parse().map_err(|_| io::Error::other(said.to_owned()))?;
        let of_kernel = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let handle = pidfd_open(of_kernel, PidfdFlags::empty())?;
        Ok(Orphan { pid, handle })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for its end, at most for `patience`.
    ///
    /// # Errors
    /// The kernel does not tell, or `TimedOut`.
    pub async fn ended(&self, patience: Duration) -> io::Result<()> {
        let handle = self.handle.try_clone()?;
        let limit = Timespec::try_from(patience).map_err(io::Error::other)?;
        let wait = move || match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        tokio::task::spawn_blocking(wait).await?
    }

    /// Kills it and waits for its end, at most for `patience`.
    pub async fn kill(&self, patience: Duration) {
        // It may have ended; nobody else can get its handle.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
        drop(self.ended(patience).await);
    }
}

/// The process between: starts the program, says its pid on stdout, and ends.
pub(crate) fn beget(words: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = words.split_first() else { return ExitCode::FAILURE };
    let begotten = io::stderr().as_fd().try_clone_to_owned().and_then(|stdout| {
        std::process::Command::new(program).args(arguments).stdout(Stdio::from(stdout)).spawn()
    });
    match begotten {
        Ok(child) => {
            crate::cli::out(&format!("{}\n", child.id()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            crate::cli::out(&format!("{error}\n"));
            ExitCode::FAILURE
        }
    }
}
