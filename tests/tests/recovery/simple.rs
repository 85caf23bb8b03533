//! At rest, and in the middle of a handoff.

use hotbunk_api::words::{State, Strategy, Tier};
use hotbunk_tests::{Agent, Node, Setup, Switch, until};
use rustix::process::Signal;
use std::collections::BTreeSet;

async fn pair() -> (Node, Agent) {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

fn pids(node: &Node) -> BTreeSet<u32> {
    node.living().iter().map(|p| p.pid).collect()
}

#[tokio::test]
async fn an_agent_killed_at_rest_is_succeeded_by_one_that_takes_over() {
    let (node, agent) = pair().await;
    agent.done(Switch::to("B")).await;
    let before = agent.status().await;
    agent.kill().await;
    let left = pids(&node);
    node.engine("B").serves().await;

    let agent = node.start().await;
    agent.until_at("B", Tier::Awake).await;
    node.engine("B").serves().await;
    agent.until_idle().await;
    assert_eq!(pids(&node).difference(&[agent.pid()].into()).copied().collect::<BTreeSet<_>>(), left);
    let after = agent.status().await;
    for (was, is) in before.engines.iter().zip(&after.engines) {
        assert_eq!((&was.incarnation, was.tier, was.generation), (&is.incarnation, is.tier, is.generation));
        assert_eq!((&was.version, &was.capabilities), (&is.version, &is.capabilities));
        assert_eq!((&was.footprints, &was.log_path), (&is.footprints, &is.log_path));
    }
    assert_eq!(before.devices[0].held_bytes, after.devices[0].held_bytes);
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    // Everything goes on as it would have: both ways, canaries and costs included, and the end.
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    agent.done(Switch::to("B")).await;
    node.engine("B").serves().await;
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_killed_in_the_middle_of_a_handoff_is_succeeded_by_one_that_finishes_it() {
    let (node, agent) = pair().await;
    node.engine("B").fault("wake_hang", None, None).await;
    let begun = agent.submit(Switch::to("B").strategy(Strategy::SleepFirst)).await.unwrap();
    until("the wake to hang", async || {
        agent.api.operation(&begun.id).await.unwrap().steps.iter().any(|s| s.phase == "wake")
    })
    .await;
    agent.kill().await;
    let left = pids(&node);
    let agent = node.start().await;
    let operation = agent.wait(&begun.id).await;
    agent.until_idle().await;
    // One of the two serves, and the operation says which.
    match operation.state {
        State::Succeeded => node.engine("B").serves().await,
        _ => node.engine("A").serves().await,
    }
    let a: BTreeSet<u32> = node.tree("A").iter().map(|p| p.pid).collect();
    assert!(a.is_subset(&left), "A is not started again: {a:?} {left:?}");
    agent.done(Switch::to(if operation.state == State::Succeeded { "A" } else { "B" })).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_goes_by_signal_leaves_the_engines_and_a_plain_stop_does_not() {
    let (node, mut agent) = pair().await;
    agent.signal(Signal::USR1);
    assert!(agent.ended().await.success());
    let left = pids(&node);
    node.engine("A").serves().await;
    let agent = node.start().await;
    agent.until_up().await;
    assert!(left.is_subset(&pids(&node)));
    agent.stop().await;
    let agent = node.start().await;
    agent.until_up().await;
    assert!(left.is_disjoint(&pids(&node)));
    agent.stop().await;
}
