//! Writes the records of a run with chosen durations and bytes, and keeps what was chosen: the tests compute the
//! report's figures from that list, by other means than the report does.

use crate::journal::record::{
    Bytes, CycleStep, EngineWork, Entry, HostSample, OperationKind, Outcome, Phase, Record, RunEngine,
    Sample, SimulatedRun,
};
use hotbunk_core::ids::OperationId;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;

pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000 * MS;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
/// Between any two phases: the agent's own time.
pub(super) const GAP: u64 = 2 * MS;
const EPOCH: f64 = 1_791_463_000.0;
const SAMPLE_EVERY: u64 = 100 * MS;

/// An engine and the bytes that it holds.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) name: &'static str,
    pub(super) weights: u64,
    pub(super) kv: u64,
    pub(super) residual: u64,
    pub(super) device: u64,
    pub(super) rss: u64,
    pub(super) pinned: bool,
}

pub(super) struct Journal {
    pub(super) entries: Vec<Entry>,
    pub(super) samples: Vec<Sample>,
    pub(super) host: Vec<HostSample>,
    /// By the path in the report: what was chosen, ns.
    pub(super) chosen: BTreeMap<String, Vec<u64>>,
    pub(super) steps: Vec<CycleStep>,
    pub(super) engines: Vec<Engine>,
    pub(super) now: u64,
    /// Without it the engines give no clock.
    pub(super) engine_clock: bool,
    /// Without it nothing is known of memory.
    pub(super) device_evidence: bool,
    operation: Option<OperationId>,
    operations: u64,
    pub(super) in_step: Vec<OperationId>,
    pub(super) next_step: u32,
    pub(super) work: Vec<EngineWork>,
    phase_index: u32,
}

impl Journal {
    /// Two engines with the reference's bytes, nothing planned yet.
    pub(super) fn new() -> Journal {
        let engine = |name, weights, residual| Engine {
            name,
            weights,
            kv: 4 * GIB,
            residual,
            device: 0,
            rss: 0,
            pinned: false,
        };
        let engines = vec![engine("A", 28 * GIB, 597 * MIB), engine("B", 33 * GIB / 10, 455 * MIB)];
        Journal {
            entries: Vec::new(),
            samples: Vec::new(),
            host: Vec::new(),
            chosen: BTreeMap::new(),
            steps: Vec::new(),
            engines,
            now: 1_000 * S,
            engine_clock: true,
            device_evidence: true,
            operation: None,
            operations: 0,
            in_step: Vec::new(),
            next_step: 0,
            work: Vec::new(),
            phase_index: 0,
        }
    }

    /// Both engines awake-able at level 1, as after the reference's first half.
    pub(super) fn with_sleepers() -> Journal {
        let mut journal = Journal::new();
        for engine in &mut journal.engines {
            engine.device = engine.residual;
            engine.rss = 2 * GIB + engine.weights;
            engine.pinned = true;
        }
        journal
    }

    /// The records, led by the start of the run (its steps are known only at the end).
    pub(super) fn finish(mut self, outcome: Option<Outcome>) -> Journal {
        if let Some(outcome) = outcome {
            self.record(Record::RunEnded { outcome });
        }
        let started = Record::RunStarted {
            plan: "reference".to_owned(),
            steps: self.steps.clone(),
            engines: self
                .engines
                .iter()
                .map(|e| RunEngine {
                    engine: e.name.to_owned(),
                    model: format!("model-{}", e.name),
                    context_tokens: Some(4096),
                    kv_bytes: None,
                })
                .collect(),
            runtime: "vLLM 0.31.0".to_owned(),
            gpu: "1 × NVIDIA L20".to_owned(),
            kv_gib: Some(4.0),
            simulated: Some(SimulatedRun {
                profile: "l20".to_owned(),
                speed: 1.0,
                host_scale: 1.0,
                start_speed: None,
            }),
            device_source: Some("simulated".to_owned()),
        };
        let at = 1_000 * S - 1;
        self.entries.insert(0, entry(0, at, None, started));
        self
    }

    pub(super) fn record(&mut self, record: Record) {
        let seq = self.entries.len() as u64 + 1;
        self.entries.push(entry(seq, self.now, self.operation, record));
    }

    pub(super) fn choose(&mut self, path: &str, ns: u64) {
        self.chosen.entry(path.to_owned()).or_default().push(ns);
    }

    /// Time passes; the sampler reads on its grid, and every 50th time it fails.
    pub(super) fn advance(&mut self, ns: u64) {
        let end = self.now + ns;
        let mut at = self.now.next_multiple_of(SAMPLE_EVERY);
        while at < end {
            let used: u64 = self.engines.iter().map(|e| e.device).sum();
            let failed = !self.device_evidence || (at / SAMPLE_EVERY) % 50 == 7;
            self.samples.push(Sample {
                at: Moment(at),
                wall: wall(at),
                device: "gpu0".to_owned(),
                used: (!failed).then_some(used),
                engines: Vec::new(),
            });
            if at.is_multiple_of(S) {
                let host = self.engines.iter().filter(|e| e.rss > 0).map(|e| HostSample {
                    at: Moment(at),
                    wall: wall(at),
                    engine: e.name.to_owned(),
                    rss: Some(e.rss),
                    pss: at.is_multiple_of(10 * S).then_some(e.rss - e.rss / 5),
                });
                self.host.extend(host);
            }
            at += SAMPLE_EVERY;
        }
        self.now = end;
    }

    fn engine(&mut self, name: &str) -> &mut Engine {
        self.engines.iter_mut().find(|e| e.name == name).expect("an engine of the run")
    }

    fn bytes(&mut self, name: &str) -> Bytes {
        let device: u64 = self.engines.iter().map(|e| e.device).sum();
        let evidence = self.device_evidence;
        let engine = self.engine(name);
        if evidence {
            Bytes { device: Some(device), engine: Some(engine.device), rss: Some(engine.rss) }
        } else {
            Bytes { device: None, engine: None, rss: Some(engine.rss) }
        }
    }

    pub(super) fn operation(
        &mut self,
        kind: OperationKind,
        engine: &str,
        from: Option<&str>,
        leave: Option<Tier>,
        body: impl FnOnce(&mut Journal) -> (Outcome, Option<u64>),
    ) {
        self.operations += 1;
        let id = OperationId(self.operations);
        self.operation = Some(id);
        self.in_step.push(id);
        self.phase_index = 0;
        self.work.clear();
        let accepted = Moment(self.now);
        self.record(Record::OperationAccepted {
            operation: kind,
            engine: engine.to_owned(),
            from: from.map(str::to_owned),
            strategy: from.map(|_| "sleep-first".to_owned()),
            order: from.map(|_| "break-before-make".to_owned()),
            leave,
            drain: Some("wait".to_owned()),
            by: "cycle".to_owned(),
            plan: Vec::new(),
        });
        let (outcome, first_token) = body(self);
        let work = self.engine_clock.then(|| std::mem::take(&mut self.work));
        self.record(Record::EngineWork { work });
        let ended = Moment(self.now);
        let first_token = first_token.map(Moment);
        self.record(Record::OperationEnded { outcome, accepted, first_token, ended });
        self.operation = None;
        self.advance(8 * MS);
    }

    pub(super) fn phase(&mut self, phase: Phase, name: &str, ns: u64, effect: impl FnOnce(&mut Engine)) {
        self.phase_ended(phase, name, ns, Outcome::Ok, effect);
    }

    pub(super) fn phase_ended(
        &mut self,
        phase: Phase,
        name: &str,
        ns: u64,
        outcome: Outcome,
        effect: impl FnOnce(&mut Engine),
    ) {
        let index = self.phase_index;
        self.phase_index += 1;
        let before = self.bytes(name);
        self.record(Record::StepBegan { index, phase, engine: name.to_owned() });
        let began = Moment(self.now);
        self.advance(ns);
        effect(self.engine(name));
        let (after, ended) = (self.bytes(name), Moment(self.now));
        self.record(Record::StepEnded {
            index,
            phase,
            engine: name.to_owned(),
            began,
            ended,
            outcome,
            before,
            after,
        });
        self.advance(GAP);
    }

    /// A phase of which the engine says that all but its first and last 0.5 ms were its own work.
    fn engine_phase(&mut self, phase: Phase, name: &str, ns: u64, effect: impl FnOnce(&mut Engine)) {
        let (began, ended) = (Moment(self.now + MS / 2), Moment(self.now + ns - MS / 2));
        self.work.push(EngineWork { engine: name.to_owned(), work: "call".to_owned(), began, ended });
        self.phase(phase, name, ns, effect);
    }

    pub(super) fn asleep(&mut self, name: &str, tier: Tier, ns: u64) -> u64 {
        let began = self.now;
        let call = |j: &mut Journal, phase| {
            j.engine_phase(phase, name, ns, |e| match tier {
                Tier::Parked => e.device = e.weights + e.residual,
                Tier::Level1 => {
                    e.device = e.residual;
                    e.rss += if e.pinned { 0 } else { e.weights };
                    e.pinned = true;
                }
                _ => e.device = e.residual,
            });
        };
        if tier == Tier::Parked {
            self.engine_phase(Phase::Pause, name, 3 * MS, |_| {});
            call(self, Phase::ReleaseKv);
        } else {
            call(self, Phase::Sleep);
        }
        self.phase(Phase::VerifyAsleep, name, MS, |_| {});
        let slept = self.now - GAP - began;
        self.phase(Phase::AwaitRelease, name, 4 * MS, |_| {});
        slept
    }

    pub(super) fn awake(&mut self, name: &str, tier: Tier, ns: u64) -> u64 {
        let began = self.now;
        let full = |e: &mut Engine| e.device = e.weights + e.kv + e.residual;
        match tier {
            Tier::Level2 => {
                self.engine_phase(Phase::WakeWeights, name, ns / 4, |e| e.device = e.weights + e.residual);
                self.engine_phase(Phase::Reload, name, ns / 2, |_| {});
                self.engine_phase(Phase::WakeKv, name, ns / 4, full);
                self.engine_phase(Phase::ResetPrefixCache, name, 2 * MS, |_| {});
            }
            Tier::Parked => self.engine_phase(Phase::WakeKv, name, ns, full),
            _ => self.engine_phase(Phase::Wake, name, ns, full),
        }
        let waked = self.now - GAP - began;
        self.phase(Phase::VerifyAwake, name, MS, |_| {});
        self.phase(Phase::AwaitResidence, name, MS, |_| {});
        waked
    }

    /// A request that shows the engine alive; the instant of its first token.
    pub(super) fn probe(&mut self, name: &str, purpose: &str, ns: u64, ok: bool) -> u64 {
        let began = Moment(self.now);
        let token = self.now + ns;
        let work = EngineWork {
            engine: name.to_owned(),
            work: "first_token".to_owned(),
            began,
            ended: Moment(token),
        };
        self.work.push(work);
        self.phase(Phase::Probe, name, ns, |_| {});
        let outcome = if ok {
            Outcome::Ok
        } else {
            Outcome::Failed { code: "probe_failed".to_owned(), message: "no token".to_owned() }
        };
        self.record(Record::Probe {
            engine: name.to_owned(),
            purpose: purpose.to_owned(),
            began,
            first_token: ok.then_some(Moment(token)),
            outcome,
        });
        token
    }
}

pub(super) fn wall(at: u64) -> f64 {
    EPOCH + at as f64 / 1e9
}

fn entry(seq: u64, at: u64, operation: Option<OperationId>, record: Record) -> Entry {
    Entry { seq, at: Moment(at), wall: wall(at), run: Some("run-1".to_owned()), operation, record }
}
