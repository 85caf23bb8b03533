//! The core: one decision of the planner, and how fast events pass through `step`.
//!
//! Budget: a decision for 64 engines on 8 devices within 1 ms.

use criterion::{BatchSize, Criterion, Throughput};
use hotbunk_core::backoff::BackoffPolicy;
use hotbunk_core::call::{Call, CallOutcome, SleepLevel, SleepingAnswer};
use hotbunk_core::capability::{Capabilities, Routes, Version};
use hotbunk_core::effect::{Action, Effect, StepResult};
use hotbunk_core::event::{By, Drain, Event, Request};
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::plan::{Ask, choose};
use hotbunk_core::spec::{
    DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Order, Policy, Strategy, Timeouts,
};
use hotbunk_core::state::{Footprint, Node};
use hotbunk_core::step::step;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::hint::black_box;
use std::time::Duration;

const GIB: u64 = 1 << 30;

/// `devices` cards of 45 GiB with `each` engines of 8 GiB, of which the first is awake, the second parked and the rest
/// at level 1.
fn node(devices: u16, each: u16) -> Node {
    let device = |at: u16| DeviceSpec {
        name: format!("gpu{at}"),
        evidence: true,
        capacity: Some(45 * GIB),
        reserve: GIB,
        slack: GIB / 4,
        max_awake: 1,
    };
    let engine = |at: u16| EngineSpec {
        name: format!("engine{at}"),
        devices: vec![DeviceId(at / each)],
        levels: Levels { parked: true, level1: true, level2: true },
        rest: Tier::Level1,
        autostart: true,
        rehearse: true,
        estimate: Estimate { weights: Some(4 * GIB), kv_cache: Some(4 * GIB), ..Estimate::default() },
        timeouts: Timeouts::default(),
        stop_grace: Duration::from_secs(10),
        backoff: BackoffPolicy::default(),
        turn: hotbunk_core::spec::Turn::default(),
        ladder: Vec::new(),
        recycle: hotbunk_core::creep::Recycle::default(),
    };
    let policy = Policy {
        strategy: Strategy::Auto,
        leave: None,
        drain: DrainPolicy::Wait,
        drain_deadline: Duration::from_secs(30),
        host_budget: Some(4096 * GIB),
        stall_after: Duration::from_secs(60),
    };
    let mut node =
        Node::new((0..devices * each).map(engine).collect(), (0..devices).map(device).collect(), policy, 1);
    for (engine, at) in node.engines.iter_mut().zip(0u16..) {
        engine.tier = match at % each {
            0 => Tier::Awake,
            1 => Tier::Parked,
            _ => Tier::Level1,
        };
        let held = [(Tier::Awake, 8), (Tier::Parked, 4), (Tier::Level1, 1), (Tier::Level2, 1)];
        for (tier, gib) in held {
            let footprint = Footprint { device: Some(gib * GIB), host: Some(6 * GIB) };
            engine.footprints[tier as usize] = Some(footprint);
        }
        engine.held = engine.measured(engine.tier).unwrap_or_default();
        (engine.process, engine.pinned, engine.life, engine.generation) = (true, true, 1, 1);
        engine.admission = engine.tier == Tier::Awake;
        engine.capabilities = Some(Capabilities {
            version: Version::new(0, 31, 0),
            routes: Routes {
                sleep: true,
                collective_rpc: true,
                release_kv_cache: true,
                reset_prefix_cache: true,
                pause: true,
                abort_requests: true,
            },
            workers: 1,
        });
        engine.costs.enter = [None, Some(ms(60)), Some(ms(1300)), Some(ms(60)), None];
        engine.costs.leave = [None, Some(ms(100)), Some(ms(1800)), Some(ms(6000)), None];
    }
    node
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ask(to: u16, strategy: Strategy) -> Ask {
    Ask { to: EngineId(to), strategy, leave: None, drain: DrainPolicy::Wait, spare_pinned: false }
}

fn decisions(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision");
    for (name, node) in [("2 engines, 1 device", node(1, 2)), ("64 engines, 8 devices", node(8, 8))] {
        // The last engine of the last device: the longest way through every list.
        let to = u16::try_from(node.engines.len() - 1).unwrap_or(0);
        assert!(choose(&node, &ask(to, Strategy::Auto)).is_ok_and(|p| p.order == Order::MakeBeforeBreak));
        group.bench_function(name, |b| b.iter(|| choose(black_box(&node), &ask(to, Strategy::Auto))));
    }
    group.finish();
}

/// What the edge answers where everything goes well; `asleep` is what the call before has made of the engine.
fn answer(action: &Action, now: Moment, asleep: &mut bool) -> StepResult {
    match action {
        Action::Drain { .. } => StepResult::Drained,
        Action::Call { call, .. } => {
            *asleep = matches!(call, Call::Sleep { level: SleepLevel::L0 | SleepLevel::L1, .. })
                || matches!(call, Call::ReleaseKvCache);
            StepResult::Called(CallOutcome::Accepted { success: Some(true) })
        }
        Action::IsSleeping { .. } => StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: *asleep }),
        Action::AwaitUsed { bounds, .. } => {
            let used = |b: &hotbunk_core::effect::Bound| b.at_least.or(b.at_most).unwrap_or(0);
            StepResult::Reached { used: bounds.iter().map(|b| (b.device, used(b))).collect() }
        }
        Action::Probe { .. } => StepResult::Token { at: now },
        Action::Measure { .. } => StepResult::Measured { used: Vec::new(), engine: None, host: None },
        Action::Spawn { .. }
        | Action::Ready { .. }
        | Action::WarmUp { .. }
        | Action::Stop { .. }
        | Action::Hold { .. }
        | Action::Keep { .. }
        | Action::LetGo { .. } => StepResult::Gone("a handoff does not do that".into()),
    }
}

/// A whole handoff with an edge that answers at once: how many events it took.
fn handoff(node: &mut Node, to: EngineId) -> u64 {
    let mut now = Moment(1_000_000_000);
    let id = node.number();
    let drain = Drain::default();
    let request = Request::Switch { to, strategy: Some(Strategy::SleepFirst), leave: None, drain };
    let mut effects = step(node, Event::Command { id, request, by: By::Operator }, now);
    let (mut events, mut asleep) = (1, false);
    loop {
        let run = effects.iter().find_map(|e| match e {
            Effect::Run { ticket, action } => Some((*ticket, answer(action, now, &mut asleep))),
            _ => None,
        });
        let Some((ticket, result)) = run else { return events };
        now = now + ms(1);
        events += 1;
        effects = step(node, Event::Done { ticket, result }, now);
    }
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for (name, fresh) in [("2 engines, 1 device", node(1, 2)), ("64 engines, 8 devices", node(8, 8))] {
        let to = EngineId(1);
        let mut once = fresh.clone();
        let events = handoff(&mut once, to);
        assert!(once.engine(to).is_serving() && once.operations.is_empty(), "the handoff came to its end");
        group.throughput(Throughput::Elements(events));
        group.bench_function(name, |b| {
            b.iter_batched_ref(|| fresh.clone(), |node| handoff(node, to), BatchSize::SmallInput);
        });
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    decisions(&mut criterion);
    steps(&mut criterion);
    criterion.final_summary();
}
