//! Where the gateway listens: one socket for each thread, all on the same port.
//!
//! With `SO_REUSEPORT` the kernel spreads connections over the sockets, and a connection stays on the thread that
//! accepted it. The price is that a second program of the same user could share the port unnoticed, so it is asked for
//! once without that option first: whoever has it already keeps it, and is said to have it.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    /// On an address; port 0 takes a free one.
    Address(SocketAddr),
    /// On sockets that somebody else has made and keeps, such as an init system.
    Sockets(Vec<TcpListener>),
    /// On those of a former agent, who keeps them no longer than this one needs to come up.
    Former(Vec<TcpListener>),
}

/// Why there is no gateway.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be had.
    #[error(
        "the gateway cannot listen on {address}; end whoever does, or set `listen` of [gateway] to another address"
    )]
    Bind {
        /// Which.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket that was handed over is of no use.
    #[error("a listening socket that was handed over cannot be used")]
    Inherited(#[source] io::Error),
    /// None was.
    #[error("no listening socket was handed over")]
    None,
    /// The system gives no thread.
    #[error("no thread can be started for the gateway")]
    Thread(#[source] io::Error),
}

/// Bound sockets, one for each thread. Clients can connect from now on; they are accepted once the gateway starts.
#[derive(Debug)]
pub struct Sockets {
    pub(super) all: Vec<TcpListener>,
    pub(super) address: SocketAddr,
    /// Somebody else holds them as well, so that connections to them outlive this process.
    pub(super) are_shared: bool,
}

impl Sockets {
    /// Binds them.
    ///
    /// # Errors
    /// [`Error`].
    pub fn bind(on: Listen, threads: usize) -> Result<Self, Error> {
        let are_shared = matches!(on, Listen::Sockets(_));
        match on {
            Listen::Address(address) => {
                let error = |source| Error::Bind { address, source };
                let free = socket(address, false).and_then(|probe| probe.local_addr()).map_err(error)?;
                let all: io::Result<_> = (0..threads.max(1)).map(|_| socket(free, true)).collect();
                Ok(Sockets { all: all.map_err(error)?, address: free, are_shared })
            }
            Listen::Sockets(given) | Listen::Former(given) => {
                let address = given.first().ok_or(Error::None)?.local_addr().map_err(Error::Inherited)?;
                let share = |at: usize| {
                    let socket = given[at % given.len()].try_clone()?;
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                };
                let all: io::Result<_> = (0..threads.max(given.len())).map(share).collect();
                Ok(Sockets { all: all.map_err(Error::Inherited)?, address, are_shared })
            }
        }
    }

    /// Where they listen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All of them, and whether this process is the only one that has them.
    pub fn all(&self) -> (&[TcpListener], bool) {
        (&self.all, !self.are_shared)
    }
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    bind(&socket, &address)?;
    if shared {
        listen(&socket, BACKLOG)?;
    }
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn threads_share_a_port_and_others_do_not() {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let sockets = Sockets::bind(Listen::Address(any), 3).unwrap();
        let address = sockets.address();
        assert_eq!(sockets.all.len(), 3);
        assert_ne!(address.port(), 0);
        assert!(sockets.all.iter().all(|s| s.local_addr().unwrap() == address));
        TcpStream::connect(address).unwrap();
        let error = Sockets::bind(Listen::Address(address), 3).unwrap_err();
        assert!(
            matches!(&error, Error::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse),
            "{error}"
        );
        assert!(error.to_string().contains("[gateway]"), "{error}");
        // An address that was in use a moment ago is free at once.
        drop(sockets);
        Sockets::bind(Listen::Address(address), 1).unwrap();
    }

    #[test]
    fn sockets_of_others_are_shared_out() {
        let given = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let expected = given.local_addr().unwrap();
        let sockets = Sockets::bind(Listen::Sockets(vec![given]), 2).unwrap();
        assert_eq!((sockets.all.len(), sockets.address()), (2, expected));
        assert!(matches!(Sockets::bind(Listen::Sockets(Vec::new()), 2), Err(Error::None)));
    }
}
