//! What goes on while the service runs: cycles by timer, engines that the kernel kills.

use crate::installed::Installed;
use hotbunk_tests::{until, until_some};

/// A cycle by its unit and by its timer leaves a report; stopped, it is cancelled; without an agent it does not start one.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_cycle_runs_by_its_unit_and_by_its_timer() {
    let node = Installed::started("").await;
    node.machine.sh("systemctl start hotbunk-cycle@quick").await;
    let result = "systemctl show -p Result --value hotbunk-cycle@quick";
    assert_eq!(node.machine.sh(result).await, "success");
    let said = node.machine.sh("journalctl --no-pager -o cat -u hotbunk-cycle@quick").await;
    assert!(said.contains("PASS"), "{said}");
    let report = node.ctl("report").await;
    assert!(report.stdout.contains("Plan quick") && report.stdout.contains("PASS"), "{report:?}");

    // By the timer, an hour of the night that is now.
    let now = "[Timer]\nOnCalendar=\nRandomizedDelaySec=0\nOnActiveSec=100ms\nAccuracySec=1ms\n";
    node.machine.sh("mkdir -p /etc/systemd/system/hotbunk-cycle@quick.timer.d").await;
    node.machine.write("/etc/systemd/system/hotbunk-cycle@quick.timer.d/now.conf", now).await;
    node.machine.sh("systemctl daemon-reload && systemctl enable --now hotbunk-cycle@quick.timer").await;
    let runs = "hotbunk-ctl --json cycle list";
    let over = async || node.machine.sh(runs).await.matches("\"succeeded\"").count();
    until("the second report", async || over().await == 2).await;
    node.machine.sh("systemctl disable --now hotbunk-cycle@quick.timer").await;

    // A restart of the agent cancels it, and begins it anew.
    node.machine.sh("systemctl start --no-block hotbunk-cycle@reference").await;
    let run = async || node.status().await.and_then(|status| Some(status.cycle?.id));
    let first = until_some("it to run", async || run().await).await;
    node.machine.sh("systemctl restart hotbunk-agent").await;
    until("it to run again", async || run().await.is_some_and(|id| id != first)).await;
    node.machine.sh("systemctl stop hotbunk-cycle@reference").await;
    until("it to be cancelled", async || run().await.is_none() && node.status().await.is_some()).await;
    node.settled("A").await;

    // Stopped in the middle.
    node.machine.sh("systemctl start --no-block hotbunk-cycle@reference").await;
    until("it to run", async || node.status().await.is_some_and(|status| status.cycle.is_some())).await;
    node.machine.sh("systemctl stop hotbunk-cycle@reference").await;
    until("it to be cancelled", async || node.status().await.is_some_and(|status| status.cycle.is_none()))
        .await;
    node.settled("A").await;
    node.model("B").serves().await;

    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    assert_ne!(node.machine.run("systemctl start hotbunk-cycle@quick", "").await.code, Some(0));
    node.is("ActiveState=inactive").await;
}

/// An engine that is killed, as by the kernel for its memory, is the agent's to handle: systemd leaves the service alone.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn an_engine_that_is_killed_is_no_end_of_the_service() {
    let node = Installed::started("").await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    let of_a: Vec<String> = node
        .members()
        .await
        .iter()
        .filter(|(_, group)| group.starts_with("/hotbunk/A-"))
        .map(|(pid, _)| pid.to_string())
        .collect();
    assert!(of_a.len() > 1, "a tree: {of_a:?}");
    node.machine.sh(&format!("kill -9 {}", of_a.join(" "))).await;
    until("A to have another process", async || {
        node.pids().await.get("A").is_some_and(|pid| *pid != pids["A"])
    })
    .await;
    node.settled("A").await;
    assert_eq!(node.pids().await["B"], pids["B"]);
    node.is(&format!(
        "ActiveState=active SubState=running MainPID={main} NRestarts=0 Result=success OOMPolicy=continue"
    ))
    .await;
    node.model("A").serves().await;
    // Told as an error, and nothing else is: by priority.
    let errors = node.machine.sh("journalctl --no-pager -o cat -p err -u hotbunk-agent").await;
    assert!(errors.lines().count() == 1 && errors.contains("code=\"crashed\""), "{errors}");
    assert!(errors.starts_with("ERROR"), "no time of its own: {errors}");
    // The group of the one that was killed is gone with it.
    let groups = node.machine.sh("ls -d /sys/fs/cgroup/system.slice/hotbunk-agent.service/hotbunk/*/").await;
    assert_eq!(groups.lines().count(), 2, "{groups}");
}
