//! The binary against a fake agent: what it writes where, and how it exits.

mod fake;

use fake::Fake;
use hotbunk_api::error::ExitCode;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a command did.
struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Done {
    #[track_caller]
    fn exits(self, code: ExitCode) -> Self {
        assert_eq!(
            self.code,
            Some(i32::from(code.number())),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Exactly one line, and nothing on stdout.
    #[track_caller]
    fn says_one_line(self) -> Self {
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// Both streams and the code, for snapshots.
    fn whole(&self) -> String {
        let code = self.code.map_or_else(|| "none".to_owned(), |c| c.to_string());
        format!("exit {code}\n--- stdout\n{}--- stderr\n{}", self.stdout, self.stderr)
    }
}

fn command(socket: Option<&Path>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctl"));
    command.args(args).env_clear().env("TZ", "UTC").env("COLUMNS", "100").stdin(Stdio::null());
    if let Some(socket) = socket {
        command.env("HOTBUNK_SOCKET", socket);
    }
    command
}

fn done(command: &mut Command) -> Done {
    let output = command.output().unwrap();
    Done {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn ctl(fake: &Fake, args: &[&str]) -> Done {
    done(&mut command(Some(&fake.socket), args))
}

#[test]
fn help_texts() {
    let help = |args: &[&str]| {
        let done = done(&mut command(None, args)).exits(ExitCode::Ok);
        assert_eq!(done.stderr, "");
        done.stdout
    };
    insta::assert_snapshot!("help", help(&["--help"]));
    for name in [
        "status",
        "top",
        "switch",
        "explain",
        "sleep",
        "wake",
        "start",
        "stop",
        "restart",
        "adopt",
        "reset",
        "pause",
        "resume",
        "reload",
        "cycle",
        "report",
        "journal",
        "logs",
        "doctor",
        "check",
        "completions",
        "man",
    ] {
        insta::assert_snapshot!(format!("help_{name}"), help(&[name, "--help"]));
    }
    insta::assert_snapshot!("help_cycle_run", help(&["cycle", "run", "--help"]));
}

#[test]
fn status_for_people_and_for_programs() {
    let fake = Fake::start();
    insta::assert_snapshot!("status", ctl(&fake, &["status"]).exits(ExitCode::Ok).whole());
    let json = ctl(&fake, &["--json", "status"]).exits(ExitCode::Ok).json();
    assert_eq!(json["engines"][1]["tier"], "level1");
    assert_eq!(json["devices"][0]["foreign_bytes"], Value::Null);
}

#[test]
fn a_switch_is_waited_for() {
    let fake = Fake::start();
    insta::assert_snapshot!("switch", ctl(&fake, &["switch", "B"]).exits(ExitCode::Ok).whole());
    insta::assert_snapshot!("switch_awake", ctl(&fake, &["switch", "A"]).exits(ExitCode::Ok).whole());
    let json = ctl(&fake, &["switch", "B", "--json", "--id", "mine"]).exits(ExitCode::Ok).json();
    assert_eq!((json["id"].as_str(), json["state"].as_str()), (Some("mine"), Some("succeeded")));
    let id = ctl(&fake, &["switch", "B", "--no-wait", "--id", "mine"]).exits(ExitCode::Ok);
    assert_eq!(id.stdout, "mine\n");
}

#[test]
fn a_second_switch_joins_or_is_refused_with_the_reason() {
    let fake = Fake::start();
    insta::assert_snapshot!(
        "switch_joins",
        ctl(&fake, &["switch", "B", "--id", "joins"]).exits(ExitCode::Ok).whole()
    );
    let refused = ctl(&fake, &["switch", "B", "--id", "second"]).exits(ExitCode::Refused).says_one_line();
    insta::assert_snapshot!("switch_refused", refused.whole());
    let json = ctl(&fake, &["switch", "B", "--id", "second", "--json"]).exits(ExitCode::Refused).json();
    assert_eq!(
        (json["error"]["code"].as_str(), json["error"]["operation"].as_str()),
        (Some("busy"), Some("0193"))
    );
}

#[test]
fn failures_have_a_line_and_a_code_of_their_own() {
    let fake = Fake::start();
    let failed = ctl(&fake, &["switch", "B", "--id", "fails"]).exits(ExitCode::Failed).says_one_line();
    insta::assert_snapshot!("switch_fails", failed.whole());
    let drains =
        ctl(&fake, &["switch", "B", "--id", "drains"]).exits(ExitCode::DrainDeadline).says_one_line();
    insta::assert_snapshot!("switch_drain_deadline", drains.whole());
    let json = ctl(&fake, &["switch", "B", "--id", "fails", "--json"]).exits(ExitCode::Failed).json();
    assert_eq!(json["error"]["code"], "wake_failed", "the operation itself, once");
}

#[test]
fn every_operation_has_its_command() {
    let fake = Fake::start();
    let cases: [(&[&str], &str); 9] = [
        (&["sleep", "B", "--tier", "level2", "--drain", "abort", "--deadline", "1m30s"], "sleep"),
        (&["wake", "B"], "wake"),
        (&["start", "B"], "start"),
        (&["stop", "B", "--drain", "wait"], "stop"),
        (&["restart", "B"], "restart"),
        (&["reset", "B"], "reset"),
        (&["adopt", "B"], "adopt"),
        (&["pause", "--tier", "stopped", "--drain", "abort"], "pause"),
        (&["resume"], "resume"),
    ];
    for (args, kind) in cases {
        let done = done(command(Some(&fake.socket), args).args(["--json", "--no-wait"])).exits(ExitCode::Ok);
        let json = done.json();
        assert_eq!((json["kind"].as_str(), json["request"]["kind"].as_str()), (Some(kind), Some(kind)));
        if kind == "sleep" {
            assert_eq!(json["request"]["tier"], "level2");
            assert_eq!(json["request"]["deadline_s"], 90.0);
        }
    }
}

#[test]
fn maintenance_begins_and_ends() {
    let fake = Fake::start();
    let paused = ctl(&fake, &["pause"]).exits(ExitCode::Ok);
    assert_eq!(paused.stdout, "the node is paused, done after 1.50 s\n");
    let resumed = ctl(&fake, &["resume"]).exits(ExitCode::Ok);
    assert_eq!(resumed.stdout, "the node serves again, done after 1.50 s\n");
}

#[test]
fn the_gateway_is_watched_as_text_and_as_json() {
    let fake = Fake::start();
    let text = ctl(&fake, &["top", "-n", "2", "--interval", "100ms"]).exits(ExitCode::Ok);
    assert_eq!(text.stdout.matches("node-7: gateway: http://127.0.0.1:8000").count(), 2, "{}", text.stdout);
    let json = ctl(&fake, &["top", "-n", "1", "--json"]).exits(ExitCode::Ok).json();
    assert_eq!(json["lines"][1]["held"], 3);
}

#[test]
fn explanations() {
    let fake = Fake::start();
    let explained = ctl(&fake, &["explain", "B"]).exits(ExitCode::Ok);
    insta::assert_snapshot!("explain", explained.whole());
    let dry = ctl(&fake, &["switch", "B", "--dry-run", "--deadline", "5s"]).exits(ExitCode::Ok);
    assert_eq!(dry.stdout, explained.stdout);
    insta::assert_snapshot!("explain_awake", ctl(&fake, &["explain", "A"]).exits(ExitCode::Ok).whole());
    let refused = ctl(&fake, &["explain", "B", "--strategy", "park"]).exits(ExitCode::Refused);
    insta::assert_snapshot!("explain_refused", refused.whole());
}

#[test]
fn an_unknown_engine_is_answered_with_the_known_ones() {
    let fake = Fake::start();
    let cases: [&[&str]; 5] =
        [&["switch", "b"], &["explain", "b"], &["wake", "b"], &["logs", "b"], &["switch", "b", "--dry-run"]];
    for args in cases {
        let done = ctl(&fake, args).exits(ExitCode::Unknown).says_one_line();
        let expected = "ctl: there is no engine `b`; configured engines: A, B, llama-8b; did you mean `B`?\n";
        assert_eq!(done.stderr, expected);
    }
    let far = ctl(&fake, &["switch", "mistral"]).exits(ExitCode::Unknown);
    assert!(!far.stderr.contains("did you mean"), "{}", far.stderr);
}

#[test]
fn a_dead_agent_is_named_with_its_socket_and_how_to_start_it() {
    let mut fake = Fake::start();
    fake.stop();
    let left_behind = ctl(&fake, &["status"]).exits(ExitCode::Unreachable).says_one_line();
    assert!(left_behind.stderr.contains("left this socket behind"), "{}", left_behind.stderr);
    std::fs::remove_file(&fake.socket).unwrap();
    let missing = ctl(&fake, &["switch", "B"]).exits(ExitCode::Unreachable).says_one_line();
    for part in [fake.socket.to_str().unwrap(), "no agent answers", "there is no such socket"] {
        assert!(missing.stderr.contains(part), "{part}: {}", missing.stderr);
    }
    let json = ctl(&fake, &["status", "--json"]).exits(ExitCode::Unreachable).json();
    assert_eq!(json["error"]["code"], "unreachable");

    let flag = ["--socket", "/nowhere/x.sock", "status"];
    let flagged = ctl(&fake, &flag).exits(ExitCode::Unreachable);
    assert!(
        flagged.stderr.contains("/nowhere/x.sock"),
        "the flag goes before the variable: {}",
        flagged.stderr
    );
}

#[test]
fn something_else_on_the_socket_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("x.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).unwrap();
        std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
    });
    let done = done(&mut command(Some(&socket), &["status"])).exits(ExitCode::Failed).says_one_line();
    assert!(done.stderr.contains("not one of Hotbunk's control API"), "{}", done.stderr);
    thread.join().unwrap();
}

#[test]
fn wrong_flags_are_usage_errors() {
    let fake = Fake::start();
    let cases: [&[&str]; 7] = [
        &["switch"],
        &["switch", "B", "--strategy", "fast"],
        &["switch", "B", "--leave", "awake"],
        &["switch", "B", "--deadline", "30"],
        &["sleep", "B", "--tier", "stopped"],
        &["frobnicate"],
        &[],
    ];
    for args in cases {
        let done = ctl(&fake, args).exits(ExitCode::Usage);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
    let unit = ctl(&fake, &["switch", "B", "--deadline", "30"]);
    assert!(unit.stderr.contains("it needs a unit: `30s`?"), "{}", unit.stderr);
    let nowhere = done(&mut command(None, &["status"]));
    // Root has a place by default, others need to say one.
    assert!([Some(2), Some(3)].contains(&nowhere.code), "{}", nowhere.stderr);
}

#[test]
fn cycles_are_run_and_shown() {
    let fake = Fake::start();
    insta::assert_snapshot!(
        "cycle_run",
        ctl(&fake, &["cycle", "run", "quick", "--id", "r"]).exits(ExitCode::Ok).whole()
    );
    let failed = ctl(&fake, &["cycle", "run", "quick", "--id", "fails"]).exits(ExitCode::Failed);
    insta::assert_snapshot!("cycle_fails", failed.whole());
    insta::assert_snapshot!("cycle_list", ctl(&fake, &["cycle", "list"]).exits(ExitCode::Ok).whole());
    insta::assert_snapshot!(
        "cycle_show",
        ctl(&fake, &["cycle", "show", "run-1"]).exits(ExitCode::Ok).whole()
    );
    insta::assert_snapshot!(
        "cycle_cancel",
        ctl(&fake, &["cycle", "cancel", "run-2"]).exits(ExitCode::Ok).whole()
    );
    ctl(&fake, &["cycle", "cancel", "run-1"]).exits(ExitCode::Refused).says_one_line();
    ctl(&fake, &["cycle", "show", "none"]).exits(ExitCode::Unknown).says_one_line();
    let unknown = ctl(&fake, &["cycle", "run", "qick"]).exits(ExitCode::Unknown).says_one_line();
    assert_eq!(unknown.stderr, "ctl: there is no plan `qick`; did you mean `quick`?\n");
}

#[test]
fn plan_files_are_sent_and_their_errors_have_a_code_of_their_own() {
    let fake = Fake::start();
    let file = fake.directory().join("mine.toml");
    std::fs::write(&file, "wrong = 1\n").unwrap();
    let path = file.to_str().unwrap();
    let invalid = ctl(&fake, &["cycle", "run", path]).exits(ExitCode::BadFile).says_one_line();
    assert!(invalid.stderr.contains("mine.toml:1: unknown step `wrong`"), "{}", invalid.stderr);
    std::fs::write(&file, "name = \"mine\"\n").unwrap();
    assert_eq!(
        ctl(&fake, &["cycle", "run", path, "--no-wait", "--id", "r"]).exits(ExitCode::Ok).stdout,
        "r\n"
    );
    ctl(&fake, &["cycle", "run", "./none.toml"]).exits(ExitCode::BadFile).says_one_line();
}

#[test]
fn reports_in_both_forms() {
    let fake = Fake::start();
    assert_eq!(ctl(&fake, &["report"]).exits(ExitCode::Ok).stdout, "REPORT OF latest\nPASS\n");
    assert_eq!(
        ctl(&fake, &["report", "run-1", "--format", "json"]).exits(ExitCode::Ok).json()["id"],
        "run-1"
    );
    assert_eq!(ctl(&fake, &["report", "run-1", "--json"]).exits(ExitCode::Ok).json()["id"], "run-1");
}

#[test]
fn journal_and_logs() {
    let fake = Fake::start();
    insta::assert_snapshot!("journal", ctl(&fake, &["journal", "--after", "40"]).exits(ExitCode::Ok).whole());
    let json = ctl(&fake, &["journal", "--json"]).exits(ExitCode::Ok).json();
    assert_eq!(json["entries"][1]["record"]["after"]["device"], 7);
    assert_eq!(ctl(&fake, &["logs", "A"]).exits(ExitCode::Ok).stdout, "one\ntwo\n");
    assert_eq!(ctl(&fake, &["logs", "A", "-f", "-n", "5"]).exits(ExitCode::Ok).stdout, "one\ntwo\nthree\n");
    let followed = ctl(&fake, &["logs", "A", "-f", "--json"]).exits(ExitCode::Ok).stdout;
    assert_eq!(followed.lines().count(), 3, "a document a line: {followed}");
}

#[test]
fn a_reload_says_what_becomes_of_each_engine_and_of_a_file_that_is_refused() {
    let fake = Fake::start();
    let write = |text: &str| std::fs::write(fake.directory().join("hotbunk.toml"), text).unwrap();
    write("new");
    insta::assert_snapshot!("reload", ctl(&fake, &["reload"]).exits(ExitCode::Ok).whole());
    insta::assert_snapshot!(
        "reload_dry_run",
        ctl(&fake, &["reload", "--dry-run"]).exits(ExitCode::Ok).whole()
    );
    insta::assert_snapshot!("reload_now", ctl(&fake, &["reload", "--now"]).exits(ExitCode::Ok).whole());
    let json = ctl(&fake, &["--json", "reload"]).exits(ExitCode::Ok).json();
    assert_eq!((&json["outcome"], &json["engines"][0]["change"]), (&"applied".into(), &"restart".into()));
    write("same");
    let same = ctl(&fake, &["reload", "--now"]).exits(ExitCode::Ok);
    assert_eq!(same.stdout, "/etc/hotbunk/hotbunk.toml: nothing has changed\n");
    write("wrong");
    insta::assert_snapshot!("reload_invalid", ctl(&fake, &["reload"]).exits(ExitCode::BadFile).whole());
    write("listen");
    insta::assert_snapshot!("reload_refused", ctl(&fake, &["reload"]).exits(ExitCode::Refused).whole());
    ctl(&fake, &["reload", "--now", "--dry-run"]).exits(ExitCode::Usage);
}

#[test]
fn the_doctor_and_the_check() {
    let fake = Fake::start();
    insta::assert_snapshot!("doctor", ctl(&fake, &["doctor"]).exits(ExitCode::Failed).whole());
    let config = fake.directory().join("hotbunk.toml");
    std::fs::write(&config, "[agent]\n").unwrap();
    let path = config.to_str().unwrap();
    ctl(&fake, &["check", path]).exits(ExitCode::Ok);
    std::fs::write(&config, "wrong = 1\n").unwrap();
    let wrong = ctl(&fake, &["check", path]).exits(ExitCode::BadFile);
    assert!(
        wrong.stdout.contains("hotbunk.toml:1:1") && wrong.stderr.contains("1 error"),
        "{}",
        wrong.whole()
    );
    assert_eq!(ctl(&fake, &["check", path, "--json"]).exits(ExitCode::BadFile).json()["ok"], false);
    ctl(&fake, &["check", "/nowhere.toml"]).exits(ExitCode::BadFile).says_one_line();
    let dead =
        ctl(&fake, &["check", path, "--socket", "/nowhere"]).exits(ExitCode::Unreachable).says_one_line();
    assert!(dead.stderr.contains(&format!("`hotbunk-agent check {path}`")), "{}", dead.stderr);
}

#[test]
fn interrupting_ends_the_waiting_and_names_what_goes_on() {
    let fake = Fake::start();
    let mut child = command(Some(&fake.socket), &["switch", "B", "--id", "endless", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fake.wait_for_poll();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert_eq!(stderr, "ctl: interrupted; operation endless goes on; `ctl status` shows it\n");
    assert!(stdout.contains(r#""code": "interrupted""#), "{stdout}");
}

#[test]
fn losing_the_agent_while_waiting_is_an_unknown_outcome() {
    let mut fake = Fake::start();
    let child = command(Some(&fake.socket), &["switch", "B", "--id", "endless"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fake.wait_for_poll();
    fake.stop();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(8), "{stderr}");
    assert!(stderr.starts_with("ctl: how operation endless ended is not known: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let fake = Fake::start();
    let mut child = command(Some(&fake.socket), &["journal", "-n", "10000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn watching_shows_again_and_ends_with_its_reader() {
    let fake = Fake::start();
    let mut child = command(Some(&fake.socket), &["status", "--watch", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    for _ in 0..2 {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        assert!(serde_json::from_str::<Value>(&line).unwrap()["engines"].is_array());
    }
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn what_is_written_as_json_follows_the_published_schemas() {
    let fake = Fake::start();
    let document = hotbunk_api::openapi::openapi();
    let cases: [(&[&str], &str); 9] = [
        (&["status"], "Status"),
        (&["switch", "B"], "Operation"),
        (&["explain", "B"], "Explanation"),
        (&["cycle", "list"], "CycleList"),
        (&["cycle", "show", "fails"], "CycleRun"),
        (&["journal"], "JournalPage"),
        (&["logs", "A"], "LogTail"),
        (&["doctor"], "DoctorReport"),
        (&["switch", "mistral"], "ErrorBody"),
    ];
    for (args, name) in cases {
        let json = done(command(Some(&fake.socket), args).arg("--json")).json();
        let schema = serde_json::json!({
            "$ref": format!("#/components/schemas/{name}"), "components": document["components"],
        });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator.iter_errors(&json).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{args:?}: {errors:?}");
    }
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let script = done(&mut command(None, &["completions", shell])).exits(ExitCode::Ok).stdout;
        assert!(script.contains("switch") && script.contains("dry-run"), "{shell}");
    }
    assert!(done(&mut command(None, &["man"])).exits(ExitCode::Ok).stdout.contains(".TH ctl 1"));
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("man1");
    done(&mut command(None, &["man", "--dir", folder.to_str().unwrap()])).exits(ExitCode::Ok);
    for page in ["ctl.1", "ctl-switch.1", "ctl-cycle-run.1"] {
        assert!(folder.join(page).exists(), "{page}");
    }
}
