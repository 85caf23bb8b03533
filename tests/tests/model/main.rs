//! Exhaustive check of the shipped `step`: every event at every point, against a world that behaves as CONTRACT says.
//!
//! Each setting prints how many states it has and how deep they go. With a planted bug the same check must fail: a
//! checker that finds nothing proves nothing.

mod exhaust;
mod operators;
mod planted;
mod system;
mod world;

use exhaust::LATER;
use hotbunk_core::event::{Drain, Request};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::{DrainPolicy, Strategy};
use hotbunk_core::tier::Tier;
use stateright::{Checker, Model, Property};
use std::io::Write as _;
use system::gateway::Gateway;
use system::revised::Revisions;
use system::{Act, Config, How, NOW, Planted, Setting, Sys, UNIT};
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
        let mut sys = Sys::new(&self.0);
        sys.relabel();
        vec![sys]
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

/// What the core said on the way to a counterexample, the first of it.
fn story(config: &Config, acts: &[Act]) -> String {
    let mut sys = Sys::new(config);
    sys.story = Some(Vec::new());
    for act in acts {
        if let (Some(story), false) = (&mut sys.story, matches!(act, Act::Answer(_, How::Truth))) {
            story.push(format!("[{act:?}]"));
        }
        sys = sys.after(config, act, if *act == Act::Tick { LATER } else { NOW });
    }
    let story = sys.story.unwrap_or_default();
    story[..story.len().min(120)].join("\n  ")
}

/// Checks a setting to its end, and says how large it was.
fn check(name: &str, config: Config) -> Option<Found> {
    let checker = Checked(config.clone()).checker().threads(2).spawn_bfs().join();
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
    let story = story(&config, &acts);
    let _ = writeln!(std::io::stderr(), "model {name}: found in {} steps: {broken}\n  {story}", acts.len());
    Some(Found { acts, broken })
}

fn holds(name: &str, config: Config) {
    if let Some(found) = check(name, config) {
        panic!("{name}: {} after {:?}", found.broken, &found.acts[..found.acts.len().min(40)]);
    }
}

fn engine(size: Size, minor: u16, at: Tier) -> Setting {
    let (caps, rest) = (vllm(minor), Tier::Level1);
    Setting { devices: vec![0], size, caps, at, rest, other_kv: size.kv, stranger: None }
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
        crashes: 0,
        surveys: false,
        deaths: true,
        cold: false,
        rehearse: false,
        places_are_taken: false,
        drain: DrainPolicy::Wait,
        gateway: Gateway::default(),
        revisions: Revisions::default(),
        arrivals: false,
        planted: Planted::default(),
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
    for (minor, faults) in [(31, 2), (20, 1)] {
        let config = Config { surveys: true, faults, commands: 1, ..two(minor, 45, Tier::Level1) };
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
            Config { cold: true, rehearse: true, deaths: false, faults: 2, commands: 1, ..config },
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

/// Both asked for by requests, in whatever order; nothing by an operator.
fn asked(capacity: u64, asks: u8) -> Config {
    let config = two(31, capacity, Tier::Level1);
    Config { commands: 0, deaths: false, gateway: Gateway { asks, ..Gateway::default() }, ..config }
}

#[test]
fn requests_decide_who_serves() {
    holds("requests, 45", asked(45, 3));
    holds("requests, 40, frozen", Config { drain: DrainPolicy::Freeze, ..asked(40, 2) });
    let config = asked(40, 2);
    holds("requests and an operator", Config { commands: 1, faults: 0, ..config });
    holds("requests and an agent that is killed", Config { crashes: 1, faults: 0, ..asked(40, 1) });
    let mut config = asked(45, 2);
    config.gateway.pinned = vec![0];
    holds("requests, A pinned", Config { deaths: true, ..config });
}

#[test]
fn what_nobody_uses_falls_and_what_is_paused_rests() {
    let mut config = asked(40, 1);
    config.gateway.ladders = vec![vec![(10, Tier::Parked), (20, Tier::Level2)], vec![(10, Tier::Stopped)]];
    holds("ladders", config);
    let drain = Drain::default();
    let mut config = asked(45, 1);
    config.menu = vec![Request::Pause { tier: None, drain }, Request::Resume];
    holds("maintenance", Config { commands: 2, ..config });
}

/// The checker must find it, or it would not find ours; and say it in words that name what was broken.
fn finds(bug: &str, planted: Planted, config: Config, names: &str) {
    let found = check(&format!("planted {bug}"), Config { planted, ..config });
    let found = found.unwrap_or_else(|| panic!("{bug} was not found"));
    assert!(found.broken.contains(names), "{bug}: {} after {:?}", found.broken, found.acts);
}

#[test]
fn finds_a_dropped_reservation() {
    finds("dropped reservation", planted::dropped_reservation(), two(31, 45, Tier::Level1), "I2");
}

#[test]
fn finds_an_action_on_a_stale_generation() {
    // An exit that is reported twice, the second time of a new life.
    let config = two(31, 45, Tier::Level1);
    finds("stale life", planted::stale_life(), Config { faults: 2, commands: 0, ..config }, "I3");
    // Surveys that were asked before a handoff.
    let config = Config { surveys: true, deaths: false, commands: 1, ..two(31, 45, Tier::Level1) };
    finds("stale generation", planted::stale_generation(), config, "nobody touched");
}

#[test]
fn finds_a_skipped_verification() {
    finds("skipped verification", planted::skipped_verification(), two(31, 40, Tier::Level1), "I1");
}

#[test]
fn finds_a_switch_that_nobody_wants_and_a_request_that_is_forgotten() {
    finds("unwanted switch", planted::deaf_to_hang_ups(), asked(40, 1), "nobody wants");
    finds("forgotten request", planted::deaf_to_requests(), asked(40, 1), "nothing is due");
}

/// A handoff that loses sight of the device after the incoming engine has come to serve leaves both awake.
#[test]
fn finds_one_too_many_awake() {
    let config = Config { deaths: false, faults: 2, ..two(31, 45, Tier::Level1) };
    finds("surplus", planted::blind_to_surplus(), config, "one too many is awake for ever: A, B");
}

#[test]
fn finds_an_accepted_late_reply() {
    finds("accepted late reply", planted::late_reply(), two(31, 40, Tier::Level1), "I3");
}

/// The agent is killed at every point, and everything that can go wrong otherwise goes wrong besides.
fn killed(config: Config) -> Config {
    Config { crashes: 1, ..config }
}

#[test]
fn killed_anywhere_with_two_engines() {
    for (minor, capacity, b, besides) in [
        (31, 45, Tier::Level1, false),
        (31, 40, Tier::Parked, true),
        (20, 35, Tier::Level1, true),
        (16, 35, Tier::Stopped, false),
    ] {
        let name = format!("killed, 0.{minor}, {capacity}, B at {b}");
        let config = killed(Config { commands: 1, ..two(minor, capacity, b) });
        holds(&name, config.clone());
        if !besides {
            continue;
        }
        // With three things gone wrong the one that cannot be put back may be the one that stays.
        let config = Config { faults: 2, places_are_taken: true, ..config };
        holds(&format!("{name}, two faults besides"), config);
    }
}

#[test]
fn killed_anywhere_with_every_command_and_strategy() {
    for (minor, capacity, b) in [(31, 45, Tier::Level2), (20, 35, Tier::Level1), (16, 35, Tier::Stopped)] {
        let mut config = two(minor, capacity, b);
        config.menu.extend(everything(0));
        config.menu.extend(everything(1));
        let named = [Strategy::SleepFirst, Strategy::WakeFirst, Strategy::Park];
        config.menu.extend(named.into_iter().map(|s| switch(1, Some(s))));
        let level2 =
            Request::Sleep { engine: EngineId(0), tier: Some(Tier::Level2), drain: Drain::default() };
        config.menu.push(level2);
        let name = format!("killed, every command, 0.{minor}, {capacity}, B at {b}");
        holds(&name, Config { crashes: 1, commands: 1, faults: 1, ..config.clone() });
        let config = Config { crashes: 2, commands: 1, faults: 0, ..config };
        holds(&format!("{name}, twice"), config);
    }
}

#[test]
fn killed_while_an_engine_starts_and_is_rehearsed() {
    for minor in [31, 16] {
        let mut config = two(minor, 45, Tier::Stopped);
        config.menu = vec![switch(1, None), everything(1).swap_remove(3), everything(0).swap_remove(5)];
        let config = Config { cold: true, rehearse: true, faults: 1, commands: 1, ..config };
        holds(&format!("killed, cold, rehearsed, 0.{minor}"), killed(config));
    }
}

#[test]
fn killed_with_three_engines_on_two_devices() {
    let mut config = two(31, 40, Tier::Awake);
    config.devices = vec![(40, 1), (40, 1)];
    config.engines[1].devices = vec![1];
    let both = Setting { devices: vec![0, 1], ..engine(size(10, 4, 1), 31, Tier::Level1) };
    config.engines.push(both);
    config.menu =
        vec![switch(2, None), switch(0, None), everything(1).swap_remove(1), everything(1).swap_remove(4)];
    holds("killed, three on two devices", killed(Config { commands: 1, ..config.clone() }));
    holds("killed, three on two devices, two commands", killed(Config { faults: 0, ..config.clone() }));
    // Two that share no device, at once, and one beside them.
    config.engines[2] = Setting { devices: vec![1], ..engine(size(6, 2, 1), 31, Tier::Parked) };
    config.menu = vec![switch(2, None), everything(0).swap_remove(1), switch(1, None)];
    holds("killed, two operations at once", killed(Config { faults: 0, ..config }));
}

#[test]
fn finds_what_an_adoption_must_not_do() {
    let config = killed(two(31, 40, Tier::Level1));
    finds("record believed", planted::record_believed(), config.clone(), "");
    finds("reservation forgotten", planted::reservation_forgotten(), killed(two(31, 45, Tier::Level1)), "I2");
    finds("work forgotten", planted::work_forgotten(), config, "operation ended 0 times");
}
