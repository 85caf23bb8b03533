//! The one owner of the node's state (invariant I3).
//!
//! ```text
//!   inputs ──► step(&mut node, event, now) ──► notes ──► journal (committed), metrics, log, board
//!     ▲                                   └──► actions ──► hands ──┐
//!     └─────────────────────────── done, exited, surveyed ─────────┘
//! ```
//!
//! Everybody else reads: the newest state through a watch channel, operations through the [`Board`]. Nobody acts on
//! such a snapshot; whoever wants something sends a command.

mod board;
#[cfg(test)]
mod growth_tests;
mod handle;
mod notes;
pub mod spec;

pub use board::{Board, Client, Ended, Why};
pub use handle::{Handle, Input, Order};
pub use notes::{Admission, Around};

use crate::adopt::{Keeper, Taken};
use crate::clock;
use crate::device::FastGuard;
use crate::effects::{Hands, Purpose, WorkLog};
use crate::events::{Context, Event as Recorded};
use crate::journal::Keep;
use crate::journal::record::Record;
use crate::status;
use hotbunk_api::event::Happening;
use hotbunk_core::effect::{Action, Effect, Note, ProbeKind, Ticket};
use hotbunk_core::event::Event;
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::program::Step;
use hotbunk_core::queue::Refusal;
use hotbunk_core::state::Node;
use hotbunk_core::step::step;
use hotbunk_core::time::Moment;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    drop(stop.wait_for(|stop| *stop).await);
}

/// The owner.
#[derive(Debug)]
pub struct Switcher {
    node: Node,
    hands: Arc<Hands>,
    inputs: mpsc::UnboundedReceiver<Input>,
    publish: watch::Sender<Arc<Node>>,
    board: Board,
    runs: HashMap<OperationId, String>,
    orders: HashMap<OperationId, Order>,
    answers: HashMap<OperationId, oneshot::Sender<Admission>>,
    cancels: HashMap<OperationId, oneshot::Sender<Result<(), Refusal>>>,
    calls: HashMap<OperationId, Vec<crate::effects::Called>>,
    work: Arc<Mutex<WorkLog>>,
    fast: Option<FastGuard>,
    /// Nothing is switched while the journal cannot be written.
    needs_journal: bool,
    /// The devices' ledgers as they were last published.
    ledgers: Vec<status::Ledger>,
    reconcile: Duration,
    /// What a later agent would take over.
    keeper: Keeper,
    /// Operations that a former agent began.
    resumed: HashSet<OperationId>,
    /// The moment of the last step.
    stepped: Moment,
    /// It ends as soon as nothing is under way.
    ends_at_rest: bool,
}

impl Switcher {
    /// An owner of this node. `inputs` is the other end of [`Hands::inputs`].
    pub fn new(
        node: Node,
        hands: Arc<Hands>,
        inputs: mpsc::UnboundedReceiver<Input>,
        board: Board,
        reconcile: Duration,
    ) -> (Self, Handle) {
        let (publish, watched) = watch::channel(Arc::new(node.clone()));
        let handle = Handle::new(hands.inputs.clone(), watched, board.clone());
        let switcher = Switcher {
            ledgers: status::ledgers(&node),
            node,
            hands,
            inputs,
            publish,
            board,
            runs: HashMap::new(),
            orders: HashMap::new(),
            answers: HashMap::new(),
            cancels: HashMap::new(),
            calls: HashMap::new(),
            work: Arc::default(),
            fast: None,
            needs_journal: false,
            reconcile,
            keeper: Keeper::default(),
            resumed: HashSet::new(),
            stepped: clock::now(),
            ends_at_rest: false,
        };
        (switcher, handle)
    }

    /// Whether what asks for engines to be moved is refused while the journal cannot be written.
    #[must_use]
    pub fn needing_the_journal(mut self, needs_journal: bool) -> Self {
        self.needs_journal = needs_journal;
        self
    }

    /// Works until every sender of inputs is gone, `stop` says so, or it has come to the rest that was to be its end.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(self.reconcile);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if ticks.period() != self.reconcile {
                // The configuration has another one now.
                ticks = tokio::time::interval(self.reconcile);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            }
            let due = self.node.next_deadline(self.stepped).map(|at| Instant::now() + at.since(clock::now()));
            let wake = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                input = self.inputs.recv() => match input {
                    Some(input) => self.take(input).await,
                    None => return,
                },
                () = wake => self.happened(Event::Tick, Around::default()).await,
                _ = ticks.tick() => self.look_around().await,
                () = stopped(&mut stop) => return,
            }
            if self.ends_at_rest && self.node.is_at_rest() {
                return;
            }
        }
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.happened(event, Around::default()).await,
            Input::Taken(taken) => self.adopt(*taken).await,
            Input::EndAtRest => self.ends_at_rest = true,
            Input::Done { ticket, result, around } => {
                self.happened(Event::Done { ticket, result }, around).await;
            }
            Input::Submit { order, answer } => {
                let id = self.node.number();
                if let Some(run) = &order.run {
                    self.runs.insert(id, run.clone());
                }
                self.answers.insert(id, answer);
                self.keeper.order(id, &order);
                let event = Event::Command { id, request: order.request.clone(), by: order.by };
                self.orders.insert(id, order);
                self.happened(event, Around::default()).await;
            }
            Input::Cancel { id, answer } => {
                self.cancels.insert(id, answer);
                self.happened(Event::Cancel(id), Around::default()).await;
                // Nobody objected.
                if let Some(answer) = self.cancels.remove(&id) {
                    let _ = answer.send(Ok(()));
                }
            }
            Input::Revise { plan, answer } => {
                let (revision, report) = plan.apply(&self.node, &self.hands);
                // At once: slots and lines are those of the node that comes of it.
                self.step(Event::Revised(Box::new(revision)), Around::default()).await;
                plan.configure(&self.hands);
                (self.needs_journal, self.reconcile) = plan.of_the_switcher();
                self.look_at_journal().await;
                let waits = |id: &EngineId| self.node.engine(*id).revised.is_some();
                let goes = |id: &EngineId| self.node.engine(*id).retired && self.node.engine(*id).process;
                let concerned: Vec<EngineId> = self.node.ids().filter(|id| waits(id) || goes(id)).collect();
                self.tell_of(&concerned);
                // Whoever asked may have gone; it is done all the same.
                let _ = answer.send(report);
            }
        }
    }

    /// The periodic look: devices first, then the engines.
    async fn look_around(&mut self) {
        self.hands.refresh_owners();
        self.look_at_journal().await;
        self.hands.look_at_ports(&self.node);
        self.look_at_devices().await;
        self.happened(Event::Tick, Around::default()).await;
    }

    async fn look_at_devices(&mut self) {
        for index in 0..self.node.devices.len() {
            let device = DeviceId(u16::try_from(index).unwrap_or(u16::MAX));
            if let Some(event) = self.hands.device_event(device) {
                self.happened(event, Around::default()).await;
            }
        }
    }

    /// Whether the journal can be written decides whether anything is switched, where the configuration wants it so.
    async fn look_at_journal(&mut self) {
        let lost = self.hands.recorder.check_journal().await.map(|trouble| trouble.reason);
        let lost = lost.filter(|_| self.needs_journal);
        if lost.is_some() != self.node.journal_lost.is_some() {
            self.happened(Event::JournalLost(lost), Around::default()).await;
        }
    }

    /// Everything of a former agent: decided in one step, and said.
    async fn adopt(&mut self, taken: Taken) {
        self.orders.extend(taken.orders.iter().map(|(id, order)| (*id, order.clone())));
        for (id, order) in &taken.orders {
            self.runs.extend(order.run.clone().map(|run| (*id, run)));
        }
        let operations = taken.adoption.work.as_ref().map_or(0, |work| work.operations.len());
        let (engines, began) = (taken.lives(), taken.began);
        self.keeper.orders(taken.orders);
        self.keeper.remembers(&taken.done);
        self.board.remember(taken.done);
        self.happened(Event::Adopted(Box::new(taken.adoption)), Around::default()).await;
        let adopted = engines.iter().filter_map(|id| self.adopted(*id));
        let recovered = Record::Recovered {
            engines: u32::try_from(engines.len()).unwrap_or(u32::MAX),
            operations: u32::try_from(operations).unwrap_or(u32::MAX),
            began,
            recovered: clock::now(),
        };
        let said = adopted.chain([recovered]).map(Recorded::from).collect();
        drop(self.hands.recorder.record(&Context::none(), said).await);
        // What is on the devices is known before anything is started on them.
        self.look_at_devices().await;
    }

    /// That an engine's process was taken over.
    fn adopted(&self, id: EngineId) -> Option<Record> {
        let engine = self.node.engine(id);
        Some(Record::Adopted {
            engine: engine.spec.name.clone(),
            incarnation: self.hands.slot(id).process()?.incarnation(),
            state: engine.condition_word().to_owned(),
            generation: engine.generation,
        })
    }

    /// One event. Turns and idle ladders go by how engines are used, and any event may be the one after which they are
    /// due: so what is new of that comes first, of all engines at once.
    async fn happened(&mut self, event: Event, around: Around) {
        let uses = self.hands.hub.uses(&self.node);
        if !uses.is_empty() {
            self.step(Event::Uses(uses), Around::default()).await;
        }
        self.step(event, around).await;
    }

    /// Decided, made durable, acted on.
    async fn step(&mut self, event: Event, around: Around) {
        self.stepped = clock::now();
        let effects = step(&mut self.node, event, self.stepped);
        if effects.is_empty() {
            self.keep().await;
            self.published();
            return self.hands.hub.follow(&self.node, &effects, self.stepped);
        }
        let mut current = effects
            .iter()
            .find_map(|e| if let Effect::Note(note) = e { notes::operation_of(note) } else { None })
            .or_else(|| self.node.operations.first().map(|op| op.id));
        let mut batches: Vec<(Option<OperationId>, Vec<Recorded>)> = Vec::new();
        let (mut closed, mut moved) = (Vec::new(), Vec::new());
        for effect in &effects {
            let Effect::Note(note) = effect else { continue };
            current = notes::operation_of(note).or(current);
            if let Note::Resumed { id, .. } = note {
                self.resumed.insert(*id);
            }
            if let Some(record) = notes::record(&self.node, note, around) {
                let record = notes::by_whom(record, current.is_some_and(|id| self.resumed.contains(&id)));
                match batches.last_mut() {
                    Some((of, events)) if *of == current => events.push(record.into()),
                    _ => batches.push((current, vec![record.into()])),
                }
            }
            if let Note::TakenIn { engine, .. } = note
                && let Some(record) = self.adopted(*engine)
            {
                batches.push((current, vec![record.into()]));
            }
            self.noted(note, around);
            if let Note::Ended { id, accepted, .. } = note {
                let shown = self.board.by_number(*id).filter(|shown| shown.request.is_some());
                shown.into_iter().for_each(|shown| self.keeper.ended(*id, shown));
                closed.push((*id, *accepted));
            }
            if let Note::Transition { engine, .. } | Note::Revised { engine, .. } = note
                && !moved.contains(engine)
            {
                moved.push(*engine);
            }
        }
        self.published();
        // Before any action: a gate is closed before the drain begins.
        self.hands.hub.follow(&self.node, &effects, self.stepped);
        let batches: Vec<_> = batches.into_iter().map(|(of, events)| (self.context(of), events)).collect();
        let keep = self.what_to_keep();
        // One transaction, so that an agent that is killed leaves the state between two steps. The recorder has said
        // loudly where it fails; serving goes on without a journal.
        if let Err(error) = self.hands.recorder.record_step(batches, keep).await {
            self.keeper.lost();
            // Not only at the next look: a command may follow at once.
            if self.needs_journal && self.node.journal_lost.is_none() {
                let _ = self.hands.inputs.send(Input::Event(Event::JournalLost(Some(error.to_string()))));
            }
        }
        for effect in effects {
            match effect {
                Effect::Note(_) => {}
                Effect::Survey { engine, generation } => self.hands.survey(engine, generation),
                Effect::Run { ticket, action } => {
                    let purpose = self.purpose(ticket, &action);
                    self.hands.run(ticket, action, purpose);
                }
            }
        }
        for (id, accepted) in closed {
            self.close_operation(id, accepted);
        }
        self.tell_of(&moved);
    }

    /// Engines and devices as they stand after an event, for those who follow; after the actions, which do not wait.
    fn tell_of(&mut self, moved: &[EngineId]) {
        let events = self.hands.recorder.events();
        for engine in moved {
            let engine = Box::new(status::engine(&self.node, &self.hands, &self.board, *engine));
            events.publish(clock::epoch(), Happening::Engine { engine });
        }
        let ledgers = status::ledgers(&self.node);
        for (index, (now, before)) in ledgers.iter().zip(&self.ledgers).enumerate() {
            if now != before {
                let id = DeviceId(u16::try_from(index).unwrap_or(u16::MAX));
                let device = Box::new(status::device(&self.node, &self.hands, id));
                events.publish(clock::epoch(), Happening::Device { device });
            }
        }
        self.ledgers = ledgers;
    }

    /// What a later agent has to know that has changed.
    fn what_to_keep(&mut self) -> Vec<Keep> {
        let mut keep = self.keeper.changes(&self.node);
        let slots = self.hands.engines.all();
        keep.extend(self.keeper.settings(slots.iter().map(|s| (&*s.config.name, &*s.fingerprint))));
        keep
    }

    /// What an event without any word has changed.
    async fn keep(&mut self) {
        let keep = self.what_to_keep();
        if !keep.is_empty() && self.hands.recorder.record_step(Vec::new(), keep).await.is_err() {
            self.keeper.lost();
        }
    }

    fn published(&mut self) {
        if self.node.operations.is_empty() {
            self.fast = None;
        } else if self.fast.is_none() {
            self.fast = Some(self.hands.sampler.fast());
        }
        if **self.publish.borrow() != self.node {
            self.publish.send_replace(Arc::new(self.node.clone()));
        }
    }

    fn context(&self, operation: Option<OperationId>) -> Context {
        let run = operation.and_then(|id| self.runs.get(&id).cloned());
        Context { run, operation }
    }

    fn purpose(&self, ticket: Ticket, action: &Action) -> Purpose {
        let op =
            self.node.operations.iter().find(|op| op.current.as_ref().is_some_and(|c| c.ticket == ticket));
        let step = op.and_then(|op| op.current.as_ref()).map(|c| &c.step);
        let probe = match step {
            Some(Step::Probe { counted: true, .. }) => "probe",
            Some(Step::Probe { kind: ProbeKind::LongCanary | ProbeKind::Canary, engine, .. })
                if op.is_some_and(|op| op.program.contains(&Step::Rehearsed(*engine))) =>
            {
                "rehearsal"
            }
            _ => "canary",
        };
        let engine = self.node.engine(action.engine());
        Purpose {
            context: self.context(op.map(|op| op.id)),
            probe,
            capabilities: engine.capabilities,
            device: engine.spec.devices.first().copied(),
        }
    }

    /// Answers callers, keeps the board, and remembers.
    fn noted(&mut self, note: &Note, around: Around) {
        if let Note::Transition { engine, .. } | Note::Incident { engine: Some(engine), .. } = note {
            self.hands.slot(*engine).see(|seen| seen.note(note, self.node.closing));
        }
        if let Note::Revised { engine, .. } = note {
            self.hands.put_in_force(*engine);
        }
        let admission = match note {
            Note::Accepted { id, .. } => Some((*id, Admission::Begun(*id))),
            Note::Queued { id, .. } => Some((*id, Admission::Queued(*id))),
            Note::Joined { id, to } => Some((*id, Admission::Joined(*to))),
            Note::NothingToDo { id, because, .. } => Some((*id, Admission::Nothing(because.clone()))),
            Note::Refused { id, refusal } => Some((*id, Admission::Refused(refusal.clone()))),
            Note::NotCancelled { id, refusal } => {
                if let Some(answer) = self.cancels.remove(id) {
                    let _ = answer.send(Err(refusal.clone()));
                }
                None
            }
            Note::StepEnded { id, step: Step::Call { engine, .. } | Step::Probe { engine, .. }, .. } => {
                if let Some(called) = self.called(*engine, note) {
                    self.calls.entry(*id).or_default().push(called);
                }
                None
            }
            _ => None,
        };
        let order = notes::operation_of(note).and_then(|id| self.orders.get(&id));
        self.board.note(&self.node, note, order, around);
        if let Some((id, admission)) = admission {
            match admission {
                Admission::Queued(_) => {}
                Admission::Begun(_) => drop(self.orders.remove(&id)),
                // It never becomes an operation of its own.
                Admission::Joined(_) | Admission::Nothing(_) | Admission::Refused(_) => {
                    self.orders.remove(&id);
                    self.runs.remove(&id);
                }
            }
            if let Some(answer) = self.answers.remove(&id) {
                // The caller may have gone.
                let _ = answer.send(admission);
            }
        }
    }

    fn called(&self, engine: EngineId, note: &Note) -> Option<crate::effects::Called> {
        let Note::StepEnded { step, first_token, .. } = note else { return None };
        let engine = self.node.engine(engine).spec.name.clone();
        let ended = first_token.unwrap_or_else(clock::now);
        Some(crate::effects::Called { engine, phase: notes::phase(step)?, ended })
    }

    /// What the engines did by their own clocks is collected beside the way; then the operation is over for everybody.
    fn close_operation(&mut self, id: OperationId, accepted: hotbunk_core::time::Moment) {
        let calls = self.calls.remove(&id).unwrap_or_default();
        let context = self.context(Some(id));
        self.runs.remove(&id);
        self.resumed.remove(&id);
        // One that was cancelled while it waited has never begun.
        self.orders.remove(&id);
        let (hands, work, board) = (Arc::clone(&self.hands), Arc::clone(&self.work), self.board.clone());
        tokio::spawn(async move {
            let done = work.lock().await.collect(&hands, &calls, accepted, clock::now()).await;
            drop(hands.recorder.record_one(&context, Record::EngineWork { work: done }).await);
            board.over(id);
        });
    }
}
