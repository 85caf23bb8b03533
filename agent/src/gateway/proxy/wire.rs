//! A client's connection beneath HTTP: whose turn it is, and what is said where HTTP itself has failed.
//!
//! ```text
//!             first byte            head is whole      answer is with the kernel
//!   idle ───────────────► head ───────────────────► busy ───────────────────► idle
//!     │ idle too long       │ too slow: 408
//!     ▼                     │ no HTTP, too large: 400, 414, 431
//!   closed ◄────────────────┘
//! ```
//!
//! hyper answers a head that it cannot read with a status and nothing else, and a head that does not come with nothing at
//! all. Clients parse errors, so both get OpenAI's form here: the bare answer is replaced on its way out, and the 408 is
//! written when the connection's watch has run out.

use bytes::{Buf, Bytes};
use hyper::StatusCode;
use serde_json::json;
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// How long a connection may be kept without a request on it.
const IDLE: Duration = Duration::from_secs(75);

/// How long a kept connection is still heard when the gateway goes, or when its answer has ended since. Whoever sends one
/// request after the other is told in the head of an answer that its connection closes. Closing it behind an answer that
/// did not say so would meet the next request half way; an idle one is closed, since HTTP/1.1 has no other way to say so.
const LINGER: Duration = Duration::from_millis(500);

/// Whose turn it is on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nothing has come of a next request.
    Idle,
    /// A part of a head has come.
    Head,
    /// A request is being answered.
    Busy,
}

/// Shared by a connection's bytes, its service and its watch.
#[derive(Debug)]
pub(super) struct State {
    turn: Cell<Turn>,
    since: Cell<Instant>,
    /// Nothing has been asked yet.
    is_new: Cell<bool>,
    /// All of the last request has been read.
    has_heard: Cell<bool>,
    /// The last answer has ended, and a part of it may not be with the kernel yet: its client reads slowly.
    is_unwritten: Cell<bool>,
    /// Since when the gateway goes: the next answer is the last one.
    leaving: Cell<Option<Instant>>,
}

/// What a connection's watch does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Looks again then.
    Wait(Instant),
    /// Says 408 and closes.
    TooSlow,
    /// Closes.
    Close,
}

impl State {
    /// Of a connection that was accepted now.
    pub(super) fn new(now: Instant) -> Rc<Self> {
        Rc::new(State {
            turn: Cell::new(Turn::Idle),
            since: Cell::new(now),
            is_new: Cell::new(true),
            has_heard: Cell::new(true),
            is_unwritten: Cell::new(false),
            leaving: Cell::new(None),
        })
    }

    /// Of a connection that another agent has kept until now.
    pub(super) fn kept(now: Instant) -> Rc<Self> {
        let state = State::new(now);
        state.is_new.set(false);
        state
    }

    /// A head is whole.
    pub(super) fn begin(&self) {
        self.turn.set(Turn::Busy);
        self.is_new.set(false);
        self.has_heard.set(false);
    }

    /// All of its body has been read.
    pub(super) fn has_heard(&self) {
        self.has_heard.set(true);
    }

    /// All of its answer is known. It is over when it is written.
    pub(super) fn end(&self, now: Instant) {
        self.turn.set(Turn::Idle);
        self.is_unwritten.set(true);
        self.since.set(now);
    }

    /// Whatever there was to write is with the kernel.
    fn has_written(&self, now: impl FnOnce() -> Instant) {
        if self.is_unwritten.replace(false) && self.turn.get() == Turn::Idle {
            self.since.set(now());
        }
    }

    /// The gateway goes; when to look next.
    pub(super) fn leave(&self, now: Instant) -> Instant {
        self.leaving.set(Some(now));
        now + LINGER
    }

    /// Whether the next answer is the last one of this connection.
    pub(super) fn is_last(&self) -> bool {
        self.leaving.get().is_some()
    }

    fn has_read(&self, now: impl FnOnce() -> Instant) {
        if self.turn.get() == Turn::Idle {
            self.turn.set(Turn::Head);
            // The time of a new connection began when it was accepted.
            if !self.is_new.get() {
                self.since.set(now());
            }
        }
    }

    /// What to do, given how long a head may take.
    pub(super) fn verdict(&self, head: Duration, now: Instant) -> Verdict {
        let since = self.since.get();
        let turn = if self.is_busy() { Turn::Busy } else { self.turn.get() };
        let (end, after) = match (turn, self.leaving.get()) {
            (Turn::Busy, None) => return Verdict::Wait(now + head),
            (Turn::Busy, Some(_)) => return Verdict::Wait(now + LINGER),
            (Turn::Head, _) => (since + head, Verdict::TooSlow),
            // The head of a long answer may have gone before, without a word of the end: its client asks again.
            (Turn::Idle, Some(left)) => (left.max(since) + LINGER, Verdict::Close),
            (Turn::Idle, None) if self.is_new.get() => (since + head, Verdict::Close),
            (Turn::Idle, None) => (since + IDLE, Verdict::Close),
        };
        if now < end {
            // A head may begin meanwhile.
            Verdict::Wait(end.min(now + head))
        } else {
            after
        }
    }

    /// Whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        self.turn.get() == Turn::Busy || self.is_unwritten.get()
    }

    /// Whether what comes next is a request, and not what is left of one that was answered before its end.
    pub(super) fn is_free(&self) -> bool {
        self.is_idle() && self.has_heard.get()
    }

    /// Whether it waits for a next request, so that it can be closed.
    pub(super) fn is_idle(&self) -> bool {
        self.turn.get() == Turn::Idle && !self.is_unwritten.get()
    }
}

/// A client's bytes.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    state: Rc<State>,
    /// What is written in place of hyper's bare answer.
    instead: Option<Bytes>,
}

impl Wire {
    /// Wraps an accepted connection.
    pub(super) fn new(stream: TcpStream, state: Rc<State>) -> Self {
        Wire { stream, state, instead: None }
    }

    /// The connection itself.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn replace(&mut self, written: &[u8]) {
        if self.instead.is_none() && self.state.turn.get() != Turn::Busy {
            self.instead = bare(written).map(|(status, code, message)| whole(status, code, message));
        }
    }

    /// Writes the replacement, if there is one; ready when it is out.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(text) = &mut self.instead {
            while text.has_remaining() {
                let n = ready!(Pin::new(&mut self.stream).poll_write(cx, text))?;
                if n == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                text.advance(n);
            }
            self.instead = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let before = into.filled().len();
        ready!(Pin::new(&mut wire.stream).poll_read(cx, into))?;
        if into.filled().len() > before {
            wire.state.has_read(Instant::now);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, text: &[u8]) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        wire.replace(text);
        if wire.instead.is_some() {
            return wire.poll_instead(cx).map_ok(|()| text.len());
        }
        Pin::new(&mut wire.stream).poll_write(cx, text)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        texts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        if let Some(first) = texts.first() {
            wire.replace(first);
        }
        if wire.instead.is_some() {
            let length = texts.iter().map(|t| t.len()).sum();
            return wire.poll_instead(cx).map_ok(|()| length);
        }
        Pin::new(&mut wire.stream).poll_write_vectored(cx, texts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // hyper flushes when it has written whatever it had, and not before.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        ready!(Pin::new(&mut wire.stream).poll_flush(cx))?;
        wire.state.has_written(Instant::now);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Whether bytes are hyper's bare answer to a head that it cannot read. Answers of the gateway and of engines carry a
/// request id, so none of them is mistaken for it.
fn bare(written: &[u8]) -> Option<(StatusCode, &'static str, &'static str)> {
    let status = written.strip_prefix(b"HTTP/1.1 ").or_else(|| written.strip_prefix(b"HTTP/1.0 "))?;
    let answer = match status.get(..3)? {
        b"400" => (StatusCode::BAD_REQUEST, "invalid_http", "this is not a valid HTTP/1.1 request"),
        b"414" => (StatusCode::URI_TOO_LONG, "uri_too_long", "the request's address is too long"),
        b"431" => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "header_too_large",
            "the request's headers are larger than the limit (`max_header` of the gateway's configuration) or too many",
        ),
        _ => return None,
    };
    let has_id = || memchr::memmem::find(written, b"x-request-id").is_some();
    (written.len() < 512 && !has_id()).then_some(answer)
}

/// A whole answer that closes its connection.
fn whole(status: StatusCode, code: &str, message: &str) -> Bytes {
    let error = json!({ "message": message, "type": "invalid_request_error", "param": null, "code": code });
    let body = json!({ "error": error }).to_string();
    let reason = status.canonical_reason().unwrap_or_default();
    Bytes::from(format!(
        "HTTP/1.1 {} {reason}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        status.as_u16(),
        body.len()
    ))
}

/// What a client is told whose head does not come.
pub(super) fn too_slow() -> Bytes {
    whole(StatusCode::REQUEST_TIMEOUT, "header_too_slow", "the request's head did not arrive in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_answers_are_replaced() {
        let of = |text: &str| bare(text.as_bytes()).map(|(status, ..)| status.as_u16());
        let head = "connection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(of(&format!("HTTP/1.1 431 Request Header Fields Too Large\r\n{head}")), Some(431));
        assert_eq!(of(&format!("HTTP/1.1 400 Bad Request\r\n{head}")), Some(400));
        assert_eq!(of(&format!("HTTP/1.1 200 OK\r\n{head}")), None);
        assert_eq!(of(&format!("HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\n{head}")), None);
        assert_eq!(of("data: HTTP/1.1 400"), None);
    }

    #[test]
    fn a_watch_knows_whose_turn_it_is() {
        let head = Duration::from_secs(10);
        let mut now = Instant::now();
        let state = State::new(now);
        assert_eq!(state.verdict(head, now), Verdict::Wait(now + head));
        now += head;
        assert_eq!(state.verdict(head, now), Verdict::Close, "it said nothing");
        state.has_read(|| now);
        assert_eq!(state.verdict(head, now), Verdict::TooSlow, "its time began when it connected");
        state.begin();
        now += IDLE * 2;
        assert_eq!(state.verdict(head, now), Verdict::Wait(now + head), "an answer may take any time");
        state.end(now);
        now += IDLE * 2;
        assert_eq!(state.verdict(head, now), Verdict::Wait(now + head), "its client reads slowly");
        assert!(state.is_busy() && !state.is_idle());
        state.has_written(|| now);
        assert!(!state.is_busy() && state.is_idle());
        now += head * 2;
        assert_eq!(state.verdict(head, now), Verdict::Wait(now + head), "it may be idle for longer");
        state.has_read(|| now);
        assert_eq!(state.verdict(head, now), Verdict::Wait(now + head));
        now += head;
        assert_eq!(state.verdict(head, now), Verdict::TooSlow);
        state.begin();
        state.end(now);
        state.has_written(|| now);
        now += IDLE;
        assert_eq!(state.verdict(head, now), Verdict::Close);
    }

    #[test]
    fn a_gateway_that_goes_hears_out_who_has_begun_and_not_who_is_silent() {
        let head = Duration::from_secs(10);
        let now = Instant::now();
        let silent = State::new(now);
        assert!(!silent.is_last());
        let look = silent.leave(now);
        assert!(silent.is_last());
        assert_eq!(silent.verdict(head, now), Verdict::Wait(look));
        assert_eq!(silent.verdict(head, look), Verdict::Close);
        silent.has_read(|| look);
        assert_eq!(silent.verdict(head, look), Verdict::Wait(now + head), "its head may come");
        silent.begin();
        let later = now + head * 9;
        assert_eq!(silent.verdict(head, later), Verdict::Wait(later + LINGER));
        silent.end(later);
        silent.has_written(|| later);
        assert_eq!(silent.verdict(head, later), Verdict::Wait(later + LINGER), "it may ask again");
        assert_eq!(silent.verdict(head, later + LINGER), Verdict::Close);
    }
}
