//! Killed in the middle of taking over a server that somebody else has started: after every transaction, and a moment later.
//! Whatever becomes of it, the server is never ended, restarted or put to sleep: it is an engine afterwards, or it is left as
//! it was.

use crate::enumerate::all;
use hotbunk_api::operation::Submit;
use hotbunk_api::words::{State, Tier};
use hotbunk_tests::{Agent, Node, Setup, adopt, stop, until};
use std::io::Write as _;
use std::time::Duration;

/// Milliseconds after a commit.
const DELAYS: [u64; 2] = [0, 15];

#[tokio::test]
async fn a_server_is_never_touched_by_an_agent_that_dies_taking_it_over() {
    let node = Setup::pair().by_hand().env("HOTBUNK_DIE_AFTER_RECORD", "{dir}/die").build();
    let (mut killed, mut adopted, mut left) = (0, 0, 0);
    let step = if all() { 1 } else { 3 };
    for (at, delay) in (1..).step_by(step).flat_map(|at| DELAYS.map(|delay| (at, delay))) {
        let mut server = node.by_hand("A", &[]).await;
        let agent = node.start().await;
        let was_killed = killed_at(&node, agent, at, delay).await;
        let place = format!("{at} records, {delay} ms");
        assert!(server.runs(), "{place}");

        let agent = node.start().await;
        let begun = agent.api.operation(&id(at, delay)).await.is_ok();
        let state = if begun { agent.wait(&id(at, delay)).await.state } else { State::Failed };
        agent.until_idle().await;
        assert!(server.runs(), "{place}: {}", agent.log());
        assert_eq!(node.tree("A").len(), 3, "{place}: nothing of it was ended, nothing started");
        node.engine("A").serves().await;
        assert_eq!(agent.incident_codes(0).await.iter().filter(|c| c.ends_with(" A")).count(), 0, "{place}");
        let engine = agent.engine("A").await;
        if state == State::Succeeded {
            assert_eq!(
                (engine.tier, engine.incarnation.map(|i| i.pid)),
                (Some(Tier::Awake), Some(server.pid()))
            );
            assert_eq!(node.shims().len(), 1, "{place}");
            adopted += 1;
        } else {
            assert_eq!((engine.tier, engine.incarnation), (Some(Tier::Stopped), None), "{place}");
            until("nobody to hold it", async || node.shims().is_empty()).await;
            agent.done(adopt("A")).await;
            left += 1;
        }
        killed += u32::from(was_killed);
        agent.done(stop("A")).await;
        server.ended().await;
        agent.stop().await;
        // A state directory of its own for each: what was kept of one life is no part of another.
        drop(std::fs::remove_dir_all(node.dir().join("state")));
        if !was_killed {
            break;
        }
    }
    let _ = writeln!(
        std::io::stderr(),
        "recovery adopt: killed {killed}, server untouched {}, taken over {adopted}, left as it was {left}",
        adopted + left
    );
    assert!(killed > 3, "{killed}");
}

fn id(at: usize, delay: u64) -> String {
    format!("adopt-{at}-{delay}")
}

/// Whether it was killed before the operation had ended.
async fn killed_at(node: &Node, mut agent: Agent, at: usize, delay: u64) -> bool {
    std::fs::write(node.dir().join("die.next"), format!("{at} {delay}")).expect("written");
    std::fs::rename(node.dir().join("die.next"), node.dir().join("die")).expect("in place");
    let submit = Submit { id: Some(id(at, delay)), request: adopt("A") };
    drop(agent.api.submit(&submit).await);
    let mut ended = false;
    while agent.is_running() && !ended {
        ended = match agent.api.operation(&id(at, delay)).await {
            Ok(operation) => operation.state.is_over(),
            Err(_) => false,
        };
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let was_killed = !agent.is_running();
    drop(std::fs::remove_file(node.dir().join("die")));
    agent.kill().await;
    was_killed
}
