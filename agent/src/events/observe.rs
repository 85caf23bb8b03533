//! From records to metrics.
//!
//! A record of a step names neither the direction nor the strategy of its operation, and a sample not the tier of an
//! engine, so a [`Tracker`] remembers what the records before it have said.

use super::incident;
use crate::journal::NewRecord;
use crate::journal::record::{HostSample, OperationKind, Outcome, Phase, Record, Sample};
use crate::metrics::{HandoffLabels, Metrics};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// Operations remembered at once; the oldest make room. One runs at a time, so this is never reached but by operations
/// whose end was never recorded.
const REMEMBERED: usize = 64;

/// What the records so far have said.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    operations: BTreeMap<u64, Operation>,
    engines: HashMap<String, Engine>,
    spawned: HashSet<String>,
}

#[derive(Debug, Default)]
struct Engine {
    /// Where it rests, verified, and since when; `None` while it moves or is adrift: its bytes then are of no tier.
    rests_in: Option<(Tier, Moment)>,
    /// Whether it has (or may have) a process.
    process: bool,
    fingerprint: Option<String>,
}

#[derive(Debug)]
struct Operation {
    kind: OperationKind,
    from: Option<String>,
    to: String,
    strategy: Option<String>,
    drains: Vec<(Moment, Moment)>,
    /// The engines' own work: not said yet, not known, or known.
    work: Option<Option<Vec<(Moment, Moment)>>>,
    /// Acceptance and first token of a success.
    succeeded: Option<(Moment, Moment)>,
}

impl Operation {
    /// The labels, where the operation hands a device over.
    fn labels(&self) -> Option<HandoffLabels<'_>> {
        matches!(self.kind, OperationKind::Handoff | OperationKind::Activation).then(|| HandoffLabels {
            from: self.from.as_deref(),
            to: &self.to,
            strategy: self.strategy.as_deref(),
        })
    }
}

impl Tracker {
    /// Updates `metrics` by what `new` says.
    pub(super) fn observe(&mut self, new: &NewRecord, metrics: &Metrics) {
        match &new.record {
            Record::Configured { engine, fingerprint } => self.configured(engine, fingerprint, metrics),
            Record::Spawned { engine, .. } => {
                self.engine(engine).process = true;
                if self.spawned.insert(engine.clone()) {
                    metrics.engine(engine);
                } else {
                    metrics.restarted(engine);
                }
            }
            Record::Adopted { engine, state, generation, .. } => {
                // It is no restart: this agent has not seen it start.
                self.spawned.insert(engine.clone());
                self.engine(engine).process = true;
                metrics.engine(engine);
                self.transition(engine, state, new.at, metrics);
                metrics.up(engine, true);
                metrics.generation(engine, *generation);
            }
            Record::Ready { engine, .. } => metrics.up(engine, true),
            Record::Transition { engine, to, generation, .. } => {
                self.transition(engine, to, new.at, metrics);
                metrics.generation(engine, *generation);
            }
            Record::Footprint { engine, tier, device_bytes, host_bytes, .. } => {
                metrics.engine_device_bytes(engine, *tier, *device_bytes);
                if matches!(tier, Tier::Level1 | Tier::Level2) {
                    metrics.engine_residual_bytes(engine, *device_bytes);
                }
                if host_bytes.is_some() && self.engine(engine).process {
                    metrics.engine_host_bytes(engine, *host_bytes);
                }
            }
            Record::Incident { code, engine, .. } => {
                let known = incident::codes().find(|known| known == code);
                metrics.incident(known.unwrap_or("other"), engine.as_deref());
                if let Some(engine) = engine {
                    match code.as_str() {
                        "canary_mismatch" => metrics.canary_mismatch(engine),
                        "crashed" => metrics.up(engine, false),
                        _ => {}
                    }
                }
            }
            record => {
                if let Some(operation) = new.operation {
                    self.operation(operation.0, record, metrics);
                }
            }
        }
    }

    fn engine(&mut self, engine: &str) -> &mut Engine {
        self.engines.entry(engine.to_owned()).or_default()
    }

    fn configured(&mut self, engine: &str, fingerprint: &str, metrics: &Metrics) {
        let before = self.engine(engine).fingerprint.replace(fingerprint.to_owned());
        if before.is_some_and(|before| before != fingerprint) {
            // What was measured with other settings says nothing about these.
            for tier in Tier::ALL {
                metrics.engine_device_bytes(engine, tier, None);
            }
            metrics.engine_residual_bytes(engine, None);
        }
    }

    /// `to` is a tier's word or a condition's: `moving`, `adrift`, `backoff`, `no_room`, `failed`.
    fn transition(&mut self, engine: &str, to: &str, at: Moment, metrics: &Metrics) {
        let rests_in = match to {
            "backoff" | "no_room" | "port_taken" | "failed" => Some(Tier::Stopped),
            tier => tier.parse::<Tier>().ok(),
        };
        let known = self.engine(engine);
        known.rests_in = rests_in.map(|tier| (tier, at));
        match rests_in {
            // Its process, where it has one, stays what it was: up once it was ready, and until it ends.
            None => {
                metrics.in_flight(engine, None);
                // While it moves, the tier that it was last verified in stands.
                if to != "moving" {
                    metrics.tier(engine, None);
                }
            }
            Some(tier) => {
                known.process = tier.has_process();
                metrics.up(engine, tier.has_process());
                metrics.tier(engine, Some(tier));
                if !tier.has_process() {
                    metrics.engine_host_bytes(engine, None);
                    metrics.in_flight(engine, None);
                }
            }
        }
    }

    fn operation(&mut self, id: u64, record: &Record, metrics: &Metrics) {
        if let Record::OperationAccepted { operation: kind, engine, from, strategy, .. } = record {
            let accepted = Operation {
                kind: *kind,
                from: from.clone(),
                to: engine.clone(),
                strategy: strategy.clone(),
                drains: Vec::new(),
                work: None,
                succeeded: None,
            };
            self.operations.insert(id, accepted);
            while self.operations.len() > REMEMBERED {
                self.operations.pop_first();
            }
            return;
        }
        let Some(operation) = self.operations.get_mut(&id) else { return };
        match record {
            Record::StepEnded { phase, began, ended, .. } => {
                if let Some(labels) = operation.labels() {
                    metrics.handoff_phase(labels, *phase, ended.since(*began));
                }
                if *phase == Phase::Drain {
                    operation.drains.push((*began, *ended));
                }
            }
            Record::EngineWork { work } => {
                let intervals = |work: &Vec<crate::journal::record::EngineWork>| {
                    work.iter().map(|w| (w.began, w.ended)).collect()
                };
                operation.work = Some(work.as_ref().map(intervals));
                Self::overhead(operation, metrics);
            }
            Record::OperationEnded { outcome, accepted, first_token, .. } => {
                metrics.operation_ended(operation.kind, outcome);
                if let (Outcome::Ok, Some(first_token), Some(labels)) =
                    (outcome, first_token, operation.labels())
                {
                    let took = uncovered(*accepted, *first_token, operation.drains.clone());
                    metrics.handoff(labels, took);
                    operation.succeeded = Some((*accepted, *first_token));
                    Self::overhead(operation, metrics);
                }
            }
            _ => {}
        }
    }

    /// Once both the end and the engines' work are known, whichever came last.
    fn overhead(operation: &mut Operation, metrics: &Metrics) {
        let (Some((accepted, first_token)), Some(Some(work))) = (operation.succeeded, &operation.work) else {
            return;
        };
        let mut busy = work.clone();
        busy.extend(&operation.drains);
        if let Some(labels) = operation.labels() {
            metrics.handoff_overhead(labels, uncovered(accepted, first_token, busy));
        }
        // Said once.
        operation.work = None;
    }

    /// Updates `metrics` by a device sample.
    pub(super) fn sample(&self, sample: &Sample, metrics: &Metrics) {
        metrics.device_used(&sample.device, sample.at, sample.used);
        for (engine, bytes) in &sample.engines {
            let rests_in = self.engines.get(engine).and_then(|engine| engine.rests_in);
            // Rows come in batches: one that was read before the engine came to rest is of another tier. And a footprint
            // that was measured is not taken back because the driver cannot tell processes apart.
            if let (Some((tier, since)), Some(_)) = (rests_in, bytes)
                && tier.has_process()
                && sample.at >= since
            {
                metrics.engine_device_bytes(engine, tier, *bytes);
            }
        }
    }

    /// Updates `metrics` by a sample of an engine's tree. One that was under way when the process ended says nothing.
    pub(super) fn host_sample(&self, sample: &HostSample, metrics: &Metrics) {
        if self.engines.get(&sample.engine).is_some_and(|engine| engine.process) {
            metrics.engine_host_bytes(&sample.engine, sample.rss);
        }
    }
}

/// How much of `from..to` no interval covers.
fn uncovered(from: Moment, to: Moment, mut intervals: Vec<(Moment, Moment)>) -> Duration {
    intervals.sort_unstable();
    let mut free = Duration::ZERO;
    let mut reached = from;
    for (began, ended) in intervals {
        free += began.min(to).since(reached);
        reached = reached.max(ended.min(to));
    }
    free + to.since(reached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_covered() {
        let at = |n: u64| Moment(n);
        let of = |intervals: &[(u64, u64)]| {
            let intervals = intervals.iter().map(|(a, b)| (at(*a), at(*b))).collect();
            uncovered(at(10), at(20), intervals).as_nanos()
        };
        assert_eq!(of(&[]), 10);
        assert_eq!(of(&[(0, 30)]), 0);
        assert_eq!(of(&[(12, 14), (13, 15), (18, 99)]), 5);
        assert_eq!(of(&[(0, 5), (25, 30)]), 10);
        assert_eq!(of(&[(15, 16), (0, 11)]), 8);
    }

    proptest! {
        #[test]
        fn as_counted_one_by_one(
            from in 0..40u64, length in 0..40u64, intervals in prop::collection::vec((0..80u64, 0..20u64), 0..6),
        ) {
            let to = from + length;
            let covered = |n: u64| intervals.iter().any(|(began, length)| (*began..began + length).contains(&n));
            let expected = (from..to).filter(|n| !covered(*n)).count() as u128;
            let moments = intervals.iter().map(|(a, l)| (Moment(*a), Moment(a + l))).collect();
            prop_assert_eq!(uncovered(Moment(from), Moment(to), moments).as_nanos(), expected);
        }
    }
}
