//! The idle ladder: an engine that nobody uses goes further down, one rung after the other, in the background.
//!
//! ```text
//!   last use ──── after 30 s ──► parked ──── after 5 min ──► level1 ──── after 1 h ──► level2 ──── after 1 d ──► stopped
//! ```
//!
//! Every rung counts from the last use: the last inference that ended, or the last wake where that came later. Probes,
//! scrapes and lists of models are no use. A ladder only ever goes down. Of several rungs that are due the deepest is
//! taken at once.
//!
//! A rung that cannot be taken is skipped, and a deeper one may come in its place: the operator or the rehearsal excludes
//! the tier, host memory does not suffice, or vLLM has no way there. From level 1 to level 2 no release has one (a `/sleep`
//! of a sleeping engine is a no-op, CONTRACT 1.2); from parked to level 1 or 2 there is one since 0.31; `stopped` can be
//! reached from anywhere. Waking an engine in order to put it deeper would take memory that somebody else may be about to
//! need, so that is not done.

use crate::demand;
use crate::ids::EngineId;
use crate::plan;
use crate::spec::DrainPolicy;
use crate::state::{Condition, Node};
use crate::tier::Tier;
use crate::time::Moment;

/// Whether an engine is left alone: nothing is with it or held for anybody on its devices, and nobody works there.
fn rests(node: &Node, id: EngineId) -> bool {
    let e = node.engine(id);
    e.condition == Condition::Settled
        && e.process
        && !e.dead
        && !e.is_busy()
        && !e.spec.turn.pinned
        && !e.spec.ladder.is_empty()
        && node.is_free(&e.spec.devices)
        && !demand::presses(node, id)
        && !node.spoken_for().iter().any(|d| e.spec.devices.contains(d))
}

fn since(node: &Node, id: EngineId) -> Moment {
    let e = node.engine(id);
    e.idle_since().max(e.ladder_from)
}

/// The tier that an engine should fall to now, if any.
pub fn due(node: &Node, id: EngineId, now: Moment) -> Option<Tier> {
    if !rests(node, id) {
        return None;
    }
    let e = node.engine(id);
    let since = since(node, id);
    let possible = |tier: &Tier| {
        plan::may_fall(node, id, *tier, DrainPolicy::Wait).is_ok()
            && plan::evidence(node, &e.spec.devices).is_ok()
    };
    let due = e.spec.ladder.iter().filter(|rung| since + rung.after <= now).map(|rung| rung.tier);
    due.filter(|tier| *tier > e.tier).filter(possible).max()
}

/// When rungs of an engine come due.
pub(crate) fn instants(node: &Node, id: EngineId) -> Vec<Moment> {
    if !rests(node, id) {
        return Vec::new();
    }
    let e = node.engine(id);
    let since = since(node, id);
    e.spec.ladder.iter().filter(|rung| rung.tier > e.tier).map(|rung| since + rung.after).collect()
}
