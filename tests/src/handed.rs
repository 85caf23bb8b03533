//! Listening sockets that outlive the agents that they are handed to, as an init system's do.

use crate::agent::Agent;
use crate::binaries::agent_binary;
use crate::node::Node;
use std::fs::DirBuilder;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

/// What a program needs to find descriptors from 3 on, and `LISTEN_PID` and `WATCHDOG_PID` to be itself. The sockets come as its standard
/// streams, which is the way to hand them over without leaving them open to every other child.
const HAND: &str = "exec 3<&0 4<&1 5<&2 0</dev/null 1>/dev/null 2>>\"$HANDED_LOG\"\n\
                    LISTEN_PID=$$; WATCHDOG_PID=$$; export LISTEN_PID WATCHDOG_PID; exec \"$@\"";

/// Sockets with their names, in the order in which they are handed over; three at most.
#[derive(Debug)]
pub struct Handed {
    sockets: Vec<(String, OwnedFd)>,
}

impl Handed {
    /// None.
    pub fn nothing() -> Self {
        Handed { sockets: Vec::new() }
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
        let slot = |at: usize| match self.sockets.get(at) {
            None => Stdio::null(),
            Some((_, socket)) => Stdio::from(socket.as_fd().try_clone_to_owned().expect("a descriptor")),
        };
        let names: Vec<&str> = self.sockets.iter().map(|(name, _)| &**name).collect();
        Command::new("/bin/sh")
            .args(["-c", HAND, "sh"])
            .arg(agent_binary())
            .args(["run", "--config"])
            .arg(node.config())
            .envs(node.environment())
            .env("HANDED_LOG", node.dir().join("agent.log"))
            .env("LISTEN_FDS", self.sockets.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdin(slot(0))
            .stdout(slot(1))
            .stderr(slot(2))
            .spawn()
            .expect("a shell")
    }

    /// Starts an agent with them and waits until it answers.
    pub async fn start(&self, node: &Node) -> Agent {
        Agent::up(self.spawn(node), node.clone()).await
    }
}
