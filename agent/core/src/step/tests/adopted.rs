//! Stories of an agent that was killed and of its successor.

use super::*;
use crate::adopt::{Adopted, Adoption, Found, Process};
use crate::state::Pausing;

impl Session {
    /// The agent is killed; its successor finds each engine alive, saying this and holding so many GiB.
    fn succeeded(&mut self, found: &[(Option<bool>, u64)]) -> &mut Self {
        self.taken_over(found);
        self.say(Event::Boot { awake: vec![A] })
    }

    /// The same, and killed before its boot.
    fn taken_over(&mut self, found: &[(Option<bool>, u64)]) -> &mut Self {
        self.waiting.clear();
        let kept = crate::kept::keep(&self.node);
        let specs = self.node.engines.iter().map(|e| e.spec.clone()).collect();
        let devices = self.node.devices.iter().map(|d| d.spec.clone()).collect();
        let capabilities = Some(self.capabilities());
        let revised: Vec<_> = self.node.engines.iter().map(|e| e.revised.clone()).collect();
        self.node = Node::new(specs, devices, self.node.policy, self.node.next_operation);
        // The next agent has read the file: it goes by it, whatever a process was started with.
        for (e, revised) in self.node.engines.iter_mut().zip(revised) {
            if let Some(newer) = &revised {
                e.spec = newer.spec.clone();
            }
            e.revised = revised;
        }
        let engines = kept.engines.into_iter().zip(found).zip(0..).map(|((kept, (says, gib)), at)| Adopted {
            engine: EngineId(at),
            found: Found {
                sleeping: says
                    .map_or(SleepingAnswer::Unknown, |is_sleeping| SleepingAnswer::Says { is_sleeping }),
                bytes: Some(gib * GIB),
                capabilities,
                ..Found::only(if kept.process { Process::Lives } else { Process::None })
            },
            kept: Some(kept),
        });
        let adoption = Adoption { engines: engines.collect(), work: Some(kept.work), ..Adoption::default() };
        self.log.clear();
        self.say(Event::Adopted(Box::new(adoption)))
    }
}

const AWAKE: Option<bool> = Some(false);
const ASLEEP: Option<bool> = Some(true);

#[test]
fn who_serves_serves_on_in_the_same_step_and_boot_moves_nobody() {
    let mut s = Session::new(31, 45, &[Tier::Level1, Tier::Awake]);
    s.succeeded(&[(ASLEEP, 1), (AWAKE, 8)]);
    assert!(s.node.engine(B).is_serving() && !s.node.engine(A).admission);
    assert_eq!((s.log.as_slice(), s.waiting.len()), (&[][..], 0));
    // An answer that is late contradicts nothing.
    s.succeeded(&[(ASLEEP, 1), (None, 8)]);
    assert!(s.node.engine(B).is_serving());
    assert_eq!(s.log, Vec::<String>::new());
}

#[test]
fn one_that_believes_itself_awake_without_memory_is_asked_nothing() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.succeeded(&[(AWAKE, 1), (ASLEEP, 1)]);
    assert!(!s.node.engine(A).admission);
    assert_eq!(s.log[..2], ["  A: awake → adrift", "! drifted A"]);
    assert!(s.waiting.iter().all(|(_, action)| matches!(action, Action::Stop { .. })), "{:?}", s.waiting);
}

/// Killed after `tags=weights` of a wake from level 2: the weights are mapped and empty, the KV cache is not there.
#[test]
fn a_partially_woken_engine_is_woken_to_the_end() {
    let mut s = Session::new(31, 45, &[Tier::Level1, Tier::Level2]);
    s.switch(B, None);
    // The wake of the weights is under way; the next agent finds it done.
    s.succeeded(&[(ASLEEP, 1), (ASLEEP, 4)]).ok_to_the_end();
    assert_eq!(
        s.log[..4],
        [
            "#1 goes on: B: POST /wake_up?tags=weights: again",
            "  B: POST /wake_up?tags=weights",
            "  B: POST /collective_rpc reload_weights",
            "  B: POST /wake_up?tags=kv_cache",
        ]
    );
    assert_eq!(s.log.last().map(String::as_str), Some("#1 done"));
    assert!(s.node.engine(B).is_serving());
}

#[test]
fn a_call_that_may_still_run_is_waited_for() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, Some(Strategy::SleepFirst)).ok();
    // `/sleep` is under way, and the engine does not answer.
    s.succeeded(&[(None, 33), (ASLEEP, 1)]).ok_to_the_end();
    assert_eq!(
        s.log[..3],
        [
            "#1 goes on: A: POST /sleep?level=1&mode=wait: wait",
            "  wait until A answers again",
            "  A says that it sleeps"
        ]
    );
    assert!(s.node.engine(B).is_serving());
}

/// The journal has lost what came after: an engine that was about to be measured asleep has long been parked, or serves.
#[test]
fn what_was_seen_asleep_and_is_elsewhere_by_now_is_not_measured() {
    let measuring = || {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
        s.node.engine_mut(A).footprints[Tier::Level1 as usize] = None;
        s.switch(B, Some(Strategy::SleepFirst));
        while !s.waiting.iter().any(|(_, action)| matches!(action, Action::Measure { .. })) {
            s.ok();
        }
        s
    };
    let mut s = measuring();
    s.succeeded(&[(ASLEEP, 1), (ASLEEP, 1)]).ok_to_the_end();
    assert_eq!(s.log[0], "#1 goes on: measure A level1: again");
    assert!(s.node.engine(B).is_serving());
    for (says, gib) in [(ASLEEP, 29), (AWAKE, 33)] {
        let mut s = measuring();
        s.succeeded(&[(says, gib), (ASLEEP, 1)]).ok_to_the_end();
        assert_eq!(s.log[0], "#1 goes on: measure A level1: end");
        assert!(s.log.iter().any(|line| line.contains("stop A's processes")), "{:#?}", s.log);
        let measured = s.node.engine(A).measured(Tier::Level1);
        assert!(measured.is_none_or(|bytes| bytes < 20 * GIB), "{measured:?}");
    }
}

#[test]
fn a_drain_that_nobody_watched_past_its_deadline_is_given_up() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, Some(Strategy::SleepFirst));
    s.now = s.now + Duration::from_secs(31);
    s.succeeded(&[(AWAKE, 33), (ASLEEP, 1)]).ok_to_the_end();
    assert_eq!(s.log, ["#1 goes on: drain A: give up", "#1 failed: drain_deadline"]);
    assert!(s.node.engine(A).is_serving());
}

/// Rows of a journal that were written at different moments: it drains, and serves.
#[test]
fn what_an_operation_has_in_hand_is_closed_whatever_is_on_record() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_drain);
    s.node.engine_mut(A).admission = true;
    s.succeeded(&[(AWAKE, 33), (AWAKE, 8)]);
    assert!(!s.node.engine(A).admission && is_drain(&s.waiting[0].1), "{:#?}", s.log);
    s.ok_to_the_end().serving(B);
}

#[test]
fn maintenance_lasts_and_what_was_stopped_stays_stopped() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.command(Request::Pause { tier: None, drain: Drain::default() }).ok_to_the_end();
    s.succeeded(&[(ASLEEP, 1), (None, 0)]);
    assert!(s.node.paused.as_ref().is_some_and(|p| p.stage == Pausing::Lasts), "{:?}", s.node.paused);
    assert_eq!((s.log.as_slice(), s.waiting.len()), (&[][..], 0));
    s.command(Request::Resume).ok_to_the_end();
    assert!(s.node.engine(A).is_serving());
    assert_eq!(s.node.engine(B).tier, Tier::Stopped);
}

#[test]
fn what_a_closing_agent_has_stopped_is_started_by_the_configuration() {
    let mut s = Session::new(31, 45, &[Tier::Stopped, Tier::Stopped]);
    s.say(Event::Close);
    s.succeeded(&[(None, 0), (None, 0)]).ok_to_the_end();
    assert!(s.node.engine(A).is_serving(), "{:#?}", s.log);
    assert_eq!(s.node.engine(B).tier, Tier::Level1);
}

/// An agent that is killed between what it takes over and its boot has decided nothing.
#[test]
fn what_was_to_be_started_at_a_boot_that_never_came_is_started_at_the_next() {
    let nobody = [(None, 0), (None, 0), (None, 0)];
    for closed in [false, true] {
        let mut s = Session::new(31, 45, &[Tier::Stopped, Tier::Stopped, Tier::Stopped]);
        if closed {
            s.say(Event::Close);
        } else {
            // The first agent of all: A and B are new, and C has been stopped by an operator meanwhile.
            for id in [A, B] {
                s.node.engine_mut(id).to_boot = true;
            }
        }
        s.taken_over(&nobody).taken_over(&nobody);
        if closed {
            s.command(Request::Stop { engine: EngineId(2), drain: Drain::default() });
        }
        s.taken_over(&nobody).succeeded(&nobody).ok_to_the_end().serving(A);
        assert_eq!(s.node.engine(B).tier, Tier::Level1);
        assert_eq!(s.node.engine(EngineId(2)).tier, Tier::Stopped, "{:#?}", s.log);
    }
}

#[test]
fn an_engine_without_any_record_is_believed_where_word_and_bytes_agree() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.succeeded(&[(AWAKE, 33), (ASLEEP, 1)]);
    let capabilities = Some(s.capabilities());
    for (gib, believed) in [(33, true), (20, false), (1, false)] {
        let specs = s.node.engines.iter().map(|e| e.spec.clone()).collect();
        let devices = s.node.devices.iter().map(|d| d.spec.clone()).collect();
        let footprints = s.node.engine(A).footprints;
        s.node = Node::new(specs, devices, s.node.policy, 1);
        s.node.engine_mut(A).footprints = footprints;
        s.waiting.clear();
        let sleeping = SleepingAnswer::Says { is_sleeping: false };
        let found = Found { sleeping, bytes: Some(gib * GIB), capabilities, ..Found::only(Process::Lives) };
        let engines = vec![Adopted { engine: A, kept: None, found }];
        s.say(Event::Adopted(Box::new(Adoption { engines, ..Adoption::default() })));
        assert_eq!(s.node.engine(A).is_serving(), believed, "{gib} GiB");
    }
}

/// The file has changed before the agent was killed. What was measured of a process that lives holds of that one alone, and
/// what was measured of one that had ended holds of nobody; also where the file is revised again before any of it is in
/// force, or the engine is removed and added back.
#[test]
fn what_was_measured_with_older_settings_is_not_believed_of_the_next_process() {
    use crate::revise::{Change, DeviceSettings, Revised, Revision};
    for then in [Change::Same, Change::Retired] {
        let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1, Tier::Stopped]);
        for id in [B, EngineId(2)] {
            let e = s.node.engine_mut(id);
            let footprints = [None; 5];
            e.revised = Some(Box::new(Revised { spec: e.spec.clone(), process: true, footprints }));
        }
        s.switch(A, None);
        s.succeeded(&[(AWAKE, 33), (ASLEEP, 1), (None, 0)]);
        assert!(s.node.engine(B).measured(Tier::Awake).is_some(), "it lives");
        assert_eq!(s.node.engine(EngineId(2)).footprints, [None; 5]);
        let devices = s.node.devices.iter().map(|d| {
            let DeviceSpec { reserve, slack, max_awake, .. } = d.spec;
            DeviceSettings { reserve, slack, max_awake }
        });
        let devices = devices.collect();
        let engines = vec![Change::Same, then, Change::Same];
        let revision = Revision { engines, added: Vec::new(), devices, policy: s.node.policy };
        s.dies(B);
        s.say(Event::Revised(Box::new(revision))).ok_to_the_end();
        let b = s.node.engine(B);
        assert!(!b.process && b.footprints == [None; 5], "{:#?}", s.log);
    }
}
