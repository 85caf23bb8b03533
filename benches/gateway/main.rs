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

use hotbunk_benches::{Asked, machine, say, table};
use rig::Rig;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == rig::BACKEND) {
        return backend::run(&words[1..]);
    }
    let asked = Asked::of_arguments()?;
    // Streams need two files each, in every process between.
    rig::raise_file_limit()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rig = Rig::start(&asked, &runtime)?;
    say(&format!("the agent (pid {}) beside {} ({})", rig.agent(), rig.nginx_version(), machine()));

    let mut goals = table(&["figure", "is", "goal", ""]);
    throughput::measure(&asked, &runtime, &rig, &mut goals)?;
    latency::measure(&asked, &runtime, &rig, &mut goals)?;
    streams::measure(&asked, &runtime, &rig, &mut goals)?;
    flood::measure(&asked, &runtime, &rig, &mut goals)?;
    rig.stop()?;
    say(&format!("\nGoals\n{goals}\n\n{}", machine()));
    Ok(())
}
