//! What devices show, held against what a step must show; and what is learned from it.

use super::Cx;
use crate::effect::{Note, Shown};
use crate::event::Request;
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::ledger;
use crate::program::{Cause, Step};
use crate::state::{Condition, Footprint, Operation};
use crate::tier::Tier;

impl Cx<'_> {
    /// A footprint: the engine's own bytes where pids can be mapped, else what the others do not account for.
    pub(super) fn measured(
        &mut self,
        engine: EngineId,
        tier: Tier,
        used: &[(DeviceId, Option<u64>)],
        own: Option<u64>,
        host: Option<u64>,
    ) {
        let by_difference =
            used.iter().filter_map(|(device, used)| self.left_over(engine, *device, (*used)?)).max();
        let e = self.node.engine(engine);
        let seen = own.or(by_difference).filter(|bytes| ledger::is_plausible(e, tier, *bytes));
        let device = seen.or(e.measured(tier));
        let e = self.node.engine_mut(engine);
        e.footprints[tier as usize] = Some(Footprint { device, host });
        self.note(Note::Measured { engine, tier });
    }

    /// What of a device's used bytes all others do not account for. Nothing is known of it where one of them has died and is
    /// not swept yet: what it is charged with may be there or gone.
    fn left_over(&self, engine: EngineId, device: DeviceId, used: u64) -> Option<u64> {
        let has_died = |id: EngineId| id != engine && self.node.engine(id).dead;
        if self.node.engines_on(device).any(has_died) {
            return None;
        }
        let others = ledger::expected_used(self.node, device, engine, Tier::Stopped)?;
        Some(used.saturating_sub(others))
    }

    /// The first time at a tier: what is left on the device is its footprint.
    pub(super) fn learn_release(&mut self, engine: EngineId, tier: Tier, used: &[(DeviceId, u64)]) {
        if tier == Tier::Stopped || self.node.engine(engine).measured(tier).is_some() {
            return;
        }
        let left = used.iter().filter_map(|(device, used)| self.left_over(engine, *device, *used));
        let plausible = |bytes: &u64| ledger::is_plausible(self.node.engine(engine), tier, *bytes);
        if let Some(bytes) = left.max().filter(plausible) {
            // Host bytes follow by the measuring step; until then only the device side is known.
            let host = None;
            self.node.engine_mut(engine).footprints[tier as usize] =
                Some(Footprint { device: Some(bytes), host });
        }
    }

    /// Whether the bytes of a sleeping engine are gone, by what is known now.
    pub(super) fn released(&self, engine: EngineId, step: &Step, used: &[(DeviceId, u64)]) -> bool {
        let Step::AwaitRelease { tier, .. } = step else { return true };
        used.iter().all(|(device, used)| {
            ledger::release_threshold(self.node, *device, engine, *tier).is_none_or(|most| *used <= most)
        })
    }

    /// Whether the bytes of one that has ended are gone but for what strangers take, which is foreign from now on. Of one that
    /// had been taken over: whoever started it may start it again at once, and what that one takes is not what the old one
    /// has left. And where an operator, who has been told, resets the engine. Else they are its leftovers: a process that
    /// got away from its tree looks like a stranger as well, and nothing is started into memory that cannot be accounted for.
    pub(super) fn returned(
        &mut self,
        id: OperationId,
        engine: EngineId,
        step: &Step,
        shown: &[Shown],
    ) -> bool {
        let is_reset = |op: &Operation| op.id == id && op.request == Request::Reset(engine);
        let excused = self.node.engine(engine).taken_over || self.node.operations.iter().any(is_reset);
        if !excused || !matches!(step, Step::AwaitRelease { tier: Tier::Stopped, .. }) {
            return false;
        }
        let without_newcomers = |s: &Shown| {
            let newcomers = s.strangers.unwrap_or(0).saturating_sub(self.node.device(s.device).foreign);
            (s.device, s.used.saturating_sub(newcomers))
        };
        let without: Vec<_> = shown.iter().map(without_newcomers).collect();
        if !self.released(engine, step, &without) {
            return false;
        }
        for s in shown {
            let theirs = s.strangers.unwrap_or(0);
            // What somebody has reserved was checked against what was foreign then; at rest it is looked at again.
            let reserved = self.node.engines_on(s.device).any(|id| self.node.engine(id).reserved > 0);
            let d = &mut self.node.devices[usize::from(s.device.0)];
            d.foreign_seen = d.foreign_seen.max(theirs);
            if !reserved {
                d.foreign = d.foreign.max(theirs);
            }
        }
        if matches!(self.node.engine(engine).condition, Condition::Failed(_)) {
            self.node.engine_mut(engine).held = 0;
        }
        true
    }

    /// Whether the bytes that an awake engine must show are there. By the sum of what is known now: the bounds were drawn when
    /// the step began, and a neighbour that died since has changed them. Or by what its own processes hold, where that is told:
    /// what is known of others, strangers above all, may be too much, and is corrected at rest only.
    pub(super) fn resides(&self, engine: EngineId, step: &Step, shown: &[Shown]) -> bool {
        let there = |s: &Shown| {
            let sum = ledger::residence_threshold(self.node, s.device, engine);
            let own = ledger::own_threshold(self.node, s.device, engine);
            sum.is_none_or(|least| s.used >= least) || own.zip(s.own).is_some_and(|(least, own)| own >= least)
        };
        matches!(step, Step::AwaitResidence(_)) && shown.iter().all(there)
    }

    pub(super) fn out_of_bounds(&self, engine: EngineId, step: &Step, shown: &[Shown]) -> (Cause, String) {
        let name = &self.node.engine(engine).spec.name;
        let mut details = Vec::new();
        for s in shown {
            let (word, bound) = match step {
                Step::AwaitRelease { tier, .. } => {
                    ("at most", ledger::release_threshold(self.node, s.device, engine, *tier))
                }
                _ => ("at least", ledger::residence_threshold(self.node, s.device, engine)),
            };
            let bound = bound.map_or("unknown".to_owned(), ledger::human);
            let on = &self.node.device(s.device).spec.name;
            let theirs = s
                .strangers
                .filter(|bytes| *bytes > 0)
                .map(|bytes| format!(" ({} of it by processes that are no engine's)", ledger::human(bytes)));
            let theirs = theirs.unwrap_or_default();
            let used = ledger::human(s.used);
            details.push(format!("{on} shows {used} used{theirs}, {word} {bound} expected"));
        }
        let details = details.join(", ");
        match step {
            Step::AwaitRelease { tier: Tier::Stopped, .. } => (
                Cause::ReleaseIncomplete,
                format!("{name} has ended, but not all of its memory is back: {details}"),
            ),
            Step::AwaitRelease { tier, .. } => (
                Cause::ReleaseIncomplete,
                format!("{name} answered, but not all of its memory for {tier} is back: {details}"),
            ),
            _ => (
                Cause::ResidenceMissing,
                format!("{name} says it is awake, but its memory is not there: {details}"),
            ),
        }
    }
}
