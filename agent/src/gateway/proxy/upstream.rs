//! Connections to engines: one pool for each thread, so that a request never leaves its core.
//!
//! - A connection belongs to one life of one engine. The next life's requests never see it.
//! - It is kept for at most [`KEEP`] without use: vLLM's server closes after 5 s, and a request that is written at that
//!   very moment is lost. Where it is lost all the same, on a connection that was used before and before any byte of an
//!   answer, it is sent once more, on a new connection. Nothing else is ever sent twice from here.
//! - A connection that is dropped before its answer's end is hung up at once. That is how an engine learns that nobody
//!   waits for the answer any more. But an engine that is busy may not even have read the request by then, and would come
//!   upon it when its drain is long over. So the connection is closed for writing only, and the lease is held until the
//!   engine has closed its side, which it does when it has read everything up to the hang-up; or for [`NOTICE`] at most.

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
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

/// How long a connection is kept without use.
const KEEP: Duration = Duration::from_secs(4);
/// An engine on this machine that does not accept within this time never will.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection may need after an answer's end until it can take the next request.
const SETTLE: Duration = Duration::from_secs(1);

/// Longest wait for an engine to take notice of a hang-up. An event loop that stands still for longer is not waited for: what
/// follows is the drain's own look at the engine's counts.
pub(super) const NOTICE: Duration = Duration::from_secs(2);

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

/// The lease of the request that a connection is used for.
type Rider = Rc<RefCell<Option<Rc<Lease>>>>;

/// A connection to one life of an engine. Dropped, it is hung up.
#[derive(Debug)]
pub(super) struct Connection {
    engine: u16,
    life: u64,
    sender: SendRequest<Full<Bytes>>,
    rider: Rider,
    /// Dropped, it tells the task that drives the connection.
    _hang_up: oneshot::Sender<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(lease) = &*self.rider.borrow() {
            lease.hang_up();
        }
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
        lease: &Rc<Lease>,
        head: &Head,
        body: &Bytes,
    ) -> Result<(Response<Incoming>, Connection), Error> {
        let (engine, life) = (lease.engine().0, lease.upstream().incarnation());
        if let Some(mut connection) = self.take(engine, life) {
            connection.rider.replace(Some(Rc::clone(lease)));
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
        connection.rider.replace(Some(Rc::clone(lease)));
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
        drop(connection.rider.take());
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
    let (sender, mut connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let (hang_up, hung_up) = oneshot::channel::<()>();
    let rider = Rider::default();
    let ridden = Rc::clone(&rider);
    spawn_local(async move {
        tokio::select! {
            biased;
            _ = hung_up => {
                let stream = connection.into_parts().io.into_inner();
                if let Some(lease) = ridden.take() {
                    notice(stream, lease).await;
                }
            }
            // Whoever waits for the answer is told; an idle one that was closed is nobody's trouble.
            ended = &mut connection => if let Err(error) = ended {
                tracing::trace!(%error, "a connection to an engine ended");
            },
        }
    });
    let (engine, life) = (lease.engine().0, lease.upstream().incarnation());
    Ok(Connection { engine, life, sender, rider, _hang_up: hang_up })
}

/// Hangs up, and holds the lease until the engine has heard it: it closes its side when it has read up to there. What it still
/// sends is for nobody.
async fn notice(mut stream: impl AsyncRead + AsyncWrite + Unpin, lease: Rc<Lease>) {
    let heard = async {
        let mut unread = [0; 2048];
        // A connection that breaks is closed as well.
        if stream.shutdown().await.is_ok() {
            while stream.read(&mut unread).await.is_ok_and(|n| n > 0) {}
        }
    };
    if timeout(NOTICE, heard).await.is_err() {
        tracing::debug!(engine = lease.engine().0, "it has not taken notice of a client that has gone");
    }
}
