//! Sockets that the agent is given by whoever started it, so that they outlive it.
//!
//! ```text
//!   systemd (hotbunk-agent.socket)            agent 1                  agent 2
//!   listens ─────────── LISTEN_FDS ─────────► accepts ─ leaves
//!      │  connections wait in the backlog                 ⋮
//!      └──────────────────────────────────────────────────────────────► accepts
//! ```
//!
//! A connection to a socket on which nobody accepts at present is not refused: the kernel completes it and keeps it,
//! with what the client has sent. So as long as somebody else holds the listener, clients of an agent that is restarted
//! or was killed wait for the next one, and see nothing of it but the time.
//!
//! The protocol is systemd's: `LISTEN_PID` is this process, `LISTEN_FDS` says how many descriptors there are from 3 on,
//! `LISTEN_FDNAMES` names them, by `FileDescriptorName=` of the unit. The names are the keys of [`Name`].
//!
//! Beside listeners there may be clients' connections, kept from one agent to the next ([`crate::fd_store`]).
//!
//! What is handed over must agree with the configuration. Two places that say where the node can be reached are a
//! mistake as soon as they differ, and whichever won, the other's clients would be wrong: sent nowhere, or let in from a
//! network that the configuration keeps out. So it is refused, before anything is touched, with what to write. A name
//! that nobody knows is refused as well: nobody would accept there, and clients would hang.

use crate::config::Config;
use crate::fd_store;
use listenfd::ListenFd;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// Clients of the models, TCP; several are possible.
    Gateway,
    /// Prometheus, TCP.
    Metrics,
    /// Operators, a unix socket.
    Control,
}

impl Name {
    const ALL: [Name; 3] = [Name::Gateway, Name::Metrics, Name::Control];

    /// As `FileDescriptorName=` has it.
    pub fn word(self) -> &'static str {
        match self {
            Name::Gateway => "gateway",
            Name::Metrics => "metrics",
            Name::Control => "control",
        }
    }

    /// By its word.
    pub fn of(word: &str) -> Option<Name> {
        Name::ALL.into_iter().find(|name| name.word() == word)
    }

    /// Where the configuration says the same.
    fn key(self) -> &'static str {
        match self {
            Name::Gateway => "`listen` of [gateway]",
            Name::Metrics => "`metrics_listen` of [node]",
            Name::Control => "`runtime_dir` of [node]",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Why what was handed over is not used. Nothing has been touched then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The variables contradict each other or the process.
    #[error(
        "what LISTEN_FDS and LISTEN_FDNAMES say of the sockets that were handed over does not hold; start the agent by \
         its unit, or without these variables"
    )]
    Protocol(#[source] io::Error),
    /// A name that means nothing here.
    #[error(
        "a socket of the name {name:?} was handed over, and nobody would accept on it: FileDescriptorName= of its unit \
         must be \"gateway\", \"metrics\" or \"control\", or the unit must not be in Sockets= of the service"
    )]
    Unknown {
        /// As it was handed over.
        name: String,
    },
    /// It is of another kind.
    #[error("the socket {name} that was handed over is no {wanted}: correct ListenStream= of its unit")]
    Kind {
        /// Which.
        name: Name,
        /// What it must be.
        wanted: &'static str,
        /// What was found.
        source: io::Error,
    },
    /// It is a connection.
    #[error("the socket {name} that was handed over does not listen: its unit must not say Accept=yes")]
    NotListening {
        /// Which.
        name: Name,
    },
    /// One is all that can be used.
    #[error("{count} sockets {name} were handed over, one is possible: leave one ListenStream= in its unit")]
    Several {
        /// Which.
        name: Name,
        /// How many.
        count: usize,
    },
    /// It listens elsewhere than configured.
    #[error(
        "the socket {name} that was handed over listens on {handed}, and {} says {configured}: make ListenStream= of its \
         unit and the configuration the same",
        name.key()
    )]
    Elsewhere {
        /// Which.
        name: Name,
        /// Where it listens.
        handed: String,
        /// Where it should.
        configured: String,
    },
    /// The configuration wants none.
    #[error(
        "a socket {name} was handed over, and {} is \"none\": nobody would accept on it; disable its unit, or say {handed} \
         in the configuration",
        name.key()
    )]
    Unwanted {
        /// Which.
        name: Name,
        /// Where it listens.
        handed: String,
    },
}

/// What was handed over. All of it is closed when a program is executed, so that no engine holds it.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Listeners of the gateway.
    pub gateway: Vec<TcpListener>,
    /// Those were made by a former agent ([`crate::successor`]), and nobody else holds them.
    pub gateway_is_ours: bool,
    /// Of `/metrics`.
    pub metrics: Option<TcpListener>,
    /// Of the control API.
    pub control: Option<UnixListener>,
    /// Clients' connections that the service manager has kept ([`crate::fd_store`]).
    pub connections: Vec<TcpStream>,
}

impl Inherited {
    /// Takes what the environment speaks of, and the variables out of it. Once, and before there is a second thread:
    /// the environment belongs to all of them.
    ///
    /// # Errors
    /// [`Error::Protocol`], [`Error::Unknown`], [`Error::Kind`], [`Error::NotListening`], [`Error::Several`].
    pub fn take() -> Result<Self, Error> {
        // One crate knows the names and closes everything on exec, the other makes sockets of numbers.
        let names: Vec<String> =
            sd_notify::listen_fds_with_names().map_err(Error::Protocol)?.map(|(_, name)| name).collect();
        let mut given = ListenFd::from_env();
        if names.iter().any(|name| name == fd_store::NAME) {
            fd_store::empty();
        }
        let (mut gateway, mut metrics, mut control) = (Vec::new(), Vec::new(), Vec::new());
        let mut connections = Vec::new();
        for (at, written) in names.into_iter().enumerate() {
            if written == fd_store::NAME {
                // One that is of no use is its client's loss alone. The crate asks no more of a listener than that it is TCP.
                let connection = given.take_tcp_listener(at).ok().flatten();
                connections.extend(connection.map(|socket| TcpStream::from(OwnedFd::from(socket))));
                continue;
            }
            let Some(name) = Name::of(&written) else {
                return Err(Error::Unknown { name: written });
            };
            let kind = |wanted| move |source| Error::Kind { name, wanted, source };
            match name {
                Name::Gateway => tcp(name, &mut given, at, &mut gateway)?,
                Name::Metrics => tcp(name, &mut given, at, &mut metrics)?,
                Name::Control => {
                    let socket = given.take_unix_listener(at).map_err(kind("unix socket for streams"))?;
                    control.extend(socket.map(|socket| listening(name, socket)).transpose()?);
                }
            }
        }
        Ok(Inherited {
            gateway,
            gateway_is_ours: false,
            metrics: single(Name::Metrics, metrics)?,
            control: single(Name::Control, control)?,
            connections,
        })
    }

    /// Itself, if it agrees with the configuration. What a former agent had made for itself is given up where the
    /// configuration has changed since.
    ///
    /// # Errors
    /// [`Error::Elsewhere`], [`Error::Unwanted`].
    pub fn agreed(mut self, config: &Config) -> Result<Self, Error> {
        match same(Name::Gateway, &self.gateway, config.gateway.listen) {
            Err(_) if self.gateway_is_ours => self.gateway.clear(),
            other => other?,
        }
        same(Name::Metrics, self.metrics.as_slice(), config.node.metrics_listen)?;
        if let Some(control) = &self.control {
            let configured = config.node.control_socket();
            let handed = control.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_owned));
            if !handed.as_deref().is_some_and(|handed| is_same_file(handed, &configured)) {
                let handed = handed.unwrap_or_else(|| PathBuf::from("an address without a path"));
                return Err(Error::Elsewhere {
                    name: Name::Control,
                    handed: handed.display().to_string(),
                    configured: configured.display().to_string(),
                });
            }
        }
        Ok(self)
    }
}

fn tcp(name: Name, given: &mut ListenFd, at: usize, into: &mut Vec<TcpListener>) -> Result<(), Error> {
    let socket =
        given.take_tcp_listener(at).map_err(|source| Error::Kind { name, wanted: "TCP socket", source })?;
    into.extend(socket.map(|socket| listening(name, socket)).transpose()?);
    Ok(())
}

fn listening<S: AsFd>(name: Name, socket: S) -> Result<S, Error> {
    match sockopt::socket_acceptconn(&socket) {
        Ok(true) => Ok(socket),
        _ => Err(Error::NotListening { name }),
    }
}

fn single<S>(name: Name, mut sockets: Vec<S>) -> Result<Option<S>, Error> {
    match sockets.len() {
        0 | 1 => Ok(sockets.pop()),
        count => Err(Error::Several { name, count }),
    }
}

/// The configured address must be among those that were handed over; the others are served as well.
fn same(name: Name, sockets: &[TcpListener], configured: Option<SocketAddr>) -> Result<(), Error> {
    let addresses: Vec<SocketAddr> = sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect();
    if sockets.is_empty() {
        return Ok(());
    }
    let handed = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let Some(configured) = configured else { return Err(Error::Unwanted { name, handed }) };
    let agrees = |address: &SocketAddr| {
        *address == configured || configured.port() == 0 && address.ip() == configured.ip()
    };
    if addresses.iter().any(agrees) {
        return Ok(());
    }
    Err(Error::Elsewhere { name, handed, configured: configured.to_string() })
}

/// `/var/run` is `/run` on most machines.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let resolved = |path: &Path| std::fs::canonicalize(path).ok();
    one == other || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn addresses_must_agree() {
        let (one, address) = listener();
        let (two, _) = listener();
        let sockets = [two, one];
        assert!(same(Name::Gateway, &[], None).is_ok());
        assert!(same(Name::Gateway, &sockets, Some(address)).is_ok());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert!(same(Name::Gateway, &sockets, Some(any)).is_ok(), "any port was asked for");
        let wide = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let error = same(Name::Gateway, &sockets[1..], Some(wide)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the socket gateway that was handed over listens on {address}, and `listen` of [gateway] says {wide}: \
                 make ListenStream= of its unit and the configuration the same"
            )
        );
        let error = same(Name::Metrics, &sockets[1..], None).unwrap_err();
        assert!(matches!(&error, Error::Unwanted { name: Name::Metrics, .. }), "{error}");
        assert!(error.to_string().contains("`metrics_listen` of [node] is \"none\""), "{error}");
    }

    #[test]
    fn a_path_may_be_written_in_two_ways() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("control.sock"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(is_same_file(&file, &link.join("control.sock")));
        assert!(is_same_file(Path::new("/not/there"), Path::new("/not/there")));
        assert!(!is_same_file(&file, Path::new("/not/there")));
    }

    #[test]
    fn connections_and_several_are_refused() {
        let (one, address) = listener();
        let connected = std::net::TcpStream::connect(address).unwrap();
        assert!(matches!(
            listening(Name::Gateway, connected),
            Err(Error::NotListening { name: Name::Gateway })
        ));
        assert!(listening(Name::Gateway, one).is_ok());
        assert!(matches!(single(Name::Control, vec![1, 2]), Err(Error::Several { count: 2, .. })));
        assert_eq!(single(Name::Control, vec![1]).unwrap(), Some(1));
    }
}
