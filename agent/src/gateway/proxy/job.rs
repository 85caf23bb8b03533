//! One request on its way to an engine: what has to be kept until the first byte of its answer has gone to the client,
//! and the one step that everything needs, [`Job::open`]: under a lease, get an answer's head, or say why not.

use super::answer::Failure;
use super::head::Ids;
use super::relay::{Collected, Live};
use super::route::{Face, Target};
use super::upstream::{Connection, Head, Pool};
use crate::gateway::{Aborted, Admit, Ask, Hub, Lease, Tenant};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Largest error of an engine that is read for what it says, bytes.
const LARGEST_ERROR: usize = 64 << 10;

/// What all requests of a thread share.
#[derive(Debug)]
pub(super) struct Core {
    pub hub: Arc<Hub>,
    pub pool: Rc<Pool>,
    pub ids: Ids,
    /// When the gateway came up, epoch seconds.
    pub created: u64,
}

/// A request for an engine.
#[derive(Debug)]
pub(super) struct Job {
    pub core: Rc<Core>,
    pub tenant: Tenant,
    pub ask: Ask,
    pub target: Target,
    pub head: Head,
    pub body: Bytes,
    /// Roughly.
    pub prompt_tokens: u64,
    pub id: HeaderValue,
}

/// Why an attempt at an engine brought no answer.
#[derive(Debug)]
pub(super) enum Cut {
    /// The lease was ended from outside, before any byte of an answer.
    Aborted(Aborted),
    /// Something else.
    Failed(Failure),
}

/// A lease, and the future of its end from outside.
pub(super) struct Leased {
    pub lease: Rc<Lease>,
    aborted: Pin<Box<dyn Future<Output = Aborted>>>,
}

impl fmt::Debug for Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leased").field(&self.lease).finish()
    }
}

impl Leased {
    pub(super) fn new(lease: Lease) -> Self {
        let lease = Rc::new(lease);
        let watched = Rc::clone(&lease);
        Leased { lease, aborted: Box::pin(async move { watched.aborted().await }) }
    }

    /// Whether it has been ended from outside.
    pub(super) fn poll_aborted(&mut self, cx: &mut Context<'_>) -> Poll<Aborted> {
        self.aborted.as_mut().poll(cx)
    }

    /// Runs something under the lease.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Aborted> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            why = self.aborted.as_mut() => Err(why),
        }
    }
}

/// The head of an engine's answer, and where the rest comes from.
#[derive(Debug)]
pub(super) struct Answered {
    pub response: Response<Incoming>,
    pub connection: Connection,
    pub leased: Leased,
}

impl Answered {
    /// Whether it is a stream of events.
    pub(super) fn is_stream(&self) -> bool {
        is_media(self.response.headers(), "text/event-stream")
    }

    /// Whether it is a plain JSON document that all went well with.
    pub(super) fn is_document(&self) -> bool {
        self.response.status() == StatusCode::OK && is_media(self.response.headers(), "application/json")
    }
}

fn is_media(headers: &HeaderMap, wanted: &str) -> bool {
    let media = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    media.get(..wanted.len()).is_some_and(|m| m.eq_ignore_ascii_case(wanted))
        && matches!(media.as_bytes().get(wanted.len()), None | Some(b';' | b' '))
}

impl Job {
    pub(super) fn face(&self) -> Face {
        self.target.face
    }

    /// Asks for a lease.
    pub(super) fn admit(&self) -> Admit {
        self.core.hub.admit(&self.tenant, self.ask)
    }

    /// Sends the request; the head of the answer.
    pub(super) async fn open(&self, lease: Lease) -> Result<Answered, Cut> {
        let mut leased = Leased::new(lease);
        let lease = Rc::clone(&leased.lease);
        let sent = leased.during(self.core.pool.send(&lease, &self.head, &self.body)).await;
        match sent {
            Ok(Ok((response, connection))) => Ok(Answered { response, connection, leased }),
            Ok(Err(error)) => {
                lease.settle(0);
                tracing::debug!(
                    engine = lease.engine().0,
                    error = crate::effects::chain(&error),
                    "no answer"
                );
                Err(Cut::Failed(Failure::ours("engine_gone", format!("{error}; send the request again"), 1)))
            }
            Err(why) => {
                // What is sent again is charged again.
                lease.settle(0);
                Err(Cut::Aborted(why))
            }
        }
    }

    /// The same for a client that has been promised a stream: anything but a stream is an error now.
    pub(super) async fn open_stream(&self, lease: Lease) -> Result<Live, Cut> {
        let answered = self.open(lease).await?;
        if answered.is_stream() && answered.response.status().is_success() {
            return Ok(Live::new(answered, self).1);
        }
        let status = answered.response.status();
        match Collected::read(answered, &self.core.pool, LARGEST_ERROR).await {
            Ok(Collected::Whole { body, .. }) => Err(Cut::Failed(Failure::of_engine(status, &body))),
            Ok(Collected::TooLong { .. }) => Err(Cut::Failed(Failure::of_engine(status, b""))),
            Err(cut) => Err(cut),
        }
    }
}

/// What is said of a request that was ended from outside and is not sent again.
pub(super) fn ended(why: Aborted) -> Failure {
    match why {
        Aborted::Drain => {
            Failure::ours("aborted", "the request was ended to make room for another model; send it again", 1)
        }
        Aborted::Leaving => Failure::ours(
            "restarting",
            "the gateway is being restarted, and the request took longer than that can wait; send it again",
            2,
        ),
        Aborted::Died => {
            Failure::ours("engine_died", "the model's engine died during the request; send it again", 5)
        }
    }
}
