//! The units are sound as far as systemd itself can tell, and agree with the configuration's defaults.

use std::process::Command;

use super::*;
use crate::inherited::Name;

const UNITS: [&str; 6] = [
    "hotbunk-agent.service",
    "hotbunk-agent.socket",
    "hotbunk-agent-control.socket",
    "hotbunk-agent-metrics.socket",
    "hotbunk-cycle@.service",
    "hotbunk-cycle@.timer",
];

fn unit(name: &str) -> String {
    std::fs::read_to_string(root().join("systemd").join(name)).unwrap()
}

/// The value of a unit's key, which it has once.
fn value<'u>(unit: &'u str, key: &str) -> &'u str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(values.next(), None, "{key}");
    value
}

#[test]
fn the_units_pass_systemd_analyze() {
    let version = Command::new("systemd-analyze").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        skip("systemd-analyze is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for name in UNITS {
        let unit = unit(name);
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
fn a_reload_is_the_client_s_so_that_its_end_is_told() {
    assert_eq!(value(&unit("hotbunk-agent.service"), "ExecReload"), "/usr/bin/hotbunk-ctl reload");
}

#[test]
fn the_time_out_exceeds_the_agent_s_own_grace() {
    let unit = unit("hotbunk-agent.service");
    let stop = units::parse_duration(value(&unit, "TimeoutStopSec")).unwrap();
    let (config, _) = check(SOUND).unwrap();
    assert!(stop > config.node.shutdown_grace && config.node.shutdown_grace > config.gateway.upgrade_drain);
}

#[test]
fn the_sockets_are_those_of_the_configuration_by_the_names_that_the_agent_knows() {
    let (config, _) = check(SOUND).unwrap();
    let service = unit("hotbunk-agent.service");
    let handed: Vec<&str> = value(&service, "Sockets").split(' ').collect();
    let address = |address: Option<std::net::SocketAddr>| address.unwrap().to_string();
    for (name, file, listens) in [
        (Name::Gateway, "hotbunk-agent.socket", address(config.gateway.listen)),
        (Name::Metrics, "hotbunk-agent-metrics.socket", address(config.node.metrics_listen)),
        // As the service unit's RuntimeDirectory= makes it.
        (Name::Control, "hotbunk-agent-control.socket", "/run/hotbunk/control.sock".to_owned()),
    ] {
        let socket = unit(file);
        assert!(handed.contains(&file));
        assert_eq!(value(&socket, "FileDescriptorName"), name.word());
        assert_eq!(value(&socket, "Service"), "hotbunk-agent.service");
        assert_eq!(value(&socket, "ListenStream"), listens);
    }
    assert_eq!(
        value(&service, "RuntimeDirectoryPreserve"),
        "yes",
        "sockets of living engines' shims lie there"
    );
}

/// Under any user but root the client has to be told.
#[test]
fn a_cycle_s_client_is_told_where_the_agent_is() {
    assert_eq!(
        value(&unit("hotbunk-cycle@.service"), "Environment"),
        "HOTBUNK_SOCKET=/run/hotbunk/control.sock"
    );
    assert_eq!(value(&unit("hotbunk-agent-control.socket"), "ListenStream"), "/run/hotbunk/control.sock");
}

/// Engines outlive the agent, so nothing of theirs may be the unit's to clean up.
#[test]
fn what_engines_live_in_does_not_end_with_the_agent() {
    let service = unit("hotbunk-agent.service");
    assert_eq!(value(&service, "KillMode"), "process");
    assert!(value(&service, "TemporaryFileSystem").contains("/tmp:mode=1777"));
    let is_there = |key: &str| service.lines().any(|line| line.starts_with(key));
    // Their folders are removed when the agent ends.
    assert!(!is_there("PrivateTmp=") && !is_there("DynamicUser="));
    // What it exits with does not keep the unit from being started again, and again.
    assert!(!is_there("ExecStartPre=") && is_there("RestartPreventExitStatus=2 7"));
}
