//! Residual creep: an engine that leaves a little more on the device each time it sleeps.
//!
//! Some releases of vLLM lose physical pages with every sleep: a residual of 412 MiB became 5 GiB within a day. Nothing
//! inside such a process gives them back; a new process does. So the growth of one life is watched, and once it has
//! passed a limit the engine is started anew, once, at a moment when nobody is being served on its devices.
//!
//! ```text
//!   at rest asleep ──► bytes of its own processes − the first such at that tier in this life = growth
//!                            growth ≥ limit, twice in a row, or so many sleeps ──► due
//!   due, and every engine on its devices asleep or without a request for a while ──► restart by the agent itself
//! ```
//!
//! Only an engine's own bytes say whose the loss is: device-wide, a neighbour that serves grows as well, by as much.
//! Where pids cannot be mapped, growth stays unknown and the limit of sleeps is what there is.

use crate::ids::EngineId;
use crate::revise;
use crate::state::{Condition, Engine, Node};
use crate::tier::Tier;
use serde::{Deserialize, Serialize};

/// When an engine is started anew for what it has lost. Nothing set: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Recycle {
    /// Bytes more on a device than when it first rested in that tier in this life.
    pub creep: Option<u64>,
    /// Sleeps of one life, its rehearsal's left out; at least 2, since a start may end with one.
    pub sleeps: Option<u32>,
}

/// Why an engine is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Due {
    /// It holds so many bytes more asleep than it did at first.
    Creep(u64),
    /// It has slept so often.
    Sleeps(u32),
}

/// Surveys in a row, since it was last moved, that must find an engine asleep or without a request before it counts as
/// idle: a sleep that a wake follows at once is no idle moment.
pub const IDLE_SURVEYS: u8 = 3;

/// What one life of an engine has left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Creep {
    /// What was left the first time, by tier.
    first: [Option<u64>; 5],
    /// Growth over that at the reading before the last.
    before: u64,
    /// Growth at the last reading.
    last: u64,
    /// Sleeps, counted where they are limited.
    sleeps: u32,
    /// It has been reported.
    pub said: bool,
}

impl Creep {
    /// Its own bytes were read while it rested in `tier`.
    pub fn left(&mut self, recycle: &Recycle, tier: Tier, bytes: u64) {
        if recycle.creep.is_none() {
            return;
        }
        match &mut self.first[tier as usize] {
            // What it has lost until now does not belong to a tier that is new to it.
            first @ None => *first = Some(bytes.saturating_sub(self.last)),
            Some(first) => (self.before, self.last) = (self.last, bytes.saturating_sub(*first)),
        }
    }

    /// It has been verified asleep once more.
    pub fn slept(&mut self, recycle: &Recycle) {
        if recycle.sleeps.is_some() {
            self.sleeps = self.sleeps.saturating_add(1);
        }
    }

    /// Its rehearsal is over: what it slept for that does not count.
    pub fn rehearsed(&mut self) {
        self.sleeps = 0;
    }

    /// Bytes that it is known to have lost by now.
    pub fn growth(&self) -> u64 {
        self.last
    }

    /// Whether it should be started anew.
    pub fn due(&self, recycle: &Recycle) -> Option<Due> {
        let grown = self.before.min(self.last);
        match (recycle.creep, recycle.sleeps) {
            (Some(limit), _) if grown >= limit && grown > 0 => Some(Due::Creep(self.last)),
            (_, Some(limit)) if self.sleeps >= limit => Some(Due::Sleeps(self.sleeps)),
            _ => None,
        }
    }
}

/// Whether an engine waits for an idle moment to be started anew: for what it has lost, or for newer settings.
pub fn waits(engine: &Engine) -> bool {
    engine.process
        && !engine.retired
        && (engine.creep.due(&engine.spec.recycle).is_some()
            || engine.revised.as_ref().is_some_and(|revised| revised.process))
}

/// The engine that should be started anew now, if there is one and the moment is right: nothing is under way, it is
/// settled, nobody is being served on its devices, and there is room to start it.
pub fn recycle_now(node: &Node) -> Option<EngineId> {
    if !node.operations.is_empty() || !node.queue.is_empty() {
        return None;
    }
    node.ids().find(|id| {
        let e = node.engine(*id);
        let on_its_devices = |id: &EngineId| {
            let then = e.revised.as_ref().map_or(&[][..], |revised| &revised.spec.devices);
            node.engine(*id).spec.devices.iter().any(|d| e.spec.devices.contains(d) || then.contains(d))
        };
        waits(e)
            && e.condition == Condition::Settled
            && !e.frozen
            && node.ids().filter(on_its_devices).all(|other| is_idle(node, other))
            && revise::can_start(node, *id).is_ok()
    })
}

/// Nobody is being served by it, and nothing else is due.
fn is_idle(node: &Node, id: EngineId) -> bool {
    let e = node.engine(id);
    match e.condition {
        _ if e.is_busy() => false,
        // It has no process that serves, and waits for somebody.
        Condition::Failed(_) | Condition::NoRoom | Condition::PortTaken => true,
        _ if e.dead => false,
        Condition::Settled => !e.process || e.watch.idle >= IDLE_SURVEYS,
        Condition::Moving | Condition::Adrift(_) | Condition::Backoff(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: Recycle = Recycle { creep: Some(100), sleeps: None };

    fn after(recycle: &Recycle, lefts: &[(Tier, u64)]) -> Option<Due> {
        let mut creep = Creep::default();
        for (tier, bytes) in lefts {
            creep.left(recycle, *tier, *bytes);
            creep.slept(recycle);
        }
        creep.due(recycle)
    }

    #[test]
    fn growth_counts_once_it_is_seen_twice() {
        let one = |bytes| (Tier::Level1, bytes);
        assert_eq!(after(&LIMIT, &[one(1000), one(1050), one(1099)]), None);
        assert_eq!(after(&LIMIT, &[one(1000), one(1200)]), None, "once may be a neighbour's growth");
        assert_eq!(after(&LIMIT, &[one(1000), one(1200), one(1010)]), None, "and was");
        assert_eq!(after(&LIMIT, &[one(1000), one(1100), one(1170)]), Some(Due::Creep(170)));
        assert_eq!(after(&Recycle::default(), &[one(0), one(5000), one(9000)]), None, "nobody asked for it");
    }

    #[test]
    fn a_tier_seen_late_does_not_hide_what_was_lost_before() {
        let lefts = [(Tier::Level1, 1000), (Tier::Level1, 1200), (Tier::Parked, 5200), (Tier::Parked, 5210)];
        assert_eq!(after(&LIMIT, &lefts), Some(Due::Creep(210)));
    }

    #[test]
    fn sleeps_are_counted_where_they_are_limited() {
        let recycle = Recycle { creep: None, sleeps: Some(3) };
        let sleeps = |n| vec![(Tier::Level2, 7); n];
        assert_eq!(after(&recycle, &sleeps(2)), None);
        assert_eq!(after(&recycle, &sleeps(3)), Some(Due::Sleeps(3)));
    }

    proptest! {
        /// Readings that wobble by less than the limit never make an engine due; a steady loss always does, once it has
        /// passed the limit twice.
        #[test]
        fn a_wobble_is_no_creep_and_creep_is_no_wobble(
            wobble in prop::collection::vec(0u64..100, 2..60), loss in 1u64..60,
        ) {
            let still: Vec<(Tier, u64)> = wobble.iter().map(|w| (Tier::Level1, 1000 + w)).collect();
            let due = after(&LIMIT, &still);
            prop_assert_eq!(due, None);
            let sleeps = 100 / loss + 4;
            let losing: Vec<(Tier, u64)> = (0..sleeps).map(|n| (Tier::Level1, 1000 + n * loss)).collect();
            prop_assert!(matches!(after(&LIMIT, &losing), Some(Due::Creep(_))));
        }
    }
}
