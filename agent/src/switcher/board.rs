//! Operations as the control API shows them: kept for a while, followed by whoever waits.

use super::{Around, Order, notes};
use crate::clock;
use crate::control::EventLog;
use crate::translate;
use hotbunk_api::event::Happening;
use hotbunk_api::explain::{Plan, PlanStep};
use hotbunk_api::operation::{Initiator, Operation, OperationRequest, Step};
use hotbunk_api::words::{OperationKind, State};
use hotbunk_core::effect::Note;
use hotbunk_core::event::{By, Request};
use hotbunk_core::ids::OperationId;
use hotbunk_core::program::Failure;
use hotbunk_core::state::Node;
use hotbunk_core::time::Moment;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Operations that are remembered once they are over.
const REMEMBERED: usize = 512;

/// Who asked over the control API.
#[derive(Debug, Clone)]
pub struct Client {
    /// The id that the client chose or was given.
    pub id: String,
    /// The request as it came.
    pub request: OperationRequest,
    /// Who.
    pub initiator: Initiator,
}

/// How an operation ended, for those inside the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `None` as asked.
    pub failure: Option<Why>,
}

/// Why an operation did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// The core's word for the cause, or for the refusal of one that had waited.
    pub code: &'static str,
    /// A sentence.
    pub message: String,
}

#[derive(Debug)]
struct Entry {
    number: OperationId,
    accepted: Moment,
    shown: Operation,
    ended: Option<Ended>,
}

/// All operations. Clones are the same board.
#[derive(Debug, Clone)]
pub struct Board {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    entries: Mutex<VecDeque<Entry>>,
    version: watch::Sender<u64>,
    events: Arc<EventLog>,
}

impl Board {
    /// An empty board that tells of its changes.
    pub fn new(events: Arc<EventLog>) -> Self {
        Board {
            shared: Arc::new(Shared { entries: Mutex::default(), version: watch::Sender::new(0), events }),
        }
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every remembered operation, newest first.
    pub fn list(&self) -> Vec<Operation> {
        self.entries().iter().rev().map(Entry::show).collect()
    }

    /// One operation by the id it is known by outside.
    pub fn find(&self, id: &str) -> Option<Operation> {
        self.entries().iter().find(|e| e.shown.id == id).map(Entry::show)
    }

    /// One operation by its number.
    pub fn by_number(&self, number: OperationId) -> Option<Operation> {
        self.entries().iter().find(|e| e.number == number).map(Entry::show)
    }

    /// Number of an operation by the id it is known by outside.
    pub fn number(&self, id: &str) -> Option<OperationId> {
        self.entries().iter().find(|e| e.shown.id == id).map(|e| e.number)
    }

    /// Waits until an operation is over; `None` where it is not (or no longer) known.
    pub async fn ended(&self, number: OperationId) -> Option<Ended> {
        let mut version = self.shared.version.subscribe();
        loop {
            version.borrow_and_update();
            {
                let entries = self.entries();
                let entry = entries.iter().find(|e| e.number == number)?;
                if entry.shown.state.is_over() {
                    return entry.ended.clone();
                }
            }
            version.changed().await.ok()?;
        }
    }

    /// The operation that is under way first, and those that wait.
    pub fn current(&self) -> (Option<Operation>, Vec<Operation>) {
        let entries = self.entries();
        let with = |state: State| entries.iter().filter(move |e| e.shown.state == state).map(Entry::show);
        (with(State::Running).next(), with(State::Queued).collect())
    }

    fn tell(&self, shown: Option<Operation>) {
        if let Some(operation) = shown {
            let operation = Box::new(operation);
            self.shared.events.publish(clock::epoch(), Happening::Operation { operation });
        }
        self.shared.version.send_modify(|v| *v += 1);
    }

    /// Operations that were over before this agent began, oldest first.
    pub fn remember(&self, done: Vec<Operation>) {
        let now = clock::now();
        let entry = |shown: Operation| {
            let failure =
                shown.error.as_ref().map(|error| Why { code: "failed", message: error.message.clone() });
            let number = OperationId(shown.number?);
            Some(Entry { number, accepted: now, ended: Some(Ended { failure }), shown })
        };
        let mut entries = self.entries();
        done.into_iter().filter_map(entry).rev().for_each(|entry| entries.push_front(entry));
    }

    /// Everything is recorded: the operation is over for those who wait.
    pub fn over(&self, number: OperationId) {
        let shown = {
            let mut entries = self.entries();
            let Some(entry) = entries.iter_mut().find(|e| e.number == number) else { return };
            entry.shown.state = State::of_end(entry.shown.error.as_ref().map(|error| error.code));
            Some(entry.show())
        };
        self.tell(shown);
    }

    /// Keeps up with the core.
    pub(super) fn note(&self, node: &Node, note: &Note, order: Option<&Order>, around: Around) {
        let shown = match note {
            Note::Accepted { id, request, by, outgoing, strategy, order: sequence, leave, steps, .. } => {
                let plan = Plan {
                    strategy: strategy.map(translate::strategy_out),
                    order: sequence.map(translate::order_out),
                    leave: leave.map(translate::tier_out),
                    steps: steps.iter().map(|s| plan_step(node, s)).collect(),
                    first_token_s: None,
                    total_s: None,
                    peaks: Vec::new(),
                };
                let from = outgoing.first().filter(|e| request.engine().is_some_and(|to| to != **e));
                let from = from.map(|e| node.engine(*e).spec.name.clone());
                self.begin(node, *id, request, *by, order, State::Running, |shown| {
                    shown.plan = Some(plan);
                    shown.from = from;
                })
            }
            Note::Resumed { id, request, by, step, then, because } => {
                let from = node.operations.iter().find(|op| op.id == *id).and_then(|op| op.outgoing.first());
                let from = from.filter(|e| Some(**e) != request.engine());
                let from = from.map(|e| node.engine(*e).spec.name.clone());
                let step = step.as_ref().map(|s| s.sentence(node)).unwrap_or_default();
                self.begin(node, *id, request, *by, order, State::Running, |shown| {
                    shown.from = from;
                    shown.note = Some(format!(
                        "begun by an agent that ended meanwhile, in the step: {step} ({}: {because})",
                        then.as_str()
                    ));
                })
            }
            Note::Queued { id, .. } => {
                let Some(order) = order else { return };
                self.begin(node, *id, &order.request, order.by, Some(order), State::Queued, |_| {})
            }
            Note::NothingToDo { id, request, by, because } => {
                let shown = self.begin(node, *id, request, *by, order, State::Succeeded, |shown| {
                    shown.note = Some(because.clone());
                    shown.ended_at = Some(clock::epoch());
                });
                let mut entries = self.entries();
                if let Some(entry) = entries.iter_mut().find(|e| e.number == *id) {
                    entry.ended = Some(Ended { failure: None });
                }
                shown
            }
            Note::Refused { id, refusal } => {
                // Only one that had waited is known here.
                let error = translate::refusal(refusal, self);
                let why = Why { code: refusal.code(), message: refusal.to_string() };
                self.change(*id, |entry| {
                    entry.ended = Some(Ended { failure: Some(why) });
                    entry.shown.error = Some(error);
                    entry.shown.state = State::Failed;
                    entry.shown.ended_at = Some(clock::epoch());
                })
            }
            Note::StepBegan { id, index, step } => {
                let Some(phase) = notes::phase(step) else { return };
                let engine = step.engine().map(|e| node.engine(e).spec.name.clone()).unwrap_or_default();
                self.change(*id, |entry| {
                    entry.shown.steps.push(Step {
                        index: *index,
                        phase: phase.as_str().to_owned(),
                        engine,
                        state: State::Running,
                        began_s: Some(clock::now().since(entry.accepted).as_secs_f64()),
                        duration_s: None,
                        device_before_bytes: None,
                        device_after_bytes: None,
                        error: None,
                    });
                })
            }
            Note::StepEnded { id, index, began, failure, .. } => self.change(*id, |entry| {
                let Some(step) = entry.shown.steps.iter_mut().find(|s| s.index == *index) else { return };
                step.state = if failure.is_none() { State::Succeeded } else { State::Failed };
                step.duration_s = Some(clock::now().since(*began).as_secs_f64());
                step.device_before_bytes = around.before.device;
                step.device_after_bytes = around.after.device;
                step.error = failure.as_ref().map(|f| translate::failure(f, Some(&step.phase)));
            }),
            Note::Ended { id, failure, accepted, first_token } => self.change(*id, |entry| {
                let phase =
                    entry.shown.steps.iter().find(|s| s.state == State::Failed).map(|s| s.phase.clone());
                entry.shown.error = failure.as_ref().map(|f| translate::failure(f, phase.as_deref()));
                entry.shown.ended_at = Some(clock::epoch());
                entry.shown.elapsed_s = clock::now().since(*accepted).as_secs_f64();
                entry.shown.first_token_s = first_token.map(|at| at.since(*accepted).as_secs_f64());
                let why = |f: &Failure| Why { code: f.cause.code(), message: f.detail.clone() };
                entry.ended = Some(Ended { failure: failure.as_ref().map(why) });
                // A queued one that is cancelled ends without ever having begun.
                if entry.shown.state == State::Queued {
                    entry.shown.state = State::Cancelled;
                }
            }),
            Note::TakenIn { id, remarks, .. } => self.change(*id, |entry| {
                let said = std::iter::once("taken over as it ran").chain(remarks.iter().map(String::as_str));
                entry.shown.note = Some(said.collect::<Vec<_>>().join("; "));
            }),
            // Incidents are published by the recorder, engines by the switcher.
            Note::Joined { .. }
            | Note::Incident { .. }
            | Note::Transition { .. }
            | Note::Measured { .. }
            | Note::NotCancelled { .. }
            | Note::Late(_)
            | Note::Revised { .. } => return,
        };
        self.tell(shown);
    }

    fn change(&self, number: OperationId, with: impl FnOnce(&mut Entry)) -> Option<Operation> {
        let mut entries = self.entries();
        let entry = entries.iter_mut().find(|e| e.number == number)?;
        with(entry);
        Some(entry.show())
    }

    #[expect(clippy::too_many_arguments, reason = "one operation's facts, each from another place")]
    fn begin(
        &self,
        node: &Node,
        number: OperationId,
        request: &Request,
        by: By,
        order: Option<&Order>,
        state: State,
        with: impl FnOnce(&mut Operation),
    ) -> Option<Operation> {
        let mut entries = self.entries();
        let now = clock::now();
        if !entries.iter().any(|e| e.number == number) {
            let client = order.and_then(|o| o.client.as_ref());
            let initiator = match (client, by, order.and_then(|o| o.run.clone())) {
                (Some(client), ..) => client.initiator.clone(),
                (None, By::Cycle, Some(run)) => Initiator::Cycle { run },
                (None, By::Gateway, _) => Initiator::Gateway,
                _ => Initiator::Agent,
            };
            let shown = Operation {
                id: client.map_or_else(|| format!("op-{}", number.0), |c| c.id.clone()),
                number: Some(number.0),
                kind: kind(request),
                engine: node.subject(request),
                from: None,
                request: client.map(|c| c.request.clone()),
                initiator,
                state,
                note: None,
                error: None,
                plan: None,
                steps: Vec::new(),
                accepted_at: clock::epoch(),
                ended_at: None,
                elapsed_s: 0.0,
                first_token_s: None,
                eta_s: None,
            };
            let over = entries.iter().filter(|e| e.shown.state.is_over()).count();
            if over >= REMEMBERED
                && let Some(oldest) = entries.iter().position(|e| e.shown.state.is_over())
            {
                entries.remove(oldest);
            }
            entries.push_back(Entry { number, accepted: now, shown, ended: None });
        }
        let entry = entries.iter_mut().find(|e| e.number == number)?;
        entry.shown.state = state;
        entry.accepted = now;
        with(&mut entry.shown);
        Some(entry.show())
    }
}

impl Entry {
    fn show(&self) -> Operation {
        let mut shown = self.shown.clone();
        if shown.ended_at.is_none() {
            shown.elapsed_s = clock::now().since(self.accepted).as_secs_f64();
        }
        shown
    }
}

fn kind(request: &Request) -> OperationKind {
    match request {
        Request::Switch { .. } => OperationKind::Switch,
        Request::Sleep { .. } => OperationKind::Sleep,
        Request::Wake(_) => OperationKind::Wake,
        Request::Start { .. } => OperationKind::Start,
        Request::Stop { .. } => OperationKind::Stop,
        Request::Restart { .. } => OperationKind::Restart,
        Request::Reset(_) => OperationKind::Reset,
        Request::Bury(_) | Request::Repair(_) => OperationKind::Repair,
        Request::Pause { .. } => OperationKind::Pause,
        Request::Resume => OperationKind::Resume,
        Request::Adopt(_) => OperationKind::Adopt,
    }
}

fn plan_step(node: &Node, step: &hotbunk_core::program::Step) -> PlanStep {
    let engine = step.engine().map(|e| node.engine(e).spec.name.clone()).unwrap_or_default();
    PlanStep { sentence: step.sentence(node), engine, eta_s: translate::leg_cost(node, step) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switcher::spec;
    use hotbunk_core::ids::EngineId;
    use hotbunk_core::queue::Refusal;

    fn node() -> Node {
        spec::node_of(&["A"])
    }

    #[tokio::test]
    async fn a_command_that_waited_and_was_refused_ends_with_the_reason() {
        let (node, board) = (node(), Board::new(Arc::new(EventLog::new(8))));
        let request = Request::Wake(EngineId(0));
        let order = Order { request, by: By::Cycle, run: Some("run".to_owned()), client: None };
        let id = OperationId(7);
        let note = |note: &Note| board.note(&node, note, Some(&order), Around::default());
        note(&Note::Queued { id, behind: OperationId(6) });
        assert_eq!(board.by_number(id).unwrap().state, State::Queued);
        let waiting = {
            let board = board.clone();
            tokio::spawn(async move { board.ended(id).await })
        };
        let refusal = Refusal::NoEvidence { device: "gpu0".to_owned(), reason: "no driver".to_owned() };
        note(&Note::Refused { id, refusal: refusal.clone() });
        let why = Why { code: refusal.code(), message: refusal.to_string() };
        assert_eq!(waiting.await.unwrap(), Some(Ended { failure: Some(why) }));
        assert_eq!(board.by_number(id).unwrap().state, State::Failed);
    }

    #[tokio::test]
    async fn nobody_waits_for_what_is_not_known() {
        let board = Board::new(Arc::new(EventLog::new(8)));
        assert_eq!(board.ended(OperationId(7)).await, None);
    }
}
