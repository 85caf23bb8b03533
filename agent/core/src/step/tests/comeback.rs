//! What served before a failed operation, and could not be woken by it, comes back once it can.

use super::*;

/// A was put to sleep for B; B died in its wake and left its memory taken, so that there is no room for A either.
fn neither() -> Session {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.switch(B, Some(Strategy::SleepFirst)).ok_until(|a| matches!(a, Action::Call { engine: B, .. })).dies(B);
    s.answer(StepResult::Called(CallOutcome::Gone { message: "gone".into() }));
    s.ok_until(|a| matches!(a, Action::Stop { engine: B, .. })).answer(StepResult::Stopped { left: 1 });
    s.answer(out_of_bounds(9 * GIB));
    assert!(s.waiting.is_empty(), "{:?}: {:#?}", s.waiting, s.log);
    assert_eq!(s.node.engine(A).tier, Tier::Level1, "{:#?}", s.log);
    s.forget();
    s
}

fn read(s: &mut Session, used: u64) {
    for _ in 0..2 {
        s.say(Event::DeviceRead { device: GPU, capacity: 40 * GIB, used: used * GIB });
    }
}

#[test]
fn what_served_comes_back_when_there_is_room() {
    let mut s = neither();
    read(&mut s, 9);
    s.later().later();
    assert!(s.waiting.is_empty(), "there is no room yet: {:#?}", s.log);
    read(&mut s, 1);
    s.ok_to_the_end();
    s.reads(
        "
          B: failed → stopped
        #2 wake A: wake A from level1 and probe it
          A: level1 → moving
          A: POST /wake_up
          A says that it is awake
          A's bytes are back
          probe A
          A: moving → awake
        #2 done
        ",
    );
    s.serving(A);
}

#[test]
fn it_is_asked_again_ever_less_often_and_started_anew_where_that_is_hopeless() {
    let mut s = neither();
    read(&mut s, 1);
    let mut last = Duration::ZERO;
    for _ in 0..2 {
        // The call is refused twice, and what it has mapped is given back.
        s.answer(refused()).answer(refused()).ok_to_the_end();
        let at = s.node.next_deadline(s.now).expect("it is asked again");
        assert!(at.since(s.now) > last, "{:#?}", s.log);
        last = at.since(s.now);
        s.now = at;
        s.say(Event::Tick);
    }
    s.answer(refused()).answer(refused()).ok_to_the_end();
    s.later().ok_to_the_end().serving(A);
    assert!(s.log.iter().any(|l| l.contains("spawn A")), "{:#?}", s.log);
}

#[test]
fn whoever_has_its_place_meanwhile_keeps_it() {
    let mut s = neither();
    s.node.engine_mut(A).wanted_awake = false;
    read(&mut s, 1);
    s.later();
    assert!(s.waiting.is_empty(), "nobody wants it: {:#?}", s.log);

    // A handoff that has come to its end but for what one has left: A stays asleep, also when B goes.
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    s.command(Request::Sleep { engine: A, tier: None, drain: Drain::default() }).ok_to_the_end();
    s.switch(B, None).ok_to_the_end().serving(B);
    s.command(Request::Sleep { engine: B, tier: None, drain: Drain::default() }).ok_to_the_end();
    s.later().later();
    assert!(s.waiting.is_empty(), "they were put to sleep: {:#?}", s.log);
}
