//! Scripted sessions: what happens goes in line by line, what the core says and wants comes out as text.
//!
//! Each test is one story. `ok` answers the action under way as a healthy world would; everything else is said.

use super::step;
use crate::call::{CallOutcome, SleepingAnswer};
use crate::capability::{Capabilities, Routes, Version};
use crate::effect::{Action, Effect, Note, Shown, StepResult, Ticket};
use crate::event::{By, Drain, Event, Request, Survey, Use};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::spec::{DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Policy, Strategy, Timeouts};
use crate::state::{Condition, Footprint, Node};
use crate::tier::Tier;
use crate::time::Moment;
use std::time::Duration;

mod adopted;
mod creep;
mod revise;
mod take_in;

const A: EngineId = EngineId(0);
const B: EngineId = EngineId(1);
const GPU: DeviceId = DeviceId(0);
const GIB: u64 = 1 << 30;

/// What an engine holds awake, parked and asleep in these stories, GiB.
fn gib(engine: EngineId, tier: Tier) -> u64 {
    let (weights, kv) = [(28, 4), (3, 4), (10, 2)][usize::from(engine.0)];
    match tier {
        Tier::Awake => weights + kv + 1,
        Tier::Parked => weights + 1,
        Tier::Level1 | Tier::Level2 => 1,
        Tier::Stopped => 0,
    }
}

struct Session {
    node: Node,
    minor: u16,
    now: Moment,
    waiting: Vec<(Ticket, Action)>,
    log: Vec<String>,
}

impl Session {
    /// Engines on one device of `capacity` GiB, each settled in a tier, all footprints known.
    fn new(minor: u16, capacity: u64, tiers: &[Tier]) -> Self {
        let spec = |name: &str| EngineSpec {
            name: name.to_owned(),
            devices: vec![GPU],
            levels: Levels { parked: true, level1: true, level2: true },
            rest: Tier::Level1,
            autostart: true,
            rehearse: false,
            estimate: Estimate::default(),
            timeouts: Timeouts::default(),
            stop_grace: Duration::from_secs(5),
            backoff: crate::backoff::BackoffPolicy::default(),
            turn: crate::spec::Turn::default(),
            ladder: Vec::new(),
            recycle: crate::creep::Recycle::default(),
        };
        let device = DeviceSpec {
            name: "gpu0".into(),
            evidence: true,
            capacity: Some(capacity * GIB),
            reserve: GIB,
            slack: GIB / 4,
            max_awake: 1,
        };
        let policy = Policy {
            strategy: Strategy::Auto,
            leave: None,
            drain: DrainPolicy::Wait,
            drain_deadline: Duration::from_secs(30),
            host_budget: None,
            stall_after: Duration::from_secs(60),
        };
        let specs = ["A", "B", "C"][..tiers.len()].iter().map(|n| spec(n)).collect();
        let mut session = Session {
            node: Node::new(specs, vec![device], policy, 1),
            minor,
            now: Moment(1_000_000_000_000),
            waiting: Vec::new(),
            log: Vec::new(),
        };
        for (at, tier) in tiers.iter().enumerate() {
            let id = EngineId(u16::try_from(at).unwrap_or(0));
            let capabilities = session.capabilities();
            let e = session.node.engine_mut(id);
            for known in Tier::ALL {
                let device = Some(gib(id, known) * GIB);
                e.footprints[known as usize] = Some(Footprint { device, host: None });
            }
            (e.tier, e.to_boot) = (*tier, false);
            e.held = gib(id, *tier) * GIB;
            e.spec.estimate.kv_cache = Some((gib(id, Tier::Awake) - gib(id, Tier::Parked)) * GIB);
            if tier.has_process() {
                (e.process, e.life, e.generation, e.capabilities) = (true, 1, 1, Some(capabilities));
            }
            (e.admission, e.wanted_awake) = (*tier == Tier::Awake, *tier == Tier::Awake);
        }
        session
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            version: Version::new(0, self.minor, 0),
            routes: Routes {
                sleep: true,
                collective_rpc: self.minor >= 11,
                release_kv_cache: self.minor >= 31,
                reset_prefix_cache: true,
                pause: self.minor >= 12,
                abort_requests: self.minor >= 13,
            },
            workers: 1,
        }
    }

    /// One event; what comes out is written down.
    fn say(&mut self, event: Event) -> &mut Self {
        for effect in step(&mut self.node, event, self.now) {
            match effect {
                Effect::Run { ticket, action } => self.waiting.push((ticket, action)),
                Effect::Survey { engine, .. } => {
                    let name = self.name(engine);
                    self.log.push(format!("survey {name}"));
                }
                Effect::Note(note) => {
                    let line = self.line(&note);
                    self.log.extend(line);
                }
            }
        }
        self
    }

    fn name(&self, engine: EngineId) -> String {
        self.node.engine(engine).spec.name.clone()
    }

    fn line(&self, note: &Note) -> Option<String> {
        Some(match note {
            Note::Accepted { id, request, steps, .. } => {
                let steps: Vec<String> = steps.iter().map(|s| s.sentence(&self.node)).collect();
                let steps = steps.join("; ");
                format!("#{} {} {}: {steps}", id.0, request.verb(), self.node.subject(request))
            }
            Note::NothingToDo { id, because, .. } => format!("#{} nothing to do: {because}", id.0),
            Note::Refused { id, refusal } => format!("#{} refused: {refusal}", id.0),
            Note::Joined { id, to } => format!("#{} joins #{}", id.0, to.0),
            Note::Queued { id, behind } => format!("#{} waits for #{}", id.0, behind.0),
            Note::StepBegan { step, .. } => format!("  {}", step.sentence(&self.node)),
            Note::StepEnded { failure, .. } => format!("  ✗ {}", failure.as_ref()?.cause.code()),
            Note::Transition { engine, from, to, .. } => format!("  {}: {from} → {to}", self.name(*engine)),
            Note::Measured { .. } => return None,
            Note::Incident { incident, engine, .. } => {
                format!("! {} {}", incident.code(), engine.map(|e| self.name(e)).unwrap_or_default())
                    .trim_end()
                    .to_owned()
            }
            Note::Resumed { id, step, then, .. } => {
                let step = step.as_ref().map(|s| s.sentence(&self.node)).unwrap_or_default();
                format!("#{} goes on: {step}: {}", id.0, then.as_str())
            }
            Note::Ended { id, failure: None, .. } => format!("#{} done", id.0),
            Note::Ended { id, failure: Some(why), .. } => format!("#{} failed: {}", id.0, why.cause.code()),
            Note::NotCancelled { id, refusal } => format!("#{} not cancelled: {}", id.0, refusal.code()),
            Note::Late(_) => "late reply".to_owned(),
            Note::TakenIn { engine, remarks, .. } => {
                let remarks: String = remarks.iter().map(|r| format!("; {r}")).collect();
                format!("  {} is taken over{remarks}", self.name(*engine))
            }
            Note::Revised { engine, process } => {
                let of = if *process { "process" } else { "agent" };
                format!("  {}: new settings ({of})", self.name(*engine))
            }
        })
    }

    fn command(&mut self, request: Request) -> &mut Self {
        let id = self.node.number();
        self.say(Event::Command { id, request, by: By::Operator })
    }

    fn switch(&mut self, to: EngineId, strategy: Option<Strategy>) -> &mut Self {
        self.command(Request::Switch { to, strategy, leave: None, drain: Drain::default() })
    }

    /// The oldest action under way ends like this.
    fn answer(&mut self, result: StepResult) -> &mut Self {
        assert!(!self.waiting.is_empty(), "nothing is under way; so far: {:#?}", self.log);
        let (ticket, _) = self.waiting.remove(0);
        self.say(Event::Done { ticket, result })
    }

    /// The oldest action under way ends as it should.
    fn ok(&mut self) -> &mut Self {
        let action = self.waiting.first().map(|(_, action)| action.clone());
        let asleep = self.node.operations.iter().find_map(|op| match op.current.as_ref()?.step {
            crate::program::Step::ConfirmAsleep(_) | crate::program::Step::Resolve { asleep: true, .. } => {
                Some(true)
            }
            _ => None,
        });
        let used = |bounds: &[crate::effect::Bound]| {
            bounds.iter().map(|b| (b.device, b.at_most.or(b.at_least).unwrap_or(0))).collect()
        };
        self.answer(match action.expect("nothing is under way") {
            Action::Drain { .. } => StepResult::Drained,
            Action::Call { .. } => StepResult::Called(CallOutcome::Accepted { success: None }),
            Action::IsSleeping { .. } => {
                StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: asleep.unwrap_or(false) })
            }
            Action::AwaitUsed { bounds, .. } => StepResult::Reached { used: used(&bounds) },
            Action::Probe { .. } => StepResult::Token { at: self.now },
            Action::Spawn { .. } => StepResult::Spawned,
            Action::Ready { .. } => StepResult::Ready(self.capabilities()),
            Action::WarmUp { .. } => StepResult::Warmed,
            Action::Stop { .. } => StepResult::Stopped { left: 0 },
            Action::Measure { engine, tier } => StepResult::Measured {
                used: Vec::new(),
                engine: Some(gib(engine, tier) * GIB),
                host: Some(GIB),
            },
            Action::Hold { .. } => StepResult::Held,
            Action::Keep { engine, .. } => StepResult::TakenIn(Box::new(crate::effect::TakenIn {
                capabilities: self.capabilities(),
                used: Vec::new(),
                bytes: Some(gib(engine, Tier::Awake) * GIB),
                host: Some(GIB),
                as_configured: true,
                remarks: Vec::new(),
            })),
            Action::LetGo { .. } => StepResult::LetGo,
        })
    }

    /// Everything ends well until an action of this kind is under way.
    fn ok_until(&mut self, wanted: impl Fn(&Action) -> bool) -> &mut Self {
        while !self.waiting.first().is_some_and(|(_, a)| wanted(a)) {
            self.ok();
        }
        self
    }

    /// Everything ends well until nothing is under way.
    fn ok_to_the_end(&mut self) -> &mut Self {
        while !self.waiting.is_empty() {
            self.ok();
        }
        self
    }

    fn dies(&mut self, engine: EngineId) -> &mut Self {
        let life = self.node.engine(engine).life;
        self.say(Event::Exited { engine, life, reason: "killed".into() })
    }

    /// Time passes until every back-off has run out.
    fn later(&mut self) -> &mut Self {
        self.now = self.now + Duration::from_secs(120);
        self.say(Event::Tick);
        self.log.retain(|l| !l.starts_with("survey"));
        self
    }

    /// Forgets what was said so far.
    fn forget(&mut self) -> &mut Self {
        self.log.clear();
        self
    }

    #[track_caller]
    fn reads(&self, golden: &str) {
        let golden: Vec<&str> = golden.lines().filter(|l| !l.trim().is_empty()).collect();
        let golden: Vec<&str> = golden.into_iter().map(|l| l.strip_prefix("        ").unwrap_or(l)).collect();
        assert_eq!(self.log.join("\n"), golden.join("\n"), "\n--- it reads:\n{}\n", self.log.join("\n"));
    }

    #[track_caller]
    fn serving(&self, engine: EngineId) {
        assert!(self.node.engine(engine).is_serving(), "{engine:?} does not serve: {:#?}", self.log);
    }
}

mod behind;
mod comeback;
mod demand;
mod measured;
mod surplus;
mod turns;

fn refused() -> StepResult {
    StepResult::Called(CallOutcome::Refused { status: 500, message: "no".into() })
}

/// The device shows so much, and does not tell whose it is.
fn out_of_bounds(used: u64) -> StepResult {
    StepResult::OutOfBounds { shown: vec![Shown::only(GPU, used)] }
}

fn is_drain(a: &Action) -> bool {
    matches!(a, Action::Drain { .. })
}

fn is_probe(a: &Action) -> bool {
    matches!(a, Action::Probe { .. })
}

#[test]
fn make_before_break_as_planned() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_to_the_end();
    s.reads(
        "
        #1 switch B: wake B from level1 and probe it; park A: release its KV cache
          B: level1 → moving
          B: POST /wake_up
          B says that it is awake
          B's bytes are back
          probe B
          B: moving → awake
          drain A
          A: awake → moving
          A: POST /sleep?level=0&mode=wait
          A: POST /release_kv_cache_memory
          A says that it sleeps
          A's bytes are down to parked
          A: moving → parked
        #1 done
        ",
    );
    s.serving(B);
}

#[test]
fn a_neighbour_that_died_is_started_again_not_opened() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).dies(A).forget();
    s.answer(refused()).answer(refused()).ok_to_the_end();
    s.reads(
        "
          ✗ call_refused
        ! wake_failed B
          B: POST /wake_up
          ✗ call_refused
          B: POST /collective_rpc sleep level=1
          B says that it sleeps
          B's bytes are down to level1
          B: moving → level1
          A: awake → moving
          stop A's processes
          A's bytes are down to stopped
          A: moving → backoff
          A: backoff → moving
          spawn A
          A is ready
          probe A
          warm A up
          measure A awake
          A: moving → awake
        #1 failed: call_refused
        ",
    );
    s.serving(A);
}

#[test]
fn a_neighbours_death_is_not_taken_for_missing_memory() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(|a| matches!(a, Action::AwaitUsed { .. })).dies(A).forget();
    s.answer(out_of_bounds(8 * GIB));
    s.reads("  probe B");
    s.ok_to_the_end().serving(B);
}

#[test]
fn a_neighbours_death_does_not_pass_for_released_memory() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1, Tier::Level1]);
    s.command(Request::Sleep { engine: A, tier: Some(Tier::Parked), drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::AwaitUsed { .. })).dies(EngineId(2)).forget();
    // A gave nothing back: 33 of its own and 1 of B are there, C's one is gone; 31 would be right, 32 with C's.
    s.answer(StepResult::Reached { used: vec![(GPU, 31 * GIB + GIB / 2)] });
    assert_eq!(s.log.first().map(String::as_str), Some("  ✗ release_incomplete"), "{:#?}", s.log);
    s.ok_to_the_end().serving(A);
}

#[test]
fn what_outlives_a_stop_stays_charged_until_the_device_shows_that_it_holds_nothing() {
    for (used, held) in [(41, 8), (33, 0)] {
        let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
        s.command(Request::Start { engine: B, rehearse: None, awake: false });
        s.ok_until(|a| matches!(a, Action::Ready { .. })).answer(StepResult::NotReady("slow".into()));
        s.answer(StepResult::Stopped { left: 1 });
        let reached = StepResult::Reached { used: vec![(GPU, used * GIB)] };
        s.answer(if held == 0 { reached } else { out_of_bounds(used * GIB) });
        s.ok_to_the_end().serving(A);
        let b = s.node.engine(B);
        assert_eq!((b.held, b.reserved), (held * GIB, 0));
        assert!(matches!(b.condition, Condition::Failed(_)), "{:?}", b.condition);
    }
}

#[test]
fn what_outlived_a_stop_and_goes_later_leaves_a_stopped_engine() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.command(Request::Start { engine: B, rehearse: None, awake: false });
    s.ok_until(|a| matches!(a, Action::Ready { .. })).answer(StepResult::NotReady("slow".into()));
    s.answer(StepResult::Stopped { left: 1 });
    s.answer(out_of_bounds(41 * GIB)).ok_to_the_end();
    s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: 41 * GIB });
    assert!(matches!(s.node.engine(B).condition, Condition::Failed(_)), "its bytes are still there");
    for _ in 0..2 {
        s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: 33 * GIB });
    }
    let b = s.node.engine(B);
    assert_eq!((b.held, b.process, &b.condition), (0, false, &Condition::Settled));
}

#[test]
fn an_engine_that_dies_while_it_is_stopped_stays_stopped() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.command(Request::Stop { engine: A, drain: Drain::default() }).forget();
    s.dies(A).ok_to_the_end().later();
    s.reads(
        "
          ✗ engine_gone
        ! crashed A
          A: awake → moving
          stop A's processes
        late reply
          A's bytes are down to stopped
          A: moving → stopped
        #1 done
        ",
    );
}

#[test]
fn one_engine_in_one_operation_is_one_incident() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_probe).answer(StepResult::ProbeFailed("slow".into()));
    s.ok_until(is_drain).dies(B).ok_to_the_end();
    let incidents: Vec<&String> = s.log.iter().filter(|l| l.starts_with("! ")).collect();
    assert_eq!(incidents, ["! probe_failed B"]);
}

#[test]
fn level_2_is_unsafe_after_two_bad_answers_of_which_the_last_is_wrong_and_not_after_one() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level2]);
    s.switch(B, None).ok_until(is_probe).answer(StepResult::ProbeFailed("slow".into()));
    s.ok_until(is_probe).answer(StepResult::Mismatch("other tokens".into())).ok_to_the_end();
    assert!(s.node.engine(B).level2_unsafe);

    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level2]);
    s.switch(B, None).ok_until(is_probe).answer(StepResult::Mismatch("other tokens".into()));
    s.ok_to_the_end().serving(B);
    assert!(!s.node.engine(B).level2_unsafe, "the second answer was right");
}

#[test]
fn an_engine_that_ends_while_everything_is_stopped_has_not_crashed() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Stopped]);
    s.command(Request::Start { engine: B, rehearse: None, awake: false });
    s.ok_until(|a| matches!(a, Action::Ready { .. }));
    s.say(Event::Close).dies(B).ok_to_the_end().dies(A).ok_to_the_end();
    assert!(s.log.iter().all(|l| !l.starts_with("! ")), "{:?}", s.log);
    assert!(s.log.iter().any(|l| l.ends_with("failed: engine_gone")), "it is told all the same: {:?}", s.log);
}

#[test]
fn an_engine_lost_on_its_way_out_does_not_take_the_device_back() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_drain).dies(A).ok_to_the_end().serving(B);
    s.dies(B).ok_to_the_end();
    s.later().ok_to_the_end().later().ok_to_the_end();
    s.serving(B);
    assert_eq!(s.node.engine(A).tier, Tier::Level1);
}

#[test]
fn who_was_chosen_while_another_was_down_keeps_the_device() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_to_the_end().switch(B, None).ok_to_the_end().serving(B);
    s.dies(B).ok_to_the_end();
    s.later().ok_to_the_end().later().ok_to_the_end();
    s.serving(B);
}

#[test]
fn a_restart_that_is_cancelled_leaves_the_place_to_who_comes_back() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_to_the_end();
    s.command(Request::Restart { engine: B, rehearse: None, drain: Drain::default() });
    s.ok_until(is_drain);
    let id = s.node.operations.first().map(|op| op.id).expect("the restart");
    s.say(Event::Cancel(id)).answer(StepResult::Drained).ok_to_the_end();
    s.later().ok_to_the_end().serving(A);
}

#[test]
fn without_evidence_a_restart_waits_quietly() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_to_the_end();
    s.say(Event::DeviceLost { device: GPU, reason: "gone".into() }).forget().later().later();
    s.reads(
        "
          A: backoff → no_room
        #2 refused: device gpu0 cannot be read (gone); a handoff needs evidence of the release
        ",
    );
    s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used: GIB }).ok_to_the_end().serving(A);
}

#[test]
fn a_wake_puts_nobody_to_sleep() {
    let mut s = Session::new(31, 40, &[Tier::Awake, Tier::Level1]);
    s.node.devices[0].spec.max_awake = 2;
    s.command(Request::Wake(B));
    s.reads(
        "#1 refused: B beside what is awake does not fit on gpu0: 2.0 GiB more would be needed than is free there \
         (reserve kept)",
    );
    s.serving(A);
}

#[test]
fn before_0_17_a_sleep_that_did_nothing_leaves_the_scheduler_paused() {
    let mut s = Session::new(16, 35, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(|a| matches!(a, Action::IsSleeping { .. })).forget();
    s.answer(StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: false })).ok_to_the_end();
    s.reads(
        "
          ✗ not_asleep
        ! sleep_ignored A
          A: POST /resume
          probe A
          A: moving → awake
        #1 failed: not_asleep
        ",
    );
}

#[test]
fn surveys_asked_before_a_handoff_prove_nothing_after_it() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let before = [s.node.engine(A).generation, s.node.engine(B).generation];
    s.switch(B, None).ok_to_the_end().forget();
    for _ in 0..3 {
        for (engine, is_sleeping) in [(A, false), (B, true)] {
            let generation = before[usize::from(engine.0)];
            let sleeping = SleepingAnswer::Says { is_sleeping };
            let survey = Survey { sleeping, running: None, tokens: None, device_bytes: None };
            s.say(Event::Surveyed { engine, generation, survey });
        }
    }
    s.reads("");
}

#[test]
fn what_is_being_restored_cannot_be_cancelled() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).ok_until(is_drain);
    s.answer(StepResult::DrainTimedOut { running: 1, waiting: 0 });
    assert!(
        s.waiting.first().is_some_and(|(_, a)| is_drain(a) && a.engine() == B),
        "B drains on its way back"
    );
    s.say(Event::Cancel(OperationId(1)));
    assert_eq!(s.log.last().map(String::as_str), Some("#1 not cancelled: too_late"));
    s.ok_to_the_end().serving(A);
}

#[test]
fn a_device_that_reads_smaller_in_a_handoff_is_believed_after_it() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.switch(B, None).say(Event::DeviceRead { device: GPU, capacity: 20 * GIB, used: 0 });
    s.ok_to_the_end().say(Event::DeviceRead { device: GPU, capacity: 44 * GIB, used: 37 * GIB });
    assert_eq!(s.node.devices[0].spec.capacity, Some(44 * GIB));
}

#[test]
fn what_cannot_be_frozen_on_its_way_back_is_drained() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level2]);
    s.node.policy.drain = DrainPolicy::Freeze;
    s.switch(B, None).ok_until(|a| matches!(a, Action::Call { engine: A, .. }));
    s.answer(refused()).ok_to_the_end().serving(A);
    assert_eq!((s.node.engine(B).tier, s.node.engine(B).frozen), (Tier::Level2, false));
    assert!(!s.log.iter().any(|l| l.contains("rollback_failed")), "{:#?}", s.log);
}

#[test]
fn a_demotion_that_cannot_be_proven_wakes_nobody() {
    let mut s = Session::new(31, 47, &[Tier::Awake, Tier::Level1, Tier::Parked]);
    s.switch(B, Some(Strategy::WakeFirst)).ok_until(|a| matches!(a, Action::AwaitUsed { .. })).forget();
    s.answer(StepResult::NoEvidence("gone".into())).ok_to_the_end();
    assert!(!s.log.iter().any(|l| l.contains("wake_up")), "{:#?}", s.log);
    s.serving(A);
}

#[test]
fn a_rehearsal_without_evidence_blames_nobody() {
    let mut s = Session::new(31, 45, &[Tier::Stopped]);
    s.command(Request::Start { engine: A, rehearse: Some(true), awake: true });
    while !s.waiting.is_empty() {
        let reads = matches!(s.waiting.first(), Some((_, Action::AwaitUsed { .. })));
        if reads {
            s.answer(StepResult::NoEvidence("gone".into()))
        } else {
            s.ok()
        };
    }
    s.serving(A);
    assert!(!s.node.engine(A).restart_only, "{:#?}", s.log);
}

#[test]
fn a_restart_after_leftovers_leaves_it_running() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.command(Request::Stop { engine: A, drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::Stop { .. })).answer(StepResult::Stopped { left: 1 }).ok_to_the_end();
    s.command(Request::Restart { engine: A, rehearse: None, drain: Drain::default() }).ok_to_the_end();
    s.serving(A);
}

#[test]
fn nothing_is_frozen_into_a_process_that_ends() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    let drain = Drain { policy: Some(DrainPolicy::Freeze), deadline: None };
    s.command(Request::Stop { engine: A, drain });
    s.reads("#1 refused: A is to be stopped; frozen requests do not survive that; drain with wait or abort");
    // As the node's default it is no wish of anybody's: the stop drains.
    s.node.policy.drain = DrainPolicy::Freeze;
    s.command(Request::Stop { engine: A, drain: Drain::default() });
    assert!(s.waiting.first().is_some_and(|(_, a)| is_drain(a)), "{:#?}", s.log);
}

#[test]
fn an_engine_that_dies_on_its_way_to_rest_or_in_its_rehearsal_is_wanted_as_before() {
    // Started to rest at level 1, it passes through awake.
    let mut s = Session::new(31, 45, &[Tier::Stopped, Tier::Stopped]);
    s.command(Request::Start { engine: A, rehearse: None, awake: false });
    s.ok_until(is_drain).dies(A).ok_to_the_end().later().ok_to_the_end();
    assert_eq!(s.node.engine(A).tier, Tier::Level1);
    // Started to serve, it is rehearsed through level 1.
    let mut s = Session::new(31, 45, &[Tier::Stopped, Tier::Stopped]);
    s.command(Request::Start { engine: A, rehearse: Some(true), awake: true });
    while s.node.engine(A).tier != Tier::Level1 || s.log.last().is_some_and(|l| l.contains("measure")) {
        s.ok();
    }
    s.dies(A).ok_to_the_end().later().ok_to_the_end().serving(A);
}

#[test]
fn a_reset_starts_what_waits_for_its_back_off() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_to_the_end().forget();
    s.command(Request::Reset(A)).ok_to_the_end().serving(A);
}

#[test]
fn a_handoff_that_failed_leaves_the_place_to_who_is_due_to_come_back() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.dies(A).ok_to_the_end();
    // B comes awake to be rehearsed and dies of it.
    s.command(Request::Restart { engine: B, rehearse: Some(true), drain: Drain::default() });
    s.switch(B, None);
    s.ok_until(|a| matches!(a, Action::AwaitUsed { engine: B, .. })).ok();
    s.ok_until(|a| matches!(a, Action::AwaitUsed { engine: B, .. })).dies(B).ok_to_the_end();
    s.later().ok_to_the_end().later().ok_to_the_end().serving(A);
}

#[test]
fn a_restart_of_what_a_stop_has_left_asks_whether_one_more_may_be_awake() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.command(Request::Stop { engine: B, drain: Drain::default() });
    s.ok_until(|a| matches!(a, Action::Stop { .. })).answer(StepResult::Stopped { left: 1 }).ok_to_the_end();
    s.forget().command(Request::Restart { engine: B, rehearse: None, drain: Drain::default() });
    s.reads("#2 refused: A is awake on that device and max_awake is 1; use `switch` to hand the device over");
}

#[test]
fn what_could_not_be_measured_stays_unknown() {
    let mut s = Session::new(31, 45, &[Tier::Stopped]);
    s.node.engine_mut(A).footprints = [None; 5];
    s.command(Request::Start { engine: A, rehearse: None, awake: true });
    s.ok_until(|a| matches!(a, Action::Measure { .. }));
    s.answer(StepResult::Measured { used: vec![(GPU, None)], engine: None, host: None }).serving(A);
    let measured = s.node.engine(A).footprints[Tier::Awake as usize];
    assert_eq!(measured, Some(Footprint { device: None, host: None }), "unknown, not 0");
}

#[test]
fn without_a_journal_nothing_is_switched_where_the_operator_wants_it_so() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    s.say(Event::JournalLost(Some("no room left".into())));
    s.switch(B, None);
    s.reads(
        "
        #1 refused: the journal cannot be written (no room left), and nothing is switched without it (`on_failure`); make room for it, or set `on_failure = \"go_on\"`
        ",
    );
    // What died comes back all the same, and what is to end ends.
    s.dies(A).ok_to_the_end().later().ok_to_the_end().serving(A);
    s.command(Request::Stop { engine: B, drain: Drain::default() }).ok_to_the_end();
    assert_eq!(s.node.engine(B).tier, Tier::Stopped);
    s.say(Event::JournalLost(None)).forget();
    s.command(Request::Start { engine: B, rehearse: None, awake: false }).ok_to_the_end();
    assert_eq!(s.node.engine(B).tier, Tier::Level1);
}

/// A stranger took the card between a sleep and a wake, and both engines were ended for it. Each one's bytes may be the
/// other's: they are judged together, once all is gone, or both would wait for ever.
#[test]
fn two_that_wait_for_what_they_left_are_judged_together() {
    let mut s = Session::new(31, 45, &[Tier::Awake, Tier::Level1]);
    for id in [A, B] {
        let e = s.node.engine_mut(id);
        (e.tier, e.condition, e.admission) = (Tier::Stopped, Condition::Failed("left".into()), false);
        (e.process, e.dead, e.held) = (true, true, GIB);
    }
    s.node.engine_mut(A).wanted_awake = true;
    let read = |s: &mut Session, used: u64| {
        s.say(Event::DeviceRead { device: GPU, capacity: 45 * GIB, used });
    };
    for _ in 0..4 {
        read(&mut s, GIB);
        assert!(matches!(s.node.engine(A).condition, Condition::Failed(_)), "one's bytes are still there");
    }
    read(&mut s, 0);
    read(&mut s, 0);
    assert_eq!(s.node.engine(B).condition, Condition::Settled);
    s.later().ok_to_the_end().serving(A);
}
