//! Going without the engines: they are the next agent's.
//!
//! ```text
//!   leave       tells those who wait ─┬─ operations end ──────┬─ journal, sockets let go ─ gone ─ (somebody starts the next)
//!                                     └─ answers end, or cut ─┘
//!
//!   hand over   operations end ─ tells those who wait ─ journal, sockets let go ─ the next agent serves ─ answers end ─ gone
//!                                                                                     └─ takes connections that are free ─┘
//! ```
//!
//! Either way nothing is under way when the owner of the state stops, unless that takes too long: then the next agent goes
//! on with it as after a crash. An agent that hands over lives on beside its successor, so there it must be so: whatever
//! its hands did then would be done to the engines of another.

use super::App;
use crate::adopt::Finishing;
use crate::clock;
use crate::cycle::Shown;
use crate::fd_store::FdStore;
use crate::gateway::Hub;
use crate::gateway::proxy::Gateway;
use crate::successor::{Error, Listeners, Plan};
use hotbunk_api::event::Happening;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long requests that are just coming in may take to be let through, when connections go to the next agent.
const BRIEF: Duration = Duration::from_millis(50);
/// How long clients whose answers were ended may take to hear it.
const LAST_WORDS: Duration = Duration::from_secs(2);

impl App {
    /// Goes, and leaves the engines where they are. Operations and answers that are under way end side by side.
    pub(super) async fn leave(mut self, reason: &str, run: Option<Shown>, hurry: impl Future<Output = ()>) {
        // What is on its way out is the next agent's to end.
        self.finishing = Finishing::default();
        let mut gateway = self.gateway.take();
        // Only whoever keeps the listeners will start another agent for them.
        let store = FdStore::offered().filter(|_| gateway.as_ref().is_some_and(Gateway::is_shared));
        let going = store.and_then(|store| Some((store, gateway.as_mut()?.pass_on())));
        if going.is_some() {
            sleep(BRIEF).await;
        }
        self.hub.leave();
        let config = self.config.get();
        let orderly = self.at_rest(run);
        let answers = async {
            let Some(gateway) = &mut gateway else { return };
            let limit = config.gateway.upgrade_drain;
            if timeout(limit, gateway.leave()).await.is_err() {
                say_cut(&self.hub, limit);
                self.hub.cut();
                // They are told, and some ask again.
                drop(timeout(LAST_WORDS, gateway.leave()).await);
            }
        };
        let limit = sleep(config.node.shutdown_grace);
        tokio::select! {
            _ = futures_util::future::join(orderly, answers) => {}
            () = limit => tracing::warn!("not everything ended in time; the next agent goes on with it"),
            () = hurry => tracing::warn!("told to hurry; the next agent goes on with what is under way"),
        }
        // Whoever is still being answered is told so.
        self.hub.cut();
        self.gateway = gateway;
        self.close(&format!("{reason}, engines left running")).await;
        if let Some((store, going)) = going {
            store.keep(going).await;
        }
    }

    /// Until nothing is under way: the cycle that was given up, then every operation.
    async fn at_rest(&self, run: Option<Shown>) {
        if let Some(run) = run {
            run.over().await;
        }
        let mut nodes = self.switcher.watch();
        // An error means that the switcher has ended.
        drop(nodes.wait_for(|node| node.is_at_rest()).await);
    }

    /// Waits, with everybody served, until nothing is under way. False where that takes longer than a shutdown may.
    pub async fn comes_to_rest(&self) -> bool {
        timeout(self.config.get().node.shutdown_grace, self.at_rest(None)).await.is_ok()
    }

    /// Starts the next agent and hands it everything but the answers that run; those are passed on until they end, or
    /// `hurry` comes, or their time is over. `served` is told the next agent's pid once it serves. Call it at rest.
    ///
    /// # Errors
    /// There is no next agent. This one has ended all the same, and whoever started it must start another.
    pub async fn hand_over(
        mut self,
        reason: &str,
        plan: &Plan,
        served: impl FnOnce(u32),
        hurry: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut hurry = pin!(hurry);
        self.finishing = Finishing::default();
        let run = self.cycles.give_up();
        let grace = self.config.get().node.shutdown_grace;
        tokio::select! {
            rest = timeout(grace, self.at_rest(run)) => drop(rest),
            () = &mut hurry => {}
        }
        self.events.publish(clock::epoch(), Happening::Stopping { reason: reason.to_owned() });
        let mut gateway = self.gateway.take();
        // From here on whoever comes, or asks once more, waits for the next agent; so it is made short.
        let going = gateway.as_mut().map(Gateway::pass_on);
        sleep(BRIEF).await;
        self.hub.leave();
        // Something may have begun meanwhile; most often nothing has. After this nothing does.
        tokio::select! {
            rest = timeout(grace, self.switcher.end_at_rest()) => drop(rest),
            () = &mut hurry => {}
        }
        self.hub.shut();
        let (hub, switcher, config) = (Arc::clone(&self.hub), self.switcher.clone(), self.config.get());
        let listeners = std::mem::take(&mut self.listeners);
        self.close(&format!("{reason}, handed over to the next agent")).await;
        let is_at_rest = switcher.node().operations.is_empty();
        let begun = if is_at_rest { plan.start(&listeners).await } else { Err(Error::Busy) };
        drop::<Listeners>(listeners);
        let begun = begun.inspect_err(|error| {
            // What its hands do may not go on for long.
            if matches!(error, Error::Busy) {
                hub.cut();
            }
        });
        let (passing, outcome) = match (begun, going) {
            (Ok(next), going) => {
                tracing::info!(pid = next.pid(), requests = hub.all_in_flight(), "the next agent serves");
                served(next.pid());
                (going.map(|going| tokio::spawn(async move { next.take(going).await })), Ok(()))
            }
            (Err(error), _) => (None, Err(error)),
        };
        if let Some(gateway) = gateway {
            pass_on(&hub, gateway, config.gateway.upgrade_drain, hurry).await;
        }
        if let Some(passing) = passing {
            // The gateway has ended, so there are no more of them.
            drop(timeout(LAST_WORDS, passing).await);
        }
        outcome
    }
}

/// Passes on what runs until it ends; what is left after the limit is ended with an error.
async fn pass_on(hub: &Hub, mut gateway: Gateway, limit: Duration, hurry: impl Future<Output = ()>) {
    tokio::select! {
        () = gateway.leave() => {}
        () = sleep(limit) => say_cut(hub, limit),
        () = hurry => tracing::warn!("told to hurry; answers that run are ended with an error"),
    }
    hub.cut();
    // They are told, and some ask again.
    drop(timeout(LAST_WORDS, gateway.leave()).await);
    gateway.stop().await;
}

fn say_cut(hub: &Hub, limit: Duration) {
    tracing::warn!(
        requests = hub.all_in_flight(),
        limit_s = limit.as_secs_f64(),
        "not every answer ended within `upgrade_drain`; what is left is ended with an error"
    );
}
