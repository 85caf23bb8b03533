//! One event, three traces that cannot disagree: a row in the journal, a change of the metrics, a line in the log; and
//! of an incident the same to whoever follows the control API's event stream.
//!
//! An event *is* a journal record (an [`Incident`] becomes one), and metrics, log line and stream are all computed from
//! that very record, by [`Recorder::record`]:
//!
//! ```text
//!   events ──► records ──► journal, one transaction, awaited
//!                 │
//!                 ├──► metrics        (observe.rs)
//!                 ├──► log line       (text.rs)
//!                 └──► event stream   (incidents; what else it carries are resources, published by their owners)
//! ```
//!
//! Where the journal fails, the other three still happen, the failure is said once, and the caller gets the error.
//! Serving does not depend on it: the agent goes on without a journal, and loudly so.

mod incident;
mod observe;
mod text;

#[cfg(test)]
mod tests;

pub use incident::{Incident, codes};
pub use text::{Sentence, level};

use crate::clock;
use crate::control::EventLog;
use crate::journal::record::{HostSample, Record, Sample};
use crate::journal::{self, Error, Journal, Keep, NewRecord, Row};
use crate::metrics::Metrics;
use hotbunk_api::event::Happening;
use hotbunk_core::ids::OperationId;
use observe::Tracker;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::Level;

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

/// Records events. Clones are the same recorder.
#[derive(Clone)]
pub struct Recorder {
    shared: Arc<Shared>,
}

struct Shared {
    journal: Journal,
    metrics: Metrics,
    events: Arc<EventLog>,
    tracker: Mutex<Tracker>,
    journal_fails: AtomicBool,
    /// Held from the commit to the last listener, so that log and stream have the journal's order.
    order: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("journal", &self.shared.journal).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder to these.
    pub fn new(journal: Journal, metrics: Metrics, events: Arc<EventLog>) -> Self {
        let shared = Shared {
            journal,
            metrics,
            events,
            tracker: Mutex::new(Tracker::default()),
            journal_fails: AtomicBool::new(false),
            order: tokio::sync::Mutex::new(()),
        };
        Recorder { shared: Arc::new(shared) }
    }

    /// Records events that happened together, in one transaction, and answers with the position of the last once they
    /// are durable. Let it run to its end: dropped before, it may leave the journal without log line and metrics.
    pub async fn record(&self, context: &Context, events: Vec<Event>) -> Result<u64, Error> {
        self.record_step(vec![(context.clone(), events)], Vec::new()).await
    }

    /// The same for everything that one step of the core said, whatever it belongs to, with what is to be kept of the
    /// state that the step has led to: a later agent finds both or neither.
    pub async fn record_step(
        &self,
        batches: Vec<(Context, Vec<Event>)>,
        keep: Vec<Keep>,
    ) -> Result<u64, Error> {
        let (at, wall) = (clock::now(), journal::wall_seconds());
        let rows = batches
            .into_iter()
            .flat_map(|(context, events)| {
                events.into_iter().map(move |event| NewRecord {
                    at,
                    wall,
                    run: context.run.clone(),
                    operation: context.operation,
                    record: event.into(),
                })
            })
            .map(Row::encode)
            .collect::<Result<Arc<[Row]>, Error>>()
            .inspect_err(|error| {
                tracing::error!(error = error as &dyn std::error::Error, "an event is lost")
            })?;
        if rows.is_empty() && keep.is_empty() {
            return self.shared.journal.commit(Vec::new()).await;
        }
        let _order = self.shared.order.lock().await;
        let answer = self.shared.journal.commit_rows(Arc::clone(&rows), keep).await;
        self.shared.metrics.journal_commit(clock::now().since(at));
        self.say_journal(&answer);
        self.tell(&rows);
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
        let tracker = self.tracker();
        for sample in &samples {
            tracker.host_sample(sample, &self.shared.metrics);
        }
        drop(tracker);
        self.shared.journal.host_samples(samples);
        self.count_dropped();
    }

    /// The journal.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// What the control API's event stream sends.
    pub fn events(&self) -> &Arc<EventLog> {
        &self.shared.events
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.shared.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_dropped(&self) {
        self.shared.metrics.journal_dropped_samples(self.shared.journal.stats().dropped_samples);
    }

    /// Metrics, log and stream of rows.
    fn tell(&self, rows: &[Row]) {
        let mut tracker = self.tracker();
        for row in rows {
            tracker.observe(&row.new, &self.shared.metrics);
            log(&row.new);
            if let Record::Incident { code, engine, device, message } = &row.new.record {
                let what = Happening::Incident {
                    code: code.clone(),
                    engine: engine.clone(),
                    device: device.clone(),
                    message: message.clone(),
                };
                self.shared.events.publish(row.new.wall, what);
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
                    self.tell(&[row]);
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
