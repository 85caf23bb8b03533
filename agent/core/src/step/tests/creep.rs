//! An engine that loses memory with each sleep is started anew: once, and at an idle moment.

use super::*;
use crate::creep::Recycle;

const MIB: u64 = 1 << 20;

/// A awake, B asleep; both are started anew past 128 MiB.
fn session() -> Session {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    for id in [A, B] {
        s.node.engine_mut(id).spec.recycle = Recycle { creep: Some(128 * MIB), sleeps: None };
    }
    s
}

/// One look at an engine at rest: requests running, and what it has lost so far.
fn look(s: &mut Session, engine: EngineId, running: u64, lost: u64) {
    let e = s.node.engine(engine);
    let (generation, tier) = (e.generation, e.tier);
    let sleeping = SleepingAnswer::Says { is_sleeping: tier != Tier::Awake };
    let device_bytes = Some(gib(engine, tier) * GIB + lost);
    let survey = Survey { sleeping, running: Some(running), tokens: Some(1), device_bytes };
    s.say(Event::Surveyed { engine, generation, survey });
}

/// Three looks at both.
fn idle(s: &mut Session) {
    for _ in 0..3 {
        look(s, A, 0, 0);
        look(s, B, 0, 0);
    }
}

/// A sleeps, is looked at having lost so much, and wakes.
fn cycle(s: &mut Session, lost: u64) {
    s.command(Request::Sleep { engine: A, tier: Some(Tier::Level1), drain: Drain::default() })
        .ok_to_the_end();
    look(s, A, 0, lost);
    s.command(Request::Wake(A)).ok_to_the_end().serving(A);
}

fn incidents(s: &Session) -> Vec<&str> {
    s.log.iter().filter(|l| l.starts_with('!')).map(String::as_str).collect()
}

#[test]
fn once_and_at_an_idle_moment() {
    let mut s = session();
    for lost in [0, 70, 140, 210] {
        cycle(&mut s, lost * MIB);
    }
    assert_eq!(incidents(&s), ["! residual_creep A"], "said once");
    s.forget();
    // Somebody is being served: not now.
    for running in [1, 0, 0, 1, 0, 0] {
        look(&mut s, A, running, 0);
    }
    look(&mut s, A, 0, 0);
    assert!(s.waiting.is_empty() && s.log.is_empty(), "B has not been looked at: {:?}", s.log);
    idle(&mut s);
    s.reads(
        "
        #9 restart A: stop A; start A
          drain A
        ",
    );
    s.ok_to_the_end().serving(A);
    s.forget();
    // A new life has lost nothing; what the old one lost is not held against it.
    idle(&mut s);
    assert!(s.log.is_empty(), "one recycle: {:?}", s.log);
    cycle(&mut s, 0);
    assert!(incidents(&s).is_empty());
}

#[test]
fn a_drain_that_does_not_end_is_tried_again_when_it_is_idle_again() {
    let mut s = session();
    for lost in [0, 140, 140] {
        cycle(&mut s, lost * MIB);
    }
    idle(&mut s);
    s.ok_until(is_drain).forget();
    s.answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).ok_to_the_end().serving(A);
    look(&mut s, A, 1, 0);
    assert!(s.waiting.is_empty());
    idle(&mut s);
    s.ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(A).life, 2);
}

#[test]
fn a_sleeping_engine_waits_until_its_neighbour_is_idle_and_goes_back_to_its_tier() {
    let mut s = session();
    for lost in [0, 140, 150] {
        cycle(&mut s, lost * MIB);
    }
    s.switch(B, Some(Strategy::SleepFirst)).ok_to_the_end().serving(B);
    s.forget();
    for _ in 0..3 {
        look(&mut s, A, 0, 150 * MIB);
        look(&mut s, B, 3, 0);
    }
    assert!(s.waiting.is_empty(), "B is serving");
    for _ in 0..3 {
        look(&mut s, B, 0, 0);
    }
    // 33 GiB of A beside 8 of B: there is room.
    let first = s.log.first().cloned().unwrap_or_default();
    assert!(first.contains("restart A: stop A; start A; put A to sleep at level1"), "{:?}", s.log);
    s.ok_to_the_end().serving(B);
    assert_eq!(s.node.engine(A).tier, Tier::Level1);
    assert!(incidents(&s).is_empty());
}

#[test]
fn what_one_lost_is_expected_of_it_and_is_nobody_else_s() {
    let mut s = session();
    cycle(&mut s, 0);
    cycle(&mut s, 100 * MIB);
    s.forget();
    // A's 100 MiB and B's 200 would be foreign together, were A's not known to be A's.
    let lost = (gib(A, Tier::Awake) + gib(B, Tier::Level1)) * GIB + 300 * MIB;
    for _ in 0..2 {
        s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: lost });
    }
    assert_eq!((s.node.devices[0].foreign, incidents(&s).len()), (0, 0));
    // B sleeps no worse for what A has lost.
    s.switch(B, Some(Strategy::SleepFirst)).ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
    let Some((_, Action::AwaitUsed { bounds, .. })) = s.waiting.first() else { unreachable!("waited for") };
    assert_eq!(bounds[0].at_most, Some(2 * GIB + GIB / 4), "A's own loss is within the slack or not");
    s.ok_to_the_end()
        .switch(A, Some(Strategy::SleepFirst))
        .ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
    let Some((_, Action::AwaitUsed { bounds, .. })) = s.waiting.first() else { unreachable!("waited for") };
    assert_eq!(bounds[0].at_most, Some(2 * GIB + GIB / 4 + 100 * MIB));
}

#[test]
fn what_the_gateway_holds_keeps_the_moment_away() {
    let mut s = session();
    for lost in [0, 140, 140] {
        cycle(&mut s, lost * MIB);
    }
    s.forget();
    s.node.engine_mut(B).in_flight = 1;
    idle(&mut s);
    assert!(s.waiting.is_empty(), "{:?}", s.log);
    s.node.engine_mut(B).in_flight = 0;
    look(&mut s, B, 0, 0);
    assert!(s.log.first().is_some_and(|l| l.contains("restart A")), "{:?}", s.log);
}

#[test]
fn a_limit_of_sleeps_holds_without_any_evidence() {
    let mut s = session();
    s.node.devices[0].evidence = crate::state::Evidence::Off;
    s.node.engine_mut(A).spec.recycle = Recycle { creep: None, sleeps: Some(2) };
    for _ in 0..2 {
        s.command(Request::Sleep { engine: A, tier: None, drain: Drain::default() }).ok_to_the_end();
        s.command(Request::Wake(A)).ok_to_the_end();
    }
    s.forget();
    idle(&mut s);
    assert!(s.log.first().is_some_and(|l| l.contains("restart A")), "{:?}", s.log);
    s.ok_to_the_end().serving(A);
}
