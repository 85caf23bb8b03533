//! A month of handoffs, without the processes: what is kept in memory does not grow with what was done.

use super::{Around, Board, Order, spec};
use crate::control::EventLog;
use futures_util::{FutureExt as _, StreamExt as _};
use hotbunk_core::call::{CallOutcome, SleepingAnswer};
use hotbunk_core::capability::{Capabilities, Routes, Version};
use hotbunk_core::effect::{Action, Effect, Note, StepResult, Ticket};
use hotbunk_core::event::{By, Drain, Event, Request, Survey};
use hotbunk_core::ids::EngineId;
use hotbunk_core::program::Step;
use hotbunk_core::state::Node;
use hotbunk_core::step::step;
use hotbunk_core::time::Moment;
use std::sync::Arc;
use std::time::Duration;

/// Events that the log remembers.
const REMEMBERED: usize = 64;

struct Month {
    node: Node,
    board: Board,
    events: Arc<EventLog>,
    now: Moment,
    waiting: Vec<(Ticket, Action)>,
}

impl Month {
    fn begin() -> Self {
        let events = Arc::new(EventLog::new(REMEMBERED));
        Month {
            node: spec::node_of(&["A", "B"]),
            board: Board::new(Arc::clone(&events)),
            events,
            now: Moment(1_000_000_000),
            waiting: Vec::new(),
        }
    }

    fn say(&mut self, event: Event, order: Option<&Order>) {
        self.now = self.now + Duration::from_millis(20);
        for effect in step(&mut self.node, event, self.now) {
            match effect {
                Effect::Run { ticket, action } => self.waiting.push((ticket, action)),
                Effect::Note(note) => {
                    self.board.note(&self.node, &note, order, Around::default());
                    if let Note::Ended { id, .. } = note {
                        self.board.over(id);
                    }
                }
                Effect::Survey { engine, generation } => {
                    let awake = self.node.engine(engine).is_serving();
                    let sleeping = SleepingAnswer::Says { is_sleeping: !awake };
                    let survey =
                        Survey { sleeping, running: Some(0), tokens: Some(self.now.0), device_bytes: None };
                    self.say(Event::Surveyed { engine, generation, survey }, None);
                }
            }
        }
    }

    /// Everything ends well, but for every `nth` call, which is refused.
    fn work_off(&mut self, nth: u64) {
        while let Some((ticket, action)) = self.waiting.pop() {
            let asleep = self.node.operations.iter().any(|op| {
                let step = op.current.as_ref().map(|current| &current.step);
                matches!(step, Some(Step::ConfirmAsleep(_) | Step::Resolve { asleep: true, .. }))
            });
            let result = match action {
                Action::Call { .. } if ticket.0.is_multiple_of(nth) => {
                    StepResult::Called(CallOutcome::Refused { status: 500, message: "no".to_owned() })
                }
                Action::Call { .. } => StepResult::Called(CallOutcome::Accepted { success: None }),
                Action::Drain { .. } => StepResult::Drained,
                Action::IsSleeping { .. } => {
                    StepResult::Sleeping(SleepingAnswer::Says { is_sleeping: asleep })
                }
                Action::AwaitUsed { .. } => StepResult::Reached { used: Vec::new() },
                Action::Probe { .. } => StepResult::Token { at: self.now },
                Action::Spawn { .. } => StepResult::Spawned,
                Action::Ready { .. } => StepResult::Ready(capabilities()),
                Action::WarmUp { .. } => StepResult::Warmed,
                Action::Stop { .. } => StepResult::Stopped { left: 0 },
                Action::Measure { .. } => StepResult::Measured { used: Vec::new(), engine: None, host: None },
                Action::Hold { .. } => StepResult::Held,
                Action::Keep { .. } => StepResult::NotHeld("no".to_owned()),
                Action::LetGo { .. } => StepResult::LetGo,
            };
            self.say(Event::Done { ticket, result }, None);
        }
    }

    /// One command, and everything that follows from it.
    fn command(&mut self, request: Request, nth: u64) {
        let id = self.node.number();
        let order = Order { request: request.clone(), by: By::Operator, run: None, client: None };
        self.say(Event::Command { id, request, by: By::Operator }, Some(&order));
        self.work_off(nth);
        // Back-offs end, too.
        self.now = self.now + Duration::from_secs(120);
        self.say(Event::Tick, None);
        self.work_off(nth);
    }

    fn weeks(&mut self, handoffs: u16) {
        for n in 0..handoffs {
            let drain = Drain::default();
            let to = EngineId(n % 2);
            self.command(Request::Switch { to, strategy: None, leave: None, drain }, 97);
            if n % 10 == 0 {
                self.command(Request::Start { engine: to, rehearse: Some(true), awake: false }, 1000);
                self.command(Request::Reset(to), 1000);
            }
        }
    }

    /// Characters that everything kept takes when it is written out.
    fn size(&self) -> usize {
        format!("{:?}{:?}", self.node, self.board.list()).len()
    }
}

fn capabilities() -> Capabilities {
    let routes = Routes {
        sleep: true,
        collective_rpc: true,
        release_kv_cache: true,
        reset_prefix_cache: true,
        pause: true,
        abort_requests: true,
    };
    Capabilities { version: Version::new(0, 31, 0), routes, workers: 1 }
}

#[test]
fn thousands_of_operations_leave_no_more_than_hundreds() {
    let mut month = Month::begin();
    for engine in [EngineId(0), EngineId(1)] {
        month.command(Request::Start { engine, rehearse: None, awake: engine.0 == 0 }, 1000);
    }
    month.weeks(800);
    let (operations, size) = (month.board.list().len(), month.size());
    assert!(operations <= 512, "{operations} operations are remembered");
    month.weeks(3200);
    assert!(month.node.next_operation > 4000, "too little was done: {}", month.node.next_operation);
    assert_eq!(month.board.list().len(), operations);
    // Numbers grow by a digit, failures by chance are more or fewer among those remembered.
    assert!(month.size() < size + size / 5, "{} after {size}", month.size());
    assert!(month.node.queue.is_empty() && month.node.operations.is_empty());
    let mut stream = std::pin::pin!(month.events.subscribe(Some(0)).into_stream());
    let mut events = 0;
    while let Some(Some(_)) = stream.next().now_or_never() {
        events += 1;
    }
    // One more says that there were others.
    assert!(events <= REMEMBERED + 1 && month.events.last_seq() > 10_000, "{events} events are remembered");
}
