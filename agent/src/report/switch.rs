//! The switch report of one run.

use super::run::{Run, Step};
use super::sleeps::{outcome_word, sleeps};
use super::{Error, handoffs, memory, models, requests};
use crate::journal::record::{CycleStep, Entry, HostSample, Outcome, Sample};
use hotbunk_api::report::{self as wire, FailedStep, Simulated, Status, SwitchReport, Window};

/// Covers p95 only: medians of even samples are means of the two middle values.
const PERCENTILE_METHOD: &str = "nearest-rank; small sample";
const RESTART_BASELINE: &str =
    "same node, new process, warm page cache but for the first start; not a cold start of the node";
const RESTART_BASELINE_SIMULATED: &str = "simulated engines: the profile's own start times";
const DRA: &str = "not used; the engines of one node share its GPU";

/// The switch report of the run that `entries` are the journal records of.
///
/// `samples` and `host` are the memory samples of the same time; those outside the run or its windows are left out.
///
/// # Errors
///
/// [`Error::NoRun`], [`Error::SeveralRuns`] and [`Error::UnknownStep`]: the records are not those of one run. A run
/// that failed, was cut off or measured nothing has a report all the same.
pub fn switch_report(
    entries: &[Entry],
    samples: &[Sample],
    host: &[HostSample],
) -> Result<SwitchReport, Error> {
    let run = Run::read(entries)?;
    let sleeps = sleeps(&run, host);
    let has_auto = run.steps.iter().any(Step::is_auto);
    let (switch, own_handoffs) = handoffs::series(&run, &sleeps, false);
    let (switch_auto, handoffs_auto) = handoffs::series(&run, &sleeps, true);
    let (own_requests, requests_auto) = requests::requests(&run);
    let failures = failures(&run);
    let simulated = run.simulated.is_some();
    Ok(SwitchReport {
        status: if failures.is_empty() { Status::Pass } else { Status::Fail },
        runtime: marked(&runtime(&run), simulated),
        // Real engines may run on a simulated device: then the runtime is real, and the memory is not.
        gpu: marked(run.gpu, simulated || run.device_source == Some("simulated")),
        context_tokens: common(
            run.engines.iter().map(|e| run.context_tokens.get(e.engine.as_str()).copied()),
        ),
        kv_gib: run.kv_gib,
        models: models::models(&run, &sleeps),
        requests: own_requests,
        percentile_method: PERCENTILE_METHOD.to_owned(),
        restart_baseline: if simulated { RESTART_BASELINE_SIMULATED } else { RESTART_BASELINE }.to_owned(),
        dra: DRA.to_owned(),
        switch,
        memory: memory::memory(&run, &sleeps, samples, host),
        windows: run
            .windows
            .iter()
            .map(|(name, (start, end))| ((*name).to_owned(), Window { start: *start, end: *end }))
            .collect(),
        run: Some(wire::Run {
            id: run.id.map(str::to_owned),
            plan: run.plan.to_owned(),
            started: run.began_wall,
            finished: run.ended.map(|(_, wall, _)| wall),
            outcome: outcome_word(run.ended.map(|(.., outcome)| outcome)).to_owned(),
        }),
        simulated: run.simulated.map(|s| Simulated {
            profile: s.profile.clone(),
            speed: s.speed,
            host_scale: s.host_scale,
            start_speed: s.start_speed,
        }),
        sampling: Some(memory::sampling(&run, samples)),
        sleeps: sleeps.iter().filter(|s| !s.auto).map(|s| s.record(&run)).collect(),
        handoffs: own_handoffs,
        switch_auto: has_auto.then_some(switch_auto),
        requests_auto: has_auto.then_some(requests_auto),
        handoffs_auto,
        failures,
    })
}

/// A simulated run says so wherever hardware or software is named.
fn marked(text: &str, simulated: bool) -> String {
    if simulated && !text.contains("simulated") { format!("{text} (simulated)") } else { text.to_owned() }
}

/// The value that all have, where all have one and the same.
fn common(mut values: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let first = values.next()??;
    values.all(|v| v == Some(first)).then_some(first)
}

/// The planned steps that did not succeed.
fn failures(run: &Run<'_>) -> Vec<FailedStep> {
    if run.steps.is_empty() {
        return vec![FailedStep {
            step: None,
            what: format!("run of plan {}", run.plan),
            code: "nothing_planned".to_owned(),
            message: "the plan has no steps, so nothing was shown".to_owned(),
        }];
    }
    run.steps.iter().filter_map(|step| failure(run, step)).collect()
}

fn failure(run: &Run<'_>, step: &Step<'_>) -> Option<FailedStep> {
    let (code, message) = match step.outcome {
        Some(Outcome::Failed { code, message } | Outcome::RolledBack { code, message }) => {
            (code.clone(), message.clone())
        }
        Some(Outcome::Cancelled) => ("cancelled".to_owned(), "cancelled while it ran".to_owned()),
        None if step.began => ("unfinished".to_owned(), "it began, and the journal holds no end".to_owned()),
        None => ("not_run".to_owned(), "the run ended before it".to_owned()),
        Some(Outcome::Ok | Outcome::Recovered) => incomplete_load(run, step)?,
    };
    Some(FailedStep { step: Some(step.index), what: describe(step.plan), code, message })
}

/// A load stage that ended in order has failed all the same where a request of it was not complete.
fn incomplete_load(run: &Run<'_>, step: &Step<'_>) -> Option<(String, String)> {
    let CycleStep::Load { rounds, requests, .. } = step.plan else { return None };
    let planned = rounds.saturating_mul(*requests);
    let complete = requests::complete(run, step.index);
    (complete < planned)
        .then(|| ("requests_failed".to_owned(), format!("{complete} of {planned} requests were complete")))
}

/// A step in words.
fn describe(step: &CycleStep) -> String {
    match step {
        CycleStep::Start { engine, initial: true } => format!("first start of {engine}"),
        CycleStep::Start { engine, initial: false } => format!("restart of {engine}"),
        CycleStep::Load { engine, stage, concurrency, .. } => {
            format!("{stage} load on {engine}, concurrency {concurrency}")
        }
        CycleStep::SleepCycle { engine, tier } => format!("{tier} cycle of {engine}"),
        CycleStep::Sleep { engine, tier } => format!("sleep of {engine} to {tier}"),
        CycleStep::Activate { engine, auto } => format!("activation of {engine}{}", series(*auto)),
        CycleStep::Handoff { from, to, auto } => format!("handoff {from}→{to}{}", series(*auto)),
    }
}

fn series(auto: bool) -> &'static str {
    if auto { " (auto series)" } else { "" }
}

/// What served: where the run began before any engine had said its release, what they said since.
fn runtime(run: &Run<'_>) -> String {
    let mut said: Vec<&str> = run.versions.values().copied().collect();
    said.sort_unstable();
    said.dedup();
    if said.is_empty() {
        run.runtime.to_owned()
    } else {
        run.runtime.replacen("unknown", &said.join(", "), 1)
    }
}
