//! Footprints: measured where nobody knows them, not believed where they cannot be, not kept for ever where they are wrong.

use super::*;

/// An engine that was taken over without a record has never been measured awake: its next wake does that.
#[test]
fn what_a_wake_takes_is_measured_where_nobody_knows_it() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(B).footprints[Tier::Awake as usize] = None;
    s.node.engine_mut(B).spec.estimate.weights = Some(4 * GIB);
    s.switch(B, None).ok_to_the_end().serving(B);
    assert_eq!(s.node.engine(B).held, gib(B, Tier::Awake) * GIB);
    s.forget().switch(A, None).ok_to_the_end().switch(B, None).ok_to_the_end().serving(B);
    assert!(!s.log.iter().any(|l| l.contains("measure")), "once: {:#?}", s.log);
}

/// A journal that was cut puts an agent back to a step that the engine has long left: what it measures there is not what
/// it thinks. Of two ways out either would do: what cannot be is not believed, and what a rehearsal does not confirm is
/// forgotten.
#[test]
fn a_wrong_measurement_is_not_believed_or_not_for_ever() {
    let start = Request::Start { engine: A, rehearse: Some(true), awake: true };
    let parked = |s: &Session| s.node.engine(A).measured(Tier::Parked);
    let mut s = Session::new(31, 45, &[Tier::Stopped]);
    s.node.engine_mut(A).footprints = [None; 5];
    s.node.engine_mut(A).spec.estimate.weights = Some(28 * GIB);
    s.command(start.clone()).ok_until(|a| matches!(a, Action::Measure { tier: Tier::Parked, .. }));
    s.answer(StepResult::Measured { used: Vec::new(), engine: Some(GIB), host: None });
    assert!(parked(&s).is_none_or(|bytes| bytes >= 28 * GIB), "less than its weights: {:?}", parked(&s));

    let mut s = Session::new(31, 45, &[Tier::Stopped]);
    s.node.engine_mut(A).footprints[Tier::Parked as usize] =
        Some(Footprint { device: Some(GIB), host: None });
    let release = |a: &Action| matches!(a, Action::AwaitUsed { .. });
    s.command(start.clone()).ok_until(release);
    s.answer(out_of_bounds(29 * GIB)).ok_to_the_end().serving(A);
    assert_eq!(parked(&s), None, "no rehearsal has confirmed it");
    s.command(Request::Stop { engine: A, drain: Drain::default() }).ok_to_the_end();
    s.command(Request::Reset(A)).ok_to_the_end().command(start).ok_to_the_end().serving(A);
    assert_eq!(parked(&s), Some(gib(A, Tier::Parked) * GIB));
}

/// What was somebody else's has gone, and nobody has looked at rest since: the sum says that B's memory is not there, and its own
/// processes hold it.
#[test]
fn what_an_engine_s_own_processes_hold_is_there_whatever_the_sum_says() {
    for (own, there) in [(Some(8 * GIB), true), (Some(4 * GIB), false), (None, false)] {
        let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1]);
        (s.node.devices[0].foreign, s.node.devices[0].foreign_seen) = (GIB, GIB);
        s.switch(B, None).ok_until(|a| matches!(a, Action::AwaitUsed { engine: B, .. })).forget();
        let shown = || vec![Shown { own, ..Shown::only(GPU, 41 * GIB) }];
        s.answer(StepResult::OutOfBounds { shown: shown() });
        if there {
            assert_eq!(s.log, ["  probe B"]);
            s.ok_to_the_end().serving(B);
            continue;
        }
        // Its neighbour is asked; then it is waited for once more.
        s.ok_until(|a| matches!(a, Action::AwaitUsed { engine: B, .. })).forget();
        s.answer(StepResult::OutOfBounds { shown: shown() });
        assert!(s.log[0].contains("residence_missing"), "{:#?}", s.log);
        s.ok_to_the_end().serving(A);
    }
}

/// A neighbour has died and is not swept yet: what it is charged with is gone, and the difference would be too little by that.
#[test]
fn nothing_is_learned_by_difference_beside_a_dead_neighbour() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(A).footprints[Tier::Level1 as usize] = None;
    let request = Request::Sleep { engine: A, tier: Some(Tier::Level1), drain: Drain::default() };
    s.command(request).ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
    s.dies(B);
    let used = gib(A, Tier::Level1) * GIB;
    s.answer(StepResult::Reached { used: vec![(GPU, used)] });
    s.answer(StepResult::Measured { used: vec![(GPU, Some(used))], engine: None, host: None });
    assert_eq!((s.node.engine(A).tier, s.node.engine(A).measured(Tier::Level1)), (Tier::Level1, None));
}

/// It was taken over awake without a record, or woken while the device could not be seen: what it takes is learned where it
/// serves, once, and only what can be.
#[test]
fn what_one_that_serves_takes_is_learned_at_rest_where_nobody_knows_it() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let e = s.node.engine_mut(A);
    e.footprints[Tier::Awake as usize] = None;
    (e.held, e.spec.estimate.weights) = (40 * GIB, Some(28 * GIB));
    let seen = |s: &mut Session, gib: u64, is_sleeping: bool| {
        let generation = s.node.engine(A).generation;
        let sleeping = SleepingAnswer::Says { is_sleeping };
        let survey = Survey { sleeping, running: Some(0), tokens: None, device_bytes: Some(gib * GIB) };
        s.say(Event::Surveyed { engine: A, generation, survey });
        s.node.engine(A).held / GIB
    };
    assert_eq!(seen(&mut s, 1, false), 40, "less than its weights");
    assert_eq!(seen(&mut s, 33, true), 40, "it may not be where it is thought to be");
    assert_eq!(seen(&mut s, 33, false), 33);
    assert_eq!(s.node.engine(A).measured(Tier::Awake), Some(33 * GIB));
    assert_eq!(seen(&mut s, 36, false), 33, "what it takes later is growth, and its own");
}
