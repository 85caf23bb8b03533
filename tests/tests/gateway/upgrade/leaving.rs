//! An agent that leaves its engines to the next one.

use crate::answer::Complaint;
use crate::door::{Door, Ended, HangUp, Report, Wanted};
use crate::left;
use hotbunk_api::words::Tier;
use hotbunk_tests::{Agent, Handed, Node, Setup, until};
use rustix::process::Signal;
use tokio::task::JoinHandle;

/// Engines that take their time, and sockets that stay.
async fn slow(drain: &str) -> (Node, Handed, Agent) {
    let node = Setup::pair()
        .each(|e| e.speed(5.0))
        .node_line("shutdown_grace = \"90s\"")
        .gateway_line(&format!("upgrade_drain = \"{drain}\""))
        .policy_line("drain_deadline = \"30s\"")
        .build();
    let handed = Handed::of(&node);
    let agent = handed.start(&node).await;
    agent.until_up().await;
    (node, handed, agent)
}

fn ask(node: &Node, role: &'static str, tokens: u32, stream: bool) -> JoinHandle<Report> {
    let door = Door::of(node);
    let prompt = format!("{role}, {tokens} of {stream}");
    let wanted = Wanted { role, prompt, tokens, stream, hang_up: HangUp::No, key: None };
    tokio::spawn(async move { door.ask(&wanted).await })
}

async fn until_load(agent: &Agent, wanted: [(u32, u32); 2]) {
    until(&format!("{wanted:?} requests in flight and held"), async || left::load(agent).await == wanted)
        .await;
}

fn restarting(complaint: &Complaint) {
    assert_eq!(complaint.code, "restarting", "{complaint:?}");
}

#[tokio::test]
async fn who_runs_is_finished_who_waits_is_told_and_who_comes_is_served_by_the_next_agent() {
    let (node, handed, mut agent) = slow("60s").await;
    let running = [ask(&node, "A", 300, true), ask(&node, "A", 280, false)];
    until_load(&agent, [(2, 0), (0, 0)]).await;
    let waiting = [ask(&node, "B", 3, false), ask(&node, "B", 3, true)];
    until_load(&agent, [(2, 0), (0, 2)]).await;
    agent.signal(Signal::USR1);
    for waiting in waiting {
        match waiting.await.unwrap().ended.unwrap() {
            Ended::Refused(503, complaint) | Ended::Broken(complaint) => restarting(&complaint),
            other => panic!("{other:?}"),
        }
    }
    // Nobody accepts this one before the next agent does.
    let coming = ask(&node, "A", 3, false);
    for running in running {
        assert_eq!(running.await.unwrap().ended, Ok(Ended::Whole));
    }
    assert!(agent.ended().await.success());
    assert!(!coming.is_finished(), "it waits where nobody accepts");
    let agent = handed.start(&node).await;
    assert_eq!(coming.await.unwrap().ended, Ok(Ended::Whole));
    agent.until_idle().await;
    left::nothing(&agent).await;
    left::nobody_came_asleep(&agent).await;
    agent.stop().await;
}

#[tokio::test]
async fn who_takes_longer_than_the_deadline_gets_an_error_that_says_so() {
    let (node, handed, mut agent) = slow("300ms").await;
    let (stream, plain) = (ask(&node, "A", 3000, true), ask(&node, "A", 3001, false));
    until_load(&agent, [(2, 0), (0, 0)]).await;
    agent.signal(Signal::USR1);
    match (stream.await.unwrap().ended, plain.await.unwrap().ended) {
        (Ok(Ended::Broken(stream)), Ok(Ended::Refused(503, plain))) => {
            restarting(&stream);
            restarting(&plain);
        }
        other => panic!("{other:?}"),
    }
    assert!(agent.ended().await.success());
    assert!(agent.log().contains("upgrade_drain"), "{}", agent.log());
    let agent = handed.start(&node).await;
    agent.until_at("A", Tier::Awake).await;
    left::nothing(&agent).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_second_signal_hurries() {
    let (node, handed, mut agent) = slow("60s").await;
    let stream = ask(&node, "A", 3000, true);
    until_load(&agent, [(1, 0), (0, 0)]).await;
    agent.signal(Signal::USR1);
    until("the first to be heard", async || agent.log().contains("going, the engines stay")).await;
    agent.signal(Signal::TERM);
    match stream.await.unwrap().ended {
        Ok(Ended::Broken(complaint)) => restarting(&complaint),
        other => panic!("{other:?}"),
    }
    assert!(agent.ended().await.success());
    let agent = handed.start(&node).await;
    agent.until_at("A", Tier::Awake).await;
    agent.stop().await;
}
