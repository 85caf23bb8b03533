//! What must hold: of every step, of every action that begins, and where nothing is owed any more.

use super::{Config, Observed, Pending, Sys, id};
use crate::world::Weights;
use hotbunk_core::call::{Call, SleepLevel};
use hotbunk_core::effect::{Action, Effect, Incident, Note, Ticket};
use hotbunk_core::event::{By, Event, Request};
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::invariants;
use hotbunk_core::program::Cause;
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::state::{Condition, Evidence};
use hotbunk_core::step::step;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// More steps than this after the last thing that went wrong: it goes in circles.
const TOO_MANY: u16 = 400;

impl Sys {
    /// One event through the shipped `step`, then everything that must hold.
    pub(crate) fn feed(&mut self, config: &Config, event: Event, now: Moment) {
        let known = self.ids();
        self.feed_known(config, event, now, known);
    }

    /// The same where operations are known that the node has not been told of yet.
    pub(crate) fn feed_known(
        &mut self,
        config: &Config,
        mut event: Event,
        now: Moment,
        mut known: Vec<OperationId>,
    ) {
        if self.broken.is_some() {
            return;
        }
        (config.planted.event)(self, &mut event);
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
        self.grow();
        known.extend((first_new..self.node.next_operation).map(OperationId));
        if let Err(broken) = invariants::check(&self.node) {
            self.fail(broken.to_string());
        }
        self.ends(&known, &effects);
        for effect in effects {
            match effect {
                Effect::Note(note) => {
                    self.tell(&note);
                    self.noted(config, &note);
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
        (config.planted.node)(&mut self.node);
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

    pub(crate) fn ids(&self) -> Vec<OperationId> {
        let ops = self.node.operations.iter().map(|op| op.id);
        ops.chain(self.node.queue.iter().map(|q| q.id)).collect()
    }

    /// Every operation and command ends in exactly one note, when it is no longer known and not before.
    pub(crate) fn ends(&mut self, known: &[OperationId], effects: &[Effect]) {
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

    pub(crate) fn noted(&mut self, config: &Config, note: &Note) {
        match note {
            Note::Accepted { request: Request::Start { engine, .. }, by: By::Agent, .. }
                if config.places_are_taken =>
            {
                let taken = self.node.engine(*engine).spec.devices.iter().any(|d| {
                    let awake = self.node.engines_on(*d).filter(|e| self.node.engine(*e).is_serving());
                    awake.count() >= usize::from(self.node.device(*d).spec.max_awake)
                });
                self.goal[usize::from(engine.0)] &= !taken;
            }
            _ => {}
        }
        if let Note::Accepted { request, by, .. } = note {
            self.of_its_own(request, *by);
            // Who was down for long, or came back into the file, may find its place taken.
            if let (Request::Start { engine, awake: false, .. }, By::Agent, false) =
                (request, by, config.revisions.menu.is_empty())
            {
                self.goal[usize::from(engine.0)] = false;
            }
        }
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
                // Its own ladder puts out of use what nobody uses.
                let ladder = observed.by == By::Agent && matches!(observed.request, Request::Sleep { .. });
                // What one of them has left behind does not undo a handoff that has come to its end.
                let reached = failure.as_ref().is_none_or(|why| {
                    let to = observed.request.engine().filter(|to| self.node.engine(*to).is_serving());
                    why.cause == Cause::Leftovers && observed.outgoing.contains(&why.engine) && to.is_some()
                });
                if reached && (observed.by != By::Agent || ladder) && chooses {
                    let to = observed.request.engine();
                    let switched = !matches!(observed.request, Request::Stop { .. } | Request::Sleep { .. });
                    for at in 0..self.goal.len() {
                        let e = id(at);
                        let involved = to.is_none_or(|to| to == e) || observed.outgoing.contains(&e);
                        // Handing the device over settles who serves on it, also for one that was down meanwhile.
                        if involved || (switched && to.is_some_and(|to| self.share_a_device(e, to))) {
                            self.goal[at] = self.node.engine(e).is_serving() && self.file.engines[at].listed;
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

    pub(crate) fn incident(&mut self, incident: Incident, e: EngineId) {
        if incident == Incident::GivenUp {
            self.goal[usize::from(e.0)] = false;
        }
        match incident {
            Incident::Crashed if self.procs[usize::from(e.0)].alive => {
                self.fail("a crash was reported of an engine that lives");
            }
            Incident::Drifted if !self.tampered[usize::from(e.0)] && !self.blind && !self.dropped => {
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
    pub(crate) fn run(&mut self, config: &Config, ticket: Ticket, action: Action) {
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
        self.hands_off(&action);
        let p = &self.procs[at];
        match &action {
            Action::Probe { .. }
                if p.alive && !self.excused() && !p.broken && (p.weights != Weights::Mapped || !p.kv) =>
            {
                self.fail("I1: a probe goes to an engine whose memory is not there");
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
    pub(crate) fn hold(&mut self, config: &Config) {
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
            let really = if self.foreign[at] { 0 } else { p.bytes(self.size(config, at)) };
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
        self.nobody_switches_in_vain();
        self.what_is_foreign_is_not_ours(config);
        if self.since > TOO_MANY {
            self.fail("it goes in circles");
        }
    }

    /// Where nothing is owed to anybody, no more engines stay awake than may be, if one of them could go.
    fn no_surplus_stays(&mut self, now: Moment) {
        let node = &self.node;
        if node.closing || node.paused.is_some() || node.next_deadline(now).is_some() {
            return;
        }
        let idle = |e: &EngineId| {
            let e = node.engine(*e);
            let seen = e.spec.devices.iter().all(|d| node.device(*d).evidence == Evidence::Good);
            !e.is_busy() && !e.spec.turn.pinned && seen
        };
        let wanted = node.ids().any(|e| node.engine(e).demand.held > 0);
        for (at, device) in node.devices.iter().enumerate() {
            let on = node.engines_on(DeviceId(u16::try_from(at).unwrap_or(0)));
            let awake: Vec<EngineId> = on.filter(|e| node.engine(*e).is_serving()).collect();
            if awake.len() > usize::from(device.spec.max_awake) && awake.iter().any(idle) && !wanted {
                let names: Vec<&str> = awake.iter().map(|e| node.engine(*e).spec.name.as_str()).collect();
                return self.fail(format!("one too many is awake for ever: {}", names.join(", ")));
            }
        }
    }

    /// What must hold where nothing is owed any more.
    pub(crate) fn at_rest(&mut self, config: &Config, now: Moment) {
        let backoff = self.node.engines.iter().any(|e| matches!(e.condition, Condition::Backoff(_)));
        if self.broken.is_some() || !self.waits_for_nothing() || backoff {
            return;
        }
        self.since = 0;
        self.nobody_is_forgotten(now);
        self.no_surplus_stays(now);
        self.the_file_is_in_force(config);
        // What the agent starts of its own accord waits for the end of maintenance.
        let waits = self.node.queue.iter().any(|q| q.by != By::Agent || !self.node.is_paused());
        if !self.node.operations.is_empty() || waits {
            return self.fail("something waits for ever");
        }
        for at in 0..self.procs.len() {
            let (e, p) = (&self.node.engines[at], &self.procs[at]);
            let name = e.spec.name.clone();
            let failed =
                matches!(e.condition, Condition::Failed(_) | Condition::NoRoom | Condition::PortTaken);
            let touched = self.excused();
            if matches!(e.condition, Condition::Moving | Condition::Adrift(_)) || (e.dead && !failed) {
                return self.fail(format!("{name} is stuck"));
            }
            // One that was put to sleep behind our backs is looked at again and again, until there is room to wake it.
            let looked_at = self.tampered[at] && config.arrivals;
            if e.tier == Tier::Awake && e.condition == Condition::Settled && !e.admission && !looked_at {
                return self.fail(format!("{name} is awake and nobody may ask it anything"));
            }
            // Room that is really taken by what outlived a stop, or that nobody could see to be free.
            let left = (0..self.procs.len()).any(|o| {
                let unseen = self.blind && matches!(self.node.engines[o].condition, Condition::Failed(_));
                (self.procs[o].leftover > 0 || unseen) && self.share_a_device(id(o), id(at))
            });
            if self.goal[at] && !e.is_serving() && !failed && !left && !looked_at {
                return self.fail(format!("I5: {name} should serve and does not"));
            }
            if touched || failed {
                continue;
            }
            let counted = |d: DeviceId, bytes: u64| self.node.device(d).foreign >= bytes;
            let as_said = match e.tier {
                Tier::Awake => p.serves(),
                Tier::Parked => p.alive && p.weights == Weights::Mapped && !p.kv && !p.garbage,
                Tier::Level1 => p.alive && p.weights == Weights::Host && !p.kv,
                Tier::Level2 => p.alive && !matches!(p.weights, Weights::Mapped | Weights::Half) && !p.kv,
                // Bytes that outlive a tree of which nothing runs any more are nobody's of ours, if they are counted.
                Tier::Stopped if self.foreign[at] => true,
                Tier::Stopped => !p.alive && e.spec.devices.iter().all(|d| counted(*d, p.leftover)),
            };
            if !as_said {
                let tier = e.tier;
                return self.fail(format!("{name} is said to be at {tier} and is not"));
            }
        }
    }
}
