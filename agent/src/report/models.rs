//! Each engine's figures: restarts, sleep cycles, load.

use super::run::{Operation, Run, Step};
use super::sleeps::{Sleep, gib};
use crate::journal::record::{CycleStep, Phase};
use hotbunk_api::report::{ModelReport, Performance, RestartReady, SleepReport, Stat};
use hotbunk_core::stats;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Every engine of the run by name.
pub(super) fn models(run: &Run<'_>, sleeps: &[Sleep<'_>]) -> BTreeMap<String, ModelReport> {
    run.engines.iter().map(|e| (e.engine.clone(), model(run, sleeps, &e.engine, &e.model))).collect()
}

fn model(run: &Run<'_>, sleeps: &[Sleep<'_>], engine: &str, name: &str) -> ModelReport {
    let initial = Restarts::of(run, engine, true);
    let warm = Restarts::of(run, engine, false);
    let ready = RestartReady { initial: durations(&initial.ready), warm: durations(&warm.ready) };
    ModelReport {
        name: name.to_owned(),
        restart_initial: durations(&initial.first_token),
        restart_warm: durations(&warm.first_token),
        sleep: sleep_reports(run, sleeps, engine),
        performance: run.steps.iter().filter_map(|step| performance(step, engine)).collect(),
        restart_ready: Some(ready),
        context_tokens: run.context_tokens.get(engine).copied(),
    }
}

/// Successful starts of one engine: how long from the spawn.
#[derive(Default)]
struct Restarts {
    first_token: Vec<Duration>,
    ready: Vec<Duration>,
}

impl Restarts {
    fn of(run: &Run<'_>, engine: &str, wanted_initial: bool) -> Restarts {
        let mut restarts = Restarts::default();
        for step in run.steps.iter().filter(|s| s.succeeded()) {
            let CycleStep::Start { engine: of, initial } = step.plan else { continue };
            if of != engine || *initial != wanted_initial {
                continue;
            }
            for operation in run.operations_of(step).filter(|o| o.succeeded()) {
                let Some(began) = began_last(operation, engine, Phase::Spawn) else { continue };
                let ready =
                    operation.phases.iter().rev().find(|p| p.phase == Phase::Ready && p.engine == engine);
                restarts.ready.extend(ready.and_then(|p| p.ok_end()).map(|at| at.since(began)));
                restarts.first_token.extend(operation.first_token().map(|at| at.since(began)));
            }
        }
        restarts
    }
}

/// Begin of the last phase of its kind: the spawn that led to the process which answered.
fn began_last(operation: &Operation<'_>, engine: &str, phase: Phase) -> Option<Moment> {
    operation.phases.iter().rev().find(|p| p.phase == phase && p.engine == engine).map(|p| p.began)
}

/// From the first wake call of `engine` to the end of the last one; a start: from spawn to ready.
pub(super) fn wake_interval(operation: &Operation<'_>, engine: &str) -> Option<(Moment, Moment)> {
    let wakes = |phase: Phase| {
        matches!(
            phase,
            Phase::Wake
                | Phase::WakeWeights
                | Phase::Reload
                | Phase::WakeKv
                | Phase::ResetPrefixCache
                | Phase::Resume
                | Phase::Spawn
                | Phase::Ready
        )
    };
    let calls = || operation.phases.iter().filter(|p| p.engine == engine && wakes(p.phase));
    let began = calls().map(|p| p.began).min()?;
    let ended = calls().filter_map(|p| p.ok_end()).max()?;
    Some((began, ended))
}

/// The report's key of a sleeping tier.
fn level_key(tier: Tier) -> &'static str {
    match tier {
        Tier::Level1 => "1",
        Tier::Level2 => "2",
        other => other.as_str(),
    }
}

fn sleep_reports(run: &Run<'_>, sleeps: &[Sleep<'_>], engine: &str) -> BTreeMap<String, SleepReport> {
    let mut by_tier: BTreeMap<Tier, Vec<&Step<'_>>> = BTreeMap::new();
    for step in &run.steps {
        if let CycleStep::SleepCycle { engine: of, tier } = step.plan
            && of == engine
        {
            by_tier.entry(*tier).or_default().push(step);
        }
    }
    by_tier
        .into_iter()
        .map(|(tier, steps)| (level_key(tier).to_owned(), sleep_report(run, sleeps, engine, &steps)))
        .collect()
}

fn sleep_report(run: &Run<'_>, sleeps: &[Sleep<'_>], engine: &str, steps: &[&Step<'_>]) -> SleepReport {
    let good: Vec<&Step<'_>> = steps.iter().copied().filter(|s| s.succeeded()).collect();
    let slept: Vec<&Sleep<'_>> = sleeps
        .iter()
        .filter(|s| s.engine == engine && good.iter().any(|step| s.step == Some(step.index)))
        .collect();
    let mut wake_api = Vec::new();
    let mut to_first_token = Vec::new();
    for step in &good {
        for operation in run.operations_of(step) {
            let Some((began, ended)) = wake_interval(operation, engine) else { continue };
            wake_api.push(ended.since(began));
            to_first_token.extend(operation.first_token().map(|at| at.since(began)));
        }
    }
    let times = |wanted: &dyn Fn(&Sleep<'_>) -> bool| {
        let chosen = slept.iter().filter(|s| wanted(s));
        durations(&chosen.filter_map(|s| s.duration).collect::<Vec<_>>())
    };
    let figures = |of: &dyn Fn(&Sleep<'_>) -> Option<f64>| values(slept.iter().filter_map(|s| of(s)));
    SleepReport {
        successful_cycles: count(good.len()),
        sleep_s: times(&|_| true),
        wake_api_s: durations(&wake_api),
        to_first_token_s: durations(&to_first_token),
        residual_gib: figures(&|s| gib(s.after.device)),
        planned_cycles: Some(count(steps.len())),
        cold_sleep_s: times(&|s| s.cold),
        process_residual_gib: figures(&|s| gib(s.after.engine)),
        device_release_percent: figures(&|s| s.device_release_percent()),
        process_release_percent: figures(&|s| s.process_release_percent()),
    }
}

fn performance(step: &Step<'_>, wanted: &str) -> Option<Performance> {
    let CycleStep::Load { engine, stage, concurrency, rounds, requests, .. } = step.plan else { return None };
    if engine != wanted {
        return None;
    }
    let good = || step.requests.iter().filter(|r| r.ok);
    let of_round = |round: u32| good().filter(move |r| r.round == round);
    let tps = step.rounds.iter().filter_map(|(round, (began, ended))| {
        let elapsed = ended.since(*began);
        // A complete stream of unknown length leaves the round's sum unknown.
        let tokens: Option<u64> = of_round(*round).map(|r| r.output_tokens.map(u64::from)).sum();
        (!elapsed.is_zero()).then(|| Some(tokens? as f64 * 1e9 / elapsed.as_nanos() as f64)).flatten()
    });
    let ttft: Vec<Duration> = good().filter_map(|r| Some(r.first_token?.since(r.began))).collect();
    let tpot = good().filter_map(|r| {
        let gaps = r.output_tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some(r.ended.since(r.first_token?).as_nanos() as f64 / f64::from(gaps) / 1e9)
    });
    let passed = step
        .rounds
        .keys()
        .filter(|round| of_round(**round).count() == usize::try_from(*requests).unwrap_or(usize::MAX));
    let prompts: BTreeSet<u32> = good().filter_map(|r| r.prompt_tokens).collect();
    Some(Performance {
        stage: stage.clone(),
        concurrency: *concurrency,
        rounds: *rounds,
        planned: rounds.saturating_mul(*requests),
        success: count(good().count()),
        rounds_passed: count(passed.count()),
        output_tps: values(tps),
        ttft_s: durations(&ttft),
        tpot_s: values(tpot),
        prompt_token_counts: prompts.into_iter().collect(),
    })
}

/// A count as the wire has it.
pub(super) fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Summary of durations, s.
pub(super) fn durations(sample: &[Duration]) -> Option<Stat> {
    stats::Stat::of_durations(sample).map(wire)
}

/// Summary of plain numbers.
pub(super) fn values(sample: impl IntoIterator<Item = f64>) -> Option<Stat> {
    stats::Stat::of_values(&sample.into_iter().collect::<Vec<_>>()).map(wire)
}

fn wire(stat: stats::Stat) -> Stat {
    Stat { n: count(stat.n), median: stat.median, min: stat.min, max: stat.max, p95: stat.p95 }
}
