//! What reaches the owner of the state, and how everybody else does.

use super::{Admission, Around, Board, Client, Ended};
use crate::adopt::Taken;
use crate::reload::Plan;
use hotbunk_api::reload::EngineReload;
use hotbunk_core::effect::{StepResult, Ticket};
use hotbunk_core::event::{By, Event, Request};
use hotbunk_core::ids::OperationId;
use hotbunk_core::queue::Refusal;
use hotbunk_core::state::Node;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// What reaches the owner.
#[derive(Debug)]
pub enum Input {
    /// Something that happened.
    Event(Event),
    /// What a former agent left.
    Taken(Box<Taken>),
    /// An action ended.
    Done {
        /// Which.
        ticket: Ticket,
        /// How.
        result: StepResult,
        /// Memory around it.
        around: Around,
    },
    /// A command.
    Submit {
        /// What, by whom, for which run.
        order: Order,
        /// How it was received.
        answer: oneshot::Sender<Admission>,
    },
    /// An operation should be given up.
    Cancel {
        /// Which.
        id: OperationId,
        /// Whether that was possible.
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    /// Another configuration.
    Revise {
        /// What it is.
        plan: Box<Plan>,
        /// What becomes of each engine.
        answer: oneshot::Sender<Vec<EngineReload>>,
    },
    /// The owner is to end as soon as nothing is under way.
    EndAtRest,
}

/// A command with what belongs to it.
#[derive(Debug, Clone)]
pub struct Order {
    /// What is asked.
    pub request: Request,
    /// By whom.
    pub by: By,
    /// The cycle run that it belongs to.
    pub run: Option<String>,
    /// Who asked over the control API, and under which id.
    pub client: Option<Client>,
}

/// Access for everybody else.
#[derive(Debug, Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
    node: watch::Receiver<Arc<Node>>,
    board: Board,
}

impl Handle {
    pub(super) fn new(
        inputs: mpsc::UnboundedSender<Input>,
        node: watch::Receiver<Arc<Node>>,
        board: Board,
    ) -> Handle {
        Handle { inputs, node, board }
    }

    /// The state as it is now.
    pub fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node.borrow())
    }

    /// Follows the state.
    pub fn watch(&self) -> watch::Receiver<Arc<Node>> {
        self.node.clone()
    }

    /// Operations, as the control API shows them.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Tells of something that happened.
    pub fn tell(&self, event: Event) {
        // An error means that the switcher has ended, and nobody is interested any more.
        let _ = self.inputs.send(Input::Event(event));
    }

    /// Hands over what a former agent left.
    pub fn take(&self, taken: Taken) {
        let _ = self.inputs.send(Input::Taken(Box::new(taken)));
    }

    /// Gives a command, and returns as soon as it is accepted or refused.
    pub async fn submit(&self, order: Order) -> Admission {
        let (answer, received) = oneshot::channel();
        if self.inputs.send(Input::Submit { order, answer }).is_err() {
            return Admission::Refused(Refusal::Closing);
        }
        received.await.unwrap_or(Admission::Refused(Refusal::Closing))
    }

    /// Gives an operation up.
    ///
    /// # Errors
    /// It moves memory already, or is over.
    pub async fn cancel(&self, id: OperationId) -> Result<(), Refusal> {
        let (answer, received) = oneshot::channel();
        self.inputs.send(Input::Cancel { id, answer }).map_err(|_| Refusal::Closing)?;
        received.await.unwrap_or(Err(Refusal::Closing))
    }

    /// Applies a configuration, before anything that is asked for later; what becomes of each engine is told once it has.
    pub fn revise(&self, plan: Plan) -> oneshot::Receiver<Vec<EngineReload>> {
        let (answer, received) = oneshot::channel();
        // Where the owner has ended, there is no answer.
        let _ = self.inputs.send(Input::Revise { plan: Box::new(plan), answer });
        received
    }

    /// Has the owner end the moment in which nothing is under way and nobody waits, so that nothing begins after it; returns
    /// when it has.
    pub async fn end_at_rest(&self) {
        // It may have ended.
        let _ = self.inputs.send(Input::EndAtRest);
        let mut nodes = self.watch();
        while nodes.changed().await.is_ok() {}
    }

    /// Whether the owner still takes inputs and answers them.
    pub async fn answers(&self) -> bool {
        // An operation that never was: the answer is a refusal, and that is what shows that somebody is there.
        let asked = self.cancel(OperationId(u64::MAX));
        tokio::time::timeout(Duration::from_secs(10), asked).await.is_ok()
    }

    /// The end of an operation.
    pub async fn wait(&self, id: OperationId) -> Option<Ended> {
        self.board.ended(id).await
    }
}
