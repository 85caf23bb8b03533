//! An agent that starts its own successor, and lives on until the answers that it is passing on have ended.
//!
//! ```text
//!   old    serves ─ SIGUSR2 ─ nothing under way ─ journal, sockets let go ─┬─ passes on what runs ─────────── gone
//!                                                                          │ listeners         │ connections
//!   new                                                                    └─ starts ─ takes over ─ "up" ─ serves …
//! ```
//!
//! A plain restart stops one agent before it starts the next, so everybody who comes waits for the longest answer that
//! runs. Here only those who come within the fraction of a second between the two wait, in the listener's backlog. The
//! old one owns nothing any more by then: no journal, no engine, no gate, only connections.
//!
//! The new one is not aware of the requests that the old one passes on, but the engine is: a drain asks the engine for
//! what runs in it, too, so a handoff waits for them as for its own.
//!
//! Listeners go over the new one's standard input, a unix socket, as `SCM_RIGHTS`. Descriptors that are inherited by
//! number would need variables that say which, and code that believes them. The same way go, once the new one is up,
//! clients' connections on which nothing is under way ([`crate::gateway::proxy::Going`]), a byte for each.

use crate::gateway::proxy::{Going, Takes};
use crate::inherited::{Inherited, Name};
use crate::orphan::Orphan;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::process::Command;

/// The argument by which a successor knows what its standard input is. Its value is the program's path, which a program
/// that has been replaced cannot find out.
const FLAG: &str = "--succeed";
/// Most descriptors that are handed over; the kernel's own limit is 253.
const MOST: usize = 64;
/// Largest letter, bytes.
const LETTER: usize = 4096;
/// What a successor says once it serves.
const UP: &[u8; 3] = b"up\n";
/// How long it may take to say so.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a check of the configuration may take.
const CHECK: Duration = Duration::from_secs(30);
/// How long the end of one that ends is waited for.
const ENDING: Duration = Duration::from_secs(10);

/// Why there is no successor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program cannot be run.
    #[error("{} cannot be run", program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The new program refuses the configuration.
    #[error("{} refuses {}:\n{said}", program.display(), config.display())]
    Refused {
        /// The program.
        program: PathBuf,
        /// The file.
        config: PathBuf,
        /// What it said.
        said: String,
    },
    /// It ended.
    #[error("the next agent ended before it served; its last lines say why")]
    Ended,
    /// It does not come up.
    #[error("the next agent did not serve within {} s", PATIENCE.as_secs())]
    Late,
    /// Something began at the last moment.
    #[error(
        "an operation began just as the agent was to be replaced; the next agent goes on with it, once somebody starts it"
    )]
    Busy,
    /// The listeners do not get across.
    #[error("the listening sockets could not be handed over")]
    Hand(#[source] io::Error),
}

/// What a successor is given.
#[derive(Debug, Default)]
pub struct Listeners {
    sockets: Vec<(Listed, OwnedFd)>,
}

/// One line of the letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Listed {
    name: String,
    /// The agent has made it: nobody else holds it, and the configuration may have changed since.
    ours: bool,
}

impl Listeners {
    /// One more, by another handle of the same socket.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn keep(&mut self, name: Name, socket: impl AsFd, ours: bool) -> io::Result<()> {
        let listed = Listed { name: name.word().to_owned(), ours };
        self.sockets.push((listed, socket.as_fd().try_clone_to_owned()?));
        Ok(())
    }

    fn send(&self, to: &UnixStream) -> io::Result<()> {
        let listed: Vec<&Listed> = self.sockets.iter().map(|(listed, _)| listed).collect();
        let letter = serde_json::to_vec(&listed)?;
        if self.sockets.len() > MOST || letter.len() > LETTER {
            return Err(io::Error::other("there are too many of them"));
        }
        let descriptors: Vec<_> = self.sockets.iter().map(|(_, socket)| socket.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(to, &[IoSlice::new(&letter)], &mut rights, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The successor's side: who is to be told when it serves.
#[derive(Debug)]
pub struct Former {
    stream: UnixStream,
}

impl Former {
    /// Takes the listeners that a former agent has sent to the standard input.
    ///
    /// # Errors
    /// It is no such socket, or nothing sensible comes.
    pub fn take() -> io::Result<(Inherited, Former)> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let inherited = receive(&stream)?;
        Ok((inherited, Former { stream }))
    }

    /// This agent serves; where the former one's connections come.
    ///
    /// # Errors
    /// The former one is gone already: nobody has told systemd of this one, and it starts another.
    pub fn is_up(mut self) -> io::Result<Connections> {
        self.stream.write_all(UP)?;
        self.stream.set_nonblocking(true)?;
        Ok(Connections { stream: tokio::net::UnixStream::from_std(self.stream)? })
    }
}

/// Clients' connections that a former agent sends one by one, until it ends.
#[derive(Debug)]
pub struct Connections {
    stream: tokio::net::UnixStream,
}

impl Connections {
    /// Has them served.
    pub async fn give(self, to: Takes) {
        loop {
            match self.stream.async_io(Interest::READABLE, || receive_one(&self.stream)).await {
                Ok(Some(connection)) => to.take(connection),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection that the former agent had kept is lost");
                    return;
                }
            }
        }
    }
}

/// The next connection; `None` where no more come.
fn receive_one(from: &tokio::net::UnixStream) -> io::Result<Option<TcpStream>> {
    // With room for one byte, as many descriptors come as belong to it.
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    match descriptors(&mut rights).pop() {
        Some(connection) => Ok(Some(TcpStream::from(connection))),
        None => Err(io::Error::other("it has not arrived: there are too many open files")),
    }
}

fn descriptors(rights: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let of = |message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None };
    rights.drain().filter_map(of).flatten().collect()
}

/// The former agent's side: a successor that serves.
#[derive(Debug)]
pub struct Next {
    pid: u32,
    stream: tokio::net::UnixStream,
}

impl Next {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it connections until there are no more.
    pub async fn take(self, mut going: Going) {
        while let Some(connection) = going.recv().await {
            let sent = self.stream.async_io(Interest::WRITABLE, || {
                let connection = [connection.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut rights = SendAncillaryBuffer::new(&mut space);
                rights.push(SendAncillaryMessage::ScmRights(&connection));
                Ok(sendmsg(&self.stream, &[IoSlice::new(b"c")], &mut rights, SendFlags::NOSIGNAL)?)
            });
            if let Err(error) = sent.await {
                tracing::warn!(%error, "a client's connection cannot be handed over, and closes");
            }
        }
    }
}

fn receive(from: &UnixStream) -> io::Result<Inherited> {
    let mut letter = [0; LETTER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut letter)], &mut rights, RecvFlags::CMSG_CLOEXEC)?;
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other("not all descriptors have arrived: there are too many open files"));
    }
    let listed: Vec<Listed> = serde_json::from_slice(&letter[..got.bytes])?;
    let sockets = descriptors(&mut rights);
    if sockets.len() != listed.len() {
        return Err(io::Error::other(format!("{} sockets for {} names", sockets.len(), listed.len())));
    }
    let mut inherited = Inherited::default();
    for (listed, socket) in listed.into_iter().zip(sockets) {
        match Name::of(&listed.name) {
            Some(Name::Gateway) => {
                inherited.gateway.push(TcpListener::from(socket));
                inherited.gateway_is_ours |= listed.ours;
            }
            Some(Name::Metrics) => inherited.metrics = Some(TcpListener::from(socket)),
            Some(Name::Control) => inherited.control = Some(UnixListener::from(socket)),
            None => return Err(io::Error::other(format!("nobody would accept on {}", listed.name))),
        }
    }
    Ok(inherited)
}

/// How a successor is started.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program, by the path that it was started by: what lies there now is what is wanted.
    pub program: PathBuf,
    /// The configuration file.
    pub config: PathBuf,
    /// Further arguments.
    pub args: Vec<String>,
}

impl Plan {
    /// Whether the program that lies there now accepts the configuration that lies there now: otherwise nothing is given
    /// up for it.
    ///
    /// # Errors
    /// [`Error::Run`], [`Error::Refused`].
    pub async fn check(&self) -> Result<(), Error> {
        let run = |source| Error::Run { program: self.program.clone(), source };
        let mut command = Command::new(&self.program);
        command.arg("check").arg(&self.config).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(CHECK, command.output()).await;
        let output = output.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(run)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Refused { program: self.program.clone(), config: self.config.clone(), said })
    }

    /// Starts it and waits until it serves. Where the program that lies there does not come up, this one is
    /// started again: it did.
    ///
    /// # Errors
    /// [`Error`], of this program.
    pub async fn start(&self, listeners: &Listeners) -> Result<Next, Error> {
        match self.start_program(&self.program, listeners).await {
            Ok(next) => Ok(next),
            Err(error) => {
                tracing::error!(
                    error = crate::effects::chain(&error),
                    program = %self.program.display(),
                    "the new program does not come up; the old one is started again"
                );
                self.start_program(Path::new("/proc/self/exe"), listeners).await
            }
        }
    }

    async fn start_program(&self, program: &Path, listeners: &Listeners) -> Result<Next, Error> {
        let (ours, theirs) = UnixStream::pair().map_err(Error::Hand)?;
        let mut words: Vec<OsString> =
            [program.as_os_str(), "run".as_ref(), "--config".as_ref()].map(Into::into).into();
        words.push(self.config.clone().into());
        words.extend(self.args.iter().map(OsString::from));
        words.extend([FLAG.into(), self.program.clone().into()]);
        // The watchdog of the unit is the successor's from now on, whatever its pid.
        let next = Orphan::start(&words, theirs.into(), "WATCHDOG_PID").await;
        let next = next.map_err(|source| Error::Run { program: program.to_owned(), source })?;
        let come = async {
            listeners.send(&ours).map_err(Error::Hand)?;
            ours.set_nonblocking(true).map_err(Error::Hand)?;
            let mut ours = tokio::net::UnixStream::from_std(ours).map_err(Error::Hand)?;
            let mut word = [0; UP.len()];
            if ours.read_exact(&mut word).await.is_ok() && &word == UP {
                return Ok(ours);
            }
            // It has closed it, so it ends.
            next.ended(ENDING).await.map_err(Error::Hand)?;
            Err(Error::Ended)
        };
        let outcome = tokio::time::timeout(PATIENCE, come).await.unwrap_or(Err(Error::Late));
        if outcome.is_err() {
            // It must not come up later, beside the one that is started instead.
            next.kill(ENDING).await;
        }
        outcome.map(|stream| Next { pid: next.pid(), stream })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn listeners_get_across_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let gateway = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let control = UnixListener::bind(dir.path().join("control.sock")).unwrap();
        let mut listeners = Listeners::default();
        listeners.keep(Name::Gateway, &gateway, true).unwrap();
        listeners.keep(Name::Gateway, &gateway, true).unwrap();
        listeners.keep(Name::Control, &control, false).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        listeners.send(&one).unwrap();
        let inherited = receive(&other).unwrap();
        assert_eq!((inherited.gateway.len(), inherited.gateway_is_ours), (2, true));
        assert!(inherited.metrics.is_none());
        let path = inherited.control.as_ref().unwrap().local_addr().unwrap();
        assert_eq!(path.as_pathname(), Some(&*dir.path().join("control.sock")));
        let address = gateway.local_addr().unwrap();
        drop((gateway, listeners));
        std::net::TcpStream::connect(address).unwrap();
    }

    #[tokio::test]
    async fn connections_follow_one_by_one() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (to, going) = tokio::sync::mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for _ in 0..300 {
            clients.push(TcpStream::connect(address).unwrap());
            to.send(listener.accept().unwrap().0).unwrap();
        }
        drop(to);
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let sending = tokio::spawn(Next { pid: 0, stream: ours }.take(going));
        let mut got = Vec::new();
        while let Some(connection) =
            theirs.async_io(Interest::READABLE, || receive_one(&theirs)).await.unwrap()
        {
            got.push(connection);
        }
        sending.await.unwrap();
        let ports = |all: &[TcpStream], of: fn(&TcpStream) -> io::Result<std::net::SocketAddr>| {
            all.iter().map(|one| of(one).unwrap().port()).collect::<Vec<_>>()
        };
        assert_eq!(ports(&got, TcpStream::peer_addr), ports(&clients, TcpStream::local_addr));
    }

    #[test]
    fn what_is_no_letter_is_refused() {
        for text in ["", "[]x", "[{\"name\":\"gateway\",\"ours\":true}]"] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(text.as_bytes()).unwrap();
            drop(one);
            assert!(receive(&other).is_err(), "{text:?}");
        }
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(b"[]").unwrap();
        assert!(receive(&other).unwrap().gateway.is_empty());
    }
}
