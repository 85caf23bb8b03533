//! `hotbunk-agent demo`: one command, no GPU, no vLLM.

use hotbunk_api::error::ExitCode;
use hotbunk_tests::{agent_binary, living, signal, until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;
use tokio::process::{Child, Command};

fn demo(out: &Path) -> Child {
    Command::new(agent_binary())
        .args(["demo", "--plan", "quick", "--speed", "100", "--out"])
        .arg(out)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn code(code: ExitCode) -> Option<i32> {
    Some(i32::from(code.number()))
}

#[tokio::test]
async fn the_demo_passes_and_leaves_a_report_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(dir.path()).wait_with_output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), code(ExitCode::Ok), "{out}\n{err}");
    assert!(out.contains("PASS") && out.contains("switch-report.json"), "{out}");
    assert!(err.contains("control socket:") && err.contains("metrics:"), "{err}");
    let report = std::fs::read(dir.path().join("switch-report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["status"], "PASS");
    assert_eq!(report["handoffs"].as_array().map(Vec::len), Some(4), "{report:#}");
    assert_eq!(living(dir.path()), []);
}

#[tokio::test]
async fn an_interrupted_demo_stops_its_engines() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path());
    let engines = || living(dir.path()).into_iter().filter(|p| p.command.contains("sim-engine")).count();
    until("an engine to run", async || engines() > 0).await;
    signal(child.id().unwrap(), Signal::INT);
    let status = child.wait().await.unwrap();
    assert_eq!(status.code(), code(ExitCode::Interrupted));
    assert_eq!(living(dir.path()), []);
}
