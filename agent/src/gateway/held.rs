//! A request that waits for its model.

use super::hub::{Eta, Hub};
use super::lease::Lease;
use super::refusal::Refusal;
use crate::clock;
use hotbunk_core::hold::Place;
use hotbunk_core::ids::EngineId;
use hotbunk_core::time::Moment;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

/// A place in the queue, and what comes of it. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Held {
    pub(super) hub: Arc<Hub>,
    pub(super) engine: EngineId,
    pub(super) place: Place,
    pub(super) since: Moment,
    /// How long it may wait.
    pub(super) limit: Duration,
    pub(super) answer: oneshot::Receiver<Result<Lease, Refusal>>,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
    pub(super) over: bool,
}

impl Held {
    /// The engine that it waits for.
    pub fn engine(&self) -> EngineId {
        self.engine
    }

    /// Its place in the queue as things stand, 1 is next; `None` where its answer is there.
    pub fn position(&self) -> Option<usize> {
        self.hub.line(self.engine).ahead(self.place).map(|ahead| ahead + 1)
    }

    /// When the engine should serve.
    pub fn eta(&self) -> Eta {
        self.hub.eta(self.engine)
    }

    /// How long it has waited.
    pub fn waited(&self) -> Duration {
        clock::now().since(self.since)
    }

    fn end(&mut self, result: Result<Lease, Refusal>) -> Poll<Result<Lease, Refusal>> {
        self.over = true;
        if let Err(refusal) = &result {
            self.hub.refused(self.engine, refusal);
        }
        Poll::Ready(result)
    }
}

impl Future for Held {
    type Output = Result<Lease, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(Ok(answer)) => return self.end(answer),
            Poll::Ready(Err(_)) => {
                // Whoever waits is always answered, unless the hub is gone.
                return self.end(Err(Refusal::ShuttingDown { retry_after: Duration::from_secs(1) }));
            }
            Poll::Pending => {}
        }
        let left = self.limit.saturating_sub(self.waited());
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(left)));
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        if self.hub.line(self.engine).give_up(&self.hub, self.place) {
            let retry_after = self.hub.retry_after(self.engine);
            let waited = self.waited();
            return self.end(Err(Refusal::Deadline { waited, retry_after }));
        }
        // Its answer came at the same instant, and is there.
        match self.answer.try_recv() {
            Ok(answer) => self.end(answer),
            Err(_) => self.end(Err(Refusal::ShuttingDown { retry_after: Duration::from_secs(1) })),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.over {
            // A lease that was given at the same instant ends with the receiver.
            self.hub.line(self.engine).give_up(&self.hub, self.place);
        }
    }
}
