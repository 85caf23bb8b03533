//! Core and world in virtual time: long lives with many faults, where the model check has few and takes all ways.
//!
//! A seed decides the node (engines, devices, versions, room), what is asked, how long everything takes and what goes
//! wrong. Everything that the model check holds after a step is held here as well; at the end nothing goes wrong any
//! more and the node must come to rest. Seeds that once failed stay in [`KNOWN`]. `HOTBUNK_SIMULATION_SEEDS=N` runs N new
//! seeds instead of a few, of each kind; `HOTBUNK_SIMULATION_FIRST=S` begins with seed S, to run a failed one again.

#[path = "../model/system/mod.rs"]
mod system;
#[path = "../model/world.rs"]
mod world;

use hotbunk_core::demand::{self, Eta};
use hotbunk_core::effect::{Action, Ticket};
use hotbunk_core::event::{Drain, Request};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::{DrainPolicy, Strategy};
use hotbunk_core::state::{Condition, Engine};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};
use system::gateway::{Does, Gateway};
use system::revised::{Edit, Revisions};
use system::{Act, Config, How, NOW, Planted, Setting, Sys, UNIT};
use world::{Size, vllm};

/// Seeds that are always run: the first few, and every one that found something.
const KNOWN: &[u64] = &[1, 2, 3, 4, 5, 6, 7, 8, 1_054, 1_177, 5_982, 7_941, 101_722, 201_855];
/// The same of lives in which operators change the file and start servers of their own.
const OPERATED: &[u64] = &[
    1,
    2,
    3,
    4,
    100_136,
    100_404,
    100_622,
    101_082,
    101_227,
    101_866,
    101_916,
    101_984,
    102_085,
    102_513,
    102_585,
    1_796_080_524_002_175,
];
/// Events of one life before it may come to rest.
const EVENTS: u32 = 400;
/// Events within which it must then have come to rest.
const REST: u32 = 3000;

/// A small generator of its own: the same seed gives the same life for ever (xorshift64*, Vigna 2016).
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        let at = self.roll(all.len() as u64);
        all[usize::try_from(at).unwrap_or(0)]
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.roll(most - least + 1))
    }
}

fn node(dice: &mut Dice) -> Config {
    let devices = 1 + dice.roll(2);
    let count = 2 + dice.roll(2);
    let minor = dice.of(&[31, 31, 32, 24, 20, 16, 11]);
    let mut left: Vec<u64> = Vec::new();
    let devices: Vec<(u64, u16)> = (0..devices)
        .map(|_| {
            let capacity = 30 + dice.roll(30);
            left.push((capacity - 1) * UNIT);
            (capacity, if dice.one_in(3) { 2 } else { 1 })
        })
        .collect();
    let mut awake = vec![0u16; devices.len()];
    let engines = (0..count)
        .map(|_| {
            let on: Vec<u16> = match dice.roll(devices.len() as u64 + 1) {
                0 => vec![0],
                1 => vec![u16::try_from(devices.len() - 1).unwrap_or(0)],
                _ => vec![0, 1],
            };
            let weights = (2 + dice.roll(24)) / 2 * 2;
            let size = Size { weights: weights * UNIT, kv: (1 + dice.roll(6)) * UNIT, residual: UNIT };
            let mut caps = vllm(minor);
            caps.workers = if dice.one_in(5) { 2 } else { 1 };
            let tiers: &[Tier] = if caps.can_park() {
                &[Tier::Awake, Tier::Parked, Tier::Level1, Tier::Stopped]
            } else {
                &[Tier::Awake, Tier::Level1, Tier::Stopped]
            };
            let holds = |tier| match tier {
                Tier::Awake => size.weights + size.kv + size.residual,
                Tier::Parked => size.weights + size.residual,
                Tier::Stopped => 0,
                _ => size.residual,
            };
            let fits = |tier: &Tier| {
                on.iter().all(|d| {
                    let d = usize::from(*d);
                    let may = *tier != Tier::Awake || awake[d] < devices[d].1;
                    may && holds(*tier) <= left[d]
                })
            };
            let possible: Vec<Tier> = tiers.iter().copied().filter(fits).collect();
            let at = dice.of(&possible);
            for d in &on {
                left[usize::from(*d)] -= holds(at);
                awake[usize::from(*d)] += u16::from(at == Tier::Awake);
            }
            let rest = dice.of(&[Tier::Level1, Tier::Level1, Tier::Stopped]);
            Setting { devices: on, size, caps, at, rest, other_kv: size.kv, stranger: None }
        })
        .collect::<Vec<_>>();
    let mut menu = Vec::new();
    for at in 0..count {
        let engine = EngineId(u16::try_from(at).unwrap_or(0));
        let drain = Drain::default();
        let strategies =
            [None, None, None, Some(Strategy::SleepFirst), Some(Strategy::WakeFirst), Some(Strategy::Park)];
        menu.extend(strategies.map(|strategy| Request::Switch { to: engine, strategy, leave: None, drain }));
        menu.extend([
            Request::Wake(engine),
            Request::Sleep { engine, tier: None, drain },
            Request::Sleep { engine, tier: Some(Tier::Parked), drain },
            Request::Sleep { engine, tier: Some(Tier::Level2), drain },
            Request::Start { engine, rehearse: None, awake: true },
            Request::Stop { engine, drain },
            Request::Restart { engine, rehearse: None, drain },
            Request::Reset(engine),
        ]);
    }
    let drain = Drain::default();
    let tier = dice.of(&[None, None, Some(Tier::Parked), Some(Tier::Stopped)]);
    menu.extend([Request::Pause { tier, drain }, Request::Resume, Request::Resume]);
    let gateway = Gateway {
        asks: u8::MAX,
        ladders: (0..count).map(|_| if dice.one_in(3) { ladder(dice) } else { Vec::new() }).collect(),
        pinned: if dice.one_in(4) { vec![0] } else { Vec::new() },
    };
    Config {
        engines,
        devices,
        menu,
        commands: u8::MAX,
        faults: u8::MAX,
        crashes: u8::MAX,
        surveys: true,
        deaths: !dice.one_in(6),
        cold: dice.one_in(2),
        rehearse: dice.one_in(2),
        places_are_taken: true,
        drain: dice.of(&[DrainPolicy::Wait, DrainPolicy::Wait, DrainPolicy::Freeze, DrainPolicy::Abort]),
        gateway,
        revisions: Revisions::default(),
        arrivals: false,
        planted: Planted::default(),
    }
}

/// The same node with operators who change its file and start servers of their own.
fn with_operators(dice: &mut Dice, mut config: Config) -> Config {
    let count = u16::try_from(config.engines.len()).unwrap_or(0);
    for setting in &mut config.engines {
        setting.other_kv = (1 + dice.roll(6)) * UNIT;
        setting.other_kv += if setting.other_kv == setting.size.kv { UNIT } else { 0 };
    }
    let mut menu: Vec<Edit> = (0..count)
        .flat_map(|at| [Edit::Process(at), Edit::Process(at), Edit::Own(at), Edit::Listed(at)])
        .collect();
    menu.extend((0..config.devices.len()).map(|at| Edit::Awake(u16::try_from(at).unwrap_or(0))));
    let later = usize::from(dice.one_in(3) && config.engines.last().is_some_and(|e| e.at == Tier::Stopped));
    config.revisions = Revisions { menu, edits: u8::MAX, later };
    let adopt = |at| Request::Adopt(EngineId(at));
    config.menu.extend((0..count).flat_map(|at| [adopt(at), adopt(at)]));
    config.arrivals = true;
    config
}

/// Rungs of an idle ladder, and the seconds after which they are due.
fn ladder(dice: &mut Dice) -> Vec<(u64, Tier)> {
    let mut after = 0;
    let mut rungs = Vec::new();
    for tier in [Tier::Parked, Tier::Level1, Tier::Level2, Tier::Stopped] {
        after += 5 + dice.roll(120);
        if !dice.one_in(3) {
            rungs.push((after, tier));
        }
    }
    rungs
}

/// What is due when.
struct Life {
    dice: Dice,
    config: Config,
    sys: Sys,
    now: Moment,
    replies: BTreeMap<Ticket, (Moment, How)>,
    exits: BTreeMap<(EngineId, u64), Moment>,
    surveys: BTreeMap<(EngineId, u64, bool), Moment>,
    tick: Moment,
    command: Moment,
    trouble: Moment,
    /// When the gateway does something next.
    gateway: Moment,
    /// When an operator does something next that is no command.
    operator: Moment,
    /// How often maintenance may still be ended.
    resumes: u8,
    quiet: bool,
    /// How long nobody watches after the agent has been killed.
    away: Duration,
    faults: u32,
    acts: Vec<(Moment, Act)>,
}

impl Life {
    fn new(seed: u64, operators: bool) -> Self {
        let mut dice = Dice::new(seed);
        let config = node(&mut dice);
        let config = if operators { with_operators(&mut dice, config) } else { config };
        let mut sys = Sys::new(&config);
        sys.story = Some(Vec::new());
        Life {
            dice,
            config,
            sys,
            now: NOW,
            replies: BTreeMap::new(),
            exits: BTreeMap::new(),
            surveys: BTreeMap::new(),
            tick: NOW + Duration::from_secs(1),
            command: NOW,
            trouble: NOW + Duration::from_secs(5),
            gateway: NOW + Duration::from_secs(1),
            operator: NOW + Duration::from_secs(3),
            resumes: 5,
            quiet: false,
            away: Duration::ZERO,
            faults: 0,
            acts: Vec::new(),
        }
    }

    /// How long it takes, and how it ends.
    fn plan(&mut self) {
        for at in 0..self.sys.pending.len() {
            let pending = self.sys.pending[at].clone();
            if self.replies.contains_key(&pending.ticket) {
                continue;
            }
            let endings = self.sys.endings(&pending);
            let fails = !self.quiet && !endings.is_empty() && !pending.orphaned && self.dice.one_in(25);
            let how = if fails { self.dice.of(endings) } else { How::Truth };
            let takes = match pending.action {
                Action::Ready { .. } => self.dice.millis(5_000, 60_000),
                Action::Drain { .. } => self.dice.millis(1, 30_000),
                Action::Call { .. } | Action::Stop { .. } => self.dice.millis(5, 3_000),
                _ => self.dice.millis(1, 200),
            };
            self.replies.insert(pending.ticket, (self.now + takes, how));
        }
        for exit in self.sys.exits.clone() {
            let takes = self.dice.millis(0, 400);
            self.exits.entry(exit).or_insert(self.now + takes);
        }
        for survey in self.sys.surveys.clone() {
            let takes = self.dice.millis(1, 4_000);
            self.surveys.entry(survey).or_insert(self.now + takes);
        }
    }

    /// What comes next.
    fn next(&mut self) -> Act {
        self.plan();
        // As the shell does it: at every look, and whenever the core has asked for it.
        let asked = self.sys.node.next_deadline(self.now);
        let mut next = (asked.map_or(self.tick, |at| at.min(self.tick)), Act::Tick);
        let mut earlier = |at: Moment, act: Act| {
            if at < next.0 {
                next = (at, act);
            }
        };
        for (at, p) in self.sys.pending.iter().enumerate() {
            if let Some((due, how)) = self.replies.get(&p.ticket) {
                earlier(*due, Act::Answer(at, if p.orphaned { How::Truth } else { *how }));
            }
        }
        for (at, exit) in self.sys.exits.iter().enumerate() {
            earlier(self.exits[exit], Act::Exit(at, false));
        }
        for (at, survey) in self.sys.surveys.iter().enumerate() {
            earlier(self.surveys[survey], Act::Survey(at, false));
        }
        if !self.quiet {
            let which = usize::try_from(self.dice.roll(self.config.menu.len() as u64)).unwrap_or(0);
            if self.sys.can_be_asked(&self.config.menu[which]) {
                earlier(self.command, Act::Command(which));
            }
            let victim = u16::try_from(self.dice.roll(self.sys.procs.len() as u64)).unwrap_or(0);
            let trouble = match self.dice.roll(8) {
                0 if !self.sys.node.operations.is_empty() => Act::Cancel(0),
                2 | 3 => {
                    let ways = self.sys.ways_to_be_killed();
                    let away = if self.dice.one_in(4) { 60_000 } else { 100 };
                    self.away = self.dice.millis(1, away);
                    Act::Crash(self.dice.of(&ways))
                }
                1 if self
                    .sys
                    .node
                    .operation_on(&self.sys.node.engine(EngineId(victim)).spec.devices)
                    .is_none() =>
                {
                    Act::Meddle(victim)
                }
                _ => Act::Die(victim),
            };
            if self.config.deaths || !matches!(trouble, Act::Die(_)) {
                earlier(self.trouble, trouble);
            }
        }
        if let (false, Some(act)) = (self.quiet, self.operates()) {
            earlier(self.operator, act);
        }
        // What waits for an engine that serves is let through at once; other requests come and go.
        let may_do = self.sys.may_do();
        let through = may_do
            .iter()
            .find(|(at, does)| *does == Does::LetGo && self.sys.node.engine(EngineId(*at)).is_serving())
            .copied();
        let may_do: Vec<(u16, Does)> = match through {
            Some(through) => vec![through],
            None => may_do.into_iter().filter(|(_, does)| !self.quiet || *does == Does::End).collect(),
        };
        if !may_do.is_empty() {
            let (at, does) = self.dice.of(&may_do);
            let due = if through.is_some() { self.now } else { self.gateway };
            earlier(due, Act::Gateway(at, does));
        }
        if self.quiet && self.resumes > 0 && self.sys.node.is_paused() && self.sys.pending.is_empty() {
            let resume = self.config.menu.iter().position(|r| *r == Request::Resume).unwrap_or(0);
            earlier(self.command, Act::Command(resume));
        }
        let (at, act) = next;
        self.now = at.max(self.now);
        match &act {
            Act::Tick => self.tick = self.now + Duration::from_secs(1),
            Act::Command(_) => {
                self.resumes -= u8::from(self.quiet);
                self.command = self.now + self.dice.millis(10, 40_000);
            }
            Act::Gateway(..) => {
                let sometimes = if self.dice.one_in(4) { 60_000 } else { 2_000 };
                self.gateway = self.now + self.dice.millis(1, sometimes);
            }
            Act::Crash(_) => {
                self.faults += 1;
                self.trouble = self.now + self.dice.millis(1_000, 120_000);
                // Nobody listens any more; who takes over asks anew.
                self.replies.clear();
                self.exits.clear();
                self.surveys.clear();
            }
            Act::Revise(_) | Act::Arrive(_) | Act::Quiet => {
                self.operator = self.now + self.dice.millis(10, 60_000);
            }
            Act::Die(_) | Act::Meddle(_) | Act::Cancel(_) => {
                self.faults += 1;
                self.trouble = self.now + self.dice.millis(1_000, 120_000);
            }
            Act::Answer(_, how) if *how != How::Truth => self.faults += 1,
            Act::Answer(..) => {}
            Act::Exit(at, _) => {
                self.exits.remove(&self.sys.exits[*at]);
            }
            Act::Survey(at, _) => {
                self.surveys.remove(&self.sys.surveys[*at]);
            }
        }
        act
    }

    /// Another file, or a server on the port of an engine that is down.
    fn operates(&mut self) -> Option<Act> {
        let edits = self.config.revisions.menu.len();
        if edits == 0 {
            return None;
        }
        if self.sys.may_be_quiet() && self.dice.one_in(4) {
            return Some(Act::Quiet);
        }
        let may = |at: &usize| self.sys.may_arrive(&self.config, *at);
        let ports: Vec<usize> = (0..self.sys.procs.len()).filter(may).collect();
        if !ports.is_empty() && self.dice.one_in(3) {
            return u16::try_from(self.dice.of(&ports)).ok().map(Act::Arrive);
        }
        usize::try_from(self.dice.roll(edits as u64)).ok().map(Act::Revise)
    }

    fn go(&mut self) -> Result<(), String> {
        let act = self.next();
        self.acts.push((self.now, act.clone()));
        if let (Some(story), false) =
            (&mut self.sys.story, matches!(act, Act::Tick | Act::Answer(_, How::Truth)))
        {
            story.push(format!("[{:.1} s] {act:?}", self.now.since(NOW).as_secs_f64()));
        }
        (self.sys.commands, self.sys.faults, self.sys.ticks) = (u8::MAX, u8::MAX, u8::MAX);
        (self.sys.asks, self.sys.edits) = (u8::MAX, u8::MAX);
        if let Act::Crash(_) = act {
            self.now = self.now + self.away;
        }
        self.sys.happen(&self.config, &act, self.now);
        self.sys.at_rest(&self.config, self.now);
        self.sys.broken.clone().map_or(Ok(()), Err)
    }

    fn rests(&self) -> bool {
        let paused = self.sys.node.is_paused();
        if paused && self.resumes > 0 {
            return false;
        }
        let backoff =
            |e: &hotbunk_core::state::Engine| matches!(e.condition, Condition::Backoff(_)) && !paused;
        let waits = |id: EngineId| {
            let e = self.sys.node.engine(id);
            let eta = demand::eta(&self.sys.node, id, self.now);
            e.demand.held > 0 && !matches!(eta, Eta::Never(_))
        };
        if self.sys.node.ids().any(waits) || self.sys.may_be_quiet() {
            return false;
        }
        self.sys.pending.is_empty() && self.sys.exits.is_empty() && !self.sys.node.engines.iter().any(backoff)
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..EVENTS {
            self.go()?;
        }
        self.quiet = true;
        for _ in 0..REST {
            self.go()?;
            if self.rests() {
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }
}

/// An engine as it stands.
fn word(e: &Engine) -> String {
    let flags = [
        ("retired", e.retired),
        ("frozen", e.frozen),
        ("process", e.process),
        ("held for", e.demand.held > 0),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(_, is)| *is).map(|(word, _)| *word).collect();
    let waits = if e.revised.is_some() { ", newer settings wait" } else { "" };
    format!(
        "{}: {}, {:?}, {} in flight, {}{waits}",
        e.spec.name,
        e.tier,
        e.condition,
        e.in_flight,
        flags.join(", ")
    )
}

/// Runs one seed; steps and faults, or what happened before something did not hold.
fn run(seed: u64, operators: bool) -> Result<(usize, u32), String> {
    let mut life = Life::new(seed, operators);
    match life.live() {
        Ok(()) => Ok((life.acts.len(), life.faults)),
        Err(broken) => {
            let story = life.sys.story.unwrap_or_default();
            let from = story.len().saturating_sub(400);
            let at: Vec<Tier> = life.config.engines.iter().map(|e| e.at).collect();
            let now: Vec<String> = life.sys.node.engines.iter().map(word).collect();
            Err(format!(
                "seed {seed}: {broken} after {} events, at first {at:?}; the last of it:\n{}\n{}",
                life.acts.len(),
                story[from..].join("\n"),
                now.join("\n"),
            ))
        }
    }
}

fn run_all(what: &str, operators: bool, seeds: impl Iterator<Item = u64>) {
    let began = Instant::now();
    let (mut steps, mut faults, mut count) = (0, 0, 0u32);
    let mut failed = Vec::new();
    for seed in seeds {
        match run(seed, operators) {
            Ok((s, f)) => (steps, faults, count) = (steps + s, faults + f, count + 1),
            Err(why) => failed.push(why),
        }
    }
    let per_second = steps as f64 / began.elapsed().as_secs_f64().max(1e-9);
    let _ = writeln!(
        std::io::stderr(),
        "simulation {what}: {count} lives, {steps} steps, {faults} faults, {per_second:.0} steps/s"
    );
    let firsts: Vec<&str> = failed.iter().filter_map(|f| f.lines().next()).collect();
    let first = failed.first().cloned().unwrap_or_default();
    assert!(failed.is_empty(), "{} seeds failed:\n{}\n{first}", failed.len(), firsts.join("\n"));
}

#[test]
fn known_seeds() {
    run_all("known", false, KNOWN.iter().copied().chain(1_000..1_100));
}

#[test]
fn known_seeds_with_operators() {
    run_all("known, with operators", true, OPERATED.iter().copied().chain(1_000..1_100));
}

#[test]
fn new_seeds() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let first = number("HOTBUNK_SIMULATION_FIRST").unwrap_or(now.as_micros() as u64);
    let count = number("HOTBUNK_SIMULATION_SEEDS").unwrap_or(50);
    let _ = writeln!(std::io::stderr(), "simulation: new seeds from {first} on");
    run_all("new", false, first..first.saturating_add(count));
    run_all("new, with operators", true, first..first.saturating_add(count));
}
