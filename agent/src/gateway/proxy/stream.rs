//! A streamed answer, from the queue to its last event.
//!
//! ```text
//!            lease                 head of a stream            end
//!   held ───────────► opening ─────────────────────► live ───────────► over
//!     │ refused          │ failed     ▲               │ aborted, nothing passed on yet
//!     │                  │            └── held again ─┤   (once)
//!     ▼                  ▼                            │ aborted, broken off
//!    last: an error event, well formed ◄──────────────┘ (or cut off, within an event that was too long to be held)
//! ```
//!
//! A stream that has not been held begins live, with the engine's own head. One that has been held for a few seconds
//! gets its head from the gateway, and whatever goes wrong later is an event in it.
//!
//! Whenever nothing has been sent for a while, a comment is: the client, and whatever stands between, see that the
//! connection lives. Comments stand between events, never in one.

use super::answer::{Failure, Standing};
use super::job::{Cut, Job, ended};
use super::relay::{Error, Live};
use super::route::Face;
use super::sse::Splitter;
use crate::gateway::{Aborted, Admit, Held, Lease};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// What happens at present.
enum Phase {
    /// It waits for its model.
    Held(Held),
    /// It has been sent, and the head of the answer has not come. The job comes back with it.
    Opening(Pin<Box<Opening>>),
    /// The engine sends.
    Live(Box<Live>),
    /// The engine has sent what it had; this is left to be passed on.
    Last(Bytes),
    /// It ended within an event that had been passed on in part: there is no well-formed end to that.
    Broken,
    /// Nothing is left.
    Over,
}

/// How a complete answer has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The engine has ended it: its connection may be used again.
    Whole,
    /// Its last event has come, and then something else than its end.
    Early,
}

type Opening = dyn Future<Output = (Box<Job>, Result<Live, Cut>)>;

/// See the module.
pub(super) struct Stream {
    phase: Phase,
    /// Kept until the first byte of the answer has gone out.
    job: Option<Box<Job>>,
    /// It may be sent once more.
    again: bool,
    face: Face,
    splitter: Splitter,
    every: Duration,
    quiet_since: Instant,
    timer: Pin<Box<Sleep>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Held(_) => "held",
            Phase::Opening(_) => "opening",
            Phase::Live(_) => "live",
            Phase::Last(_) => "last",
            Phase::Broken => "broken",
            Phase::Over => "over",
        };
        f.debug_struct("Stream").field("phase", &phase).field("again", &self.again).finish_non_exhaustive()
    }
}

impl Stream {
    /// One whose answer has begun. `again`: it has not been sent twice.
    pub(super) fn live(live: Live, job: Box<Job>, again: bool) -> Self {
        Stream::new(Phase::Live(Box::new(live)), job, again, Duration::ZERO)
    }

    /// One that waits; it says so at once.
    pub(super) fn held(held: Held, job: Box<Job>, again: bool) -> Self {
        let every = job.core.hub.settings().keep_alive;
        Stream::new(Phase::Held(held), job, again, every)
    }

    fn new(phase: Phase, job: Box<Job>, again: bool, quiet_for: Duration) -> Self {
        let every = job.core.hub.settings().keep_alive;
        let now = Instant::now();
        let quiet_since = now.checked_sub(quiet_for).unwrap_or(now);
        Stream {
            phase,
            face: job.face(),
            job: Some(job),
            again,
            splitter: Splitter::default(),
            every,
            quiet_since,
            timer: Box::pin(sleep_until(quiet_since + every)),
        }
    }

    /// The next piece.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            match &mut self.phase {
                Phase::Held(held) => {
                    let Poll::Ready(outcome) = Pin::new(&mut *held).poll(cx) else {
                        let standing = Standing { position: held.position(), eta: held.eta() };
                        ready!(self.poll_quiet(cx));
                        return Poll::Ready(Some(Ok(Frame::data(standing.comment()))));
                    };
                    match outcome {
                        Ok(lease) => self.open(lease),
                        Err(refusal) => self.fail(&refusal.into()),
                    }
                }
                Phase::Opening(opening) => {
                    let Poll::Ready((job, outcome)) = opening.as_mut().poll(cx) else {
                        ready!(self.poll_quiet(cx));
                        let comment = Bytes::from_static(b": hotbunk sent\n\n");
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    };
                    self.job = Some(job);
                    match outcome {
                        Ok(live) => self.phase = Phase::Live(Box::new(live)),
                        Err(Cut::Aborted(why)) => self.aborted(why),
                        Err(Cut::Failed(failure)) => self.fail(&failure),
                    }
                }
                Phase::Live(_) => {
                    if let Some(frame) = ready!(self.poll_live(cx)) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Phase::Last(bytes) => {
                    let bytes = std::mem::take(bytes);
                    self.phase = Phase::Over;
                    if !bytes.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
                Phase::Broken => {
                    self.phase = Phase::Over;
                    return Poll::Ready(Some(Err(Error::Event)));
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    /// The next piece of a live stream; `None` where the phase has changed.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        let Phase::Live(live) = &mut self.phase else { return Poll::Ready(None) };
        if let Poll::Ready(why) = live.leased.poll_aborted(cx) {
            // Whoever has all of its answer need not hear that somebody wanted it ended.
            if live.watch.is_over() {
                self.finish(Ended::Early)
            } else {
                self.aborted(why)
            }
            return Poll::Ready(None);
        }
        loop {
            let Poll::Ready(next) = Pin::new(&mut live.incoming).poll_frame(cx) else { break };
            let frame = match next {
                Some(Ok(frame)) => frame,
                Some(Err(_)) if live.watch.is_over() => {
                    self.finish(Ended::Early);
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    tracing::debug!(engine = live.leased.lease.engine().0, %error, "a stream broke off");
                    self.fail(&ended(Aborted::Died));
                    return Poll::Ready(None);
                }
                None => {
                    self.finish(Ended::Whole);
                    return Poll::Ready(None);
                }
            };
            let mut whole = match frame.into_data() {
                Ok(data) => self.splitter.push(data),
                Err(trailers) => return Poll::Ready(Some(trailers)),
            };
            if whole.is_empty() {
                continue;
            }
            if let Some(at) = live.watch.look(&whole) {
                // The engine gave it up: that event and what follows are no answer.
                whole.truncate(at);
                if whole.is_empty() {
                    self.aborted(Aborted::Drain);
                } else {
                    self.fail_after(whole, &ended(Aborted::Drain));
                }
                return Poll::Ready(None);
            }
            // From here on it cannot be sent again, so its body need not be kept.
            self.job = None;
            self.quiet_since = Instant::now();
            return Poll::Ready(Some(Frame::data(whole)));
        }
        let frozen = live.leased.lease.frozen();
        ready!(self.poll_quiet(cx));
        if !self.splitter.is_between_events() {
            return self.poll_live(cx);
        }
        let comment: &[u8] = if frozen { b": hotbunk frozen\n\n" } else { b": hotbunk alive\n\n" };
        Poll::Ready(Some(Frame::data(Bytes::from_static(comment))))
    }

    /// Ready whenever nothing has been sent for so long that something has to be.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            let due = self.quiet_since + self.every;
            if now >= due {
                self.quiet_since = now;
                self.timer.as_mut().reset(now + self.every);
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
    }

    fn open(&mut self, lease: Lease) {
        // It is there: it goes only when something has come of an answer.
        let Some(job) = self.job.take() else {
            self.phase = Phase::Over;
            return;
        };
        self.phase = Phase::Opening(Box::pin(async move {
            let live = job.open_stream(lease).await;
            (job, live)
        }));
    }

    /// It was ended from outside: it is sent once more if nothing of an answer has gone out.
    fn aborted(&mut self, why: Aborted) {
        if let Phase::Live(live) = &self.phase {
            // What is sent again is charged again.
            let cost = if self.job.is_some() { 0 } else { live.watch.tokens(live.prompt_tokens) };
            live.leased.lease.settle(cost);
        }
        let job = self.job.as_ref().filter(|_| self.again && why == Aborted::Drain);
        let Some(admit) = job.map(|job| job.admit()) else {
            self.fail(&ended(why));
            return;
        };
        self.again = false;
        self.splitter = Splitter::default();
        match admit {
            Admit::Go(lease) => self.open(lease),
            Admit::Hold(held) => self.phase = Phase::Held(held),
            Admit::Refuse(refusal) => self.fail(&refusal.into()),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.fail_after(Bytes::new(), failure);
    }

    /// Ends with an error event behind what may still be passed on. In the middle of an event that was too long to be
    /// held nothing can be said: the connection is closed, which is an error to whoever reads it.
    fn fail_after(&mut self, before: Bytes, failure: &Failure) {
        self.job = None;
        self.phase = if self.splitter.is_between_events() {
            let said = failure.events(self.face);
            Phase::Last(if before.is_empty() { said } else { [before, said].concat().into() })
        } else {
            Phase::Broken
        };
    }

    /// The answer is complete.
    fn finish(&mut self, ended: Ended) {
        let Phase::Live(live) = std::mem::replace(&mut self.phase, Phase::Last(self.splitter.rest())) else {
            return;
        };
        let Live { leased, connection, watch, prompt_tokens, target, pool, .. } = *live;
        if ended == Ended::Whole {
            pool.put(connection);
        }
        leased.lease.settle(watch.tokens(prompt_tokens));
        if target.inference {
            leased.lease.finished();
        }
    }
}
