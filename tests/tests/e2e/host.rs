//! The host fails: no room for the journal, a damaged one, no descriptors, a process killed for want of memory.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{State, Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Switch, kill, stop, until, until_some};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small file system for a node's state.
struct Disk {
    at: PathBuf,
}

impl Disk {
    /// `None` where this user may not mount one.
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    fn mount(node: &Node) -> Option<Disk> {
        let at = node.dir().join("state");
        fs::create_dir_all(&at).expect("a directory");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Disk { at }),
            other => {
                eprintln!("skipped: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }

    /// Fills it to the last byte; what fills it.
    fn fill(&self) -> PathBuf {
        let path = self.at.join("filler");
        let mut file = File::create(&path).expect("a file");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process of a test that failed may still be on it.
        drop(Command::new("umount").arg("--lazy").arg(&self.at).output());
    }
}

async fn pair(setup: Setup) -> (Node, Option<Disk>, Agent) {
    let node = setup.build();
    let disk = Disk::mount(&node);
    let agent = node.start().await;
    agent.until_up().await;
    (node, disk, agent)
}

async fn metric(node: &Node, line: &str) -> bool {
    node.metrics().await.lines().any(|l| l == line)
}

#[tokio::test]
async fn a_full_disk_under_the_journal_stops_nothing() {
    let (node, disk, agent) = pair(Setup::pair()).await;
    let Some(disk) = disk else { return };
    let mark = agent.mark().await;
    let filler = disk.fill();
    until("the trouble to be told", async || agent.status().await.node.journal_trouble.is_some()).await;
    let trouble = agent.status().await.node.journal_trouble.unwrap();
    assert!(trouble.reason.contains("no room left on the disk") && !trouble.refuses_switching, "{trouble:?}");
    assert!(metric(&node, "hotbunk_journal_failing 1").await);
    assert_eq!(agent.log().matches("journal cannot be written").count(), 1, "said once, loudly");
    for to in ["B", "A", "B"] {
        assert_eq!(agent.run(Switch::to(to)).await.state, State::Succeeded);
        node.engine(to).serves().await;
    }
    fs::remove_file(filler).unwrap();
    until("the journal to be written again", async || agent.status().await.node.journal_trouble.is_none())
        .await;
    assert!(metric(&node, "hotbunk_journal_failing 0").await);
    assert_eq!(agent.incident_codes(mark).await, ["journal_restored "]);
    agent.done(Switch::to("A")).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_full_disk_keeps_everybody_where_they_are_where_that_is_wanted() {
    let setup = Setup::pair().tables("\n[journal]\non_failure = \"refuse_switching\"\n");
    let (node, disk, agent) = pair(setup).await;
    let Some(disk) = disk else { return };
    let filler = disk.fill();
    until("switching to be refused", async || {
        matches!(agent.submit(Switch::to("B")).await, Err(error) if error.message.contains("on_failure"))
    })
    .await;
    let refused = agent.submit(Switch::to("B")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Refused);
    assert!(agent.status().await.node.journal_trouble.is_some_and(|t| t.refuses_switching));
    // Whoever is served goes on being served.
    agent.until_idle().await;
    let serving = if agent.engine("A").await.tier == Some(Tier::Awake) { "A" } else { "B" };
    node.engine(serving).serves().await;
    let other = if serving == "A" { "B" } else { "A" };
    agent.done(stop(other)).await;
    // What dies has no place for a new process's records: it waits for one, and is not given up meanwhile.
    kill(node.core(serving).pid);
    until("the start to wait", async || agent.log().contains("waits for room on the disk")).await;
    fs::remove_file(filler).unwrap();
    agent.until_at(serving, Tier::Awake).await;
    node.engine(serving).serves().await;
    until("switching to be possible", async || agent.submit(Switch::to(other)).await.is_ok()).await;
    agent.until_at(other, Tier::Awake).await;
    node.engine(other).serves().await;
}

/// One that was killed: the engines that it left behind want their agent, room or no room.
#[tokio::test]
async fn an_agent_comes_up_on_a_full_disk() {
    let (node, disk, agent) = pair(Setup::pair()).await;
    let Some(disk) = disk else { return };
    let served = agent.engine("A").await.incarnation;
    agent.kill().await;
    let filler = disk.fill();
    let agent = node.start().await;
    until("the trouble to be told", async || agent.status().await.node.journal_trouble.is_some()).await;
    agent.until_at("A", Tier::Awake).await;
    assert_eq!(agent.engine("A").await.incarnation, served, "it was serving, and still is");
    node.engine("A").serves().await;
    fs::remove_file(filler).unwrap();
    until("the journal to be written", async || agent.status().await.node.journal_trouble.is_none()).await;
    agent.until_idle().await;
    agent.done(Switch::to("B")).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_damaged_journal_is_set_aside_and_said() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    agent.stop().await;
    let path = node.dir().join("state/journal.db");
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..12_288].fill(0xa5);
    fs::write(&path, &bytes).unwrap();
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(agent.incident_codes(0).await, ["journal_set_aside "]);
    let aside = fs::read_dir(node.dir().join("state")).unwrap().flatten().map(|f| f.path());
    let aside: Vec<PathBuf> =
        aside.filter(|p| p.display().to_string().contains("journal.db.damaged-")).collect();
    assert_eq!(aside.iter().filter(|p| fs::read(p).unwrap() == bytes).count(), 1, "{aside:?}");
    agent.done(Switch::to("B")).await;
    agent.stop().await;
}

/// The canary of an engine that lives on is lost with the journal: another one is recorded before the engine sleeps, or weights
/// that come back wrong would be served from then on.
#[tokio::test]
async fn weights_that_come_back_wrong_are_found_after_a_lost_journal_too() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    let right = node.engine("A").complete(8).await.unwrap();
    agent.kill().await;
    for name in ["journal.db", "journal.db-wal", "journal.db-shm"] {
        // The last two may not be there.
        drop(fs::remove_file(node.dir().join("state").join(name)));
    }
    let agent = node.start().await;
    agent.until_at("A", Tier::Awake).await;
    agent.until_idle().await;
    let mark = agent.mark().await;
    agent.done(Switch::to("B").strategy(Strategy::SleepFirst)).await;
    node.engine("A").fault("corrupt_after_wake", None, None).await;
    drop(agent.submit(Switch::to("A")).await);
    until("the mismatch to be told", async || {
        agent.incident_codes(mark).await.iter().any(|code| code.as_str() == "canary_mismatch A")
    })
    .await;
    agent.until_idle().await;
    agent.run(Switch::to("A")).await;
    assert_eq!(node.engine("A").complete(8).await.unwrap(), right);
    agent.stop().await;
}

/// CPU time that a process has used, in clock ticks.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn limit_descriptors(pid: u32, to: u64) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(to), maximum }).unwrap();
}

#[tokio::test]
async fn without_descriptors_nothing_spins_and_no_engine_is_taken_for_dead() {
    let node = Setup::pair().node_line("reconcile_interval = \"100ms\"").build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    let open = fs::read_dir(Path::new("/proc").join(agent.pid().to_string()).join("fd")).unwrap().count();
    limit_descriptors(agent.pid(), open as u64 + 8);
    let callers: Vec<_> =
        (0..64).filter_map(|_| std::os::unix::net::UnixStream::connect(node.socket()).ok()).collect();
    let before = ticks(agent.pid());
    // Surveys go on meanwhile and get no socket.
    for _ in 0..20 {
        node.engine("A").serves().await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let used = ticks(agent.pid()) - before;
    assert!(used < 100, "{used} ticks of 10 ms within two seconds or so: it spins");
    drop(callers);
    limit_descriptors(agent.pid(), getrlimit(Resource::Nofile).current.unwrap_or(65_536));
    // The device could not be read either; it is at the next look.
    let begun =
        until_some("switching to be possible", async || agent.submit(Switch::to("B")).await.ok()).await;
    assert_eq!(agent.wait(&begun.id).await.error, None);
    node.engine("B").serves().await;
    assert_eq!(agent.entries("spawned", mark).await, [], "nobody was started again");
    let seen = agent.incident_codes(mark).await;
    assert!(seen.iter().all(|code| code.starts_with("device_")), "{seen:?}");
    agent.stop().await;
}

/// The kernel's out-of-memory killer takes the process that copies weights into host memory.
#[tokio::test]
async fn an_engine_is_killed_for_want_of_host_memory_while_it_copies() {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    node.engine("A").fault("sleep_hang", None, None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("A to be inside its sleep", async || {
        let operation = agent.api.operation(&begun.id).await.unwrap();
        operation.steps.iter().any(|step| step.phase == "sleep" && step.state == State::Running)
    })
    .await;
    kill(node.core("A").pid);
    let ended = agent.wait(&begun.id).await;
    assert_eq!((ended.state, ended.error), (State::Succeeded, None));
    node.engine("B").serves().await;
    until("A to be there anew", async || agent.entries("spawned", mark).await.len() == 1).await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(agent.incident_codes(mark).await, ["crashed A"]);
    agent.stop().await;
}

#[tokio::test]
async fn a_host_too_small_for_level_1_is_planned_around_beforehand() {
    // A's backup would take more than any machine has; nobody need have tried it.
    let node = Setup::pair().engine("A", |e| e.line("host_memory = \"1000GiB\"")).build();
    let agent = node.start().await;
    agent.until_up().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    let refused = agent.submit(Switch::to("B").leave(Tier::Level1)).await.unwrap_err();
    assert!(refused.message.contains("more host memory than the node has left"), "{refused:?}");
    let mark = agent.mark().await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    assert_ne!(agent.engine("A").await.tier, Some(Tier::Level1));
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    agent.stop().await;
}
