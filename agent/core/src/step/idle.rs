//! What the idle devices do next: the agent's own work, by urgency.
//!
//! The dead are swept, what drifted is repaired, the queue goes on, restarts are due, and last an engine that loses
//! memory is started anew ([`crate::creep`]).

use super::Cx;
use crate::creep;
use crate::event::{By, Drain, Request};
use crate::ids::EngineId;
use crate::ledger;
use crate::state::{Condition, Node, Queued};

impl Cx<'_> {
    /// Begins whatever is due on devices that are free: sweeping, repairing, the queue, restarts.
    pub(super) fn idle_work(&mut self) {
        // Each pass begins at most one operation; one that ends at once frees its devices for the next. The bound only
        // guards against an operation that changes nothing.
        for _ in 0..=self.node.engines.len() * 4 {
            let before = self.node.next_operation;
            let queued = self.node.queue.len();
            self.begin_one();
            if self.node.next_operation == before && self.node.queue.len() == queued {
                return;
            }
        }
    }

    fn begin_one(&mut self) {
        let free = |node: &Node, id: EngineId| node.operation_on(&node.engine(id).spec.devices).is_none();
        let find =
            |node: &Node, due: &dyn Fn(EngineId) -> bool| node.ids().find(|id| free(node, *id) && due(*id));
        let node = &*self.node;
        let died = find(node, &|id| {
            node.engine(id).dead && !matches!(node.engine(id).condition, Condition::Failed(_))
        });
        if let Some(engine) = died {
            return self.own(Request::Bury(engine));
        }
        let adrift = find(node, &|id| matches!(node.engine(id).condition, Condition::Adrift(_)));
        if let Some(engine) = adrift.filter(|_| !node.closing) {
            return self.own(Request::Repair(engine));
        }
        // What the agent wanted to start when it came up waits for the end of maintenance.
        let waits =
            |q: &Queued| node.is_paused() && q.by == By::Agent && matches!(q.request, Request::Start { .. });
        let ready = |q: &Queued| node.operation_on(&node.devices_of(&q.request)).is_none() && !waits(q);
        let next = node.queue.iter().position(ready);
        if let Some(queued) = next.and_then(|at| self.node.queue.remove(at)) {
            return self.begin(queued.id, queued.request, queued.by);
        }
        if self.node.closing || self.node.is_paused() {
            return;
        }
        let node = &*self.node;
        let now = self.now;
        let due = find(node, &|id| match node.engine(id).condition {
            Condition::Backoff(at) => at <= now,
            Condition::NoRoom => {
                let need = ledger::start_need(node.engine(id));
                need.is_none_or(|bytes| ledger::shortfall(node, id, bytes).is_none())
                    && crate::plan::evidence(node, &node.engine(id).spec.devices).is_ok()
            }
            _ => false,
        });
        if let Some(engine) = due {
            let awake = self.node.engine(engine).wanted_awake;
            return self.own(Request::Start { engine, rehearse: None, awake });
        }
        if let Some(engine) = creep::recycle_now(self.node) {
            // Whoever was idle must be seen idle again before another try.
            self.node.engines.iter_mut().for_each(|e| e.watch.idle = 0);
            self.own(Request::Restart { engine, rehearse: None, drain: Drain::default() });
        }
    }

    fn own(&mut self, request: Request) {
        let id = self.node.number();
        self.begin(id, request, By::Agent);
    }
}
