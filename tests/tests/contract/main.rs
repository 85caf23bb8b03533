//! The contract suite: what the agent relies on in vLLM, checked against whoever claims to be vLLM.
//!
//! ```text
//!                    ┌─ simulated engine, always          `cargo test -p hotbunk-tests --test contract`
//!  one set of ───────┤
//!  checks            └─ real vLLM, where HOTBUNK_REAL_VLLM names an installation (tests/real-vllm/README.md)
//! ```
//!
//! The agent's tests run on the simulated engine, so they prove as much as the simulation is true. Here every check is
//! a statement about vLLM, named, with the line of the contract that it follows, and both targets must satisfy the same
//! statement with the same code. Where the CPU build of real vLLM has no memory to show, a worker of our own
//! (`tests/real-vllm/hook`) keeps the device ledger that the simulated engine keeps: a real front end, a real engine
//! core and a real scheduler meet simulated memory.
//!
//! Checks that leave a server as they found it share one; those that end it come last and have one each. A check that
//! fails does not keep the others from running. Set HOTBUNK_CONTRACT to run only checks whose name contains one of its
//! words, HOTBUNK_CONTRACT_RECORD to a folder to have the result written there.

mod check;
mod during;
mod ending;
mod http;
mod memory;
mod metrics;
mod record;
mod requests;
mod routes;
mod server;
mod serving;
mod sleeping;
mod stream;
mod target;

use check::{Check, Outcome, run};
use std::io::{Write, stderr};
use target::Target;
use tokio::task::LocalSet;

/// All checks, those that end a server last.
fn checks() -> Vec<Check> {
    [
        routes::checks(),
        serving::checks(),
        sleeping::checks(),
        requests::checks(),
        during::checks(),
        metrics::checks(),
        memory::checks(),
        ending::checks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn all(target: Target) {
    let results = run(&target, checks()).await;
    let table = record::table(&target, &results);
    // Not all of it is an error, but stdout belongs to the test runner.
    writeln!(stderr(), "{table}").expect("stderr can be written");
    let failed: Vec<&str> =
        results.iter().filter(|r| matches!(r.outcome, Outcome::Failed(_))).map(|r| r.name).collect();
    assert!(failed.is_empty(), "{} of {} checks failed: {failed:?}", failed.len(), results.len());
}

#[tokio::test]
async fn simulated_engine() {
    LocalSet::new().run_until(all(Target::simulated())).await;
}

#[tokio::test]
async fn real_vllm() {
    match Target::real() {
        Some(target) => LocalSet::new().run_until(all(target)).await,
        None => {
            let why =
                "SKIPPED: HOTBUNK_REAL_VLLM names no installation of vLLM; see tests/real-vllm/README.md";
            writeln!(stderr(), "{why}").expect("stderr can be written");
        }
    }
}

#[test]
fn names_are_unique_and_every_check_follows_a_line() {
    let checks = checks();
    let mut names: Vec<&str> = checks.iter().map(|c| c.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(checks.iter().all(|c| c.name.contains('.') && !c.follows.is_empty()));
}
