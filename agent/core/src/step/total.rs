//! Total: no event panics `step`, in no state, however senseless.
//!
//! Events are drawn at random, with ids within the node's range (that is the shell's contract: engine and device ids
//! come from this node's configuration), everything else as it comes: replies that fit no action, huge numbers, stale
//! and future lives. In debug builds `step` checks the invariants after every event, so they are held here too.

use super::step;
use crate::adopt::{Adopted, Adoption, Found, Process};
use crate::call::{CallOutcome, SleepingAnswer};
use crate::capability::{Capabilities, Routes, Version};
use crate::demand::{self, Demand};
use crate::effect::{Shown, StepResult, TakenIn, Ticket};
use crate::event::{By, Drain, Event, Request, Survey, Use};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::invariants;
use crate::revise::{Change, DeviceSettings, Revised, Revision};
use crate::spec::{
    DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Policy, Rung, Strategy, Timeouts, Turn,
};
use crate::state::Node;
use crate::tier::Tier;
use crate::time::Moment;
use proptest::prelude::*;
use std::time::Duration;

const ENGINES: u16 = 3;
const DEVICES: u16 = 2;

fn node(evidence: bool, known: bool, max_awake: u16, drain: DrainPolicy) -> Node {
    let engine = |at: u16| EngineSpec {
        name: format!("E{at}"),
        devices: [vec![DeviceId(0)], vec![DeviceId(1)], vec![DeviceId(0), DeviceId(1)]][usize::from(at)]
            .clone(),
        levels: Levels { parked: true, level1: true, level2: true },
        rest: [Tier::Level1, Tier::Parked, Tier::Stopped][usize::from(at)],
        autostart: true,
        rehearse: at == 0,
        estimate: Estimate { weights: Some(20), kv_cache: Some(5), residual: 2, ..Estimate::default() },
        timeouts: Timeouts::default(),
        stop_grace: Duration::from_secs(5),
        backoff: crate::backoff::BackoffPolicy::default(),
        turn: Turn { pinned: at == 1, max_wait: Duration::from_secs(20), ..Turn::default() },
        ladder: vec![
            Rung { after: Duration::from_secs(30), tier: Tier::Parked },
            Rung { after: Duration::from_secs(90), tier: Tier::Level2 },
            Rung { after: Duration::from_secs(200), tier: Tier::Stopped },
        ],
        recycle: crate::creep::Recycle { creep: Some(1), sleeps: Some(2) },
    };
    let device = |at: u16| DeviceSpec {
        name: format!("gpu{at}"),
        evidence,
        capacity: (known && evidence).then_some(60),
        reserve: 5,
        slack: 1,
        max_awake,
    };
    let policy = Policy {
        strategy: Strategy::Auto,
        leave: None,
        drain,
        drain_deadline: Duration::from_secs(30),
        host_budget: Some(100),
        stall_after: Duration::from_secs(60),
    };
    Node::new((0..ENGINES).map(engine).collect(), (0..DEVICES).map(device).collect(), policy, 1)
}

fn engine() -> impl Strategy_<Value = EngineId> {
    (0..ENGINES).prop_map(EngineId)
}

fn device() -> impl Strategy_<Value = DeviceId> {
    (0..DEVICES).prop_map(DeviceId)
}

fn bytes() -> impl Strategy_<Value = u64> {
    prop_oneof![0u64..100, Just(u64::MAX), Just(0)]
}

fn tier() -> impl Strategy_<Value = Tier> {
    (0usize..5).prop_map(|at| Tier::ALL[at])
}

fn drain() -> impl Strategy_<Value = Drain> {
    let policy = prop_oneof![
        Just(None),
        Just(Some(DrainPolicy::Wait)),
        Just(Some(DrainPolicy::Freeze)),
        Just(Some(DrainPolicy::Abort)),
    ];
    policy.prop_map(|policy| Drain { policy, deadline: None })
}

fn request() -> impl Strategy_<Value = Request> {
    let strategies = prop_oneof![
        Just(None),
        Just(Some(Strategy::SleepFirst)),
        Just(Some(Strategy::WakeFirst)),
        Just(Some(Strategy::Park)),
    ];
    prop_oneof![
        4 => (engine(), strategies, prop::option::of(tier()), drain())
            .prop_map(|(to, strategy, leave, drain)| Request::Switch { to, strategy, leave, drain }),
        1 => engine().prop_map(Request::Wake),
        1 => (engine(), prop::option::of(tier()), drain())
            .prop_map(|(engine, tier, drain)| Request::Sleep { engine, tier, drain }),
        2 => (engine(), prop::option::of(any::<bool>()), any::<bool>())
            .prop_map(|(engine, rehearse, awake)| Request::Start { engine, rehearse, awake }),
        1 => (engine(), drain()).prop_map(|(engine, drain)| Request::Stop { engine, drain }),
        1 => (engine(), drain())
            .prop_map(|(engine, drain)| Request::Restart { engine, rehearse: None, drain }),
        1 => engine().prop_map(Request::Reset),
        1 => engine().prop_map(Request::Bury),
        1 => engine().prop_map(Request::Repair),
        2 => engine().prop_map(Request::Adopt),
        1 => (prop::option::of(tier()), drain()).prop_map(|(tier, drain)| Request::Pause { tier, drain }),
        1 => Just(Request::Resume),
    ]
}

fn sleeping() -> impl Strategy_<Value = SleepingAnswer> {
    prop_oneof![
        4 => any::<bool>().prop_map(|is_sleeping| SleepingAnswer::Says { is_sleeping }),
        1 => Just(SleepingAnswer::Refused { status: 500, message: String::new() }),
        1 => Just(SleepingAnswer::Unknown),
        1 => Just(SleepingAnswer::Gone { message: String::new() }),
    ]
}

fn result() -> impl Strategy_<Value = StepResult> {
    let caps = (0u16..40, any::<bool>(), 0u16..3).prop_map(|(minor, on, workers)| Capabilities {
        version: Version::new(0, minor, 0),
        routes: Routes {
            sleep: on,
            collective_rpc: on,
            release_kv_cache: on && minor >= 31,
            reset_prefix_cache: on,
            pause: on,
            abort_requests: on,
        },
        workers,
    });
    let told = || prop::option::of(bytes());
    let shown = || {
        let all = (device(), bytes(), told(), told());
        all.prop_map(|(device, used, own, strangers)| Shown { device, used, own, strangers })
    };
    let used = || prop::collection::vec((device(), bytes()), 0..3);
    let maybe_used = || prop::collection::vec((device(), prop::option::of(bytes())), 0..3);
    let taken = (caps.clone(), maybe_used(), prop::option::of(bytes()), any::<bool>()).prop_map(
        |(capabilities, used, bytes, as_configured)| {
            let (host, remarks) = (bytes, Vec::new());
            StepResult::TakenIn(Box::new(TakenIn { capabilities, used, bytes, host, as_configured, remarks }))
        },
    );
    prop_oneof![
        2 => Just(StepResult::Drained),
        1 => Just(StepResult::DrainTimedOut { running: 1, waiting: 1 }),
        1 => Just(StepResult::DrainImpossible(String::new())),
        4 => any::<bool>().prop_map(|s| StepResult::Called(CallOutcome::Accepted { success: Some(s) })),
        1 => Just(StepResult::Called(CallOutcome::Refused { status: 500, message: String::new() })),
        1 => Just(StepResult::Called(CallOutcome::Unknown)),
        4 => sleeping().prop_map(StepResult::Sleeping),
        4 => used().prop_map(|used| StepResult::Reached { used }),
        1 => prop::collection::vec(shown(), 0..3).prop_map(|shown| StepResult::OutOfBounds { shown }),
        1 => Just(StepResult::NoEvidence(String::new())),
        4 => Just(StepResult::Token { at: Moment(5) }),
        1 => Just(StepResult::Mismatch(String::new())),
        1 => Just(StepResult::ProbeFailed(String::new())),
        3 => Just(StepResult::Spawned),
        1 => Just(StepResult::SpawnFailed(String::new())),
        4 => caps.prop_map(StepResult::Ready),
        1 => Just(StepResult::NotReady(String::new())),
        3 => Just(StepResult::Warmed),
        1 => Just(StepResult::WarmUpFailed(String::new())),
        4 => Just(StepResult::Stopped { left: 0 }),
        1 => Just(StepResult::Stopped { left: 2 }),
        2 => Just(StepResult::Held),
        1 => Just(StepResult::NotHeld(String::new())),
        3 => taken,
        1 => Just(StepResult::LetGo),
        1 => Just(StepResult::PortTaken(String::new())),
        3 => (maybe_used(), prop::option::of(bytes()))
            .prop_map(|(used, engine)| StepResult::Measured { used, engine, host: engine }),
        1 => Just(StepResult::Gone(String::new())),
    ]
}

/// Whatever a new agent may find of an engine.
fn found() -> impl Strategy_<Value = Found> {
    let process = prop_oneof![
        1 => Just(Process::None),
        1 => Just(Process::Ended(String::new())),
        4 => Just(Process::Lives),
        1 => Just(Process::Strange(String::new())),
    ];
    let found = (process, sleeping(), prop::option::of(bytes()), any::<bool>());
    found.prop_map(|(process, sleeping, bytes, taken_over)| Found {
        sleeping,
        bytes,
        taken_over,
        ..Found::only(process)
    })
}

/// A new agent on the same configuration, with what the old one has kept, or with half of it.
fn successor(node: &mut Node, adoption: &mut Adoption, forgets: bool) {
    let kept = crate::kept::keep(node);
    let specs = node.engines.iter().map(|e| e.spec.clone()).collect();
    let devices = node.devices.iter().map(|d| d.spec.clone()).collect();
    *node = Node::new(specs, devices, node.policy, node.next_operation);
    for (at, engine) in node.ids().enumerate().skip(adoption.engines.len()) {
        let found = adoption.engines[at % usize::from(ENGINES)].found.clone();
        adoption.engines.push(Adopted { engine, kept: None, found });
    }
    for (a, kept) in adoption.engines.iter_mut().zip(kept.engines) {
        a.kept = Some(kept);
    }
    adoption.devices = (0..DEVICES).map(DeviceId).zip(kept.devices).collect();
    adoption.work = (!forgets).then_some(kept.work);
}

/// Another configuration: of all that may change, something of everything.
fn revision() -> impl Strategy_<Value = Revision> {
    let revised = || {
        (any::<bool>(), 0u16..ENGINES, tier(), any::<bool>()).prop_map(|(process, like, rest, pinned)| {
            let mut spec = node(true, true, 1, DrainPolicy::Wait).engines[usize::from(like)].spec.clone();
            (spec.rest, spec.turn.pinned) = (rest, pinned);
            Revised { spec, process, footprints: [None; 5] }
        })
    };
    let change = prop_oneof![
        1 => Just(Change::Same),
        2 => revised().prop_map(|revised| Change::Settings(Box::new(revised))),
        1 => Just(Change::Retired),
    ];
    let engines = prop::collection::vec(change, 0..usize::from(ENGINES) + 2);
    let devices = prop::collection::vec((0u64..80, 0u64..5, 0u16..3), 0..3);
    (engines, prop::collection::vec(revised(), 0..2), devices).prop_map(|(engines, added, devices)| {
        Revision {
            engines,
            added,
            devices: devices
                .into_iter()
                .map(|(reserve, slack, max_awake)| DeviceSettings { reserve, slack, max_awake })
                .collect(),
            policy: node(true, true, 1, DrainPolicy::Wait).policy,
        }
    })
}

/// An event; a reply goes to the ticket so far back from the next one.
fn event() -> impl Strategy_<Value = (Event, u64)> {
    let at = 0u64..100;
    let by = prop_oneof![4 => Just(By::Operator), 1 => Just(By::Cycle), 1 => Just(By::Agent), 1 => Just(By::Gateway)];
    let numbers = || prop_oneof![4 => 0u64..6, 1 => Just(u64::MAX)];
    let survey =
        (sleeping(), prop::option::of(0u64..3), prop::option::of(0u64..3), prop::option::of(bytes()))
            .prop_map(|(sleeping, running, tokens, device_bytes)| Survey {
                sleeping,
                running,
                tokens,
                device_bytes,
            });
    let event = prop_oneof![
        24 => (1u64..4, result())
            .prop_map(|(back, result)| Event::Done { ticket: Ticket(back), result }),
        6 => (request(), by).prop_map(|(request, by)| Event::Command { id: OperationId(0), request, by }),
        1 => (0u64..30).prop_map(|id| Event::Cancel(OperationId(id))),
        2 => (engine(), numbers())
            .prop_map(|(engine, life)| Event::Exited { engine, life, reason: String::new() }),
        2 => (engine(), numbers(), survey)
            .prop_map(|(engine, generation, survey)| Event::Surveyed { engine, generation, survey }),
        2 => (device(), prop_oneof![4 => Just(60u64), 1 => bytes()], bytes())
            .prop_map(|(device, capacity, used)| Event::DeviceRead { device, capacity, used }),
        1 => device().prop_map(|device| Event::DeviceLost { device, reason: String::new() }),
        4 => Just(Event::Tick),
        5 => (engine(), 0u32..3, prop::option::of(0u64..2_000)).prop_map(|(engine, held, oldest)| {
            let oldest = oldest.map(|secs| Moment(1) + Duration::from_secs(secs));
            Event::Demand { engine, demand: Demand { held, oldest } }
        }),
        3 => (engine(), 0u32..2, prop_oneof![(0u64..2_000).prop_map(|s| Moment(s * 1_000_000_000)), Just(Moment(u64::MAX))])
            .prop_map(|(engine, in_flight, at)| Event::Uses(vec![Use { engine, in_flight, at }])),
        2 => prop::collection::vec((engine(), 0u32..3, any::<u64>().prop_map(Moment)), 0..3).prop_map(|uses| {
            let one = |(engine, in_flight, at)| Use { engine, in_flight, at };
            Event::Uses(uses.into_iter().map(one).collect())
        }),
        1 => prop::option::of(engine()).prop_map(|awake| Event::Boot { awake: awake.into_iter().collect() }),
        1 => any::<bool>().prop_map(|runs| Event::Cycle { runs }),
        1 => (engine(), any::<bool>()).prop_map(|(engine, taken)| {
            Event::Port { engine, taken: taken.then(String::new) }
        }),
        2 => revision().prop_map(|revision| Event::Revised(Box::new(revision))),
        2 => prop::collection::vec(found(), usize::from(ENGINES)).prop_map(|found| {
            let one = |(at, found)| Adopted { engine: EngineId(at), kept: None, found };
            let engines = (0..).zip(found).map(one).collect();
            Event::Adopted(Box::new(Adoption { engines, ..Adoption::default() }))
        }),
    ];
    (event, at)
}

use proptest::strategy::Strategy as Strategy_;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_event_panics(
        evidence in prop::bool::weighted(0.8), known in prop::bool::weighted(0.8), max_awake in 0u16..3,
        freeze in any::<bool>(), events in prop::collection::vec(event(), 1..250), close_at in 0usize..500,
    ) {
        let drain = if freeze { DrainPolicy::Freeze } else { DrainPolicy::Wait };
        let mut node = node(evidence, known, max_awake, drain);
        let mut now = Moment(1);
        for (at, (mut event, passed)) in events.into_iter().enumerate() {
            match &mut event {
                Event::Done { ticket, .. } => *ticket = Ticket(node.next_ticket.wrapping_sub(ticket.0)),
                Event::Command { id, .. } => *id = node.number(),
                // Names are unique.
                Event::Revised(revision) => {
                    for (at, added) in revision.added.iter_mut().enumerate() {
                        added.spec.name = format!("E{}", node.engines.len() + at);
                    }
                }
                _ => {}
            }
            now = now + Duration::from_secs(passed);
            let mut before: Vec<OperationId> = node.operations.iter().map(|op| op.id).collect();
            if let Event::Adopted(adoption) = &mut event {
                let forgets = passed % 4 == 0;
                successor(&mut node, adoption, forgets);
                if forgets {
                    before.clear();
                }
            }
            let effects = step(&mut node, event, now);
            // An operation that is no longer there has said how it ended.
            for id in before {
                let ended = effects.iter().any(|e| matches!(
                    e, crate::effect::Effect::Note(crate::effect::Note::Ended { id: i, .. }) if *i == id
                ));
                prop_assert_eq!(ended, !node.operations.iter().any(|op| op.id == id));
            }
            prop_assert_eq!(invariants::check(&node), Ok(()));
            // What has just been done is not wanted again at once, and every question has an answer.
            prop_assert!(node.next_deadline(now).is_none_or(|at| at > now));
            for id in node.ids() {
                let _ = demand::eta(&node, id, now);
            }
            if at == close_at {
                step(&mut node, Event::Close, now);
            }
        }
    }
}
