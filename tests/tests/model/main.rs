//! Exhaustive check of the shipped `step`: every event at every point, against a world that behaves as CONTRACT says.
//!
//! Each setting prints how many states it has and how deep they go. With a planted bug the same check must fail: a
//! checker that finds nothing proves nothing.

mod system;
mod world;

use hotbunk_core::event::{Drain, Request};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::{DrainPolicy, Strategy};
use hotbunk_core::tier::Tier;
use stateright::{Checker, Model, Property};
use std::io::Write as _;
use system::{Act, Config, LATER, NOW, Planted, Setting, Sys, UNIT};
use world::{Size, vllm};

const fn size(weights: u64, kv: u64, residual: u64) -> Size {
    Size { weights: weights * UNIT, kv: kv * UNIT, residual: residual * UNIT }
}

/// A: big; B: small. In one unit, both as on the reference node.
const BIG: Size = size(28, 4, 1);
const SMALL: Size = size(4, 4, 1);

struct Checked(Config);

impl Model for Checked {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        vec![Sys::new(&self.0)]
    }

    fn actions(&self, state: &Sys, actions: &mut Vec<Act>) {
        state.acts(&self.0, actions);
    }

    fn next_state(&self, last: &Sys, act: Act) -> Option<Sys> {
        let now = if act == Act::Tick { LATER } else { NOW };
        Some(last.after(&self.0, &act, now))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("holds", |_, s: &Sys| s.broken.is_none())]
    }
}

/// A counterexample: what happened, and what did not hold then.
struct Found {
    acts: Vec<Act>,
    broken: String,
}

/// Checks a setting to its end, and says how large it was.
fn check(name: &str, config: Config) -> Option<Found> {
    // The core's debug assertion is caught and becomes a finding; its backtrace would only repeat itself.
    std::panic::set_hook(Box::new(|_| {}));
    let checker = Checked(config).checker().threads(2).spawn_bfs().join();
    let _ = std::panic::take_hook();
    let _ = writeln!(
        std::io::stderr(),
        "model {name}: {} states, {} unique, depth {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    let path = checker.discovery("holds")?;
    let broken = path.last_state().broken.clone().unwrap_or_default();
    let acts = path.into_actions();
    let _ = writeln!(std::io::stderr(), "model {name}: found in {} steps: {broken}\n  {acts:?}", acts.len());
    Some(Found { acts, broken })
}

fn holds(name: &str, config: Config) {
    if let Some(found) = check(name, config) {
        panic!("{name}: {} after {:?}", found.broken, found.acts);
    }
}

fn engine(size: Size, minor: u16, at: Tier) -> Setting {
    Setting { devices: vec![0], size, caps: vllm(minor), at, rest: Tier::Level1 }
}

fn switch(to: u16, strategy: Option<Strategy>) -> Request {
    Request::Switch { to: EngineId(to), strategy, leave: None, drain: Drain::default() }
}

/// Two engines on one device, A awake.
fn two(minor: u16, capacity: u64, b: Tier) -> Config {
    Config {
        engines: vec![engine(BIG, minor, Tier::Awake), engine(SMALL, minor, b)],
        devices: vec![(capacity, 1)],
        menu: vec![switch(1, None), switch(0, None)],
        commands: 2,
        faults: 1,
        surveys: false,
        deaths: true,
        cold: false,
        rehearse: false,
        places_are_taken: false,
        drain: DrainPolicy::Wait,
        planted: None,
    }
}

/// Everything that can be asked of an engine.
fn everything(e: u16) -> Vec<Request> {
    let engine = EngineId(e);
    let drain = Drain::default();
    vec![
        Request::Wake(engine),
        Request::Sleep { engine, tier: None, drain },
        Request::Sleep { engine, tier: Some(Tier::Parked), drain },
        Request::Start { engine, rehearse: None, awake: true },
        Request::Stop { engine, drain },
        Request::Restart { engine, rehearse: None, drain },
        Request::Reset(engine),
    ]
}

#[test]
fn two_engines_two_faults() {
    for (minor, capacity, b) in
        [(31, 45, Tier::Level1), (31, 40, Tier::Level1), (20, 35, Tier::Level1), (16, 35, Tier::Stopped)]
    {
        let name = format!("two engines, 0.{minor}, {capacity}, B at {b}");
        holds(&name, Config { faults: 2, commands: 1, ..two(minor, capacity, b) });
    }
}

#[test]
fn two_engines_every_command() {
    for (minor, capacity, b) in
        [(31, 45, Tier::Level1), (31, 40, Tier::Parked), (20, 35, Tier::Level1), (16, 35, Tier::Stopped)]
    {
        let name = format!("every command, 0.{minor}, {capacity}, B at {b}");
        let mut config = two(minor, capacity, b);
        config.menu.extend(everything(0));
        config.menu.extend(everything(1));
        holds(&name, config);
    }
}

#[test]
fn somebody_else_meddles_and_surveys_come_late() {
    for minor in [31, 20] {
        let config = Config { surveys: true, faults: 2, commands: 1, ..two(minor, 45, Tier::Level1) };
        holds(&format!("surveys, 0.{minor}"), Config { deaths: false, ..config });
    }
}

#[test]
fn cold_starts_are_rehearsed() {
    for minor in [31, 16] {
        let mut config = two(minor, 45, Tier::Stopped);
        config.menu = vec![switch(1, None), everything(1).swap_remove(3), everything(0).swap_remove(5)];
        holds(
            &format!("cold, rehearsed, 0.{minor}"),
            Config { cold: true, rehearse: true, deaths: false, commands: 1, ..config },
        );
    }
}

#[test]
fn named_strategies_freezing_and_aborting() {
    for drain in [DrainPolicy::Freeze, DrainPolicy::Abort] {
        let mut config = two(31, 40, Tier::Level1);
        let named = [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park];
        config.menu.extend(named.into_iter().map(|s| switch(1, Some(s))));
        holds(&format!("{}, 0.31", drain.as_str()), Config { drain, ..config });
    }
}

#[test]
fn three_engines_on_one_device() {
    let mut config = two(31, 45, Tier::Level1);
    config.engines.push(engine(size(6, 2, 1), 31, Tier::Parked));
    config.menu = vec![switch(1, None), switch(2, None)];
    holds("three on one device", config);
}

#[test]
fn three_engines_on_two_devices_one_of_them_on_both() {
    let mut config = two(31, 40, Tier::Awake);
    config.devices = vec![(40, 1), (40, 1)];
    config.engines[1].devices = vec![1];
    let both = Setting { devices: vec![0, 1], ..engine(size(10, 4, 1), 31, Tier::Level1) };
    config.engines.push(both);
    config.menu =
        vec![switch(2, None), switch(0, None), everything(1).swap_remove(1), everything(1).swap_remove(4)];
    holds("three on two devices", Config { deaths: false, ..config });
}

/// The checker must find it, or it would not find ours.
fn finds(planted: Planted, config: Config) {
    let name = format!("planted {planted:?}");
    let found = check(&name, Config { planted: Some(planted), ..config });
    assert!(found.is_some(), "{name} was not found");
}

#[test]
fn finds_a_dropped_reservation() {
    finds(Planted::DroppedReservation, two(31, 45, Tier::Level1));
}

#[test]
fn finds_an_action_on_a_stale_generation() {
    // An exit that is reported twice, the second time of a new life.
    finds(Planted::StaleGeneration, Config { faults: 2, commands: 0, ..two(31, 45, Tier::Level1) });
    // A survey that was asked before the handoff.
    let config = two(31, 45, Tier::Level1);
    finds(Planted::StaleGeneration, Config { surveys: true, deaths: false, ..config });
}

#[test]
fn finds_a_skipped_verification() {
    finds(Planted::SkippedVerification, two(31, 40, Tier::Level1));
}

#[test]
fn finds_an_accepted_late_reply() {
    finds(Planted::LateReply, two(31, 40, Tier::Level1));
}
