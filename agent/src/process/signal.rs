//! Signals that cannot hit the wrong process.
//!
//! Between looking a process up and signalling its pid, it may end and its pid may be given to a stranger. A pidfd
//! closes that gap: open it, check that the process behind it still has the start time that was recorded, then signal
//! through it. If the process ends meanwhile, the signal fails; it never reaches another one.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tree::{Member, ProcStat};
use crate::clock;

/// What became of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was delivered to the process meant.
    Delivered,
    /// The process meant is gone (its pid may be somebody else's by now).
    Gone,
}

/// A descriptor for exactly this process; `None` where it is gone.
///
/// # Errors
/// The kernel's answer where a pidfd cannot be had for another reason (descriptor limit).
pub(super) fn open(member: Member) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(member.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    let fd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Checked after opening: from here on the descriptor stands for the process that was just read, or for one that
    // ended before it, which no signal can reach.
    Ok(ProcStat::read_member(member).map(|_| fd))
}

/// Signals exactly this process.
///
/// # Errors
/// `PermissionDenied` where it runs as another user, or as in [`open`].
pub(super) fn send(member: Member, signal: Signal) -> io::Result<Sent> {
    let Some(fd) = open(member)? else { return Ok(Sent::Gone) };
    match pidfd_send_signal(&fd, signal) {
        Ok(()) => Ok(Sent::Delivered),
        Err(Errno::SRCH) => Ok(Sent::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Blocks until exactly this process has ended, at most for `patience`; whether it has.
pub(super) fn wait_for_end(member: Member, patience: Duration) -> bool {
    let fd = match open(member) {
        Ok(Some(fd)) => fd,
        Ok(None) => return true,
        Err(_) => return false,
    };
    let until = clock::now() + patience;
    loop {
        let left = until.since(clock::now());
        // Longer than a `Timespec` can say is for ever.
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_the_process_meant_is_signalled() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep runs");
        let member = ProcStat::read(child.id()).expect("its stat").member();

        let stranger = Member { start_ticks: member.start_ticks + 1, ..member };
        assert_eq!(send(stranger, Signal::KILL).expect("no error"), Sent::Gone);
        assert!(child.try_wait().expect("wait").is_none(), "a wrong start time must not be signalled");

        assert!(!wait_for_end(member, Duration::ZERO));
        assert_eq!(send(member, Signal::KILL).expect("no error"), Sent::Delivered);
        assert!(wait_for_end(member, Duration::from_secs(30)));
        child.wait().expect("ends");
        assert_eq!(send(member, Signal::KILL).expect("no error"), Sent::Gone);
        assert!(wait_for_end(member, Duration::ZERO));
        assert_eq!(send(Member { pid: 0, start_ticks: 0 }, Signal::KILL).expect("no error"), Sent::Gone);
    }
}
