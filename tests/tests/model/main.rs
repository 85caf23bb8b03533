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
use system::{Act, Config, LATER, NOW, Planted, Setting, Sys};
use world::{Size, vllm};

/// A: big; B: small. In one unit, both as on the reference node.
const BIG: Size = Size { weights: 28, kv: 4, residual: 1 };
const SMALL: Size = Size { weights: 4, kv: 4, residual: 1 };

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
        drain: DrainPolicy::Wait,
        planted: None,
    }
}

#[test]
fn switching_with_room_for_both() {
    holds("two, 0.31, room for both", two(31, 45, Tier::Level1));
}

#[test]
fn switching_with_room_for_one() {
    holds("two, 0.31, room for one", two(31, 35, Tier::Level1));
}
