//! Who calls, and whether they may.
//!
//! The socket's mode (0660) already keeps strangers out where the kernel checks it. The credentials are checked all
//! the same: a socket in a directory with loose permissions, or handed over by a supervisor, must not open the node
//! to everybody. Credentials are those of the process that connected, at the time that it did.

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use hotbunk_api::error::{ApiError, ErrorCode};
use tokio::net::UnixListener;

/// The calling process, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Process id, where the kernel tells.
    pub pid: Option<i32>,
}

/// Who may call: root, this user, and a group's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allow {
    /// The agent's own user id.
    pub uid: u32,
    /// A group whose members may call, too.
    pub group: Option<u32>,
}

impl Allow {
    /// Root, the user that this process runs as, and `group`.
    pub fn own(group: Option<u32>) -> Self {
        Allow { uid: rustix::process::geteuid().as_raw(), group }
    }

    /// Decides. `supplementary` is asked only where nothing else allows it.
    ///
    /// # Errors
    /// [`ErrorCode::Forbidden`].
    pub fn check(&self, peer: Peer, supplementary: impl FnOnce() -> Vec<u32>) -> Result<(), ApiError> {
        if peer.uid == 0 || peer.uid == self.uid {
            return Ok(());
        }
        let help = match self.group {
            Some(group) if peer.gid == group || supplementary().contains(&group) => return Ok(()),
            Some(group) => format!("root, user {} and the members of group {group} may", self.uid),
            None => format!("root and user {} may: call as one of them", self.uid),
        };
        Err(ApiError::new(ErrorCode::Forbidden, format!("user {} may not control this agent", peer.uid))
            .help(help))
    }
}

/// Supplementary groups of a process, empty where they cannot be read.
///
/// Between connecting and this reading the pid could have been given to another process. That helps nobody: with
/// mode 0660 the kernel has let in only members of the group before.
pub(super) fn supplementary_groups(pid: Option<i32>) -> Vec<u32> {
    let Some(pid) = pid else { return Vec::new() };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The peer of a connection; `None` where the kernel would not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller(pub(super) Option<Peer>);

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Caller(stream.io().peer_cred().ok().map(|c| Peer { uid: c.uid(), gid: c.gid(), pid: c.pid() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer { uid, gid, pid: Some(1) }
    }

    #[test]
    fn root_the_agents_user_and_the_group_may_call_and_nobody_else() {
        let allow = Allow { uid: 900, group: Some(50) };
        let none = Vec::new;
        assert!(allow.check(peer(0, 0), none).is_ok());
        assert!(allow.check(peer(900, 900), none).is_ok());
        assert!(allow.check(peer(1000, 50), none).is_ok());
        assert!(allow.check(peer(1000, 1000), || vec![7, 50]).is_ok());

        let refused = allow.check(peer(1000, 1000), || vec![7]).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        assert!(refused.message.contains("1000") && refused.help.unwrap().contains("group 50"));

        let alone = Allow { uid: 900, group: None };
        assert!(alone.check(peer(1000, 50), || vec![50]).is_err(), "no group is configured");
    }

    #[test]
    fn groups_are_read_from_the_status_file() {
        assert_eq!(parse_groups("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert_eq!(parse_groups("Name:\tx\nGroups:\t\n"), Vec::<u32>::new());
        assert_eq!(parse_groups(""), Vec::<u32>::new());
    }
}
