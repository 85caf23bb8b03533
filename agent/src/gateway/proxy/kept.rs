//! Kept connections on their way from one gateway to the next.
//!
//! ```text
//!   client ── request, answer ──► old gateway
//!   client ── (silent) ────────── old gateway ══ the connection itself ══► new gateway
//!   client ── request, answer ───────────────────────────────────────────► new gateway
//! ```
//!
//! HTTP/1.1 has no way to tell a client that is silent that its connection is about to close. It is simply closed, and a
//! request that is sent at that moment is lost without an answer, and no client may send it again unasked. So where there
//! is a next gateway, a connection on which nothing is under way is not closed but handed to it: whatever the client has
//! sent meanwhile is in the kernel and is read there. One on which an answer runs follows when the answer is written.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// Connections that go.
pub type Going = mpsc::UnboundedReceiver<TcpStream>;

/// Where connections go that nothing is under way on; to nowhere, before it is opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Way(Arc<OnceLock<mpsc::UnboundedSender<TcpStream>>>);

impl Way {
    /// Opens it, once.
    pub(super) fn open(&self) -> Going {
        let (to, going) = mpsc::unbounded_channel();
        // A second one would stay empty.
        drop(self.0.set(to));
        going
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.get().is_some()
    }

    /// Sends a connection on its way; where there is none, it closes.
    pub(super) fn send(&self, stream: TcpStream) {
        if let Some(to) = self.0.get() {
            // Nobody may be there to take it any more.
            drop(to.send(stream));
        }
    }
}

/// Takes connections that another gateway has kept until now.
#[derive(Debug, Clone)]
pub struct Takes {
    threads: Vec<mpsc::UnboundedSender<TcpStream>>,
    next: Arc<AtomicUsize>,
}

impl Takes {
    pub(super) fn new(threads: Vec<mpsc::UnboundedSender<TcpStream>>) -> Self {
        Takes { threads, next: Arc::default() }
    }

    /// One more, for each thread in turn.
    pub fn take(&self, stream: TcpStream) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len().max(1);
        if let Some(thread) = self.threads.get(at) {
            // A thread that has ended serves nobody.
            drop(thread.send(stream));
        }
    }
}
