//! Answers on their way to the client.
//!
//! Each holds its request's lease until the engine's last byte has been read, or until it is dropped: the client's
//! connection drops it when the client goes, and with it go the engine's connection, which tells the engine, and the
//! lease. So nothing has to be cleaned up, and nothing can be forgotten.
//!
//! - A plain JSON document is read whole first, up to [`LARGEST_DOCUMENT`]: one that says that the engine gave the
//!   request up is no answer, and one that breaks off had better be an error than half a document.
//! - Anything longer, and anything that is neither document nor stream, passes as it comes ([`Passing`]).
//! - Streams are in [`super::stream`].

use super::job::{Answered, Cut, Job, Leased};
use super::route::Target;
use super::sse::Watch;
use super::stream::Stream;
use super::upstream::{Connection, Pool};
use super::wire;
use crate::gateway::Aborted;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// Largest JSON document that is read whole before it is passed on, bytes.
pub(super) const LARGEST_DOCUMENT: usize = 4 << 20;

/// An answer that cannot be finished; its connection is closed, which tells the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The engine's connection broke.
    #[error("the engine's answer ended before its end")]
    Broken(#[source] hyper::Error),
    /// The lease was ended from outside.
    #[error("the request was ended: {0:?}")]
    Aborted(Aborted),
    /// The stream ended within an event.
    #[error("the stream ended within an event")]
    Event,
}

/// An answer's body.
#[derive(Debug)]
pub(super) struct Reply {
    kind: Kind,
    /// Told when the answer is over.
    client: Option<Rc<wire::State>>,
}

#[derive(Debug)]
enum Kind {
    Whole(Bytes),
    Passing(Box<Passing>),
    Stream(Box<Stream>),
}

impl From<Bytes> for Reply {
    fn from(whole: Bytes) -> Self {
        Reply { kind: Kind::Whole(whole), client: None }
    }
}

impl From<Passing> for Reply {
    fn from(passing: Passing) -> Self {
        Reply { kind: Kind::Passing(Box::new(passing)), client: None }
    }
}

impl From<Stream> for Reply {
    fn from(stream: Stream) -> Self {
        Reply { kind: Kind::Stream(Box::new(stream)), client: None }
    }
}

impl Reply {
    /// Tells the client's connection when it is over.
    pub(super) fn tell(&mut self, client: Rc<wire::State>) {
        self.client = Some(client);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            client.end(Instant::now());
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match &mut self.get_mut().kind {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Passing(passing) => passing.poll_frame(cx),
            Kind::Stream(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.kind, Kind::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Passing(passing) => passing.size_hint(),
            Kind::Stream(_) => SizeHint::default(),
        }
    }
}

/// An answer that passes as it comes.
#[derive(Debug)]
pub(super) struct Passing {
    /// What has been read of it already.
    read: VecDeque<Bytes>,
    incoming: Incoming,
    leased: Option<Leased>,
    connection: Option<Connection>,
    pool: Rc<Pool>,
    counts: bool,
}

impl Passing {
    /// The rest of an answer whose head has been passed on.
    pub(super) fn new(answered: Answered, job: &Job) -> (hyper::http::response::Parts, Self) {
        let Answered { response, connection, leased } = answered;
        let counts = job.target.inference && response.status().is_success();
        if !response.status().is_success() {
            // An engine that says no has not worked.
            leased.lease.settle(0);
        }
        let (head, incoming) = response.into_parts();
        let passing = Passing {
            read: VecDeque::new(),
            incoming,
            leased: Some(leased),
            connection: Some(connection),
            pool: Rc::clone(&job.core.pool),
            counts,
        };
        (head, passing)
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(read) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        if let Some(leased) = &mut self.leased
            && let Poll::Ready(why) = leased.poll_aborted(cx)
        {
            (self.leased, self.connection) = (None, None);
            return Poll::Ready(Some(Err(Error::Aborted(why))));
        }
        match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(Err(error)) => {
                (self.leased, self.connection) = (None, None);
                Poll::Ready(Some(Err(Error::Broken(error))))
            }
            None => {
                if let Some(connection) = self.connection.take() {
                    self.pool.put(connection);
                }
                if let Some(leased) = self.leased.take().filter(|_| self.counts) {
                    leased.lease.finished();
                }
                Poll::Ready(None)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.read.is_empty() { self.incoming.size_hint() } else { SizeHint::default() }
    }
}

/// An answer that has been read whole, if it was short enough.
#[derive(Debug)]
pub(super) enum Collected {
    /// All of it; the engine is done with it, and the lease is still held.
    Whole { head: hyper::http::response::Parts, body: Bytes, leased: Leased },
    /// Its beginning; the rest is yet to come.
    TooLong { answered: Box<Answered>, read: VecDeque<Bytes> },
}

impl Collected {
    /// Reads up to `most` bytes.
    ///
    /// # Errors
    /// It broke off, or the lease was ended: either way nothing has been passed on yet.
    pub(super) async fn read(answered: Answered, pool: &Rc<Pool>, most: usize) -> Result<Self, Cut> {
        let Answered { response, connection, mut leased } = answered;
        let (head, mut incoming) = response.into_parts();
        let mut read = VecDeque::new();
        let mut length = 0;
        loop {
            let frame = match leased.during(incoming.frame()).await {
                Err(why) => {
                    leased.lease.settle(0);
                    return Err(Cut::Aborted(why));
                }
                Ok(Some(Err(error))) => {
                    leased.lease.settle(0);
                    tracing::debug!(engine = leased.lease.engine().0, %error, "an answer broke off");
                    let message =
                        "the engine closed the connection before its answer's end; send the request again";
                    return Err(Cut::Failed(super::answer::Failure::ours("engine_gone", message, 1)));
                }
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
            };
            // A document with trailers loses them; none of vLLM's has any.
            let Ok(data) = frame.into_data() else { continue };
            length += data.len();
            read.push_back(data);
            if length > most {
                let response = hyper::Response::from_parts(head, incoming);
                return Ok(Collected::TooLong {
                    answered: Box::new(Answered { response, connection, leased }),
                    read,
                });
            }
        }
        pool.put(connection);
        let body = match read.len() {
            1 => read.pop_front().unwrap_or_default(),
            _ => Bytes::from(read.into_iter().flatten().collect::<Vec<u8>>()),
        };
        Ok(Collected::Whole { head, body, leased })
    }
}

/// Whether a document may be read whole first.
pub(super) fn is_short(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    length.is_none_or(|length| length <= LARGEST_DOCUMENT)
}

impl Passing {
    /// Puts what has been read already in front.
    pub(super) fn after(mut self, read: VecDeque<Bytes>) -> Self {
        self.read = read;
        self
    }
}

/// A stream that an engine is sending.
#[derive(Debug)]
pub(super) struct Live {
    pub incoming: Incoming,
    pub leased: Leased,
    pub connection: Connection,
    pub watch: Watch,
    pub prompt_tokens: u64,
    pub target: Target,
    pub pool: Rc<Pool>,
}

impl Live {
    /// An engine's answer that is a stream: its head, and the rest.
    pub(super) fn new(answered: Answered, job: &Job) -> (hyper::http::response::Parts, Self) {
        let Answered { response, connection, leased } = answered;
        let (head, incoming) = response.into_parts();
        let live = Live {
            incoming,
            leased,
            connection,
            watch: Watch::new(job.face()),
            prompt_tokens: job.prompt_tokens,
            target: job.target,
            pool: Rc::clone(&job.core.pool),
        };
        (head, live)
    }
}
