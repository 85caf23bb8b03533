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
//! Serving does not depend on it: the agent goes on without a journal, and loudly so ([`Recorder::trouble`] is what
//! status and metrics show). Once it can be written again, it says itself how much it lacks.

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

/// The journal cannot be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    /// Why, a sentence.
    pub reason: String,
    /// Since when, epoch seconds.
    pub since: f64,
    /// Events that it lacks by now: they stand in the log alone.
    pub lost: u64,
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
    trouble: Mutex<Option<Trouble>>,
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
            trouble: Mutex::new(None),
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
        match &answer {
            Ok(_) => self.restored().await,
            Err(error) => self.fails(error, rows.len()),
        }
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

    /// What is wrong with the journal.
    pub fn trouble(&self) -> Option<Trouble> {
        self.lock_trouble().clone()
    }

    /// Looks whether the journal can be written, by what became of its last write: samples are written all the time.
    /// Its trouble, if it is in any.
    pub async fn check_journal(&self) -> Option<Trouble> {
        match self.shared.journal.failing() {
            Some(error) => self.fails(&error, 0),
            None if self.trouble().is_some() => {
                let _order = self.shared.order.lock().await;
                self.restored().await;
            }
            None => {}
        }
        self.trouble()
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says a failure of the journal once, and counts what it lacks.
    fn fails(&self, error: &Error, lost: usize) {
        let lost = u64::try_from(lost).unwrap_or(u64::MAX);
        self.shared.metrics.journal_lost(lost);
        {
            let mut trouble = self.lock_trouble();
            if let Some(trouble) = trouble.as_mut() {
                trouble.lost = trouble.lost.saturating_add(lost);
                return;
            }
            *trouble = Some(Trouble { reason: error.to_string(), since: journal::wall_seconds(), lost });
        }
        self.shared.metrics.journal_failing(true);
        let incident = Incident::JournalFailed { reason: error.to_string() };
        if let Ok(row) = Row::encode(NewRecord::new(None, None, Record::from(&incident))) {
            self.tell(&[row]);
        }
    }

    /// A write went well: if there was trouble, it is over once that stands in the journal. With the order held.
    async fn restored(&self) {
        let Some(Trouble { lost, .. }) = self.trouble() else { return };
        let incident = Incident::JournalRestored { lost };
        let Ok(row) = Row::encode(NewRecord::new(None, None, Record::from(&incident))) else { return };
        let rows: Arc<[Row]> = Arc::from([row]);
        if self.shared.journal.commit_rows(Arc::clone(&rows), Vec::new()).await.is_ok() {
            *self.lock_trouble() = None;
            self.shared.metrics.journal_failing(false);
            self.tell(&rows);
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
