//! Listening sockets that outlive the agents that they are handed to, as an init system's do.

use crate::agent::Agent;
use crate::binaries::agent_binary;
use crate::fd_store::FdStore;
use crate::node::Node;
use command_fds::{CommandFdExt, FdMapping};
use std::fs::{DirBuilder, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

/// What a program needs for `LISTEN_PID` and `WATCHDOG_PID` to be itself.
const HAND: &str = "LISTEN_PID=$$; WATCHDOG_PID=$$; export LISTEN_PID WATCHDOG_PID; exec \"$@\"";
/// The first descriptor that is handed over.
const FIRST: i32 = 3;

/// Sockets with their names, in the order in which they are handed over; and what one agent leaves to the next.
#[derive(Debug)]
pub struct Handed {
    sockets: Vec<(String, OwnedFd)>,
    store: Option<FdStore>,
}

impl Handed {
    /// None.
    pub fn nothing() -> Self {
        Handed { sockets: Vec::new(), store: None }
    }

    /// All that a node has, where its configuration says.
    ///
    /// # Panics
    /// They cannot be bound.
    pub fn of(node: &Node) -> Self {
        let tcp = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
        let socket = node.socket();
        let dir = socket.parent().expect("a directory");
        DirBuilder::new().recursive(true).mode(0o750).create(dir).expect("the directory");
        Handed::nothing()
            .and("gateway", tcp(node.gateway_port()))
            .and("metrics", tcp(node.metrics_port()))
            .and("control", UnixListener::bind(&socket).expect("the control socket"))
    }

    /// One more.
    #[must_use]
    pub fn and(mut self, name: &str, socket: impl Into<OwnedFd>) -> Self {
        self.sockets.push((name.to_owned(), socket.into()));
        self
    }

    /// With a store for what an agent leaves to the next.
    #[must_use]
    pub fn storing(mut self, node: &Node) -> Self {
        self.store = Some(FdStore::at(&node.dir().join("manager")));
        self
    }

    /// How many descriptors are stored at present.
    pub fn stored(&self) -> usize {
        self.store.as_ref().map_or(0, |store| store.kept().len())
    }

    /// Inodes of the sockets, as `/proc/PID/fd` names them.
    ///
    /// # Panics
    /// The kernel does not tell.
    pub fn inodes(&self) -> Vec<u64> {
        self.sockets.iter().map(|(_, socket)| rustix::fs::fstat(socket).expect("its inode").st_ino).collect()
    }

    /// Starts the daemon with them.
    ///
    /// # Panics
    /// It cannot be run.
    pub fn spawn(&self, node: &Node) -> Child {
        let log = node.dir().join("agent.log");
        let log = File::options().append(true).create(true).open(log).expect("the log");
        let copy = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().expect("a descriptor");
        let mut all: Vec<(String, OwnedFd)> =
            self.sockets.iter().map(|(name, fd)| (name.clone(), copy(fd))).collect();
        let mut command = Command::new("/bin/sh");
        if let Some(store) = &self.store {
            all.extend(store.kept());
            command.env("FDSTORE", "64").env("NOTIFY_SOCKET", store.path());
        }
        let names: Vec<&str> = all.iter().map(|(name, _)| &**name).collect();
        command
            .args(["-c", HAND, "sh"])
            .arg(agent_binary())
            .args(["run", "--config"])
            .arg(node.config())
            .envs(node.environment())
            .env("LISTEN_FDS", all.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mapped = (FIRST..).zip(all).map(|(child_fd, (_, parent_fd))| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mapped.collect()).expect("each descriptor once").spawn().expect("a shell")
    }

    /// Starts an agent with them and waits until it answers.
    pub async fn start(&self, node: &Node) -> Agent {
        Agent::up(self.spawn(node), node.clone()).await
    }
}
