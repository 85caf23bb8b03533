//! Cycles over the control API: run, reported, one at a time, given up, scheduled.

use hotbunk_api::client::Error;
use hotbunk_api::cycle::{CycleRun, PlanSource, RunCycle};
use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{State, Tier};
use hotbunk_tests::{Agent, PATIENCE, Setup, Switch, until};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn named(id: &str, name: &str) -> RunCycle {
    RunCycle { id: Some(id.to_owned()), plan: PlanSource::Named { name: name.to_owned() } }
}

async fn ended(agent: &Agent, id: &str) -> CycleRun {
    let deadline = Instant::now() + PATIENCE * 2;
    loop {
        let run = agent.api.wait_cycle(id, Duration::from_secs(10)).await.unwrap();
        if run.state.is_over() {
            return run;
        }
        assert!(Instant::now() < deadline, "it does not end: {run:#?}");
    }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> ErrorCode {
    match answer {
        Err(Error::Api(error)) => error.code,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_quick_cycle_is_run_and_reported() {
    let node = Setup::pair().by_hand().build();
    let agent = node.start().await;
    let begun = agent.api.run_cycle(&named("first", "quick")).await.unwrap();
    assert_eq!((begun.id.as_str(), begun.state), ("first", State::Running));
    // The same id is the same run; another one has to wait its turn.
    assert_eq!(agent.api.run_cycle(&named("first", "quick")).await.unwrap().id, "first");
    assert_eq!(refusal(agent.api.run_cycle(&named("second", "quick")).await), ErrorCode::Busy);
    assert_eq!(refusal(agent.api.run_cycle(&named("third", "qwick")).await), ErrorCode::UnknownPlan);
    let broken =
        PlanSource::Inline { origin: "mine.toml".into(), text: "name = \"x\"\nstep = 3\nmargn = 1\n".into() };
    let broken = RunCycle { id: None, plan: broken };
    assert_eq!(refusal(agent.api.run_cycle(&broken).await), ErrorCode::PlanInvalid);

    let run = ended(&agent, "first").await;
    assert_eq!(run.error, None, "{run:#?}");
    assert_eq!((run.state, run.steps_done), (State::Succeeded, run.steps_total));
    let report = agent.api.report("first").await.unwrap();
    assert_eq!(report["status"], "PASS", "{report:#}");
    assert!(!report["simulated"].is_null(), "I8: a simulated run says so: {report:#}");
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("../../../agent/api/schemas/switch-report.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> = validator.iter_errors(&report).map(|e| e.to_string()).collect();
    assert_eq!(wrong, Vec::<String>::new());
    // Computed again, it is the same; and `latest` is it.
    assert_eq!(agent.api.report("first").await.unwrap(), report);
    assert_eq!(agent.api.report("latest").await.unwrap(), report);
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;

    // A later agent computes it from the journal: still the same.
    let agent = node.start().await;
    assert_eq!(agent.api.report("first").await.unwrap(), report);
    assert_eq!(agent.api.cycle("first").await.unwrap().state, State::Succeeded);
    assert_eq!(refusal(agent.api.report("never").await), ErrorCode::UnknownRun);
    agent.stop().await;
}

#[tokio::test]
async fn a_cycle_that_is_given_up_leaves_the_node_as_it_was_found() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    agent.done(Switch::to("B").leave(Tier::Level1)).await;
    agent.api.run_cycle(&named("short", "quick")).await.unwrap();
    until("the run to have come somewhere", async || agent.api.cycle("short").await.unwrap().steps_done >= 2)
        .await;
    agent.api.cancel_cycle("short").await.unwrap();
    let run = ended(&agent, "short").await;
    assert_eq!(run.state, State::Cancelled, "{run:#?}");
    agent.until_at("B", Tier::Awake).await;
    agent.until_at("A", Tier::Level1).await;
    node.engine("B").serves().await;
    assert_eq!(refusal(agent.api.cancel_cycle("short").await), ErrorCode::AlreadyOver);
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

/// Begun while the agent still starts its engines, as by a timer's unit that is started again with the agent: they are not found
/// stopped, and so not left stopped.
#[tokio::test]
async fn a_cycle_that_is_begun_at_the_agent_s_own_start_waits_for_that() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.api.run_cycle(&named("early", "quick")).await.unwrap();
    until("the run to have begun a step", async || {
        agent.api.cycle("early").await.unwrap().steps[0].state != State::Queued
    })
    .await;
    agent.api.cancel_cycle("early").await.unwrap();
    assert_eq!(ended(&agent, "early").await.state, State::Cancelled);
    agent.until_at("A", Tier::Awake).await;
    agent.until_at("B", Tier::Level1).await;

    // Given up before its first step, it has touched nothing.
    agent.stop().await;
    let agent = node.start().await;
    agent.api.run_cycle(&named("earlier", "quick")).await.unwrap();
    agent.api.cancel_cycle("earlier").await.unwrap();
    assert_eq!(ended(&agent, "earlier").await.state, State::Cancelled);
    agent.until_at("A", Tier::Awake).await;
    agent.until_at("B", Tier::Level1).await;
    agent.stop().await;
}

/// Cron has no finer step than a minute: this test waits for the next one that leaves time to come up first.
#[tokio::test]
async fn a_scheduled_cycle_is_left_out_while_requests_are_served() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let due = (now + 25).div_ceil(60) * 60;
    let minute = due / 60 % 60;
    let schedule =
        format!("\n[[schedule]]\nname = \"often\"\ncron = \"{minute} * * * *\"\nplan = \"quick\"\n");
    let node = Setup::pair().tables(&schedule).env("TZ", "UTC").node_line("stall_after = \"10m\"").build();
    let agent = node.start().await;
    agent.until_up().await;
    let a = node.engine("A");
    a.fault("completions_hang", None, None).await;
    // It stays open, without a token, for as long as it takes.
    let serving = a.stream(10).await;
    a.until_running(1).await;
    let deadline = Instant::now() + Duration::from_secs(due - now) + PATIENCE;
    while agent.incidents(0).await.is_empty() {
        assert!(Instant::now() < deadline, "its minute has begun, and nothing was told");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let seen = agent.incidents(0).await;
    assert_eq!(seen[0].code, "cycle_skipped");
    assert!(seen[0].message.contains("A is serving requests"), "{seen:#?}");
    assert!(agent.api.cycles().await.unwrap().runs.is_empty());
    agent.until_at("A", Tier::Awake).await;
    drop(serving);
    agent.stop().await;
}
