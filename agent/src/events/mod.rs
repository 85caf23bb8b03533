//! One event, three traces that cannot disagree: a row in the journal, a change of the metrics, a line in the log; and
//! the same to whoever listens to the event stream.
//!
//! An event *is* a journal record (an [`Incident`] becomes one), and metrics, log line and stream are all computed from
//! that very record, by [`Recorder::record`]:
//!
//! ```text
//!   events ──► records ──► journal, one transaction, awaited
//!                 │
//!                 ├──► metrics        (observe.rs)
//!                 ├──► log line       (text.rs)
//!                 └──► event stream   (Published: the JSON that `GET /events` sends)
//! ```
//!
//! Where the journal fails, the other three still happen, the failure is said once, and the caller gets the error: a
//! step whose record is not durable must not act.

mod incident;
mod observe;
mod text;

#[cfg(test)]
mod tests;

pub use incident::Incident;
pub use text::{Sentence, level};

use crate::clock;
use crate::journal::record::{Entry, HostSample, Record, Sample};
use crate::journal::{self, Error, Journal, NewRecord, Row};
use crate::metrics::Metrics;
use hotbunk_core::ids::OperationId;
use hotbunk_core::time::Moment;
use observe::Tracker;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;
use tracing::Level;

/// Events that a slow listener may be behind before it loses some (it learns how many).
const STREAM: usize = 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Something planned or measured.
    Fact(Record),
    /// Something that nobody asked for.
    Incident(Incident),
}

impl From<Record> for Event {
    fn from(record: Record) -> Self {
        Event::Fact(record)
    }
}

impl From<Incident> for Event {
    fn from(incident: Incident) -> Self {
        Event::Incident(incident)
    }
}

impl From<Event> for Record {
    fn from(event: Event) -> Self {
        match event {
            Event::Fact(record) => record,
            Event::Incident(incident) => Record::from(&incident),
        }
    }
}

/// What events belong to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    /// The cycle run.
    pub run: Option<String>,
    /// The operation.
    pub operation: Option<OperationId>,
}

impl Context {
    /// Neither a run nor an operation.
    pub fn none() -> Self {
        Context::default()
    }

    /// An operation.
    pub fn operation(operation: OperationId) -> Self {
        Context { run: None, operation: Some(operation) }
    }

    /// The same within a run.
    #[must_use]
    pub fn in_run(mut self, run: impl Into<String>) -> Self {
        self.run = Some(run.into());
        self
    }
}

/// An event as the stream sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// Its position in the journal, the stream's event id; `None` where the journal failed.
    pub seq: Option<u64>,
    /// [`Record::kind`], the stream's event name.
    pub kind: &'static str,
    /// `{"seq", "at", "wall", "run", "operation", "kind", "engine", "level", "message", "record"}`: `at` in monotonic
    /// nanoseconds, `wall` in epoch seconds, `level` and `message` as in the log, `record` as in the journal.
    pub json: String,
}

/// The head of an event's JSON; the record follows as the journal has it.
#[derive(Serialize)]
struct Head<'a> {
    seq: Option<u64>,
    at: Moment,
    wall: f64,
    run: Option<&'a str>,
    operation: Option<OperationId>,
    kind: &'static str,
    engine: Option<&'a str>,
    level: &'static str,
    message: String,
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

impl Published {
    fn new(seq: Option<u64>, new: &NewRecord, body: &str) -> Option<Published> {
        let kind = new.record.kind();
        let head = Head {
            seq,
            at: new.at,
            wall: new.wall,
            run: new.run.as_deref(),
            operation: new.operation,
            kind,
            engine: new.record.engine(),
            level: level_word(level(&new.record)),
            message: Sentence(&new.record).to_string(),
        };
        let mut json = serde_json::to_string(&head).ok()?;
        json.pop();
        json.push_str(",\"record\":");
        json.push_str(body);
        json.push('}');
        Some(Published { seq, kind, json })
    }

    /// The same from the journal, for a listener that comes late or back. `None` where it cannot be encoded.
    pub fn from_entry(entry: &Entry) -> Option<Published> {
        let body = serde_json::to_string(&entry.record).ok()?;
        let Entry { at, wall, run, operation, record, seq } = entry.clone();
        Published::new(Some(seq), &NewRecord { at, wall, run, operation, record }, &body)
    }
}

/// Records events. Clones are the same recorder.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    journal: Journal,
    metrics: Metrics,
    stream: broadcast::Sender<Arc<Published>>,
    tracker: Mutex<Tracker>,
    journal_fails: AtomicBool,
    /// Held from the commit to the last listener, so that the stream has the journal's order and a listener may go on
    /// from the last `seq` it has seen.
    order: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("journal", &self.shared.journal).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder to these two.
    pub fn new(journal: Journal, metrics: Metrics) -> Self {
        let stream = broadcast::Sender::new(STREAM);
        let shared = Shared {
            journal,
            metrics,
            stream,
            tracker: Mutex::new(Tracker::default()),
            journal_fails: AtomicBool::new(false),
            order: tokio::sync::Mutex::new(()),
        };
        Recorder { shared: Arc::new(shared) }
    }

    /// Records events that happened together, in one transaction, and answers with the position of the last once they
    /// are durable. Let it run to its end: dropped before, it may leave the journal without log line and metrics.
    pub async fn record(&self, context: &Context, events: Vec<Event>) -> Result<u64, Error> {
        let (at, wall) = (clock::now(), journal::wall_seconds());
        let rows = events
            .into_iter()
            .map(|event| NewRecord {
                at,
                wall,
                run: context.run.clone(),
                operation: context.operation,
                record: event.into(),
            })
            .map(Row::encode)
            .collect::<Result<Arc<[Row]>, Error>>()
            .inspect_err(|error| {
                tracing::error!(error = error as &dyn std::error::Error, "an event is lost")
            })?;
        if rows.is_empty() {
            return self.shared.journal.commit(Vec::new()).await;
        }
        let _order = self.shared.order.lock().await;
        let answer = self.shared.journal.commit_rows(Arc::clone(&rows)).await;
        self.shared.metrics.journal_commit(clock::now().since(at));
        self.say_journal(&answer);
        let first = answer.as_ref().ok().map(|last| last + 1 - rows.len() as u64);
        self.tell(&rows, first);
        answer
    }

    /// The same for one event.
    pub async fn record_one(&self, context: &Context, event: impl Into<Event>) -> Result<u64, Error> {
        self.record(context, vec![event.into()]).await
    }

    /// Hands device samples to the journal and the metrics.
    pub fn samples(&self, samples: Vec<Sample>) {
        let tracker = self.tracker();
        for sample in &samples {
            tracker.sample(sample, &self.shared.metrics);
        }
        drop(tracker);
        self.shared.journal.samples(samples);
        self.count_dropped();
    }

    /// Hands host samples to the journal and the metrics.
    pub fn host_samples(&self, samples: Vec<HostSample>) {
        for sample in &samples {
            self.shared.metrics.engine_host_bytes(&sample.engine, sample.rss);
        }
        self.shared.journal.host_samples(samples);
        self.count_dropped();
    }

    /// Everything recorded from now on. A listener that is too slow learns how much it has lost, and reads it from the
    /// journal by `seq`.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Published>> {
        self.shared.stream.subscribe()
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.shared.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_dropped(&self) {
        self.shared.metrics.journal_dropped_samples(self.shared.journal.stats().dropped_samples);
    }

    /// Metrics, log and stream of rows; `first` is the position of the first, where they have one.
    fn tell(&self, rows: &[Row], first: Option<u64>) {
        let mut tracker = self.tracker();
        for (row, index) in rows.iter().zip(0u64..) {
            tracker.observe(&row.new, &self.shared.metrics);
            log(&row.new);
            if self.shared.stream.receiver_count() > 0
                && let Some(published) = Published::new(first.map(|first| first + index), &row.new, &row.body)
            {
                // The last listener may have gone in between.
                let _ = self.shared.stream.send(Arc::new(published));
            }
        }
    }

    /// Says a failure of the journal once, and its end.
    fn say_journal(&self, answer: &Result<u64, Error>) {
        let failed_before = self.shared.journal_fails.swap(answer.is_err(), Ordering::Relaxed);
        match answer {
            Err(error) if !failed_before => {
                let incident = Incident::JournalFailed { reason: error.to_string() };
                if let Ok(row) = Row::encode(NewRecord::new(None, None, Record::from(&incident))) {
                    self.tell(&[row], None);
                }
            }
            Ok(_) if failed_before => tracing::info!("the journal can be written again"),
            _ => {}
        }
    }
}

/// The log line of a record.
fn log(new: &NewRecord) {
    let NewRecord { record, run, operation, .. } = new;
    let (kind, engine, run, sentence) = (record.kind(), record.engine(), run.as_deref(), Sentence(record));
    let operation = operation.map(|operation| operation.0);
    let code = match record {
        Record::Incident { code, .. } => Some(code.as_str()),
        _ => None,
    };
    // A level must be known when the program is built, hence one call for each.
    macro_rules! say {
        ($level:ident) => {
            tracing::$level!(kind, engine, operation, run, code, "{sentence}")
        };
    }
    match level(record) {
        Level::ERROR => say!(error),
        Level::WARN => say!(warn),
        Level::INFO => say!(info),
        _ => say!(debug),
    }
}
