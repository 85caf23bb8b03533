//! The node as a plan would leave it: for the question what the way back would be.

use super::Plan;
use crate::ledger;
use crate::program::Step;
use crate::state::{Condition, Node};
use crate::tier::Tier;
use crate::time::Moment;

/// A copy of the node in which this plan has been done, as planned. For explaining only: nothing in it was verified.
pub fn after(node: &Node, plan: &Plan) -> Node {
    let mut next = node.clone();
    for step in &plan.steps {
        let (id, tier) = match step {
            Step::Fall { engine, tier } => (*engine, *tier),
            Step::Rise(engine) | Step::Launch { engine, .. } => (*engine, Tier::Awake),
            _ => continue,
        };
        let held = ledger::bytes_at(next.engine(id), tier);
        let newest = next.engines.iter().map(|e| e.awake_since).max().unwrap_or(Moment(0));
        let e = next.engine_mut(id);
        e.held = held.unwrap_or(if tier == Tier::Stopped { 0 } else { e.held });
        (e.tier, e.condition, e.reserved) = (tier, Condition::Settled, 0);
        e.admission = tier == Tier::Awake;
        e.process = tier != Tier::Stopped;
        match tier {
            Tier::Awake => e.awake_since = Moment(newest.0.saturating_add(1)),
            Tier::Level1 => e.pinned = true,
            Tier::Stopped => e.pinned = false,
            Tier::Parked | Tier::Level2 => {}
        }
    }
    next
}
