//! A new configuration: what is unchanged is not touched, what has changed comes into force when it may.

use super::*;
use crate::demand::Demand;
use crate::queue::Refusal;
use crate::revise::{Change, DeviceSettings, Revised, Revision};
use crate::spec::Rung;

const C: EngineId = EngineId(2);

fn settings(s: &Session, engine: EngineId, process: bool, change: impl FnOnce(&mut EngineSpec)) -> Change {
    let mut spec = s.node.engine(engine).spec.clone();
    change(&mut spec);
    Change::Settings(Box::new(Revised { spec, process, footprints: [None; 5] }))
}

fn revision(s: &Session, engines: Vec<Change>) -> Revision {
    let devices = s.node.devices.iter().map(|d| {
        let DeviceSpec { reserve, slack, max_awake, .. } = d.spec;
        DeviceSettings { reserve, slack, max_awake }
    });
    Revision { engines, added: Vec::new(), devices: devices.collect(), policy: s.node.policy }
}

fn look(s: &mut Session, engine: EngineId, running: u64) {
    let e = s.node.engine(engine);
    let (generation, asleep) = (e.generation, e.tier != Tier::Awake);
    let survey = Survey {
        sleeping: SleepingAnswer::Says { is_sleeping: asleep },
        running: Some(running),
        tokens: Some(1),
        device_bytes: None,
    };
    s.say(Event::Surveyed { engine, generation, survey });
}

impl Session {
    fn revised(&mut self, engines: Vec<Change>) -> &mut Self {
        let revision = revision(self, engines);
        self.say(Event::Revised(Box::new(revision)))
    }

    fn looks(&mut self, running: u64) -> &mut Self {
        for _ in 0..3 {
            for engine in self.node.ids() {
                look(self, engine, running);
            }
        }
        self
    }

    fn spec(&self, engine: EngineId) -> &EngineSpec {
        &self.node.engine(engine).spec
    }
}

#[test]
fn the_same_again_changes_nothing() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let before = s.node.clone();
    s.revised(vec![Change::Same, Change::Same]).reads("");
    assert_eq!(s.node, before);
}

#[test]
fn the_agents_own_settings_come_into_force_at_rest_and_nobody_notices() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let ladder = vec![Rung { after: Duration::from_secs(7_200), tier: Tier::Level2 }];
    let change = settings(&s, A, false, |spec| spec.ladder.clone_from(&ladder));
    s.revised(vec![change, Change::Same]).serving(A);
    s.reads("  A: new settings (agent)");
    assert_eq!(s.spec(A).ladder, ladder);
    assert!(s.node.engine(A).measured(Tier::Awake).is_some(), "what was measured holds");

    // While something is under way they wait: nothing is planned by one set and done by another.
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_probe);
    let change = settings(&s, A, false, |spec| spec.levels.parked = false);
    s.revised(vec![change]);
    assert!(s.spec(A).levels.parked);
    s.ok_to_the_end().serving(B);
    assert!(!s.spec(A).levels.parked);
}

#[test]
fn a_changed_process_is_started_anew_at_the_next_idle_moment() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let change = settings(&s, A, true, |spec| spec.stop_grace = Duration::from_secs(9));
    s.revised(vec![change, Change::Same]);
    s.looks(1);
    assert!(s.log.is_empty() && s.waiting.is_empty(), "somebody is being served: {:#?}", s.log);
    s.serving(A);
    s.looks(0).ok_to_the_end();
    s.reads(
        "
        #1 restart A: stop A; start A
          drain A
          A: awake → moving
          stop A's processes
          A's bytes are down to stopped
          A: moving → stopped
          A: new settings (process)
          A: stopped → moving
          spawn A
          A is ready
          probe A
          warm A up
          measure A awake
          A: moving → awake
        #1 done",
    );
}

#[test]
fn a_process_that_ends_for_another_reason_comes_back_with_the_new_settings() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let change = settings(&s, A, true, |spec| spec.stop_grace = Duration::from_secs(9));
    s.revised(vec![change]).dies(A).ok_to_the_end();
    assert_eq!(s.spec(A).stop_grace, Duration::from_secs(9), "{:#?}", s.log);
    s.later().ok_to_the_end().serving(A);
    assert!(s.node.engine(A).revised.is_none());
}

#[test]
fn a_change_that_is_taken_back_in_time_restarts_nobody() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let change = settings(&s, A, true, |spec| spec.stop_grace = Duration::from_secs(9));
    s.revised(vec![change]).revised(vec![Change::Same]).looks(0).reads("");
    s.serving(A);
}

#[test]
fn what_failed_with_the_old_settings_is_tried_with_the_new_ones() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.node.engine_mut(B).condition = Condition::Failed("no such file".into());
    let change = settings(&s, B, true, |_| {});
    s.revised(vec![Change::Same, change]);
    assert!(s.log[0].starts_with("  B: failed → backoff"), "{:#?}", s.log);
    // It needs room, as ever: A is awake.
    assert!(s.log.iter().any(|l| l.contains("does not fit")) || !s.waiting.is_empty(), "{:#?}", s.log);
}

#[test]
fn an_engine_that_is_added_is_started_and_serves() {
    let mut s = Session::new(31, 80, &[Tier::Awake, Tier::Level1]);
    let mut spec = s.spec(B).clone();
    spec.name = "C".into();
    let footprints = Tier::ALL.map(|t| Some(Footprint { device: Some(gib(C, t) * GIB), host: None }));
    let mut revision = revision(&s, vec![Change::Same, Change::Same]);
    revision.added.push(Revised { spec, process: true, footprints });
    // In the middle of a handoff: the operation under way knows nothing of it.
    s.switch(B, None).say(Event::Revised(Box::new(revision))).ok_to_the_end();
    assert_eq!(s.node.by_name("C"), Some(C));
    assert_eq!(s.node.engine(C).tier, Tier::Level1, "{:#?}", s.log);
    s.switch(C, None).ok_to_the_end().serving(C);
}

/// Where the agent was begun with its engines stopped, one that is added, or comes back, waits for a command as they do.
#[test]
fn what_is_added_is_not_started_where_nothing_is_started_by_itself() {
    let mut s = Session::new(31, 80, &[Tier::Stopped, Tier::Stopped]);
    s.node.by_hand = true;
    let mut spec = s.spec(B).clone();
    spec.name = "C".into();
    let mut revision = revision(&s, vec![Change::Same, Change::Retired]);
    revision.added.push(Revised { spec, process: true, footprints: [None; 5] });
    s.say(Event::Revised(Box::new(revision))).later().looks(0);
    s.revised(vec![Change::Same, Change::Same, Change::Same]).later().looks(0).reads("");
    s.command(Request::Start { engine: B, rehearse: None, awake: true }).ok_to_the_end().serving(B);
}

#[test]
fn what_is_not_configured_any_more_goes_when_it_is_idle_and_never_comes_back() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.revised(vec![Change::Retired, Change::Same]).looks(2);
    s.serving(A);
    s.switch(A, None);
    assert!(s.log.last().is_some_and(|l| l.contains("not configured any more")), "{:#?}", s.log);
    s.forget().looks(0).ok_to_the_end();
    assert_eq!(s.log[0], "#2 stop A: stop A");
    assert!(!s.node.engine(A).process);
    s.later().looks(0);
    assert!(s.waiting.is_empty() && !s.node.engine(A).process);
    // One that crashes is swept, and that was it.
    s.revised(vec![Change::Retired, Change::Retired]);
    s.dies(B).ok_to_the_end().later();
    assert!(s.waiting.is_empty() && !s.node.engine(B).process, "{:#?}", s.log);
    // Configured again, it is started again.
    s.revised(vec![Change::Same, Change::Retired]).ok_to_the_end();
    assert_eq!(s.node.engine(A).tier, Tier::Level1, "{:#?}", s.log);
}

#[test]
fn a_sleeping_engine_that_is_retired_goes_at_once() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.revised(vec![Change::Same, Change::Retired]).ok_to_the_end();
    assert!(!s.node.engine(B).process);
    s.serving(A);
}

/// What is left of a neighbour waits for an operator, who may be long in coming.
#[test]
fn a_neighbour_that_could_not_be_ended_keeps_nobody_from_its_restart() {
    let mut s = Session::new(31, 60, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_until(|a| matches!(a, Action::Stop { engine: A, .. }));
    s.answer(StepResult::Stopped { left: 1 }).ok_to_the_end();
    let a = s.node.engine(A);
    assert!(a.dead && matches!(a.condition, Condition::Failed(_)), "{:#?}", s.log);
    let change = settings(&s, B, true, |_| {});
    s.revised(vec![Change::Same, change]).forget().looks(0);
    assert!(s.log.iter().any(|l| l.contains("restart B")), "{:#?}", s.log);
}

/// Requests were frozen in it, and their clients have gone: nobody wakes it any more.
#[test]
fn a_frozen_engine_that_is_retired_goes_once_its_clients_have() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(B).frozen = true;
    s.say(Event::Uses(vec![Use { engine: B, in_flight: 1, at: Moment(0) }]));
    s.revised(vec![Change::Same, Change::Retired]).looks(0);
    assert!(s.waiting.is_empty(), "somebody still waits for its answer: {:#?}", s.log);
    s.say(Event::Uses(vec![Use { engine: B, in_flight: 0, at: Moment(0) }])).ok_to_the_end();
    assert!(!s.node.engine(B).process, "{:#?}", s.log);
}

/// Requests were frozen in it, and their clients wait for them: it gets its turn, answers them, and goes. Nobody else wakes it.
#[test]
fn a_frozen_engine_that_is_retired_answers_whom_it_owes_an_answer() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.node.engine_mut(B).frozen = true;
    s.say(Event::Uses(vec![Use { engine: B, in_flight: 1, at: Moment(0) }]));
    s.revised(vec![Change::Same, Change::Retired]).looks(0);
    let since = s.now;
    s.say(Event::Demand { engine: B, demand: Demand { held: 1, oldest: Some(since) } });
    s.ok_to_the_end().later().ok_to_the_end().serving(B);
    assert!(!s.node.engine(B).frozen && !s.log.iter().any(|l| l.contains("spawn")), "{:#?}", s.log);
    // It is answered, and somebody asks for A.
    s.say(Event::Demand { engine: B, demand: Demand { held: 0, oldest: None } });
    s.say(Event::Uses(vec![Use { engine: B, in_flight: 0, at: Moment(0) }]));
    s.forget().switch(B, None);
    assert!(s.log.iter().any(|l| l.contains("not configured any more")), "{:#?}", s.log);
    s.switch(A, None).ok_to_the_end().serving(A);
    s.looks(0).ok_to_the_end();
    assert!(!s.node.engine(B).process, "{:#?}", s.log);
}

/// Its settings change, it is restarted for them, and is removed while its old process ends: it is not started again, and a
/// handoff that would have started it is given up.
#[test]
fn what_is_removed_before_it_is_started_is_not_started() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let change = settings(&s, B, true, |_| {});
    s.revised(vec![Change::Same, change]).looks(0).ok_until(|a| matches!(a, Action::Stop { engine: B, .. }));
    s.revised(vec![Change::Same, Change::Retired]).ok_to_the_end().serving(A);
    assert!(!s.node.engine(B).process && !s.log.iter().any(|l| l.contains("spawn B")), "{:#?}", s.log);

    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Stopped]);
    s.switch(B, Some(Strategy::SleepFirst)).ok_until(|a| matches!(a, Action::Call { engine: A, .. }));
    s.revised(vec![Change::Same, Change::Retired]).ok_to_the_end().serving(A);
    assert!(!s.node.engine(B).process && !s.log.iter().any(|l| l.contains("spawn B")), "{:#?}", s.log);
}

#[test]
fn a_restart_asks_for_the_room_that_the_new_settings_need() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let change = settings(&s, A, true, |spec| spec.estimate.start_free = Some(60 * GIB));
    s.revised(vec![change]).looks(0).reads("");
    s.command(Request::Restart { engine: A, rehearse: None, drain: Drain::default() });
    let short = Refusal::NoRoom { what: "starting A again".into(), device: "gpu0".into(), missing: 17 * GIB };
    assert_eq!(s.log, [format!("#1 refused: {short}")]);
    s.serving(A);
}

#[test]
fn work_goes_by_names_where_the_file_orders_engines_otherwise() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    s.switch(B, None).ok_until(is_probe);
    let kept = crate::kept::keep(&s.node).work;
    let other = |names: &[&str]| {
        let specs = names.iter().map(|name| EngineSpec { name: (*name).into(), ..s.spec(A).clone() });
        Node::new(specs.collect(), vec![s.node.devices[0].spec.clone()], s.node.policy, 1)
    };
    let moved = kept.clone().onto(&other(&["C", "B", "A"]));
    let op = &moved.operations[0];
    assert_eq!((op.incoming, op.outgoing.clone()), (Some(EngineId(1)), vec![EngineId(2)]));
    assert_eq!(op.tiers_before, [Tier::Level1, Tier::Level1, Tier::Awake]);
    assert_eq!(op.current.as_ref().and_then(|c| c.step.engine()), Some(EngineId(1)));
    // Without one that it is about it means nothing; without another it goes on.
    assert_eq!(kept.clone().onto(&other(&["B", "A"])).operations.len(), 1);
    assert_eq!(kept.onto(&other(&["B", "C"])).operations.len(), 0);
}

#[test]
fn devices_that_change_amid_a_restart_wait_for_the_next_start() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let other = s.node.devices[0].clone();
    s.node.devices.push(other);
    s.command(Request::Restart { engine: A, rehearse: None, drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::Stop { .. }));
    let change = settings(&s, A, false, |spec| spec.devices = vec![DeviceId(1)]);
    s.revised(vec![change]).ok_to_the_end();
    assert_eq!(s.spec(A).devices, [GPU], "{:#?}", s.log);
    s.serving(A);
    s.looks(0).ok_to_the_end();
    assert_eq!(s.spec(A).devices, [DeviceId(1)], "{:#?}", s.log);
    s.serving(A);
}
