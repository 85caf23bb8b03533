//! Puts the records of one run in order.
//!
//! Which operation belongs to which step: the ones that the step's end names; while a step has no end (a run that was
//! cut off), the ones that were accepted since it began. Operations of neither kind (the agent's own repairs, a
//! demotion in the background, putting the node back after a cancel) belong to no step: they show in the lists of
//! sleeps and handoffs and enter no figure of a planned step.
//!
//! The `auto` series begins with the first step marked so; from then on a plain sleep (it carries no mark), and what
//! belongs to no step, is counted to it.

use super::Error;
use super::run::{Operation, OperationEnd, PhaseRun, Probe, Request, Run, Step, Work};
use crate::journal::record::{AGENT_ENDED, Bytes, CycleStep, Entry, Outcome, Record};
use hotbunk_core::ids::OperationId;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;

impl<'a> Run<'a> {
    /// Puts the records of one run in order.
    pub(super) fn read(entries: &'a [Entry]) -> Result<Run<'a>, Error> {
        let mut sorted: Vec<&Entry> = entries.iter().collect();
        sorted.sort_by_key(|e| e.seq);
        let mut run = Run::header(&sorted)?;
        let (named, by_id) = (BTreeMap::new(), BTreeMap::new());
        let mut reader = Reader { current: None, last: run.began, named, by_id };
        for entry in sorted {
            reader.record(&mut run, entry)?;
            reader.last = entry.at;
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
            versions: BTreeMap::new(),
            context_tokens: engines
                .iter()
                .filter_map(|e| e.context_tokens.map(|tokens| (e.engine.as_str(), tokens)))
                .collect(),
        })
    }
}

/// What reading has to remember between records.
struct Reader {
    /// The step under way.
    current: Option<u32>,
    /// The instant of the record before.
    last: Moment,
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
            Record::Ready { engine, version, context_tokens } => {
                run.versions.insert(engine, version);
                if let Some(tokens) = context_tokens {
                    run.context_tokens.insert(engine, *tokens);
                }
            }
            Record::RunEnded { outcome } => {
                // Of one whose agent was killed it is known when that was found, perhaps in a later boot, by another clock.
                let found = matches!(outcome, Outcome::Failed { code, .. } if code == AGENT_ENDED);
                run.ended = Some((if found { self.last } else { entry.at }, entry.wall, outcome));
            }
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
