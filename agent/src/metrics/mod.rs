//! What Prometheus scrapes.
//!
//! A [`Metrics`] is an object with a recorder of its own: there is no global one, so that many agents can live in one
//! test process. Only this module touches the `metrics` crate (`clippy.toml` bans its macros); everybody else calls a
//! method whose arguments are the labels, so that no series has a free name or an unbounded label. Most of them are
//! called by [`crate::events`] alone, from the very record that goes into the journal.
//!
//! What is not known is absent. Prometheus' client has no way to take a gauge back, so an unknown value is kept as NaN
//! and left out when the page is rendered.

mod gateway;
mod name;
mod page;
mod serve;
#[cfg(test)]
mod tests;

pub use name::{Kind, Name};
pub use serve::{Error, serve, upkeep};

use crate::journal::record::{OperationKind, Outcome, Phase};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder as _, SharedString};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds in seconds: five a decade, from a millisecond to ten minutes.
const SECONDS: [f64; 30] = [
    0.001, 0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025, 0.04, 0.063, 0.1, 0.16, 0.25, 0.4, 0.63, 1.0,
    1.6, 2.5, 4.0, 6.3, 10.0, 16.0, 25.0, 40.0, 63.0, 100.0, 160.0, 250.0, 400.0, 600.0,
];
/// The same for commits, which should take a fraction of a millisecond.
const COMMIT_SECONDS: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

static METADATA: Metadata<'static> = Metadata::new("hotbunk", Level::INFO, None);

/// Who hands over to whom, and how: the labels that a handoff's series share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffLabels<'a> {
    /// Outgoing engine; `None` for an activation.
    pub from: Option<&'a str>,
    /// Incoming engine.
    pub to: &'a str,
    /// The strategy asked for.
    pub strategy: Option<&'a str>,
}

impl HandoffLabels<'_> {
    fn labels(self) -> Vec<Label> {
        // Whoever asks over the control API chooses this word; a label must not be theirs.
        let strategy = match self.strategy {
            Some("sleep-first") => "sleep-first",
            Some("wake-first") => "wake-first",
            Some("park") => "park",
            Some("auto") => "auto",
            Some(_) => "other",
            None => "none",
        };
        vec![
            Label::new("from", self.from.unwrap_or_default().to_owned()),
            Label::new("to", self.to.to_owned()),
            Label::from_static_parts("strategy", strategy),
        ]
    }
}

/// The agent's metrics; clones are the same metrics.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// When each device was last read.
    readings: Mutex<BTreeMap<String, Moment>>,
    sources: Mutex<Vec<Source>>,
    /// Engines that are no more.
    hidden: Mutex<Vec<String>>,
}

/// Brings series up to date that are only looked at when somebody scrapes.
type Source = Box<dyn Fn(&Metrics) + Send>;

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

fn engine_label(engine: &str) -> Label {
    Label::new("engine", engine.to_owned())
}

fn device_label(device: &str) -> Label {
    Label::new("device", device.to_owned())
}

/// Bytes and counts are far below the 2⁵³ that a gauge holds exactly.
fn value(number: Option<u64>) -> f64 {
    number.map_or(f64::NAN, |number| number as f64)
}

impl Metrics {
    /// Metrics without any series yet, but for the build's and the journal's.
    pub fn new() -> Self {
        let commit = Matcher::Full(Name::JournalCommit.as_str().to_owned());
        // The only error is an empty list of buckets; without buckets the exporter would fall back to summaries.
        let builder = PrometheusBuilder::new();
        let builder = builder.set_buckets(&SECONDS).unwrap_or_else(|_| PrometheusBuilder::new());
        let builder = builder
            .set_buckets_for_metric(commit, &COMMIT_SECONDS)
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        for name in Name::ALL {
            let (key, unit, help) =
                (name.as_str().into(), Some(name.unit()), SharedString::from(name.help()));
            match name.kind() {
                Kind::Counter if name.is_fractional() => recorder.describe_gauge(key, unit, help),
                Kind::Counter => recorder.describe_counter(key, unit, help),
                Kind::Gauge => recorder.describe_gauge(key, unit, help),
                Kind::Histogram => recorder.describe_histogram(key, unit, help),
            }
        }
        let handle = recorder.handle();
        let (readings, sources, hidden) = (Mutex::default(), Mutex::default(), Mutex::default());
        let metrics = Metrics { inner: Arc::new(Inner { recorder, handle, readings, sources, hidden }) };
        let version = Label::from_static_parts("version", env!("CARGO_PKG_VERSION"));
        metrics.gauge(Name::BuildInfo, vec![version]).set(1.0);
        metrics.journal_dropped_samples(0);
        metrics.journal_lost(0);
        metrics.journal_failing(false);
        metrics
    }

    fn counter(&self, name: Name, labels: Vec<Label>) -> Counter {
        self.inner.recorder.register_counter(&Key::from_parts(name.as_str(), labels), &METADATA)
    }

    fn gauge(&self, name: Name, labels: Vec<Label>) -> Gauge {
        self.inner.recorder.register_gauge(&Key::from_parts(name.as_str(), labels), &METADATA)
    }

    fn histogram(&self, name: Name, labels: Vec<Label>) -> Histogram {
        self.inner.recorder.register_histogram(&Key::from_parts(name.as_str(), labels), &METADATA)
    }

    /// Shows an engine's series from the beginning, so that a rate over its first event is not lost.
    pub fn engine(&self, engine: &str) {
        self.counter(Name::EngineRestarts, vec![engine_label(engine)]).increment(0);
        self.counter(Name::CanaryMismatches, vec![engine_label(engine)]).increment(0);
        self.up(engine, false);
        self.tier(engine, Some(Tier::Stopped));
        self.generation(engine, 0);
    }

    /// Leaves out all series of these engines, and of no others: they are not configured any more.
    pub fn hide(&self, engines: Vec<String>) {
        *self.inner.hidden.lock().unwrap_or_else(PoisonError::into_inner) = engines;
    }

    /// Whether the engine's process is there and ready.
    pub fn up(&self, engine: &str, is_up: bool) {
        self.gauge(Name::Up, vec![engine_label(engine)]).set(f64::from(u8::from(is_up)));
    }

    /// The engine's tier, as last verified; `None` while it is not known.
    pub fn tier(&self, engine: &str, tier: Option<Tier>) {
        for each in Tier::ALL {
            let labels = vec![engine_label(engine), Label::from_static_parts("tier", each.as_str())];
            self.gauge(Name::EngineTier, labels).set(f64::from(u8::from(tier == Some(each))));
        }
    }

    /// The engine's generation.
    pub fn generation(&self, engine: &str, generation: u64) {
        self.gauge(Name::EngineGeneration, vec![engine_label(engine)]).set(value(Some(generation)));
    }

    /// Requests in the engine; `None` while unknown.
    pub fn in_flight(&self, engine: &str, requests: Option<u64>) {
        self.gauge(Name::EngineInFlight, vec![engine_label(engine)]).set(value(requests));
    }

    /// Device bytes of the engine at a tier; `None` while unknown.
    pub fn engine_device_bytes(&self, engine: &str, tier: Tier, bytes: Option<u64>) {
        let labels = vec![engine_label(engine), Label::from_static_parts("tier", tier.as_str())];
        self.gauge(Name::EngineDeviceBytes, labels).set(value(bytes));
    }

    /// Device bytes that the sleeping engine keeps; `None` while unknown.
    pub fn engine_residual_bytes(&self, engine: &str, bytes: Option<u64>) {
        self.gauge(Name::EngineResidualBytes, vec![engine_label(engine)]).set(value(bytes));
    }

    /// Resident host bytes of the engine's tree; `None` while unknown.
    pub fn engine_host_bytes(&self, engine: &str, bytes: Option<u64>) {
        self.gauge(Name::EngineHostBytes, vec![engine_label(engine)]).set(value(bytes));
    }

    /// One more process started for the engine.
    pub fn restarted(&self, engine: &str) {
        self.counter(Name::EngineRestarts, vec![engine_label(engine)]).increment(1);
    }

    /// The engine's tokens were wrong after a wake.
    pub fn canary_mismatch(&self, engine: &str) {
        self.counter(Name::CanaryMismatches, vec![engine_label(engine)]).increment(1);
    }

    /// An operation ended.
    pub fn operation_ended(&self, operation: OperationKind, outcome: &Outcome) {
        let labels = vec![
            Label::from_static_parts("operation", operation.as_str()),
            Label::from_static_parts("outcome", outcome.as_str()),
        ];
        self.counter(Name::Operations, labels).increment(1);
    }

    /// Something happened that nobody asked for.
    pub fn incident(&self, code: &'static str, engine: Option<&str>) {
        let labels = vec![Label::from_static_parts("code", code), engine_label(engine.unwrap_or_default())];
        self.counter(Name::Incidents, labels).increment(1);
    }

    /// A handoff reached its first token.
    pub fn handoff(&self, labels: HandoffLabels<'_>, took: Duration) {
        self.histogram(Name::Handoff, labels.labels()).record(took.as_secs_f64());
    }

    /// How much of it was the agent's own.
    pub fn handoff_overhead(&self, labels: HandoffLabels<'_>, took: Duration) {
        self.histogram(Name::HandoffOverhead, labels.labels()).record(took.as_secs_f64());
    }

    /// A phase of a handoff ended.
    pub fn handoff_phase(&self, labels: HandoffLabels<'_>, phase: Phase, took: Duration) {
        let mut labels = labels.labels();
        labels.insert(0, Label::from_static_parts("phase", phase.as_str()));
        self.histogram(Name::HandoffPhase, labels).record(took.as_secs_f64());
    }

    /// The device's capacity.
    pub fn device_total(&self, device: &str, bytes: u64) {
        self.counter(Name::SamplesMissed, vec![device_label(device)]).increment(0);
        self.gauge(Name::DeviceTotalBytes, vec![device_label(device)]).set(value(Some(bytes)));
    }

    /// The device was read at `at`; `None` where that failed.
    pub fn device_used(&self, device: &str, at: Moment, bytes: Option<u64>) {
        self.gauge(Name::DeviceUsedBytes, vec![device_label(device)]).set(value(bytes));
        let missed = self.counter(Name::SamplesMissed, vec![device_label(device)]);
        missed.increment(u64::from(bytes.is_none()));
        if bytes.is_some() {
            let mut readings = self.inner.readings.lock().unwrap_or_else(PoisonError::into_inner);
            match readings.get_mut(device) {
                Some(last) => *last = at,
                None => {
                    readings.insert(device.to_owned(), at);
                }
            }
        }
    }

    /// Events waited so long for the journal.
    pub fn journal_commit(&self, took: Duration) {
        self.histogram(Name::JournalCommit, Vec::new()).record(took.as_secs_f64());
    }

    /// Samples dropped by the journal since it was opened.
    pub fn journal_dropped_samples(&self, total: u64) {
        self.counter(Name::JournalDroppedSamples, Vec::new()).absolute(total);
    }

    /// Whether the journal can be written.
    pub fn journal_failing(&self, is_failing: bool) {
        self.gauge(Name::JournalFailing, Vec::new()).set(f64::from(u8::from(is_failing)));
    }

    /// So many more events are not in the journal.
    pub fn journal_lost(&self, events: u64) {
        self.counter(Name::JournalLostEvents, Vec::new()).increment(events);
    }

    /// Has this done before each scrape. It must not hold on to these metrics.
    pub fn before_scrape(&self, source: impl Fn(&Metrics) + Send + 'static) {
        self.inner.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }

    /// The page at `now`, in Prometheus' text format, in a stable order.
    pub fn render(&self, now: Moment) -> String {
        for source in &*self.inner.sources.lock().unwrap_or_else(PoisonError::into_inner) {
            source(self);
        }
        let readings = self.inner.readings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (device, at) in &readings {
            let age = now.since(*at).as_secs_f64();
            self.gauge(Name::DeviceReadingAge, vec![device_label(device)]).set(age);
        }
        let hidden = self.inner.hidden.lock().unwrap_or_else(PoisonError::into_inner).clone();
        page::tidy(&self.inner.handle.render(), &hidden)
    }
}
