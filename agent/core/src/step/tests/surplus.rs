//! One too many awake, and an engine that is down beside parked ones: both are mended by the agent itself.

use super::*;

/// A and B awake where one may be, as a handoff leaves them that lost sight of the device.
fn both() -> Session {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Awake]);
    s.node.engine_mut(A).awake_since = s.now;
    s.now = s.now + Duration::from_secs(10);
    s.node.engine_mut(B).awake_since = s.now;
    s
}

fn uses(s: &mut Session, all: [(EngineId, u32); 2]) {
    let at = s.now;
    let uses = all.into_iter().map(|(engine, in_flight)| Use { engine, in_flight, at });
    s.say(Event::Uses(uses.collect()));
}

#[test]
fn a_handoff_that_lost_sight_of_the_device_is_brought_to_its_end_later() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(|a| matches!(a, Action::AwaitUsed { engine: A, .. }));
    s.say(Event::DeviceLost { device: GPU, reason: "gone".into() });
    while !s.waiting.is_empty() {
        match s.waiting.first() {
            Some((_, Action::AwaitUsed { .. })) => s.answer(StepResult::NoEvidence("gone".into())),
            _ => s.ok(),
        };
    }
    s.serving(A);
    s.serving(B);
    s.later().later();
    assert!(s.waiting.is_empty(), "nothing is moved blindly: {:#?}", s.log);
    s.forget().say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: 41 * GIB }).ok_to_the_end();
    s.reads(
        "
        ! device_restored
        #2 sleep A: put A to sleep at level1
          drain A
          A: awake → moving
          A: POST /sleep?level=1&mode=wait
          A says that it sleeps
          A's bytes are down to level1
          A: moving → level1
        #2 done
        ",
    );
    s.serving(B);
    assert!(!s.node.engine(A).wanted_awake, "it does not come back awake");
}

#[test]
fn the_longest_unused_goes_and_never_a_busy_or_a_pinned_one() {
    let mut s = both();
    uses(&mut s, [(A, 1), (B, 2)]);
    s.later();
    assert!(s.waiting.is_empty(), "both are busy: {:#?}", s.log);
    uses(&mut s, [(A, 1), (B, 0)]);
    s.ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(B).tier, Tier::Level1, "the one that is idle goes, whoever was used last");

    let mut s = both();
    s.node.engine_mut(A).spec.turn.pinned = true;
    s.later().ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(B).tier, Tier::Level1);

    let mut s = both();
    s.node.engine_mut(A).spec.turn.pinned = true;
    s.node.engine_mut(B).spec.turn.pinned = true;
    s.later().later();
    assert!(s.waiting.is_empty() && s.log.is_empty(), "that is the operator's will: {:#?}", s.log);
}

#[test]
fn nobody_goes_where_two_may_be_awake_or_the_node_rests_or_somebody_waits() {
    let quiet = |change: fn(&mut Session)| {
        let mut s = both();
        change(&mut s);
        s.later().later();
        assert!(s.waiting.is_empty() && s.log.is_empty(), "{:#?}", s.log);
        assert_eq!(s.node.next_deadline(s.now), None);
    };
    quiet(|s| s.node.devices[0].spec.max_awake = 2);
    quiet(|s| s.node.cycle = true);
    quiet(|s| s.node.closing = true);
    quiet(|s| s.node.journal_lost = Some("no room left".into()));
    quiet(|s| s.node.devices[0].evidence = crate::state::Evidence::Lost("gone".into()));
    quiet(|s| {
        let stage = crate::state::Pausing::Lasts;
        s.node.paused = Some(crate::state::Paused { since: s.now, served: vec![A, B], stage });
    });
}

#[test]
fn a_sleep_that_fails_is_not_repeated_at_once() {
    let mut s = both();
    s.node.engine_mut(B).spec.turn.pinned = true;
    s.later().ok_until(is_drain).answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).ok_to_the_end();
    s.serving(A);
    assert!(s.waiting.is_empty(), "not in the same breath: {:#?}", s.log);
    let mut waits = Vec::new();
    for _ in 0..8 {
        let at = s.node.next_deadline(s.now).expect("it is asked again");
        assert!(at > s.now);
        waits.push(at.since(s.now).as_secs());
        let before = Moment(at.0 - 1);
        s.now = before;
        s.say(Event::Tick);
        assert!(s.waiting.is_empty(), "not before its time: {:#?}", s.log);
        s.now = at;
        s.say(Event::Tick).ok_until(is_drain);
        s.answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).ok_to_the_end();
    }
    assert!(waits.windows(2).all(|w| w[0] <= w[1]) && waits.last() == Some(&60), "{waits:?}");
    // Where another may go, it goes in its stead; but not before that time either.
    s.node.engine_mut(B).spec.turn.pinned = false;
    s.say(Event::Tick);
    assert!(s.waiting.is_empty(), "the device rests first: {:#?}", s.log);
    s.later().ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(B).tier, Tier::Level1);
}

#[test]
fn whoever_comes_for_it_meanwhile_is_served_and_it_is_asked_again_later() {
    let mut s = both();
    s.later();
    assert!(s.waiting.first().is_some_and(|(_, a)| is_drain(a)));
    let oldest = Some(s.now);
    s.say(Event::Demand { engine: A, demand: crate::demand::Demand { held: 1, oldest } });
    s.ok_to_the_end().serving(A);
    s.say(Event::Demand { engine: A, demand: crate::demand::Demand::default() });
    s.later().ok_to_the_end();
    let awake = [A, B].into_iter().filter(|e| s.node.engine(*e).is_serving()).count();
    assert_eq!(awake, 1);
}

#[test]
fn where_its_rest_tier_is_not_to_be_had_it_goes_further_down() {
    let mut s = both();
    s.node.engine_mut(A).restart_only = true;
    s.later().ok_to_the_end().serving(B);
    assert_eq!(s.node.engine(A).tier, Tier::Stopped);
}

const C: EngineId = EngineId(2);

/// A was awake and died, C is parked; A's start needs what C's weights take.
fn down_beside_a_parked_one() -> Session {
    let mut s = Session::new(31, 43, &[Tier::Awake, Tier::Level1, Tier::Parked]);
    s.node.engine_mut(C).spec.autostart = true;
    s.dies(A).ok_to_the_end().forget();
    s
}

#[test]
fn an_engine_that_was_wanted_comes_back_beside_a_parked_one() {
    let mut s = down_beside_a_parked_one();
    s.later().ok_to_the_end();
    s.reads(
        "
        #2 start A: put C to sleep at level1; start A
          C: parked → moving
          C: POST /sleep?level=1&mode=keep
          C says that it sleeps
          C's bytes are down to level1
          C: moving → level1
          A: backoff → moving
          spawn A
          A is ready
          probe A
          warm A up
          measure A awake
          A: moving → awake
        #2 done
        ",
    );
    s.serving(A);
}

#[test]
fn a_parked_one_that_is_pinned_or_used_or_could_only_be_stopped_stays() {
    let waits = |change: fn(&mut Session)| {
        let mut s = down_beside_a_parked_one();
        change(&mut s);
        s.later().later();
        assert_eq!(s.node.engine(A).condition, Condition::NoRoom, "{:#?}", s.log);
        assert_eq!(s.node.engine(C).tier, Tier::Parked);
        assert!(s.waiting.is_empty(), "{:#?}", s.log);
        s
    };
    waits(|s| s.node.engine_mut(C).spec.turn.pinned = true);
    waits(|s| s.node.engine_mut(C).frozen = true);
    waits(|s| {
        let e = s.node.engine_mut(C);
        (e.spec.levels.level1, e.spec.levels.level2) = (false, false);
    });
    // Once it is used no more, it makes way.
    let mut s = waits(|s| s.node.engine_mut(C).in_flight = 1);
    s.node.engine_mut(C).in_flight = 0;
    s.later().ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(C).tier, Tier::Level1);
}

#[test]
fn a_demotion_that_fails_leaves_both_to_their_back_off() {
    let mut s = down_beside_a_parked_one();
    s.later().ok_until(|a| matches!(a, Action::Call { engine: C, .. })).dies(C).ok_to_the_end();
    s.later().ok_to_the_end().later().ok_to_the_end().serving(A);
    assert_eq!(s.node.engine(C).condition, Condition::NoRoom, "it cannot be started beside what serves");
}
