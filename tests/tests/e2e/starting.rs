//! Starts that do not lead to an engine.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::status::{Condition, StoppedWhy};
use hotbunk_api::words::Tier;
use hotbunk_tests::{Setup, Switch, free_port, reset, restart, start, until};
use std::net::TcpListener;

const ONE_TRY: &str = r#"restart = { budget = 1, initial = "100ms", max = "100ms" }"#;

#[tokio::test]
async fn an_engine_that_exits_at_start_is_tried_by_budget_and_then_left_alone() {
    let node = Setup::pair().engine("B", |e| e.line(ONE_TRY)).build();
    node.start_flags("B", "--fault exit_at_start");
    let agent = node.start().await;
    let reason = agent.until_failed("B").await;
    assert!(reason.contains("crashes"), "{reason}");
    agent.until_at("A", Tier::Awake).await;
    node.engine("A").serves().await;
    let seen = agent.incidents(0).await;
    let codes: Vec<&str> = seen.iter().map(|i| i.code.as_str()).collect();
    // One for each start, one for giving up; each names the cause in the engine's own words.
    assert_eq!(codes, ["crashed", "crashed", "given_up"], "{seen:#?}");
    assert!(seen[0].message.contains("exit_at_start") || seen[0].message.contains("Error"), "{seen:#?}");
    assert_eq!(node.tree("B"), []);

    // It is left alone until somebody says otherwise.
    let refused = agent.submit(Switch::to("B")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    assert!(refused.message.contains("reset"), "{refused:?}");
    node.start_flags("B", "");
    agent.done(reset("B")).await;
    agent.done(start("B")).await;
    agent.until_at("B", Tier::Level1).await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_start_that_hangs_is_given_up_and_a_slow_one_is_waited_for() {
    let short = "start_timeout = \"4s\"";
    let node = Setup::pair().by_hand().engine("B", |e| e.line(ONE_TRY).line(short)).build();
    let agent = node.start().await;
    node.start_flags("A", "--fault slow_start=4");
    agent.done(start("A")).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());

    node.start_flags("B", "--fault hang_start");
    let op = agent.run(start("B")).await;
    assert_eq!(op.error.as_ref().map(|e| e.code), Some(ErrorCode::StartFailed), "{op:#?}");
    // Another try is due by back-off; it goes well.
    node.start_flags("B", "");
    agent.until_at("B", Tier::Level1).await;
    assert_eq!(agent.incident_codes(0).await, ["start_failed B"]);
    node.engine("A").serves().await;
    agent.stop().await;
}

#[tokio::test]
async fn a_restart_that_fails_is_told_and_the_neighbour_serves_on() {
    let node = Setup::pair().engine("B", |e| e.line(ONE_TRY)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    node.start_flags("B", "--fault exit_at_start");
    let op = agent.run(restart("B")).await;
    assert_eq!(op.error.as_ref().map(|e| e.code), Some(ErrorCode::Crashed), "{op:#?}");
    node.start_flags("B", "");
    agent.until_at("B", Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(agent.incident_codes(mark).await, ["crashed B"]);
    node.engine("A").serves().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_not_fought_for() {
    let node = Setup::pair().engine("B", |e| e.line(ONE_TRY)).build();
    let port = node.engine("B").port();
    let holder = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    until("it to wait", async || {
        agent.engine("B").await.condition == Condition::Stopped { why: StoppedWhy::PortTaken }
    })
    .await;
    let seen = agent.incidents(0).await;
    let codes: Vec<&str> = seen.iter().map(|i| i.code.as_str()).collect();
    assert_eq!(codes, ["start_failed"], "told once, and no crash: {seen:#?}");
    let told = format!("port {port} is taken by process {}", std::process::id());
    assert!(seen[0].message.contains(&told), "{seen:#?}");
    assert_eq!(node.tree("B"), []);
    // The holder (this very process) has not been touched: it still accepts.
    assert!(std::net::TcpStream::connect(holder.local_addr().unwrap()).is_ok());
    drop(holder);
    // As soon as it is free it starts by itself.
    agent.until_at("B", Tier::Level1).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_engine_that_serves_another_model_is_not_taken_for_ours() {
    let once = r#"restart = { budget = 0, initial = "100ms", max = "100ms" }"#;
    let node = Setup::pair().engine("B", |e| e.line(once).flag(&["--model", "somebody/else"])).build();
    let agent = node.start().await;
    agent.until_failed("B").await;
    let seen = agent.incidents(0).await;
    assert_eq!(seen[0].code, "start_failed", "{seen:#?}");
    assert!(seen[0].message.contains("it serves somebody/else, not `Qwen3-1.7B`"), "{seen:#?}");
    assert_eq!(node.tree("B"), []);
    agent.until_at("A", Tier::Awake).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_told_at_once() {
    let once = r#"restart = { budget = 0, initial = "100ms", max = "100ms" }"#;
    let port = free_port();
    let command = format!(
        "command = [\"/no/such/vllm\", \"serve\", \"Qwen3-1.7B\", \"--host\", \"127.0.0.1\", \"--port\", \"{port}\"]"
    );
    let lines = [once, command.as_str(), &format!("port = {port}"), "levels = []"];
    let node = Setup::pair().engine("B", |e| lines.iter().fold(e, |e, line| e.line(line))).build();
    let agent = node.start().await;
    agent.until_failed("B").await;
    let seen = agent.incidents(0).await;
    assert!(seen[0].message.contains("/no/such/vllm"), "{seen:#?}");
    agent.until_at("A", Tier::Awake).await;
    until("the node to be idle", async || agent.status().await.operation.is_none()).await;
    agent.stop().await;
}
