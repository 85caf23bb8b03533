//! Surplus: more engines awake on a device than its `max_awake` allows, and nobody who would change that.
//!
//! It comes of a handoff that lost sight of the device half way (the incoming engine serves, the outgoing one could not be
//! proven to have slept and serves on), or of a configuration that has become stricter. Both serve, so nobody is hurt; but
//! what was promised does not hold, and the room is missing for a start.
//!
//! ```text
//!   more settled awake engines than max_awake, devices can be believed, nothing under way, asked for or waited for
//!      ──► the longest unused of those that are idle and not pinned falls to its rest tier
//!             failed ──► nobody on its devices before its back-off has ended (1 s, doubled each time, at most 60 s);
//!                        then another one, if there is one, since whatever keeps this one awake may keep it for long
//! ```
//!
//! Between two tries the devices are at rest: what keeps a sleep from being verified may be memory that nobody accounts
//! for, and that is only seen at rest.
//!
//! **Busy ones are left alone.** As long as requests run in each of them nothing is done: to drain one would send its clients
//! into a queue, for a limit that hurts nobody by being passed. The first that has no request left goes. Requests held for an
//! engine that sleeps need none of this: their switch puts out whatever is too many. Pinned engines stay where their
//! operator wants them, however many they are.

use crate::demand;
use crate::ids::{DeviceId, EngineId};
use crate::plan;
use crate::spec::DrainPolicy;
use crate::state::{Condition, Node};
use crate::tier::Tier;
use crate::time::Moment;

/// Verified awake, and its process lives.
fn is_awake(node: &Node, id: EngineId) -> bool {
    let e = node.engine(id);
    e.tier == Tier::Awake && e.condition == Condition::Settled && e.process && !e.dead
}

/// Whether more engines are awake on a device than may be.
fn is_crowded(node: &Node, device: DeviceId) -> bool {
    let awake = node.engines_on(device).filter(|id| is_awake(node, *id)).count();
    awake > usize::from(node.device(device).spec.max_awake.max(1))
}

/// The engines that may be put to sleep for it, the longest unused first, whether or not their back-off has ended.
fn candidates(node: &Node) -> Vec<(EngineId, Tier)> {
    if node.cycle || node.journal_lost.is_some() {
        return Vec::new();
    }
    let spoken_for = node.spoken_for();
    let may_go = |id: &EngineId| {
        let e = node.engine(*id);
        let devices = &e.spec.devices;
        is_awake(node, *id)
            && !e.spec.turn.pinned
            && !e.is_busy()
            && devices.iter().any(|d| is_crowded(node, *d))
            && node.is_free(devices)
            && !devices.iter().any(|d| spoken_for.contains(d))
            && !demand::presses(node, *id)
            && plan::evidence(node, devices).is_ok()
    };
    let mut ids: Vec<EngineId> = node.ids().filter(may_go).collect();
    ids.sort_by_key(|id| (node.engine(*id).fall_retry.failures, node.engine(*id).idle_since()));
    ids.into_iter().filter_map(|id| Some((id, resting_place(node, id)?))).collect()
}

/// Its rest tier; where that is not to be had (no host memory, excluded, nothing left but a restart), what is.
fn resting_place(node: &Node, id: EngineId) -> Option<Tier> {
    let tiers = [node.engine(id).spec.rest, Tier::Level1, Tier::Level2, Tier::Stopped];
    let asleep = tiers.into_iter().filter(|tier| *tier != Tier::Awake);
    asleep.into_iter().find(|tier| plan::may_fall(node, id, *tier, DrainPolicy::Wait).is_ok())
}

/// The engine that is one too many awake and should go now, and where to.
pub fn due(node: &Node, now: Moment) -> Option<(EngineId, Tier)> {
    candidates(node).into_iter().find(|(id, _)| not_before(node, *id) <= now)
}

/// When the last back-off of those that are awake on its devices ends.
fn not_before(node: &Node, id: EngineId) -> Moment {
    let devices = &node.engine(id).spec.devices;
    let awake = devices.iter().flat_map(|d| node.engines_on(*d)).filter(|id| is_awake(node, *id));
    awake.map(|id| node.engine(id).fall_retry.not_before).max().unwrap_or(Moment(0))
}

/// When the next one may be asked after one that failed to fall.
pub(crate) fn instants(node: &Node) -> Vec<Moment> {
    candidates(node).into_iter().map(|(id, _)| not_before(node, id)).collect()
}
