//! Configurations with mistakes: everything at once, before anything is bound or started.

use hotbunk_api::error::ExitCode;
use hotbunk_tests::{Agent, Setup, ctl};

/// Several mistakes of different kinds.
const MISTAKES: [(&str, &str, &str); 4] = [
    // What is written, what it becomes, what is said of it.
    ("shutdown_grace = \"30s\"", "shutdwon_grace = \"30s\"", "shutdwon_grace"),
    ("reconcile_interval = \"200ms\"", "reconcile_interval = 200", "reconcile_interval"),
    ("awake_at_start = \"A\"", "awake_at_start = \"Z\"", "there is no engine \"Z\""),
    ("name = \"B\"\nmodel", "name = \"A\"\nmodel", "A"),
];

#[tokio::test]
async fn everything_that_is_wrong_is_said_at_once_and_nothing_is_started() {
    let node = Setup::pair().build();
    let good = std::fs::read_to_string(node.config()).unwrap();
    let agent = hotbunk_tests::agent_binary();
    let check = |config: &str| {
        std::fs::write(node.config(), config).unwrap();
        std::process::Command::new(&agent).arg("check").arg(node.config()).output().unwrap()
    };
    assert!(check(&good).status.success());

    let mut bad = good.clone();
    for (right, wrong, _) in MISTAKES {
        assert!(bad.contains(right), "{right} is not in\n{bad}");
        bad = bad.replacen(right, wrong, 1);
    }
    let checked = check(&bad);
    assert_eq!(checked.status.code(), Some(i32::from(ExitCode::BadFile.number())));
    let mut child = Agent::spawn(&node, &[]);
    assert_eq!(child.wait().unwrap().code(), Some(i32::from(ExitCode::BadFile.number())));
    let log = std::fs::read_to_string(node.dir().join("agent.log")).unwrap();
    for (_, wrong, said) in MISTAKES {
        assert!(log.contains(said), "nothing said of {wrong} in\n{log}");
    }
    assert!(log.contains("did you mean") || log.contains("shutdown_grace"), "a suggestion\n{log}");
    let errors = log.lines().filter(|l| l.starts_with("error")).count();
    assert!(errors >= MISTAKES.len(), "{errors} errors\n{log}");
    assert!(!node.socket().exists() && !node.dir().join("state").exists(), "nothing was made");
    assert_eq!(node.living(), []);

    // The client says the same of the same file, with the agent and without it.
    std::fs::write(node.config(), &good).unwrap();
    let running = node.start().await;
    let bad_file = node.dir().join("bad.toml");
    std::fs::write(&bad_file, &bad).unwrap();
    let told =
        ctl(&node.socket(), &["check", &bad_file.display().to_string()]).await.exits(ExitCode::BadFile);
    let told = told.stdout + &told.stderr;
    for (_, wrong, said) in MISTAKES {
        assert!(told.contains(said), "nothing said of {wrong} in\n{told}");
    }
    drop(running);
}
