//! An agent goes, in each way that there is, and the next one comes.

use crate::installed::{CONFIG, Installed};
use hotbunk_tests::{Engine, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const LEAVE: &str = "on_stop = \"leave\"\n";

/// Somebody who asks for completions one after another, each by a connection of its own.
struct Client {
    done: Arc<AtomicBool>,
    answered: Arc<AtomicU32>,
    task: JoinHandle<Vec<String>>,
}

impl Client {
    fn of(model: Engine) -> Client {
        let (done, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (is_done, count) = (Arc::clone(&done), Arc::clone(&answered));
        let task = tokio::spawn(async move {
            let mut failed = Vec::new();
            while !is_done.load(Ordering::Relaxed) {
                match model.complete(2).await {
                    Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    Err(why) => failed.push(why),
                }
            }
            failed
        });
        Client { done, answered, task }
    }

    /// Waits for so many answers from now on.
    async fn gets(&self, count: u32) {
        let wanted = self.answered.load(Ordering::Relaxed) + count;
        until("clients to be answered", async || self.answered.load(Ordering::Relaxed) >= wanted).await;
    }

    /// What went wrong, request by request.
    async fn end(self) -> Vec<String> {
        self.done.store(true, Ordering::Relaxed);
        self.task.await.expect("it does not panic")
    }
}

/// Nobody was refused a connection, or lost an answer: at most it was told that the agent restarts.
fn all_told(failed: &[String]) {
    assert!(failed.iter().all(|why| why.starts_with("503") && why.contains("restarting")), "{failed:#?}");
}

/// `systemctl restart` with engines that stay: the same processes, the stream that runs is finished first, and whoever connects
/// meanwhile waits in systemd's socket.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_restart_that_leaves_the_engines_costs_no_client_anything() {
    let node = Installed::started(LEAVE).await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    let reference = node.model("A").complete(60).await.expect("an answer");
    // What an engine keeps in /tmp is its own, and nobody else's.
    let tmp = format!("/proc/{}/root/tmp", pids["A"]);
    node.machine.sh(&format!("echo kept >{tmp}/file && [ ! -e /tmp/file ]")).await;
    node.engine("A").pace(10.0).await;
    let mut stream = node.model("A").stream(60).await;
    stream.until(2).await;
    let client = Client::of(node.model("A"));
    client.gets(2).await;
    node.machine.sh("systemctl restart hotbunk-agent").await;
    assert_eq!(node.machine.sh(&format!("cat {tmp}/file && echo more >{tmp}/another")).await, "kept");
    assert_eq!(stream.end().await, (reference, "length".to_owned()));
    client.gets(3).await;
    all_told(&client.end().await);
    assert_ne!(node.main_pid().await, main);
    node.is("ActiveState=active Result=success").await;
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    node.model("B").serves().await;

    // The same by a signal: it goes, and systemd starts the next one.
    node.machine.sh("systemctl kill --kill-whom=main --signal=SIGUSR1 hotbunk-agent").await;
    until("another agent", async || node.show("NRestarts").await == "1").await;
    node.settled("B").await;
    assert_eq!(node.pids().await, pids);

    // Stopped for good, they serve on without it; the next one has them again.
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    node.is("ActiveState=inactive Result=success").await;
    node.engine("B").serves().await;
    node.machine.sh("systemctl start hotbunk-agent.socket hotbunk-agent").await;
    node.settled("B").await;
    assert_eq!(node.pids().await, pids);
}

/// Sends a request on a connection that stays, and reads its answer.
async fn asks(socket: &mut TcpStream) -> String {
    socket.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it is open");
    let mut text = Vec::new();
    until("an answer", async || {
        assert_ne!(socket.read_buf(&mut text).await.expect("it is open"), 0, "it closed");
        text.ends_with(b"}")
    })
    .await;
    String::from_utf8(text).expect("text")
}

/// A connection outlives the agents that serve it, in systemd's store and from agent to agent; and what the last one closes is
/// closed.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_kept_connection_outlives_its_agents() {
    let node = Installed::started(LEAVE).await;
    let mut kept = TcpStream::connect("127.0.0.1:8000").await.expect("the gateway");
    assert!(asks(&mut kept).await.starts_with("HTTP/1.1 200"));
    for command in ["restart", "kill --kill-whom=main --signal=SIGUSR2", "restart"] {
        let main = node.main_pid().await;
        node.machine.sh(&format!("systemctl {command} hotbunk-agent")).await;
        until("another agent", async || node.main_pid().await != main).await;
        let answer = asks(&mut kept).await;
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
        node.settled("A").await;
        node.is("NFileDescriptorStore=0").await;
    }
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    let mut rest = Vec::new();
    assert_eq!(kept.read_to_end(&mut rest).await.expect("it closes in order"), 0);
}

/// By default a restart stops them, and nothing but the next agent's own is in the group.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_plain_restart_starts_the_engines_anew() {
    let node = Installed::started("").await;
    let before = node.pids().await;
    let shims = node.living("shim");
    node.machine.sh("systemctl restart hotbunk-agent").await;
    node.settled("A").await;
    let members: Vec<u32> = node.members().await.into_iter().map(|(pid, _)| pid).collect();
    assert!(
        before.values().chain(&shims).all(|pid| !members.contains(pid)),
        "{before:?} {shims:?} {members:?}"
    );
    assert_eq!(node.living("shim").len(), 2);
    node.model("A").serves().await;
}

/// Killed, it is followed by one that takes over: the engine that serves serves on, nobody is restarted, nobody is refused.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_killed_agent_is_followed_by_one_that_takes_over() {
    let node = Installed::started("").await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    node.engine("A").pace(10.0).await;
    let reference = node.engine("A").complete(60).await.expect("an answer");
    let mut stream = node.engine("A").stream(60).await;
    stream.until(2).await;
    node.machine.sh(&format!("kill -9 {main}")).await;
    // A connection waits for the next agent.
    node.model("A").serves().await;
    until("another agent", async || {
        !["0".to_owned(), main.to_string()].contains(&node.show("MainPID").await)
    })
    .await;
    assert_eq!(stream.end().await, (reference, "length".to_owned()), "a request in the engine goes on");
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    node.is("ActiveState=active NRestarts=1").await;
    node.model("B").serves().await;
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    assert_eq!((node.members().await, node.living("sim-engine")), (Vec::new(), Vec::new()));
}

/// Installed and started, with a watchdog that waits for less time.
async fn watched() -> Installed {
    let node = Installed::with("").await;
    node.machine.sh("mkdir -p /etc/systemd/system/hotbunk-agent.service.d").await;
    let shorter = "[Service]\nWatchdogSec=3s\nLimitCORE=0\n";
    node.machine.write("/etc/systemd/system/hotbunk-agent.service.d/watchdog.conf", shorter).await;
    node.machine.sh("systemctl daemon-reload").await;
    node.start().await;
    node
}

/// Waits until the watchdog has been fed several times.
async fn is_fed(node: &Installed) {
    let mut fed = node.show("WatchdogTimestampMonotonic").await;
    for _ in 0..5 {
        until("the watchdog to be fed", async || {
            let last = std::mem::replace(&mut fed, node.show("WatchdogTimestampMonotonic").await);
            last != fed
        })
        .await;
    }
}

/// One that hangs is ended by the unit's watchdog and followed by another; one that works feeds it.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn the_watchdog_ends_an_agent_that_hangs() {
    let node = watched().await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    is_fed(&node).await;
    assert_eq!(node.main_pid().await, main);
    node.machine.sh(&format!("kill -STOP {main}")).await;
    until("another agent", async || node.show("NRestarts").await == "1").await;
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    assert!(node.journal().await.contains("Watchdog timeout"));
}

/// The successor by SIGUSR2: systemd knows it as the main process, the sockets go on, the stream as well; and what the unit does
/// afterwards is done to it: reload, watchdog, restart after a crash, stop.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_successor_is_the_service_from_then_on() {
    let node = Installed::started("").await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    let reference = node.model("A").complete(60).await.expect("an answer");
    node.engine("A").pace(10.0).await;
    let mut stream = node.model("A").stream(60).await;
    stream.until(2).await;
    let client = Client::of(node.model("A"));
    client.gets(2).await;
    // Another program lies there by then.
    node.machine.sh("cp /usr/bin/hotbunk-agent /tmp/new && mv /tmp/new /usr/bin/hotbunk-agent").await;
    node.machine.sh("systemctl kill --kill-whom=main --signal=SIGUSR2 hotbunk-agent").await;
    until("the successor to be the service", async || node.main_pid().await != main).await;
    let second = node.main_pid().await;
    assert_eq!(stream.end().await, (reference, "length".to_owned()));
    client.gets(3).await;
    all_told(&client.end().await);
    until("the old one to go", async || !node.machine.path(&format!("/proc/{main}")).exists()).await;
    node.is("ActiveState=active SubState=running NRestarts=0 Result=success").await;
    assert_eq!(node.main_pid().await, second);
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    node.machine.sh("systemctl reload hotbunk-agent").await;
    assert_eq!(node.machine.sh(&format!("ps -o ppid= -p {second}")).await.trim(), "1");
    assert_eq!(node.machine.sh(&format!("readlink /proc/{second}/exe")).await, "/usr/bin/hotbunk-agent");
    assert!(!node.journal().await.contains("reception only permitted"), "{}", node.journal().await);

    node.machine.sh(&format!("kill -9 {second}")).await;
    until("a third one", async || node.show("NRestarts").await == "1").await;
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    node.machine.sh("systemctl kill --kill-whom=main --signal=SIGUSR2 hotbunk-agent").await;
    let third = node.main_pid().await;
    until("a fourth one", async || node.main_pid().await != third).await;
    // The old one may still be there.
    node.machine.sh("systemctl stop hotbunk-agent.socket hotbunk-agent").await;
    until("the old one to go", async || !node.machine.path(&format!("/proc/{third}")).exists()).await;
    node.is("ActiveState=inactive Result=success").await;
    assert_eq!((node.members().await, node.living("sim-engine")), (Vec::new(), Vec::new()));
}

/// A successor that dies while the old one still passes on answers is followed by another at once, and the old one passes on.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_successor_that_dies_early_is_followed_by_another() {
    let node = Installed::started("").await;
    let reference = node.model("A").complete(200).await.expect("an answer");
    let (pids, main) = (node.pids().await, node.main_pid().await);
    node.engine("A").pace(2.0).await;
    let mut stream = node.model("A").stream(200).await;
    stream.until(2).await;
    node.machine.sh("systemctl kill --kill-whom=main --signal=SIGUSR2 hotbunk-agent").await;
    until("the successor to be the service", async || node.main_pid().await != main).await;
    stream.until(4).await;
    node.machine.sh(&format!("kill -9 {}", node.main_pid().await)).await;
    until("another one", async || node.show("NRestarts").await == "1").await;
    node.settled("A").await;
    assert_eq!(node.pids().await, pids);
    assert_eq!(stream.end().await, (reference, "length".to_owned()));
    node.model("B").serves().await;
    assert!(!node.journal().await.contains("not our child"));
}

/// A successor may take its time: the watchdog is fed until it is the service, and by it from then on.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn the_watchdog_waits_for_a_slow_successor() {
    let node = watched().await;
    let (pids, main) = (node.pids().await, node.main_pid().await);
    node.machine.sh("mv /usr/bin/hotbunk-agent /usr/bin/hotbunk-agent.real").await;
    let slow = "#!/bin/sh\n[ \"$1\" = run ] && sleep 7\nexec /usr/bin/hotbunk-agent.real \"$@\"\n";
    node.machine.write("/usr/bin/hotbunk-agent", slow).await;
    node.machine.sh("chmod 755 /usr/bin/hotbunk-agent").await;
    node.machine.sh("systemctl kill --kill-whom=main --signal=SIGUSR2 hotbunk-agent").await;
    // Whoever comes meanwhile waits.
    until("the old one to have let go", async || {
        node.journal().await.contains("handed over to the next agent")
    })
    .await;
    node.model("A").serves().await;
    until("the successor to be the service", async || node.main_pid().await != main).await;
    let second = node.main_pid().await;
    is_fed(&node).await;
    node.is(&format!("ActiveState=active MainPID={second} NRestarts=0")).await;
    assert_eq!(node.pids().await, pids);
}

/// A program or a file that is no good changes nothing, and the journal says so.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn an_upgrade_to_something_that_is_no_good_is_refused() {
    let node = Installed::started("").await;
    let main = node.main_pid().await;
    let good = node.machine.sh(&format!("cat {CONFIG}")).await;
    let signal = "systemctl kill --kill-whom=main --signal=SIGUSR2 hotbunk-agent";
    node.edit(|text| text.replace("port = 8102", "port = 8101")).await;
    node.machine.sh(signal).await;
    until("the refusal", async || node.journal().await.contains("SIGUSR2: not now, this agent goes on"))
        .await;
    node.is(&format!("ActiveState=active MainPID={main}")).await;
    node.model("B").serves().await;
    // A restart has ended the agent before the file is looked at. It is not tried again and again: that needs somebody.
    let restarted = node.machine.run("systemctl restart hotbunk-agent", "").await;
    assert_ne!(restarted.code, Some(0));
    node.is("ActiveState=failed ExecMainStatus=7 NRestarts=0").await;
    let errors = node.machine.sh("journalctl --no-pager -o cat -p err -t hotbunk-agent").await;
    assert!(
        errors.contains("port 8101 is the engine A's already") && errors.contains("port = 8101"),
        "{errors}"
    );
    node.machine.write(CONFIG, &good).await;
    node.machine.sh("systemctl start hotbunk-agent").await;
    node.settled("A").await;
}

/// Another program, and a plain restart.
#[tokio::test]
#[ignore = "boots systemd in namespaces: needs root, overlayfs and cgroup 2"]
async fn a_replaced_program_runs_after_a_restart() {
    let node = Installed::started(LEAVE).await;
    let pids = node.pids().await;
    node.machine
        .sh("cp /usr/bin/hotbunk-agent /tmp/new && install -m 755 /tmp/new /usr/bin/hotbunk-agent")
        .await;
    node.machine.sh("systemctl restart hotbunk-agent").await;
    node.settled("A").await;
    let (exe, main) = (node.pids().await, node.main_pid().await);
    assert_eq!(exe, pids, "the engines run on, as the program that they were started as");
    assert_eq!(node.machine.sh(&format!("readlink /proc/{main}/exe")).await, "/usr/bin/hotbunk-agent");
    tokio::time::timeout(Duration::from_secs(60), node.model("B").serves()).await.expect("it serves");
}
