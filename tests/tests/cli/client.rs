//! `ctl` against a living agent.

use hotbunk_api::error::ExitCode;
use hotbunk_tests::{Done, Node, Setup, ctl, until};
use serde_json::Value;

async fn run(node: &Node, args: &[&str]) -> Done {
    ctl(&node.socket(), args).await
}

async fn json(node: &Node, args: &[&str]) -> Value {
    let args: Vec<&str> = ["--json"].iter().chain(args).copied().collect();
    run(node, &args).await.exits(ExitCode::Ok).json()
}

#[tokio::test]
async fn an_operators_day() {
    let node = Setup::pair().each(|e| e.speed(60.0)).build();
    let agent = node.start().await;
    agent.until_up().await;

    // Where things stand.
    let status = run(&node, &["status"]).await.exits(ExitCode::Ok);
    for word in ["A", "B", "awake", "level1", "gpu0"] {
        assert!(status.stdout.contains(word), "no {word} in\n{}", status.stdout);
    }
    assert_eq!(status.stderr, "");
    assert_eq!(json(&node, &["status"]).await["engines"][0]["tier"], "awake");

    // What a switch would do; then the switch; then nothing.
    let explained = run(&node, &["explain", "B"]).await.exits(ExitCode::Ok);
    assert!(explained.stdout.contains("make-before-break"), "{}", explained.stdout);
    let dry = run(&node, &["switch", "B", "--dry-run"]).await.exits(ExitCode::Ok);
    assert!(dry.stdout.contains("make-before-break"), "{}", dry.stdout);
    assert_eq!(json(&node, &["status"]).await["engines"][0]["tier"], "awake", "a dry run switches nothing");
    let op = json(&node, &["switch", "B", "--strategy", "sleep-first", "--id", "mine"]).await;
    assert_eq!((op["id"].as_str(), op["state"].as_str()), (Some("mine"), Some("succeeded")));
    let again = json(&node, &["switch", "B", "--strategy", "sleep-first", "--id", "mine"]).await;
    assert_eq!(again["accepted_at"], op["accepted_at"], "the same id is the same operation");
    run(&node, &["switch", "A", "--id", "mine"]).await.exits(ExitCode::Refused);
    let nothing = run(&node, &["switch", "B"]).await.exits(ExitCode::Ok);
    assert!((nothing.stdout + &nothing.stderr).contains("awake already"));

    // One engine at a time.
    json(&node, &["sleep", "B", "--tier", "level2"]).await;
    json(&node, &["wake", "B"]).await;
    json(&node, &["stop", "A"]).await;
    json(&node, &["start", "A"]).await;
    json(&node, &["restart", "A"]).await;
    json(&node, &["reset", "A"]).await;
    json(&node, &["switch", "A", "--leave", "level1"]).await;

    // What happened.
    let journal = json(&node, &["journal", "--kind", "operation_accepted"]).await;
    let text = journal.to_string();
    assert!(text.contains("\"handoff\"") && text.contains("\"sleep\""), "{text}");
    let logs = run(&node, &["logs", "A"]).await.exits(ExitCode::Ok);
    assert!(logs.stdout.contains("INFO"), "{}", logs.stdout);
    let doctor = run(&node, &["doctor"]).await;
    assert!(doctor.stdout.contains("device gpu0: NVIDIA L20"), "{}\n{}", doctor.stdout, doctor.stderr);

    // What does not exist, and what is wrong.
    for (args, code) in [
        (&["switch", "Z"][..], ExitCode::Unknown),
        (&["logs", "Z"], ExitCode::Unknown),
        (&["report", "never"], ExitCode::Unknown),
        (&["cycle", "run", "qwick"], ExitCode::Unknown),
        (&["switch", "B", "--leave", "lvl1"], ExitCode::Usage),
        (&["switch", "B", "--deadline", "-1s"], ExitCode::Usage),
        (&["wake", "B"], ExitCode::Refused),
        (&["frobnicate"], ExitCode::Usage),
    ] {
        let done = run(&node, args).await.exits(code);
        assert!(
            !done.stderr.is_empty() && done.stdout.is_empty(),
            "{args:?}: {}\n{}",
            done.stdout,
            done.stderr
        );
    }

    // A drain that runs out has an exit code of its own, and changes nothing.
    let stream = node.engine("A").stream(4000).await;
    node.engine("A").until_running(1).await;
    let out = run(&node, &["switch", "B", "--deadline", "200ms"]).await.exits(ExitCode::DrainDeadline);
    assert!(out.stderr.contains("still had 1 running"), "{}", out.stderr);
    assert_eq!(stream.end().await.1, "length");
    agent.stop().await;

    let dead = run(&node, &["status"]).await.exits(ExitCode::Unreachable);
    assert_eq!(dead.stderr.trim().lines().count(), 1, "{}", dead.stderr);
}

#[tokio::test]
async fn a_cycle_from_the_command_line() {
    let node = Setup::pair().by_hand().build();
    let agent = node.start().await;
    let plan = node.dir().join("plan.toml");
    let text = "name = \"tiny\"\n\n[[step]]\naction = \"start\"\nengine = \"B\"\n\n\
                [[step]]\naction = \"sleep_cycles\"\nengine = \"B\"\ntier = \"level1\"\n";
    std::fs::write(&plan, text).unwrap();
    run(&node, &["cycle", "run", &plan.display().to_string()]).await.exits(ExitCode::Ok);
    let list = run(&node, &["cycle", "list"]).await.exits(ExitCode::Ok);
    assert!(list.stdout.contains("tiny") && list.stdout.contains("quick"), "{}", list.stdout);
    let report = json(&node, &["report", "latest"]).await;
    assert_eq!(report["status"], "PASS", "{report:#}");
    let table = run(&node, &["report", "latest", "--format", "table"]).await.exits(ExitCode::Ok);
    assert!(table.stdout.contains("PASS"), "{}", table.stdout);

    std::fs::write(&plan, text.replace("level1", "levle1")).unwrap();
    let wrong = run(&node, &["cycle", "run", &plan.display().to_string()]).await.exits(ExitCode::BadFile);
    assert!(wrong.stderr.contains("levle1"), "{}", wrong.stderr);
    run(&node, &["cycle", "run", "/no/such/plan.toml"]).await.exits(ExitCode::BadFile);
    until("the node to be idle", async || agent.status().await.operation.is_none()).await;
    agent.stop().await;
}
