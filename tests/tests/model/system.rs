//! Core and world together: everything that may happen next, and what must hold afterwards.
//!
//! The core's reservations, tiers and admission are held against the ground truth of [`crate::world`], not against
//! themselves. Counters (tickets, lives, generations, operation numbers, moments) are relabelled after every step, so
//! that the states are finite; order and equality are all that the core may use of them.

use crate::world::{Proc, Seen, Size, Weights, refused};
use hotbunk_core::backoff::{BackoffPolicy, Crashes};
use hotbunk_core::call::{Call, CallOutcome, SleepLevel, SleepingAnswer};
use hotbunk_core::capability::Capabilities;
use hotbunk_core::effect::{Action, Effect, Incident, Note, ProbeKind, StepResult, Ticket};
use hotbunk_core::event::{By, Event, Request, Survey};
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::invariants;
use hotbunk_core::spec::{DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Policy, Strategy, Timeouts};
use hotbunk_core::state::{Condition, Costs, Footprint, Node};
use hotbunk_core::step::step;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// One abstract GiB: large enough that nine tenths of it are not nothing.
pub(crate) const UNIT: u64 = 100;
/// When everything happens.
pub(crate) const NOW: Moment = Moment(1_000_000_000_000);
/// When back-offs have run out.
pub(crate) const LATER: Moment = Moment(2_000_000_000_000);
/// More steps than this after the last thing that went wrong: it goes in circles.
const TOO_MANY: u16 = 400;

/// A bug put between the core and the world; the checker must find each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Planted {
    /// A reservation is dropped after each step.
    DroppedReservation,
    /// Exits and surveys of an earlier life or generation are taken for the current one's.
    StaleGeneration,
    /// Device bytes are said to be as wanted without being read.
    SkippedVerification,
    /// A late reply is taken for the one that is waited for.
    LateReply,
}

/// One engine of a setting.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Devices.
    pub(crate) devices: Vec<u16>,
    /// Sizes.
    pub(crate) size: Size,
    /// Version class.
    pub(crate) caps: Capabilities,
    /// Where it is at first.
    pub(crate) at: Tier,
    /// Where it rests.
    pub(crate) rest: Tier,
}

/// What is checked, and how far.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Engines.
    pub(crate) engines: Vec<Setting>,
    /// Capacity and `max_awake` of each device.
    pub(crate) devices: Vec<(u64, u16)>,
    /// Commands that may be given.
    pub(crate) menu: Vec<Request>,
    /// How many of them.
    pub(crate) commands: u8,
    /// How many things may go wrong.
    pub(crate) faults: u8,
    /// Surveys, and somebody else's hands on the engines.
    pub(crate) surveys: bool,
    /// Processes may die at any time, not only while something is asked of them.
    pub(crate) deaths: bool,
    /// What is learned is unknown at first.
    pub(crate) cold: bool,
    /// Starts are rehearsed.
    pub(crate) rehearse: bool,
    /// Drain policy.
    pub(crate) drain: DrainPolicy,
    /// A bug, to see that it is found.
    pub(crate) planted: Option<Planted>,
}

/// How something asked of the world ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum How {
    /// As the world has it.
    Truth,
    /// An error and nothing done.
    Refused,
    /// CONTRACT 3.4: memory gone, error, the engine believes that it is awake; or out of memory half way up.
    Wreck,
    /// 200 and nothing done.
    NoOp,
    /// 200 and half done.
    Partial,
    /// No answer; done all the same.
    LostDone,
    /// No answer and never done.
    LostUndone,
    /// The process dies of it.
    Dies,
    /// The device cannot be read.
    NoEvidence,
    /// Other tokens.
    Garbage,
    /// Processes are left.
    Left,
    /// All is said to be gone, and bytes are left.
    Hidden,
}

/// Everything that may happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// A command from the menu.
    Command(usize),
    /// Operation at this place is cancelled.
    Cancel(usize),
    /// The action at this place ends.
    Answer(usize, How),
    /// An exit is noticed; kept where it will be reported again.
    Exit(usize, bool),
    /// A survey's answer comes; kept where it will come again.
    Survey(usize, bool),
    /// A process dies.
    Die(u16),
    /// Somebody else puts it to sleep or wakes it.
    Meddle(u16),
    /// Time passes.
    Tick,
}

/// An action under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    /// Its name.
    pub(crate) ticket: Ticket,
    /// What.
    pub(crate) action: Action,
    /// The process that it was asked of has ended: whatever comes, it touches no later life.
    pub(crate) orphaned: bool,
}

/// An operation as an observer of the notes knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Observed {
    id: OperationId,
    request: Request,
    by: By,
    outgoing: Vec<EngineId>,
    reported: Vec<EngineId>,
}

/// Core and world.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sys {
    /// The shipped core.
    pub(crate) node: Node,
    /// The truth.
    pub(crate) procs: Vec<Proc>,
    /// What the core waits for (and what it does not wait for any more).
    pub(crate) pending: Vec<Pending>,
    /// Exits not noticed yet: engine, life.
    pub(crate) exits: Vec<(EngineId, u64)>,
    /// Surveys not answered yet: engine, generation, what it will say.
    pub(crate) surveys: Vec<(EngineId, u64, bool)>,
    /// What should serve by the last command that was carried out.
    pub(crate) goal: Vec<bool>,
    /// Engines that somebody else has touched.
    pub(crate) tampered: Vec<bool>,
    /// Evidence was missing: memory is taken on faith from then on.
    pub(crate) blind: bool,
    /// Commands left.
    pub(crate) commands: u8,
    /// Faults left.
    pub(crate) faults: u8,
    /// Ticks left.
    pub(crate) ticks: u8,
    /// Actions since the last thing that went wrong.
    pub(crate) since: u16,
    observed: Vec<Observed>,
    /// What the core said, where somebody wants to read it.
    pub(crate) story: Option<Vec<String>>,
    /// What does not hold.
    pub(crate) broken: Option<String>,
}

impl Hash for Sys {
    fn hash<H: Hasher>(&self, h: &mut H) {
        for e in &self.node.engines {
            (e.tier, &e.condition, e.admission, e.process, e.dead, e.life, e.generation).hash(h);
            (e.capabilities.is_some(), &e.footprints, e.held, e.reserved, e.pinned, e.frozen).hash(h);
            (e.restart_only, e.level2_unsafe, e.cannot_park, e.crashes.count(), e.wanted_awake).hash(h);
            e.watch.hash(h);
        }
        for d in &self.node.devices {
            (d.foreign, &d.evidence).hash(h);
        }
        self.node.operations.hash(h);
        self.node.queue.hash(h);
        self.node.closing.hash(h);
        (&self.procs, &self.pending, &self.exits, &self.surveys, &self.goal, &self.tampered).hash(h);
        (self.blind, self.commands, self.faults, self.ticks, self.since, &self.broken).hash(h);
        for o in &self.observed {
            (o.id, &o.reported).hash(h);
        }
    }
}

fn id(at: usize) -> EngineId {
    EngineId(u16::try_from(at).unwrap_or(u16::MAX))
}

impl Sys {
    /// At rest, everything where the setting says.
    pub(crate) fn new(config: &Config) -> Self {
        let spec = |(at, s): (usize, &Setting)| EngineSpec {
            name: ["A", "B", "C", "D"][at % 4].to_owned(),
            devices: s.devices.iter().map(|d| DeviceId(*d)).collect(),
            levels: Levels { parked: true, level1: true, level2: s.caps.can_level2() },
            rest: s.rest,
            autostart: true,
            rehearse: config.rehearse,
            estimate: Estimate {
                weights: Some(s.size.weights),
                kv_cache: Some(s.size.kv),
                residual: s.size.residual,
                ..Estimate::default()
            },
            timeouts: Timeouts::default(),
            stop_grace: Duration::from_secs(5),
            backoff: BackoffPolicy { budget: 3, ..BackoffPolicy::default() },
        };
        let device = |(at, (capacity, max_awake)): (usize, &(u64, u16))| DeviceSpec {
            name: format!("gpu{at}"),
            evidence: true,
            capacity: Some(*capacity * UNIT),
            reserve: UNIT,
            slack: 0,
            max_awake: *max_awake,
        };
        let policy = Policy {
            strategy: Strategy::Auto,
            leave: None,
            drain: config.drain,
            drain_deadline: Duration::from_secs(30),
            host_budget: None,
            stall_after: Duration::from_secs(3600),
        };
        let mut node = Node::new(
            config.engines.iter().enumerate().map(spec).collect(),
            config.devices.iter().enumerate().map(device).collect(),
            policy,
            1,
        );
        let mut procs = Vec::new();
        for (e, s) in node.engines.iter_mut().zip(&config.engines) {
            let bytes = |tier| match tier {
                Tier::Awake => s.size.weights + s.size.kv + s.size.residual,
                Tier::Parked => s.size.weights + s.size.residual,
                Tier::Level1 | Tier::Level2 => s.size.residual,
                Tier::Stopped => 0,
            };
            if !config.cold {
                for tier in [Tier::Awake, Tier::Parked, Tier::Level1, Tier::Level2] {
                    e.footprints[tier as usize] =
                        Some(Footprint { device: Some(bytes(tier)), host: Some(1) });
                }
            }
            e.tier = s.at;
            e.held = bytes(s.at);
            e.awake_since = NOW;
            e.watch.progress_at = NOW;
            if s.at != Tier::Stopped {
                (e.process, e.life, e.generation, e.capabilities) = (true, 1, 1, Some(s.caps));
            }
            (e.admission, e.wanted_awake) = (s.at == Tier::Awake, s.at == Tier::Awake);
            procs.push(match s.at {
                Tier::Awake => Proc { running: true, ..Proc::awake() },
                Tier::Parked => Proc::asleep(Weights::Mapped),
                Tier::Level1 => Proc::asleep(Weights::Host),
                Tier::Level2 => Proc::asleep(Weights::Dropped),
                Tier::Stopped => Proc::stopped(),
            });
            if !s.caps.has_modes()
                && !s.caps.routes.pause
                && let Some(p) = procs.last_mut()
            {
                p.paused = false;
            }
        }
        let mut sys = Sys {
            goal: config.engines.iter().map(|s| s.at == Tier::Awake).collect(),
            tampered: vec![false; config.engines.len()],
            node,
            procs,
            pending: Vec::new(),
            exits: Vec::new(),
            surveys: Vec::new(),
            blind: false,
            commands: config.commands,
            faults: config.faults,
            ticks: if config.surveys { 2 } else { 0 },
            since: 0,
            observed: Vec::new(),
            story: None,
            broken: None,
        };
        sys.relabel();
        sys
    }

    fn caps(config: &Config, e: EngineId) -> Capabilities {
        config.engines[usize::from(e.0)].caps
    }

    fn size(config: &Config, e: EngineId) -> Size {
        config.engines[usize::from(e.0)].size
    }

    fn fail(&mut self, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(what.into());
        }
    }

    /// Device bytes as they are.
    fn used(&self, config: &Config, device: DeviceId) -> u64 {
        let on = |at: &usize| config.engines[*at].devices.contains(&device.0);
        (0..self.procs.len()).filter(on).map(|at| self.procs[at].bytes(config.engines[at].size)).sum()
    }

    fn room(&self, config: &Config, e: EngineId) -> u64 {
        let devices = config.engines[usize::from(e.0)].devices.iter();
        devices
            .map(|d| {
                (config.devices[usize::from(*d)].0 * UNIT).saturating_sub(self.used(config, DeviceId(*d)))
            })
            .min()
            .unwrap_or(0)
    }

    fn share_a_device(&self, a: EngineId, b: EngineId) -> bool {
        self.node.engine(a).spec.devices.iter().any(|d| self.node.engine(b).spec.devices.contains(d))
    }

    /// Whether what really happens may differ from what the ledger says for a reason that nobody could see.
    fn excused(&self) -> bool {
        self.blind || self.tampered.iter().any(|t| *t)
    }

    fn waits_for_nothing(&self) -> bool {
        self.pending.is_empty() && self.exits.is_empty()
    }

    /// Everything that may happen next.
    pub(crate) fn acts(&self, config: &Config, out: &mut Vec<Act>) {
        if self.broken.is_some() {
            return;
        }
        for (at, pending) in self.pending.iter().enumerate() {
            out.push(Act::Answer(at, How::Truth));
            if self.faults > 0 {
                out.extend(self.endings(pending).iter().map(|how| Act::Answer(at, *how)));
            }
        }
        for at in 0..self.exits.len() {
            out.push(Act::Exit(at, false));
            if self.faults > 0 && config.deaths {
                out.push(Act::Exit(at, true));
            }
        }
        for at in 0..self.surveys.len() {
            out.push(Act::Survey(at, false));
            if self.faults > 0 {
                out.push(Act::Survey(at, true));
            }
        }
        if self.commands > 0 {
            out.extend((0..config.menu.len()).map(Act::Command));
            out.extend((0..self.node.operations.len()).map(Act::Cancel));
        }
        if self.faults > 0 {
            for at in 0..self.procs.len() {
                let e = id(at).0;
                if config.deaths && self.procs[at].alive {
                    out.push(Act::Die(e));
                }
                let at_rest = self.node.operation_on(&self.node.engines[at].spec.devices).is_none();
                if config.surveys && at_rest && self.procs[at].alive && !self.tampered[at] {
                    out.push(Act::Meddle(e));
                }
            }
        }
        let due = self.node.engines.iter().any(|e| matches!(e.condition, Condition::Backoff(_)));
        if due || self.ticks > 0 {
            out.push(Act::Tick);
        }
    }

    /// How an action may go wrong.
    pub(crate) fn endings(&self, pending: &Pending) -> &'static [How] {
        let alive = self.procs[usize::from(pending.action.engine().0)].alive;
        match &pending.action {
            Action::Stop { .. } => &[How::Left, How::Hidden],
            Action::AwaitUsed { .. } => &[How::NoEvidence],
            Action::Measure { .. } => &[],
            _ if pending.orphaned => &[],
            Action::Spawn { .. } => &[How::Refused],
            _ if !alive => &[],
            Action::Drain { .. } => &[How::Refused, How::Dies],
            Action::Call { call, .. } => match call {
                Call::Sleep { level: SleepLevel::L0, .. } => &[How::Refused, How::LostDone, How::Dies],
                Call::Sleep { .. } => &[
                    How::Refused,
                    How::Wreck,
                    How::NoOp,
                    How::Partial,
                    How::LostDone,
                    How::LostUndone,
                    How::Dies,
                ],
                Call::WakeUp { .. } => &[
                    How::Refused,
                    How::Wreck,
                    How::NoOp,
                    How::Partial,
                    How::LostDone,
                    How::LostUndone,
                    How::Dies,
                ],
                _ => &[How::Refused, How::NoOp, How::LostDone, How::LostUndone, How::Dies],
            },
            Action::IsSleeping { .. } => &[How::LostUndone, How::Dies],
            Action::Probe { .. } => &[How::Refused, How::Garbage, How::Dies],
            Action::Ready { .. } | Action::WarmUp { .. } => &[How::Refused, How::Dies],
        }
    }

    /// The state after something has happened.
    pub(crate) fn after(&self, config: &Config, act: &Act, now: Moment) -> Sys {
        let mut next = self.clone();
        next.happen(config, act, now);
        next.relabel();
        next.at_rest();
        next
    }

    /// Lets it happen.
    pub(crate) fn happen(&mut self, config: &Config, act: &Act, now: Moment) {
        let fault = |sys: &mut Sys| {
            sys.faults = sys.faults.saturating_sub(1);
            sys.since = 0;
        };
        match act {
            Act::Command(at) => {
                self.commands = self.commands.saturating_sub(1);
                self.since = 0;
                let id = self.node.number();
                let request = config.menu[*at].clone();
                self.feed(config, Event::Command { id, request, by: By::Operator }, now);
            }
            Act::Cancel(at) => {
                self.commands = self.commands.saturating_sub(1);
                self.since = 0;
                if let Some(op) = self.node.operations.get(*at) {
                    let id = op.id;
                    self.feed(config, Event::Cancel(id), now);
                }
            }
            Act::Answer(at, how) => {
                if *how != How::Truth {
                    fault(self);
                }
                if *at < self.pending.len() {
                    let pending = self.pending.remove(*at);
                    let result = if pending.orphaned {
                        StepResult::Gone(String::new())
                    } else {
                        self.result(config, &pending.action, *how, now)
                    };
                    self.feed(config, Event::Done { ticket: pending.ticket, result }, now);
                }
            }
            Act::Exit(at, again) => {
                let (engine, life) = self.exits[*at];
                if *again {
                    fault(self);
                } else {
                    self.exits.remove(*at);
                }
                self.feed(config, Event::Exited { engine, life, reason: String::new() }, now);
            }
            Act::Survey(at, again) => {
                let (engine, generation, is_sleeping) = self.surveys[*at];
                if *again {
                    fault(self);
                } else {
                    self.surveys.remove(*at);
                }
                let sleeping = SleepingAnswer::Says { is_sleeping };
                let survey = Survey { sleeping, running: None, tokens: None };
                self.feed(config, Event::Surveyed { engine, generation, survey }, now);
            }
            Act::Die(at) => {
                fault(self);
                self.die(EngineId(*at));
            }
            Act::Meddle(at) => {
                fault(self);
                let e = usize::from(*at);
                let caps = config.engines[e].caps;
                self.tampered[e] = true;
                let room = self.room(config, EngineId(*at));
                let call = if self.procs[e].is_sleeping(&caps) {
                    Call::WakeUp { tags: hotbunk_core::call::WakeTags::All }
                } else {
                    Call::Sleep { level: SleepLevel::L1, mode: None }
                };
                self.procs[e].call(&caps, config.engines[e].size, call, room);
            }
            Act::Tick => {
                self.ticks = self.ticks.saturating_sub(1);
                self.feed(config, Event::Tick, now);
                for (at, (capacity, _)) in config.devices.iter().enumerate() {
                    let device = DeviceId(u16::try_from(at).unwrap_or(0));
                    let used = self.used(config, device);
                    self.feed(config, Event::DeviceRead { device, capacity: *capacity * UNIT, used }, now);
                }
            }
        }
    }

    fn orphan(&mut self, e: EngineId) {
        let of_its = |p: &&mut Pending| {
            p.action.engine() == e && !matches!(p.action, Action::Stop { .. } | Action::AwaitUsed { .. })
        };
        self.pending.iter_mut().filter(of_its).for_each(|p| p.orphaned = true);
    }

    fn die(&mut self, e: EngineId) {
        self.orphan(e);
        let p = &mut self.procs[usize::from(e.0)];
        if p.alive {
            p.die();
            let life = self.node.engine(e).life;
            if !self.exits.contains(&(e, life)) {
                self.exits.push((e, life));
            }
        }
    }

    /// What the world answers.
    fn result(&mut self, config: &Config, action: &Action, how: How, now: Moment) -> StepResult {
        let e = action.engine();
        let at = usize::from(e.0);
        let (caps, size) = (Self::caps(config, e), Self::size(config, e));
        let room = self.room(config, e);
        let gone = || StepResult::Gone(String::new());
        if how == How::Dies {
            self.die(e);
            return match action {
                Action::Call { .. } => StepResult::Called(CallOutcome::Gone { message: String::new() }),
                _ => gone(),
            };
        }
        let serving = self.procs[at].serves();
        let p = &mut self.procs[at];
        match action {
            Action::Drain { .. }
            | Action::IsSleeping { .. }
            | Action::Ready { .. }
            | Action::WarmUp { .. }
                if !p.alive =>
            {
                gone()
            }
            Action::Drain { .. } if how == How::Refused => {
                StepResult::DrainTimedOut { running: 1, waiting: 0 }
            }
            Action::Drain { .. } => {
                p.running = false;
                StepResult::Drained
            }
            Action::Call { call, .. } => StepResult::Called(self.called(config, e, *call, how, room)),
            Action::IsSleeping { .. } if how == How::LostUndone => {
                StepResult::Sleeping(SleepingAnswer::Unknown)
            }
            Action::IsSleeping { .. } => {
                p.busy = false;
                StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: p.is_sleeping(&caps) })
            }
            Action::AwaitUsed { .. } if how == How::NoEvidence => {
                self.blind = true;
                StepResult::NoEvidence(String::new())
            }
            Action::AwaitUsed { bounds, .. } => {
                let used: Vec<(DeviceId, u64)> =
                    bounds.iter().map(|b| (b.device, self.used(config, b.device))).collect();
                // What is read before a neighbour's death is noticed proves nothing, and nobody can know.
                let unnoticed = self.exits.iter().any(|(x, life)| {
                    *x != e && *life == self.node.engine(*x).life && self.share_a_device(*x, e)
                });
                self.blind |= unnoticed;
                let within = bounds.iter().zip(&used).all(|(b, (_, used))| {
                    b.at_least.is_none_or(|least| *used >= least)
                        && b.at_most.is_none_or(|most| *used <= most)
                });
                if within || config.planted == Some(Planted::SkippedVerification) {
                    StepResult::Reached { used }
                } else {
                    StepResult::OutOfBounds { used }
                }
            }
            Action::Probe { .. } if how == How::Refused => StepResult::ProbeFailed(String::new()),
            Action::Probe { .. } if how == How::Garbage && serving => StepResult::Mismatch(String::new()),
            Action::Probe { kind, .. } => match p.probe(&caps) {
                Seen::Token => StepResult::Token { at: now },
                Seen::Garbage if *kind == ProbeKind::FirstToken => StepResult::Token { at: now },
                Seen::Garbage => StepResult::Mismatch(String::new()),
                Seen::Nothing => StepResult::ProbeFailed(String::new()),
                Seen::Killed => {
                    let life = self.node.engine(e).life;
                    self.exits.push((e, life));
                    StepResult::ProbeFailed(String::new())
                }
            },
            Action::Spawn { .. } if how == How::Refused => StepResult::SpawnFailed(String::new()),
            Action::Spawn { .. } => {
                *p = Proc { alive: true, leftover: p.leftover, ..Proc::stopped() };
                StepResult::Spawned
            }
            Action::Ready { .. } => {
                let loaded = p.load(size, room);
                if !loaded && !self.excused() && self.procs.iter().all(|p| p.leftover == 0) {
                    self.fail("I2: a start was let go that does not fit");
                }
                if how == How::Refused || !loaded {
                    StepResult::NotReady(String::new())
                } else {
                    StepResult::Ready(caps)
                }
            }
            Action::WarmUp { .. } if how == How::Refused => StepResult::WarmUpFailed(String::new()),
            Action::WarmUp { .. } => StepResult::Warmed,
            Action::Measure { .. } => {
                let own = p.bytes(size);
                let devices = config.engines[at].devices.iter().map(|d| DeviceId(*d));
                let used = devices.map(|d| (d, Some(self.used(config, d)))).collect();
                StepResult::Measured { used, engine: Some(own), host: Some(1) }
            }
            Action::Stop { .. } => {
                let bytes = p.bytes(size);
                let was_alive = p.alive;
                *p = Proc::stopped();
                self.orphan(e);
                let p = &mut self.procs[at];
                if matches!(how, How::Left | How::Hidden) {
                    p.leftover = bytes;
                }
                let life = self.node.engine(e).life;
                if was_alive && !self.exits.contains(&(e, life)) {
                    self.exits.push((e, life));
                }
                StepResult::Stopped { left: u32::from(how == How::Left) }
            }
        }
    }

    fn called(&mut self, config: &Config, e: EngineId, call: Call, how: How, room: u64) -> CallOutcome {
        let at = usize::from(e.0);
        let (caps, size) = (Self::caps(config, e), Self::size(config, e));
        let p = &mut self.procs[at];
        if !p.alive {
            return CallOutcome::Gone { message: String::new() };
        }
        match how {
            How::Refused => refused(),
            How::Wreck => {
                match call {
                    Call::Sleep { .. } => p.wreck(&caps, call),
                    _ if matches!(p.weights, Weights::Host | Weights::Dropped)
                        && room >= size.weights / 2 =>
                    {
                        p.garbage |= p.weights == Weights::Dropped;
                        p.weights = Weights::Half;
                    }
                    _ => {}
                }
                refused()
            }
            How::NoOp => CallOutcome::Accepted { success: None },
            How::Partial => {
                if let Call::Sleep { .. } = call {
                    p.paused |= caps.has_modes();
                    (p.kv, p.weights_asleep, p.kv_asleep) = (false, true, true);
                } else {
                    p.call(&caps, size, call, room);
                    p.kv = false;
                }
                CallOutcome::Accepted { success: None }
            }
            How::LostDone => {
                p.call(&caps, size, call, room);
                p.busy = true;
                CallOutcome::Unknown
            }
            How::LostUndone => CallOutcome::Unknown,
            _ => {
                let before = p.weights;
                let outcome = p.call(&caps, size, call, room);
                let short = matches!(call, Call::WakeUp { .. } | Call::WorkerWakeUp)
                    && matches!(outcome, CallOutcome::Refused { .. })
                    && !p.broken
                    && before != Weights::Half;
                if short && !self.excused() && self.procs.iter().all(|p| p.leftover == 0) {
                    self.fail("I2: a wake was let go that does not fit");
                }
                outcome
            }
        }
    }

    /// One event through the shipped `step`, then everything that must hold.
    pub(crate) fn feed(&mut self, config: &Config, mut event: Event, now: Moment) {
        if self.broken.is_some() {
            return;
        }
        self.plant(config, &mut event);
        let mut known: Vec<OperationId> = self.ids();
        if let Event::Command { id, .. } = &event {
            known.push(*id);
        }
        let first_new = self.node.next_operation;
        let node = &mut self.node;
        let effects = match catch_unwind(AssertUnwindSafe(|| step(node, event, now))) {
            Ok(effects) => effects,
            Err(panic) => {
                let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                return self.fail(format!("step panicked: {said}"));
            }
        };
        known.extend((first_new..self.node.next_operation).map(OperationId));
        if let Err(broken) = invariants::check(&self.node) {
            self.fail(broken.to_string());
        }
        self.ends(&known, &effects);
        for effect in effects {
            match effect {
                Effect::Note(note) => {
                    self.tell(&note);
                    self.noted(&note);
                }
                Effect::Run { ticket, action } => self.run(config, ticket, action),
                Effect::Survey { engine, generation } if config.surveys => {
                    let caps = Self::caps(config, engine);
                    let says = self.procs[usize::from(engine.0)].is_sleeping(&caps);
                    let alive = self.procs[usize::from(engine.0)].alive;
                    if alive && !self.surveys.contains(&(engine, generation, says)) {
                        self.surveys.push((engine, generation, says));
                    }
                }
                Effect::Survey { .. } => {}
            }
        }
        if config.planted == Some(Planted::DroppedReservation) {
            self.node.engines.iter_mut().for_each(|e| e.reserved = 0);
        }
        self.hold(config);
    }

    fn tell(&mut self, note: &Note) {
        let Some(story) = &mut self.story else { return };
        let name = |e: &EngineId| self.node.engine(*e).spec.name.clone();
        story.push(match note {
            Note::StepBegan { step, .. } => format!("  {}", step.sentence(&self.node)),
            Note::StepEnded { failure: None, .. } | Note::Measured { .. } => return,
            Note::StepEnded { failure: Some(why), .. } => format!("  ✗ {}", why.cause.code()),
            Note::Transition { engine, from, to, .. } => format!("  {}: {from} → {to}", name(engine)),
            Note::Incident { incident, engine, .. } => {
                format!("! {} {}", incident.code(), engine.as_ref().map(name).unwrap_or_default())
            }
            Note::Accepted { id, request, by, .. } => format!("{id:?} {by:?} {request:?}"),
            Note::Ended { id, failure, .. } => {
                format!("{id:?} ended {:?}", failure.as_ref().map(|f| (f.cause.code(), f.engine)))
            }
            other => format!("{other:?}"),
        });
    }

    fn plant(&self, config: &Config, event: &mut Event) {
        match (config.planted, event) {
            (Some(Planted::StaleGeneration), Event::Exited { engine, life, .. }) => {
                *life = self.node.engine(*engine).life;
            }
            (Some(Planted::StaleGeneration), Event::Surveyed { engine, generation, .. }) => {
                *generation = self.node.engine(*engine).generation;
            }
            (Some(Planted::LateReply), Event::Done { ticket, .. }) => {
                let current = |t: Ticket| {
                    self.node.operations.iter().any(|op| op.current.as_ref().is_some_and(|c| c.ticket == t))
                };
                let any = self.node.operations.iter().find_map(|op| op.current.as_ref());
                if let (false, Some(other)) = (current(*ticket), any) {
                    *ticket = other.ticket;
                }
            }
            _ => {}
        }
    }

    fn ids(&self) -> Vec<OperationId> {
        let ops = self.node.operations.iter().map(|op| op.id);
        ops.chain(self.node.queue.iter().map(|q| q.id)).collect()
    }

    /// Every operation and command ends in exactly one note, when it is no longer known and not before.
    fn ends(&mut self, known: &[OperationId], effects: &[Effect]) {
        let ended = |effect: &Effect| match effect {
            Effect::Note(
                Note::Ended { id, .. }
                | Note::Refused { id, .. }
                | Note::Joined { id, .. }
                | Note::NothingToDo { id, .. },
            ) => Some(*id),
            _ => None,
        };
        let ends: Vec<OperationId> = effects.iter().filter_map(ended).collect();
        let still = self.ids();
        for id in known {
            let count = ends.iter().filter(|e| *e == id).count();
            let wanted = usize::from(!still.contains(id));
            if count != wanted {
                self.fail(format!("operation ended {count} times where {wanted} was right"));
            }
        }
        if ends.iter().any(|id| !known.contains(id)) {
            self.fail("an operation ended that nobody knows");
        }
    }

    fn noted(&mut self, note: &Note) {
        match note {
            Note::Accepted { id, request, by, outgoing, .. } => self.observed.push(Observed {
                id: *id,
                request: request.clone(),
                by: *by,
                outgoing: outgoing.clone(),
                reported: Vec::new(),
            }),
            Note::Ended { id: ended, failure, .. } => {
                let Some(at) = self.observed.iter().position(|o| o.id == *ended) else { return };
                let observed = self.observed.remove(at);
                let chooses = !matches!(observed.request, Request::Reset(_));
                if failure.is_none() && observed.by == By::Operator && chooses {
                    let to = observed.request.engine();
                    let switched = !matches!(observed.request, Request::Stop { .. } | Request::Sleep { .. });
                    for at in 0..self.goal.len() {
                        let e = id(at);
                        let involved = e == to || observed.outgoing.contains(&e);
                        // Handing the device over settles who serves on it, also for one that was down meanwhile.
                        if involved || (switched && self.share_a_device(e, to)) {
                            self.goal[at] = self.node.engine(e).is_serving();
                        }
                    }
                }
            }
            Note::NothingToDo { request: Request::Stop { engine, .. }, .. } => {
                self.goal[usize::from(engine.0)] = false;
            }
            Note::Incident { incident, engine: Some(e), .. } => self.incident(*incident, *e),
            _ => {}
        }
    }

    fn incident(&mut self, incident: Incident, e: EngineId) {
        if incident == Incident::GivenUp {
            self.goal[usize::from(e.0)] = false;
        }
        match incident {
            Incident::Crashed if self.procs[usize::from(e.0)].alive => {
                self.fail("a crash was reported of an engine that lives");
            }
            Incident::Drifted if !self.tampered[usize::from(e.0)] && !self.blind => {
                self.fail("a drift was reported of an engine that nobody touched");
            }
            // What an operator must know besides the cause.
            Incident::RollbackFailed | Incident::GivenUp | Incident::NoRoom => return,
            _ => {}
        }
        let op = self.node.operations.iter().find(|op| {
            let devices = &self.node.engine(e).spec.devices;
            op.devices.iter().any(|d| devices.contains(d))
        });
        let Some(id) = op.map(|op| op.id) else { return };
        let Some(observed) = self.observed.iter_mut().find(|o| o.id == id) else { return };
        if observed.reported.contains(&e) {
            self.fail(format!("a second incident ({}) of one engine in one operation", incident.code()));
        } else {
            observed.reported.push(e);
        }
    }

    /// An action begins: what must be true of the world then.
    fn run(&mut self, config: &Config, ticket: Ticket, action: Action) {
        self.since = self.since.saturating_add(1);
        let e = action.engine();
        let at = usize::from(e.0);
        let moves = |a: &Action| {
            matches!(
                a,
                Action::Call { .. }
                    | Action::Spawn { .. }
                    | Action::Ready { .. }
                    | Action::WarmUp { .. }
                    | Action::Stop { .. }
            )
        };
        let takes = matches!(
            action,
            Action::Call { call: Call::WakeUp { .. } | Call::WorkerWakeUp, .. }
                | Action::Spawn { .. }
                | Action::Ready { .. }
        );
        let gives = |a: &Action| {
            matches!(
                a,
                Action::Call {
                    call: Call::Sleep { level: SleepLevel::L1 | SleepLevel::L2, .. }
                        | Call::WorkerSleep { .. }
                        | Call::ReleaseKvCache,
                    ..
                }
            )
        };
        for p in &self.pending {
            let other = p.action.engine();
            if p.orphaned || !self.share_a_device(e, other) {
                continue;
            }
            if moves(&action) && moves(&p.action) {
                return self.fail(format!("I3: {action:?} begins while {:?} runs", p.action));
            }
            if takes && other != e && gives(&p.action) {
                return self.fail("memory is taken inside a neighbour's sleep window");
            }
        }
        let busy = (0..self.procs.len())
            .any(|o| o != at && self.procs[o].alive && self.procs[o].busy && self.share_a_device(e, id(o)));
        if takes && busy {
            self.fail("memory is taken while a neighbour's unanswered call may still run");
        }
        let p = &self.procs[at];
        match &action {
            Action::Probe { .. } if p.alive && !self.excused() && !p.broken => {
                if p.weights != Weights::Mapped || !p.kv {
                    self.fail("I1: a probe goes to an engine whose memory is not there");
                }
            }
            Action::Call { call: Call::Sleep { .. } | Call::ReleaseKvCache, .. }
                if p.alive && p.running && config.drain == DrainPolicy::Wait =>
            {
                self.fail("a sleep lands on running requests");
            }
            _ => {}
        }
        if let Action::Probe { .. } = action
            && self.node.engine(e).condition != Condition::Moving
            && self.node.engine(e).admission
        {
            self.fail("I1: a probe while requests are admitted");
        }
        let outside = matches!(
            action,
            Action::Spawn { .. } | Action::Stop { .. } | Action::AwaitUsed { .. } | Action::Measure { .. }
        );
        let orphaned = !outside && !self.procs[at].alive;
        self.pending.push(Pending { ticket, action, orphaned });
    }

    /// What must hold after every step.
    fn hold(&mut self, config: &Config) {
        for at in 0..self.procs.len() {
            let e = &self.node.engines[at];
            let p = &self.procs[at];
            // Bytes that somebody else moved pass for anybody's on the device.
            let touched = self.excused();
            if e.admission && p.alive && !touched && !p.serves() {
                self.fail(format!("I1: {} takes requests and cannot serve", e.spec.name));
                return;
            }
            let charged = e.held + e.reserved;
            let really = p.bytes(config.engines[at].size);
            if really > charged && !touched && p.leftover == 0 {
                let name = e.spec.name.clone();
                self.fail(format!("I2: {name} holds {really}, {charged} are charged to it"));
                return;
            }
            // Given up, and somebody has been told: from then on it is for an operator to say what should serve.
            self.goal[at] &= !matches!(self.node.engines[at].condition, Condition::Failed(_));
            self.procs[at].running |= self.node.engines[at].admission && self.procs[at].alive;
        }
        for op in &self.node.operations {
            let waits = op.current.as_ref().map(|c| c.ticket);
            let known = waits.is_some_and(|t| self.pending.iter().any(|p| p.ticket == t));
            if !known {
                return self.fail("an operation waits for nothing");
            }
        }
        if self.since > TOO_MANY {
            self.fail("it goes in circles");
        }
    }

    /// What must hold where nothing is owed any more.
    pub(crate) fn at_rest(&mut self) {
        let backoff = self.node.engines.iter().any(|e| matches!(e.condition, Condition::Backoff(_)));
        if self.broken.is_some() || !self.waits_for_nothing() || backoff {
            return;
        }
        self.since = 0;
        if !self.node.operations.is_empty() || !self.node.queue.is_empty() {
            return self.fail("something waits for ever");
        }
        for at in 0..self.procs.len() {
            let (e, p) = (&self.node.engines[at], &self.procs[at]);
            let name = e.spec.name.clone();
            let failed = matches!(e.condition, Condition::Failed(_) | Condition::NoRoom);
            let touched = self.excused();
            if matches!(e.condition, Condition::Moving | Condition::Adrift(_)) || (e.dead && !failed) {
                return self.fail(format!("{name} is stuck"));
            }
            if e.tier == Tier::Awake && e.condition == Condition::Settled && !e.admission {
                return self.fail(format!("{name} is awake and nobody may ask it anything"));
            }
            let left = (0..self.procs.len())
                .any(|o| self.procs[o].leftover > 0 && self.share_a_device(id(o), id(at)));
            if self.goal[at] && !e.is_serving() && !failed && !left {
                return self.fail(format!("I5: {name} should serve and does not"));
            }
            if touched || failed {
                continue;
            }
            let as_said = match e.tier {
                Tier::Awake => p.serves(),
                Tier::Parked => p.alive && p.weights == Weights::Mapped && !p.kv && !p.garbage,
                Tier::Level1 => p.alive && p.weights == Weights::Host && !p.kv,
                Tier::Level2 => p.alive && !matches!(p.weights, Weights::Mapped | Weights::Half) && !p.kv,
                Tier::Stopped => !p.alive && p.leftover == 0,
            };
            if !as_said {
                let tier = e.tier;
                return self.fail(format!("{name} is said to be at {tier} and is not"));
            }
        }
    }

    /// Counters and moments are replaced by their order.
    fn relabel(&mut self) {
        let mut tickets: Vec<Ticket> = self.pending.iter().map(|p| p.ticket).collect();
        tickets.sort_unstable();
        tickets.dedup();
        let short =
            |t: Ticket| Ticket(tickets.iter().position(|o| *o == t).map_or(u64::MAX, |at| at as u64 + 1));
        for p in &mut self.pending {
            p.ticket = short(p.ticket);
        }
        self.node.next_ticket = tickets.len() as u64 + 1;

        let mut ids = self.ids();
        ids.sort_unstable();
        let number = |id: OperationId| {
            OperationId(ids.iter().position(|o| *o == id).map_or(u64::MAX, |at| at as u64 + 1))
        };
        self.observed.retain(|o| ids.contains(&o.id));
        self.observed.iter_mut().for_each(|o| o.id = number(o.id));
        self.node.queue.iter_mut().for_each(|q| {
            q.id = number(q.id);
            q.at = NOW;
        });
        self.node.next_operation = ids.len() as u64 + 1;
        for op in &mut self.node.operations {
            op.id = number(op.id);
            (op.accepted, op.leg_began, op.steps) = (NOW, NOW, 0);
            op.first_token = op.first_token.map(|_| NOW);
            if let Some(current) = &mut op.current {
                current.ticket = short(current.ticket);
                (current.began, current.index) = (NOW, 0);
            }
            if let Some(failure) = &mut op.failure {
                failure.detail.clear();
            }
        }
        for (at, e) in self.node.engines.iter_mut().enumerate() {
            let this = id(at);
            for (_, life) in self.exits.iter_mut().filter(|(x, _)| *x == this) {
                *life = if *life == e.life { 2 } else { 1 };
            }
            for (_, generation, _) in self.surveys.iter_mut().filter(|(x, _, _)| *x == this) {
                *generation = if *generation == e.generation { 2 } else { 1 };
            }
            for p in &mut self.pending {
                if let Action::Spawn { engine, life } = &mut p.action
                    && *engine == this
                {
                    *life = 2;
                }
            }
            (e.life, e.generation, e.awake_since) = (2, 2, NOW);
            e.watch.progress_at = NOW;
            e.costs = Costs::default();
            let crashes = e.crashes.count();
            e.crashes = Crashes::default();
            for _ in 0..crashes {
                let _ = e.crashes.crashed(&e.spec.backoff, NOW);
            }
            match &mut e.condition {
                Condition::Backoff(at) => *at = NOW + Duration::from_secs(1),
                Condition::Failed(reason) => reason.clear(),
                _ => {}
            }
        }
        self.exits.sort_unstable();
        self.exits.dedup();
        self.surveys.sort_unstable();
        self.surveys.dedup();
    }
}
