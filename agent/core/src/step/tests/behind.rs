//! An engine is put to sleep behind our back, at every point of an operation of somebody else: nobody but itself is
//! blamed for the bytes that are missing, nobody waits for what it cannot do, and it serves again.

use super::*;

fn survey(s: &mut Session, engine: EngineId, is_sleeping: bool) {
    let generation = s.node.engine(engine).generation;
    let sleeping = SleepingAnswer::Says { is_sleeping };
    let survey = Survey { sleeping, running: None, tokens: None, device_bytes: None };
    s.say(Event::Surveyed { engine, generation, survey });
}

/// Answers as a world in which `asleep` was put to sleep by somebody else.
fn answer_truly(s: &mut Session, asleep: &mut Option<EngineId>) {
    let (_, action) = s.waiting.first().cloned().expect("something is under way");
    let others = |s: &Session, but: EngineId| -> u64 {
        let of = |id: EngineId| if Some(id) == *asleep { GIB } else { s.node.engine(id).held };
        s.node.ids().filter(|id| *id != but).map(of).sum()
    };
    match action {
        Action::IsSleeping { engine, .. } if Some(engine) == *asleep => {
            s.answer(StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: true }));
        }
        Action::AwaitUsed { engine, bounds, .. } => {
            let own = match bounds[0].at_least {
                Some(_) => gib(engine, Tier::Awake) * GIB,
                None => bounds[0].at_most.unwrap_or(0).saturating_sub(others(s, engine)).min(GIB),
            };
            let used = others(s, engine) + own;
            let reached = bounds.iter().all(|b| {
                b.at_least.is_none_or(|least| used >= least) && b.at_most.is_none_or(|most| used <= most)
            });
            s.answer(if reached {
                StepResult::Reached { used: vec![(GPU, used)] }
            } else {
                out_of_bounds(used)
            });
        }
        // What was asked of it asleep hangs in it.
        Action::Drain { engine, .. } if Some(engine) == *asleep => {
            survey(s, engine, true);
            survey(s, engine, true);
            s.waiting.retain(|(_, a)| !matches!(a, Action::Drain { engine: e, .. } if *e == engine));
        }
        Action::Call { engine, call, .. } if Some(engine) == *asleep => {
            if matches!(call, crate::call::Call::WakeUp { tags: crate::call::WakeTags::KvCache }) {
                *asleep = None;
            }
            s.ok();
        }
        _ => {
            s.ok();
        }
    }
}

/// A comes in, B goes out (or stays, or is beside), and B is put to sleep at the instant before each of the actions.
#[test]
fn at_any_point_of_an_operation_nobody_else_is_blamed_for_it() {
    let start = Request::Start { engine: A, rehearse: Some(true), awake: false };
    let switch = Request::Switch { to: A, strategy: None, leave: None, drain: Drain::default() };
    for (request, tiers) in [
        (switch.clone(), [Tier::Level1, Tier::Awake]),
        (switch.clone(), [Tier::Parked, Tier::Awake]),
        (switch, [Tier::Stopped, Tier::Awake]),
        (start, [Tier::Stopped, Tier::Awake]),
    ] {
        for strategy in [None, Some(Strategy::SleepFirst)] {
            for at in 0..60 {
                let mut s = Session::new(31, 45, &tiers);
                let mut request = request.clone();
                if let Request::Switch { strategy: s, .. } = &mut request {
                    *s = strategy;
                }
                s.command(request.clone());
                for _ in 0..at {
                    if s.waiting.is_empty() || s.node.engine(B).condition != Condition::Settled {
                        break;
                    }
                    s.ok();
                }
                // Under our own hands it moves by our own calls.
                if s.waiting.is_empty()
                    || !s.node.engine(B).is_serving() && s.node.engine(B).condition != Condition::Settled
                {
                    break;
                }
                if s.node.engine(B).tier != Tier::Awake {
                    break;
                }
                let mut asleep = Some(B);
                let what = format!("{request:?} from {tiers:?}, before action {at}");
                for turn in 0..400 {
                    if s.waiting.is_empty() {
                        if asleep.is_none() {
                            break;
                        }
                        survey(&mut s, B, true);
                    } else {
                        answer_truly(&mut s, &mut asleep);
                    }
                    assert!(turn < 399, "{what}: no end: {:#?}", s.log);
                }
                let log = s.log.join("\n");
                assert!(log.contains("! drifted B"), "{what}:\n{log}");
                let blamed =
                    ["wake_incomplete", "rehearsal_failed", "wake_failed", "crashed", "sleep_incomplete"];
                for word in blamed {
                    assert!(!log.contains(word), "{what}: {word}:\n{log}");
                }
                for engine in [A, B] {
                    assert!(!s.node.engine(engine).restart_only, "{what}:\n{log}");
                    assert_eq!(s.node.engine(engine).condition, Condition::Settled, "{what}:\n{log}");
                }
                s.serving(B);
            }
        }
    }
}

/// What waits inside it for its wake holds blocks from then on: a prefix cache that cannot be reset is no failure of it.
#[test]
fn a_repair_resets_no_prefix_cache() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    survey(&mut s, A, true);
    survey(&mut s, A, true);
    s.ok_to_the_end();
    s.reads(
        "
          A: awake → adrift
        ! drifted A
        #1 repair A: take A; reserve room to wake A; A: POST /wake_up?tags=weights; A: POST /collective_rpc reload_weights; A: POST /wake_up?tags=kv_cache; A says that it is awake; A's bytes are back; probe A; A is verified at awake; open admission to A
          A: adrift → moving
          A: POST /wake_up?tags=weights
          A: POST /collective_rpc reload_weights
          A: POST /wake_up?tags=kv_cache
          A says that it is awake
          A's bytes are back
          probe A
          A: moving → awake
        #1 done
        ",
    );
    s.serving(A);
}

/// Bytes that are missing and that no neighbour has lost are the engine's own, and a driver that is slow to answer a short
/// look is asked for as long as ever.
#[test]
fn missing_bytes_are_the_engines_own_where_its_neighbours_are_awake() {
    let waits = |a: &Action| matches!(a, Action::AwaitUsed { .. });
    let deadline = |s: &Session| match &s.waiting[0].1 {
        Action::AwaitUsed { deadline, .. } => *deadline,
        other => panic!("{other:?}"),
    };
    for first in [out_of_bounds(10 * GIB), StepResult::NoEvidence("slow".into())] {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        s.switch(B, Some(Strategy::WakeFirst)).ok_until(waits);
        assert!(deadline(&s) < Timeouts::default().evidence);
        s.answer(first).ok_until(waits);
        assert_eq!(deadline(&s), Timeouts::default().evidence);
        s.answer(out_of_bounds(10 * GIB)).ok_to_the_end();
        let log = s.log.join("\n");
        assert!(log.contains("ask A whether it is awake") && log.contains("! wake_incomplete B"), "{log}");
        assert!(!log.contains("drifted"), "{log}");
        s.serving(A);
    }
}

/// A drain is not waited for once the engine is known to sleep; the same survey of one that is awake changes nothing.
#[test]
fn a_drain_of_an_engine_that_sleeps_is_given_up_and_begun_again_after_the_repair() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_drain).forget();
    survey(&mut s, A, true);
    survey(&mut s, A, false);
    survey(&mut s, A, true);
    s.reads("");
    survey(&mut s, A, true);
    assert!(s.log.iter().any(|l| l == "#1 failed: drifted"), "{:#?}", s.log);
    s.waiting.retain(|(_, a)| !is_drain(a));
    s.ok_to_the_end().serving(A);
}
