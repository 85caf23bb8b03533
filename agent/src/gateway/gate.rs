//! One engine's gate: open or closed, under which generation, and how many have gone in and not come out.
//!
//! ```text
//!   63    62                          24 23                0
//!  ┌──────┬─────────────────────────────┬───────────────────┐
//!  │ open │ generation (39 bits)        │ in flight         │   one word, so that each question has one answer
//!  └──────┴─────────────────────────────┴───────────────────┘
//! ```
//!
//! Going in is one atomic step: whoever gets a generation has been counted while the gate was open. So after [`close`]
//! has returned nobody gets in any more, everybody who did is in the count, and the count can only fall: that is all a
//! drain needs. A request that is frozen stays in the count while the gate closes and opens again under the next
//! generation.
//!
//! Every operation is `SeqCst`: whoever leaves looks for someone waiting, whoever waits looks for room, and one of the
//! two must see the other.
//!
//! [`close`]: Gate::close

use super::sync::{AtomicU64, Mutex, Ordering};
use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

const OPEN: u64 = 1 << 63;
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;
const GENERATION: u64 = !OPEN & !COUNT;
/// Most that can be in flight at once; far beyond what a machine has sockets for.
pub(super) const MOST: u32 = COUNT as u32;

/// What became of an attempt to go in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Counted, under this generation.
    In(u64),
    /// Open, and as many in flight as may be.
    Full,
    /// Closed.
    Closed,
}

/// What is left after one has gone out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// In flight now.
    pub in_flight: u32,
    /// Whether it is open.
    pub open: bool,
}

/// A gate. It begins closed.
#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    /// A closed gate with nobody in.
    pub(super) fn new() -> Self {
        Gate { word: AtomicU64::new(0), waiting: Mutex::new(Vec::new()) }
    }

    /// Goes in, if the gate is open and fewer than `limit` are in.
    pub(super) fn enter(&self, limit: u32) -> Entry {
        let limit = u64::from(limit.min(MOST));
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            if word & OPEN == 0 {
                return Entry::Closed;
            }
            if word & COUNT >= limit {
                return Entry::Full;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Entry::In((word & GENERATION) >> COUNT_BITS),
                Err(now) => word = now,
            }
        }
    }

    /// Goes out. Each entry is left once: the caller is a lease's end.
    pub(super) fn leave(&self) -> Left {
        let before = self.word.fetch_sub(1, Ordering::SeqCst);
        let left = Left {
            in_flight: u32::try_from((before & COUNT).saturating_sub(1)).unwrap_or(u32::MAX),
            open: before & OPEN != 0,
        };
        if left.in_flight == 0 && !left.open {
            self.wake();
        }
        left
    }

    /// Opens under a generation; those that are in stay in. True where it changed anything.
    pub(super) fn open(&self, generation: u64) -> bool {
        let wanted = OPEN | ((generation << COUNT_BITS) & GENERATION);
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            if word & !COUNT == wanted {
                return false;
            }
            let next = wanted | (word & COUNT);
            match self.word.compare_exchange_weak(word, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Closes; nobody goes in after this has returned. True where it was open.
    pub(super) fn close(&self) -> bool {
        let before = self.word.fetch_and(!OPEN, Ordering::SeqCst);
        if before & COUNT == 0 {
            self.wake();
        }
        before & OPEN != 0
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.word.load(Ordering::SeqCst) & OPEN != 0
    }

    /// How many are in.
    pub(super) fn in_flight(&self) -> u32 {
        u32::try_from(self.word.load(Ordering::SeqCst) & COUNT).unwrap_or(u32::MAX)
    }

    /// Until it is closed and nobody is in. An event, not a question asked again and again.
    pub(super) fn drained(&self) -> Drained<'_> {
        Drained { gate: self }
    }

    fn is_drained(&self) -> bool {
        self.word.load(Ordering::SeqCst) & (OPEN | COUNT) == 0
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for waker in waiting {
            waker.wake();
        }
    }
}

/// See [`Gate::drained`].
#[derive(Debug)]
pub(super) struct Drained<'a> {
    gate: &'a Gate,
}

impl Future for Drained<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.gate.is_drained() {
            return Poll::Ready(());
        }
        let mut waiting = self.gate.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        // The last one may have left between the question and the registration.
        if self.gate.is_drained() { Poll::Ready(()) } else { Poll::Pending }
    }
}
