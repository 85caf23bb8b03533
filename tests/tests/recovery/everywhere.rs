//! Every strategy and every kind of operation, killed everywhere. `HOTBUNK_RECOVERY_ALL=1` tries every point twice.

use crate::enumerate::{all, ask, everywhere};
use hotbunk_api::client::Client;
use hotbunk_api::status::{Condition, EngineStatus};
use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Agent, Setup, Sleep, Switch, restart, start, stop, until, wake};
use std::io::Write as _;

/// Records of an agent's start before its first operation, and a few more.
const FIRST: usize = 5;

fn pair() -> Setup {
    Setup::pair().each(|e| e.speed(50.0))
}

/// Starts take their time.
fn quick() -> Setup {
    Setup::pair()
}

fn by(strategy: Strategy, to: &str) -> Switch {
    Switch::to(to).strategy(strategy)
}

#[tokio::test]
async fn sleep_first() {
    let asks = vec![
        ask("A→B sleep-first", by(Strategy::SleepFirst, "B")),
        ask("B→A sleep-first", by(Strategy::SleepFirst, "A")),
    ];
    everywhere("sleep-first", pair(), asks, None).await;
}

#[tokio::test]
async fn wake_first() {
    let asks = vec![
        ask("A→B wake-first", by(Strategy::WakeFirst, "B")),
        ask("B→A wake-first", by(Strategy::WakeFirst, "A")),
    ];
    everywhere("wake-first", pair(), asks, None).await;
}

#[tokio::test]
async fn park_and_auto() {
    let asks = vec![
        ask("A→B park", by(Strategy::Park, "B")),
        ask("B→A park", by(Strategy::Park, "A")),
        ask("A→B auto", by(Strategy::Auto, "B")),
        ask("B→A auto", by(Strategy::Auto, "A")),
    ];
    everywhere("park, auto", pair(), asks, None).await;
}

#[tokio::test]
async fn level_2_and_back() {
    let asks = vec![
        ask("A→B leaving level2", Switch::to("B").leave(Tier::Level2)),
        ask("B→A leaving level2", Switch::to("A").leave(Tier::Level2)),
    ];
    everywhere("level2", pair(), asks, None).await;
}

#[tokio::test]
async fn sleep_and_wake() {
    let asks = vec![ask("sleep A", Sleep::at("A", Tier::Level1)), ask("wake A", wake("A"))];
    everywhere("one engine", pair(), asks, None).await;
}

/// The first start of all, and one after a stop in order: killed in it, the next agent goes on with it. The first records, in
/// which nothing is begun yet, and every twenty-fifth; or each.
#[tokio::test]
async fn while_everything_starts() {
    let step = if all() { 1 } else { 25 };
    let first = 1..FIRST;
    let node = Setup::pair().env("HOTBUNK_DIE_AFTER_RECORD", "{dir}/die").build();
    let die = node.dir().join("die");
    let mut killed = 0;
    for records in first.chain((FIRST..).step_by(step)) {
        std::fs::write(&die, format!("{records} 0")).expect("written");
        let mut first = Agent::spawn(&node, &[]);
        until("the agent to be killed, or to be up", async || {
            let up = async || match Client::new(node.socket()) {
                Ok(api) => api.status().await.is_ok_and(|s| {
                    s.node.pid == first.id() && s.operation.is_none() && s.engines.iter().all(at_rest)
                }),
                Err(_) => false,
            };
            up().await || first.try_wait().expect("its status").is_some()
        })
        .await;
        let was_killed = first.try_wait().expect("its status").is_some();
        drop(first.kill());
        drop(first.wait());
        drop(std::fs::remove_file(&die));
        let agent = node.start().await;
        agent.until_up().await;
        node.engine("A").serves().await;
        assert_eq!(agent.incident_codes(0).await, Vec::<String>::new(), "after {records} records");
        assert_eq!(node.living().iter().filter(|p| p.command.contains(" shim ")).count(), 2);
        agent.stop().await;
        if !was_killed {
            break;
        }
        killed += 1;
    }
    let _ = writeln!(std::io::stderr(), "recovery boot: killed {killed}, recovered {killed}");
    assert!(killed > 3, "{killed}");
}

fn at_rest(engine: &EngineStatus) -> bool {
    engine.condition == Condition::Settled && engine.tier.is_some()
}

#[tokio::test]
async fn stop_and_start_with_rehearsal() {
    let asks = vec![ask("stop B", stop("B")), ask("start B", start("B"))];
    everywhere("process", quick(), asks, Some("B")).await;
}

#[tokio::test]
async fn restart_of_the_one_that_serves() {
    everywhere("restart", quick(), vec![ask("restart A", restart("A"))], Some("A")).await;
}
