//! `hotbunk-agent demo`: one command, no GPU, no vLLM.

use hotbunk_api::error::ExitCode;
use hotbunk_tests::{agent_binary, living, signal, until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

fn demo(out: &Path, more: &[&str]) -> Child {
    Command::new(agent_binary())
        .args(["demo", "--plan", "quick", "--speed", "100"])
        .args(more)
        .arg("--out")
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
    let output = demo(dir.path(), &[]).wait_with_output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), code(ExitCode::Ok), "{out}\n{err}");
    assert!(out.contains("PASS") && out.contains("switch-report.json"), "{out}");
    for what in ["control socket:", "metrics:", "gateway: http://127.0.0.1:"] {
        assert!(err.contains(what), "{what} in {err}");
    }
    let report = std::fs::read(dir.path().join("switch-report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["status"], "PASS");
    assert_eq!(report["handoffs"].as_array().map(Vec::len), Some(4), "{report:#}");
    assert_eq!(living(dir.path()), []);
}

/// Ctrl-C, and the end of the terminal.
#[tokio::test]
async fn an_interrupted_demo_stops_its_engines() {
    for end in [Signal::INT, Signal::HUP] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = demo(dir.path(), &[]);
        let engines = || living(dir.path()).into_iter().filter(|p| p.command.contains("sim-engine")).count();
        until("an engine to run", async || engines() > 0).await;
        signal(child.id().unwrap(), end);
        let status = child.wait().await.unwrap();
        assert_eq!(status.code(), code(ExitCode::Interrupted));
        assert_eq!(living(dir.path()), []);
    }
}

/// The folder of a demo that runs is refused, and nothing in it is changed.
#[tokio::test]
async fn a_demo_keeps_out_of_the_folder_of_one_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = demo(dir.path(), &["--stay"]);
    let engines = || living(dir.path()).into_iter().filter(|p| p.command.contains("sim-engine")).count();
    until("an engine to run", async || engines() > 0).await;
    let config = || std::fs::read_to_string(dir.path().join("hotbunk.toml")).unwrap();
    let before = config();
    let second = demo(dir.path(), &["--vllm", "0.20"]).wait_with_output().await.unwrap();
    assert_eq!(second.status.code(), code(ExitCode::Failed));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("in use by another agent"), "{said}");
    assert_eq!(config(), before);
    signal(first.id().unwrap(), Signal::INT);
    first.wait().await.unwrap();
    assert_eq!(living(dir.path()), []);
}

/// What a newcomer pastes works as it is printed, and the second line switches to the other model.
#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
async fn the_curl_lines_of_a_demo_that_stays_work() {
    if std::process::Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("not run: there is no curl");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path(), &["--stay"]);
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut pasted = Vec::new();
    loop {
        let line = said.next_line().await.unwrap().expect("it stays");
        match line.trim() {
            "Ctrl-C ends it." => break,
            line if line.contains("/v1/completions") => pasted.push(line.to_owned()),
            _ => {}
        }
    }
    assert_eq!(pasted.len(), 2, "{pasted:?}");
    let mut answers = Vec::new();
    for line in pasted.iter().chain(&pasted) {
        let output = Command::new("/bin/sh").args(["-c", line]).output().await.unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {line}: {}", String::from_utf8_lossy(&output.stdout)));
        assert!(answer["choices"][0]["text"].is_string(), "{answer}");
        answers.push(answer["model"].clone());
    }
    assert_ne!(answers[0], answers[1]);
    assert_eq!(answers[..2], answers[2..]);
    signal(child.id().unwrap(), Signal::INT);
    assert_eq!(child.wait().await.unwrap().code(), code(ExitCode::Ok));
    assert_eq!(living(dir.path()), []);
}
