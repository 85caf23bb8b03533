//! Everything that can go wrong, at any instant, under traffic through the gateway: agent, engines, driver, memory, host; and
//! what an operator does meanwhile: another configuration, another agent, a server that nobody of ours has started.
//!
//! One fault after the other strikes while clients ask both models, so that handoffs are under way all the time. After
//! each the clients hold still, what was broken is mended, and the node must be whole again: nobody waits, nothing is in
//! flight, one engine at most is awake, memory is where the ledger says, no process is left over, no request has
//! reached an engine that was not awake. In the end every request is accounted for: a whole answer, byte for byte, or a
//! well-formed error; and when the agent has stopped, no process and no byte of device memory is left.
//!
//! Part of every `cargo test` are a few faults of all kinds, always the same; `HOTBUNK_LOAD_SEED` draws others. With
//! `HOTBUNK_CHAOS=1` each kind strikes once, with `HOTBUNK_CHAOS=WORD` those that have the word in their name ten times, with
//! `HOTBUNK_LOAD=full` thirty times, on several nodes at once, in an order that follows from the seed. A run prints its seed and the table of what was tried and survived.

mod bench;
mod configuration;
mod faults;
mod host;
mod revised;
mod strangers;
mod table;
mod traffic;

use crate::door::Door;
use crate::draw::{Draw, is_full, say, seed};
use crate::left;
use bench::Bench;
use configuration::mark_of;
use faults::{FAULTS, Fault};
use hotbunk_tests::{MIB, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use table::Table;
use traffic::{Asked, Traffic};

/// Faults of a run that nobody asked for.
const FEW: usize = 9;
/// How often one strikes that is asked for by name.
const A_NAMED_ONE: usize = 10;
/// How often each kind strikes in the long run, by node.
const OFTEN: usize = 15;
/// After so many faults a long run says how far it has come.
const NOW_AND_THEN: usize = 100;
/// Nodes of the long run.
const NODES: u64 = 2;

/// What strikes on one node, in order.
fn order(draw: &mut Draw) -> Vec<&'static Fault> {
    let word = std::env::var("HOTBUNK_CHAOS").ok();
    let named = |fault: &&Fault| word.as_ref().is_none_or(|word| word == "1" || fault.name.contains(word));
    let times = match &word {
        Some(word) if word != "1" => A_NAMED_ONE,
        _ if is_full() => OFTEN,
        _ => 1,
    };
    let mut order: Vec<&Fault> = FAULTS.iter().filter(named).flat_map(|fault| vec![fault; times]).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, usize::try_from(draw.below(at as u64 + 1)).unwrap_or(0));
    }
    if !is_full() && word.is_none() {
        order.truncate(FEW);
    }
    order
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_everything_is_whole_again() {
    let seed = seed(7);
    let began = Instant::now();
    say(&format!("chaos: seed {seed}"));
    let nodes = if is_full() { NODES } else { 1 };
    let table = Arc::new(Mutex::new(Table::default()));
    let threads = tokio::runtime::Handle::current();
    let begin = |node| {
        let (threads, table, seed) = (threads.clone(), Arc::clone(&table), seed.wrapping_add(node));
        tokio::task::spawn_blocking(move || threads.block_on(storm(seed, &table)))
    };
    let storms: Vec<_> = (0..nodes).map(begin).collect();
    let mut asked = Vec::new();
    let mut lost = Vec::new();
    for storm in storms {
        match storm.await {
            Ok(reports) => asked.extend(reports),
            Err(why) => lost.push(why.to_string()),
        }
    }
    table.lock().unwrap_or_else(PoisonError::into_inner).print(seed, began.elapsed());
    assert!(lost.is_empty(), "a storm was not survived: {lost:#?}");
    traffic::account(&asked, seed);
}

#[test]
fn the_documents_say_how_many_kinds_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["README.md", "ARCHITECTURE.md"] {
        let text = std::fs::read_to_string(root.join(name)).expect("the document");
        assert!(text.contains(&format!("faults of {} kinds", FAULTS.len())), "{name} says otherwise");
    }
}

/// All that strikes on one node.
async fn storm(seed: u64, table: &Mutex<Table>) -> Vec<Asked> {
    let mut draw = Draw::new(seed);
    let mut bench = Bench::begin().await;
    let traffic = Traffic::begin(&Door::of(&bench.node), seed);
    let mut asleep_before = BTreeMap::new();
    for (number, fault) in order(&mut draw).into_iter().enumerate() {
        if let Some(why) = bench.cannot(fault) {
            table.lock().unwrap_or_else(PoisonError::into_inner).skipped(fault.name, why);
            continue;
        }
        let struck = Instant::now();
        let mark = bench.agent().mark().await;
        bench.strike(fault, &traffic, &mut draw).await;
        bench.heal(&traffic, &mut draw).await;
        traffic.hold_still().await;
        bench.mend().await;
        assert!(bench.stranger_stays().await, "{} (seed {seed}): the server is not as it was", fault.name);
        whole(
            &bench,
            fault,
            &format!("after {} (seed {seed}, fault {number})", fault.name),
            &mut asleep_before,
        )
        .await;
        // A journal that was set aside begins anew.
        let now = bench.agent().mark().await;
        let incidents = bench.agent().incident_codes(if now < mark { 0 } else { mark }).await;
        table.lock().unwrap_or_else(PoisonError::into_inner).survived(
            fault.name,
            struck.elapsed(),
            &incidents,
        );
        if number % NOW_AND_THEN == NOW_AND_THEN - 1 {
            say(&format!("chaos: {} faults survived on the node of seed {seed}", number + 1));
        }
        traffic.go_on();
    }
    let reports = traffic.end().await;
    bench.end().await;
    reports
}

/// Nothing is left of a fault.
async fn whole(bench: &Bench, fault: &Fault, what: &str, asleep_before: &mut BTreeMap<String, u64>) {
    left::nothing(bench.agent()).await;
    for engine in bench.node.engines() {
        // The count is one of the process's life: what somebody else's sleep has brought about stays in it.
        let (_, asleep, late) = left::arrivals(engine).await;
        let before = asleep_before.insert(engine.name().to_owned(), asleep).unwrap_or(0);
        assert!(
            fault.asks_asleep || asleep <= before,
            "{what}: requests to {}, {late} ms late",
            engine.name()
        );
    }
    let status = bench.agent().status().await;
    let awake = status.engines.iter().filter(|e| e.tier == Some(hotbunk_api::words::Tier::Awake)).count();
    assert_eq!(awake, 1, "{what}: {:#?}", status.engines);
    // What an engine loses with its sleeps is counted as nobody's once it has been seen twice: no recycling is configured.
    let used = bench.node.used();
    until(&format!("{what}: {used} bytes to be counted"), async || {
        let device = bench.agent().status().await.devices.remove(0);
        let counted = device.held_bytes.unwrap_or_default() + device.foreign_bytes.unwrap_or_default();
        counted.abs_diff(used) <= 256 * MIB
    })
    .await;
    for engine in &status.engines {
        let tree = bench.node.tree(&engine.name);
        assert_eq!(tree.len(), bench.processes, "{what}: {}: {tree:#?}", engine.name);
        let wanted = Some(bench.configuration.mark(&engine.name));
        assert!(
            tree.iter().all(|p| mark_of(p.pid) == wanted),
            "{what}: {} runs with older settings",
            engine.name
        );
    }
}
