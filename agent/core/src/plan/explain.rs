//! What would make a handoff faster: which KV cache sizes would let `park` or `wake-first` fit, which host memory is
//! missing for level 1, and what each would save.

use super::{Ask, Candidate, candidates, cost};
use crate::ids::EngineId;
use crate::ledger;
use crate::queue::Refusal;
use crate::spec::Order;
use crate::state::Node;
use crate::tier::Tier;
use std::time::Duration;

/// One thing that an operator could change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Faster {
    /// With at most this KV cache for an engine (`--kv-cache-memory-bytes`), everything else as it is, a plan fits.
    KvCache {
        /// Whose.
        engine: EngineId,
        /// Bytes, at most; now it has `now`.
        at_most: u64,
        /// Bytes it has now.
        now: u64,
        /// The plan that would fit.
        order: Order,
        /// Its tier.
        leave: Tier,
        /// Saved until the first token.
        saves: Duration,
    },
    /// With this much more host memory, level 1 is possible.
    HostMemory {
        /// Whose.
        engine: EngineId,
        /// Bytes missing.
        missing: u64,
        /// Saved when it comes back.
        saves: Duration,
    },
}

/// Everything that would make this handoff faster than `chosen`, the most saving first.
pub fn faster(node: &Node, ask: &Ask, chosen: Duration) -> Vec<Faster> {
    let mut found = Vec::new();
    for Candidate { order, leave, verdict } in candidates(node, ask) {
        if !matches!(verdict, Err(Refusal::NoRoom { .. })) || !matches!(leave, Tier::Parked | Tier::Level1) {
            continue;
        }
        let wake = cost::leave_cost(node.engine(ask.to), node.engine(ask.to).tier);
        let out = super::outgoing(node, ask);
        let fall: Duration = out.iter().map(|id| cost::enter_cost(node.engine(*id), leave)).sum();
        let would_take = if order == Order::MakeBeforeBreak { wake } else { fall + wake };
        let saves = chosen.saturating_sub(would_take);
        if saves.is_zero() {
            continue;
        }
        for id in out.iter().copied().chain([ask.to]) {
            if let Some((at_most, now)) = largest_kv(node, ask.to, &out, order, leave, id) {
                found.push(Faster::KvCache { engine: id, at_most, now, order, leave, saves });
            }
        }
    }
    for id in super::outgoing(node, ask) {
        if let Some(missing) = ledger::host_missing(node, id) {
            let e = node.engine(id);
            let saves = cost::leave_cost(e, Tier::Level2).saturating_sub(cost::leave_cost(e, Tier::Level1));
            found.push(Faster::HostMemory { engine: id, missing, saves });
        }
    }
    found.sort_by_key(|f| {
        std::cmp::Reverse(match f {
            Faster::KvCache { saves, .. } | Faster::HostMemory { saves, .. } => *saves,
        })
    });
    found
}

/// The largest KV cache of `whose` at which `to` would fit beside the outgoing engines, and what it has now.
///
/// Every device: limit ≥ Σ others + Σ outgoing (awake or at `leave`) + `to` awake. The bytes of `whose` fall one for one
/// with its KV cache wherever that cache is resident in the sum.
fn largest_kv(
    node: &Node,
    to: EngineId,
    out: &[EngineId],
    order: Order,
    leave: Tier,
    whose: EngineId,
) -> Option<(u64, u64)> {
    let kv = ledger::kv_bytes(node.engine(whose))?;
    let kv_is_resident = whose == to || order == Order::MakeBeforeBreak;
    if !kv_is_resident {
        return None;
    }
    // A start demands more than it ends with, whatever its KV cache.
    let incoming = node.engine(to);
    let start = &incoming.spec.estimate;
    let demanded = match incoming.tier {
        Tier::Stopped => start.start_free.max(start.start_peak).unwrap_or(0),
        _ => 0,
    };
    let mut at_most = u64::MAX;
    for device in &incoming.spec.devices {
        let limit = ledger::limit(node, *device)?;
        let mut others = 0u64;
        for id in node.engines_on(*device).filter(|id| *id != to) {
            let e = node.engine(id);
            others = others.saturating_add(match e.tier {
                _ if out.contains(&id) && order == Order::BreakBeforeMake => ledger::bytes_at(e, leave)?,
                Tier::Parked => super::least(node, id),
                _ => e.held,
            });
        }
        let awake = ledger::bytes_at(incoming, Tier::Awake)?;
        if whose == to && others.saturating_add(demanded) > limit {
            return None;
        }
        let incoming = if whose == to { awake } else { awake.max(demanded) };
        let without = others.saturating_add(incoming).checked_sub(kv)?;
        at_most = at_most.min(limit.checked_sub(without)?);
    }
    (at_most < kv && at_most > 0).then_some((at_most, kv))
}
