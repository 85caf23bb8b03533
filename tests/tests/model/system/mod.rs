//! Core and world together: everything that may happen next, and what must hold afterwards.
//!
//! The core's reservations, tiers and admission are held against the ground truth of [`crate::world`], not against
//! themselves. [`answer`] is what the world does, [`crash`] the agent's end and its successor's beginning, [`hold`] what
//! must be true.

mod answer;
mod crash;
pub(crate) mod gateway;
mod hold;
pub(crate) mod revised;
mod stranger;

use crate::world::{Proc, Size, Weights};
use gateway::{Does, Gateway};
use hotbunk_core::call::{Call, SleepLevel, SleepingAnswer};
use hotbunk_core::capability::Capabilities;
use hotbunk_core::effect::{Action, StepResult, Ticket};
use hotbunk_core::event::{By, Event, Request, Survey};
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::spec::{DeviceSpec, DrainPolicy, Policy, Strategy};
use hotbunk_core::state::{Footprint, Node};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use revised::{File, Revisions};
use std::time::Duration;

/// One abstract GiB: large enough that nine tenths of it are not nothing.
pub(crate) const UNIT: u64 = 100;
/// When everything happens.
pub(crate) const NOW: Moment = Moment(1_000_000_000_000);

/// Bugs put between the core and the world, to see that the check finds them; none by default.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planted {
    /// Changes an event before the core sees it.
    pub(crate) event: fn(&Sys, &mut Event),
    /// Changes the core's state after a step.
    pub(crate) node: fn(&mut Node),
    /// Device bytes are said to be as wanted without being read.
    pub(crate) unread: bool,
}

impl Default for Planted {
    fn default() -> Self {
        Planted { event: |_, _| {}, node: |_| {}, unread: false }
    }
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
    /// Its KV cache by the other version of what its process is started with.
    pub(crate) other_kv: u64,
    /// Somebody else's server is on its port at first, of the version that is configured or of the other one.
    pub(crate) stranger: Option<bool>,
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
    /// How often the agent may be killed.
    pub(crate) crashes: u8,
    /// Surveys, and somebody else's hands on the engines.
    pub(crate) surveys: bool,
    /// Processes may die at any time, not only while something is asked of them.
    pub(crate) deaths: bool,
    /// What is learned is unknown at first.
    pub(crate) cold: bool,
    /// Starts are rehearsed.
    pub(crate) rehearse: bool,
    /// An engine that comes back after a crash may find its place taken, and rests then.
    pub(crate) places_are_taken: bool,
    /// Drain policy.
    pub(crate) drain: DrainPolicy,
    /// What a gateway asks for, and what happens where nobody asks.
    pub(crate) gateway: Gateway,
    /// How the configuration file may change.
    pub(crate) revisions: Revisions,
    /// Servers of others may come at any time, not only be there at first.
    pub(crate) arrivals: bool,
    /// Bugs, to see that they are found.
    pub(crate) planted: Planted,
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
    /// Somebody starts a server on the port of an engine that has no process.
    Arrive(u16),
    /// Somebody else puts it to sleep or wakes it.
    Meddle(u16),
    /// The gateway does something about an engine.
    Gateway(u16, Does),
    /// The configuration file changes, in this place of what may, and is read.
    Revise(usize),
    /// For a while nothing comes but surveys.
    Quiet,
    /// Time passes.
    Tick,
    /// The agent is killed, and another one takes over.
    Crash(Leaves),
}

/// What a killed agent leaves of what it had just asked for, and how much its successor gets to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Leaves {
    /// What was asked for is done all the same; else it never arrived.
    pub(crate) done: bool,
    /// The engine that it was asked of does not answer: it may still be at it.
    pub(crate) silent: bool,
    /// Bytes cannot be told apart.
    pub(crate) blind: bool,
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
pub(crate) struct Observed {
    pub(crate) id: OperationId,
    request: Request,
    by: By,
    outgoing: Vec<EngineId>,
    pub(crate) reported: Vec<EngineId>,
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
    /// Work of a former agent was about an engine that is not configured any more, and is not gone on with.
    pub(crate) dropped: bool,
    /// Looks at the devices that a death was not known of, or that came right after: what they call foreign is too little.
    pub(crate) misread: u8,
    /// Evidence was missing: memory is taken on faith from then on.
    pub(crate) blind: bool,
    /// Commands left.
    pub(crate) commands: u8,
    /// Faults left.
    pub(crate) faults: u8,
    /// Agents left to be killed.
    pub(crate) crashes: u8,
    /// Ticks left.
    pub(crate) ticks: u8,
    /// What the gateway holds, by engine.
    pub(crate) held: Vec<bool>,
    /// Whether requests are with it.
    pub(crate) in_use: Vec<bool>,
    /// Requests that may still come.
    pub(crate) asks: u8,
    /// What the configuration file says.
    pub(crate) file: File,
    /// How often it may still change.
    pub(crate) edits: u8,
    /// Whether a process was started with the other version of its settings.
    pub(crate) runs: Vec<bool>,
    /// The agent has hold of a process, or of what is left of it.
    pub(crate) handle: Vec<bool>,
    /// A process on its port, if there is one, is somebody else's.
    pub(crate) foreign: Vec<bool>,
    /// The agent hears of its end, and nothing else: it is being taken over.
    pub(crate) kept_hold_of: Vec<bool>,
    /// Actions since the last thing that went wrong.
    pub(crate) since: u16,
    /// Operations under way, as the notes told.
    pub(crate) observed: Vec<Observed>,
    /// What the core said, where somebody wants to read it.
    pub(crate) story: Option<Vec<String>>,
    /// What does not hold.
    pub(crate) broken: Option<String>,
}

pub(crate) fn id(at: usize) -> EngineId {
    EngineId(u16::try_from(at).unwrap_or(u16::MAX))
}

impl Sys {
    /// At rest, everything where the setting says.
    pub(crate) fn new(config: &Config) -> Self {
        let file = File::of(config);
        let device = |(at, (capacity, max_awake)): (usize, &(u64, u16))| DeviceSpec {
            name: format!("gpu{at}"),
            evidence: true,
            capacity: Some(*capacity * UNIT),
            reserve: Config::RESERVE,
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
            (0..config.first()).map(|at| file.spec(config, at)).collect(),
            config.devices.iter().enumerate().map(device).collect(),
            policy,
            1,
        );
        let mut procs = Vec::new();
        for (e, s) in node.engines.iter_mut().zip(&config.engines) {
            let bytes = |tier| revised::bytes(s.size, tier);
            for tier in [Tier::Awake, Tier::Parked, Tier::Level1, Tier::Level2] {
                // Whatever runs was measured awake when it was started.
                let is_there = s.at == tier && !config.revisions.menu.is_empty();
                if !config.cold || is_there || (tier == Tier::Awake && s.at != Tier::Stopped) {
                    e.footprints[tier as usize] =
                        Some(Footprint { device: Some(bytes(tier)), host: Some(1) });
                }
            }
            (e.tier, e.to_boot) = (s.at, false);
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
        let none = vec![false; config.first()];
        let sys = Sys {
            goal: config.engines.iter().take(config.first()).map(|s| s.at == Tier::Awake).collect(),
            tampered: none.clone(),
            held: none.clone(),
            in_use: none.clone(),
            runs: none.clone(),
            handle: config.engines.iter().take(config.first()).map(|s| s.at != Tier::Stopped).collect(),
            foreign: none.clone(),
            kept_hold_of: none,
            file,
            edits: config.revisions.edits,
            asks: config.gateway.asks,
            node,
            procs,
            pending: Vec::new(),
            exits: Vec::new(),
            surveys: Vec::new(),
            blind: false,
            commands: config.commands,
            faults: config.faults,
            crashes: config.crashes,
            ticks: if config.surveys { 2 } else { 0 },
            since: 0,
            observed: Vec::new(),
            dropped: false,
            misread: 0,
            story: None,
            broken: None,
        };
        sys.with_strangers(config)
    }

    pub(crate) fn caps(config: &Config, e: EngineId) -> Capabilities {
        config.engines[usize::from(e.0)].caps
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(what.into());
        }
    }

    /// Device bytes as they are.
    pub(crate) fn used(&self, config: &Config, device: DeviceId) -> u64 {
        let on = |at: &usize| config.engines[*at].devices.contains(&device.0);
        (0..self.procs.len()).filter(on).map(|at| self.procs[at].bytes(self.size(config, at))).sum()
    }

    pub(crate) fn room(&self, config: &Config, e: EngineId) -> u64 {
        let devices = config.engines[usize::from(e.0)].devices.iter();
        devices
            .map(|d| {
                (config.devices[usize::from(*d)].0 * UNIT).saturating_sub(self.used(config, DeviceId(*d)))
            })
            .min()
            .unwrap_or(0)
    }

    pub(crate) fn share_a_device(&self, a: EngineId, b: EngineId) -> bool {
        self.node.engine(a).spec.devices.iter().any(|d| self.node.engine(b).spec.devices.contains(d))
    }

    /// Whether what really happens may differ from what the ledger says for a reason that nobody could see.
    pub(crate) fn excused(&self) -> bool {
        self.blind || self.tampered.iter().any(|t| *t)
    }

    pub(crate) fn waits_for_nothing(&self) -> bool {
        self.pending.is_empty() && self.exits.is_empty()
    }

    /// All devices are read.
    pub(crate) fn read_devices(&mut self, config: &Config, now: Moment) {
        if !self.exits.is_empty() {
            self.misread = 2;
        } else if self.node.operations.is_empty() {
            self.misread = self.misread.saturating_sub(1);
        }
        for (at, (capacity, _)) in config.devices.iter().enumerate() {
            let device = DeviceId(u16::try_from(at).unwrap_or(0));
            let used = self.used(config, device);
            self.feed(config, Event::DeviceRead { device, capacity: *capacity * UNIT, used }, now);
        }
    }

    /// Whether a command is about engines that are there: nobody else's can be named.
    pub(crate) fn can_be_asked(&self, request: &Request) -> bool {
        request.engine().is_none_or(|engine| usize::from(engine.0) < self.procs.len())
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
                let running = Some(u64::from(self.in_use[usize::from(engine.0)]));
                let survey = Survey { sleeping, running, tokens: None, device_bytes: None };
                self.feed(config, Event::Surveyed { engine, generation, survey }, now);
            }
            Act::Die(at) => {
                fault(self);
                self.die(EngineId(*at));
            }
            Act::Arrive(at) => {
                fault(self);
                self.stranger_comes(config, usize::from(*at), now);
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
                let size = self.size(config, e);
                self.procs[e].call(&caps, size, call, room);
            }
            Act::Gateway(at, does) => self.does(config, *at, *does, now),
            Act::Crash(leaves) => {
                self.crashes = self.crashes.saturating_sub(1);
                self.since = 0;
                self.crash(config, *leaves, now);
            }
            Act::Revise(at) => self.revise(config, config.revisions.menu[*at], now),
            Act::Quiet => self.be_quiet(config, now),
            Act::Tick => {
                self.ticks = self.ticks.saturating_sub(1);
                self.feed(config, Event::Tick, now);
                self.read_devices(config, now);
                self.look_at_ports(config, now);
            }
        }
    }
}
