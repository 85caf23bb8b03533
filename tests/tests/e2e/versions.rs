//! One pair of each range of releases: started, rehearsed, switched by every level that the release has.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::words::{Drain, Strategy, Tier};
use hotbunk_tests::{Agent, Setup, Switch};

/// What a release can do.
struct Release {
    version: &'static str,
    level2: bool,
    parks: bool,
    freezes: bool,
    aborts: bool,
    reloads_quantized: bool,
}

async fn check(release: Release) {
    let Release { version, level2, parks, freezes, aborts, reloads_quantized } = release;
    let node = Setup::pair().each(|e| e.version(version)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let caps = agent.engine("A").await.capabilities.unwrap();
    assert_eq!((caps.level1, caps.level2, caps.park), (true, level2, parks), "{version}");
    let sleep_first = |to: &str, leave: Tier| Switch::to(to).strategy(Strategy::SleepFirst).leave(leave);
    if level2 && !reloads_quantized {
        level2_is_a_trap(&agent).await;
    }
    let mark = agent.mark().await;
    for (leave, can) in
        [(Tier::Level1, true), (Tier::Level2, level2 && reloads_quantized), (Tier::Parked, parks)]
    {
        if !can {
            let refused = agent.submit(sleep_first("B", leave)).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::Unsupported, "{version} {leave}: {refused:?}");
            continue;
        }
        for (to, from) in [("B", "A"), ("A", "B")] {
            agent.done(sleep_first(to, leave)).await;
            agent.until_at(from, leave).await;
            node.engine(to).serves().await;
        }
        // Back to level 1, from where every release finds its way.
        for to in ["B", "A"] {
            agent.done(sleep_first(to, Tier::Level1)).await;
        }
    }
    let frozen = agent.submit(sleep_first("B", Tier::Level1).drain(Drain::Freeze)).await;
    assert_eq!(frozen.is_ok(), freezes, "{version}: {frozen:?}");
    if let Ok(op) = frozen {
        agent.wait(&op.id).await;
    }
    // A running request is waited for, and one that is to be aborted does not keep the handoff.
    agent.done(Switch::to("A").leave(Tier::Level1)).await;
    let mut stream = node.engine("A").stream(4000).await;
    stream.until(5).await;
    let op = agent.run(sleep_first("B", Tier::Level1).drain(Drain::Abort)).await;
    let (_, end) = stream.end().await;
    if aborts {
        assert_eq!((op.error, end.as_str()), (None, "abort"), "{version}");
        node.engine("B").serves().await;
    } else {
        assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::Unsupported), "{version}");
        assert_eq!(end, "length", "{version}: nothing happened to it");
        node.engine("A").serves().await;
    }
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new(), "{version}");
    agent.stop().await;
}

/// Up to 0.15 reloading quantised weights fails (CONTRACT 1.3), and A's are: what served is restored, A is started
/// again, and the level is not used on it any more. B's weights are not quantised.
async fn level2_is_a_trap(agent: &Agent) {
    let sleep_first = |to: &str| Switch::to(to).strategy(Strategy::SleepFirst).leave(Tier::Level2);
    let mark = agent.mark().await;
    agent.done(sleep_first("B")).await;
    let op = agent.run(sleep_first("A")).await;
    assert_eq!(op.error.map(|e| e.code), Some(ErrorCode::WakeFailed));
    agent.until_at("B", Tier::Awake).await;
    agent.node.engine("B").serves().await;
    agent.until_at("A", Tier::Level1).await;
    agent.until_idle().await;
    assert_eq!(agent.incident_codes(mark).await, ["wake_failed A"]);
    agent.done(sleep_first("A")).await;
    agent.until_at("B", Tier::Level2).await;
    let refused = agent.submit(sleep_first("B")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unsupported, "{refused:?}");
    agent.done(Switch::to("B").strategy(Strategy::SleepFirst)).await;
    agent.done(Switch::to("A").strategy(Strategy::SleepFirst)).await;
}

macro_rules! releases {
    ($($name:ident: $version:literal, $level2:literal, $parks:literal, $freezes:literal, $aborts:literal, $reloads:literal;)+) => {
        $(#[tokio::test]
        async fn $name() {
            let release = Release {
                version: $version,
                level2: $level2,
                parks: $parks,
                freezes: $freezes,
                aborts: $aborts,
                reloads_quantized: $reloads,
            };
            check(release).await;
        })+
    };
}

releases! {
    v0_9_2: "0.9.2", false, false, false, false, false;
    v0_11: "0.11", true, false, false, false, false;
    v0_16: "0.16", true, false, false, true, true;
    v0_20: "0.20", true, false, false, true, true;
    v0_26: "0.26", true, false, true, true, true;
    v0_31: "0.31", true, true, true, true, true;
    v0_32: "0.32", true, true, true, true, true;
}
