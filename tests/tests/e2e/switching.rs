//! Handoffs that go as planned, and those that nobody should want.

use hotbunk_api::error::ErrorCode;
use hotbunk_api::explain::{Alternative, Change, ExplainRequest, Verdict};
use hotbunk_api::operation::Operation;
use hotbunk_api::words::{Drain, Order, State, Strategy, Tier};
use hotbunk_tests::{Agent, MIB, Node, Setup, Sleep, Switch, wake};

/// Phases in the order in which they began, as `phase engine`.
fn phases(operation: &Operation) -> Vec<String> {
    operation.steps.iter().map(|s| format!("{} {}", s.phase, s.engine)).collect()
}

async fn pair() -> (Node, Agent) {
    let node = Setup::pair().build();
    let agent = node.start().await;
    agent.until_up().await;
    (node, agent)
}

#[tokio::test]
async fn every_strategy_does_what_its_name_says() {
    let (node, agent) = pair().await;

    let op = agent.done(Switch::to("B").strategy(Strategy::SleepFirst)).await;
    assert_eq!(
        phases(&op),
        [
            "drain A",
            "sleep A",
            "verify_asleep A",
            "await_release A",
            "wake B",
            "verify_awake B",
            "await_residence B",
            "probe B"
        ]
    );
    let plan = op.plan.as_ref().unwrap();
    assert_eq!((plan.order, plan.leave), (Some(Order::BreakBeforeMake), Some(Tier::Level1)));
    assert_eq!((op.from.as_deref(), op.state), (Some("A"), State::Succeeded));
    let first_token = op.first_token_s.unwrap();
    assert!(first_token > 0.0 && first_token <= op.elapsed_s, "{op:#?}");
    let step = |phase: &str| op.steps.iter().find(|s| s.phase == phase).unwrap();
    let freed =
        step("sleep").device_before_bytes.unwrap() - step("await_release").device_after_bytes.unwrap();
    assert!(freed > 32_000 * MIB, "{op:#?}");
    assert!(op.steps.iter().all(|s| s.duration_s.is_some() && s.state == State::Succeeded), "{op:#?}");
    node.engine("B").serves().await;
    assert_eq!(node.used_by("A"), 597 * MIB);

    let op = agent.done(Switch::to("A").strategy(Strategy::WakeFirst)).await;
    let order = phases(&op);
    let at = |phase: &str| order.iter().position(|p| p == phase).unwrap();
    assert!(at("probe A") < at("drain B") && at("drain B") < at("sleep B"), "{order:?}");
    assert_eq!(op.plan.unwrap().order, Some(Order::MakeBeforeBreak));
    agent.until_at("B", Tier::Level1).await;

    let op = agent.done(Switch::to("B").strategy(Strategy::Park)).await;
    let order = phases(&op);
    assert!(order.contains(&"release_kv A".to_owned()), "{order:?}");
    agent.until_at("A", Tier::Parked).await;
    agent.until_at("B", Tier::Awake).await;

    // Both fit: auto wakes first. Where it leaves B is up to measured costs, which at this speed are mostly noise.
    let op = agent.done(Switch::to("A")).await;
    let plan = op.plan.as_ref().unwrap();
    assert_eq!((plan.strategy, plan.order), (Some(Strategy::Auto), Some(Order::MakeBeforeBreak)));
    assert!(phases(&op).contains(&"wake_kv A".to_owned()), "{:?}", phases(&op));
    agent.until_at("B", plan.leave.unwrap()).await;

    for leave in [Tier::Level2, Tier::Stopped, Tier::Level1] {
        let outgoing =
            agent.status().await.engines.iter().find(|e| e.tier == Some(Tier::Awake)).unwrap().name.clone();
        let incoming = if outgoing == "A" { "B" } else { "A" };
        agent.done(Switch::to(incoming).leave(leave)).await;
        agent.until_at(&outgoing, leave).await;
        agent.until_at(incoming, Tier::Awake).await;
        node.engine(incoming).serves().await;
    }
    assert_eq!(agent.incident_codes(0).await, Vec::<String>::new());
    agent.stop().await;
}

#[tokio::test]
async fn nothing_to_do_is_success_and_a_second_command_joins_or_is_refused() {
    // Slow enough to be met while it runs.
    let node = Setup::pair().each(|e| e.speed(60.0)).build();
    let agent = node.start().await;
    agent.until_up().await;

    let mark = agent.mark().await;
    let op = agent.done(Switch::to("A")).await;
    assert_eq!(op.state, State::Succeeded);
    assert!(op.note.as_deref().unwrap_or_default().contains("awake already"), "{op:#?}");
    assert!(op.steps.is_empty());
    let op = agent.done(Sleep::at("B", Tier::Level1)).await;
    assert!(op.note.as_deref().unwrap_or_default().contains("level1 already"), "{op:#?}");
    assert_eq!(agent.entries("step_began", mark).await.len(), 0);

    // A request that runs keeps the handoff in its drain for as long as is needed.
    let stream = node.engine("A").stream(4000).await;
    node.engine("A").until_running(1).await;
    let ask = Switch::to("B").strategy(Strategy::SleepFirst).drain(Drain::Wait).deadline_s(40.0);
    let first = agent.submit(ask.clone()).await.unwrap();
    let second = agent.submit(ask).await.unwrap();
    assert_eq!(first.id, second.id, "the same command joins");
    let refused = agent.submit(Switch::to("B").strategy(Strategy::Park)).await.unwrap_err();
    assert_eq!((refused.code, refused.operation.as_deref()), (ErrorCode::Busy, Some(first.id.as_str())));
    let refused = agent.submit(Sleep::at("A", Tier::Level2)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Busy);
    let (_, end) = stream.end().await;
    assert_eq!(end, "length");
    let op = agent.wait(&first.id).await;
    assert_eq!(op.error, None, "{op:#?}");
    agent.until_at("B", Tier::Awake).await;
    assert_eq!(agent.entries("operation_accepted", mark).await.len(), 1);
}

#[tokio::test]
async fn a_switch_is_explained_before_it_is_made() {
    let node = Setup::pair().each(|e| e.speed(20.0)).build();
    let agent = node.start().await;
    agent.until_up().await;
    let mark = agent.mark().await;
    let ask =
        |engine: &str| ExplainRequest { engine: engine.to_owned(), strategy: None, leave: None, drain: None };
    let explained = agent.api.explain(&ask("B")).await.unwrap();
    let chosen = explained.chosen.unwrap();
    // Both fit awake. Of the tiers to leave A in the one with the least way there and back: parked, unless what was measured
    // on a busy machine says otherwise.
    assert_eq!(chosen.order, Some(Order::MakeBeforeBreak));
    assert!(chosen.first_token_s.unwrap() > 0.0);
    let both_ways = |a: &Alternative| a.first_token_s.unwrap() + a.return_s.unwrap();
    let beside = explained.alternatives.iter().filter(|a| {
        a.order == Order::MakeBeforeBreak && a.verdict == Verdict::Fits && a.leave != Tier::Stopped
    });
    let quickest = beside.min_by(|a, b| both_ways(a).total_cmp(&both_ways(b))).unwrap();
    assert_eq!(chosen.leave, Some(quickest.leave), "{:#?}", explained.alternatives);
    assert_eq!(explained.from.as_deref(), Some("A"));
    assert_eq!(explained.alternatives.len(), 8, "{:#?}", explained.alternatives);
    assert!(explained.refused.is_none());
    let nothing = agent.api.explain(&ask("A")).await.unwrap();
    assert!(nothing.nothing_to_do.is_some() && nothing.chosen.is_none(), "{nothing:#?}");

    // Somebody takes so much that B does not fit beside A awake: wake-first is refused, and it is said why.
    let foreign = node.foreign(4500 * MIB);
    agent.node.engine("A").serves().await;
    hotbunk_tests::until("the foreign memory to be seen", async || {
        agent.status().await.devices[0].foreign_bytes >= Some(4500 * MIB)
    })
    .await;
    let explained = agent.api.explain(&ask("B")).await.unwrap();
    assert_eq!(explained.chosen.as_ref().unwrap().order, Some(Order::BreakBeforeMake), "{explained:#?}");
    let refused: Vec<_> = explained
        .alternatives
        .iter()
        .filter(|a| a.order == Order::MakeBeforeBreak)
        .map(|a| matches!(&a.verdict, Verdict::Refused { because } if because.contains("gpu0")))
        .collect();
    assert_eq!(refused, [true; 4], "{:#?}", explained.alternatives);
    let kv = explained.faster.iter().find(|f| matches!(f.change, Change::KvCache { .. }));
    let kv = kv.unwrap_or_else(|| panic!("nothing said of KV sizes: {:#?}", explained.faster));
    assert!(kv.saves_s.is_some_and(|s| s > 0.0), "{kv:#?}");
    let refused = agent.submit(Switch::to("B").strategy(Strategy::WakeFirst)).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoRoom, "{refused:?}");
    drop(foreign);
    hotbunk_tests::until("the foreign memory to be gone", async || {
        agent.status().await.devices[0].foreign_bytes == Some(0)
    })
    .await;
    assert_eq!(agent.entries("operation_accepted", mark).await.len(), 0, "explaining changes nothing");
    assert_eq!(agent.incident_codes(mark).await, ["foreign_memory gpu0"]);
}

/// I3: whatever is asked by however many at once, one thing is done at a time, and nothing is lost. I2: nobody ever
/// takes memory that is not there.
#[tokio::test]
async fn many_commanders_at_once_are_served_one_by_one() {
    let (node, agent) = pair().await;
    let mark = agent.mark().await;
    let capacity = agent.status().await.devices[0].total_bytes.unwrap();
    let ask = async |who: usize| {
        let mut ends = Vec::new();
        for round in 0..4 {
            let engine = if (who + round).is_multiple_of(2) { "A" } else { "B" };
            let request = match (who + 2 * round) % 5 {
                0 => Sleep::at(engine, Tier::Level1),
                1 => wake(engine),
                2 => Switch::to(engine).strategy(Strategy::SleepFirst).into(),
                3 => Switch::to(engine).leave(Tier::Level2).into(),
                _ => Switch::to(engine).into(),
            };
            match agent.submit(request).await {
                Ok(op) => ends.push(agent.wait(&op.id).await.error.map(|e| e.code)),
                Err(refusal) => ends.push(Some(refusal.code)),
            }
            assert!(node.used() <= capacity);
        }
        ends
    };
    let ends = tokio::join!(ask(0), ask(1), ask(2), ask(3), ask(4), ask(5), ask(6), ask(7));
    let ends = [ends.0, ends.1, ends.2, ends.3, ends.4, ends.5, ends.6, ends.7].concat();
    // Done, busy, or refused for a reason; never a failure of what was begun.
    let fine = |end: &Option<ErrorCode>| {
        matches!(
            end,
            None | Some(ErrorCode::Busy | ErrorCode::Refused | ErrorCode::Unsupported | ErrorCode::NoRoom)
        )
    };
    assert!(ends.iter().all(fine), "{ends:?}");
    agent.until_idle().await;
    assert_eq!(agent.incident_codes(mark).await, Vec::<String>::new());
    // Accepted and ended take turns in the journal: no two operations overlap.
    let accepted = agent.entries("operation_accepted", mark).await;
    let ended = agent.entries("operation_ended", mark).await;
    assert!(!accepted.is_empty());
    assert_eq!(accepted.len(), ended.len());
    for (begin, end) in accepted.iter().zip(&ended) {
        assert_eq!(begin.operation, end.operation);
    }
    assert!(
        ended.iter().zip(&accepted[1..]).all(|(end, next)| end.seq < next.seq),
        "{accepted:?}\n{ended:?}"
    );
    agent.done(Switch::to("A")).await;
    node.engine("A").serves().await;
    agent.stop().await;
}
