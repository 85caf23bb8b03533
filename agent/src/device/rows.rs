//! The samples' rows, in batches for the journal.

use crate::clock;
use crate::journal::record::Sample;
use hotbunk_core::time::Moment;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// As many rows make a batch full before its time is up.
const FULL_BATCH: usize = 256;

/// Rows that wait for a batch, and who gets it.
pub(super) struct Rows {
    subscribers: Vec<mpsc::Sender<Vec<Sample>>>,
    waiting: Vec<Sample>,
    due: Option<Instant>,
    /// How long a row waits for others.
    patience: Duration,
}

impl Rows {
    pub(super) fn new(patience: Duration) -> Self {
        Rows { subscribers: Vec::new(), waiting: Vec::new(), due: None, patience }
    }

    pub(super) fn subscribe(&mut self, subscriber: mpsc::Sender<Vec<Sample>>) {
        self.subscribers.push(subscriber);
    }

    /// When [`Rows::flush`] is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Adds a row of a device; `used: None` is a missed sample.
    pub(super) fn push(
        &mut self,
        device: &str,
        at: Moment,
        used: Option<u64>,
        engines: Vec<(String, Option<u64>)>,
    ) {
        if self.subscribers.is_empty() {
            return;
        }
        let age = clock::now().since(at).as_secs_f64();
        let wall = clock::wall().as_nanosecond() as f64 / 1e9 - age;
        self.waiting.push(Sample { at, wall, device: device.to_owned(), used, engines });
        if self.waiting.len() >= FULL_BATCH {
            self.flush();
        } else if self.due.is_none() {
            self.due = Some(Instant::now() + self.patience);
        }
    }

    /// Hands over what is waiting.
    pub(super) fn flush(&mut self) {
        self.due = None;
        if self.waiting.is_empty() {
            return;
        }
        let rows = std::mem::take(&mut self.waiting);
        self.subscribers.retain(|subscriber| match subscriber.try_send(rows.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(rows)) => {
                tracing::warn!(rows = rows.len(), "device samples are lost: their reader does not keep up");
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
    }
}
