//! The units are sound as far as systemd itself can tell, and agree with the configuration's defaults.

use std::process::Command;

use super::*;

#[test]
fn the_units_pass_systemd_analyze() {
    let version = Command::new("systemd-analyze").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        skip("systemd-analyze is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for name in ["hotbunk-agent.service", "hotbunk-cycle@.service", "hotbunk-cycle@.timer"] {
        let unit = std::fs::read_to_string(root().join("systemd").join(name)).unwrap();
        // The programs are not installed here; everything else is verified as it stands.
        let unit =
            unit.replace("/usr/bin/hotbunk-agent", "/bin/true").replace("/usr/bin/hotbunk-ctl", "/bin/true");
        let path = dir.path().join(name.replace("@.", "@reference."));
        std::fs::write(&path, unit).unwrap();
        paths.push(path);
    }
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&paths)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Outside a booted systemd it also complains about the machine; only lines about our units count.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("hotbunk")).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
    assert!(output.status.success(), "{said}");
}

#[expect(clippy::print_stderr, reason = "a skipped test has no other voice")]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

#[test]
fn the_time_out_exceeds_the_agent_s_own_grace() {
    let unit = std::fs::read_to_string(root().join("systemd/hotbunk-agent.service")).unwrap();
    let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
    let (config, _) = check(SOUND).unwrap();
    assert!(units::parse_duration(stop).unwrap() > config.node.shutdown_grace);
}
