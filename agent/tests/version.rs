//! The binary says who it is. (That there is an integration test here also makes cargo build the binary, which the tests
//! of the package `hotbunk-tests` run.)

use std::process::Command;

#[test]
fn the_binary_says_its_version_and_refuses_what_it_does_not_know() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_hotbunk-agent")).args(args).output().unwrap();
    let version = run(&["--version"]);
    assert!(version.status.success());
    let text = String::from_utf8(version.stdout).unwrap();
    assert_eq!(text, format!("hotbunk-agent {}\n", env!("CARGO_PKG_VERSION")));
    let wrong = run(&["no-such-command"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.stdout.is_empty());
}
