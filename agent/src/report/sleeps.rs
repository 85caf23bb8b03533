//! Every sleep of a run: how long it took, what its bytes prove.
//!
//! A sleep lasts from the begin of the call to the end of its verification by the API:
//!
//! | target | begins with | ends with |
//! |---|---|---|
//! | level1, level2 | `Sleep` (a `Pause` before it belongs to the drain) | last `VerifyAsleep` |
//! | parked | the first of `Sleep`, `Pause`, `ReleaseKv` | last `VerifyAsleep` |
//! | stopped | `Stop` | the same |
//!
//! The level that was *observed* follows from bytes only, since vLLM answers 200 to a level that it ignored (CONTRACT
//! fact 1 and 1.1): how much device memory went says whether nothing, the KV cache or everything was given back; a
//! level 1 must have somewhere to put the weights, so host memory grows by them. It does so once for a process
//! (CONTRACT fact 9: pinned blocks are kept), and afterwards level 1 and level 2 leave the same bytes: then the level
//! is unknown, not guessed. That host memory did *not* grow is believed only of a reading made after the sleep: the
//! figure beside a phase may be as old as the sampler's interval.

use super::run::{Operation, PhaseRun, Run};
use crate::journal::record::{Bytes, CycleStep, HostSample, OperationKind, Outcome, Phase};
use hotbunk_api::report::SleepRecord;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes in a GiB.
pub(super) const GIB: f64 = 1_073_741_824.0;

/// Bytes that allocators and contexts may keep or take without meaning anything: 64 MiB.
const SLACK_BYTES: i128 = 64 << 20;

/// One sleep of one engine.
#[derive(Debug)]
pub(super) struct Sleep<'a> {
    pub(super) engine: &'a str,
    /// Index into [`Run::operations`].
    pub(super) operation: usize,
    pub(super) step: Option<u32>,
    pub(super) auto: bool,
    pub(super) requested: Option<Tier>,
    pub(super) observed: Option<Tier>,
    pub(super) cold: bool,
    pub(super) duration: Option<Duration>,
    pub(super) before: Bytes,
    pub(super) after: Bytes,
    /// Growth of resident host memory, bytes.
    pub(super) host_growth: Option<i128>,
}

/// Begin and end of an engine's way into a tier, and its memory at both.
struct Interval {
    duration: Option<Duration>,
    before: Bytes,
    after: Bytes,
    /// End of the call.
    ended: Moment,
}

/// What host memory says of a sleep.
#[derive(Clone, Copy)]
struct HostEvidence {
    /// Growth of resident memory, bytes.
    growth: Option<i128>,
    /// A reading was made after the sleep.
    fresh: bool,
}

impl Interval {
    /// `None` where the operation never got as far as putting `engine` to sleep, or that call failed.
    fn of(operation: &Operation<'_>, engine: &str, target: Option<Tier>) -> Option<Interval> {
        let own: Vec<&PhaseRun<'_>> = operation.phases.iter().filter(|p| p.engine == engine).collect();
        let begins = |phase: Phase| match target {
            Some(Tier::Parked) => matches!(phase, Phase::Sleep | Phase::Pause | Phase::ReleaseKv),
            Some(Tier::Stopped) => phase == Phase::Stop,
            _ => phase == Phase::Sleep,
        };
        let call = own.iter().find(|p| begins(p.phase))?;
        let ended = own.iter().rev().filter(|p| begins(p.phase)).find_map(|p| p.ok_end())?;
        let last_ok = |phase: Phase| own.iter().rev().find(|p| p.phase == phase && p.ok_end().is_some());
        let stopped = target == Some(Tier::Stopped);
        let verified = last_ok(if stopped { Phase::Stop } else { Phase::VerifyAsleep });
        let evidence = last_ok(Phase::AwaitRelease).or(verified);
        Some(Interval {
            duration: verified.and_then(|p| p.ok_end()).map(|end| end.since(call.began)),
            before: call.before,
            after: evidence.map(|p| p.after).unwrap_or_default(),
            ended,
        })
    }
}

/// What is known of an engine's present process from the operations seen so far.
#[derive(Clone, Copy, Default)]
struct Life {
    /// It was spawned in this run.
    seen_from_start: bool,
    /// It has slept at level 1 or may have: its pinned host memory may exist.
    may_be_pinned: bool,
    /// Its KV cache was given back and not yet mapped again (parked, to be demoted further).
    kv_released: bool,
}

/// Every sleep of the run, in order.
pub(super) fn sleeps<'a>(run: &Run<'a>, host: &[HostSample]) -> Vec<Sleep<'a>> {
    let mut lives: BTreeMap<&str, Life> = BTreeMap::new();
    let mut all = Vec::new();
    for (index, operation) in run.operations.iter().enumerate() {
        for phase in &operation.phases {
            let life = lives.entry(phase.engine).or_default();
            match phase.phase {
                Phase::Spawn => *life = Life { seen_from_start: true, ..Life::default() },
                // A rehearsal: part of the start, no sleep of the run, and the next one is not cold.
                Phase::Sleep if is_start(operation) => life.may_be_pinned = true,
                Phase::Wake | Phase::WakeKv if sleeper(operation) != Some(phase.engine) => {
                    life.kv_released = false
                }
                _ => {}
            }
        }
        let Some(engine) = sleeper(operation) else { continue };
        let requested = operation.leave.or_else(|| planned_tier(run, operation));
        let Some(interval) = Interval::of(operation, engine, requested) else { continue };
        let life = lives.entry(engine).or_default();
        let evidence = host_evidence(run, host, index, engine, &interval);
        let observed = observed(run, engine, *life, requested, &interval, evidence);
        all.push(Sleep {
            engine,
            operation: index,
            step: operation.step,
            auto: operation.auto,
            requested,
            observed,
            cold: requested == Some(Tier::Level1) && life.seen_from_start && !life.may_be_pinned,
            duration: interval.duration,
            before: interval.before,
            after: interval.after,
            host_growth: evidence.growth,
        });
        let pins = !matches!(requested, Some(Tier::Parked | Tier::Level2)) || observed == Some(Tier::Level1);
        life.may_be_pinned |= pins;
        // A handoff that rolled back has woken its outgoing engine again.
        let woken = |p: &&PhaseRun<'_>| p.engine == engine && matches!(p.phase, Phase::Wake | Phase::WakeKv);
        life.kv_released = !operation.phases.iter().filter(woken).any(|p| p.ok_end().is_some());
    }
    all
}

/// Host memory before a sleep and at its largest until the engine is next worked on, or the run ends: what is sampled
/// later would make the same run's report another one.
fn host_evidence(
    run: &Run<'_>,
    host: &[HostSample],
    operation: usize,
    engine: &str,
    interval: &Interval,
) -> HostEvidence {
    let later = run.operations.iter().skip(operation).flat_map(|o| &o.phases);
    let verifies = |phase: Phase| matches!(phase, Phase::VerifyAsleep | Phase::AwaitRelease);
    let next = later
        .filter(|p| p.engine == engine && p.began >= interval.ended && !verifies(p.phase))
        .map(|p| p.began)
        .chain(run.ended.map(|(at, ..)| at))
        .min();
    let readings = || {
        host.iter()
            .filter(|s| s.engine == engine && s.at >= interval.ended && next.is_none_or(|next| s.at <= next))
            .filter_map(|s| s.rss)
    };
    let after = readings().chain(interval.after.rss).max();
    let growth = after.zip(interval.before.rss).map(|(after, before)| i128::from(after) - i128::from(before));
    HostEvidence { growth, fresh: readings().next().is_some() }
}

fn is_start(operation: &Operation<'_>) -> bool {
    matches!(operation.kind, OperationKind::Start | OperationKind::Restart)
}

/// The engine that an operation puts to sleep.
fn sleeper<'a>(operation: &Operation<'a>) -> Option<&'a str> {
    match operation.kind {
        OperationKind::Handoff => operation.from,
        OperationKind::Sleep => Some(operation.engine),
        _ => None,
    }
}

/// What the planned step says, where the operation itself does not.
fn planned_tier(run: &Run<'_>, operation: &Operation<'_>) -> Option<Tier> {
    let step = run.steps.get(usize::try_from(operation.step?).ok()?)?;
    match step.plan {
        CycleStep::SleepCycle { tier, .. } | CycleStep::Sleep { tier, .. } => Some(*tier),
        _ => None,
    }
}

/// The tier by bytes alone; `Awake` where memory is still there. (A stop is proved by the end of the process tree.)
fn observed(
    run: &Run<'_>,
    engine: &str,
    life: Life,
    requested: Option<Tier>,
    interval: &Interval,
    host: HostEvidence,
) -> Option<Tier> {
    if requested == Some(Tier::Stopped) {
        return Some(Tier::Stopped);
    }
    let (before, after) = (interval.before, interval.after);
    let gone = |before: Option<u64>, after: Option<u64>| Some(i128::from(before?) - i128::from(after?));
    let released = gone(before.engine, after.engine).or_else(|| gone(before.device, after.device))?;
    let own_kv = run.engines.iter().find(|e| e.engine == engine).and_then(|e| e.kv_bytes);
    let configured_kv = own_kv.or(run.kv_gib.map(|gib| (gib * GIB) as u64))?;
    let kv = if life.kv_released { 0 } else { i128::from(configured_kv) };
    if released < kv / 2 {
        return Some(Tier::Awake);
    }
    let weights = released - kv;
    if weights <= SLACK_BYTES.max(kv / 20) {
        return Some(Tier::Parked);
    }
    if host.growth? as f64 * run.host_scale() >= weights as f64 / 2.0 {
        return Some(Tier::Level1);
    }
    (host.fresh && life.seen_from_start && !life.may_be_pinned).then_some(Tier::Level2)
}

/// GiB of known bytes.
pub(super) fn gib(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|b| b as f64 / GIB)
}

/// Share of `before` that is gone, percent; `None` where one is unknown or nothing was there.
pub(super) fn released_percent(before: Option<u64>, after: Option<u64>) -> Option<f64> {
    let (before, after) = (before.filter(|b| *b > 0)? as f64, after? as f64);
    Some((before - after) / before * 100.0)
}

impl Sleep<'_> {
    pub(super) fn device_release_percent(&self) -> Option<f64> {
        released_percent(self.before.device, self.after.device)
    }

    pub(super) fn process_release_percent(&self) -> Option<f64> {
        released_percent(self.before.engine, self.after.engine)
    }

    pub(super) fn record(&self, run: &Run<'_>) -> SleepRecord {
        let tier = |tier: Option<Tier>| tier.map(|t| t.as_str().to_owned());
        SleepRecord {
            engine: self.engine.to_owned(),
            operation: run.operations.get(self.operation).map_or(0, |o| o.id.0),
            step: self.step,
            level_requested: tier(self.requested),
            level_observed: tier(self.observed),
            cold: self.cold,
            sleep_s: self.duration.map(|d| d.as_nanos() as f64 / 1e9),
            device_before_gib: gib(self.before.device),
            device_residual_gib: gib(self.after.device),
            device_release_percent: self.device_release_percent(),
            process_before_gib: gib(self.before.engine),
            process_residual_gib: gib(self.after.engine),
            process_release_percent: self.process_release_percent(),
            host_growth_gib: self.host_growth.map(|bytes| bytes as f64 / GIB),
        }
    }
}

/// Stable word for how something ended.
pub(super) fn outcome_word(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Ok) => "ok",
        Some(Outcome::Failed { .. }) => "failed",
        Some(Outcome::Cancelled) => "cancelled",
        Some(Outcome::Recovered) => "recovered",
        Some(Outcome::RolledBack { .. }) => "rolled_back",
        None => "unfinished",
    }
}
