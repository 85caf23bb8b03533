//! A server that somebody else has started on an engine's port: until it is the engine, it is nobody's to touch, and its
//! bytes are foreign.

use super::{Config, Sys, id};
use crate::world::Proc;
use hotbunk_core::effect::Action;
use hotbunk_core::event::{Event, Request};
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::kept::KeptWork;
use hotbunk_core::program::Step;
use hotbunk_core::state::{Condition, Node, Stage};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;

impl Sys {
    /// Those that are there at first, awake, and seen as foreign memory.
    pub(crate) fn with_strangers(mut self, config: &Config) -> Self {
        for (at, setting) in config.engines.iter().enumerate().filter(|(_, s)| s.stranger.is_some()) {
            self.foreign[at] = true;
            self.runs[at] = setting.stranger.unwrap_or_default();
            self.procs[at] = Proc::awake();
            let bytes = self.procs[at].bytes(self.size(config, at));
            for device in &setting.devices {
                let d = &mut self.node.devices[usize::from(*device)];
                (d.foreign, d.foreign_seen) = (d.foreign + bytes, d.foreign_seen + bytes);
            }
        }
        self
    }

    /// Somebody else's server runs on its port.
    pub(crate) fn port_is_taken(&self, at: usize) -> bool {
        self.foreign[at] && self.procs[at].alive
    }

    /// An action begins that concerns somebody else's server: it may be looked at, and asked for a token once it is held.
    pub(crate) fn hands_off(&mut self, action: &Action) {
        let at = usize::from(action.engine().0);
        let allowed = match action {
            Action::Hold { .. } | Action::LetGo { .. } | Action::Spawn { .. } | Action::AwaitUsed { .. } => {
                true
            }
            Action::Probe { .. } | Action::WarmUp { .. } | Action::Keep { .. } => self.kept_hold_of[at],
            _ => false,
        };
        if self.port_is_taken(at) && !allowed {
            self.fail(format!("hands are laid on a server that is not ours: {action:?}"));
        }
    }

    /// After every step: until it is ours nothing of it is charged to the engine, and all of it is counted as foreign.
    pub(crate) fn what_is_foreign_is_not_ours(&mut self, config: &Config) {
        for at in (0..self.procs.len()).filter(|at| self.port_is_taken(*at)) {
            let (e, bytes) = (&self.node.engines[at], self.procs[at].bytes(self.size(config, at)));
            let counted = e.spec.devices.iter().all(|d| self.node.device(*d).foreign >= bytes);
            // A start that is about to find the port taken has reserved what it would have taken.
            let starts = e.condition == Condition::Moving;
            if e.admission || (!starts && (e.process || e.held + e.reserved > 0)) {
                return self.fail(format!("{} is taken for ours, and is not", e.spec.name));
            }
            let is_news = self.is_released(id(at));
            if !counted && !is_news && !self.excused() && self.misread == 0 && self.exits.is_empty() {
                return self.fail(format!("the bytes of the server on {}'s port are nobody's", e.spec.name));
            }
        }
    }

    /// Whether somebody may start a server there: nothing is under way, and there is room. Or they start again what had been
    /// taken over, which has just ended and whose memory is awaited.
    pub(crate) fn may_arrive(&self, config: &Config, at: usize) -> bool {
        let (e, size) = (&self.node.engines[at], self.size(config, at));
        let down = !self.procs[at].alive && self.procs[at].leftover == 0 && !self.handle[at];
        let at_rest = !e.process && self.node.operation_on(&e.spec.devices).is_none();
        let again = e.taken_over && self.is_released(id(at));
        let room = size.weights + size.kv + size.residual <= self.room(config, id(at));
        down && (at_rest || again) && self.exits.is_empty() && room
    }

    /// Whether an engine has ended and what it held is awaited.
    fn is_released(&self, engine: EngineId) -> bool {
        let awaited = Step::AwaitRelease { engine, tier: Tier::Stopped };
        self.node.operations.iter().any(|op| op.current.as_ref().is_some_and(|c| c.step == awaited))
    }

    /// It comes, and is seen as foreign memory: once may be a neighbour's growth, twice is somebody. While something is under
    /// way nobody looks.
    pub(crate) fn stranger_comes(&mut self, config: &Config, at: usize, now: Moment) {
        self.foreign[at] = true;
        self.procs[at] = Proc::awake();
        if self.is_released(id(at)) {
            return;
        }
        let engine = &self.node.engines[at];
        for device in engine.spec.devices.clone() {
            let bytes = self.foreign_bytes(config, device);
            let d = &mut self.node.devices[usize::from(device.0)];
            (d.foreign, d.foreign_seen) = (d.foreign.max(bytes), d.foreign_seen.max(bytes));
        }
        self.read_devices(config, now);
    }

    /// Bytes of theirs on a device.
    pub(crate) fn foreign_bytes(&self, config: &Config, device: DeviceId) -> u64 {
        let theirs = |at: &usize| self.port_is_taken(*at) && config.engines[*at].devices.contains(&device.0);
        (0..self.procs.len()).filter(theirs).map(|at| self.procs[at].bytes(self.size(config, at))).sum()
    }

    /// It ends by itself. Who holds it hears of it.
    pub(crate) fn stranger_ends(&mut self, at: usize) {
        let e = id(at);
        self.orphan(e);
        self.procs[at].die();
        self.foreign[at] = false;
        if std::mem::take(&mut self.kept_hold_of[at]) {
            self.exits.push((e, self.node.engine(e).life));
        }
    }

    /// Somebody looks at the ports of engines that wait without a process.
    pub(crate) fn look_at_ports(&mut self, config: &Config, now: Moment) {
        for at in 0..self.procs.len() {
            let e = &self.node.engines[at];
            let waits =
                matches!(e.condition, Condition::PortTaken | Condition::NoRoom | Condition::Backoff(_));
            if !e.process && waits && self.foreign.len() > at && config.has_strangers() {
                let taken = self.port_is_taken(at).then(String::new);
                self.feed(config, Event::Port { engine: id(at), taken }, now);
            }
        }
    }

    /// A new agent goes on taking it over where that was under way, and lets go of it else.
    pub(crate) fn held_by_the_next(&mut self, work: &KeptWork) {
        for at in 0..self.procs.len() {
            let goes_on = work
                .operations
                .iter()
                .any(|op| op.request == Request::Adopt(id(at)) && op.stage == Stage::Forward);
            self.kept_hold_of[at] &= goes_on && self.port_is_taken(at);
        }
    }

    /// With the core's word that it is the engine it is.
    pub(crate) fn is_ours_now(&mut self, e: EngineId) {
        let at = usize::from(e.0);
        (self.foreign[at], self.kept_hold_of[at], self.handle[at]) = (false, false, true);
    }
}

impl Config {
    pub(crate) fn has_strangers(&self) -> bool {
        self.arrivals || self.engines.iter().any(|s| s.stranger.is_some())
    }
}

/// The work of a former agent as the next one reads it: what is about an engine that is not configured any more is left
/// out.
pub(crate) fn read_by(node: &Node, work: KeptWork, listed: impl Fn(usize) -> bool) -> KeptWork {
    let mut named = node.clone();
    for (at, e) in named.engines.iter_mut().enumerate().filter(|(at, _)| !listed(*at)) {
        e.spec.name = format!("gone-{at}");
    }
    work.onto(&named)
}
