//! The two lanes into the writer: commits, which somebody waits for, and samples, which may wait or be dropped.

use super::record::{HostSample, Sample};
use super::{Error, Keep, NewRecord};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Samples of one transaction: few enough that a commit which arrives meanwhile waits well under a millisecond.
const SAMPLE_BATCH: usize = 64;

/// A record with its body encoded, on the caller's thread rather than on the writer's.
pub(crate) struct Row {
    pub(crate) new: NewRecord,
    /// The record as JSON.
    pub(crate) body: String,
}

impl Row {
    pub(crate) fn encode(new: NewRecord) -> Result<Row, Error> {
        let body = serde_json::to_string(&new.record)
            .map_err(|source| Error::Encode { kind: new.record.kind(), source: Arc::new(source) })?;
        Ok(Row { new, body })
    }
}

/// Rows that stand or fall together, and who waits for them.
pub(super) struct Commit {
    pub(super) rows: Arc<[Row]>,
    /// What is kept beside them, in the same transaction.
    pub(super) keep: Vec<Keep>,
    pub(super) done: oneshot::Sender<Result<u64, Error>>,
}

/// A sample of either table.
pub(super) enum Sampled {
    Device(Sample),
    Host(HostSample),
}

/// What the writer should do next.
pub(super) enum Work {
    /// Write these, in this order, in one transaction.
    Commits(Vec<Commit>),
    /// Write these in one transaction.
    Samples(Vec<Sampled>),
    /// Every sample handed over before these asked has been taken.
    Flushed(Vec<oneshot::Sender<()>>),
    /// Nothing has come until the deadline.
    Rest,
    /// Closed and empty.
    Closed,
}

#[derive(Default)]
struct State {
    commits: VecDeque<Commit>,
    samples: VecDeque<Sampled>,
    oldest_sample: Option<Instant>,
    flushes: Vec<oneshot::Sender<()>>,
    closed: bool,
}

/// Both lanes. Commits are bounded by their callers (a semaphore they can await), samples here.
pub(super) struct Lanes {
    state: Mutex<State>,
    wake: Condvar,
    dropped: AtomicU64,
    /// What went wrong with the last write; `None` where it went well.
    failing: Mutex<Option<Error>>,
    sample_lane: usize,
    sample_delay: Duration,
}

impl Lanes {
    pub(super) fn new(sample_lane: usize, sample_delay: Duration) -> Self {
        Lanes {
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
            dropped: AtomicU64::new(0),
            failing: Mutex::new(None),
            sample_lane,
            sample_delay,
        }
    }

    /// How the last write went.
    pub(super) fn wrote(&self, failure: Option<&Error>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failure.cloned();
    }

    /// What went wrong with the last write; `None` where it went well, or where nothing has been written yet.
    pub(super) fn failing(&self) -> Option<Error> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a commit over; false where the journal is closed.
    pub(super) fn commit(&self, commit: Commit) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.commits.push_back(commit);
        drop(state);
        self.wake.notify_one();
        true
    }

    /// Hands samples over. What does not fit is dropped: the newest, because the writer is behind on the oldest.
    pub(super) fn samples(&self, samples: impl Iterator<Item = Sampled>) {
        let mut state = self.state();
        let was_empty = state.samples.is_empty();
        let mut dropped = 0;
        for sample in samples {
            if state.closed || state.samples.len() >= self.sample_lane {
                dropped += 1;
            } else {
                state.samples.push_back(sample);
            }
        }
        if was_empty && !state.samples.is_empty() {
            state.oldest_sample = Some(Instant::now());
        }
        // The writer must learn of the first sample (it sets the deadline) and of a full batch, not of each.
        let should_wake = (was_empty && !state.samples.is_empty()) || state.samples.len() >= SAMPLE_BATCH;
        drop(state);
        self.count_dropped(dropped);
        if should_wake {
            self.wake.notify_one();
        }
    }

    /// Asks for an answer once all samples so far are written; false where the journal is closed.
    pub(super) fn flush(&self, done: oneshot::Sender<()>) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.flushes.push(done);
        drop(state);
        self.wake.notify_one();
        true
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.wake.notify_one();
    }

    /// After the writer's end: nobody will be answered any more, so nobody may wait.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.closed = true;
        state.commits.clear();
        state.flushes.clear();
        let lost = state.samples.len();
        state.samples.clear();
        drop(state);
        self.count_dropped(lost as u64);
    }

    pub(super) fn count_dropped(&self, samples: u64) {
        if samples > 0 {
            self.dropped.fetch_add(samples, Ordering::Relaxed);
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether something waits that somebody is waiting for: long work at rest asks this between its parts.
    pub(super) fn is_urgent(&self) -> bool {
        let state = self.state();
        state.closed || !state.commits.is_empty() || !state.flushes.is_empty()
    }

    /// Waits for work, commits first, until `rest_at` at the latest.
    pub(super) fn next(&self, rest_at: Instant) -> Work {
        let mut state = self.state();
        loop {
            if !state.commits.is_empty() {
                return Work::Commits(state.commits.drain(..).collect());
            }
            let now = Instant::now();
            let due = state.oldest_sample.map(|oldest| oldest + self.sample_delay);
            let must = state.closed || !state.flushes.is_empty() || state.samples.len() >= SAMPLE_BATCH;
            if !state.samples.is_empty() && (must || due.is_some_and(|due| due <= now)) {
                let count = state.samples.len().min(SAMPLE_BATCH);
                let batch = state.samples.drain(..count).collect();
                // What is left is younger than it is taken to be; it is written a little early.
                if state.samples.is_empty() {
                    state.oldest_sample = None;
                }
                return Work::Samples(batch);
            }
            if !state.flushes.is_empty() {
                return Work::Flushed(std::mem::take(&mut state.flushes));
            }
            if state.closed {
                return Work::Closed;
            }
            if rest_at <= now {
                return Work::Rest;
            }
            let until = due.map_or(rest_at, |due| due.min(rest_at));
            let (next, _) = self
                .wake
                .wait_timeout(state, until.saturating_duration_since(now))
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotbunk_core::time::Moment;

    fn sample(n: u64) -> Sampled {
        Sampled::Host(HostSample { at: Moment(n), wall: 0.0, engine: "A".into(), rss: None, pss: None })
    }

    fn commit() -> (Commit, oneshot::Receiver<Result<u64, Error>>) {
        let (done, answer) = oneshot::channel();
        (Commit { rows: Arc::new([]), keep: Vec::new(), done }, answer)
    }

    fn count(work: &Work) -> (&'static str, usize) {
        match work {
            Work::Commits(commits) => ("commits", commits.len()),
            Work::Samples(samples) => ("samples", samples.len()),
            Work::Flushed(waiting) => ("flushed", waiting.len()),
            Work::Rest => ("rest", 0),
            Work::Closed => ("closed", 0),
        }
    }

    #[test]
    fn commits_overtake_samples_and_a_flush_waits_for_both() {
        let lanes = Lanes::new(1000, Duration::from_secs(3600));
        lanes.samples((0..SAMPLE_BATCH as u64 + 10).map(sample));
        let (done, _flushed) = oneshot::channel();
        assert!(lanes.flush(done));
        let (first, _one) = commit();
        let (second, _two) = commit();
        assert!(lanes.commit(first) && lanes.commit(second));
        let now = Instant::now();
        let order: Vec<_> = (0..5).map(|_| count(&lanes.next(now))).collect();
        assert_eq!(
            order,
            [("commits", 2), ("samples", SAMPLE_BATCH), ("samples", 10), ("flushed", 1), ("rest", 0)]
        );
    }

    #[test]
    fn samples_wait_for_company_but_not_for_ever() {
        let lanes = Lanes::new(1000, Duration::from_millis(20));
        lanes.samples([sample(1)].into_iter());
        // Far away: only the samples' own deadline can end the wait.
        let work = lanes.next(Instant::now() + Duration::from_secs(600));
        assert_eq!(count(&work), ("samples", 1));
    }

    #[test]
    fn a_closed_lane_is_emptied_first_and_takes_nothing_more() {
        let lanes = Lanes::new(1000, Duration::from_secs(3600));
        lanes.samples([sample(1)].into_iter());
        let (last, _answer) = commit();
        assert!(lanes.commit(last));
        lanes.close();
        let (late, _late) = commit();
        assert!(!lanes.commit(late));
        lanes.samples([sample(2)].into_iter());
        let far = Instant::now() + Duration::from_secs(600);
        let order: Vec<_> = (0..3).map(|_| count(&lanes.next(far))).collect();
        assert_eq!(order, [("commits", 1), ("samples", 1), ("closed", 0)]);
        assert_eq!(lanes.dropped(), 1);
    }

    #[test]
    fn whoever_waits_when_the_writer_ends_is_told() {
        let lanes = Lanes::new(1000, Duration::from_secs(3600));
        let (waiting, mut answer) = commit();
        assert!(lanes.commit(waiting));
        lanes.samples([sample(1)].into_iter());
        lanes.abandon();
        assert!(matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert_eq!(lanes.dropped(), 1);
    }
}
