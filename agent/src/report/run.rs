//! The records of one run, put in order: planned steps, the operations that carried them out, and what belongs to
//! neither.
//!
//! Which operation belongs to which step: the ones that the step's end names; while a step has no end (a run that was
//! cut off), the ones that were accepted since it began. Operations of neither kind (the agent's own repairs, a
//! demotion in the background, putting the node back after a cancel) belong to no step: they show in the lists of
//! sleeps and handoffs and enter no figure of a planned step.
//!
//! The `auto` series begins with the first step marked so; from then on a plain sleep (it carries no mark), and what
//! belongs to no step, is counted to it.

use super::Error;
use crate::journal::record::{
    Bytes, CycleStep, EngineWork, Entry, OperationKind, Outcome, Phase, Record, RunEngine, SimulatedRun,
};
use hotbunk_core::ids::OperationId;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;

/// One run.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) plan: &'a str,
    pub(super) engines: &'a [RunEngine],
    pub(super) runtime: &'a str,
    pub(super) gpu: &'a str,
    pub(super) kv_gib: Option<f64>,
    pub(super) simulated: Option<&'a SimulatedRun>,
    pub(super) device_source: Option<&'a str>,
    pub(super) began: Moment,
    pub(super) began_wall: f64,
    /// End of the run: instant, wall clock, how.
    pub(super) ended: Option<(Moment, f64, &'a Outcome)>,
    /// When the first step of the `auto` series began.
    pub(super) auto_since: Option<Moment>,
    /// In the order of the plan.
    pub(super) steps: Vec<Step<'a>>,
    /// In the order of acceptance.
    pub(super) operations: Vec<Operation<'a>>,
    /// Probes outside any operation.
    pub(super) loose_probes: Vec<Probe<'a>>,
    /// Wall clock, by name.
    pub(super) windows: BTreeMap<&'a str, (f64, f64)>,
    /// Context length by engine, as the engine itself last said.
    pub(super) context_tokens: BTreeMap<&'a str, u32>,
}

/// One planned step and what became of it.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) index: u32,
    pub(super) plan: &'a CycleStep,
    pub(super) began: bool,
    pub(super) outcome: Option<&'a Outcome>,
    /// Indices into [`Run::operations`].
    pub(super) operations: Vec<usize>,
    pub(super) requests: Vec<Request>,
    pub(super) rounds: BTreeMap<u32, (Moment, Moment)>,
}

impl Step<'_> {
    pub(super) fn is_auto(&self) -> bool {
        matches!(self.plan, CycleStep::Activate { auto: true, .. } | CycleStep::Handoff { auto: true, .. })
    }

    pub(super) fn succeeded(&self) -> bool {
        self.outcome == Some(&Outcome::Ok)
    }
}

/// One request of a load round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) round: u32,
    pub(super) ok: bool,
    pub(super) began: Moment,
    pub(super) first_token: Option<Moment>,
    pub(super) ended: Moment,
    pub(super) output_tokens: Option<u32>,
    pub(super) prompt_tokens: Option<u32>,
}

/// One operation with its phases.
#[derive(Debug)]
pub(super) struct Operation<'a> {
    pub(super) id: OperationId,
    pub(super) kind: OperationKind,
    /// The incoming engine of a handoff.
    pub(super) engine: &'a str,
    pub(super) from: Option<&'a str>,
    pub(super) strategy: Option<&'a str>,
    pub(super) order: Option<&'a str>,
    pub(super) leave: Option<Tier>,
    pub(super) drain: Option<&'a str>,
    pub(super) accepted: Moment,
    pub(super) accepted_wall: f64,
    /// The planned step that it belongs to.
    pub(super) step: Option<u32>,
    pub(super) auto: bool,
    pub(super) phases: Vec<PhaseRun<'a>>,
    pub(super) probes: Vec<Probe<'a>>,
    pub(super) work: Work<'a>,
    pub(super) end: Option<OperationEnd<'a>>,
}

/// What is known of the engines' own work in an operation.
#[derive(Debug)]
pub(super) enum Work<'a> {
    /// Nothing was recorded.
    Unrecorded,
    /// An engine gives no clock, so the whole is unknown.
    NoClock,
    /// By the engines' clocks.
    Known(Vec<&'a EngineWork>),
}

impl<'a> Work<'a> {
    fn add(&mut self, work: Option<&'a [EngineWork]>) {
        match (&mut *self, work) {
            (Work::NoClock, _) => {}
            (_, None) => *self = Work::NoClock,
            (Work::Known(known), Some(work)) => known.extend(work),
            (Work::Unrecorded, Some(work)) => *self = Work::Known(work.iter().collect()),
        }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperationEnd<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) first_token: Option<Moment>,
    pub(super) ended: Moment,
}

impl Operation<'_> {
    pub(super) fn succeeded(&self) -> bool {
        self.end.is_some_and(|end| *end.outcome == Outcome::Ok)
    }

    /// First token of the incoming engine: the counted probe's, else what the operation's end says (a canary's).
    pub(super) fn first_token(&self) -> Option<Moment> {
        let probe = self.probes.iter().rev().find(|p| p.counted() && p.engine == self.engine && p.ok());
        probe.and_then(|p| p.first_token).or(self.end.and_then(|end| end.first_token))
    }
}

/// One phase of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct PhaseRun<'a> {
    pub(super) index: u32,
    pub(super) phase: Phase,
    pub(super) engine: &'a str,
    pub(super) began: Moment,
    /// End and how; `None` where the journal holds no end.
    pub(super) ended: Option<(Moment, &'a Outcome)>,
    pub(super) before: Bytes,
    pub(super) after: Bytes,
}

impl PhaseRun<'_> {
    /// End of the phase where it went as planned.
    pub(super) fn ok_end(&self) -> Option<Moment> {
        self.ended.filter(|(_, outcome)| **outcome == Outcome::Ok).map(|(at, _)| at)
    }
}

/// One request made to see an engine answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) engine: &'a str,
    pub(super) purpose: &'a str,
    pub(super) at: Moment,
    pub(super) first_token: Option<Moment>,
    pub(super) outcome: &'a Outcome,
}

impl Probe<'_> {
    /// Whether it is one of those that `requests.executed` counts.
    pub(super) fn counted(&self) -> bool {
        self.purpose == "probe"
    }

    pub(super) fn ok(&self) -> bool {
        *self.outcome == Outcome::Ok
    }
}

impl<'a> Run<'a> {
    /// Puts the records of one run in order.
    pub(super) fn read(entries: &'a [Entry]) -> Result<Run<'a>, Error> {
        let mut sorted: Vec<&Entry> = entries.iter().collect();
        sorted.sort_by_key(|e| e.seq);
        let mut run = Run::header(&sorted)?;
        let mut reader = Reader { current: None, named: BTreeMap::new(), by_id: BTreeMap::new() };
        for entry in sorted {
            reader.record(&mut run, entry)?;
        }
        reader.assign(&mut run);
        Ok(run)
    }

    fn header(sorted: &[&'a Entry]) -> Result<Run<'a>, Error> {
        let mut starts = sorted.iter().filter(|e| matches!(e.record, Record::RunStarted { .. }));
        let first = starts.next().ok_or(Error::NoRun { entries: sorted.len() })?;
        if let Some(second) = starts.next() {
            return Err(Error::SeveralRuns { first: first.seq, second: second.seq });
        }
        let Record::RunStarted { plan, steps, engines, runtime, gpu, kv_gib, simulated, device_source } =
            &first.record
        else {
            return Err(Error::NoRun { entries: sorted.len() });
        };
        let steps = (0u32..).zip(steps).map(|(index, plan)| Step {
            index,
            plan,
            began: false,
            outcome: None,
            operations: Vec::new(),
            requests: Vec::new(),
            rounds: BTreeMap::new(),
        });
        Ok(Run {
            id: first.run.as_deref(),
            plan,
            engines,
            runtime,
            gpu,
            kv_gib: *kv_gib,
            simulated: simulated.as_ref(),
            device_source: device_source.as_deref(),
            began: first.at,
            began_wall: first.wall,
            ended: None,
            auto_since: None,
            steps: steps.collect(),
            operations: Vec::new(),
            loose_probes: Vec::new(),
            windows: BTreeMap::new(),
            context_tokens: engines
                .iter()
                .filter_map(|e| e.context_tokens.map(|tokens| (e.engine.as_str(), tokens)))
                .collect(),
        })
    }

    /// By how much measured host bytes are multiplied to be those of the machine that was simulated.
    pub(super) fn host_scale(&self) -> f64 {
        self.simulated.map_or(1.0, |s| s.host_scale)
    }

    /// Whether an instant lies in the `auto` series.
    pub(super) fn in_auto(&self, at: Moment) -> bool {
        self.auto_since.is_some_and(|since| at >= since)
    }

    /// The operations of a step, in order.
    pub(super) fn operations_of<'r>(&'r self, step: &'r Step<'a>) -> impl Iterator<Item = &'r Operation<'a>> {
        step.operations.iter().filter_map(|i| self.operations.get(*i))
    }
}

/// What reading has to remember between records.
struct Reader {
    /// The step under way.
    current: Option<u32>,
    /// Operations that a step's end names.
    named: BTreeMap<OperationId, u32>,
    /// Index of an operation, and the step under way when it was accepted.
    by_id: BTreeMap<OperationId, (usize, Option<u32>)>,
}

impl Reader {
    fn record<'a>(&mut self, run: &mut Run<'a>, entry: &'a Entry) -> Result<(), Error> {
        match &entry.record {
            Record::CycleStepBegan { index } => {
                let step = step(run, entry, *index)?;
                step.began = true;
                if step.is_auto() && run.auto_since.is_none() {
                    run.auto_since = Some(entry.at);
                }
                self.current = Some(*index);
            }
            Record::CycleStepEnded { index, operations, outcome } => {
                let step = step(run, entry, *index)?;
                step.began = true;
                step.outcome = Some(outcome);
                self.named.extend(operations.iter().map(|id| (*id, *index)));
                self.current = None;
            }
            Record::LoadRequest {
                index,
                round,
                ok,
                began,
                first_token,
                ended,
                output_tokens,
                prompt_tokens,
                ..
            } => {
                step(run, entry, *index)?.requests.push(Request {
                    round: *round,
                    ok: *ok,
                    began: *began,
                    first_token: *first_token,
                    ended: *ended,
                    output_tokens: *output_tokens,
                    prompt_tokens: *prompt_tokens,
                });
            }
            Record::LoadRound { index, round, began, ended } => {
                step(run, entry, *index)?.rounds.insert(*round, (*began, *ended));
            }
            Record::Window { name, start, end } => {
                // A stage that was done in two parts has one window around both.
                let window = run.windows.entry(name).or_insert((*start, *end));
                *window = (window.0.min(*start), window.1.max(*end));
            }
            Record::Ready { engine, context_tokens: Some(tokens), .. } => {
                run.context_tokens.insert(engine, *tokens);
            }
            Record::RunEnded { outcome } => run.ended = Some((entry.at, entry.wall, outcome)),
            _ => self.operation_record(run, entry),
        }
        Ok(())
    }

    fn operation_record<'a>(&mut self, run: &mut Run<'a>, entry: &'a Entry) {
        if let (
            Record::OperationAccepted { operation, engine, from, strategy, order, leave, drain, .. },
            Some(id),
        ) = (&entry.record, entry.operation)
        {
            self.by_id.insert(id, (run.operations.len(), self.current));
            run.operations.push(Operation {
                id,
                kind: *operation,
                engine,
                from: from.as_deref(),
                strategy: strategy.as_deref(),
                order: order.as_deref(),
                leave: *leave,
                drain: drain.as_deref(),
                accepted: entry.at,
                accepted_wall: entry.wall,
                step: None,
                auto: run.in_auto(entry.at),
                phases: Vec::new(),
                probes: Vec::new(),
                work: Work::Unrecorded,
                end: None,
            });
            return;
        }
        let known = entry.operation.and_then(|id| self.by_id.get(&id)).map(|(i, _)| *i);
        let operation = known.and_then(|i| run.operations.get_mut(i));
        match (&entry.record, operation) {
            (Record::Probe { engine, purpose, began, first_token, outcome }, operation) => {
                let probe = Probe { engine, purpose, at: *began, first_token: *first_token, outcome };
                operation.map_or(&mut run.loose_probes, |o| &mut o.probes).push(probe);
            }
            (Record::StepBegan { index, phase, engine }, Some(operation)) => {
                operation.phases.push(PhaseRun {
                    index: *index,
                    phase: *phase,
                    engine,
                    began: entry.at,
                    ended: None,
                    before: Bytes::default(),
                    after: Bytes::default(),
                })
            }
            (
                Record::StepEnded { index, phase, engine, began, ended, outcome, before, after },
                Some(operation),
            ) => {
                let whole = PhaseRun {
                    index: *index,
                    phase: *phase,
                    engine,
                    began: *began,
                    ended: Some((*ended, outcome)),
                    before: *before,
                    after: *after,
                };
                match operation.phases.iter_mut().find(|p| p.index == *index && p.ended.is_none()) {
                    Some(begun) => *begun = whole,
                    None => operation.phases.push(whole),
                }
            }
            (Record::EngineWork { work }, Some(operation)) => operation.work.add(work.as_deref()),
            (Record::OperationEnded { outcome, accepted, first_token, ended }, Some(operation)) => {
                operation.accepted = *accepted;
                operation.end = Some(OperationEnd { outcome, first_token: *first_token, ended: *ended });
            }
            _ => {}
        }
    }

    /// Gives every operation its step.
    fn assign(&self, run: &mut Run<'_>) {
        for (id, (index, under_way)) in &self.by_id {
            let unended = under_way.filter(|i| {
                usize::try_from(*i).ok().and_then(|i| run.steps.get(i)).is_some_and(|s| s.outcome.is_none())
            });
            let step = self.named.get(id).copied().or(unended);
            let Some(operation) = run.operations.get_mut(*index) else { continue };
            operation.step = step;
            if let Some(step) = step.and_then(|i| usize::try_from(i).ok()).and_then(|i| run.steps.get_mut(i))
            {
                // A plain sleep carries no mark: it keeps the series that it was accepted in.
                if !matches!(step.plan, CycleStep::Sleep { .. }) {
                    operation.auto = step.is_auto();
                }
                step.operations.push(*index);
            }
        }
        for step in &mut run.steps {
            step.operations.sort_unstable();
        }
    }
}

fn step<'r, 'a>(run: &'r mut Run<'a>, entry: &Entry, index: u32) -> Result<&'r mut Step<'a>, Error> {
    let planned = run.steps.len();
    usize::try_from(index).ok().and_then(|i| run.steps.get_mut(i)).ok_or(Error::UnknownStep {
        seq: entry.seq,
        step: index,
        planned,
    })
}
