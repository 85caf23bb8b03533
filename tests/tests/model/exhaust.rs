//! What the exhaustive check needs beyond one life: everything that may happen next, and states that are finite.
//!
//! Counters (tickets, lives, generations, operation numbers, moments) are relabelled after every step: order and equality
//! are all that the core may use of them. What never changes is left out of the hash.

use crate::system::{Act, Config, How, NOW, Sys, id};
use hotbunk_core::backoff::Crashes;
use hotbunk_core::effect::{Action, Ticket};
use hotbunk_core::ids::OperationId;
use hotbunk_core::state::{Condition, Costs};
use hotbunk_core::time::Moment;
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// When back-offs have run out.
pub(crate) const LATER: Moment = Moment(2_000_000_000_000);

impl Hash for Sys {
    fn hash<H: Hasher>(&self, h: &mut H) {
        for e in &self.node.engines {
            (e.tier, &e.condition, e.admission, e.process, e.dead, e.life, e.generation).hash(h);
            (e.capabilities.is_some(), &e.footprints, e.held, e.reserved, e.pinned, e.frozen).hash(h);
            (e.restart_only, e.level2_unsafe, e.cannot_park, e.crashes.count(), e.wanted_awake).hash(h);
            e.watch.hash(h);
            (e.demand, e.in_flight, e.retry, e.fall_retry).hash(h);
            (e.spec.rest, e.spec.estimate.kv_cache, &e.revised, e.retired, e.other_settings).hash(h);
            (e.to_boot, e.taken_over).hash(h);
        }
        for d in &self.node.devices {
            (d.foreign, &d.evidence, d.spec.max_awake, &d.revised).hash(h);
        }
        (&self.file, self.edits, &self.runs, &self.handle, &self.in_use, &self.foreign, &self.kept_hold_of)
            .hash(h);
        self.node.operations.hash(h);
        self.node.queue.hash(h);
        (self.node.closing, &self.node.paused).hash(h);
        (&self.held, self.asks).hash(h);
        (&self.procs, &self.pending, &self.exits, &self.surveys, &self.goal, &self.tampered).hash(h);
        (self.blind, self.dropped, self.misread, self.commands, self.faults, self.crashes, self.ticks)
            .hash(h);
        (self.since, &self.broken).hash(h);
        for o in &self.observed {
            (o.id, &o.reported).hash(h);
        }
    }
}

impl Sys {
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
            let may = |at: &usize| self.can_be_asked(&config.menu[*at]);
            out.extend((0..config.menu.len()).filter(may).map(Act::Command));
            out.extend((0..self.node.operations.len()).map(Act::Cancel));
        }
        if self.faults > 0 {
            for at in 0..self.procs.len() {
                let e = id(at).0;
                if config.deaths && self.procs[at].alive {
                    out.push(Act::Die(e));
                }
                if config.arrivals && self.may_arrive(config, at) {
                    out.push(Act::Arrive(e));
                }
                let at_rest = self.node.operation_on(&self.node.engines[at].spec.devices).is_none();
                if config.surveys
                    && at_rest
                    && !self.foreign[at]
                    && self.procs[at].alive
                    && !self.tampered[at]
                {
                    out.push(Act::Meddle(e));
                }
            }
        }
        if self.edits > 0 {
            out.extend((0..config.revisions.menu.len()).map(Act::Revise));
        }
        if self.may_be_quiet() {
            out.push(Act::Quiet);
        }
        if self.crashes > 0 {
            out.extend(self.ways_to_be_killed().into_iter().map(Act::Crash));
        }
        let due = self.node.engines.iter().any(|e| matches!(e.condition, Condition::Backoff(_)));
        out.extend(self.may_do().into_iter().map(|(at, does)| Act::Gateway(at, does)));
        // What is held for an engine that serves is let through before time passes.
        let through = (0..self.held.len()).any(|at| self.held[at] && self.node.engines[at].is_serving());
        let due = due || self.a_port_is_free();
        if due || self.ticks > 0 || (self.node.next_deadline(NOW).is_some() && !through) {
            out.push(Act::Tick);
        }
    }

    /// A port is free again, and nobody has looked.
    fn a_port_is_free(&self) -> bool {
        let waits =
            |at: usize| self.node.engines[at].condition == Condition::PortTaken && !self.port_is_taken(at);
        (0..self.procs.len()).any(waits)
    }

    /// The state after something has happened.
    pub(crate) fn after(&self, config: &Config, act: &Act, now: Moment) -> Sys {
        let mut next = self.clone();
        next.happen(config, act, now);
        next.relabel();
        next.at_rest(config, NOW);
        next
    }

    /// Counters and moments are replaced by their order.
    pub(crate) fn relabel(&mut self) {
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
            e.demand.oldest = e.demand.oldest.map(|_| NOW);
            // Both count from the last wake at the earliest, which is now.
            (e.used_at, e.ladder_from) = (Moment(0), Moment(0));
            for retry in [&mut e.retry, &mut e.fall_retry] {
                let waits = retry.not_before > NOW;
                retry.failures = u32::from(waits);
                retry.not_before = if waits { NOW + Duration::from_secs(1) } else { Moment(0) };
            }
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
        if let Some(paused) = &mut self.node.paused {
            paused.since = NOW;
        }
        self.exits.sort_unstable();
        self.exits.dedup();
        self.surveys.sort_unstable();
        self.surveys.dedup();
    }
}
