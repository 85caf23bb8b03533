//! Runs that did not go as planned, and runs that measured little.

use super::journal::{GIB, Journal, MS, S};
use super::script::Handoff;
use super::{assert_stat, report, summary};
use crate::journal::record::{
    Bytes, CycleStep, EngineWork, Entry, OperationKind, Outcome, Phase, Record, RunEngine,
};
use crate::report::{Error, switch_report, table};
use hotbunk_api::report::Status;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;

const LEVEL1: Handoff = Handoff {
    drain: 0,
    sleep: 1_300 * MS,
    wake: 220 * MS,
    first_token: 20 * MS,
    leave: Tier::Level1,
    wake_fails: false,
};

/// A awake, then four handoffs of which `change` alters the third.
fn four(change: impl Fn(&mut Handoff)) -> Journal {
    let mut j = Journal::with_sleepers();
    j.activate("A", false, 1_740 * MS, 100 * MS);
    for k in 0..4 {
        let (from, to) = if k % 2 == 0 { ("A", "B") } else { ("B", "A") };
        let mut times = LEVEL1;
        if k == 2 {
            change(&mut times);
        }
        j.handoff(from, to, false, times);
    }
    j.finish(Some(Outcome::Ok))
}

#[test]
fn failed_handoff_is_counted_shown_and_in_no_figure() {
    let journal = four(|times| times.wake_fails = true);
    let ours = report(&journal);
    assert_eq!(ours.status, Status::Fail);
    assert_eq!((ours.switch.handoffs, ours.switch.success, ours.switch.planned), (4, 3, Some(4)));
    assert_eq!((ours.switch.directions["A→B"].n, ours.switch.directions["B→A"].n), (1, 2));
    let path = "switch.directions.A→B.to_first_token_s";
    assert_stat(path, ours.switch.directions["A→B"].to_first_token_s, summary(&journal.chosen[path]));
    let failed = &ours.handoffs[2];
    assert_eq!((failed.outcome.as_str(), failed.error_code.as_deref()), ("failed", Some("wake_failed")));
    assert_eq!((failed.to_first_token_s, failed.overhead_s), (None, None));
    let bars: Vec<_> =
        failed.phases.iter().map(|p| (p.phase.as_str(), p.engine.as_str(), p.outcome.as_str())).collect();
    assert!(bars.contains(&("wake", "B", "failed")), "{bars:?}");
    // The outgoing engine's return shows in the same waterfall, and its probe is a request like any other.
    assert!(bars.contains(&("wake", "A", "ok")) && bars.contains(&("probe", "A", "ok")), "{bars:?}");
    assert_eq!((ours.requests.executed, ours.requests.success), (5, 5));
    // Its sleep went well: one more of the level-1 sleeps of the run.
    assert_eq!(ours.memory.l1_release_fraction["A"].map(|s| s.n), Some(2));
    assert_eq!(ours.failures.len(), 1);
    let failure = &ours.failures[0];
    assert_eq!(
        (failure.step, failure.what.as_str(), failure.code.as_str()),
        (Some(3), "handoff A→B", "wake_failed")
    );
    let text = table(&ours);
    assert!(text.contains("FAIL\n  step 4, handoff A→B: 500 (wake_failed)"), "{text}");
}

#[test]
fn failed_probe_is_a_failed_request() {
    let mut j = Journal::with_sleepers();
    j.step(CycleStep::Activate { engine: "A".to_owned(), auto: false }, |j| {
        let failed = Outcome::Failed { code: "probe_failed".to_owned(), message: "no token".to_owned() };
        let outcome = failed.clone();
        j.operation(OperationKind::Activation, "A", None, None, |j| {
            j.probe("A", "probe", 30 * MS, false);
            (outcome, None)
        });
        failed
    });
    let ours = report(&j.finish(Some(Outcome::Ok)));
    assert_eq!((ours.requests.executed, ours.requests.success, ours.requests.failure), (1, 0, 1));
    assert_eq!((ours.switch.initial_activation, ours.status), (0, Status::Fail));
}

#[test]
fn broken_request_fails_its_round_and_the_run() {
    let mut j = Journal::with_sleepers();
    j.load("A", "baseline", 4, 5 * MS, 3);
    let journal = j.finish(Some(Outcome::Ok));
    let ours = report(&journal);
    let p = &ours.models["A"].performance[0];
    assert_eq!((p.planned, p.success, p.rounds, p.rounds_passed), (16, 13, 2, 1));
    let at = "models.A.performance.baseline-4";
    assert_stat(at, p.ttft_s, summary(&journal.chosen[&format!("{at}.ttft_s")]));
    // Tokens of the broken requests are in no round's sum.
    let elapsed = &journal.chosen[&format!("{at}.elapsed")];
    let second = 5.0 * 128.0 * 1e9 / elapsed[1] as f64;
    assert!((p.output_tps.expect("two rounds").min - second).abs() < 1e-9);
    assert_eq!((ours.requests.executed, ours.requests.failure), (16, 3));
    assert_eq!(ours.failures[0].message, "13 of 16 requests were complete");
}

#[test]
fn without_an_engine_clock_overhead_is_null() {
    let mut j = Journal::with_sleepers();
    j.engine_clock = false;
    j.activate("A", false, 1_740 * MS, 100 * MS);
    j.handoff("A", "B", false, LEVEL1);
    let ours = report(&j.finish(Some(Outcome::Ok)));
    let d = &ours.switch.directions["A→B"];
    assert!(d.to_first_token_s.is_some());
    assert_eq!((d.overhead_s, d.engine_s, ours.switch.overhead_s), (None, None, None));
    assert_eq!(ours.handoffs[0].overhead_s, None);
    assert_eq!(ours.status, Status::Pass);
}

#[test]
fn one_engine_without_a_clock_makes_the_whole_unknown() {
    for unknown_first in [true, false] {
        let mut j = Journal::with_sleepers();
        j.engine_clock = !unknown_first;
        j.step(CycleStep::Handoff { from: "A".to_owned(), to: "B".to_owned(), auto: false }, |j| {
            let work = |j: &mut Journal, work: Option<Vec<EngineWork>>| j.record(Record::EngineWork { work });
            j.operation(OperationKind::Handoff, "B", Some("A"), Some(Tier::Level1), |j| {
                work(j, (!unknown_first).then_some(None).flatten());
                work(j, Some(Vec::new()));
                let token = j.probe("B", "probe", 20 * MS, true);
                (Outcome::Ok, Some(token))
            });
            Outcome::Ok
        });
        let ours = report(&j.finish(Some(Outcome::Ok)));
        assert_eq!(ours.handoffs[0].overhead_s, None, "unknown first: {unknown_first}");
        assert!(ours.handoffs[0].to_first_token_s.is_some());
    }
}

/// Begin, end, phase or work, by hand: what is on the path is decided by instants alone.
#[test]
fn drain_and_work_are_counted_where_they_lie_on_the_path() {
    let mut j = Journal::with_sleepers();
    j.step(CycleStep::Handoff { from: "A".to_owned(), to: "B".to_owned(), auto: false }, |j| {
        j.operation(OperationKind::Handoff, "B", Some("A"), Some(Tier::Level1), |j| {
            let t0 = j.now;
            let at = |ms: u64| Moment(t0 + ms * MS);
            let ended = |index, phase, engine: &str, began, ended| Record::StepEnded {
                index,
                phase,
                engine: engine.to_owned(),
                began: at(began),
                ended: at(ended),
                outcome: Outcome::Ok,
                before: Bytes::default(),
                after: Bytes::default(),
            };
            j.record(ended(0, Phase::Drain, "A", 10, 60));
            j.record(ended(1, Phase::Wake, "B", 60, 160));
            // Make before break: the outgoing engine drains and sleeps after the first token.
            j.record(ended(2, Phase::Drain, "A", 205, 400));
            j.record(ended(3, Phase::Sleep, "A", 400, 500));
            j.record(ended(4, Phase::VerifyAsleep, "A", 500, 501));
            let work = |began, ended| EngineWork {
                engine: "B".to_owned(),
                work: "w".to_owned(),
                began: at(began),
                ended: at(ended),
            };
            // Half inside the drain; two that overlap; half after the first token; all after it.
            let all = vec![work(40, 80), work(70, 150), work(180, 300), work(400, 499)];
            j.record(Record::EngineWork { work: Some(all) });
            j.record(Record::Probe {
                engine: "B".to_owned(),
                purpose: "probe".to_owned(),
                began: at(170),
                first_token: Some(at(200)),
                outcome: Outcome::Ok,
            });
            j.advance(501 * MS);
            (Outcome::Ok, Some(t0 + 200 * MS))
        });
        Outcome::Ok
    });
    let ours = report(&j.finish(Some(Outcome::Ok)));
    let handoff = &ours.handoffs[0];
    assert_eq!(handoff.drain_s, Some(0.050));
    assert_eq!(handoff.to_first_token_s, Some(0.150));
    // 60…150 and 180…200.
    assert_eq!(handoff.engine_s, Some(0.110));
    assert_eq!(handoff.overhead_s, Some(0.040));
    assert_eq!((handoff.sleep_s, handoff.wake_s, handoff.total_s), (Some(0.101), Some(0.1), Some(0.501)));
}

#[test]
fn records_that_are_no_run_are_refused() {
    assert_eq!(switch_report(&[], &[], &[]), Err(Error::NoRun { entries: 0 }));
    let one = four(|_| {});
    let mut twice = one.entries.clone();
    let again = Entry { seq: 900, ..one.entries[0].clone() };
    twice.push(again);
    assert_eq!(switch_report(&twice, &[], &[]), Err(Error::SeveralRuns { first: 0, second: 900 }));
    let mut damaged = one.entries.clone();
    damaged.push(Entry { seq: 901, record: Record::CycleStepBegan { index: 5 }, ..one.entries[0].clone() });
    let error = switch_report(&damaged, &[], &[]).expect_err("the plan has five steps");
    assert_eq!(error, Error::UnknownStep { seq: 901, step: 5, planned: 5 });
    assert!(error.to_string().contains("step 5 of a plan that has 5"), "{error}");
}

#[test]
fn empty_run_has_a_report_without_figures_and_fails() {
    let ours = report(&Journal::new().finish(None));
    assert_eq!(ours.status, Status::Fail);
    assert_eq!(ours.failures[0].code, "nothing_planned");
    assert_eq!((ours.requests.executed, ours.switch.handoffs), (0, 0));
    assert_eq!(ours.memory.physical_peak_gib, None);
    assert_eq!(ours.memory.rss_peak_gib["A"], None);
    assert_eq!(ours.memory.l1_release_fraction["B"], None);
    assert_eq!(ours.models["A"].restart_initial, None);
    assert_eq!((ours.switch_auto.is_none(), ours.requests_auto.is_none()), (true, true));
    assert_eq!(ours.run.as_ref().map(|r| r.outcome.as_str()), Some("unfinished"));
    let json = serde_json::to_value(&ours).expect("a report is JSON");
    assert!(json["memory"]["physical_peak_gib"].is_null() && json["memory"]["rss_peak_gib"]["A"].is_null());
    assert!(table(&ours).contains("FAIL"));
}

#[test]
fn run_that_was_cut_off_says_what_it_had_done() {
    let whole = four(|_| {});
    // Cut inside the sleep of the third handoff: begun, not ended.
    let third = whole
        .entries
        .iter()
        .position(|e| matches!(e.record, Record::CycleStepBegan { index: 3 }))
        .expect("four handoffs");
    let sleep = whole.entries[third..]
        .iter()
        .position(|e| matches!(e.record, Record::StepBegan { phase: Phase::Sleep, .. }))
        .expect("a sleep");
    let cut = &whole.entries[..=third + sleep];
    let ours = switch_report(cut, &whole.samples, &whole.host).expect("the records of one run");
    assert_eq!(ours.status, Status::Fail);
    let failures: Vec<_> = ours.failures.iter().map(|f| (f.step, f.code.as_str())).collect();
    assert_eq!(failures, [(Some(3), "unfinished"), (Some(4), "not_run")]);
    assert_eq!((ours.switch.handoffs, ours.switch.success, ours.switch.planned), (3, 2, Some(4)));
    let last = ours.handoffs.last().expect("it began");
    assert_eq!((last.outcome.as_str(), last.step, last.total_s), ("unfinished", Some(3), None));
    let bar = last.phases.last().expect("it began");
    assert_eq!((bar.phase.as_str(), bar.outcome.as_str(), bar.duration_s), ("sleep", "unfinished", None));
    // Every prefix of a journal has a report once the run has begun.
    for end in 1..whole.entries.len() {
        switch_report(&whole.entries[..end], &[], &[]).expect("a prefix is a run that was cut off");
    }
}

#[test]
fn operations_that_no_step_asked_for_enter_no_figure() {
    let mut j = Journal::with_sleepers();
    j.activate("A", false, 1_740 * MS, 100 * MS);
    j.handoff("A", "B", false, LEVEL1);
    // The agent's own: between two steps, named by none.
    j.handoff_operation("B", "A", false, LEVEL1);
    j.operation(OperationKind::Repair, "A", None, None, |j| {
        j.probe("A", "probe", 20 * MS, true);
        (Outcome::Ok, None)
    });
    j.record(Record::Probe {
        engine: "A".to_owned(),
        purpose: "canary".to_owned(),
        began: Moment(j.now),
        first_token: None,
        outcome: Outcome::Cancelled,
    });
    j.handoff("A", "B", false, LEVEL1);
    let ours = report(&j.finish(Some(Outcome::Ok)));
    assert_eq!((ours.switch.handoffs, ours.switch.directions.len(), ours.handoffs.len()), (2, 1, 3));
    assert_eq!(ours.handoffs[1].step, None);
    assert_eq!(ours.requests.executed, 3);
    let verification = ours.requests.verification.expect("it is counted");
    assert_eq!((verification.by_purpose["probe"], verification.by_purpose["canary"]), (2, 1));
    assert_eq!((verification.success, verification.failure), (2, 1));
    assert_eq!(ours.status, Status::Pass);
}

#[test]
fn parked_cycles_have_a_key_of_their_own() {
    let mut j = Journal::new();
    j.start("B", true, 20 * S, 50 * MS);
    for k in 0..3 {
        j.cycle("B", Tier::Parked, (40 + k) * MS, 80 * MS, 20 * MS);
    }
    let journal = j.finish(Some(Outcome::Ok));
    let ours = report(&journal);
    let parked = &ours.models["B"].sleep["parked"];
    assert_eq!((parked.successful_cycles, parked.planned_cycles), (3, Some(3)));
    // From the pause, which is the first call, to verified.
    let at = "models.B.sleep.parked";
    assert_stat(at, parked.sleep_s, summary(&journal.chosen[&format!("{at}.sleep_s")]));
    assert_stat(at, parked.wake_api_s, summary(&journal.chosen[&format!("{at}.wake_api_s")]));
    assert_eq!(parked.cold_sleep_s, None);
    assert!(ours.sleeps.iter().all(|s| s.level_observed.as_deref() == Some("parked")));
    assert_eq!(ours.memory.l1_release_fraction["B"], None);
}

#[test]
fn without_device_evidence_bytes_are_unknown() {
    let mut j = Journal::with_sleepers();
    j.device_evidence = false;
    j.window("A-sleep-level1", |j| j.cycle("A", Tier::Level1, 1_300 * MS, 1_700 * MS, 100 * MS));
    let ours = report(&j.finish(Some(Outcome::Ok)));
    let level1 = &ours.models["A"].sleep["1"];
    assert!(level1.sleep_s.is_some() && level1.to_first_token_s.is_some());
    assert_eq!((level1.residual_gib, level1.process_residual_gib), (None, None));
    assert_eq!(ours.memory.l1_release_fraction["A"], None);
    assert_eq!(ours.memory.physical_peak_gib, None);
    let sampling = ours.sampling.as_ref().expect("it was tried");
    assert_eq!(sampling.samples, 0);
    assert!(sampling.missed > 0);
    assert_eq!(ours.sleeps[0].level_observed, None);
    assert_eq!(ours.sleeps[0].device_residual_gib, None);
    assert_eq!(ours.status, Status::Pass);
}

/// One sleep of A, started in this run, with bytes of our own.
fn one_sleep(
    asked: Tier,
    before: Bytes,
    after: Bytes,
    kv: Option<u64>,
    fresh: Option<u64>,
) -> Option<String> {
    let mut j = Journal::new();
    j.start("A", true, 20 * S, 50 * MS);
    j.step(CycleStep::Sleep { engine: "A".to_owned(), tier: asked }, |j| {
        j.operation(OperationKind::Sleep, "A", None, Some(asked), |j| {
            for (index, phase) in [(0, Phase::Sleep), (1, Phase::VerifyAsleep)] {
                let (began, ended) = (Moment(j.now), Moment(j.now + 100 * MS));
                let engine = "A".to_owned();
                j.record(Record::StepEnded {
                    index,
                    phase,
                    engine,
                    began,
                    ended,
                    outcome: Outcome::Ok,
                    before,
                    after,
                });
                j.advance(100 * MS);
            }
            (Outcome::Ok, None)
        });
        // The sampler reads host memory again, or not.
        if let Some(rss) = fresh {
            j.engines[0].rss = rss;
            j.advance(2 * S);
        }
        Outcome::Ok
    });
    let mut journal = j.finish(Some(Outcome::Ok));
    let Record::RunStarted { engines, kv_gib, .. } = &mut journal.entries[0].record else {
        panic!("the first record starts the run")
    };
    *kv_gib = None;
    engines[0] = RunEngine { kv_bytes: kv, ..engines[0].clone() };
    report(&journal).sleeps[0].level_observed.clone()
}

#[test]
fn observed_level_follows_from_bytes_not_from_what_was_asked() {
    let bytes = |device, engine, rss| Bytes { device, engine, rss };
    let gib = |n: u64| Some(n * GIB);
    let kv = gib(4);
    let awake = bytes(gib(34), gib(33), gib(2));
    let seen = |asked, after| one_sleep(asked, awake, after, kv, gib(2));
    // 32 GiB gone and 28 of them in host memory: level 1, whatever was asked (a router dropped the level).
    assert_eq!(seen(Tier::Level2, bytes(gib(2), gib(1), gib(30))).as_deref(), Some("level1"));
    // Gone, and nowhere to be found: level 2.
    assert_eq!(seen(Tier::Level1, bytes(gib(2), gib(1), gib(2))).as_deref(), Some("level2"));
    // The figure beside the phase was old, the next reading shows where the weights went. Without one: who knows.
    let old = bytes(gib(2), gib(1), gib(2));
    assert_eq!(one_sleep(Tier::Level1, awake, old, kv, gib(30)).as_deref(), Some("level1"));
    assert_eq!(one_sleep(Tier::Level1, awake, old, kv, None), None);
    // Nothing gone: the engine is as it was. A neighbour that grew meanwhile does not hide it where pids are mapped.
    assert_eq!(seen(Tier::Level1, awake).as_deref(), Some("awake"));
    assert_eq!(seen(Tier::Level1, bytes(gib(2), gib(33), gib(2))).as_deref(), Some("awake"));
    // Only the KV cache.
    assert_eq!(seen(Tier::Level1, bytes(gib(30), gib(29), gib(2))).as_deref(), Some("parked"));
    // No host figure: level 1 or 2. No KV size: nothing can be told.
    let blind = bytes(gib(2), gib(1), None);
    assert_eq!(one_sleep(Tier::Level1, bytes(gib(34), gib(33), None), blind, kv, gib(2)), None);
    assert_eq!(one_sleep(Tier::Level1, awake, bytes(gib(2), gib(1), gib(30)), None, None), None);
}

#[test]
fn demotion_from_parked_is_not_taken_for_parking() {
    let mut j = Journal::new();
    j.start("B", true, 20 * S, 50 * MS);
    j.sleep_step("B", Tier::Parked, 40 * MS);
    // What is left to give back is 3.3 GiB, less than the KV cache that is gone already.
    j.sleep_step("B", Tier::Level1, 180 * MS);
    let ours = report(&j.finish(Some(Outcome::Ok)));
    let observed: Vec<_> = ours.sleeps.iter().map(|s| s.level_observed.as_deref()).collect();
    assert_eq!(observed, [Some("parked"), Some("level1")]);
    assert!(ours.sleeps[1].cold);
}

#[test]
fn rehearsed_engine_has_no_cold_sleep() {
    let mut j = Journal::new();
    j.step(CycleStep::Start { engine: "A".to_owned(), initial: true }, |j| {
        j.operation(OperationKind::Start, "A", None, None, |j| {
            j.phase(Phase::Spawn, "A", 5 * MS, |e| e.rss = GIB);
            j.phase(Phase::Ready, "A", 9 * S, |e| e.device = e.weights + e.kv + e.residual);
            j.phase(Phase::Sleep, "A", 18 * S, |_| {});
            j.phase(Phase::Wake, "A", 2 * S, |_| {});
            j.probe("A", "rehearsal", 50 * MS, true);
            let token = j.probe("A", "probe", 50 * MS, true);
            (Outcome::Ok, Some(token))
        });
        Outcome::Ok
    });
    j.cycle("A", Tier::Level1, 1_300 * MS, 1_700 * MS, 100 * MS);
    let ours = report(&j.finish(Some(Outcome::Ok)));
    assert_eq!(ours.models["A"].sleep["1"].cold_sleep_s, None);
    // The rehearsal's sleep is part of the start.
    assert_eq!(ours.sleeps.len(), 1);
    assert_eq!(ours.requests.verification.map(|v| v.by_purpose["rehearsal"]), Some(1));
    assert_eq!(ours.requests.executed, 2);
}

/// A short run at speed 20 with a failure in it, as people see it.
#[test]
fn table_of_a_failed_run() {
    let mut j = Journal::new();
    j.start("A", true, 10 * S, 50 * MS);
    j.load("A", "baseline", 1, 2 * MS, 0);
    j.cycle("A", Tier::Level1, 900 * MS, 88 * MS, 5 * MS);
    j.start("B", true, 4 * S, 50 * MS);
    let quick = Handoff { sleep: 67 * MS, wake: 11 * MS, first_token: MS, ..LEVEL1 };
    j.window("AB-switch", |j| {
        j.handoff("A", "B", false, quick);
        j.handoff("B", "A", false, Handoff { wake_fails: true, ..quick });
    });
    j.plan(CycleStep::Activate { engine: "A".to_owned(), auto: true });
    let mut journal = j.finish(Some(Outcome::Cancelled));
    let Record::RunStarted { simulated: Some(s), .. } = &mut journal.entries[0].record else {
        panic!("the first record starts the run")
    };
    (s.speed, s.host_scale) = (20.0, 8.0);
    insta::assert_snapshot!(table(&report(&journal)));
}
