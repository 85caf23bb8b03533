//! One run as the report's parts see it: planned steps, the operations that carried them out with their phases and
//! probes, and what belongs to neither. [`super::read`] makes it from journal records.

use crate::journal::record::{
    Bytes, CycleStep, EngineWork, OperationKind, Outcome, Phase, RunEngine, SimulatedRun,
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
    /// vLLM's release by engine, as the engine itself last said.
    pub(super) versions: BTreeMap<&'a str, &'a str>,
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
    pub(super) fn add(&mut self, work: Option<&'a [EngineWork]>) {
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
