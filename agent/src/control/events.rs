//! The last events, and those to come, without a gap or a repetition between the two.
//!
//! One lock covers the ring and the sending, so a subscriber gets each event exactly once: from the ring if it was
//! published before it subscribed, from the channel if after. A subscriber that falls behind by more than the
//! channel holds is let go; it resumes by number like one that lost the connection.

use futures_util::{Stream, StreamExt, stream};
use hotbunk_api::event::{Event, Happening};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

/// Remembers the last events and hands out new ones.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<Ring>,
    live: broadcast::Sender<Arc<Event>>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    capacity: usize,
    last_seq: u64,
}

/// What a subscriber gets.
#[derive(Debug)]
pub struct Subscription {
    history: Vec<Arc<Event>>,
    live: broadcast::Receiver<Arc<Event>>,
}

impl EventLog {
    /// Remembers the last `capacity` events (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let (live, _) = broadcast::channel(capacity);
        EventLog { ring: Mutex::new(Ring { events: VecDeque::new(), capacity, last_seq: 0 }), live }
    }

    /// Publishes what happened at `at` (epoch seconds); gives its number.
    pub fn publish(&self, at: f64, what: Happening) -> u64 {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last_seq += 1;
        let seq = ring.last_seq;
        let event = Arc::new(Event { seq, at, what });
        if ring.events.len() == ring.capacity {
            ring.events.pop_front();
        }
        ring.events.push_back(Arc::clone(&event));
        // Nobody listening is no error.
        drop(self.live.send(event));
        seq
    }

    /// Number of the last event, 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).last_seq
    }

    /// Everything after `since`, or from now on. What is not remembered is announced by a [`Happening::Gap`]; so is a
    /// number that was never given out (by a former life of the agent, that is).
    pub fn subscribe(&self, since: Option<u64>) -> Subscription {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.live.subscribe();
        let Some(since) = since else { return Subscription { history: Vec::new(), live } };
        let first = ring.events.front().map_or(ring.last_seq + 1, |e| e.seq);
        let unbroken = since <= ring.last_seq && since + 1 >= first;
        let mut history = Vec::new();
        if !unbroken {
            let at = ring.events.front().map_or(0.0, |e| e.at);
            history.push(Arc::new(Event { seq: first - 1, at, what: Happening::Gap { resumes_at: first } }));
        }
        history.extend(ring.events.iter().filter(|e| !unbroken || e.seq > since).cloned());
        Subscription { history, live }
    }
}

impl Subscription {
    /// The events, one after another. Ends when the subscriber has fallen behind, or the log is gone.
    pub fn into_stream(self) -> impl Stream<Item = Arc<Event>> + Send {
        let live = BroadcastStream::new(self.live)
            .take_while(|received| std::future::ready(received.is_ok()))
            .filter_map(|received| std::future::ready(received.ok()));
        stream::iter(self.history).chain(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn happening(n: u64) -> Happening {
        Happening::Stopping { reason: n.to_string() }
    }

    /// Numbers that come without waiting; a gap counts as the negative of where it resumes.
    fn numbers(subscription: Subscription) -> Vec<i64> {
        let mut stream = std::pin::pin!(subscription.into_stream());
        let mut seen = Vec::new();
        while let Some(Some(event)) = stream.next().now_or_never() {
            let seq = i64::try_from(event.seq).unwrap();
            seen.push(if let Happening::Gap { .. } = event.what { -seq - 1 } else { seq });
        }
        seen
    }

    #[test]
    fn history_and_live_events_join_without_gap_or_repetition() {
        let log = EventLog::new(8);
        for n in 1..=3 {
            assert_eq!(log.publish(0.0, happening(n)), n);
        }
        let (from_now, from_one, from_zero) =
            (log.subscribe(None), log.subscribe(Some(1)), log.subscribe(Some(0)));
        log.publish(0.0, happening(4));
        assert_eq!(numbers(from_now), [4]);
        assert_eq!(numbers(from_one), [2, 3, 4]);
        assert_eq!(numbers(from_zero), [1, 2, 3, 4]);
        assert_eq!(numbers(log.subscribe(Some(4))), Vec::<i64>::new());
    }

    #[test]
    fn what_is_forgotten_or_was_never_said_is_announced() {
        let log = EventLog::new(3);
        assert_eq!(numbers(log.subscribe(Some(9))), [-1], "a number of a former life");
        for n in 1..=5 {
            log.publish(0.0, happening(n));
        }
        assert_eq!(numbers(log.subscribe(Some(2))), [3, 4, 5], "just remembered");
        assert_eq!(numbers(log.subscribe(Some(1))), [-3, 3, 4, 5], "2 is forgotten");
        assert_eq!(numbers(log.subscribe(Some(6))), [-3, 3, 4, 5], "6 was never given out");
    }

    #[test]
    fn a_slow_subscriber_is_let_go_instead_of_missing_events_silently() {
        let log = EventLog::new(2);
        let slow = log.subscribe(None);
        for n in 1..=9 {
            log.publish(0.0, happening(n));
        }
        let mut stream = std::pin::pin!(slow.into_stream());
        assert!(matches!(stream.next().now_or_never(), Some(None)), "the stream has ended");
    }
}
