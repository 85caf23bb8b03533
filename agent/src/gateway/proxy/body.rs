//! A request's body, read whole: it has to be, since its model stands in it and since it may have to wait, or be sent
//! twice.
//!
//! It is bounded in bytes and in time. The time grows with what has come, so that a large body over a slow line is read
//! to its end, and one that trickles is not.

use super::wire::State;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::yield_now;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};

/// How long a client may take beyond what its bytes need.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a line must carry at least, bytes per second.
const SLOWEST: u64 = 16 << 10;
/// What is read of a body that is too large, so that its sender is still there to hear why.
const LEFTOVERS: Duration = Duration::from_secs(2);
/// Memory is taken ahead for a body that says its length, up to so many bytes; what is longer grows as it comes.
const AHEAD: u64 = 16 << 20;

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// More than may be.
    #[error("the body is larger than the limit of {limit} bytes (`max_body` of the gateway's configuration)")]
    TooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// It does not come.
    #[error("the body did not arrive in time")]
    TooSlow,
    /// The client went, or sent what is no HTTP.
    #[error("the body ended before its end")]
    Broken,
}

/// A body that is still to be read. Its connection is told when all of it has been.
#[derive(Debug)]
pub(super) struct Unread {
    incoming: Incoming,
    client: Rc<State>,
}

impl Unread {
    pub(super) fn new(incoming: Incoming, client: Rc<State>) -> Self {
        let unread = Unread { incoming, client };
        unread.look(false);
        unread
    }

    /// Tells whether that was all.
    fn look(&self, is_over: bool) {
        if is_over || self.incoming.is_end_stream() {
            self.client.has_heard();
        }
    }

    async fn frame(&mut self) -> Option<hyper::Result<Frame<Bytes>>> {
        let frame = self.incoming.frame().await;
        self.look(frame.is_none());
        frame
    }
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read(mut body: Unread, limit: u64) -> Result<Bytes, Error> {
    let stated = body.incoming.size_hint().exact();
    if stated.is_some_and(|length| length > limit) {
        discard(body, limit).await;
        return Err(Error::TooLarge { limit });
    }
    let begun = Instant::now();
    let mut got = 0;
    let mut whole = BytesMut::new();
    loop {
        let allowed = PATIENCE + Duration::from_secs(got / SLOWEST);
        let frame = match within(begun + allowed, body.frame()).await {
            Err(_) => return Err(Error::TooSlow),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(Err(_))) => return Err(Error::Broken),
            Ok(Some(Ok(frame))) => frame,
        };
        // Trailers of a request mean nothing to an engine.
        let Ok(data) = frame.into_data() else { continue };
        got += data.len() as u64;
        if got > limit {
            drop(whole);
            discard(body, limit).await;
            return Err(Error::TooLarge { limit });
        }
        if whole.is_empty() && stated == Some(got) {
            // Most bodies come in one piece, and stay it.
            return Ok(data);
        }
        if whole.is_empty() {
            let ahead = stated.unwrap_or(got).min(AHEAD);
            whole.reserve(usize::try_from(ahead).unwrap_or(0));
        }
        whole.extend_from_slice(&data);
    }
}

/// A frame that comes in time. One that came with the head is there as soon as the connection has had its turn: no timer
/// is made for it.
async fn within<T>(end: Instant, frame: impl Future<Output = T>) -> Result<T, Elapsed> {
    tokio::pin!(frame);
    tokio::select! {
        biased;
        frame = &mut frame => return Ok(frame),
        () = yield_now() => {}
    }
    timeout_at(end, frame).await
}

/// Reads on and keeps nothing, for a while: a connection that is closed on a client that still writes is reset, and the
/// answer is lost with it.
pub(super) async fn discard(mut body: Unread, most: u64) {
    let mut got = 0;
    let end = Instant::now() + LEFTOVERS;
    while got < most {
        match timeout_at(end, body.frame()).await {
            Ok(Some(Ok(frame))) => got += frame.data_ref().map_or(0, |d| d.len() as u64),
            _ => return,
        }
    }
}
