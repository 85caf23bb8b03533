//! Clients that never stop, through agents that are restarted and killed.

use crate::door::{Door, Ended, HangUp, Report, Wanted, now_ns};
use crate::draw::say;
use crate::left;
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, Handed, Node, Setup, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::task::{JoinHandle, spawn_blocking};

/// How a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    /// A connection for each request.
    Stranger,
    /// On kept connections.
    Regular,
    /// Short streams on kept connections.
    Reader,
    /// Streams that take longer than an agent's start.
    LongReader,
}

const MANNERS: [Manner; 4] = [Manner::Stranger, Manner::Regular, Manner::Reader, Manner::LongReader];

/// Clients at work.
pub(super) struct Crowd {
    over: Arc<AtomicBool>,
    /// Requests that have ended, by manner.
    done: [Arc<AtomicU64>; 4],
    clients: Vec<(Manner, JoinHandle<Vec<Report>>)>,
}

impl Crowd {
    pub(super) fn at(node: &Node, each: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let done: [Arc<AtomicU64>; 4] = std::array::from_fn(|_| Arc::default());
        let mut clients = Vec::new();
        for (which, manner) in MANNERS.into_iter().enumerate() {
            for at in 0..each {
                let door = if manner == Manner::Stranger { Door::of_strangers(node) } else { Door::of(node) };
                let (over, done) = (Arc::clone(&over), Arc::clone(&done[which]));
                clients.push((manner, tokio::spawn(client(door, manner, at, over, done))));
            }
        }
        Crowd { over, done, clients }
    }

    /// Waits until so many more requests of each manner have ended.
    pub(super) async fn go_on(&self, more: u64) {
        for done in &self.done {
            let wanted = done.load(Ordering::Relaxed) + more;
            until("clients to be served", async || done.load(Ordering::Relaxed) >= wanted).await;
        }
    }

    pub(super) async fn end(self) -> Vec<(Manner, Report)> {
        self.over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for (manner, client) in self.clients {
            all.extend(client.await.unwrap().into_iter().map(|report| (manner, report)));
        }
        all
    }
}

async fn client(
    door: Door,
    manner: Manner,
    at: usize,
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Vec<Report> {
    let mut reports = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let tokens = if manner == Manner::LongReader { 150 } else { 4 };
        let stream = matches!(manner, Manner::Reader | Manner::LongReader);
        let prompt = format!("{manner:?} {at}, number {}", reports.len());
        let wanted = Wanted { role: "A", prompt, tokens, stream, hang_up: HangUp::No, key: None };
        reports.push(door.ask(&wanted).await);
        done.fetch_add(1, Ordering::Relaxed);
    }
    reports
}

/// What ended how, for whoever reads it.
pub(super) fn table(reports: &[(Manner, Report)]) -> String {
    let mut counts: BTreeMap<(Manner, String), (u64, u128)> = BTreeMap::new();
    for (manner, report) in reports {
        let word = match &report.ended {
            Ok(Ended::Whole) => "whole".to_owned(),
            Ok(Ended::Refused(status, complaint)) => format!("{status} {}", complaint.code),
            Ok(Ended::Broken(complaint)) => format!("ended: {}", complaint.code),
            Ok(Ended::HungUp) => "hung up".to_owned(),
            Err(_) => "wrong".to_owned(),
        };
        let (count, longest) = counts.entry((*manner, word)).or_default();
        *count += 1;
        *longest = (*longest).max(report.took.as_millis());
    }
    let line = |((manner, word), (count, longest)): (&(Manner, String), &(u64, u128))| {
        format!("{count:6} of {manner:?}: {word} (longest {longest} ms)\n")
    };
    counts.iter().map(line).collect()
}

/// Each was answered to the end, but for those who are told to come again: whoever had to wait for a place just then, or whose
/// request was just coming in, and took long for it.
pub(super) fn none_lost(reports: &[(Manner, Report)]) {
    for (manner, report) in reports {
        match &report.ended {
            Ok(Ended::Whole) => {}
            Ok(Ended::Refused(503, complaint)) if complaint.code == "restarting" => {}
            other => panic!("{manner:?}: {other:?}"),
        }
    }
}

async fn leave(mut agent: Agent, signal: Signal) {
    agent.signal(signal);
    assert!(agent.ended().await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_are_restarted_and_no_client_loses_anything() {
    let node = Setup::pair()
        .each(|e| e.speed(20.0))
        .node_line("on_stop = \"leave\"")
        .node_line("shutdown_grace = \"90s\"")
        .gateway_line("upgrade_drain = \"60s\"")
        .build();
    let handed = Handed::of(&node).storing(&node);
    let mut agent = handed.start(&node).await;
    agent.until_up().await;
    let engines: Vec<u32> = node.engines().iter().map(|e| node.core(e.name()).pid).collect();
    let crowd = Crowd::at(&node, 2);
    for signal in [Signal::TERM, Signal::USR1, Signal::TERM] {
        crowd.go_on(2).await;
        until("long streams to run", async || left::load(&agent).await[0].0 >= 2).await;
        leave(agent, signal).await;
        agent = handed.start(&node).await;
    }
    crowd.go_on(2).await;
    let reports = crowd.end().await;
    say(&format!("three restarts:\n{}", table(&reports)));
    none_lost(&reports);
    let now: Vec<u32> = node.engines().iter().map(|e| node.core(e.name()).pid).collect();
    assert_eq!(now, engines, "no engine was started again");
    left::nothing(&agent).await;
    left::nobody_came_asleep(&agent).await;
    // The last one takes the engines with it.
    leave(agent, Signal::TERM).await;
    let text = std::fs::read_to_string(node.config()).unwrap();
    std::fs::write(node.config(), text.replace("on_stop = \"leave\"", "on_stop = \"stop\"")).unwrap();
    let agent = handed.start(&node).await;
    agent.until_at("A", Tier::Awake).await;
    agent.stop().await;
}

/// Whether each of its threads has been stopped: a signal is on its way for a moment, and some of them go on meanwhile.
fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    threads.into_iter().all(is_stopped)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_killed_and_only_what_it_was_answering_is_lost() {
    let node = Setup::pair().each(|e| e.speed(20.0)).build();
    let handed = Handed::of(&node);
    let agent = handed.start(&node).await;
    agent.until_up().await;
    let crowd = Crowd::at(&node, 2);
    crowd.go_on(2).await;
    // One that is sure not to have been accepted: it connects while the agent cannot move.
    agent.signal(Signal::STOP);
    until("it to stand still", async || stands_still(agent.pid())).await;
    let mut waiting = TcpStream::connect((Ipv4Addr::LOCALHOST, node.gateway_port())).unwrap();
    waiting.write_all(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    agent.kill().await;
    let agent = handed.start(&node).await;
    let up = now_ns();
    let answer = spawn_blocking(move || {
        let mut text = String::new();
        waiting.read_to_string(&mut text).map(|_| text)
    });
    let answer = answer.await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    crowd.go_on(2).await;
    let reports = crowd.end().await;
    say(&format!("one kill -9:\n{}", table(&reports)));
    let mut lost = 0;
    for (manner, report) in &reports {
        match &report.ended {
            Ok(Ended::Whole) => {}
            Err(why) if report.began_ns < up && !why.contains("onnection refused") => lost += 1,
            other => panic!("{manner:?}: {other:?}"),
        }
    }
    // At most what each client was at, and one more on a connection that it kept and that had just died.
    assert!(lost <= 2 * 2 * MANNERS.len(), "{lost} were lost");
    agent.until_idle().await;
    left::nothing(&agent).await;
    left::nobody_came_asleep(&agent).await;
    agent.stop().await;
}
