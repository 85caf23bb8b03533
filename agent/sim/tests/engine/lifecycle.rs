//! Starts that fail, ends that leave something behind.

use crate::harness::*;
use rustix::process::Signal;
use std::net::TcpListener;
use std::time::Duration;

#[tokio::test]
async fn the_tree_is_vllms_and_sigterm_ends_all_of_it_with_code_0() {
    let node = Node::new();
    let mut engine = node.start_slow("B", 5.0, &[]).await;
    assert_eq!(engine.living_family(), 2);
    let core = engine.core();
    assert_eq!(node.ledger.processes().unwrap(), vec![(core, B_FRESH, "B".to_owned())]);
    let mut stream = engine.stream(3000).await;
    stream.until(3).await;
    Engine::signal(engine.pid(), Signal::TERM);
    assert_eq!(stream.end().await, End::Error, "an error event inside the 200 answer");
    assert_eq!(engine.get("/health").await.status(), 200, "to the end");
    assert_eq!(engine.ended().await.code(), Some(0));
    until("the tree to go", async || engine.living_family() == 0).await;
    assert_eq!(node.used(), 0);
}

#[tokio::test]
async fn a_killed_api_server_leaves_core_tracker_and_memory_for_ever() {
    let node = Node::new();
    let mut engine = node.start("B", &[]).await;
    let core = engine.core();
    Engine::signal(engine.pid(), Signal::KILL);
    engine.ended().await;
    assert!(engine.client.get(engine.url("/health")).send().await.is_err());
    assert_eq!((engine.living_family(), node.used()), (2, B_FRESH));
    // SIGTERM ends the orphan, in its own time.
    Engine::signal(core, Signal::TERM);
    until("the tree to go", async || engine.living_family() == 0).await;
    assert_eq!(node.used(), 0);
}

#[tokio::test]
async fn a_killed_core_turns_health_to_503_and_the_server_leaves_with_code_0() {
    let node = Node::new();
    let mut engine = node.start_slow("B", 3.0, &[]).await;
    let mut stream = engine.stream(3000).await;
    stream.until(2).await;
    Engine::signal(engine.core(), Signal::KILL);
    assert_eq!(stream.end().await, End::Error);
    until("memory to return", async || node.used() == 0).await;
    assert_eq!(engine.get("/health").await.status(), 503);
    assert_eq!(engine.ended().await.code(), Some(0));
    until("the tree to go", async || engine.living_family() == 0).await;
}

#[tokio::test]
async fn an_orphaned_worker_keeps_its_memory_and_ignores_sigterm() {
    let node = Node::new();
    let mut engine = node.start("B", &["--fault", "orphan_worker"]).await;
    let core = engine.core();
    Engine::signal(engine.pid(), Signal::TERM);
    assert_eq!(engine.ended().await.code(), Some(0));
    Engine::signal(core, Signal::TERM);
    let stat = std::fs::read_to_string(format!("/proc/{core}/stat")).unwrap();
    let session: u32 = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(3).unwrap().parse().unwrap();
    assert_eq!(session, core, "it leads a session of its own");
    assert_eq!(node.used(), B_FRESH);
    Engine::signal(core, Signal::KILL);
    until("memory to return", async || node.used() == 0).await;
}

#[tokio::test]
async fn sigterm_may_be_ignored() {
    let node = Node::new();
    let mut engine = node.start("B", &["--fault", "ignore_sigterm"]).await;
    Engine::signal(engine.pid(), Signal::TERM);
    engine.text(5).await;
    assert!(engine.is_running());
    engine.clear_faults().await;
    Engine::signal(engine.pid(), Signal::TERM);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn starts_that_cannot_be_end_with_code_1_and_a_reason() {
    let node = Node::new();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    for (flags, reason) in [
        (&["--fault", "exit_at_start"][..], "Engine core initialization failed"),
        (&["--kv-cache-memory-bytes", "44GiB"], "out of memory"),
    ] {
        let mut engine = node.launch("B", flags);
        assert_eq!(engine.ended().await.code(), Some(1), "{flags:?}");
        assert!(engine.log().contains(reason), "{}", engine.log());
        assert_eq!(node.used(), 0);
    }
    let mut engine = node.launch_on_port("B", port);
    assert_eq!(engine.ended().await.code(), Some(1));
    assert!(engine.log().contains("cannot bind"), "{}", engine.log());
}

#[tokio::test]
async fn utilisation_is_demanded_of_free_memory_and_sizes_the_kv_cache() {
    let node = Node::new();
    let first = node.start("B", &["--gpu-memory-utilization", "0.5"]).await;
    let used = node.used();
    // Half the device, less the activations that profiling found.
    assert!(used > 22_500 * MIB && used <= 22_522 * MIB, "{} MiB", used / MIB);
    let mut second = node.launch("A", &["--gpu-memory-utilization", "0.9"]);
    assert_eq!(second.ended().await.code(), Some(1));
    assert!(second.log().contains("less than desired GPU memory utilization"), "{}", second.log());
    assert_eq!(first.post("/sleep?level=1").await, 200);
    let second = node.start("A", &["--gpu-memory-utilization", "0.9"]).await;
    assert_eq!(second.text(3).await.split_whitespace().count(), 3);
}

#[tokio::test]
async fn a_neighbour_that_gives_memory_back_while_profiling_fails_the_start() {
    let node = Node::new();
    let me = hotbunk_sim::ledger::Owner::current().unwrap();
    node.ledger.allocate(me, "neighbour", 36 << 30).unwrap();
    // Slow enough to act between its first look at the device and profiling.
    let mut engine = node.launch("B", &["--speed", "40"]);
    until("some weights", async || node.used() > (36 << 30) + 600 * MIB).await;
    node.ledger.free(me, "neighbour", 36 << 30).unwrap();
    assert_eq!(engine.ended().await.code(), Some(1));
    assert!(engine.log().contains("Error in memory profiling"), "{}", engine.log());
}

#[tokio::test]
async fn the_first_start_is_cold_and_the_next_is_warm() {
    let node = Node::new();
    let cache = tempfile::tempdir().unwrap();
    let flags = ["--cache-dir", cache.path().to_str().unwrap(), "--speed", "80"];
    for _ in 0..2 {
        drop(node.start("B", &flags).await);
    }
    let took: Vec<u64> = node.operations().iter().map(|o| o.ended_ns - o.began_ns).collect();
    // 84.04 s / 80 against 36.04 s / 80.
    assert!(took.len() == 2 && took[0] >= 1_050_000_000 && took[1] < took[0], "{took:?}");
}

#[tokio::test]
async fn the_first_offload_pins_host_memory_for_good() {
    let node = Node::new();
    let engine = node.start("B", &["--host-scale", "64"]).await;
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", engine.core())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    let before = rss();
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    let pinned = rss() - before;
    let expected = 6738 * MIB / 64;
    assert!(pinned > expected * 9 / 10 && pinned < expected * 11 / 10, "{pinned} of {expected}");
    assert_eq!(engine.post("/wake_up").await, 200);
    assert!(rss() >= before + expected * 9 / 10, "not given back");
    assert_eq!(engine.post("/sleep?level=1").await, 200);
    assert!(rss() < before + expected * 11 / 10, "nor taken again");
}

#[tokio::test]
async fn a_core_killed_while_it_moves_memory_leaves_a_sound_ledger() {
    let node = Node::new();
    for gib in [1, 2, 4, 6, 7] {
        let mut engine = node.launch("B", &["--speed", "1000"]);
        until("memory", async || node.used() > gib << 30).await;
        engine.note_family();
        Engine::signal(engine.core(), Signal::KILL);
        until("memory to return", async || node.used() == 0).await;
        engine.ended().await;
    }
    assert_eq!(node.start("B", &[]).await.text(3).await.split_whitespace().count(), 3);
    assert_eq!(node.used(), 0);
}

#[tokio::test]
async fn told_to_stay_the_server_answers_503_after_its_engines_death() {
    let node = Node::new();
    let mut engine = node.start("B", &["env:VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1"]).await;
    Engine::signal(engine.core(), Signal::KILL);
    until("the death to be noticed", async || engine.get("/health").await.status() == 503).await;
    assert_eq!(engine.complete(3).await.0, 500);
    assert!(engine.is_running());
    Engine::signal(engine.pid(), Signal::TERM);
    assert_eq!(engine.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_start_may_be_slow_or_never_end() {
    let node = Node::new();
    drop(node.start("B", &["--speed", "1000", "--fault", "slow_start=4"]).await);
    let start = &node.operations()[0];
    // 36.04 s × 4 / 1000.
    assert!(start.ended_ns - start.began_ns >= 144_000_000);
    let mut engine = node.launch("B", &["--fault", "hang_start"]);
    until("the weights", async || node.used() > B_WEIGHTS).await;
    engine.note_family();
    assert!(engine.client.get(engine.url("/health")).send().await.is_err());
    Engine::signal(engine.pid(), Signal::TERM);
    assert_eq!(engine.ended().await.code(), Some(0));
    until("memory to return", async || node.used() == 0).await;
}

#[tokio::test]
async fn a_worker_that_hangs_for_ever_blocks_all_calls_and_still_ends_on_sigterm() {
    let node = Node::new();
    for (fault, call) in [("sleep_hang", "/sleep?level=1"), ("wake_hang", "/wake_up")] {
        let mut engine = node.start("B", &["--fault", fault]).await;
        if fault == "wake_hang" {
            assert_eq!(engine.post("/sleep?level=1").await, 200);
        }
        let patience = Duration::from_millis(700);
        let call = engine.client.post(engine.url(call)).timeout(patience).send();
        assert!(call.await.is_err());
        assert!(engine.client.get(engine.url("/is_sleeping")).timeout(patience).send().await.is_err());
        assert_eq!(engine.get("/health").await.status(), 200);
        Engine::signal(engine.pid(), Signal::TERM);
        assert_eq!(engine.ended().await.code(), Some(0));
        until("memory to return", async || node.used() == 0).await;
    }
}

#[tokio::test]
async fn workers_are_processes_of_their_own_and_outlive_a_killed_core_for_a_while() {
    let node = Node::new();
    let second = node.second_device();
    let ledgers = format!("{},{}", node.ledger.path().display(), second.path().display());
    let mut engine = node.start_on(&ledgers, "B", &["--tensor-parallel-size", "2"]).await;
    let core = engine.core();
    let owner = |ledger: &hotbunk_sim::ledger::DeviceLedger| {
        let processes = ledger.processes().unwrap();
        assert_eq!(processes.len(), 1);
        std::fs::read_to_string(format!("/proc/{}/comm", processes[0].0)).unwrap()
    };
    // The kernel keeps 15 characters, and there are no more.
    assert_eq!([owner(&node.ledger), owner(&second)], ["VLLM::Worker_TP\n", "VLLM::Worker_TP\n"]);
    // 9.3 s / 4.
    assert_eq!(engine.post_json("/sim/speed", &serde_json::json!({ "speed": 4.0 })).await.0, 200);
    // Answered after it: so the core has passed it on.
    assert!(!engine.is_sleeping().await);
    Engine::signal(core, Signal::KILL);
    assert_eq!(engine.ended().await.code(), Some(0));
    assert!(node.used() > 0, "the memory outlives the API server");
    until("memory to return", async || node.used() == 0 && second.used().unwrap() == 0).await;
}
