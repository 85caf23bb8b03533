//! The handoffs: each as a waterfall, all of them by direction, and what they cost beyond the engines' own work.
//!
//! ```text
//!  accepted                                                    first token        ended
//!     ├── drain ──┼─ sleep ─┼─ verify ─┼─ wake ─┼─ verify ─┼─ probe ─┤ · · · · · · · ·┤
//!     └ not counted ┘└─────────────── to_first_token_s ────────────────┘
//!                     └ engine ┘          └engine┘            └engine┘     engine_s: union, by the engines' clocks
//!                              └─overhead─┘      └─overhead───┘            overhead_s: the rest
//! ```
//!
//! Engine work that falls into the drain (running requests finish) is not on the path and is counted in neither.

use super::models::{count, durations, wake_interval};
use super::run::{Operation, PhaseRun, Run, Work};
use super::sleeps::{GIB, Sleep, outcome_word};
use crate::journal::record::{Bytes, CycleStep, OperationKind, Outcome, Phase};
use hotbunk_api::report::{Direction, Handoff, HandoffPlan, MemoryBytes, PhaseBar, Switch};
use hotbunk_core::stats::union_of_intervals;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;
use std::time::Duration;

/// One handoff's times.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    to_first_token: Option<Duration>,
    drain: Option<Duration>,
    engine: Option<Duration>,
    overhead: Option<Duration>,
    sleep: Option<Duration>,
    wake: Option<Duration>,
}

impl Times {
    fn of(operation: &Operation<'_>, sleep: Option<&Sleep<'_>>) -> Times {
        let wake = wake_interval(operation, operation.engine).map(|(began, ended)| ended.since(began));
        let times = Times { sleep: sleep.and_then(|s| s.duration), wake, ..Times::default() };
        let Some(first_token) = operation.first_token() else { return times };
        let path = (operation.accepted, first_token);
        let mut intervals: Vec<(Moment, Moment)> = operation
            .phases
            .iter()
            .filter(|p| p.phase == Phase::Drain)
            .filter_map(|p| Some((p.began, p.ended?.0)))
            .collect();
        let drain = union_of_intervals(&intervals, path.0, path.1);
        let to_first_token = first_token.since(operation.accepted).saturating_sub(drain);
        let engine = match &operation.work {
            Work::Known(work) => {
                intervals.extend(work.iter().map(|w| (w.began, w.ended)));
                // Drain and work together, less the drain: the work outside the drain.
                Some(union_of_intervals(&intervals, path.0, path.1).saturating_sub(drain))
            }
            Work::Unrecorded | Work::NoClock => None,
        };
        Times {
            to_first_token: Some(to_first_token),
            drain: Some(drain),
            engine,
            overhead: engine.map(|engine| to_first_token.saturating_sub(engine)),
            ..times
        }
    }
}

/// One series of handoffs (the run's own, or the `auto` one): each handoff, and the figures of all.
pub(super) fn series(run: &Run<'_>, sleeps: &[Sleep<'_>], auto: bool) -> (Switch, Vec<Handoff>) {
    let mut handoffs = Vec::new();
    let mut directions: BTreeMap<String, Vec<Times>> = BTreeMap::new();
    let mut begun = 0;
    let mut good = Vec::new();
    for (index, operation) in run.operations.iter().enumerate() {
        if operation.kind != OperationKind::Handoff || operation.auto != auto {
            continue;
        }
        let from = operation.from.unwrap_or("?");
        let sleep = sleeps.iter().find(|s| s.operation == index);
        let times = Times::of(operation, sleep);
        handoffs.push(waterfall(operation, from, sleep, times));
        // The figures are those of planned handoffs: one that the agent made on its own account has no step.
        if operation.step.is_none() {
            continue;
        }
        begun += 1;
        let direction = directions.entry(format!("{from}→{}", operation.engine)).or_default();
        if operation.succeeded() {
            direction.push(times);
            good.push(times);
        }
    }
    let planned = |wanted: fn(&CycleStep) -> bool| {
        run.steps.iter().filter(move |s| s.is_auto() == auto && wanted(s.plan))
    };
    let activated = planned(|s| matches!(s, CycleStep::Activate { .. })).filter(|s| s.succeeded()).count();
    let switch = Switch {
        initial_activation: count(activated),
        handoffs: begun,
        success: count(good.len()),
        directions: directions.into_iter().map(|(name, times)| (name, direction(&times))).collect(),
        planned: Some(count(planned(|s| matches!(s, CycleStep::Handoff { .. })).count())),
        overhead_s: stat(&good, |t| t.overhead),
    };
    (switch, handoffs)
}

fn direction(times: &[Times]) -> Direction {
    Direction {
        n: count(times.len()),
        to_first_token_s: stat(times, |t| t.to_first_token),
        sleep_s: stat(times, |t| t.sleep),
        wake_s: stat(times, |t| t.wake),
        overhead_s: stat(times, |t| t.overhead),
        engine_s: stat(times, |t| t.engine),
        drain_s: stat(times, |t| t.drain),
    }
}

fn stat(times: &[Times], of: fn(&Times) -> Option<Duration>) -> Option<hotbunk_api::report::Stat> {
    durations(&times.iter().filter_map(of).collect::<Vec<_>>())
}

fn waterfall(operation: &Operation<'_>, from: &str, sleep: Option<&Sleep<'_>>, times: Times) -> Handoff {
    let seconds = |d: Option<Duration>| d.map(|d| d.as_nanos() as f64 / 1e9);
    let outcome = operation.end.map(|end| end.outcome);
    let (error_code, error) = match outcome {
        Some(Outcome::Failed { code, message } | Outcome::RolledBack { code, message }) => {
            (Some(code.clone()), Some(message.clone()))
        }
        _ => (None, None),
    };
    let mut phases: Vec<&PhaseRun<'_>> = operation.phases.iter().collect();
    phases.sort_by_key(|p| (p.began, p.index));
    Handoff {
        operation: operation.id.0,
        step: operation.step,
        from: from.to_owned(),
        to: operation.engine.to_owned(),
        strategy: operation.strategy.map(str::to_owned),
        plan: HandoffPlan {
            order: operation.order.map(str::to_owned),
            leave: operation.leave.map(|t| t.as_str().to_owned()),
        },
        drain: operation.drain.map(str::to_owned),
        outcome: outcome_word(outcome).to_owned(),
        error_code,
        error,
        accepted: operation.accepted_wall,
        to_first_token_s: seconds(times.to_first_token),
        drain_s: seconds(times.drain),
        sleep_s: seconds(times.sleep),
        wake_s: seconds(times.wake),
        total_s: seconds(operation.end.map(|end| end.ended.since(operation.accepted))),
        engine_s: seconds(times.engine),
        overhead_s: seconds(times.overhead),
        level_requested: operation.leave.map(|t: Tier| t.as_str().to_owned()),
        level_observed: sleep.and_then(|s| s.observed).map(|t| t.as_str().to_owned()),
        phases: phases.into_iter().map(|p| bar(p, operation.accepted)).collect(),
    }
}

fn bar(phase: &PhaseRun<'_>, accepted: Moment) -> PhaseBar {
    let duration = phase.ended.map(|(ended, _)| ended.since(phase.began));
    let moved = phase.before.device.zip(phase.after.device).map(|(before, after)| before.abs_diff(after));
    let rate = moved.zip(duration).filter(|(moved, duration)| *moved > 0 && !duration.is_zero());
    PhaseBar {
        phase: phase_word(phase.phase),
        engine: phase.engine.to_owned(),
        start_s: phase.began.since(accepted).as_nanos() as f64 / 1e9,
        duration_s: duration.map(|d| d.as_nanos() as f64 / 1e9),
        outcome: outcome_word(phase.ended.map(|(_, outcome)| outcome)).to_owned(),
        before: memory(phase.before),
        after: memory(phase.after),
        gib_per_s: rate.map(|(moved, duration)| moved as f64 / GIB / (duration.as_nanos() as f64 / 1e9)),
    }
}

fn memory(bytes: Bytes) -> MemoryBytes {
    MemoryBytes { device: bytes.device, process: bytes.engine, rss: bytes.rss }
}

/// The phase's word, as the journal and the metrics have it.
fn phase_word(phase: Phase) -> String {
    match serde_json::to_value(phase) {
        Ok(serde_json::Value::String(word)) => word,
        _ => format!("{phase:?}"),
    }
}
