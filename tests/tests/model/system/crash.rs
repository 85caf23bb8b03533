//! The agent is killed at any instant and another one takes over: a new core, which has what was kept of the old one and
//! what it finds of the world.
//!
//! What had been asked of the world goes on without anybody who listens: it may be done, may never have arrived, or may
//! still run.

use super::stranger::read_by;
use super::{Config, Leaves, Pending, Sys, id};
use crate::world::{Proc, Weights};
use hotbunk_core::adopt::{Adopted, Adoption, Found, Process};
use hotbunk_core::call::SleepingAnswer;
use hotbunk_core::effect::Action;
use hotbunk_core::event::Event;
use hotbunk_core::ids::DeviceId;
use hotbunk_core::revise::Revised;
use hotbunk_core::state::Node;
use hotbunk_core::time::Moment;

impl Sys {
    /// How an agent may leave things now.
    pub(crate) fn ways_to_be_killed(&self) -> Vec<Leaves> {
        let asked = |p: &Pending| {
            let of_a_process = matches!(p.action, Action::Call { .. }) && !p.orphaned;
            let of_a_shim = matches!(
                p.action,
                Action::Spawn { .. } | Action::Stop { .. } | Action::Hold { .. } | Action::LetGo { .. }
            );
            of_a_process || of_a_shim
        };
        let call = self.pending.iter().any(|p| matches!(p.action, Action::Call { .. }) && !p.orphaned);
        let dones: &[bool] = if self.pending.iter().any(asked) { &[true, false] } else { &[false] };
        let silents: &[bool] = if call { &[false, true] } else { &[false] };
        let mut all = Vec::new();
        for done in dones {
            for silent in silents {
                all.extend([false, true].map(|blind| Leaves { done: *done, silent: *silent, blind }));
            }
        }
        all
    }

    pub(crate) fn crash(&mut self, config: &Config, leaves: Leaves, now: Moment) {
        let mut known = self.ids();
        let mut silent = vec![false; self.procs.len()];
        for p in std::mem::take(&mut self.pending) {
            let e = p.action.engine();
            let at = usize::from(e.0);
            match &p.action {
                Action::Call { call, .. } if !p.orphaned && self.procs[at].alive => {
                    silent[at] = leaves.silent;
                    if leaves.done {
                        let room = self.room(config, e);
                        let size = self.size(config, at);
                        self.procs[at].call(&Self::caps(config, e), size, *call, room);
                        self.procs[at].busy = leaves.silent;
                    }
                }
                Action::Hold { .. } if leaves.done && self.port_is_taken(at) => self.kept_hold_of[at] = true,
                Action::LetGo { .. } if leaves.done => self.kept_hold_of[at] = false,
                Action::Spawn { .. } if leaves.done && !self.port_is_taken(at) => {
                    self.started(config, at);
                    let leftover = self.procs[at].leftover;
                    self.procs[at] = Proc { alive: true, leftover, ..Proc::stopped() };
                }
                Action::Stop { .. } if leaves.done && !self.foreign[at] => self.procs[at].die(),
                // Waiting for what runs, looking, and a token more or less change nothing.
                _ => {}
            }
        }
        self.exits.clear();
        self.surveys.clear();
        // Who waited was waiting for the agent that is gone.
        self.held.fill(false);
        self.in_use.fill(false);
        let kept = hotbunk_core::kept::keep(&self.node);
        let listed: Vec<bool> = self.file.engines.iter().map(|entry| entry.listed).collect();
        let mut node = Node::new(
            (0..self.procs.len()).map(|at| self.file.spec(config, at)).collect(),
            self.node.devices.iter().map(|d| d.spec.clone()).collect(),
            self.node.policy,
            self.node.next_operation,
        );
        for (at, d) in node.devices.iter_mut().enumerate() {
            d.spec.max_awake = self.file.max_awake(config, at);
        }
        for (at, e) in node.engines.iter_mut().enumerate() {
            // Whose process is of no engine that is configured is ended before anything else is done. Here, where ids are
            // places, an engine that the next agent does not know is one that is retired.
            e.retired = !listed[at];
            let wanted = self.file.engines[at].process;
            let alive = self.procs[at].alive;
            let of_others = self.runs[at] != wanted || (!alive && self.in_force(config, at) != wanted);
            if !listed[at] {
                self.handle[at] = false;
                if !self.port_is_taken(at) {
                    self.procs[at] = Proc::stopped();
                }
            } else if of_others && !self.foreign[at] {
                e.footprints = self.file.measured(config, at);
                let (spec, footprints) = (e.spec.clone(), e.footprints);
                e.revised = Some(Box::new(Revised { spec, process: true, footprints }));
            }
        }
        let work = read_by(&node, kept.work, |at| listed[at]);
        let read: Vec<_> =
            work.operations.iter().map(|op| op.id).chain(work.queue.iter().map(|q| q.id)).collect();
        if known.iter().any(|id| !read.contains(id)) {
            // What it has moved until then stays where it is, until somebody asks for it.
            self.dropped = true;
            self.goal.fill(false);
        }
        known.retain(|id| read.contains(id));
        self.held_by_the_next(&work);
        std::mem::swap(&mut self.node, &mut node);
        let engines = kept.engines.into_iter().enumerate().filter(|(at, _)| listed[*at]);
        let engines = engines.map(|(at, kept)| Adopted {
            engine: id(at),
            found: self.found(config, at, silent[at], leaves.blind, kept.process),
            kept: Some(kept),
        });
        let adoption = Adoption {
            engines: engines.collect(),
            devices: kept.devices.into_iter().enumerate().map(|(at, d)| (device(at), d)).collect(),
            used: Vec::new(),
            work: Some(work),
        };
        self.feed_known(config, Event::Adopted(Box::new(adoption)), now, known);
        self.feed(config, Event::Boot { awake: Vec::new() }, now);
    }

    fn found(&self, config: &Config, at: usize, silent: bool, blind: bool, had_process: bool) -> Found {
        let caps = config.engines[at].caps;
        let p = &self.procs[at];
        let process = match (p.alive, had_process) {
            (true, _) if self.foreign[at] && !self.kept_hold_of[at] => Process::None,
            (true, _) => Process::Lives,
            (false, true) => Process::Ended(String::new()),
            (false, false) => Process::None,
        };
        // One that is not loaded yet has nobody who answers.
        let is_there = process == Process::Lives;
        let answers = is_there && !silent && p.weights != Weights::None;
        let sleeping = if answers {
            SleepingAnswer::Says { is_sleeping: p.is_sleeping(&caps) }
        } else {
            SleepingAnswer::Unknown
        };
        let bytes = (is_there && !blind).then(|| p.bytes(self.size(config, at)) - p.leftover);
        Found { sleeping, bytes, capabilities: answers.then_some(caps), ..Found::only(process) }
    }
}

fn device(at: usize) -> DeviceId {
    DeviceId(u16::try_from(at).unwrap_or(u16::MAX))
}
