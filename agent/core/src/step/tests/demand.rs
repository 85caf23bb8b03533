//! Stories of demand, idle ladders and maintenance.

use super::*;
use crate::demand::{self, Demand, Eta, Never};
use crate::queue::Refusal;
use crate::spec::Rung;
use crate::state::Pausing;

const C: EngineId = EngineId(2);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

impl Session {
    /// A request for this engine comes, and is held.
    fn held(&mut self, engine: EngineId) -> &mut Self {
        let oldest = self.node.engine(engine).demand.oldest.or(Some(self.now));
        let held = self.node.engine(engine).demand.held + 1;
        self.say(Event::Demand { engine, demand: Demand { held, oldest } })
    }

    /// Nobody waits for it any more: hung up, or let through.
    fn let_go(&mut self, engine: EngineId) -> &mut Self {
        self.say(Event::Demand { engine, demand: Demand::default() })
    }

    fn used(&mut self, engine: EngineId, in_flight: u32) -> &mut Self {
        self.say(Event::Uses(vec![Use { engine, in_flight, at: self.now }]))
    }

    fn passes(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self.say(Event::Tick);
        self.log.retain(|l| !l.starts_with("survey"));
        self
    }

    /// As the shell does it: ticks when the core wants one, until so much time has passed.
    fn lives(&mut self, time: Duration) -> &mut Self {
        let end = self.now + time;
        while let Some(at) = self.node.next_deadline(self.now).filter(|at| *at <= end) {
            assert!(at > self.now);
            self.passes(at.since(self.now));
        }
        self.passes(end.since(self.now))
    }

    fn asks(&mut self) -> &mut Self {
        let id = self.node.number();
        self.say(Event::Command { id, request: Request::Resume, by: By::Operator })
    }

    fn pauses(&mut self, tier: Option<Tier>) -> &mut Self {
        self.command(Request::Pause { tier, drain: Drain::default() })
    }

    fn tier(&self, engine: EngineId) -> Tier {
        self.node.engine(engine).tier
    }

    fn eta(&self, engine: EngineId) -> Eta {
        demand::eta(&self.node, engine, self.now)
    }

    /// Nothing is under way, and the core does not want to be woken at once.
    #[track_caller]
    fn rests(&mut self) -> &mut Self {
        assert!(self.waiting.is_empty() && self.node.operations.is_empty(), "{:#?}", self.log);
        assert!(self.node.next_deadline(self.now).is_none_or(|at| at > self.now));
        self
    }
}

#[test]
fn who_is_asked_for_comes_at_once_where_the_other_is_idle() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.held(B);
    assert_eq!(s.node.operations[0].by, By::Gateway);
    s.let_go(A).ok_to_the_end().let_go(B);
    assert_eq!(s.log[0], "#1 switch B: wake B from level1 and probe it; park A: release its KV cache");
    assert_eq!(s.log.last().map(String::as_str), Some("#1 done"));
    s.rests().serving(B);
    assert_eq!(s.eta(B), Eta::Serving);
}

#[test]
fn a_busy_engine_is_put_out_when_patience_ends_and_not_before() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.used(A, 3).held(B).rests();
    let patience = s.now + secs(30);
    assert_eq!(s.node.next_deadline(s.now), Some(patience));
    let Eta::In(eta) = s.eta(B) else { panic!("{:?}", s.eta(B)) };
    assert!(eta >= secs(30) && eta < secs(40), "{eta:?}");
    s.passes(secs(29)).rests();
    // It falls idle: nothing keeps B from its turn any more.
    s.used(A, 0);
    assert_eq!(s.node.operations.len(), 1);

    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.used(A, 3).held(B).lives(secs(30));
    assert_eq!(s.node.operations.len(), 1, "{:#?}", s.log);
}

#[test]
fn who_has_just_come_stays_for_its_residency() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.held(B).ok_to_the_end().let_go(B).held(A).rests();
    assert_eq!(s.node.next_deadline(s.now), Some(s.now + secs(2)));
    s.passes(Duration::from_millis(1_999)).rests();
    s.lives(Duration::from_millis(1)).ok_to_the_end().let_go(A).serving(A);
}

#[test]
fn a_switch_nobody_wants_any_more_is_given_up_before_it_moves_memory() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).ok_until(is_drain).let_go(B);
    s.reads(
        "
        #1 switch B: park A: release its KV cache; wake B from level1 and probe it
          drain A
          ✗ cancelled
        #1 failed: cancelled
        ",
    );
    s.serving(A);
    // Nothing is held against the next one that asks.
    s.answer(StepResult::Drained).forget().held(B);
    assert_eq!(s.node.operations.len(), 1, "{:#?}", s.log);
}

#[test]
fn a_switch_that_moves_memory_is_finished() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).ok_until(|a| matches!(a, Action::Call { .. })).let_go(B).ok_to_the_end().rests().serving(B);
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.held(B).ok_until(is_drain).let_go(B).ok_to_the_end().rests().serving(B);
    assert_eq!(s.tier(A), Tier::Parked);
}

#[test]
fn a_pinned_engine_stays_and_who_waits_for_it_is_told() {
    for capacity in [40, 60] {
        let mut s = Session::new(31, capacity, &[Tier::Awake, Tier::Level1]);
        s.node.engine_mut(A).spec.turn.pinned = true;
        s.held(B).lives(secs(600)).rests().serving(A);
        let Eta::Never(Never::Refused(refusal)) = s.eta(B) else { panic!("{:?}", s.eta(B)) };
        assert_eq!(refusal, Refusal::Pinned { engine: "A".into(), device: "gpu0".into() });
        // An operator may.
        s.switch(B, None).ok_to_the_end().serving(B);
    }
    // With two allowed awake, memory is what is missing.
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.node.devices[0].spec.max_awake = 2;
    s.node.engine_mut(A).spec.turn.pinned = true;
    s.held(B).rests();
    assert!(matches!(s.eta(B), Eta::Never(Never::Refused(Refusal::Pinned { .. }))), "{:?}", s.eta(B));
}

#[test]
fn a_pinned_engine_is_not_demoted_for_room_either() {
    // A parked holds 29 GiB of 39; C needs 13.
    let mut s = Session::new(31, 40, &[Tier::Parked, Tier::Awake, Tier::Level1]);
    s.node.engine_mut(A).spec.turn.pinned = true;
    s.held(C).rests();
    assert!(matches!(s.eta(C), Eta::Never(Never::Refused(Refusal::Pinned { .. }))), "{:?}", s.eta(C));
    s.node.engine_mut(A).spec.turn.pinned = false;
    s.held(C).ok_to_the_end().serving(C);
    assert_eq!(s.tier(A), Tier::Level1);
}

#[test]
fn where_there_is_room_nobody_goes_and_else_the_least_recently_used() {
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    s.node.devices[0].spec.max_awake = 2;
    s.used(A, 2).held(B).ok_to_the_end().let_go(B);
    assert!(s.node.engine(A).is_serving() && s.node.engine(B).is_serving());
    s.passes(secs(10)).used(A, 0).used(B, 1).passes(secs(1)).used(B, 0).held(C).ok_to_the_end();
    assert!(s.node.engine(B).is_serving() && s.node.engine(C).is_serving(), "{:#?}", s.log);
    assert_eq!(s.tier(A), Tier::Parked);

    // A was awake first, but it is B that nobody has used for long.
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    s.node.devices[0].spec.max_awake = 2;
    s.held(B).ok_to_the_end().let_go(B).passes(secs(10)).used(A, 0).held(C).ok_to_the_end();
    assert!(s.node.engine(A).is_serving() && s.node.engine(C).is_serving(), "{:#?}", s.log);
}

#[test]
fn a_stopped_engine_is_started() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.held(B).ok_to_the_end().let_go(B).serving(B);
    assert_eq!(s.log[0], "#1 switch B: start B; park A: release its KV cache");
}

#[test]
fn a_switch_that_failed_is_tried_again_later_and_later() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).rests();
    assert_eq!(s.node.next_deadline(s.now), Some(s.now + secs(1)));
    assert!(matches!(s.eta(B), Eta::In(eta) if eta >= secs(1)), "{:?}", s.eta(B));
    // The next one takes the whole drain deadline: whoever serves then has as long in peace.
    s.lives(secs(1));
    assert_eq!(s.node.operations.len(), 1);
    s.now = s.now + secs(30);
    s.answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).rests().serving(A);
    assert_eq!(s.node.next_deadline(s.now), Some(s.now + secs(30)));
    // What an operator does is not held up by it, and clears it.
    s.switch(B, None).ok_to_the_end().serving(B);
    assert_eq!(s.node.engine(B).retry, demand::Retry::default());
}

#[test]
fn what_an_operator_asks_for_goes_before_what_has_not_begun() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).command(Request::Restart { engine: A, rehearse: None, drain: Drain::default() });
    s.reads(
        "
        #1 switch B: park A: release its KV cache; wake B from level1 and probe it
          drain A
          ✗ cancelled
        #1 failed: cancelled
        #2 restart A: stop A; start A
          drain A
        ",
    );
    // What moves memory is finished first.
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).ok().forget().command(Request::Sleep { engine: B, tier: None, drain: Drain::default() });
    s.reads("        #2 waits for #1");
    s.let_go(B).ok_to_the_end();
    assert_eq!(s.log.last().map(String::as_str), Some("#2 done"));
}

#[test]
fn whoever_joins_a_switch_wants_it_too() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.held(B).switch(B, None).let_go(B);
    assert_eq!(s.log.last().map(String::as_str), Some("#2 joins #1"));
    s.ok_to_the_end().serving(B);
}

#[test]
fn a_crashed_engine_that_is_asked_for_waits_out_its_back_off_and_comes_back_awake() {
    let mut s = Session::new(31, 45, &[Tier::Level1, Tier::Level1]);
    s.dies(A).ok_to_the_end().held(A).rests();
    let Eta::In(eta) = s.eta(A) else { panic!("{:?}", s.eta(A)) };
    assert!(eta > Duration::ZERO);
    s.lives(secs(120)).ok_to_the_end().serving(A);
    // Given up: it is not asked for in vain.
    s.let_go(A);
    s.node.engine_mut(B).condition = Condition::Failed("broken".into());
    s.held(B).lives(secs(600)).rests();
    assert!(matches!(s.eta(B), Eta::Never(Never::Failed { .. })));
}

#[test]
fn the_wait_for_somebody_elses_switch_is_in_the_eta() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    let costs = |s: &mut Session, id| {
        let costs = &mut s.node.engine_mut(id).costs;
        (costs.enter, costs.leave, costs.drain) = ([Some(secs(1)); 5], [Some(secs(2)); 5], Some(secs(4)));
    };
    [A, B, C].into_iter().for_each(|id| costs(&mut s, id));
    // Drain, park, wake.
    s.used(A, 1);
    assert_eq!(s.eta(B), Eta::In(secs(30 + 4 + 1 + 2)));
    s.used(A, 0).held(B);
    assert_eq!(s.eta(B), Eta::In(secs(4 + 1 + 2)));
    // The same, B's residency, B's patience with it, and its own wake.
    s.held(C);
    assert_eq!(s.eta(C), Eta::In(secs(30 + 2)));
    s.now = s.now + secs(3);
    assert_eq!(s.eta(B), Eta::In(secs(1 + 1 + 2)));
    s.ok_to_the_end().let_go(B);
    assert_eq!(s.eta(C), Eta::In(secs(2 + 1 + 2)));
    assert_eq!(demand::turns(&s.node, s.now).iter().map(|p| p.engine).collect::<Vec<_>>(), [C]);
}

fn ladder(node: &mut Node, engine: EngineId) {
    let rung = |after, tier| Rung { after: secs(after), tier };
    node.engine_mut(engine).spec.ladder = vec![
        rung(30, Tier::Parked),
        rung(300, Tier::Level1),
        rung(3_600, Tier::Level2),
        rung(86_400, Tier::Stopped),
    ];
}

#[test]
fn an_unused_engine_goes_down_its_ladder_as_far_as_vllm_lets_it() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.used(A, 1).passes(secs(3_000)).used(A, 0).rests();
    let since = s.now;
    assert_eq!(s.node.next_deadline(s.now), Some(since + secs(30)));
    s.lives(secs(30)).ok_to_the_end().rests();
    assert_eq!((s.tier(A), s.node.next_deadline(s.now)), (Tier::Parked, Some(since + secs(300))));
    s.lives(secs(270)).ok_to_the_end().rests();
    assert_eq!(s.tier(A), Tier::Level1);
    // From level 1 to level 2 there is no way without waking it.
    s.lives(secs(80_000)).rests();
    assert_eq!((s.tier(A), s.node.next_deadline(s.now)), (Tier::Level1, Some(since + secs(86_400))));
    s.lives(secs(86_400)).ok_to_the_end().rests();
    assert_eq!(s.tier(A), Tier::Stopped);
    assert_eq!(s.node.next_deadline(s.now), None);
    s.held(A).ok_to_the_end().serving(A);
}

#[test]
fn several_rungs_at_once_are_one_step_and_what_is_pinned_or_busy_stays() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.passes(secs(7_200)).ok_to_the_end();
    assert_eq!(s.tier(A), Tier::Level2, "{:#?}", s.log);
    for busy in [true, false] {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        ladder(&mut s.node, A);
        s.node.engine_mut(A).spec.turn.pinned = !busy;
        s.used(A, u32::from(busy)).lives(secs(7_200)).rests().serving(A);
    }
    // Below 0.31 nothing parks; the ladder waits for the next rung.
    let mut s = Session::new(24, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.used(A, 0).lives(secs(299)).rests().serving(A);
    s.lives(secs(1)).ok_to_the_end();
    assert_eq!(s.tier(A), Tier::Level1);
}

#[test]
fn a_request_takes_back_a_fall_that_has_not_begun() {
    for who in [A, B] {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        ladder(&mut s.node, A);
        s.used(A, 0).lives(secs(30)).ok_until(is_drain).forget().held(who);
        assert_eq!(s.log[..2], ["  ✗ cancelled", "#1 failed: cancelled"], "{:#?}", s.log);
        if who == A {
            s.answer(StepResult::Drained).rests().serving(A);
        }
    }
    // One that has begun is finished, and undone.
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.used(A, 0)
        .lives(secs(30))
        .ok_until(|a| matches!(a, Action::Call { .. }))
        .held(A)
        .ok_to_the_end()
        .serving(A);
}

#[test]
fn a_fall_that_failed_is_not_begun_again_at_once() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.used(A, 0)
        .lives(secs(30))
        .answer(StepResult::DrainTimedOut { running: 1, waiting: 0 })
        .rests()
        .serving(A);
    assert_eq!(s.node.next_deadline(s.now), Some(s.now + secs(30)));
}

#[test]
fn a_pause_puts_everything_out_of_the_way_and_a_resumption_brings_it_back() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Parked]);
    s.pauses(None);
    assert!(s.node.is_paused(), "from its acceptance on");
    s.ok_to_the_end();
    s.reads(
        "
        #1 pause *: close admission to A; put A to sleep at level1; put B to sleep at level1
          drain A
          A: awake → moving
          A: POST /sleep?level=1&mode=wait
          A says that it sleeps
          A's bytes are down to level1
          A: moving → level1
          B: parked → moving
          B: POST /sleep?level=1&mode=keep
          B says that it sleeps
          B's bytes are down to level1
          B: moving → level1
        #1 done
        ",
    );
    // Nobody is woken, started or put further down meanwhile.
    ladder(&mut s.node, B);
    s.forget().held(A).held(B).dies(B).ok_to_the_end().lives(secs(100_000)).rests();
    assert_eq!((s.tier(A), s.tier(B)), (Tier::Level1, Tier::Stopped));
    assert!(matches!(s.eta(A), Eta::Never(Never::Paused { .. })));
    s.let_go(B).forget().pauses(None);
    s.reads("        #3 nothing to do: the node is paused already");
    s.asks().ok_to_the_end().serving(A);
    assert_eq!(s.node.paused, None);
    // What had crashed comes back as after any crash.
    assert_eq!(s.tier(B), Tier::Level1, "{:#?}", s.log);
}

#[test]
fn a_pause_goes_where_it_is_told_or_further() {
    for (asked, tier) in [
        (Tier::Parked, Tier::Parked),
        (Tier::Level1, Tier::Level2),
        (Tier::Level2, Tier::Level2),
        (Tier::Stopped, Tier::Stopped),
    ] {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        s.node.engine_mut(A).spec.levels.level1 = false;
        s.pauses(Some(asked)).ok_to_the_end();
        let stays = if tier == Tier::Stopped { Tier::Stopped } else { Tier::Level1 };
        assert_eq!((s.tier(A), s.tier(B)), (tier, stays), "{asked}");
        s.asks().ok_to_the_end().serving(A);
    }
    // Nothing but stopping gives its memory back.
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(A).restart_only = true;
    s.pauses(None).ok_to_the_end();
    assert_eq!(s.tier(A), Tier::Stopped);
}

#[test]
fn a_pause_that_cannot_drain_changes_nothing() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.pauses(None).answer(StepResult::DrainTimedOut { running: 1, waiting: 0 }).rests().serving(A);
    assert_eq!(s.node.paused, None);
    // One that dies of it is out of the way as well.
    s.pauses(None).ok().answer(refused()).answer(refused()).ok_to_the_end();
    assert_eq!(s.log.last().map(String::as_str), Some("#2 done"), "{:#?}", s.log);
    assert!(s.node.is_paused() && s.tier(A) == Tier::Stopped);
    s.lives(secs(600)).rests();
    s.asks().ok_to_the_end().lives(secs(60)).ok_to_the_end().serving(A);
}

#[test]
fn a_node_stays_paused_for_as_long_as_there_is_no_room() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.pauses(None).ok_to_the_end();
    s.node.devices[0].foreign = 30 * GIB;
    s.forget().asks();
    assert_eq!(s.log.last().map(String::as_str), Some("#2 failed: no_room"));
    assert!(s.node.is_paused());
    s.node.devices[0].foreign = 0;
    s.asks().ok_to_the_end().serving(A);
    assert_eq!(s.node.paused, None);
}

#[test]
fn a_resumption_that_loses_an_engine_brings_the_others_back() {
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Awake]);
    s.node.devices[0].spec.max_awake = 2;
    s.pauses(None).ok_to_the_end().forget().asks();
    assert_eq!(s.node.paused.as_ref().map(|p| p.stage), Some(Pausing::Ends));
    assert!(!s.node.is_paused());
    s.answer(refused()).answer(refused()).answer(refused()).ok_to_the_end();
    assert!(s.log.iter().any(|l| l == "! wake_failed A"), "{:#?}", s.log);
    assert!(s.log.iter().any(|l| l == "#2 failed: call_refused"), "{:#?}", s.log);
    assert!(s.node.engine(B).is_serving());
    assert_eq!(s.node.paused, None, "A is restarted by its back-off");
    s.lives(secs(60)).ok_to_the_end().serving(A);
}

#[test]
fn cycles_and_the_starts_of_the_agent_wait_for_the_end_of_maintenance() {
    let mut s = Session::new(31, 45, &[Tier::Stopped, Tier::Stopped]);
    s.node.engines.iter_mut().for_each(|e| e.to_boot = true);
    s.say(Event::Boot { awake: vec![A] }).pauses(None);
    // The start of B is under way, then comes the pause, then the start of A would.
    s.ok_to_the_end();
    assert!(s.node.is_paused() && s.tier(A) == Tier::Stopped && s.node.queue.len() == 1, "{:#?}", s.log);
    let id = s.node.number();
    let request = Request::Switch { to: B, strategy: None, leave: None, drain: Drain::default() };
    s.forget().say(Event::Command { id, request, by: By::Cycle });
    s.reads("        #4 refused: the node is paused for maintenance; `ctl resume` ends that");
    s.asks().ok_to_the_end().serving(A);
    assert!(s.node.queue.is_empty());
}

#[test]
fn a_reload_that_fails_leaves_an_engine_that_can_be_woken() {
    // From 0.31 on the engine goes back to sleep itself; before, it would believe for ever that its weights are awake.
    for (minor, then) in [(31, "  A: POST /sleep?level=2&mode=wait"), (28, "  stop A's processes")] {
        let mut s = Session::new(minor, 45, &[Tier::Level2, Tier::Level1]);
        s.held(A).ok().answer(refused());
        assert!(s.log.iter().any(|l| l == then), "{:#?}", s.log);
        s.ok_to_the_end().lives(secs(120)).ok_to_the_end().serving(A);
    }
}

#[test]
fn an_engine_that_will_not_wake_is_started_anew() {
    let mut s = Session::new(31, 45, &[Tier::Level1, Tier::Level1]);
    s.held(A);
    for _ in 0..3 {
        // Refused twice; what has been mapped goes back.
        s.answer(refused()).answer(refused()).ok_to_the_end().lives(secs(5));
    }
    assert!(s.log.iter().any(|l| l == "  A: adrift → moving"), "{:#?}", s.log);
    s.ok_to_the_end().lives(secs(120)).ok_to_the_end().serving(A);
}

#[test]
fn without_a_residency_too_what_an_engine_was_woken_for_gets_through() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    [A, B].into_iter().for_each(|id| s.node.engine_mut(id).spec.turn.min_residency = Duration::ZERO);
    s.held(B).held(A).now = s.now + secs(3_600);
    // Both have waited far beyond their patience.
    s.ok_to_the_end().rests().serving(B);
    assert_eq!(s.node.next_deadline(s.now), Some(s.now + Duration::from_millis(100)));
    s.let_go(B);
    assert_eq!(s.node.operations.len(), 1, "{:#?}", s.log);
}

#[test]
fn a_resumption_whose_start_fails_opens_nothing() {
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(A).spec.rehearse = true;
    s.pauses(Some(Tier::Stopped)).ok_to_the_end().asks().answer(StepResult::SpawnFailed("no".into()));
    s.ok_to_the_end();
    assert!(!s.node.engine(A).admission && s.node.paused.is_none());
    s.lives(secs(60)).ok_to_the_end().serving(A);
}

#[test]
fn a_start_that_begins_anew_has_begun_all_the_same() {
    // B's rehearsal fails and its processes outlive their end: it holds nothing and is where it was, and still the
    // switch to it is no more one that could be given up.
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Stopped]);
    s.node.engine_mut(B).spec.rehearse = true;
    s.held(B).ok_until(|a| matches!(a, Action::Call { .. })).let_go(B);
    s.answer(StepResult::Called(CallOutcome::Unknown))
        .ok_until(|a| matches!(a, Action::Stop { .. }))
        .answer(StepResult::Stopped { left: 1 })
        .ok_to_the_end();
    s.rests().serving(A);
}

#[test]
fn a_cycle_run_has_the_engines_to_itself() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    s.held(B)
        .ok_until(is_drain)
        .say(Event::Cycle { runs: true })
        .answer(StepResult::Drained)
        .rests()
        .serving(A);
    assert_eq!(s.eta(B), Eta::Never(Never::Cycle));
    assert_eq!(s.eta(A), Eta::Serving);
    s.lives(secs(3_600)).rests().serving(A);
    s.say(Event::Cycle { runs: false }).ok_to_the_end().serving(B);
}

#[test]
fn who_asks_an_engine_directly_uses_it_as_well() {
    let counts = |running, tokens| Survey {
        sleeping: SleepingAnswer::Says { is_sleeping: false },
        running: Some(running),
        tokens: Some(tokens),
        device_bytes: None,
    };
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    ladder(&mut s.node, A);
    let surveyed = |s: &mut Session, running, tokens| {
        s.now = s.now + secs(20);
        s.say(Event::Surveyed { engine: A, generation: 1, survey: counts(running, tokens) });
    };
    s.used(A, 0);
    // The first count says only what there was before.
    surveyed(&mut s, 0, 500);
    assert_eq!(s.node.engine(A).used_at, s.now - secs(20));
    surveyed(&mut s, 0, 510);
    surveyed(&mut s, 1, 510);
    s.rests().serving(A);
    assert_eq!(s.node.engine(A).used_at, s.now);
    surveyed(&mut s, 0, 510);
    s.lives(secs(10)).ok_to_the_end();
    assert_eq!(s.tier(A), Tier::Parked);
}

/// A pause is given up where the memory of one cannot be had, and whoever made way before serves again.
#[test]
fn what_a_pause_leaves_behind_gives_it_up() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Awake]);
    s.node.devices[0].spec.max_awake = 2;
    s.command(Request::Pause { tier: Some(Tier::Stopped), drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::Stop { engine: B, .. })).answer(StepResult::Stopped { left: 1 });
    s.ok_to_the_end().serving(A);
    assert!(matches!(s.node.engine(B).condition, Condition::Failed(_)));
    assert_eq!(s.node.paused, None);
    s.forget().later();
    assert!(s.log.is_empty() && s.waiting.is_empty(), "{:#?}", s.log);
}
