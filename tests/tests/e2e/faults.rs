//! Every fault that strikes during a handoff: how the operation ends, what serves afterwards, and the one incident.
//!
//! A row arms a fault on one engine, asks for a switch from A (awake) to B (at level 1), and says what must follow. Rows
//! of one test share an agent; between them everything is brought back to where it was.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{Drain, State, Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Sleep, Switch, start, until};

use Strategy::{Park, SleepFirst, WakeFirst};

/// One row.
struct Row {
    /// Kind, figure and count.
    fault: (&'static str, Option<f64>, Option<u32>),
    on: &'static str,
    strategy: Strategy,
    /// The operation's code; `None` where it must succeed all the same.
    ends: Option<ErrorCode>,
    /// Which engine serves in the end; the other one rests at level 1.
    serves: &'static str,
    incident: &'static str,
}

const fn row(
    kind: &'static str,
    on: &'static str,
    strategy: Strategy,
    ends: Option<ErrorCode>,
    serves: &'static str,
    incident: &'static str,
) -> Row {
    Row { fault: (kind, None, None), on, strategy, ends, serves, incident }
}

const fn with(arg: Option<f64>, count: Option<u32>, row: Row) -> Row {
    Row { fault: (row.fault.0, arg, count), ..row }
}

const LIMITS: &str =
    r#"timeouts = { sleep = "3s", wake = "3s", is_sleeping = "3s", probe = "3s", memory = "2s" }"#;

async fn node(version: &str) -> (Node, Agent) {
    let generous = r#"restart = { budget = 50, initial = "100ms", max = "100ms" }"#;
    let node = Setup::pair().each(|e| e.version(version).line(LIMITS).line(generous)).build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// A awake, B at level 1, no fault armed.
async fn as_found(agent: &Agent) {
    agent.until_idle().await;
    for engine in agent.node.engines() {
        engine.clear_faults().await;
        if agent.engine(engine.name()).await.tier == Some(Tier::Stopped) {
            agent.done(start(engine.name())).await;
        }
    }
    agent.done(Switch::to("A").leave(Tier::Level1).drain(Drain::Abort)).await;
    match agent.engine("B").await.tier {
        Some(Tier::Level1) => {}
        _ => drop(agent.done(Sleep::at("B", Tier::Level1)).await),
    }
    agent.until_idle().await;
}

async fn check(agent: &Agent, row: &Row) {
    let (kind, arg, count) = row.fault;
    let what = format!("{kind} {arg:?} {count:?} on {} with {}", row.on, row.strategy);
    let mark = agent.mark().await;
    agent.node.engine(row.on).fault(kind, arg, count).await;
    let op = agent.run(Switch::to("B").strategy(row.strategy)).await;
    let code = op.error.as_ref().map(|e| e.code);
    assert_eq!(code, row.ends, "{what}: {op:#?}");
    assert_eq!(op.state, if code.is_none() { State::Succeeded } else { State::Failed }, "{what}");
    // At once, not only once what was lost has been started again.
    agent.until_at(row.serves, Tier::Awake).await;
    agent.node.engine(row.serves).serves().await;
    let other = if row.serves == "A" { "B" } else { "A" };
    agent.until_at(other, Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(
        agent.incident_codes(mark).await,
        [row.incident],
        "{what}: {:#?}",
        agent.incidents(mark).await
    );
    // What the ledger says is what the device holds.
    let device = &agent.status().await.devices[0];
    let slack = 256 << 20;
    let used = agent.node.used();
    assert!(device.held_bytes.unwrap().abs_diff(used) <= slack, "{what}: {device:#?}, {used} used");
}

async fn table(version: &str, rows: &[Row]) {
    let (_node, agent) = node(version).await;
    for row in rows {
        check(&agent, row).await;
        as_found(&agent).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn the_outgoing_engine_does_not_sleep() {
    table(
        "0.31",
        &[
            // Once: a second try is safe from 0.28 on.
            row("sleep_500", "A", SleepFirst, None, "B", "sleep_failed A"),
            row("sleep_500", "A", WakeFirst, None, "B", "sleep_failed A"),
            // For good: it is ended, which is what the handoff needs of it, and started again.
            with(None, Some(2), row("sleep_500", "A", SleepFirst, None, "B", "sleep_failed A")),
            // It says that it sleeps and half of its bytes are there: it is woken and serves on.
            row(
                "sleep_frees_half",
                "A",
                SleepFirst,
                Some(ErrorCode::SleepIncomplete),
                "A",
                "sleep_incomplete A",
            ),
            row(
                "sleep_frees_half",
                "A",
                WakeFirst,
                Some(ErrorCode::SleepIncomplete),
                "A",
                "sleep_incomplete A",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_outgoing_engine_hangs_or_dies() {
    table(
        "0.31",
        &[
            row("sleep_hang", "A", SleepFirst, None, "B", "call_unanswered A"),
            // It answers at last, after the call's deadline (4 s in real time) and before the long poll's.
            with(Some(800.0), None, row("sleep_hang", "A", SleepFirst, None, "B", "call_unanswered A")),
            row("crash_in_sleep", "A", SleepFirst, None, "B", "crashed A"),
            row("crash_in_sleep", "A", WakeFirst, None, "B", "crashed A"),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_incoming_engine_does_not_wake() {
    table(
        "0.31",
        &[
            row("wake_500", "B", SleepFirst, None, "B", "wake_failed B"),
            with(
                None,
                Some(2),
                row("wake_500", "B", SleepFirst, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
            ),
            with(
                None,
                Some(2),
                row("wake_500", "B", WakeFirst, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
            ),
            row("wake_oom", "B", SleepFirst, None, "B", "wake_failed B"),
            with(
                None,
                Some(2),
                row("wake_oom", "B", SleepFirst, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
            ),
            with(
                None,
                Some(2),
                row("wake_oom", "B", Park, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_incoming_engine_hangs_or_dies() {
    table(
        "0.31",
        &[
            row("wake_hang", "B", SleepFirst, Some(ErrorCode::Timeout), "A", "call_unanswered B"),
            row("crash_in_wake", "B", SleepFirst, Some(ErrorCode::Crashed), "A", "crashed B"),
            row("crash_in_wake", "B", WakeFirst, Some(ErrorCode::Crashed), "A", "crashed B"),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_incoming_engine_is_not_what_it_was() {
    table(
        "0.31",
        &[
            row(
                "corrupt_after_wake",
                "B",
                SleepFirst,
                Some(ErrorCode::CanaryMismatch),
                "A",
                "canary_mismatch B",
            ),
            row(
                "corrupt_after_wake",
                "B",
                WakeFirst,
                Some(ErrorCode::CanaryMismatch),
                "A",
                "canary_mismatch B",
            ),
            row("completions_hang", "B", SleepFirst, Some(ErrorCode::ProbeFailed), "A", "probe_failed B"),
        ],
    )
    .await;
}

/// From 0.17 to 0.27 nothing is tried twice: the worker is woken behind the engine (CONTRACT 3.4), and a wake that
/// failed means a restart.
#[tokio::test]
async fn an_older_release_is_repaired_in_its_own_way() {
    table(
        "0.26",
        &[
            row("sleep_500", "A", SleepFirst, Some(ErrorCode::SleepFailed), "A", "sleep_failed A"),
            row("wake_500", "B", SleepFirst, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
            row("wake_oom", "B", SleepFirst, Some(ErrorCode::WakeFailed), "A", "wake_failed B"),
        ],
    )
    .await;
}

/// Every sleep leaves more behind. Up to the slack that is nobody's business; beyond it the sleep is not complete, and
/// the engine is recycled: the worker's own sleep does not help (it leaves still more, which vLLM itself refuses).
#[tokio::test]
async fn what_stays_behind_grows() {
    let (node, agent) = node("0.31").await;
    let mark = agent.mark().await;
    node.engine("A").fault("residual_creep", Some(64.0), None).await;
    agent.done(Switch::to("B").strategy(SleepFirst)).await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    as_found(&agent).await;
    let mark = agent.mark().await;
    node.engine("A").fault("residual_creep", Some(512.0), None).await;
    agent.done(Switch::to("B").strategy(SleepFirst)).await;
    node.engine("B").serves().await;
    until("A to be there anew", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(node.used_by("A"), 597 << 20, "it began anew");
    assert_eq!(agent.incident_codes(mark).await, ["sleep_incomplete A"]);
}

/// vLLM's own assertion: a neighbour takes more, inside A's sleep, than A gives back. A's bytes are gone, A cannot come
/// back while the neighbour is there. Nothing is started into memory that cannot be accounted for: A's tree is ended,
/// and since bytes are there all the same, A waits until they have gone.
#[tokio::test]
async fn a_neighbour_takes_what_the_sleep_gives() {
    let (node, agent) = node("0.31").await;
    let mark = agent.mark().await;
    node.engine("A").fault("neighbour_alloc_in_sleep", None, None).await;
    let op = agent.run(Switch::to("B").strategy(SleepFirst)).await;
    assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::SleepIncomplete));
    let reason = agent.until_failed("A").await;
    assert!(reason.contains("gpu0 shows"), "{reason}");
    assert_eq!(node.tree("A"), []);
    let mut seen = agent.incident_codes(mark).await;
    seen.sort();
    // The cause, and that what served before could not be restored.
    assert_eq!(seen, ["rollback_failed A", "sleep_failed A"]);
    let refused = agent.submit(start("A")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    // The neighbour goes: A is there again by itself.
    let foreign = node.used_by("foreign");
    assert!(foreign > 0);
    let owner = hotbunk_sim::ledger::Owner::of(1).unwrap();
    node.ledger(0).free(owner, "foreign", foreign).unwrap();
    agent.until_at("A", Tier::Awake).await;
    as_found(&agent).await;
    node.engine("A").serves().await;
    agent.stop().await;
}
