//! The whole reference run, the `auto` series after it included.

use super::journal::{GIB, Journal, MIB, MS, S};
use super::script::Handoff;
use super::{assert_stat, report, summary};
use crate::journal::record::{CycleStep, Entry, Outcome, Record};
use crate::report::{Quantity, compare, reference, table};
use hotbunk_api::report::{Stat, Status, SwitchReport};
use hotbunk_core::tier::Tier;
use serde_json::Value;

/// Different durations for every repetition, so that a swapped or dropped one shows.
fn vary(base_ms: u64, k: u64) -> u64 {
    base_ms * MS + (k * 7919 % 13) * MS + k * 1_003
}

fn first_half(j: &mut Journal, name: &'static str) {
    j.start(name, true, vary(60_000, 1), 100 * MS);
    j.start(name, false, vary(20_000, 2), 90 * MS);
    j.start(name, false, vary(20_000, 3), 95 * MS);
    j.window(&format!("{name}-baseline"), |j| {
        j.load(name, "baseline", 1, 5 * MS, 0);
        j.load(name, "baseline", 4, 6 * MS, 0);
    });
    j.window(&format!("{name}-sleep-level1"), |j| {
        for k in 0..5 {
            let cold = if k == 0 { 10_000 } else { 0 };
            j.cycle(name, Tier::Level1, vary(1_300 + cold, k), vary(1_700, k), vary(100, k));
        }
    });
    j.window(&format!("{name}-after-wake"), |j| {
        j.load(name, "after-wake", 1, 5 * MS, 0);
        j.load(name, "after-wake", 4, 6 * MS, 0);
    });
    for k in 0..3 {
        j.cycle(name, Tier::Level2, vary(580, k), vary(14_800, k), vary(100, k));
    }
    j.sleep_step(name, Tier::Level1, vary(1_310, 9));
}

fn nineteen(j: &mut Journal, auto: bool) {
    j.activate("A", auto, vary(1_740, 1), vary(100, 1));
    for k in 0..19 {
        let (from, to) = if k % 2 == 0 { ("A", "B") } else { ("B", "A") };
        let times = Handoff {
            drain: if k % 3 == 0 { 50 * MS } else { 0 },
            sleep: vary(1_340, k),
            wake: vary(220, k),
            first_token: vary(20, k),
            leave: Tier::Level1,
            wake_fails: false,
        };
        j.handoff(from, to, auto, times);
        j.advance(500 * MS);
    }
    j.sleep_step("B", Tier::Level1, vary(180, 7));
}

pub(super) fn reference_run(with_auto: bool) -> Journal {
    let mut j = Journal::new();
    first_half(&mut j, "A");
    first_half(&mut j, "B");
    j.window("AB-switch", |j| nineteen(j, false));
    // The auto series begins inside the margin of the window before it.
    j.advance(S);
    if with_auto {
        j.engines[0].rss += 50 * GIB;
        j.window("AB-switch-auto", |j| nineteen(j, true));
    }
    j.finish(Some(Outcome::Ok))
}

#[test]
fn counts_are_those_of_the_reference() {
    let (ours, theirs) = (report(&reference_run(false)), reference().expect("it reads"));
    assert_eq!(ours.status, Status::Pass, "{:?}", ours.failures);
    let requests = (ours.requests.planned_performance, ours.requests.executed, ours.requests.success);
    assert_eq!(requests, (128, 170, 170));
    assert_eq!(ours.requests.failure, 0);
    let verification = ours.requests.verification.as_ref().expect("it is counted");
    assert_eq!((verification.executed, verification.by_purpose["warm_up"]), (18, 18));
    assert_eq!(ours.context_tokens, Some(4096));
    for (engine, theirs) in &theirs.models {
        let ours = &ours.models[engine];
        let n = |s: Option<Stat>| s.map(|s| s.n);
        assert_eq!(n(ours.restart_initial), n(theirs.restart_initial));
        assert_eq!(n(ours.restart_warm), n(theirs.restart_warm));
        for (level, theirs) in &theirs.sleep {
            let ours = &ours.sleep[level];
            assert_eq!(ours.successful_cycles, theirs.successful_cycles);
            assert_eq!(n(ours.sleep_s), n(theirs.sleep_s));
            assert_eq!(n(ours.wake_api_s), n(theirs.wake_api_s));
            assert_eq!(n(ours.to_first_token_s), n(theirs.to_first_token_s));
            assert_eq!(n(ours.residual_gib), n(theirs.residual_gib));
        }
        assert_eq!(ours.performance.len(), theirs.performance.len());
        for (ours, theirs) in ours.performance.iter().zip(&theirs.performance) {
            assert_eq!((&ours.stage, ours.concurrency), (&theirs.stage, theirs.concurrency));
            let counts = |p: &hotbunk_api::report::Performance| {
                (p.rounds, p.planned, p.success, p.rounds_passed, n(p.output_tps), n(p.ttft_s), n(p.tpot_s))
            };
            assert_eq!(counts(ours), counts(theirs));
        }
    }
    let switch = (ours.switch.initial_activation, ours.switch.handoffs, ours.switch.success);
    assert_eq!(switch, (1, 19, 19));
    assert_eq!((ours.switch.directions["A→B"].n, ours.switch.directions["B→A"].n), (10, 9));
    for engine in ["A", "B"] {
        assert_eq!(ours.memory.l1_release_fraction[engine].map(|s| s.n), Some(16));
        assert_eq!(ours.sleeps.iter().filter(|s| s.engine == engine).count(), 16 + 3);
    }
    assert_eq!(ours.windows.len(), theirs.windows.len());
}

#[test]
fn every_chosen_duration_comes_back() {
    let journal = reference_run(true);
    let ours = report(&journal);
    let chosen = |path: &str| summary(&journal.chosen[path]);
    for (engine, model) in &ours.models {
        let at = format!("models.{engine}");
        let ready = model.restart_ready.as_ref().expect("starts were seen");
        for (path, stat) in [
            ("restart_initial", model.restart_initial),
            ("restart_warm", model.restart_warm),
            ("restart_ready.initial", ready.initial),
            ("restart_ready.warm", ready.warm),
        ] {
            assert_stat(path, stat, chosen(&format!("{at}.{path}")));
        }
        for (level, sleep) in &model.sleep {
            let at = format!("{at}.sleep.{level}");
            assert_stat(&at, sleep.sleep_s, chosen(&format!("{at}.sleep_s")));
            assert_stat(&at, sleep.wake_api_s, chosen(&format!("{at}.wake_api_s")));
            assert_stat(&at, sleep.to_first_token_s, chosen(&format!("{at}.to_first_token_s")));
        }
        let cold = model.sleep["1"].cold_sleep_s.expect("the first one is cold");
        assert_eq!(cold.n, 1);
        assert!(cold.median > 10.0 && model.sleep["1"].sleep_s.expect("cycles").max == cold.median);
        assert_eq!(model.sleep["2"].cold_sleep_s, None);
        for p in &model.performance {
            let at = format!("{at}.performance.{}-{}", p.stage, p.concurrency);
            assert_stat(&at, p.ttft_s, chosen(&format!("{at}.ttft_s")));
            assert_stat(&at, p.tpot_s, chosen(&format!("{at}.tpot_s")));
            let elapsed = &journal.chosen[&format!("{at}.elapsed")];
            let slowest = elapsed.iter().max().map(|ns| 1024.0 * 1e9 / *ns as f64).expect("two rounds");
            assert!((p.output_tps.expect("two rounds").min - slowest).abs() < 1e-9);
            assert_eq!(p.prompt_token_counts, [26]);
        }
    }
    let auto = ours.switch_auto.as_ref().expect("the series was run");
    for (series, switch) in [("switch", &ours.switch), ("switch_auto", auto)] {
        for (name, d) in &switch.directions {
            for (path, stat) in [
                ("to_first_token_s", d.to_first_token_s),
                ("sleep_s", d.sleep_s),
                ("wake_s", d.wake_s),
                ("engine_s", d.engine_s),
                ("overhead_s", d.overhead_s),
            ] {
                let path = format!("{series}.directions.{name}.{path}");
                assert_stat(&path, stat, chosen(&path));
            }
        }
    }
    assert_eq!(ours.switch.overhead_s.map(|s| s.n), Some(19));
}

#[test]
fn bytes_come_back() {
    let journal = reference_run(true);
    let ours = report(&journal);
    let residual =
        |engine: &str, level: &str| ours.models[engine].sleep[level].residual_gib.expect("evidence");
    // B is not there yet while A is cycled; A sleeps while B is.
    assert_eq!(residual("A", "1").median, 597.0 / 1024.0);
    assert_eq!(residual("B", "2").max, (597.0 + 455.0) / 1024.0);
    assert_eq!(
        ours.models["B"].sleep["1"].process_residual_gib.expect("pids are mapped").median,
        455.0 / 1024.0
    );
    let release = ours.memory.l1_release_fraction["A"].expect("sixteen");
    let (weights, kv, a, b) = (28 * 1024, 4096, 597, 455);
    let percent = |before: u32, after: u32| f64::from(before - after) / f64::from(before) * 100.0;
    assert!((release.max - percent(weights + kv + a, a)).abs() < 1e-9);
    assert!((release.min - percent(weights + kv + a + b, a + b)).abs() < 1e-9);
    let windows: Vec<_> = ours.windows.iter().filter(|(name, _)| !name.ends_with("auto")).collect();
    let is_auto = |e: &&Entry| matches!(e.record, Record::CycleStepBegan { index: 53 });
    let auto_since = journal.entries.iter().find(is_auto).expect("the series was run").at;
    let inside: Vec<_> = journal
        .samples
        .iter()
        .filter(|s| s.at < auto_since)
        .filter(|s| windows.iter().any(|(_, w)| w.start <= s.wall && s.wall <= w.end))
        .collect();
    let used: Vec<u64> = inside.iter().filter_map(|s| s.used).collect();
    let peak = ours.memory.physical_peak_gib.expect("samples");
    assert_eq!(peak.n as usize, used.len());
    assert_eq!(peak.max, *used.iter().max().expect("samples") as f64 / GIB as f64);
    assert_eq!(peak.min, *used.iter().min().expect("samples") as f64 / GIB as f64);
    let sampling = ours.sampling.as_ref().expect("it was sampled");
    assert_eq!((sampling.samples + sampling.missed) as usize, inside.len());
    assert_eq!(sampling.missed as usize, inside.iter().filter(|s| s.used.is_none()).count());
    assert!(sampling.missed > 0);
    // The time between two windows is no interval.
    assert_eq!(sampling.interval_s.map(|s| (s.median, s.max)), Some((0.1, 0.1)));
    assert!(matches!(journal.steps[53], CycleStep::Activate { auto: true, .. }));
    // The 50 GiB that A took in the auto series enter no other field.
    assert_eq!(ours.memory.rss_peak_gib["A"], Some(30.0));
    let host = &ours.memory.host_peak_gib["A"];
    assert_eq!((host.rss, host.pss), (Some(30.0), Some(24.0)));
}

#[test]
fn waterfalls_hold_every_phase() {
    let ours = report(&reference_run(false));
    let handoff = &ours.handoffs[0];
    let words: Vec<&str> = handoff.phases.iter().map(|p| p.phase.as_str()).collect();
    let expected = [
        "drain",
        "sleep",
        "verify_asleep",
        "await_release",
        "wake",
        "verify_awake",
        "await_residence",
        "probe",
    ];
    assert_eq!(words, expected);
    assert_eq!((handoff.from.as_str(), handoff.to.as_str(), handoff.outcome.as_str()), ("A", "B", "ok"));
    assert_eq!(handoff.strategy.as_deref(), Some("sleep-first"));
    assert_eq!(handoff.plan.leave.as_deref(), Some("level1"));
    assert_eq!(handoff.phases[0].start_s, 0.002);
    let sleep = &handoff.phases[1];
    let moved =
        (sleep.before.device.expect("known") - sleep.after.device.expect("known")) as f64 / GIB as f64;
    assert_eq!(moved, 32.0);
    assert_eq!(sleep.gib_per_s, Some(moved / sleep.duration_s.expect("it ended")));
    assert_eq!(handoff.phases[2].gib_per_s, None);
    assert_eq!(handoff.drain_s, Some(0.05));
    let first = &ours.sleeps[0];
    assert!(first.cold);
    assert_eq!(first.level_requested.as_deref(), Some("level1"));
    // The first level-1 sleep shows in host memory, the level-2 ones after it do not.
    assert_eq!(first.level_observed.as_deref(), Some("level1"));
    assert_eq!(ours.sleeps[1].level_observed, None);
    assert_eq!(ours.sleeps[6].level_requested.as_deref(), Some("level2"));
    assert_eq!(ours.sleeps[6].level_observed, None);
}

#[test]
fn auto_series_enters_no_other_field() {
    let stripped = |journal: &Journal| {
        let mut ours = report(journal);
        ours.windows.remove("AB-switch-auto");
        (ours.switch_auto, ours.requests_auto) = (None, None);
        ours.handoffs_auto.clear();
        ours.run = None;
        ours
    };
    let with = reference_run(true);
    let full = report(&with);
    let auto = full.requests_auto.as_ref().expect("the series was run");
    assert_eq!((auto.executed, auto.success), (20, 20));
    let switch = full.switch_auto.as_ref().expect("the series was run");
    assert_eq!((switch.initial_activation, switch.handoffs, switch.planned), (1, 19, Some(19)));
    assert_eq!(full.handoffs_auto.len(), 19);
    let (ours, without) = (stripped(&with), stripped(&reference_run(false)));
    assert_eq!(ours.memory, without.memory);
    assert_eq!(ours.sampling, without.sampling);
    assert!(ours == without);
}

#[test]
fn every_path_of_the_reference_is_in_ours() {
    let ours = serde_json::to_value(report(&reference_run(true))).expect("a report is JSON");
    let theirs: Value = serde_json::from_str(include_str!("../reference.json")).expect("it is JSON");
    assert_same_paths(&theirs, &ours, "$");
}

#[test]
fn built_in_reference_is_the_one_of_the_fixtures() {
    let fixture = include_str!("../../../../tests/fixtures/reference/switch-report.json");
    assert!(include_str!("../reference.json") == fixture, "report/reference.json is not the fixture");
}

/// Every path is there, and holds what the reference holds there: an object, a list as long, a number, a string.
fn assert_same_paths(theirs: &Value, ours: &Value, path: &str) {
    match (theirs, ours) {
        (Value::Object(fields), Value::Object(_)) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                assert_same_paths(
                    value,
                    ours.get(name).unwrap_or_else(|| panic!("{path} is missing")),
                    &path,
                );
            }
        }
        (Value::Array(items), Value::Array(own)) => {
            assert_eq!(items.len(), own.len(), "{path}");
            for (i, (theirs, ours)) in items.iter().zip(own).enumerate() {
                assert_same_paths(theirs, ours, &format!("{path}[{i}]"));
            }
        }
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {}
        (theirs, ours) => panic!("{path}: {ours} stands where the reference has {theirs}"),
    }
}

#[test]
fn report_satisfies_the_schema_and_reads_back() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../api/schemas/switch-report.schema.json")).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
    let ours = report(&reference_run(true));
    let json = serde_json::to_value(&ours).expect("a report is JSON");
    if let Err(e) = validator.validate(&json) {
        panic!("{}: {e}", e.instance_path());
    }
    let back: SwitchReport = serde_json::from_value(json).expect("it reads back");
    assert_eq!(back, ours);
    assert!(ours.gpu.contains("simulated") && ours.runtime.contains("simulated"));
}

#[test]
fn order_in_which_records_are_given_does_not_matter() {
    let mut journal = reference_run(true);
    let ours = report(&journal);
    journal.entries.reverse();
    journal.samples.reverse();
    journal.host.reverse();
    assert_eq!(report(&journal), ours);
}

#[test]
fn reference_beside_itself_deviates_only_by_its_overhead() {
    let theirs = reference().expect("it reads");
    let deviations = compare(&theirs, &theirs);
    // Per engine: 2 restarts, 2 levels × 4, 4 stages × 3, RSS and release; 2 directions × 3; the device's peak.
    assert_eq!(deviations.len(), 2 * (2 + 8 + 12 + 2) + 6 + 1);
    for d in &deviations {
        if d.path.ends_with("→B.to_first_token_s") || d.path.ends_with("→A.to_first_token_s") {
            assert!((d.ours_scaled - d.reference - 0.23).abs() < 1e-9, "{d:?}");
        } else {
            assert!(d.percent.abs() < 1e-9, "{d:?}");
        }
    }
}

#[test]
fn comparison_scales_by_speed() {
    let mut journal = reference_run(false);
    let Record::RunStarted { simulated: Some(s), .. } = &mut journal.entries[0].record else {
        panic!("the first record starts the run")
    };
    (s.speed, s.host_scale) = (20.0, 64.0);
    let ours = report(&journal);
    let found = compare(&ours, &reference().expect("it reads"));
    let of = |path: &str| {
        found.iter().find(|d| d.path == path).unwrap_or_else(|| panic!("{path} is not compared"))
    };
    let sleep = of("models.A.sleep.1.sleep_s");
    let measured = ours.models["A"].sleep["1"].sleep_s.expect("cycles").median;
    assert_eq!((sleep.wall_measured, sleep.ours_scaled), (measured, measured * 20.0));
    let rate = of("models.B.performance.baseline-4.output_tps");
    assert!((rate.ours_scaled - rate.wall_measured / 20.0).abs() < 1e-9);
    let cold = of("models.A.sleep.1.cold_sleep_s");
    assert!((cold.reference - 18.467).abs() < 0.001 && cold.wall_measured > 10.0);
    // Of a handoff only the engines' part runs at the simulation's speed.
    let direction = &ours.switch.directions["A→B"];
    let own = direction.overhead_s.expect("engines give a clock").median;
    let handoff = of("switch.directions.A→B.to_first_token_s");
    assert!((handoff.ours_scaled - (20.0 * (handoff.wall_measured - own) + own)).abs() < 1e-9);
    assert!((handoff.reference - (1.817 - 0.23)).abs() < 0.001);
    assert_eq!(of("memory.rss_peak_gib.A").ours_scaled, 30.0 * 64.0);
    let residual = of("models.A.sleep.1.residual_gib");
    assert_eq!((residual.ours_scaled, residual.percent), (597.0 / 1024.0, 0.0));
    let ttft = of("models.A.performance.baseline-1.ttft_s");
    assert!(ttft.is_binding());
    let short = crate::report::Deviation { wall_measured: 0.04, ..ttft.clone() };
    assert!(!short.is_binding());
    let token = crate::report::Deviation { quantity: Quantity::TimePerToken, ..short };
    assert!(token.is_binding());
}

#[test]
fn table_shows_what_an_operator_asks_for() {
    let journal = reference_run(true);
    let text = table(&report(&journal));
    for expected in [
        "Plan reference: vLLM 0.31.0 (simulated), 1 × NVIDIA L20 (simulated)",
        "profile l20 at speed 1",
        "first start to first token",
        "level 1: cold sleep",
        "A→B",
        "overhead",
        "Handoffs, auto series",
        "device peak, GiB",
        "Requests: 170/170 ok, auto series 20/20 ok, verification 18/18 ok",
        "PASS",
    ] {
        assert!(text.contains(expected), "`{expected}` is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours");
    // A machine that the reference does not speak of is not compared with it.
    let mut other = report(&journal);
    (other.simulated, other.gpu) = (None, "1 × NVIDIA H200".to_owned());
    assert!(!table(&other).contains("reference  "));
}

#[test]
fn steps_of_the_builder_are_those_of_the_reference() {
    let journal = reference_run(false);
    let sleeps = |tier: Tier, engine: &str| {
        let is = |s: &&CycleStep| match s {
            CycleStep::SleepCycle { engine: of, tier: t } | CycleStep::Sleep { engine: of, tier: t } => {
                of == engine && *t == tier
            }
            CycleStep::Handoff { from, .. } => from == engine && tier == Tier::Level1,
            _ => false,
        };
        journal.steps.iter().filter(is).count()
    };
    assert_eq!(
        (sleeps(Tier::Level1, "A"), sleeps(Tier::Level1, "B"), sleeps(Tier::Level2, "A")),
        (16, 16, 3)
    );
    assert_eq!(journal.engines[0].residual, 597 * MIB);
}
