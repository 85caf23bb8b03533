//! Coming back: an engine that served, was put to sleep by an operation that failed, and could not be woken by it either.
//!
//! What served before a failed operation is still wanted. Where its process had ended, its back-off starts it again; where
//! it is merely asleep (there was no room for it just then, or its wake was refused), nobody would wake it before somebody
//! asked for it through the gateway.
//!
//! ```text
//!   wanted, settled asleep, its place not taken, room for it, nothing under way or waited for on its devices ──► wake
//!                                                           failed ──► again when its back-off has ended
//! ```

use crate::demand;
use crate::ids::EngineId;
use crate::ledger;
use crate::plan;
use crate::state::{Condition, Node};
use crate::tier::Tier;
use crate::time::Moment;

/// The engines that should come back, whether or not their back-off has ended.
fn candidates(node: &Node) -> impl Iterator<Item = EngineId> + '_ {
    let spoken_for = node.spoken_for();
    let comes = move |id: &EngineId| {
        let e = node.engine(*id);
        let devices = &e.spec.devices;
        let asleep = matches!(e.tier, Tier::Parked | Tier::Level1 | Tier::Level2);
        let settled = e.condition == Condition::Settled && e.process && !e.dead && !e.retired;
        e.wanted_awake
            && asleep
            && settled
            && node.is_free(devices)
            && !devices.iter().any(|d| spoken_for.contains(d) || is_full(node, *id, *d))
            && !demand::presses(node, *id)
            && plan::evidence(node, devices).is_ok()
            && ledger::bytes_at(e, Tier::Awake)
                .is_none_or(|need| ledger::shortfall(node, *id, need).is_none())
    };
    node.ids().filter(comes)
}

/// Whether as many others are awake on a device as may be, or due to be.
fn is_full(node: &Node, id: EngineId, device: crate::ids::DeviceId) -> bool {
    let others = node.engines_on(device).filter(|other| {
        let e = node.engine(*other);
        let down = matches!(e.condition, Condition::Backoff(_) | Condition::NoRoom | Condition::Adrift(_));
        *other != id && (e.tier == Tier::Awake || (e.wanted_awake && (down || e.dead)))
    });
    others.count() >= usize::from(node.device(device).spec.max_awake.max(1))
}

/// The engine that should be woken now.
pub fn due(node: &Node, now: Moment) -> Option<EngineId> {
    candidates(node).find(|id| node.engine(*id).retry.not_before <= now)
}

/// When one that could not be woken may be asked again.
pub(crate) fn instants(node: &Node) -> Vec<Moment> {
    candidates(node).map(|id| node.engine(id).retry.not_before).collect()
}
