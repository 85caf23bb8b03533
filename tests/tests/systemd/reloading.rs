//! A changed configuration file, and `systemctl reload`.

use crate::installed::Installed;
use hotbunk_tests::until;

/// What has changed is applied to the running agent. A file that is no good fails the reload, with the reasons in the journal
/// and in `systemctl status`, and everything goes on as before.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_changed_file_is_applied_and_a_bad_one_refused() {
    let node = Installed::started("").await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    node.edit(|text| text.replacen("name = \"B\"\n", "name = \"B\"\naliases = [\"small\"]\n", 1)).await;
    node.machine.sh("systemctl reload hotbunk-agent").await;
    let models = node.model("A").try_models().await.expect("the gateway").to_string();
    assert!(models.contains("\"small\""), "{models}");

    let before = node.machine.sh("cat /etc/hotbunk/hotbunk.toml").await;
    node.edit(|text| text.replace("ready_interval", "raedy_interval").replace("port = 8102", "port = \"x\""))
        .await;
    let refused = node.machine.run("systemctl reload hotbunk-agent", "").await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let shown = node.machine.run("systemctl --no-pager -l status hotbunk-agent", "").await;
    assert_eq!(shown.code, Some(0), "it is active");
    for words in ["raedy_interval", "hotbunk.toml:", "Reload failed"] {
        assert!(node.journal().await.contains(words), "{words}: {}", node.journal().await);
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    node.is(&format!("ActiveState=active SubState=running MainPID={main} NRestarts=0")).await;
    node.model("B").serves().await;
    // What a running agent cannot take in is said with the way to apply it.
    node.machine
        .write("/etc/hotbunk/hotbunk.toml", &before.replace("127.0.0.1:8000", "127.0.0.1:8003"))
        .await;
    assert_eq!(node.machine.run("systemctl reload hotbunk-agent", "").await.code, Some(1));
    until("the way out", async || node.journal().await.contains("systemctl restart hotbunk-agent")).await;
    node.machine.write("/etc/hotbunk/hotbunk.toml", &before).await;
    node.machine.sh("systemctl reload hotbunk-agent").await;
    assert_eq!((node.pids().await, node.main_pid().await), (pids, main));
}
