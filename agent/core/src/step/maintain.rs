//! Maintenance: everything out of the way on request, and back again.
//!
//! ```text
//!   serving ── pause ──► begins ──────────────► lasts ── resume ──► ends ──► serving
//!                          │ did not succeed      ▲                   │ no room yet
//!                          └──► serving again     └───────────────────┘
//! ```
//!
//! **One operation on all devices**, so that a client has one thing to wait for and one answer: an engine that cannot be
//! drained in time gives the whole pause up, and what served serves again. From its acceptance on nobody is admitted, no
//! demand switches, no ladder falls, no crash is restarted: all of that waits for the resumption. What an operator asks
//! for meanwhile is done.
//!
//! **Where to.** Who pauses a node wants its device memory for something else, and the engines back soon. Level 1 and level
//! 2 free the same (all but the context), so of those that an engine may take the one is taken that is left quicker;
//! parked keeps the weights on the device and is taken only when it is named; where neither level is possible the engine
//! is stopped. `stopped` gives the context back as well. A tier that is named is the least: an engine that may not rest
//! there goes further down, and one that is further down already stays.
//!
//! **Back.** What served is woken or started in turn. An engine that fails on the way is restarted by its back-off as
//! after any crash, the others come back all the same. Where the room is not there yet (whatever the pause was for still
//! holds it) the node stays paused, and can be asked again.

use super::Cx;
use super::admit::{No, Work};
use crate::event::Request;
use crate::ids::EngineId;
use crate::plan;
use crate::program::Step;
use crate::queue::Refusal;
use crate::spec::DrainPolicy;
use crate::state::{Condition, Operation, Paused, Pausing};
use crate::tier::Tier;

impl Cx<'_> {
    /// What a pause has to do.
    pub(super) fn pause(&mut self, asked: Option<Tier>, drain: DrainPolicy) -> Result<Work, No> {
        let (mut awake, mut asleep) = (Vec::new(), Vec::new());
        for engine in self.node.ids() {
            let e = self.node.engine(engine);
            if !e.process || e.dead || matches!(e.condition, Condition::Failed(_)) {
                continue;
            }
            if e.condition != Condition::Settled {
                return Err(Refusal::WrongState {
                    engine: e.spec.name.clone(),
                    is: e.condition_word().to_owned(),
                    hint: "a repair is due; try again when it has ended",
                }
                .into());
            }
            let Some(tier) = self.out_of_the_way(engine, asked, drain)? else { continue };
            if tier != Tier::Stopped {
                plan::evidence(self.node, &self.node.engine(engine).spec.devices)?;
            }
            let legs = if self.node.engine(engine).tier == Tier::Awake { &mut awake } else { &mut asleep };
            legs.push(Step::Fall { engine, tier });
        }
        if self.node.paused.is_some() && awake.is_empty() && asleep.is_empty() {
            return Err(No::Nothing("the node is paused already".to_owned()));
        }
        let outgoing: Vec<EngineId> = awake.iter().filter_map(Step::engine).collect();
        // All stop taking requests at once, so that the last is drained when its turn comes.
        let closes = outgoing.iter().map(|engine| Step::Close(*engine));
        let steps = closes.chain(awake.iter().cloned()).chain(asleep.iter().cloned()).collect();
        Ok(Work { steps, incoming: None, outgoing, strategy: None, order: None, leave: asked, drain })
    }

    /// The tier that takes an engine out of the way; `None` where it is out of it already.
    fn out_of_the_way(
        &self,
        engine: EngineId,
        asked: Option<Tier>,
        drain: DrainPolicy,
    ) -> Result<Option<Tier>, Refusal> {
        let e = self.node.engine(engine);
        let asked_to_stop = asked == Some(Tier::Stopped);
        // Nothing more is freed by going from level 1 to level 2.
        let out = match asked {
            Some(Tier::Stopped) => e.tier == Tier::Stopped,
            Some(Tier::Parked) => e.tier >= Tier::Parked,
            _ => e.tier >= Tier::Level1,
        };
        if out {
            return Ok(None);
        }
        let may = |tier: &Tier| plan::may_fall(self.node, engine, *tier, drain).is_ok();
        let parked = (asked == Some(Tier::Parked)).then_some(Tier::Parked).filter(may);
        let mut levels: Vec<Tier> = [Tier::Level1, Tier::Level2].into_iter().filter(may).collect();
        match asked {
            // The one that was named, if it may be; else the other frees as much.
            Some(Tier::Level2) => levels.reverse(),
            Some(_) => {}
            None => levels.sort_by_key(|tier| plan::leave_cost(e, *tier)),
        }
        let first = parked.or(levels.first().copied()).filter(|_| !asked_to_stop);
        match first {
            Some(tier) => Ok(Some(tier)),
            None => plan::may_fall(self.node, engine, Tier::Stopped, drain).map(|()| Some(Tier::Stopped)),
        }
    }

    /// What a resumption has to do.
    pub(super) fn resume(&mut self, drain: DrainPolicy) -> Work {
        let served = self.node.paused.as_ref().map(|p| p.served.clone()).unwrap_or_default();
        let mut steps = Vec::new();
        for engine in served {
            let e = self.node.engine(engine);
            // Somebody else has been given its place meanwhile.
            if e.is_serving() || e.dead || self.crowded(engine, &[]).is_some() {
                continue;
            }
            match (&e.condition, e.tier) {
                (Condition::Settled, Tier::Parked | Tier::Level1 | Tier::Level2) => {
                    steps.push(Step::Rise(engine));
                }
                (Condition::Settled | Condition::NoRoom, Tier::Stopped) if !e.process => {
                    let rehearse = e.spec.rehearse;
                    steps.push(Step::Launch { engine, rehearse });
                }
                _ => {}
            }
            // One that crashed, or that crashes on its way, comes back awake as well.
            self.node.engine_mut(engine).wanted_awake = true;
        }
        Work { steps, incoming: None, outgoing: Vec::new(), strategy: None, order: None, leave: None, drain }
    }

    /// An operation begins: is it maintenance?
    pub(super) fn maintenance_begins(&mut self, op: &Operation) {
        let since = self.now;
        match (&op.request, &mut self.node.paused) {
            (Request::Pause { .. }, Some(paused)) => {
                let more = op.serving_before.iter().filter(|e| !paused.served.contains(e));
                let more: Vec<EngineId> = more.copied().collect();
                paused.served.extend(more);
            }
            (Request::Pause { .. }, none) => {
                *none = Some(Paused { since, served: op.serving_before.clone(), stage: Pausing::Begins });
            }
            (Request::Resume, Some(paused)) => paused.stage = Pausing::Ends,
            _ => {}
        }
    }

    /// An operation has ended: what it means for maintenance.
    pub(super) fn maintenance_ended(&mut self, op: &Operation) {
        let Some(paused) = self.node.paused.take() else { return };
        let asleep = |id: &EngineId| {
            let e = self.node.engine(*id);
            let rests = matches!(e.condition, Condition::Settled | Condition::NoRoom);
            rests && !e.dead && e.tier != Tier::Awake && self.crowded(*id, &[]).is_none()
        };
        let stage = match (&op.request, paused.stage) {
            (Request::Pause { .. }, Pausing::Begins) if op.failure.is_some() => return,
            (Request::Pause { .. }, Pausing::Begins) => Pausing::Lasts,
            (Request::Resume, _) if op.failure.is_some() && paused.served.iter().any(asleep) => {
                Pausing::Lasts
            }
            (Request::Resume, _) => return,
            (_, stage) => stage,
        };
        self.node.paused = Some(Paused { stage, ..paused });
    }
}
