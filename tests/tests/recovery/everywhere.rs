//! Every strategy and every kind of operation, killed everywhere. `HOTBUNK_RECOVERY_ALL=1` tries every point twice.

use crate::enumerate::{ask, everywhere};
use hotbunk_api::words::{Strategy, Tier};
use hotbunk_tests::{Setup, Sleep, Switch, restart, start, stop, wake};

fn pair() -> Setup {
    Setup::pair().each(|e| e.speed(50.0))
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

#[tokio::test]
async fn stop_and_start_with_rehearsal() {
    let asks = vec![ask("stop B", stop("B")), ask("start B", start("B"))];
    everywhere("process", pair(), asks, Some("B")).await;
}

#[tokio::test]
async fn restart_of_the_one_that_serves() {
    everywhere("restart", pair(), vec![ask("restart A", restart("A"))], Some("A")).await;
}
