//! Room for a start of the agent's own accord: a restart that is due, or one when the agent comes up.
//!
//! Nobody has asked for it at this moment, so it takes less than a handoff may: only engines that are parked, idle and not
//! pinned go further down for it, and none of them is stopped. Their memory was kept to be awake again the sooner; an engine
//! that is down and was wanted needs it more.

use super::{evidence, goes_first, may_fall, room};
use crate::ids::EngineId;
use crate::ledger;
use crate::program::Step;
use crate::queue::Refusal;
use crate::spec::DrainPolicy;
use crate::state::{Condition, Node};
use crate::tier::Tier;

/// The falls that make room to start an engine, in order; none where there is room.
pub(crate) fn make_room_to_start(node: &Node, id: EngineId) -> Result<Vec<Step>, Refusal> {
    let Some(need) = ledger::start_need(node.engine(id)) else { return Ok(Vec::new()) };
    let mut others: Vec<EngineId> = node.ids().filter(|other| *other != id && may_go(node, *other)).collect();
    others.sort_by_key(|other| goes_first(node, *other));
    let mut left: Vec<(EngineId, u64)> = Vec::new();
    let mut falls = Vec::new();
    while let Some((device, missing)) = room(node, id, need, &left) {
        let at = others.iter().position(|other| node.engine(*other).spec.devices.contains(&device));
        let Some(victim) = at.map(|at| others.remove(at)) else {
            return Err(Refusal::NoRoom {
                what: format!("starting {}", node.engine(id).spec.name),
                device: node.device(device).spec.name.clone(),
                missing,
            });
        };
        let tiers = [Tier::Level1, Tier::Level2];
        let tier = tiers.into_iter().find(|tier| may_fall(node, victim, *tier, DrainPolicy::Wait).is_ok());
        let after = tier.and_then(|tier| Some((tier, ledger::bytes_at(node.engine(victim), tier)?)));
        if let Some((tier, bytes)) = after {
            left.push((victim, bytes));
            falls.push(Step::Fall { engine: victim, tier });
        }
    }
    Ok(falls)
}

/// Whether the agent may put a parked engine further down of its own accord.
fn may_go(node: &Node, id: EngineId) -> bool {
    let e = node.engine(id);
    let devices = &e.spec.devices;
    let spoken_for = node.spoken_for();
    e.tier == Tier::Parked
        && e.condition == Condition::Settled
        && !e.dead
        && !e.frozen
        && !e.is_busy()
        && !e.spec.turn.pinned
        && node.is_free(devices)
        && !devices.iter().any(|d| spoken_for.contains(d))
        && evidence(node, devices).is_ok()
}
