//! Stories of servers that somebody else has started.

use super::*;
use crate::adopt::{Adopted, Adoption, Found, Process};
use crate::effect::TakenIn;
use crate::program::Step;
use crate::spec::Strategy;
use proptest::prelude::{any, prop, prop_assert, proptest};

/// A awake, B's server started by hand: what it holds is foreign. Both may be awake.
fn by_hand() -> Session {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.node.devices[0].spec.max_awake = 2;
    (s.node.devices[0].foreign, s.node.devices[0].foreign_seen) = (8 * GIB, 8 * GIB);
    s
}

fn is(wanted: fn(&Action) -> bool) -> impl Fn(&Action) -> bool {
    wanted
}

fn is_hold(a: &Action) -> bool {
    matches!(a, Action::Hold { .. })
}

fn is_keep(a: &Action) -> bool {
    matches!(a, Action::Keep { .. })
}

fn is_let_go(a: &Action) -> bool {
    matches!(a, Action::LetGo { .. })
}

/// What an adoption that fails must not change of an engine.
fn place(node: &Node, id: EngineId) -> impl PartialEq + std::fmt::Debug + use<> {
    let e = node.engine(id).clone();
    let foreign: Vec<u64> = node.devices.iter().map(|d| d.foreign).collect();
    let learned = (e.footprints, e.restart_only, e.other_settings, e.wanted_awake);
    (e.tier, e.condition, e.admission, e.process, e.dead, e.held, e.reserved, e.crashes, learned, foreign)
}

#[test]
fn a_server_that_runs_becomes_an_engine_and_nothing_of_it_is_moved() {
    let mut s = by_hand();
    s.command(Request::Adopt(B)).ok_to_the_end();
    s.reads(
        "
        #1 adopt B: find and prove the server on B's port; probe B; warm B up; take it over as B; open admission to B
          find and prove the server on B's port
          probe B
          warm B up
          take it over as B
          B: stopped → awake
          B is taken over
        #1 done
        ",
    );
    s.serving(A);
    s.serving(B);
    let (b, gpu) = (s.node.engine(B), &s.node.devices[0]);
    assert_eq!((b.held, b.reserved, b.wanted_awake), (8 * GIB, 0, true));
    // Not at the second reading: in the same step.
    assert_eq!((gpu.foreign, gpu.foreign_seen), (0, 0));
    // From now on it is handed over, and its end is noticed, like any other's.
    s.forget().switch(A, Some(Strategy::SleepFirst));
    s.ok_to_the_end();
    s.command(Request::Sleep { engine: B, tier: Some(Tier::Level1), drain: Drain::default() })
        .ok_to_the_end();
    assert_eq!(s.node.engine(B).tier, Tier::Level1, "{:#?}", s.log);
    s.forget().dies(B).ok_to_the_end();
    assert!(s.log.contains(&"! crashed B".to_owned()), "{:#?}", s.log);
    s.later().ok_to_the_end();
    assert!(s.node.engine(B).process && s.log.contains(&"  spawn B".to_owned()), "{:#?}", s.log);
}

/// It is there, so there is room; who steps back then is the surplus's rule.
#[test]
fn one_more_than_may_be_awake_is_taken_over_and_said() {
    let mut s = by_hand();
    s.node.devices[0].spec.max_awake = 1;
    s.command(Request::Adopt(B)).ok_to_the_end();
    let said = "  B is taken over; A is awake on gpu0 as well, and max_awake there is 1".to_owned();
    assert!(s.log.contains(&said), "{:#?}", s.log);
    s.serving(B);
    assert_eq!(s.node.engine(A).tier, Tier::Level1, "{:#?}", s.log);
}

#[test]
fn foreign_memory_that_is_somebody_else_s_stays_foreign() {
    let mut s = by_hand();
    // 2 GiB more are a stranger's, and of what is there now one GiB less than was once seen.
    (s.node.devices[0].foreign, s.node.devices[0].foreign_seen) = (11 * GIB, 11 * GIB);
    s.command(Request::Adopt(B)).ok_until(is_keep);
    let capabilities = s.capabilities();
    let used = vec![(GPU, Some((33 + 8 + 2) * GIB))];
    let taken = TakenIn {
        capabilities,
        used,
        bytes: Some(8 * GIB),
        host: None,
        as_configured: true,
        remarks: Vec::new(),
    };
    s.answer(StepResult::TakenIn(Box::new(taken)));
    assert_eq!((s.node.engine(B).held, s.node.devices[0].foreign), (8 * GIB, 2 * GIB));
}

#[test]
fn other_settings_than_configured_are_kept_apart() {
    let mut s = by_hand();
    s.command(Request::Adopt(B)).ok_until(is_keep);
    let capabilities = s.capabilities();
    let remarks = vec!["it has twice the context".to_owned()];
    let taken = TakenIn {
        capabilities,
        used: Vec::new(),
        bytes: Some(7 * GIB),
        host: None,
        as_configured: false,
        remarks,
    };
    s.answer(StepResult::TakenIn(Box::new(taken)));
    let b = s.node.engine(B);
    assert_eq!((b.held, b.measured(Tier::Awake), b.measured(Tier::Level1)), (7 * GIB, Some(7 * GIB), None));
    assert!(s.log.iter().any(|l| l.contains("it has twice the context")), "{:#?}", s.log);
    // The next process is the configured one: what was measured of this one says nothing of it.
    let declared =
        crate::spec::Estimate { weights: Some(9 * GIB), kv_cache: Some(GIB), ..Default::default() };
    s.node.engine_mut(B).spec.estimate = declared;
    s.dies(B).ok_to_the_end();
    assert_eq!((s.node.engine(B).measured(Tier::Awake), s.node.engine(B).other_settings), (None, false));
    // Nor what is reserved for it.
    s.later().ok_until(|a| matches!(a, Action::Spawn { engine: B, .. }));
    assert!(s.node.engine(B).reserved >= 10 * GIB, "{}", s.node.engine(B).reserved);
}

/// A look at the device between an engine's death and the news of it: what is missing is the dead one's, not theirs.
#[test]
fn a_look_before_the_news_of_a_death_makes_nobody_s_memory_less() {
    let mut s = by_hand();
    s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: 8 * GIB });
    assert_eq!(s.node.devices[0].foreign, 8 * GIB);
    s.dies(A).ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
    let (_, action) = s.waiting.last().expect("it waits for A's bytes");
    let Action::AwaitUsed { bounds, .. } = action else { panic!("{action:?}") };
    assert!(bounds.iter().all(|b| b.at_most >= Some(8 * GIB)), "{bounds:?}");
    // What is seen twice is so.
    let mut s = by_hand();
    for _ in 0..2 {
        s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: 33 * GIB });
    }
    assert_eq!(s.node.devices[0].foreign, 0);
}

/// GiB that the device shows, and of them those of strangers.
fn with_strangers(used: u64, strangers: u64) -> StepResult {
    let shown = Shown { strangers: Some(strangers * GIB), ..Shown::only(GPU, used * GIB) };
    StepResult::OutOfBounds { shown: vec![shown] }
}

#[test]
fn what_comes_while_a_server_that_was_taken_over_ends_is_not_its_leftovers() {
    // Used at the end, of that strangers, of those known before: whoever started it has started it again, or has not.
    let table =
        [(41, 8, 0, true), (45, 12, 4, true), (41, 0, 0, false), (41, 3, 0, false), (45, 4, 4, false)];
    for ((used, strangers, before, gone), dies) in
        table.into_iter().flat_map(|row| [(row, false), (row, true)])
    {
        let mut s = by_hand();
        s.command(Request::Adopt(B)).ok_to_the_end();
        (s.node.devices[0].foreign, s.node.devices[0].foreign_seen) = (before * GIB, before * GIB);
        if dies {
            // The agent ends meanwhile; the next one knows of it by what was kept.
            s.succeeded_by(B, &Process::Lives, Some(false), Some(8));
            s.ok_to_the_end();
        }
        s.command(Request::Stop { engine: B, drain: Drain::default() });
        s.ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
        s.answer(with_strangers(used, strangers)).ok_to_the_end().serving(A);
        let b = s.node.engine(B);
        assert_eq!(b.condition == Condition::Settled, gone, "{before}: {:?} {:#?}", b.condition, s.log);
        assert_eq!((b.tier, b.held == 0), (Tier::Stopped, gone));
    }
}

#[test]
fn what_comes_while_an_engine_of_our_own_ends_is_its_leftovers() {
    let mut s = by_hand();
    s.command(Request::Adopt(B)).ok_to_the_end();
    // Its next process is the agent's own.
    s.command(Request::Restart { engine: B, rehearse: None, drain: Drain::default() }).ok_to_the_end();
    s.command(Request::Stop { engine: B, drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::AwaitUsed { .. }));
    s.answer(with_strangers(41, 8)).ok_to_the_end().serving(A);
    let Condition::Failed(why) = &s.node.engine(B).condition else { panic!("{:#?}", s.log) };
    assert!(why.contains("41.0 GiB used (8.0 GiB of it by processes that are no engine's)"), "{why}");
    s.forget().command(Request::Adopt(B));
    assert!(s.log.iter().any(|l| l.contains("refused") && l.contains("`reset` it first")), "{:#?}", s.log);
}

/// An operator who has been told of them says by `reset` that they are not the engine's.
#[test]
fn a_reset_leaves_to_strangers_what_is_strangers_and_nothing_else() {
    for (strangers, settled) in [(8, true), (3, false)] {
        let mut s = by_hand();
        (s.node.devices[0].foreign, s.node.devices[0].foreign_seen) = (0, 0);
        s.command(Request::Start { engine: B, rehearse: None, awake: true }).ok_to_the_end();
        let left = || with_strangers(41, strangers);
        s.dies(B).ok_until(|a| matches!(a, Action::AwaitUsed { .. })).answer(left()).ok_to_the_end();
        assert!(matches!(s.node.engine(B).condition, Condition::Failed(_)), "{:#?}", s.log);
        s.forget().command(Request::Reset(B));
        s.ok_until(|a| matches!(a, Action::AwaitUsed { .. })).answer(left()).ok_to_the_end();
        let (b, gpu) = (s.node.engine(B), &s.node.devices[0]);
        assert_eq!(b.condition == Condition::Settled, settled, "{:?}", s.log);
        assert_eq!((b.held == 0, gpu.foreign), (settled, if settled { 8 * GIB } else { 0 }));
        if settled {
            // And the server that they are may be the engine now.
            s.command(Request::Adopt(B)).ok_to_the_end().serving(B);
            assert_eq!((s.node.engine(B).held, s.node.devices[0].foreign), (8 * GIB, 0));
        }
    }
}

#[test]
fn what_cannot_be_taken_over_is_refused_before_anything_is_asked() {
    let mut s = by_hand();
    s.command(Request::Adopt(A));
    s.reads("#1 refused: A is awake; it has a process already; `stop` it first if another one is to take its place");
    s.forget().say(Event::DeviceLost { device: GPU, reason: "no driver".into() });
    s.command(Request::Adopt(B));
    assert!(
        s.log.last().is_some_and(|l| l.starts_with("#2 refused: device gpu0 cannot be read")),
        "{:#?}",
        s.log
    );
}

/// Whatever fails, and in whichever step, nothing is ended and nothing has changed.
#[test]
fn a_failure_leaves_everything_as_it_was() {
    let results = [
        StepResult::NotHeld("it sleeps".into()),
        StepResult::Gone("connection refused".into()),
        StepResult::ProbeFailed("no token".into()),
        StepResult::NoEvidence("no driver".into()),
    ];
    for condition in [
        Condition::Settled,
        Condition::Backoff(Moment(9_000_000_000_000)),
        Condition::NoRoom,
        Condition::PortTaken,
        Condition::Failed("6 crashes".into()),
    ] {
        for at in [is(is_hold), is(is_probe), is(is_keep)] {
            for result in results.clone() {
                let mut s = by_hand();
                s.node.engine_mut(B).condition = condition.clone();
                let before = place(&s.node, B);
                s.command(Request::Adopt(B)).ok_until(&at).answer(result.clone());
                while !s.waiting.is_empty() {
                    let again = s.waiting.first().is_some_and(|(_, a)| at(a));
                    if again {
                        s.answer(result.clone())
                    } else {
                        s.ok()
                    };
                }
                assert_eq!(place(&s.node, B), before, "{condition:?}: {:#?}", s.log);
                let words = ["  leave the server on B's port as it was", "#1 failed: "];
                assert!(words.iter().all(|w| s.log.iter().any(|l| l.starts_with(w))), "{:#?}", s.log);
                assert!(!s.log.iter().any(|l| l.starts_with('!') || l.contains("stop B")), "{:#?}", s.log);
                s.serving(A);
            }
        }
    }
}

/// Its recorded tokens are for later; that there are none keeps nobody from taking it over.
#[test]
fn a_warm_up_that_fails_is_gone_without() {
    let mut s = by_hand();
    s.command(Request::Adopt(B)).ok_until(|a| matches!(a, Action::WarmUp { .. }));
    s.answer(StepResult::WarmUpFailed("busy".into())).ok_to_the_end();
    s.serving(B);
}

#[test]
fn its_end_is_noticed_in_the_middle_and_is_nobody_s_crash() {
    for at in [is(is_probe), is(is_keep)] {
        let mut s = by_hand();
        let before = place(&s.node, B);
        s.command(Request::Adopt(B)).ok_until(&at).dies(B);
        assert_eq!(s.waiting.len(), 2, "{:#?}", s.waiting);
        let late = s.waiting.remove(0).0;
        s.ok_to_the_end();
        assert_eq!(s.log.last().map(String::as_str), Some("#1 failed: engine_gone"));
        assert_eq!(place(&s.node, B), before);
        // What was asked of it meanwhile answers late, and changes nothing.
        s.say(Event::Done { ticket: late, result: StepResult::Held });
        assert_eq!(place(&s.node, B), before);
    }
}

/// Killed in each step, with the server alive or gone, held or not: the successor ends nothing.
#[test]
fn the_next_agent_goes_on_with_it_or_leaves_it_as_it_was() {
    let found = [
        (Process::Lives, Some(false), Some(8)),
        (Process::Lives, None, None),
        (Process::Lives, Some(true), Some(1)),
        (Process::None, None, None),
        (Process::Ended("how, nobody has told".into()), None, None),
        (Process::Strange("somebody else answers on its port".into()), None, None),
    ];
    for at in [is(is_hold), is(is_probe), is(is_keep), is(is_let_go)] {
        for (process, says, gib) in found.clone() {
            let mut s = by_hand();
            s.command(Request::Adopt(B));
            let before = place(&s.node, B);
            if s.waiting.first().is_some_and(|(_, a)| !at(a)) && at(&Action::LetGo { engine: B }) {
                s.answer(StepResult::NotHeld(String::new()));
            }
            s.ok_until(&at).succeeded_by(B, &process, says, gib);
            s.ok_to_the_end();
            let taken = s.node.engine(B).is_serving();
            assert!(taken || place(&s.node, B) == before, "{process:?} {says:?}: {:#?}", s.log);
            let lost = matches!(process, Process::Ended(_) | Process::Strange(_))
                || at(&Action::LetGo { engine: B });
            let well = process == Process::Lives && says == Some(false) && !lost;
            assert!(if lost { !taken } else { taken || !well }, "{process:?} {says:?}: {:#?}", s.log);
            let ends = |l: &&String| l.contains("stop B") || l.contains("end B") || l.starts_with('!');
            assert_eq!(s.log.iter().find(ends), None, "{process:?} {says:?}: {:#?}", s.log);
            s.serving(A);
        }
    }
}

impl Session {
    /// The agent is killed; its successor finds A as it was and this of the engine that is being taken over.
    fn succeeded_by(&mut self, engine: EngineId, process: &Process, says: Option<bool>, gib: Option<u64>) {
        self.waiting.clear();
        let kept = crate::kept::keep(&self.node);
        let specs = self.node.engines.iter().map(|e| e.spec.clone()).collect();
        let devices = self.node.devices.iter().map(|d| d.spec.clone()).collect();
        let capabilities = Some(self.capabilities());
        self.node = Node::new(specs, devices, self.node.policy, self.node.next_operation);
        let sleeping = |says: Option<bool>| {
            says.map_or(SleepingAnswer::Unknown, |is_sleeping| SleepingAnswer::Says { is_sleeping })
        };
        let engines = kept.engines.into_iter().zip(0..).map(|(kept, at)| {
            let found = if EngineId(at) == engine {
                let bytes = gib.map(|g| g * GIB);
                Found { sleeping: sleeping(says), bytes, capabilities, ..Found::only(process.clone()) }
            } else {
                let (sleeping, bytes) = (sleeping(Some(false)), Some(kept.held));
                Found { sleeping, bytes, capabilities, ..Found::only(Process::Lives) }
            };
            Adopted { engine: EngineId(at), found, kept: Some(kept) }
        });
        let devices = vec![(GPU, kept.devices[0])];
        let engines = engines.collect();
        let adoption = Adoption { engines, devices, work: Some(kept.work), ..Adoption::default() };
        self.log.clear();
        self.say(Event::Adopted(Box::new(adoption)));
        self.say(Event::Boot { awake: vec![A] });
    }
}

/// A port that is taken is no crash: no budget is used up, nothing is tried in vain, and it starts once the port is free.
#[test]
fn an_engine_whose_port_is_taken_waits_for_it() {
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Stopped]);
    s.command(Request::Start { engine: B, rehearse: None, awake: false });
    s.ok_until(|a| matches!(a, Action::Spawn { .. }));
    s.answer(StepResult::PortTaken("port 8102 is taken by process 7".into())).ok_to_the_end();
    s.reads(
        "
        #1 start B: start B; put B to sleep at level1
          B: stopped → moving
          spawn B
          ✗ port_taken
        ! start_failed B
          B: moving → port_taken
        #1 failed: port_taken
        ",
    );
    let b = s.node.engine(B);
    assert_eq!((b.process, b.crashes.count(), b.held, b.reserved), (false, 0, 0, 0));
    // It is looked at again and again, and nothing else happens; nor does anybody hand the device over to it.
    s.forget();
    for _ in 0..5 {
        s.say(Event::Port { engine: B, taken: Some("process 7".into()) }).later();
    }
    s.switch(B, None);
    assert_eq!(s.log.len(), 1, "{:#?}", s.log);
    assert!(s.log[0].contains("ctl adopt"), "{:#?}", s.log);
    s.forget().say(Event::Port { engine: B, taken: None }).ok_to_the_end();
    assert_eq!(s.node.engine(B).tier, Tier::Level1, "{:#?}", s.log);
    assert!(!s.log.iter().any(|l| l.starts_with('!')), "{:#?}", s.log);
}

/// Its own server keeps the room from it: room is not what it waits for.
#[test]
fn an_engine_without_room_whose_port_is_taken_waits_for_its_port() {
    let mut s = by_hand();
    s.node.engine_mut(B).condition = Condition::NoRoom;
    s.say(Event::Port { engine: B, taken: Some("port 8102 is taken".into()) });
    assert_eq!(s.log, ["  B: no_room → port_taken", "! start_failed B"]);
    // While an operation is at work on it, or it has a process, a port is nobody's business here.
    s.command(Request::Adopt(B));
    s.say(Event::Port { engine: B, taken: None });
    assert_eq!(s.node.engine(B).condition, Condition::PortTaken);
    s.ok_to_the_end();
    s.say(Event::Port { engine: B, taken: None }).say(Event::Port { engine: B, taken: Some(String::new()) });
    s.serving(B);
}

proptest! {
    /// Any course of an adoption: its server is never ended before it is ours, and where it is not taken over the engine is
    /// where it was.
    #[test]
    fn whatever_happens_it_is_ours_or_untouched(
        course in prop::collection::vec((0usize..9, any::<bool>()), 0..12), failed in any::<bool>(),
    ) {
        let mut s = by_hand();
        if failed {
            s.node.engine_mut(B).condition = Condition::Failed("6 crashes".into());
        }
        let before = place(&s.node, B);
        s.command(Request::Adopt(B));
        for (what, alive) in course {
            // After its end it is an engine like any other, or nobody's again.
            if s.node.operations.is_empty() {
                break;
            }
            if s.waiting.is_empty() {
                s.say(Event::Tick);
                continue;
            }
            match what {
                0 => { s.answer(StepResult::NotHeld(String::new())); }
                1 => { s.answer(StepResult::Gone(String::new())); }
                2 => { s.answer(StepResult::ProbeFailed(String::new())); }
                3 => { s.dies(B); }
                4 => { s.command(Request::Stop { engine: B, drain: Drain::default() }); }
                5 => {
                    let (process, says) = if alive { (Process::Lives, Some(false)) } else { (Process::None, None) };
                    s.succeeded_by(B, &process, says, alive.then_some(8));
                }
                _ => { s.ok(); }
            }
            let ours = s.node.engine(B).process;
            let ends = |(_, a): &(Ticket, Action)| matches!(a, Action::Stop { engine: B, .. } | Action::Call { engine: B, .. });
            prop_assert!(ours || !s.waiting.iter().any(ends), "{:#?}", s.log);
            prop_assert!(ours || place(&s.node, B) == before, "{:#?}", s.log);
        }
        // Whoever holds it when nothing goes wrong any more lets go or keeps.
        if !s.node.engine(B).process {
            s.ok_to_the_end();
            let steps: Vec<Step> = s.node.operations.iter().flat_map(|op| op.program.clone()).collect();
            prop_assert!(steps.is_empty(), "{steps:?}");
        }
    }
}

/// What is on the device when the agent comes up is known before anything is started there: else the first engine's own
/// bytes would never seem to be gone again.
#[test]
fn memory_that_is_there_before_any_engine_is_foreign_at_once() {
    let mut s = Session::new(31, 60, &[Tier::Stopped, Tier::Stopped]);
    s.say(Event::DeviceRead { device: GPU, capacity: 60 * GIB, used: 34 * GIB });
    assert_eq!(s.node.devices[0].foreign, 34 * GIB);
    assert_eq!(s.log, ["! foreign_memory"]);
}
