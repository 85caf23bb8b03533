//! The configuration file, what the core is told of it when it changes, and what must hold then.
//!
//! The file is kept here, and with which version of an engine's settings its process was started, so that the core's own
//! idea of both is held against something. What the shell tells is judged as the shell judges it: against what a process
//! runs with, not against what was configured last.

use super::{Config, Setting, Sys, UNIT, id};
use crate::world::Size;
use hotbunk_core::backoff::BackoffPolicy;
use hotbunk_core::call::SleepingAnswer;
use hotbunk_core::creep::IDLE_SURVEYS;
use hotbunk_core::event::{By, Event, Request, Survey};
use hotbunk_core::ids::DeviceId;
use hotbunk_core::revise::{Change, DeviceSettings, Revised, Revision};
use hotbunk_core::spec::{EngineSpec, Estimate, Levels, Timeouts, Turn};
use hotbunk_core::state::{Condition, Engine, Footprint};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::time::Duration;

/// What may change in the file. Each is its own way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Edit {
    /// What an engine's process is started with: the other version.
    Process(u16),
    /// What the agent alone goes by: another tier to rest in.
    Own(u16),
    /// An engine is removed, or added.
    Listed(u16),
    /// A device may have one more engine awake, or one less.
    Awake(u16),
}

/// What may be edited.
#[derive(Debug, Clone, Default)]
pub(crate) struct Revisions {
    /// What.
    pub(crate) menu: Vec<Edit>,
    /// How often.
    pub(crate) edits: u8,
    /// So many of the engines, the last ones, are not in the file at first.
    pub(crate) later: usize,
}

/// What the file says of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    /// It is in it.
    pub(crate) listed: bool,
    /// The other version of what its process is started with.
    pub(crate) process: bool,
    /// The other tier to rest in.
    own: bool,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct File {
    pub(crate) engines: Vec<Entry>,
    /// One more may be awake, by device.
    more: Vec<bool>,
}

impl File {
    pub(crate) fn of(config: &Config) -> Self {
        let first = config.engines.len() - config.revisions.later;
        let entry = |at| Entry { listed: at < first, process: false, own: false };
        File {
            engines: (0..config.engines.len()).map(entry).collect(),
            more: vec![false; config.devices.len()],
        }
    }

    fn edit(&mut self, edit: Edit) {
        let flag = match edit {
            Edit::Process(at) => &mut self.engines[usize::from(at)].process,
            Edit::Own(at) => &mut self.engines[usize::from(at)].own,
            Edit::Listed(at) => &mut self.engines[usize::from(at)].listed,
            Edit::Awake(at) => &mut self.more[usize::from(at)],
        };
        *flag = !*flag;
    }

    pub(crate) fn max_awake(&self, config: &Config, device: usize) -> u16 {
        config.devices[device].1 + u16::from(self.more[device])
    }

    /// An engine's specification as the file has it.
    pub(crate) fn spec(&self, config: &Config, at: usize) -> EngineSpec {
        let (s, entry) = (&config.engines[at], self.engines[at]);
        let size = s.sized(entry.process);
        let other = if s.caps.routes.release_kv_cache { Tier::Parked } else { Tier::Level2 };
        EngineSpec {
            name: ["A", "B", "C", "D"][at % 4].to_owned(),
            devices: s.devices.iter().map(|d| DeviceId(*d)).collect(),
            levels: Levels { parked: true, level1: true, level2: s.caps.can_level2() },
            rest: if entry.own { other } else { s.rest },
            autostart: true,
            rehearse: config.rehearse,
            estimate: Estimate {
                weights: Some(size.weights),
                kv_cache: Some(size.kv),
                residual: size.residual,
                ..Estimate::default()
            },
            timeouts: Timeouts::default(),
            stop_grace: Duration::from_secs(5),
            backoff: BackoffPolicy { budget: 3, ..BackoffPolicy::default() },
            turn: Turn {
                min_residency: Duration::ZERO,
                pinned: config.gateway.pinned.iter().any(|p| usize::from(*p) == at),
                ..Turn::default()
            },
            ladder: config.gateway.ladder(at),
            recycle: hotbunk_core::creep::Recycle::default(),
        }
    }

    /// What was measured of it with these settings.
    pub(crate) fn measured(&self, config: &Config, at: usize) -> [Option<Footprint>; 5] {
        let size = config.engines[at].sized(self.engines[at].process);
        let mut all = [None; 5];
        for tier in
            [Tier::Awake, Tier::Parked, Tier::Level1, Tier::Level2].into_iter().filter(|_| !config.cold)
        {
            all[tier as usize] = Some(Footprint { device: Some(bytes(size, tier)), host: Some(1) });
        }
        all
    }
}

/// Bytes of an engine at a tier.
pub(crate) fn bytes(size: Size, tier: Tier) -> u64 {
    match tier {
        Tier::Awake => size.weights + size.kv + size.residual,
        Tier::Parked => size.weights + size.residual,
        Tier::Level1 | Tier::Level2 => size.residual,
        Tier::Stopped => 0,
    }
}

impl Setting {
    /// Its sizes by this version of its settings.
    pub(crate) fn sized(&self, other: bool) -> Size {
        if other { Size { kv: self.other_kv, ..self.size } } else { self.size }
    }
}

impl Sys {
    /// Sizes of the process that an engine has.
    pub(crate) fn size(&self, config: &Config, at: usize) -> Size {
        config.engines[at].sized(self.runs[at])
    }

    /// A process is started with what is in force then.
    pub(crate) fn started(&mut self, config: &Config, at: usize) {
        (self.runs[at], self.handle[at]) = (self.in_force(config, at), true);
    }

    /// Whether the other version of an engine's settings is in force.
    pub(crate) fn in_force(&self, config: &Config, at: usize) -> bool {
        let s = &config.engines[at];
        s.other_kv != s.size.kv && self.node.engines[at].spec.estimate.kv_cache == Some(s.other_kv)
    }

    /// World and observers know of engines that the core has been told of.
    pub(crate) fn grow(&mut self) {
        let engines = self.node.engines.len();
        self.procs.resize(engines, crate::world::Proc::stopped());
        for flags in [
            &mut self.goal,
            &mut self.tampered,
            &mut self.held,
            &mut self.runs,
            &mut self.handle,
            &mut self.in_use,
            &mut self.foreign,
            &mut self.kept_hold_of,
        ] {
            flags.resize(engines, false);
        }
    }

    /// The file changes and is read.
    pub(crate) fn revise(&mut self, config: &Config, edit: Edit, now: Moment) {
        self.edits = self.edits.saturating_sub(1);
        self.since = 0;
        self.file.edit(edit);
        for at in 0..self.goal.len() {
            self.goal[at] &= self.file.engines[at].listed;
        }
        let known = self.node.engines.len();
        let revised = |at: usize, process: bool| Revised {
            spec: self.file.spec(config, at),
            process,
            footprints: self.file.measured(config, at),
        };
        let change = |at: usize| {
            let e = &self.node.engines[at];
            let wanted = self.file.engines[at];
            let in_force = self.in_force(config, at);
            let runs_with = if self.handle[at] { self.runs[at] } else { in_force };
            if !wanted.listed {
                return Change::Retired;
            }
            let process = wanted.process != runs_with;
            if !process && wanted.process == in_force && e.spec == self.file.spec(config, at) {
                return Change::Same;
            }
            Change::Settings(Box::new(revised(at, process)))
        };
        let added = (known..config.engines.len()).filter(|at| self.file.engines[*at].listed);
        let devices = self.node.devices.iter().enumerate().map(|(at, d)| DeviceSettings {
            reserve: d.spec.reserve,
            slack: d.spec.slack,
            max_awake: self.file.max_awake(config, at),
        });
        let revision = Revision {
            engines: (0..known).map(change).collect(),
            added: added.map(|at| revised(at, true)).collect(),
            devices: devices.collect(),
            policy: self.node.policy,
        };
        self.feed(config, Event::Revised(Box::new(revision)), now);
    }

    /// Whether somebody waits for an idle moment, and it is not known yet that this is one.
    pub(crate) fn may_be_quiet(&self) -> bool {
        self.waits_for_nothing() && !self.is_known_to_be_quiet()
    }

    fn is_known_to_be_quiet(&self) -> bool {
        let waits = |e: &Engine| e.retired || e.revised.as_ref().is_some_and(|revised| revised.process);
        if !self.node.engines.iter().any(|e| e.process && waits(e)) {
            return true;
        }
        let seen = |at: usize| {
            let e = &self.node.engines[at];
            let at_rest = e.process && !e.dead && e.condition == Condition::Settled;
            !at_rest || self.in_use[at] || e.watch.idle == IDLE_SURVEYS
        };
        (0..self.procs.len()).all(seen)
    }

    /// For a while nothing comes but surveys, which say who is in use.
    pub(crate) fn be_quiet(&mut self, config: &Config, now: Moment) {
        for _ in 0..IDLE_SURVEYS {
            self.feed(config, Event::Tick, now);
            for at in 0..self.procs.len() {
                let engine = id(at);
                let generation = self.node.engine(engine).generation;
                let is_sleeping = self.procs[at].is_sleeping(&Self::caps(config, engine));
                let survey = Survey {
                    sleeping: SleepingAnswer::Says { is_sleeping },
                    running: Some(u64::from(self.in_use[at])),
                    tokens: None,
                    device_bytes: None,
                };
                if self.procs[at].alive && !self.foreign[at] {
                    self.feed(config, Event::Surveyed { engine, generation, survey }, now);
                }
            }
        }
    }

    /// The agent begins something of its own accord: nobody is put out by a new file, and nobody is restarted for nothing.
    pub(crate) fn of_its_own(&mut self, request: &Request, by: By) {
        if by != By::Agent {
            return;
        }
        let (engine, whole) = match request {
            Request::Restart { engine, .. } => (*engine, true),
            Request::Stop { engine, .. } => (*engine, false),
            _ => return,
        };
        let at = usize::from(engine.0);
        let entry = self.file.engines[at];
        let name = self.node.engine(engine).spec.name.clone();
        if whole && entry.listed && self.runs[at] == entry.process {
            self.fail(format!("{name} is restarted for nothing"));
        }
        if !whole && entry.listed {
            self.fail(format!("{name} is stopped, and is configured"));
        }
        let used = |other: &usize| self.in_use[*other] && self.share_a_device(engine, id(*other));
        if self.in_use[at] || (whole && (0..self.procs.len()).any(|other| used(&other))) {
            self.fail(format!("{name} is put out while somebody is served"));
        }
    }

    /// Whether an engine can be started as the file has it, beside all that is there.
    fn fits(&self, config: &Config, at: usize) -> bool {
        let size = config.engines[at].sized(self.file.engines[at].process);
        config.engines[at].devices.iter().all(|device| {
            let d = DeviceId(*device);
            let own = if self.port_is_taken(at) { 0 } else { self.procs[at].bytes(self.size(config, at)) };
            let beside = self.used(config, d).saturating_sub(own);
            beside + bytes(size, Tier::Awake) + Config::RESERVE
                <= config.devices[usize::from(*device)].0 * UNIT
        })
    }

    /// Where nothing is owed any more: all is as the file says.
    pub(crate) fn the_file_is_in_force(&mut self, config: &Config) {
        for at in 0..self.node.devices.len() {
            if self.node.devices[at].spec.max_awake != self.file.max_awake(config, at) {
                return self.fail("a device goes by older settings");
            }
        }
        let nobody = !self.in_use.contains(&true) && !self.held.contains(&true);
        let is_quiet = self.is_known_to_be_quiet() && nobody;
        for at in 0..self.procs.len() {
            let (e, entry) = (&self.node.engines[at], self.file.engines[at]);
            let name = e.spec.name.clone();
            let given_up = matches!(e.condition, Condition::Failed(_));
            let left = (0..self.procs.len()).any(|o| self.procs[o].leftover > 0);
            let fits = self.fits(config, at);
            let paused = self.node.paused.is_some();
            // What has gone is only believed when it has been seen twice.
            let unseen = (0u16..)
                .zip(&self.node.devices)
                .any(|(device, d)| d.foreign > self.foreign_bytes(config, DeviceId(device)));
            let excused = self.excused() || given_up || left || self.foreign[at] || !fits || paused || unseen;
            let alive = self.procs[at].alive && !self.foreign[at];
            if !entry.listed && (alive || e.process || e.held + e.reserved > 0) && is_quiet && !excused {
                return self.fail(format!("{name} is not configured, and is still there"));
            }
            // A server of other settings that was taken over waits for an operator's restart.
            let taken_over = alive && e.other_settings && e.revised.is_none();
            if !entry.listed || excused || taken_over {
                continue;
            }
            if e.retired {
                return self.fail(format!("{name} is configured, and retired"));
            }
            // What is frozen in it would not survive; whoever wakes it ends that.
            if alive && self.runs[at] != entry.process && is_quiet && !e.frozen {
                return self.fail(format!("{name} runs with older settings for ever"));
            }
            let waits = e.revised.as_ref().is_some_and(|revised| revised.process) && e.process;
            let wanted = self.file.spec(config, at);
            if !waits && (e.revised.is_some() || e.spec != wanted) {
                return self.fail(format!("{name} goes by older settings"));
            }
            let stops = config.menu.iter().any(|request| matches!(request, Request::Stop { .. }));
            let is_new = at >= config.first() && !stops;
            if is_quiet && !e.process && e.condition == Condition::Settled && is_new {
                return self.fail(format!("{name} is new and was never started"));
            }
        }
    }
}

impl Config {
    /// How many engines there are at first.
    pub(crate) fn first(&self) -> usize {
        self.engines.len() - self.revisions.later
    }

    /// The device specification's figures that never change.
    pub(crate) const RESERVE: u64 = UNIT;
}
