//! Installed, enabled, started, stopped.

use crate::installed::Installed;
use hotbunk_tests::until;

/// README's lines, as they stand: ready by notification, as the unit's own user without any privilege, each engine in a control
/// group of its own, the gateway behind systemd's socket; and stopped, in order, with nothing left.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn it_is_installed_started_and_stopped_as_readme_says() {
    let node = Installed::started("").await;
    node.is("ActiveState=active SubState=running Type=notify Result=success NRestarts=0 WatchdogUSec=30s OOMPolicy=continue").await;
    let main = node.main_pid().await;
    let status = node.machine.sh(&format!("cat /proc/{main}/status")).await;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(field("Uid:"), node.machine.sh("id -u hotbunk").await);
    assert_ne!(field("Uid:"), "0");
    assert_eq!(
        (&*field("NoNewPrivs:"), &*field("CapEff:"), &*field("CapBnd:")),
        ("1", "0000000000000000", "0000000000000000")
    );
    assert_eq!(
        node.machine.sh("systemctl is-active hotbunk-agent.socket hotbunk-agent").await,
        "active\nactive"
    );
    assert_eq!(
        node.machine.sh("systemctl is-enabled hotbunk-agent.socket hotbunk-agent").await,
        "enabled\nenabled"
    );

    let (pids, members) = (node.pids().await, node.members().await);
    for (engine, pid) in &pids {
        let (_, group) =
            members.iter().find(|(of, _)| of == pid).expect("the engine is in the service's group");
        assert!(group.starts_with(&format!("/hotbunk/{engine}-")), "{group}");
    }
    for model in ["A", "B", "A"] {
        node.model(model).serves().await;
    }
    assert_eq!(node.pids().await, pids);

    // Who may operate it: root, and its own user, who has to say where.
    let by = |user: &str| {
        format!(
            "setpriv --reuid={user} --clear-groups --regid={user} hotbunk-ctl --socket /run/hotbunk/control.sock status"
        )
    };
    assert_eq!(node.machine.run(&by("hotbunk"), "").await.code, Some(0));
    let refused = node.machine.run(&by("daemon"), "").await;
    assert_eq!(refused.code, Some(9), "{refused:?}");

    // systemd itself may be upgraded.
    node.machine.sh("systemctl daemon-reexec").await;
    node.is(&format!("ActiveState=active MainPID={main} NRestarts=0")).await;
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    node.is("ActiveState=inactive Result=success").await;
    assert_eq!((node.members().await, node.living("sim-engine")), (Vec::new(), Vec::new()));
    assert!(node.model("A").try_models().await.is_none(), "nobody listens");
    // And again.
    node.machine.sh("systemctl start hotbunk-agent.socket hotbunk-agent").await;
    node.settled("A").await;
    node.model("B").serves().await;
    until("the journal to say that it is ready", async || node.journal().await.contains("Started")).await;
}
