//! Two real vLLM servers under the agent: `tests/real-vllm/run`, where an installation is at hand; and the report of the
//! run that is committed beside it.
//!
//! The run takes from five minutes to half an hour, so it only runs where `HOTBUNK_REAL_VLLM` names an installation
//! (`tests/real-vllm/README.md`): `HOTBUNK_REAL_VLLM=DIR cargo test -p hotbunk-tests --test real -- --nocapture`.

use hotbunk_api::report::{Status, SwitchReport};
use serde_json::Value;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("real-vllm")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A report of real engines: it satisfies the published schema, nothing in it is simulated, and what was planned was
/// done.
fn check(path: &Path) {
    let schema = json(&folder().join("../../agent/api/schemas/switch-report.schema.json"));
    let report = json(path);
    let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
    if let Err(e) = validator.validate(&report) {
        panic!("{}, {}: {e}", path.display(), e.instance_path());
    }
    let report: SwitchReport = serde_json::from_value(report).expect("it reads as ours");
    assert_eq!(report.status, Status::Pass);
    assert!(report.simulated.is_none(), "the engines are real");
    assert_eq!((report.switch.handoffs, report.switch.success), (10, 10));
    let auto = report.switch_auto.expect("the plan has an auto series");
    assert_eq!((auto.handoffs, auto.success), (10, 10));
}

#[test]
fn the_committed_report_is_a_report_of_real_engines() {
    check(&folder().join("switch-report.json"));
}

#[test]
fn two_real_servers_under_the_agent() {
    if std::env::var_os("HOTBUNK_REAL_VLLM").is_none() {
        let why = "SKIPPED: HOTBUNK_REAL_VLLM names no installation of vLLM; see tests/real-vllm/README.md";
        writeln!(stderr(), "{why}").expect("stderr can be written");
        return;
    }
    // Its sockets lie in it, and their paths must be short.
    let out = tempfile::Builder::new().prefix("hotbunk-real.").tempdir_in("/tmp").expect("a folder");
    let run = Command::new(folder().join("run")).arg(out.path()).status().expect("the script can be run");
    if !run.success() {
        // Logs and journal tell why.
        panic!("{run}; look into {}", out.keep().display());
    }
    check(&out.path().join("switch-report.json"));
}
