//! Engines as real process trees: real shims, real signals, with a cgroup and without.
//!
//! The engines are shell scripts. Every wait is for a condition, with a deadline far beyond what it takes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hotbunk_agent::process::tree::{ProcStat, boot_id};
use hotbunk_agent::process::{
    EngineProcess, Error, Exit, Launch, LogPolicy, Ownership, ProcessEvent, Shims, SweepEnd,
    find_predecessors, port_belongs_to, stop_tree,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::UnboundedReceiver;

const PATIENCE: Duration = Duration::from_secs(40);
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);

struct Place {
    dir: tempfile::TempDir,
    shims: Shims,
}

fn place(use_cgroup: bool) -> Place {
    let dir = tempfile::tempdir().expect("temp dir");
    let shims = Shims {
        state_dir: dir.path().join("state"),
        runtime_dir: dir.path().join("run"),
        shim_exe: PathBuf::from(env!("CARGO_BIN_EXE_hotbunk-agent")),
        use_cgroup,
    };
    Place { dir, shims }
}

impl Place {
    /// Records of shims.
    fn records(&self) -> usize {
        fs::read_dir(self.shims.state_dir.join("shims")).map_or(0, Iterator::count)
    }

    async fn spawn(&self, script: &str) -> EngineProcess {
        self.shims.spawn(launch(script)).await.expect("the engine starts")
    }
}

fn launch(script: &str) -> Launch {
    Launch {
        engine: "A".to_owned(),
        command: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        env: BTreeMap::new(),
        unset_env: Vec::new(),
        cwd: None,
        log: LogPolicy::default(),
        grace: LONG,
        container: None,
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn runs(pid: u32) -> bool {
    ProcStat::read(pid).is_some_and(|stat| stat.is_running())
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    kill_process(pid, signal).expect("is there");
}

/// The engine's processes once there are `count` of them, and none that is about to become another (`sh`, `setsid`)
/// besides a leader that waits for children.
async fn tree(engine: &EngineProcess, count: usize) -> Vec<u32> {
    let leader = engine.incarnation().pid;
    let settled = |pid: &u32| *pid == leader || ProcStat::read(*pid).is_some_and(|stat| stat.comm == "sleep");
    until("the engine's tree", || {
        let pids = engine.pids();
        pids.len() == count && pids.iter().all(settled)
    })
    .await;
    engine.pids()
}

async fn gone(pids: &[u32]) {
    until("the end of the tree", || !pids.iter().any(|pid| runs(*pid))).await;
}

async fn next(events: &mut UnboundedReceiver<ProcessEvent>) -> ProcessEvent {
    tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event comes").expect("the monitor lives")
}

/// The exit; what the log lost may be told before it, and then it is counted.
async fn exited_after_losses(events: &mut UnboundedReceiver<ProcessEvent>) -> (String, Exit, u32) {
    let mut losses = 0;
    loop {
        match next(events).await {
            ProcessEvent::Exited { reason, exit } => return (reason, exit, losses),
            ProcessEvent::LogLost(_) => losses += 1,
            other => panic!("not an exit: {other:?}"),
        }
    }
}

async fn exited(events: &mut UnboundedReceiver<ProcessEvent>) -> (String, Exit) {
    let (reason, exit, losses) = exited_after_losses(events).await;
    assert_eq!(losses, 0, "nothing was written that the log could lose");
    (reason, exit)
}

async fn swept(events: &mut UnboundedReceiver<ProcessEvent>) -> SweepEnd {
    match next(events).await {
        ProcessEvent::Swept(end) => end,
        other => panic!("not a sweep: {other:?}"),
    }
}

/// A leader with a child in its session, one in a session of its own, and a grandchild whose parent has gone.
const FAMILY: &str = "sleep 600 & setsid sleep 601 & sh -c 'setsid sleep 602 &' ; wait";
const FAMILY_SIZE: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_signals_the_leader_and_waits_for_it() {
    let place = place(false);
    let engine = place.spawn("trap 'echo bye; exit 3' TERM; echo up; sleep 600 & wait").await;
    until("the script's trap", || fs::read_to_string(engine.log_path()).is_ok_and(|log| log.contains("up")))
        .await;
    let pids = tree(&engine, 2).await;
    assert!(pids.contains(&engine.incarnation().pid));
    assert_eq!(engine.incarnation().boot_id, boot_id().expect("boot id"));

    let mut events = engine.events();
    let report = engine.stop(LONG).await.expect("stops");
    let exit = report.exit.expect("the shim tells");
    assert_eq!((exit.asked, exit.code, exit.signal), (true, Some(3), None));
    assert_eq!(exit.tail, ["up", "bye"]);
    assert!(report.left.is_empty());
    assert_eq!(report.killed, 1, "the orphaned child, after its moment");
    gone(&pids).await;
    let (reason, _) = exited(&mut events).await;
    assert_eq!(reason, "exited with code 3");
    assert!(swept(&mut events).await.left.is_empty());
    // The agent has noted it: nothing is left of the shim.
    until("the shim's end", || place.records() == 0 && !runs(engine.state().shim.pid)).await;
    assert!(!engine.state().socket.exists());
    assert!(engine.log_path().exists());
    // A second stop tells the same end.
    assert_eq!(engine.stop(SHORT).await.expect("is over").exit, Some(exit));
    assert!(engine.pids().is_empty());
    assert_eq!(engine.tail(1).await, ["bye"], "from the file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_ignores_sigterm_is_killed_with_its_tree() {
    for use_cgroup in [false, true] {
        let place = place(use_cgroup);
        let engine = place.spawn(&format!("trap '' TERM; {FAMILY}")).await;
        let pids = tree(&engine, FAMILY_SIZE).await;
        let report = engine.stop(SHORT).await.expect("stops");
        assert!(report.left.is_empty());
        assert_eq!(report.killed as usize, FAMILY_SIZE, "{report:?}");
        assert_eq!(report.exit.expect("the shim tells").signal, Some(9));
        gone(&pids).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_leader_is_told_at_once_and_its_orphans_are_swept() {
    for use_cgroup in [false, true] {
        let place = place(use_cgroup);
        let engine = place.spawn(&format!("echo 'ValueError: no room' >&2; {FAMILY}")).await;
        let pids = tree(&engine, FAMILY_SIZE).await;
        let mut events = engine.events();
        send(engine.incarnation().pid, Signal::KILL);
        let (reason, exit) = exited(&mut events).await;
        assert_eq!((exit.asked, exit.code, exit.signal), (false, None, Some(9)));
        assert!(reason.contains("SIGKILL") && reason.ends_with("ValueError: no room"), "{reason}");
        let end = swept(&mut events).await;
        assert_eq!((end.killed as usize, end.left), (FAMILY_SIZE - 1, vec![]));
        gone(&pids).await;
        until("the record's removal", || place.records() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_shim_is_noticed_and_the_tree_is_swept_all_the_same() {
    for use_cgroup in [false, true] {
        let place = place(use_cgroup);
        let engine = place.spawn(FAMILY).await;
        let pids = tree(&engine, FAMILY_SIZE).await;
        let mut events = engine.events();
        send(engine.state().shim.pid, Signal::KILL);
        assert_eq!(next(&mut events).await, ProcessEvent::ShimLost);
        let end = swept(&mut events).await;
        assert_eq!((end.killed as usize, end.left), (FAMILY_SIZE, vec![]));
        gone(&pids).await;
        until("the record's removal", || place.records() == 0).await;
        let report = engine.stop(SHORT).await.expect("is over");
        assert_eq!(report.exit, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_shim_does_not_keep_its_engine_alive() {
    let place = place(false);
    let engine = place.spawn(FAMILY).await;
    let pids = tree(&engine, FAMILY_SIZE).await;
    send(engine.state().shim.pid, Signal::STOP);
    let report = engine.kill().await.expect("ends");
    assert!(report.left.is_empty());
    gone(&pids).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cgroup_holds_what_hides_from_every_other_proof() {
    let place = place(true);
    // No token, no session, no parent: only the cgroup still knows it.
    let engine = place.spawn("env -i /bin/sh -c 'setsid sleep 600 &' ; exec sleep 601").await;
    let Some(cgroup) = engine.state().cgroup.clone() else {
        let why = engine.state().cgroup_refused.clone().expect("a reason is given");
        eprintln_skip(&format!("no cgroup can be made here: {why}"));
        engine.kill().await.expect("ends");
        return;
    };
    let pids = tree(&engine, 2).await;
    let members = fs::read_to_string(cgroup.join("cgroup.procs")).expect("readable");
    for pid in &pids {
        assert!(members.lines().any(|line| line == pid.to_string()), "{pid} not in {members:?}");
    }
    assert!(!members.lines().any(|line| line == engine.state().shim.pid.to_string()));
    let mut events = engine.events();
    send(engine.state().shim.pid, Signal::KILL);
    assert_eq!(next(&mut events).await, ProcessEvent::ShimLost);
    assert_eq!(swept(&mut events).await, SweepEnd { killed: 2, left: vec![] });
    gone(&pids).await;
    until("the cgroup's removal", || !cgroup.exists()).await;
}

#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn eprintln_skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_stderr_neither_fills_the_disk_nor_blocks_the_engine() {
    let place = place(false);
    let mut launch = launch("yes 'all work and no play' | head -c 20000000 >&2; echo; echo done; exit 7");
    launch.log = LogPolicy { max_bytes: 100_000, keep: 3 };
    let engine = place.shims.spawn(launch).await.expect("starts");
    let mut events = engine.events();
    let (reason, exit, losses) = exited_after_losses(&mut events).await;
    assert_eq!(losses, 1, "the flood is told, once");
    assert_eq!(exit.code, Some(7), "it got to its end: {reason}");
    assert_eq!(exit.tail.last().map(String::as_str), Some("done"));
    let logs = engine.log_path().parent().expect("a directory");
    let sizes: Vec<u64> = fs::read_dir(logs)
        .expect("readable")
        .map(|entry| entry.and_then(|entry| entry.metadata()).expect("readable").len())
        .collect();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|size| *size <= 100_000), "{sizes:?}");
    assert_eq!(engine.tail(1).await, ["done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_at_start_comes_with_its_reason_and_code_0_is_no_success() {
    let place = place(false);
    for (script, code, words) in [
        (
            "echo 'RuntimeError: CUDA not found' >&2; echo 'Engine core initialization failed.'; exit 1",
            1,
            "CUDA",
        ),
        ("exit 0", 0, "nobody had asked"),
    ] {
        let engine = place.spawn(script).await;
        let mut events = engine.events();
        let (reason, exit) = exited(&mut events).await;
        assert_eq!((exit.asked, exit.code), (false, Some(code)));
        assert!(reason.contains(words), "{reason}");
        assert_eq!(swept(&mut events).await, SweepEnd::default());
    }
    until("the records' removal", || place.records() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_started_is_refused_with_a_reason_and_leaves_nothing() {
    let place = place(true);
    let missing = Launch { command: vec!["no-such-vllm".to_owned()], ..launch("") };
    let nowhere = Launch { cwd: Some("/no/such/dir".into()), ..launch("true") };
    for (launch, words) in [(missing, "no-such-vllm"), (nowhere, "/no/such/dir")] {
        match place.shims.spawn(launch).await {
            Err(Error::Start { why, .. }) => assert!(why.contains(words), "{why}"),
            other => panic!("not refused: {other:?}"),
        }
    }
    let broken = Shims { shim_exe: "/bin/false".into(), ..place.shims.clone() };
    let refused = broken.spawn(launch("true")).await.expect_err("no shim");
    assert!(refused.to_string().contains("without a word"), "{refused}");
    let absent = Shims { shim_exe: "/no/such/agent".into(), ..place.shims.clone() };
    assert!(matches!(absent.spawn(launch("true")).await, Err(Error::Shim { .. })));
    assert_eq!(place.records(), 0);
    assert_eq!(fs::read_dir(place.dir.path().join("run/shims")).expect("readable").count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_gets_its_environment_and_no_descriptor_of_the_agents() {
    let place = place(false);
    // Without close-on-exec, as a shell's `9>lock` would be.
    let lock = fs::File::create(place.dir.path().join("lock")).expect("made");
    let inherited = rustix::io::dup(&lock).expect("duplicated");
    let mut launch =
        launch("pwd; echo \"$ONE|${PATH_GONE:-unset}|${HOME:-unset}\"; ls -l /proc/$$/fd; exec sleep 600");
    launch.env.insert("ONE".to_owned(), "a b".to_owned());
    launch.unset_env.push("HOME".to_owned());
    launch.cwd = Some("/proc".into());
    let engine = place.shims.spawn(launch).await.expect("starts");
    until("the listing", || {
        fs::read_to_string(engine.log_path()).is_ok_and(|log| log.matches("->").count() >= 3)
    })
    .await;
    until("exec", || ProcStat::read(engine.incarnation().pid).is_some_and(|stat| stat.comm == "sleep")).await;
    let said = engine.tail(20).await;
    assert_eq!(said.first().map(String::as_str), Some("/proc"));
    assert_eq!(said.get(1).map(String::as_str), Some("a b|unset|unset"));
    let open = |pid: u32| {
        let mut fds: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("readable")
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        fds.sort();
        fds
    };
    assert_eq!(open(engine.incarnation().pid), ["0", "1", "2"]);
    let shim = engine.state().shim.pid;
    let holds_lock = fs::read_dir(format!("/proc/{shim}/fd"))
        .expect("readable")
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| target.ends_with("lock"));
    assert!(!holds_lock, "the shim must not keep the agent's lock");
    drop((lock, inherited));
    engine.kill().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_is_deaf_to_the_terminal_and_ends_its_engine_on_sigterm() {
    let place = place(false);
    let engine = place.spawn("trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done").await;
    until("the script's trap", || fs::read_to_string(engine.log_path()).is_ok_and(|log| log.contains("up")))
        .await;
    let shim = engine.state().shim.pid;
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1] {
        send(shim, signal);
    }
    assert_eq!(engine.tail(1).await, ["up"], "it still answers");
    let mut events = engine.events();
    send(shim, Signal::TERM);
    let (_, exit) = exited(&mut events).await;
    assert_eq!((exit.asked, exit.code), (true, Some(0)));
    assert!(swept(&mut events).await.left.is_empty());
    until("the shim's end", || !runs(shim) && place.records() == 0).await;
    drop(engine);
    let more = tokio::time::timeout(PATIENCE, events.recv()).await.expect("the monitor ends");
    assert_eq!(more, None, "no loss is told after an end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_of_an_engine_is_told_from_a_strangers() {
    let place = place(false);
    let engine = place.spawn("exec sleep 600").await;
    let pids = tree(&engine, 1).await;
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let port = stranger.local_addr().expect("address").port();
    assert!(matches!(port_belongs_to(port, &pids), Ownership::Foreign { pid: Some(_) }));
    engine.kill().await.expect("ends");
}

/// Runs an agent's life up to its sudden end: what it started goes on.
fn past_agent(place: &Place, script: &str, count: usize) -> (EngineProcess, Vec<u32>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let engine = place.spawn(script).await;
        let pids = tree(&engine, count).await;
        (engine, pids)
    })
}

#[test]
fn a_predecessors_engine_is_found_and_stopped() {
    for use_cgroup in [false, true] {
        let place = place(use_cgroup);
        let (old, pids) = past_agent(&place, FAMILY, FAMILY_SIZE);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let scan = find_predecessors(&place.shims.state_dir).expect("readable");
            assert_eq!(scan.predecessors.len(), 1, "{scan:?}");
            let found = &scan.predecessors[0];
            assert!(found.shim_alive);
            assert_eq!(found.incarnation(), Some(old.incarnation()));
            assert_eq!(found.pids, pids);
            let report = stop_tree(found, LONG).await.expect("stops");
            assert!(report.left.is_empty());
            assert_eq!(report.exit.expect("the shim tells").signal, Some(15));
            gone(&pids).await;
            assert_eq!(place.records(), 0);
            assert_eq!(find_predecessors(&place.shims.state_dir).expect("readable"), Default::default());
        });
    }
}

#[test]
fn a_predecessors_engine_without_shim_or_without_socket_is_stopped_too() {
    let place = place(false);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for kill_shim in [true, false] {
        let (old, pids) = past_agent(&place, FAMILY, FAMILY_SIZE);
        if kill_shim {
            send(old.state().shim.pid, Signal::KILL);
        } else {
            fs::remove_file(&old.state().socket).expect("removed");
        }
        runtime.block_on(async {
            until("the shim's state", || runs(old.state().shim.pid) != kill_shim).await;
            let scan = find_predecessors(&place.shims.state_dir).expect("readable");
            assert_eq!(scan.predecessors.len(), 1, "{scan:?}");
            assert_eq!(scan.predecessors[0].shim_alive, !kill_shim);
            assert_eq!(scan.predecessors[0].pids, pids);
            let report = stop_tree(&scan.predecessors[0], SHORT).await.expect("stops");
            assert!(report.left.is_empty());
            gone(&pids).await;
            assert_eq!(place.records(), 0);
        });
    }
}

#[test]
fn a_predecessors_engine_that_crashed_meanwhile_is_told() {
    let place = place(false);
    let (old, pids) = past_agent(&place, "sleep 600 & wait; echo 'OSError: gone'; exit 4", 2);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let leader = old.incarnation().pid;
    send(*pids.iter().find(|pid| **pid != leader).expect("its child"), Signal::KILL);
    runtime.block_on(async {
        gone(&pids).await;
        let scan = find_predecessors(&place.shims.state_dir).expect("readable");
        assert!(scan.predecessors[0].shim_alive);
        let report = stop_tree(&scan.predecessors[0], LONG).await.expect("stops");
        let exit = report.exit.expect("the shim tells");
        assert_eq!((exit.asked, exit.code), (false, Some(4)));
        assert_eq!(exit.tail, ["OSError: gone"]);
        assert_eq!(place.records(), 0);
    });
}

fn ticks_since_boot() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("readable");
    let seconds = uptime.split(' ').next().expect("two numbers");
    seconds.replace('.', "").parse().expect("hundredths of a second")
}

/// Rewrites a record as a liar or a later boot would have it.
fn rewrite(place: &Place, change: impl Fn(&mut serde_json::Value)) -> PathBuf {
    let dir = fs::read_dir(place.shims.state_dir.join("shims"))
        .expect("readable")
        .next()
        .expect("one")
        .expect("ok");
    let file = dir.path().join("shim.json");
    let mut record: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("readable")).expect("JSON");
    change(&mut record);
    fs::write(&file, record.to_string()).expect("written");
    file
}

#[test]
fn a_strangers_pid_in_a_record_is_never_signalled() {
    let place = place(false);
    let (old, pids) = past_agent(&place, "exec sleep 600", 1);
    // Start times count in hundredths of a second; the stranger's must be another.
    let recorded = old.incarnation().start_ticks;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(until("the clock's next tick", || ticks_since_boot() > recorded));
    let mut stranger = Command::new("setsid")
        .args(["sleep", "600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let file = rewrite(&place, |record| {
        for who in ["shim", "leader"] {
            record[who]["pid"] = stranger.id().into();
        }
        record["session"] = stranger.id().into();
    });
    runtime.block_on(async {
        until("setsid's exec", || ProcStat::read(stranger.id()).is_some_and(|stat| stat.session == stat.pid))
            .await;
    });
    // Its start time is not the recorded one; the engine's true processes still bear the token, and are found by it.
    let scan = find_predecessors(&place.shims.state_dir).expect("readable");
    let found: Vec<u32> = scan.predecessors.iter().flat_map(|found| found.pids.clone()).collect();
    assert!(!found.contains(&stranger.id()), "{scan:?}");
    assert_eq!(found, pids);
    runtime.block_on(async {
        stop_tree(&scan.predecessors[0], SHORT).await.expect("ends what is proven");
        gone(&pids).await;
    });
    assert!(!file.exists());
    assert_eq!(stranger.try_wait().expect("wait"), None, "a stranger was killed: {scan:?}");

    stranger.kill().expect("ours to kill after all");
    stranger.wait().expect("ends");
    // The shim saw its engine's end, and waits for an agent whose record is gone.
    send(old.state().shim.pid, Signal::TERM);
    runtime.block_on(gone(&[old.state().shim.pid]));
}

#[test]
fn records_of_another_boot_are_stale_and_garbage_is_left_alone() {
    let place = place(false);
    let (old, pids) = past_agent(&place, "exec sleep 600", 1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let shims = place.shims.state_dir.join("shims");

    let garbage = shims.join("B-1");
    fs::create_dir_all(&garbage).expect("made");
    fs::write(garbage.join("shim.json"), "{ not a record").expect("written");
    fs::create_dir_all(shims.join("C-2")).expect("made");
    rewrite_of(&shims, &old, |record| record["boot_id"] = "another".into());

    let scan = find_predecessors(&place.shims.state_dir).expect("readable");
    assert!(scan.predecessors.is_empty());
    assert_eq!(scan.left_alone.len(), 1);
    assert_eq!(scan.left_alone[0].path, garbage.join("shim.json"));
    assert_eq!(scan.removed.len(), 2, "{scan:?}");
    assert_eq!(place.records(), 1);
    assert!(pids.iter().all(|pid| runs(*pid)), "nothing was signalled");

    send(old.state().shim.pid, Signal::TERM);
    runtime.block_on(gone(&pids));
    runtime.block_on(gone(&[old.state().shim.pid]));
}

fn rewrite_of(shims: &Path, engine: &EngineProcess, change: impl Fn(&mut serde_json::Value)) {
    let name = engine.state().socket.file_stem().expect("a name").to_owned();
    let file = shims.join(name).join("shim.json");
    let mut record: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("readable")).expect("JSON");
    change(&mut record);
    fs::write(&file, record.to_string()).expect("written");
}
