//! Connections to engines: one pool for each thread, so that a request never leaves its core.
//!
//! - A connection belongs to one life of one engine. The next life's requests never see it.
//! - It is kept for at most [`KEEP`] without use: vLLM's server closes after 5 s, and a request that is written at that
//!   very moment is lost. Where it is lost all the same, on a connection that was used before and before any byte of an
//!   answer, it is sent once more, on a new connection. Nothing else is ever sent twice from here.
//! - A connection that is dropped before its answer's end is closed at once. That is how an engine learns that nobody
//!   waits for the answer any more.

use super::head;
use crate::gateway::{Address, Lease};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{Instant, timeout};

/// How long a connection is kept without use.
const KEEP: Duration = Duration::from_secs(4);
/// An engine on this machine that does not accept within this time never will.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection may need after an answer's end until it can take the next request.
const SETTLE: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No connection.
    #[error("the engine does not accept connections")]
    Connect(#[source] io::Error),
    /// It broke.
    #[error("the engine closed the connection before it answered")]
    Broken(#[source] hyper::Error),
}

/// A request as an engine gets it, without its body.
#[derive(Debug)]
pub(super) struct Head {
    /// Method.
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub uri: Uri,
    /// Headers.
    pub headers: HeaderMap,
}

/// A connection to one life of an engine. Dropped, it is closed.
#[derive(Debug)]
pub(super) struct Connection {
    engine: u16,
    life: u64,
    sender: SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connections that wait for their next request.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: RefCell<Vec<(Connection, Instant)>>,
}

impl Pool {
    /// Sends a request under a lease; the answer's head, and the connection that the rest comes over.
    pub(super) async fn send(
        &self,
        lease: &Lease,
        head: &Head,
        body: &Bytes,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let (engine, life) = (lease.engine().0, lease.upstream().incarnation());
        if let Some(mut connection) = self.take(engine, life) {
            match connection.sender.send_request(request(lease, head, body)).await {
                Ok(response) => return Ok((response, connection)),
                // Whatever has been idle as long as this one is as stale.
                Err(error) => {
                    tracing::debug!(%error, "a kept connection was closed; the request is sent again");
                    self.idle.borrow_mut().retain(|(c, _)| c.engine != engine);
                }
            }
        }
        let mut connection = connect(lease).await.map_err(Error::Connect)?;
        let response =
            connection.sender.send_request(request(lease, head, body)).await.map_err(Error::Broken)?;
        Ok((response, connection))
    }

    /// The connection that was used last: the others may grow old and go.
    fn take(&self, engine: u16, life: u64) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        let usable = |(c, since): &(Connection, Instant)| {
            c.engine == engine && c.life == life && c.sender.is_ready() && now.duration_since(*since) < KEEP
        };
        let at = idle.iter().rposition(usable)?;
        Some(idle.swap_remove(at).0)
    }

    /// Keeps a connection whose answer has been read to its end.
    pub(super) fn put(self: &Rc<Self>, mut connection: Connection) {
        if connection.sender.is_ready() {
            self.idle.borrow_mut().push((connection, Instant::now()));
        } else if !connection.sender.is_closed() {
            let pool = Rc::clone(self);
            spawn_local(async move {
                if let Ok(Ok(())) = timeout(SETTLE, connection.sender.ready()).await {
                    pool.idle.borrow_mut().push((connection, Instant::now()));
                }
            });
        }
    }

    /// Drops what is too old, or closed. To be called every now and then.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        self.idle
            .borrow_mut()
            .retain(|(c, since)| now.duration_since(*since) < KEEP && !c.sender.is_closed());
    }
}

fn request(lease: &Lease, head: &Head, body: &Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = head.uri.clone();
    *request.headers_mut() = head.headers.clone();
    head::set_key(request.headers_mut(), lease.upstream().api_key());
    request
}

async fn connect(lease: &Lease) -> io::Result<Connection> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    match lease.upstream().address() {
        Address::Tcp(address) => {
            let stream = timeout(CONNECT, TcpStream::connect(address)).await.map_err(late)??;
            stream.set_nodelay(true)?;
            handshake(lease, stream).await
        }
        Address::Unix(path) => {
            let stream = timeout(CONNECT, UnixStream::connect(path)).await.map_err(late)??;
            handshake(lease, stream).await
        }
    }
}

async fn handshake(
    lease: &Lease,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
) -> io::Result<Connection> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let task = spawn_local(async move {
        // Whoever waits for the answer is told; an idle one that was closed is nobody's trouble.
        if let Err(error) = connection.await {
            tracing::trace!(%error, "a connection to an engine ended");
        }
    });
    let (engine, life) = (lease.engine().0, lease.upstream().incarnation());
    Ok(Connection { engine, life, sender, task: task.abort_handle() })
}
