//! What the world answers to an action: as it has it, or as it may go wrong.

use super::{Config, How, Pending, Sys};
use crate::world::{Proc, Seen, Weights, refused};
use hotbunk_core::call::{Call, CallOutcome, SleepLevel, SleepingAnswer};
use hotbunk_core::effect::{Action, ProbeKind, Shown, StepResult, TakenIn};
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::time::Moment;

impl Sys {
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
            Action::Ready { .. } | Action::WarmUp { .. } | Action::Hold { .. } | Action::Keep { .. } => {
                &[How::Refused, How::Dies]
            }
            Action::LetGo { .. } => &[],
        }
    }

    pub(crate) fn orphan(&mut self, e: EngineId) {
        let of_its = |p: &&mut Pending| {
            p.action.engine() == e && !matches!(p.action, Action::Stop { .. } | Action::AwaitUsed { .. })
        };
        self.pending.iter_mut().filter(of_its).for_each(|p| p.orphaned = true);
    }

    pub(crate) fn die(&mut self, e: EngineId) {
        if self.port_is_taken(usize::from(e.0)) {
            return self.stranger_ends(usize::from(e.0));
        }
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
    pub(crate) fn result(&mut self, config: &Config, action: &Action, how: How, now: Moment) -> StepResult {
        let e = action.engine();
        let at = usize::from(e.0);
        let (caps, size) = (Self::caps(config, e), self.size(config, at));
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
        match action {
            Action::Spawn { .. } if self.port_is_taken(at) => return StepResult::PortTaken(String::new()),
            Action::Spawn { .. } if how != How::Refused => self.started(config, at),
            Action::Hold { .. } if !self.port_is_taken(at) => return StepResult::NotHeld(String::new()),
            Action::Hold { .. } => self.kept_hold_of[at] = how != How::Refused && serving,
            Action::LetGo { .. } => self.kept_hold_of[at] = false,
            Action::Stop { .. } => self.handle[at] = false,
            Action::Keep { .. } if how != How::Refused && serving => self.is_ours_now(e),
            _ => {}
        }
        let as_configured = self.runs[at] == self.in_force(config, at);
        let p = &mut self.procs[at];
        match action {
            Action::Drain { .. }
            | Action::IsSleeping { .. }
            | Action::Ready { .. }
            | Action::WarmUp { .. }
            | Action::Hold { .. }
            | Action::Keep { .. }
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
                // Nor can it be told whose bytes are left where two have ended at once.
                let both = !self.procs[at].alive
                    && self
                        .node
                        .ids()
                        .any(|x| x != e && self.node.engine(x).dead && self.share_a_device(x, e));
                self.blind |= unnoticed || both;
                let within = bounds.iter().zip(&used).all(|(b, (_, used))| {
                    b.at_least.is_none_or(|least| *used >= least)
                        && b.at_most.is_none_or(|most| *used <= most)
                });
                if within || config.planted.unread {
                    StepResult::Reached { used }
                } else {
                    let shown = used.iter().map(|(device, used)| Shown {
                        device: *device,
                        used: *used,
                        own: Some(self.procs[at].bytes(size)),
                        strangers: Some(self.foreign_bytes(config, *device)),
                    });
                    StepResult::OutOfBounds { shown: shown.collect() }
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
            // Proofs: it must be awake, and serve.
            Action::Hold { .. } | Action::Keep { .. } if how == How::Refused || !serving => {
                StepResult::NotHeld(String::new())
            }
            Action::Hold { .. } => StepResult::Held,
            Action::LetGo { .. } => StepResult::LetGo,
            Action::Keep { .. } => {
                let bytes = Some(p.bytes(size));
                let devices = config.engines[at].devices.iter().map(|d| DeviceId(*d));
                let used = devices.map(|d| (d, Some(self.used(config, d)))).collect();
                let (host, remarks) = (Some(1), Vec::new());
                StepResult::TakenIn(Box::new(TakenIn {
                    capabilities: caps,
                    used,
                    bytes,
                    host,
                    as_configured,
                    remarks,
                }))
            }
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

    pub(crate) fn called(
        &mut self,
        config: &Config,
        e: EngineId,
        call: Call,
        how: How,
        room: u64,
    ) -> CallOutcome {
        let at = usize::from(e.0);
        let (caps, size) = (Self::caps(config, e), self.size(config, at));
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
}
