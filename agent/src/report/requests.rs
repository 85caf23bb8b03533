//! Which request is counted where.
//!
//! | request | counted in |
//! |---|---|
//! | of a load round | `requests.executed` |
//! | counted probe of a planned step | `requests.executed`, or `requests_auto.executed` |
//! | warm-up, rehearsal, canary | `verification` of the series it fell into |
//! | probe that no planned step asked for (the agent's own repair) | the same |

use super::models::count;
use super::run::{Probe, Run};
use crate::journal::record::CycleStep;
use hotbunk_api::report::{AutoRequests, Requests, Verification};

/// Requests of the run, and those of the `auto` series.
pub(super) fn requests(run: &Run<'_>) -> (Requests, AutoRequests) {
    let planned = run.steps.iter().filter_map(|step| match step.plan {
        CycleStep::Load { rounds, requests, .. } => Some(rounds.saturating_mul(*requests)),
        _ => None,
    });
    let mut own = Requests {
        planned_performance: planned.fold(0, u32::saturating_add),
        executed: 0,
        success: 0,
        failure: 0,
        verification: None,
    };
    let mut auto =
        AutoRequests { executed: 0, success: 0, failure: 0, verification: Verification::default() };
    let mut verification = Verification::default();
    for request in run.steps.iter().flat_map(|step| &step.requests) {
        tally(request.ok, &mut own.executed, &mut own.success, &mut own.failure);
    }
    let in_operations = run
        .operations
        .iter()
        .flat_map(|o| o.probes.iter().map(move |p| (p, o.auto, p.counted() && o.step.is_some())));
    let loose = run.loose_probes.iter().map(|p| (p, run.in_auto(p.at), false));
    for (probe, is_auto, counted) in in_operations.chain(loose) {
        match (is_auto, counted) {
            (false, true) => tally(probe.ok(), &mut own.executed, &mut own.success, &mut own.failure),
            (true, true) => tally(probe.ok(), &mut auto.executed, &mut auto.success, &mut auto.failure),
            (false, false) => verify(&mut verification, probe),
            (true, false) => verify(&mut auto.verification, probe),
        }
    }
    own.verification = Some(verification);
    (own, auto)
}

fn tally(ok: bool, executed: &mut u32, success: &mut u32, failure: &mut u32) {
    *executed += 1;
    *(if ok { success } else { failure }) += 1;
}

fn verify(verification: &mut Verification, probe: &Probe<'_>) {
    tally(probe.ok(), &mut verification.executed, &mut verification.success, &mut verification.failure);
    *verification.by_purpose.entry(probe.purpose.to_owned()).or_insert(0) += 1;
}

/// Load requests of the run that were complete, of those planned in one step.
pub(super) fn complete(run: &Run<'_>, step: u32) -> u32 {
    let step = usize::try_from(step).ok().and_then(|i| run.steps.get(i));
    step.map_or(0, |s| count(s.requests.iter().filter(|r| r.ok).count()))
}
