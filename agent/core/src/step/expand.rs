//! Legs become single steps when their turn comes, from what is true then.

use super::Cx;
use crate::effect::ProbeKind;
use crate::ids::{EngineId, OperationId};
use crate::plan;
use crate::program::Step;
use crate::revise;
use crate::sequence;
use crate::spec::DrainPolicy;
use crate::state::{Condition, Evidence, Operation};
use crate::tier::Tier;
use std::time::Duration;

impl Cx<'_> {
    /// The single steps of a leg; `None` for a single step; `Err` with the reason where the leg cannot begin.
    pub(super) fn expand(&mut self, id: OperationId, step: &Step) -> Option<Result<Vec<Step>, String>> {
        match step {
            Step::Fall { engine, tier } => Some(self.fall(id, *engine, *tier)),
            Step::Rise(engine) => Some(self.rise(*engine)),
            Step::Launch { engine, rehearse } => {
                // Settings that came meanwhile may name devices that this operation has not: they wait for the next start.
                let devices = revise::devices(self.node.engine(*engine));
                let has = |op: &Operation| op.id == id && devices.iter().all(|d| op.devices.contains(d));
                if self.node.operations.iter().any(has) {
                    self.revise(*engine);
                }
                Some(self.launch(*engine, *rehearse))
            }
            Step::Kill(engine) => Some(Ok(vec![
                Step::Close(*engine),
                Step::Take(*engine),
                Step::Stop { engine: *engine, grace: Duration::ZERO },
                Step::AwaitRelease { engine: *engine, tier: Tier::Stopped },
                Step::Bury(*engine),
            ])),
            Step::Rehearse(engine) => Some(Ok(self.rehearsal(*engine))),
            Step::Restore => Some(Ok(self.restore(id))),
            _ => None,
        }
    }

    fn fall(&mut self, id: OperationId, engine: EngineId, tier: Tier) -> Result<Vec<Step>, String> {
        let e = self.node.engine(engine);
        if !e.process || e.tier == tier && e.condition == Condition::Settled {
            return Ok(Vec::new());
        }
        let drain =
            self.node.operations.iter().find(|op| op.id == id).map_or(DrainPolicy::Wait, |op| op.drain);
        // After a start whose rehearsal failed, the tier it should rest in is no more to be had.
        let tier = match plan::may_fall(self.node, engine, tier, drain) {
            Err(_) if e.restart_only => Tier::Stopped,
            _ => tier,
        };
        let settled = e.condition == Condition::Settled;
        if tier == Tier::Stopped {
            let grace = e.spec.stop_grace;
            let drain = (settled && e.tier == Tier::Awake).then_some(Step::Drain(engine));
            return Ok([Some(Step::Close(engine)), drain]
                .into_iter()
                .flatten()
                .chain([
                    Step::Take(engine),
                    Step::Stop { engine, grace },
                    Step::AwaitRelease { engine, tier },
                    Step::Settle { engine, tier },
                ])
                .collect());
        }
        let Some(caps) = e.capabilities.filter(|_| settled) else {
            return Err(format!("{} is {}", e.spec.name, e.condition_word()));
        };
        let calls =
            sequence::enter(&caps, e.tier, tier, drain).map_err(|why| format!("{}: {why}", e.spec.name))?;
        let mut steps = vec![Step::Close(engine), Step::Drain(engine), Step::Take(engine)];
        steps.extend(calls.into_iter().map(|call| Step::Call { engine, call }));
        steps.extend([Step::ConfirmAsleep(engine), Step::AwaitRelease { engine, tier }]);
        if self.is_to_be_measured(engine, tier) {
            steps.push(Step::Measure { engine, tier });
        }
        steps.push(Step::Settle { engine, tier });
        Ok(steps)
    }

    /// Nobody knows what it takes there, and it can be seen.
    fn is_to_be_measured(&self, engine: EngineId, tier: Tier) -> bool {
        let e = self.node.engine(engine);
        let seen = e.spec.devices.iter().all(|d| self.node.device(*d).evidence == Evidence::Good);
        e.footprints[tier as usize].is_none() || (seen && e.measured(tier).is_none())
    }

    fn rise(&self, engine: EngineId) -> Result<Vec<Step>, String> {
        let e = self.node.engine(engine);
        let asleep = matches!(e.tier, Tier::Parked | Tier::Level1 | Tier::Level2);
        let Some(caps) = e.capabilities.filter(|_| asleep && e.condition == Condition::Settled) else {
            return Err(format!("{} is {}", e.spec.name, e.condition_word()));
        };
        let kind = if e.tier == Tier::Level2 { ProbeKind::LongCanary } else { ProbeKind::Canary };
        let mut steps = vec![Step::ReserveWake(engine), Step::Take(engine)];
        steps.extend(wake(&caps, engine, e.tier));
        steps.push(Step::Probe { engine, kind, counted: true });
        // A start has measured it, unless that was before an agent whose journal is gone.
        if self.is_to_be_measured(engine, Tier::Awake) {
            steps.push(Step::Measure { engine, tier: Tier::Awake });
        }
        steps.extend([Step::Settle { engine, tier: Tier::Awake }, Step::Open(engine)]);
        Ok(steps)
    }

    fn launch(&self, engine: EngineId, rehearse: bool) -> Result<Vec<Step>, String> {
        let e = self.node.engine(engine);
        if e.retired {
            // It may have been removed since this was begun.
            return Err(format!("{} is not configured any more", e.spec.name));
        }
        let failed = matches!(e.condition, Condition::Failed(_));
        if e.process || failed {
            return Err(format!("{} is {}", e.spec.name, e.condition_word()));
        }
        let mut steps = vec![
            Step::ReserveStart(engine),
            Step::Take(engine),
            Step::Spawn(engine),
            Step::Ready(engine),
            Step::Probe { engine, kind: ProbeKind::FirstToken, counted: true },
            Step::WarmUp(engine),
            Step::Measure { engine, tier: Tier::Awake },
            Step::Settle { engine, tier: Tier::Awake },
        ];
        if rehearse {
            steps.extend([Step::Rehearse(engine), Step::Rehearsed(engine)]);
        }
        steps.push(Step::Open(engine));
        Ok(steps)
    }

    /// One verified park where the version can, one sleep at the configured level, each with its wake.
    fn rehearsal(&self, engine: EngineId) -> Vec<Step> {
        let e = self.node.engine(engine);
        let Some(caps) = e.capabilities else { return Vec::new() };
        let level = match e.spec.rest {
            tier @ (Tier::Level1 | Tier::Level2) if e.may_rest_in(tier) => Some(tier),
            _ => [Tier::Level1, Tier::Level2].into_iter().find(|t| e.may_rest_in(*t)),
        };
        let parked = (e.may_rest_in(Tier::Parked) && caps.can_park()).then_some(Tier::Parked);
        let mut steps = Vec::new();
        for tier in [parked, level].into_iter().flatten() {
            if plan::may_fall(self.node, engine, tier, DrainPolicy::Wait).is_err() {
                continue;
            }
            let Ok(calls) = sequence::enter(&caps, Tier::Awake, tier, DrainPolicy::Wait) else { continue };
            let kind = if tier == Tier::Level2 { ProbeKind::LongCanary } else { ProbeKind::Canary };
            steps.push(Step::Take(engine));
            steps.extend(calls.into_iter().map(|call| Step::Call { engine, call }));
            steps.extend([
                Step::ConfirmAsleep(engine),
                Step::AwaitRelease { engine, tier },
                Step::Measure { engine, tier },
                Step::Settle { engine, tier },
                Step::Take(engine),
                Step::ReserveWake(engine),
            ]);
            steps.extend(wake(&caps, engine, tier));
            steps.push(Step::Probe { engine, kind, counted: false });
            steps.push(Step::Settle { engine, tier: Tier::Awake });
        }
        steps
    }

    /// What served before serves again; what came in goes back where too many would be awake.
    fn restore(&mut self, id: OperationId) -> Vec<Step> {
        let Some(op) = self.node.operations.iter().find(|op| op.id == id) else { return Vec::new() };
        let mut steps = Vec::new();
        let newcomers = self.node.ids().filter(|e| {
            let engine = self.node.engine(*e);
            engine.tier == Tier::Awake
                && engine.condition == Condition::Settled
                && !engine.dead
                && !op.serving_before.contains(e)
                && engine.spec.devices.iter().any(|d| op.devices.contains(d))
        });
        for newcomer in newcomers {
            let e = self.node.engine(newcomer);
            // One that crashed and is due to come back counts as well.
            let comes_back = |id: &EngineId| {
                let e = self.node.engine(*id);
                op.serving_before.contains(id)
                    || (e.wanted_awake && e.spec.devices.iter().any(|d| op.devices.contains(d)))
            };
            let back: Vec<EngineId> = self.node.ids().filter(comes_back).collect();
            if self.crowded(newcomer, &back).is_some() {
                let before = op.tiers_before.get(usize::from(newcomer.0)).copied().unwrap_or(Tier::Stopped);
                let tier = if before.has_process() && before != Tier::Awake { before } else { e.spec.rest };
                steps.push(Step::Fall { engine: newcomer, tier });
            }
        }
        for engine in &op.serving_before {
            let e = self.node.engine(*engine);
            let engine = *engine;
            match (e.tier, &e.condition) {
                (_, Condition::Failed(_)) => {}
                // Died while something else was done. Its sweep is due in any case; where it has a device that this
                // operation has not, it must wait until that is free.
                _ if e.dead && !e.spec.devices.iter().all(|d| op.devices.contains(d)) => {}
                _ if e.dead => steps.extend([Step::Kill(engine), Step::Launch { engine, rehearse: false }]),
                (Tier::Awake, Condition::Settled) if e.admission => {}
                (Tier::Awake, Condition::Settled) => steps.push(Step::Open(engine)),
                (Tier::Parked | Tier::Level1 | Tier::Level2, Condition::Settled) => {
                    steps.push(Step::Rise(engine))
                }
                (Tier::Stopped, Condition::Settled | Condition::Backoff(_) | Condition::NoRoom)
                    if !e.process =>
                {
                    steps.push(Step::Launch { engine, rehearse: false });
                }
                _ => {}
            }
        }
        // Nobody waits for a launch behind an engine that could open at once.
        steps.sort_by_key(|s| match s {
            Step::Open(_) => 0,
            Step::Fall { .. } => 1,
            _ => 2,
        });
        if let Some(op) = self.op(id) {
            let again = steps.iter().filter_map(|s| match s {
                Step::Launch { engine, .. } => Some(*engine),
                _ => None,
            });
            op.relaunched.extend(again);
        }
        steps
    }
}

fn wake(caps: &crate::capability::Capabilities, engine: EngineId, from: Tier) -> Vec<Step> {
    let calls = sequence::leave(caps, from).into_iter().map(|call| Step::Call { engine, call });
    calls.chain([Step::ConfirmAwake(engine), Step::AwaitResidence(engine)]).collect()
}
