//! The gateway, as clients use it: one port, two models, real processes behind it.

mod client;
mod handoffs;
mod misuse;
mod switching;

use hotbunk_tests::{Agent, Node, Setup};

/// The pair, slow enough that a stream lasts: a token of A takes a millisecond.
async fn pair(change: impl FnOnce(Setup) -> Setup) -> (Node, Agent) {
    let node = change(Setup::pair().each(|e| e.speed(40.0))).build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

/// A switch is somebody's demand, and nothing keeps it waiting but work.
fn eager(setup: Setup) -> Setup {
    setup.each(|e| e.line("min_residency = \"0s\""))
}
