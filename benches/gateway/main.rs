//! The gateway beside nginx, and beside no proxy at all.
//!
//! ```text
//!                              ┌──────────────────────────────► engine  (called directly)
//!   client, one thread ────────┼──► the agent's gateway ──────► engine
//!                              └──► nginx ────────────────────► engine
//! ```
//!
//! What stands here is the released agent as a process of its own, with everything that it does besides: journal,
//! sampling, surveys. Two engines are awake: a simulated one, and one whose requests cost next to nothing (`backend`:
//! this program again, with a simulated engine behind it for what the agent itself asks). All ways are measured in
//! turns within one run, so that what else the machine does befalls all of them, and figures are ratios of one run.
//!
//! | figure | goal |
//! |---|---|
//! | latency that the gateway adds to a simulated engine, one request at a time | p50 ≤ 120 µs, p99 ≤ 1 ms |
//! | requests/s at 64 connections, short plain requests, against nginx | ≥ 0.8 |
//! | resident memory of the agent with 2,000 open streams | ≤ 100 MiB |
//! | p95 of one tenant's requests while another floods, against its p95 alone | ≤ 1.2 |
//!
//! CPU time per request stands beside throughput: where client, proxy and engine share the cores, throughput hides a
//! part of the difference between two proxies, CPU time does not.

mod backend;
mod client;
mod flood;
mod latency;
mod nginx;
mod rig;
mod streams;
mod throughput;
mod wire;

use anyhow::bail;
use comfy_table::Table;
use hotbunk_benches::{Asked, machine, say, table};
use rig::Rig;
use tokio::runtime::Runtime;

type Measure = fn(&Asked, &Runtime, &Rig, &mut Table) -> anyhow::Result<()>;
/// What is measured, in this order; named on the command line, those alone.
const FIGURES: [(&str, Measure); 4] = [
    ("throughput", throughput::measure),
    ("latency", latency::measure),
    ("streams", streams::measure),
    ("flood", flood::measure),
];

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == rig::BACKEND) {
        return backend::run(&words[1..]);
    }
    let asked = Asked::of_arguments()?;
    if let Some(name) = asked.names.iter().find(|n| !FIGURES.iter().any(|(known, _)| known == n)) {
        bail!("there is no figure {name}");
    }
    // Streams need two files each, in every process between.
    rig::raise_file_limit()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rig = Rig::start(&asked, &runtime)?;
    say(&format!("the agent (pid {}) beside {} ({})", rig.agent(), rig.nginx_version(), machine()));

    let mut goals = table(&["figure", "is", "goal", ""]);
    let wanted = |name: &str| asked.names.is_empty() || asked.names.iter().any(|n| n == name);
    for (_, measure) in FIGURES.iter().filter(|(name, _)| wanted(name)) {
        measure(&asked, &runtime, &rig, &mut goals)?;
    }
    rig.stop()?;
    say(&format!("\nGoals\n{goals}\n\n{}", machine()));
    Ok(())
}
