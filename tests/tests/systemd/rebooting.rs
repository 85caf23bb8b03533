//! The machine goes down and comes up again.

use crate::installed::Installed;
use hotbunk_tests::until;

/// Enabled, it comes by itself after an orderly reboot and after a power failure, with engines of this boot; disabled, nothing
/// of it runs.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn it_comes_back_after_a_reboot_and_after_a_power_failure() {
    let mut node = Installed::started("").await;
    let boot_id = node.machine.sh("cat /proc/sys/kernel/random/boot_id").await;
    node.machine.sh("systemctl reboot").await;
    node.machine.boot_again().await;
    assert_ne!(node.machine.sh("cat /proc/sys/kernel/random/boot_id").await, boot_id);
    node.settled("A").await;
    node.is("ActiveState=active NRestarts=0").await;
    node.model("B").serves().await;
    let stopped = node.ctl("journal --kind agent_stopped").await;
    assert!(stopped.stdout.contains("SIGTERM"), "the engines were stopped in order: {stopped:?}");

    // Nothing is told, and what was recorded of processes means others now: the machine gives out the same numbers again.
    let before = node.pids().await;
    node.machine.cut_and_boot().await;
    let others = node.machine.sh("pgrep -l . | sort").await;
    // Who served before serves again.
    node.settled("B").await;
    for model in ["A", "B"] {
        node.model(model).serves().await;
    }
    let after = node.pids().await;
    assert_eq!((after.len(), node.living("shim").len()), (2, 2), "{before:?} {after:?}");
    for line in others.lines().filter(|line| line.contains("systemd") || line.contains("dbus")) {
        let (pid, _) = line.split_once(' ').expect("PID NAME");
        assert!(node.machine.path(&format!("/proc/{pid}")).exists(), "{line} was there before and is gone");
    }
    node.is("ActiveState=active NRestarts=0").await;

    node.machine.sh("systemctl disable --now hotbunk-agent.socket hotbunk-agent").await;
    assert_eq!((node.members().await, node.living("sim-engine")), (Vec::new(), Vec::new()));
    node.machine.cut_and_boot().await;
    node.is("ActiveState=inactive MainPID=0").await;
    assert!(node.model("A").try_models().await.is_none());
    assert_eq!(node.living("sim-engine"), Vec::<u32>::new());
}

/// Without its socket unit it serves by a socket of its own; with the sockets alone a client starts it.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_client_starts_an_agent_that_is_stopped_where_a_socket_is() {
    let node = Installed::with("").await;
    node.machine.sh("systemctl start hotbunk-agent.socket").await;
    node.is("ActiveState=inactive").await;
    until("it to be started and to serve", async || node.model("A").complete(2).await.is_ok()).await;
    node.is("ActiveState=active").await;
    node.settled("A").await;

    // Closed, the socket is nobody's: the agent that runs keeps what it was given, the next one has none.
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    node.machine.sh("rm /etc/systemd/system/hotbunk-agent.socket && systemctl daemon-reload").await;
    assert!(node.model("A").try_models().await.is_none());
    node.machine.sh("systemctl start hotbunk-agent").await;
    node.settled("A").await;
    node.model("B").serves().await;

    // The other two sockets, which are optional: the client waits through a restart.
    for socket in ["control", "metrics"] {
        node.machine
            .sh(&format!("install -m 644 systemd/hotbunk-agent-{socket}.socket /etc/systemd/system/"))
            .await;
    }
    node.machine
        .sh("install -m 644 systemd/hotbunk-agent.socket /etc/systemd/system/ && systemctl daemon-reload")
        .await;
    let sockets = "hotbunk-agent.socket hotbunk-agent-control.socket hotbunk-agent-metrics.socket";
    node.machine.sh(&format!("systemctl stop hotbunk-agent && systemctl start {sockets}")).await;
    let status = node.ctl("status").await;
    assert_eq!(status.code, Some(0), "{status:?}");
    node.machine.sh("systemctl restart hotbunk-agent & sleep 0.1; hotbunk-ctl status >/dev/null; wait").await;
    node.machine.sh("curl -sf http://127.0.0.1:9464/metrics >/dev/null").await;
    node.settled("A").await;
}
