//! What the idle devices do next: the agent's own work, by urgency.
//!
//! ```text
//!   sweep the dead ► repair what drifted ► what somebody asked for ► whose turn it is
//!      ► one too many awake ► restarts ► comebacks ► retiring ► recycling ► idle ladders
//! ```
//!
//! Nothing of the agent's own accord but sweeping and repairing begins on devices that somebody's request waits for.
//! Recycling is to start an engine anew that loses memory asleep ([`crate::creep`]), or whose settings have changed;
//! retiring is to end one that is not configured any more ([`crate::revise`]).

use super::Cx;
use crate::creep;
use crate::event::{By, Drain, Request};
use crate::ids::{DeviceId, EngineId};
use crate::plan;
use crate::state::{Condition, Node, Queued};

impl Cx<'_> {
    /// Begins whatever is due on devices that are free.
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
        let free = |node: &Node, id: EngineId| node.is_free(&node.engine(id).spec.devices);
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
        let spoken_for = node.spoken_for();
        let spoken = |devices: &[DeviceId]| devices.iter().any(|d| spoken_for.contains(d));
        // What the agent wanted to start when it came up waits for the end of maintenance, and for whoever asks.
        let ready = |q: &Queued| {
            let devices = node.devices_of(&q.request);
            node.is_free(&devices) && (q.by != By::Agent || !(node.is_paused() || spoken(&devices)))
        };
        let next = node.queue.iter().position(ready);
        if let Some(queued) = next.and_then(|at| self.node.queue.remove(at)) {
            return self.begin(queued.id, queued.request, queued.by);
        }
        if self.node.closing || self.node.is_paused() {
            return;
        }
        if !self.node.cycle && self.next_turn() {
            return;
        }
        if self.one_less_awake() {
            return;
        }
        let node = &*self.node;
        let now = self.now;
        let due = find(node, &|id| {
            !node.engine(id).retired
                && !node.engine(id).spec.devices.iter().any(|d| spoken_for.contains(d))
                && match node.engine(id).condition {
                    Condition::Backoff(at) => at <= now,
                    Condition::NoRoom => {
                        plan::evidence(node, &node.engine(id).spec.devices).is_ok()
                            && plan::make_room_to_start(node, id).is_ok()
                    }
                    _ => false,
                }
        });
        if let Some(engine) = due {
            let e = self.node.engine(engine);
            let awake = e.wanted_awake || e.demand.held > 0;
            return self.own(Request::Start { engine, rehearse: None, awake });
        }
        // A cycle has the engines to itself.
        if self.node.cycle {
            return;
        }
        if self.one_comes_back() {
            return;
        }
        if let Some(engine) = self.retire_now() {
            return self.own(Request::Stop { engine, drain: Drain::default() });
        }
        match creep::recycle_now(self.node) {
            Some(engine) => {
                // Whoever was idle must be seen idle again before another try.
                self.node.engines.iter_mut().for_each(|e| e.watch.idle = 0);
                self.own(Request::Restart { engine, rehearse: None, drain: Drain::default() });
            }
            None => self.next_rung(),
        }
    }

    fn own(&mut self, request: Request) {
        let id = self.node.number();
        self.begin(id, request, By::Agent);
    }
}
