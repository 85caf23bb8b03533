//! What the gateway tells, and what follows from it at once.

use super::Cx;
use crate::demand::Demand;
use crate::event::{By, Request};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::program::Step;
use crate::state::{Operation, Stage};
use crate::time::Moment;

impl Cx<'_> {
    /// What is held for an engine has changed.
    pub(super) fn demanded(&mut self, engine: EngineId, demand: Demand) {
        // A count and an instant that contradict each other: there is somebody if either says so.
        let oldest = demand.oldest.or((demand.held > 0).then_some(self.now));
        let held = demand.held.max(u32::from(demand.oldest.is_some()));
        self.node.engine_mut(engine).demand = Demand { held, oldest };
        let given_up = if held == 0 {
            // A switch that nobody wants any more.
            self.revocable(|op| op.by == By::Gateway && op.request.engine() == Some(engine))
        } else {
            // A ladder would take the device away from who is needed.
            let devices = self.node.engine(engine).spec.devices.clone();
            self.revocable(|op| {
                let ladder = op.by == By::Agent && matches!(op.request, Request::Sleep { .. });
                ladder && op.devices.iter().any(|d| devices.contains(d))
            })
        };
        for id in given_up {
            self.cancel(id);
        }
    }

    /// How an engine is used.
    pub(super) fn used(&mut self, engine: EngineId, in_flight: u32, at: Moment) {
        let now = self.now;
        let e = self.node.engine_mut(engine);
        e.in_flight = in_flight;
        e.used_at = e.used_at.max(at.min(now));
    }

    /// What somebody asks for goes before what the agent does of its own accord and has not really begun.
    pub(super) fn make_way(&mut self, devices: &[DeviceId], request: &Request, by: By) {
        if !matches!(by, By::Operator | By::Cycle) {
            return;
        }
        let own = |op: &Operation| {
            let ladder = op.by == By::Agent && matches!(op.request, Request::Sleep { .. });
            (op.by == By::Gateway || ladder) && op.request != *request
        };
        for id in self.revocable(|op| own(op) && op.devices.iter().any(|d| devices.contains(d))) {
            self.cancel(id);
        }
    }

    /// Operations of this kind that have not begun to move memory, and so can be given up without harm.
    fn revocable(&self, kind: impl Fn(&Operation) -> bool) -> Vec<OperationId> {
        let drains = |op: &Operation| {
            op.current.as_ref().is_some_and(|c| matches!(c.step, Step::Drain(_)))
                && op.stage == Stage::Forward
                && !self.node.has_moved(op)
        };
        self.node.operations.iter().filter(|op| kind(op) && drains(op)).map(|op| op.id).collect()
    }
}
