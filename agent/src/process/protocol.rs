//! What agent and shim say to each other: one JSON object a line, on the shim's unix socket.
//!
//! The agent asks, the shim answers with the question's id. Events come unasked: each new connection is first told
//! every event so far, numbered, then every further one. So an agent that was away, or that lost its connection, misses
//! nothing and counts nothing twice.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::container::Contained;
use super::log::LogLoss;
use super::state::ShimState;
use super::sweep::SweepEnd;
use super::tree::Member;

/// A question to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// Comes back with the answer.
    pub(super) id: u64,
    /// What is wanted.
    pub(super) ask: Ask,
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ask {
    /// Who are you, and how is your engine?
    Status,
    /// SIGTERM to the leader, `grace_ms`, then SIGKILL to the whole tree.
    Stop {
        /// Grace, milliseconds.
        grace_ms: u64,
    },
    /// SIGKILL to the whole tree.
    Kill,
    /// The engine's last lines.
    TailLog {
        /// At most this many.
        lines: usize,
    },
    /// The agent has noted the end: remove your files and go. Refused while anything of the engine is left.
    Forget,
    /// The server that is held is ours from now on, and may be ended.
    Keep,
    /// Leave the server that is held as it is, remove your files and go.
    LetGo,
}

/// A line from the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromShim {
    /// To the question with this id.
    Answer {
        /// The question's.
        id: u64,
        /// Its answer.
        answer: Answer,
    },
    /// Something happened.
    Event {
        /// Its place in the shim's life, from 0.
        seq: u64,
        /// What.
        event: Event,
    },
}

/// What the shim answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    /// To [`Ask::Status`].
    Status(Box<ShimState>),
    /// It will be done; an event tells when it is.
    Accepted,
    /// To [`Ask::TailLog`], oldest first.
    Tail(Vec<String>),
    /// It will not be done.
    Refused {
        /// Why.
        why: String,
    },
}

/// What happens to an engine's processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// The leader was started.
    Spawned {
        /// It.
        leader: Member,
    },
    /// The leader ended; others of the tree may still run.
    Exited(Exit),
    /// Nothing of the tree runs any more, but for what is named.
    Swept(SweepEnd),
    /// Some of the engine's output is not kept; told once for each cause.
    LogLost(LogLoss),
    /// The engine's container was found.
    Contained(Contained),
    /// The engine's container was not found yet; told when the reason is another one.
    NotContained {
        /// Why.
        why: String,
    },
    /// The container runtime's client has ended and the container runs on: its output is not kept any more.
    ClientGone,
}

/// How an engine's leader ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Whether the agent had asked for it. If not it is a crash, whatever the code: vLLM exits with 0 when its engine
    /// core dies (CONTRACT 5).
    pub asked: bool,
    /// Exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The engine's last lines, oldest first.
    pub tail: Vec<String>,
}

/// What the shim tells its parent on its standard output, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Greeting {
    /// The engine has been started, the socket listens.
    Ready(Box<ShimState>),
    /// It could not be; the shim is gone.
    Failed {
        /// Why.
        why: String,
    },
}

/// A value as one line.
pub(super) fn line<T: Serialize>(value: &T) -> String {
    // These types hold neither maps with odd keys nor anything else that JSON cannot hold.
    let mut text = serde_json::to_string(value).unwrap_or_default();
    text.push('\n');
    text
}

/// The asking end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl Link {
    /// Connects, and makes sure that the shim meant is the one that listens.
    ///
    /// # Errors
    /// The socket's; `PermissionDenied` where another process listens.
    pub(super) async fn connect(socket: &Path, shim: Member) -> io::Result<Link> {
        let stream = UnixStream::connect(socket).await?;
        let peer = stream.peer_cred()?.pid().and_then(|pid| u32::try_from(pid).ok());
        if peer != Some(shim.pid) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("pid {peer:?} listens there, not the shim {}", shim.pid),
            ));
        }
        let (reader, writer) = stream.into_split();
        Ok(Link { lines: BufReader::new(reader).lines(), writer })
    }

    /// Sends one question.
    ///
    /// # Errors
    /// The socket's.
    pub(super) async fn send(&mut self, request: &Request) -> io::Result<()> {
        self.writer.write_all(line(request).as_bytes()).await
    }

    /// The next line; `None` at the end of the connection. Cancel safe.
    ///
    /// # Errors
    /// The socket's; `InvalidData` for a line that is not of the protocol.
    pub(super) async fn next(&mut self) -> io::Result<Option<FromShim>> {
        match self.lines.next_line().await? {
            Some(text) => Ok(Some(serde_json::from_str(&text)?)),
            None => Ok(None),
        }
    }
}
