use super::*;
use crate::journal::record::CycleStep;

fn engines() -> Vec<String> {
    vec!["A".to_owned(), "B".to_owned()]
}

fn expand(name: &str, options: Options) -> Vec<PlannedStep> {
    let (plan, warnings) = CyclePlan::open(name).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(plan.name, name);
    plan.expand(&engines(), &options).unwrap()
}

fn refused(text: &str) -> String {
    let file = Path::new("mine.toml");
    match CyclePlan::parse(text, file).and_then(|(plan, _)| plan.expand(&engines(), &Options::default())) {
        Ok(steps) => format!("accepted: {} steps\n", steps.len()),
        Err(diagnostics) => diagnostics.to_string(),
    }
}

/// One word a step, as people would write the order down.
fn word(step: &PlannedStep) -> String {
    match &step.step {
        CycleStep::Start { engine, initial: true } => format!("start {engine}"),
        CycleStep::Start { engine, .. } => format!("restart {engine}"),
        CycleStep::Load { engine, stage, concurrency, rounds, requests, output_tokens } => {
            format!("load {engine} {stage} c{concurrency} {rounds}x{requests} of {output_tokens}")
        }
        CycleStep::SleepCycle { engine, tier } => format!("cycle {engine} {tier}"),
        CycleStep::Sleep { engine, tier } => format!("sleep {engine} {tier}"),
        CycleStep::Activate { engine, auto } => {
            format!("activate {engine}{}", if *auto { " (auto)" } else { "" })
        }
        CycleStep::Handoff { from, to, auto } => format!("{from}→{to}{}", if *auto { " (auto)" } else { "" }),
    }
}

/// The order with repetitions drawn together.
fn order(steps: &[PlannedStep]) -> String {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for step in steps {
        let mut line = word(step);
        for (name, set) in [("hold", step.hold), ("pause", step.pause_after)] {
            if !set.is_zero() {
                line += &format!(", {name} {set:?}");
            }
        }
        if let Some(strategy) = step.strategy {
            line += &format!(", {}", strategy.as_str());
        }
        if let Some(leave) = step.leave {
            line += &format!(", leaving {leave}");
        }
        if step.rehearse {
            line += ", rehearsed";
        }
        if let Some(window) = &step.window {
            line += &format!(" [{window}]");
        }
        match lines.last_mut() {
            Some((last, count)) if *last == line => *count += 1,
            _ => lines.push((line, 1)),
        }
    }
    lines
        .iter()
        .map(|(line, count)| if *count == 1 { format!("{line}\n") } else { format!("{count} × {line}\n") })
        .collect()
}

macro_rules! snapshot {
    ($text:expr) => {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!($text)
        })
    };
}

#[test]
fn the_reference_plan_in_order() {
    snapshot!(order(&expand("reference", Options::default())));
}

#[test]
fn the_quick_plan_in_order() {
    snapshot!(order(&expand("quick", Options::default())));
}

#[test]
fn the_handoffs_plan_in_order() {
    let options = Options { strategy: Some(Strategy::WakeFirst), leave: Some(Tier::Level2) };
    snapshot!(order(&expand("handoffs", options)));
}

#[test]
fn the_reference_plan_has_the_reference_s_counts() {
    let steps = expand("reference", Options::default());
    let measured: Vec<&PlannedStep> = steps
        .iter()
        .filter(|s| {
            !matches!(s.step, CycleStep::Handoff { auto: true, .. } | CycleStep::Activate { auto: true, .. })
        })
        .collect();
    let count = |f: &dyn Fn(&CycleStep) -> bool| measured.iter().filter(|s| f(&s.step)).count();
    let performance: u32 = measured
        .iter()
        .map(|s| match s.step {
            CycleStep::Load { rounds, requests, .. } => rounds * requests,
            _ => 0,
        })
        .sum();
    // One probe for each start, sleep cycle, activation and handoff.
    let probes = count(&|s| !matches!(s, CycleStep::Load { .. } | CycleStep::Sleep { .. }));
    assert_eq!((performance, probes), (128, 42));
    for engine in ["A", "B"] {
        let level1 = count(&|s| match s {
            CycleStep::SleepCycle { engine: e, tier } | CycleStep::Sleep { engine: e, tier } => {
                e == engine && *tier == Tier::Level1
            }
            CycleStep::Handoff { from, .. } => from == engine,
            _ => false,
        });
        assert_eq!(level1, 16, "level-1 sleeps of {engine}");
    }
    assert_eq!(steps.iter().filter(|s| matches!(s.step, CycleStep::Handoff { auto: true, .. })).count(), 19);
    assert!(steps.iter().all(|s| !s.rehearse), "the cold first sleep is measured");
}

#[test]
fn the_caller_s_strategy_leaves_the_auto_series_alone() {
    let options = Options { strategy: Some(Strategy::Park), leave: Some(Tier::Level2) };
    for step in expand("reference", options) {
        match step.step {
            CycleStep::Handoff { auto: false, .. } => {
                assert_eq!((step.strategy, step.leave), (Some(Strategy::Park), Some(Tier::Level2)));
            }
            CycleStep::Handoff { auto: true, .. } => {
                assert_eq!((step.strategy, step.leave), (Some(Strategy::Auto), None));
            }
            _ => assert_eq!(step.strategy, None),
        }
    }
}

#[test]
fn plans_follow_the_configuration_s_names() {
    let (plan, _) = CyclePlan::open("quick").unwrap();
    let steps = plan
        .expand(&["large".to_owned(), "small".to_owned(), "third".to_owned()], &Options::default())
        .unwrap();
    let last = steps.last().unwrap();
    assert_eq!(last.window.as_deref(), Some("large-small-switch"));
    assert!(steps.iter().all(|s| !word(s).contains("third")));
    // An engine called `second` is meant by its name.
    let swapped = plan.expand(&["second".to_owned(), "first".to_owned()], &Options::default()).unwrap();
    assert_eq!(word(&swapped[0]), "start first");
}

#[test]
fn a_plan_for_two_needs_two() {
    let (plan, _) = CyclePlan::open("quick").unwrap();
    snapshot!(plan.expand(&["A".to_owned()], &Options::default()).unwrap_err().to_string());
}

#[test]
fn mistakes_in_a_plan_file() {
    snapshot!(refused(
        r#"
name = "mine"
margn = "2s"

[[step]]
action = "start"
count = 3

[[step]]
action = "dance"

[[step]]
engine = "first"

[[step]]
action = "load"
engine = "first"
concurrency = [1, 0]
rounds = 100000

[[step]]
action = "sleep_cycles"
engine = "first"
tier = "stopped"
hold = 3

[[step]]
action = "handoffs"
between = ["first", "first"]
leave = "awake"
"#
    ));
}

#[test]
fn mistakes_in_a_plan_s_order() {
    snapshot!(refused(
        r#"
[[step]]
action = "handoffs"
count = 1

[[step]]
action = "start"
engine = "first"

[[step]]
action = "activate"
engine = "second"

[[step]]
action = "sleep"
engine = "second"

[[step]]
action = "sleep"
engine = "second"

[[step]]
action = "load"
engine = "second"
stage = "late"

[[step]]
action = "handoffs"
count = 2
start_from = "second"

[[step]]
action = "sleep"
engine = "secnd"
"#
    ));
}

#[test]
fn a_plan_without_steps() {
    snapshot!(refused("name = \"empty\"\n"));
}

#[test]
fn a_plan_without_end() {
    let step = "[[step]]\naction = \"sleep_cycles\"\nengine = \"A\"\ncount = 10000\n";
    let text = format!("[[step]]\naction = \"start\"\nengine = \"A\"\n{}", step.repeat(12));
    assert!(refused(&text).contains("more than 100000 steps"));
}

#[test]
fn a_plan_file_is_opened_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("short.toml");
    std::fs::write(&path, "[[step]]\naction = \"start\"\nengine = \"first\"\n").unwrap();
    let (plan, _) = CyclePlan::open(path.to_str().unwrap()).unwrap();
    assert_eq!((plan.name.as_str(), plan.margin), ("short", Duration::from_secs(2)));
    let missing = CyclePlan::open("/nonexistent/plan.toml").unwrap_err();
    assert_eq!(missing.problems()[0].code, "unreadable");
}
