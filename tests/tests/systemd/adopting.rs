//! Servers that something else on the machine runs, and `ctl adopt`.

use crate::installed::Installed;
use hotbunk_api::status::{Condition, StoppedWhy};
use hotbunk_tests::until;

/// Installed and started, with an engine A that nobody starts.
async fn without_a() -> Installed {
    let node = Installed::with("").await;
    node.edit(|text| {
        text.replace("awake_at_start = \"A\"", "awake_at_start = \"B\"").replacen(
            "name = \"A\"\n",
            "name = \"A\"\nautostart = false\n",
            1,
        )
    })
    .await;
    node.machine.sh("systemctl start hotbunk-agent.socket hotbunk-agent").await;
    node.settled("B").await;
    node
}

/// The words by which the configuration starts A.
async fn command(node: &Installed) -> String {
    let text = node.machine.sh("cat /etc/hotbunk/hotbunk.toml").await;
    let (_, words) = text.split_once("command = [").expect("a command");
    let (words, _) = words.split_once(']').expect("its end");
    words.replace([',', '\n'], " ")
}

/// Runs a server of A by these words, and waits until it is ready.
async fn run(node: &Installed, by: &str) {
    node.machine.sh(&format!("{by} {}", command(node).await)).await;
    until("the server to be ready", async || node.engine("A").try_models().await.is_some()).await;
}

const UNIT: &str = "systemd-run --quiet --unit=mine --setenv=VLLM_SERVER_DEV_MODE=1";

/// A unit of its own, of the same user: taken over as it runs, without leaving its unit, handed over both ways, kept by the next
/// agent, and stopped with the others.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_server_of_another_unit_is_taken_over() {
    let node = without_a().await;
    run(&node, &format!("{UNIT} --uid=hotbunk --gid=hotbunk")).await;
    let pid = node.machine.sh("systemctl show -p MainPID --value mine").await;
    let adopted = node.ctl("adopt A").await;
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    assert_eq!(node.pids().await["A"].to_string(), pid);
    for model in ["B", "A", "B"] {
        node.model(model).serves().await;
    }
    let main = node.main_pid().await;
    node.machine.sh(&format!("kill -9 {main}")).await;
    until("another agent", async || node.show("NRestarts").await == "1").await;
    node.settled("B").await;
    assert_eq!(node.pids().await["A"].to_string(), pid);
    let group = node.machine.sh(&format!("cat /proc/{pid}/cgroup")).await;
    assert!(group.contains("/system.slice/mine.service"), "{group}");
    node.model("A").serves().await;

    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    assert_eq!((node.members().await, node.living("sim-engine")), (Vec::new(), Vec::new()));
    until("its unit to know", async || {
        node.machine.run("systemctl is-active mine", "").await.stdout.trim() != "active"
    })
    .await;
}

/// A unit that starts its server again has the port before the engine's own start: the engine waits and says so, and can be taken
/// over once more. Without the unit it is started as configured.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_unit_that_starts_its_server_again_has_the_port() {
    let node = without_a().await;
    // Its server listens by then.
    node.edit(|text| text.replace("initial = \"100ms\", max = \"500ms\"", "initial = \"4s\", max = \"4s\""))
        .await;
    node.machine.sh("systemctl reload hotbunk-agent").await;
    run(&node, &format!("{UNIT} --uid=hotbunk --gid=hotbunk -p Restart=always -p RestartSec=0")).await;
    let adopted = node.ctl("adopt A").await;
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    let first = node.pids().await["A"];
    node.machine.sh("systemctl restart mine").await;
    until("the port to be seen taken", async || {
        let status = node.status().await.expect("an agent");
        status.engines[0].condition == Condition::Stopped { why: StoppedWhy::PortTaken }
    })
    .await;
    until("the new server to be ready", async || node.engine("A").try_models().await.is_some()).await;
    let adopted = node.ctl("adopt A").await;
    assert_eq!(adopted.code, Some(0), "{adopted:?}");
    assert_ne!(node.pids().await["A"], first);
    node.model("A").serves().await;

    node.machine.sh("systemctl stop mine").await;
    until("A to be started as configured", async || {
        let started = node.members().await.into_iter().any(|(_, group)| group.starts_with("/hotbunk/A-"));
        started && node.engine("A").complete(2).await.is_ok()
    })
    .await;
}

/// Of another user, and in a container: refused with the reason, and left as it was.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn what_the_agent_may_not_signal_or_is_in_a_container_is_refused() {
    let node = without_a().await;
    let refused = async |words: &[&str]| {
        let pids = node.living("sim-engine");
        let done = node.ctl("adopt A").await;
        assert_eq!(done.code, Some(5), "{done:?}");
        assert!(words.iter().all(|words| done.stderr.contains(words)), "{words:?}: {done:?}");
        assert_eq!(node.living("sim-engine"), pids, "it is left as it was");
        node.engine("A").serves().await;
    };
    run(&node, UNIT).await;
    refused(&["of another user listens on port 8101", "may not signal"]).await;
    node.machine.sh("systemctl stop mine").await;
    until("it to be gone", async || node.engine("A").try_models().await.is_none()).await;

    // The agent's own user, in a pid namespace of its own, as a runtime would start it.
    let contained = "unshare --pid --fork --kill-child --mount-proc setpriv --reuid=hotbunk --regid=hotbunk --init-groups";
    run(&node, &format!("{UNIT} {contained}")).await;
    refused(&["process ", "listens on port 8101, runs in a container"]).await;
    node.machine.sh("systemctl stop mine").await;
    until("it to be gone", async || node.engine("A").try_models().await.is_none()).await;

    // Nobody holds the port any more.
    let started = node.ctl("start A").await;
    assert_eq!(started.code, Some(0), "{started:?}");
    node.model("A").serves().await;
}
