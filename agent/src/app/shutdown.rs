//! Taking everything down, engines included.

use super::App;
use crate::clock;
use crate::config::OnStop;
use crate::events::Context;
use crate::journal::record::Record;
use crate::successor::Listeners;
use crate::switcher::{Admission, Order};
use hotbunk_api::event::Happening;
use hotbunk_core::event::{By, Drain, Event, Request};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::DrainPolicy;
use std::sync::Arc;
use std::time::Duration;

impl App {
    /// Ends what runs, stops every engine by its grace, and closes. What is not over by the configured limit, or when
    /// `hurry` comes, is killed.
    ///
    /// Engines that are left go on serving; what is under way is waited for within the same limit, and is otherwise the
    /// next agent's to finish, as after a crash.
    pub async fn shutdown(mut self, reason: &str, engines: OnStop, hurry: impl Future<Output = ()>) {
        // No handle of a listener is left when the gateway closes it.
        self.listeners = Listeners::default();
        self.events.publish(clock::epoch(), Happening::Stopping { reason: reason.to_owned() });
        let run = self.cycles.give_up();
        if engines == OnStop::Leave {
            return self.leave(reason, run, hurry).await;
        }
        self.switcher.tell(Event::Close);
        let mut finishing = std::mem::take(&mut self.finishing);
        let orderly = async {
            tokio::join!(self.stop_engines(), finishing.stop());
            // Its end stands in the journal before the agent's.
            if let Some(run) = run {
                run.over().await;
            }
        };
        let limit = tokio::time::sleep(self.config.get().node.shutdown_grace);
        tokio::select! {
            () = orderly => {}
            () = limit => tracing::warn!("not everything ended in time; what is left is killed"),
            () = hurry => tracing::warn!("told to hurry; what is left is killed"),
        }
        finishing.kill().await;
        for slot in self.hands.engines.all().iter() {
            let ended = slot.stop(Duration::ZERO).await;
            if ended.left > 0 {
                tracing::error!(engine = slot.config.name, left = ended.left, "processes could not be ended");
            }
        }
        self.close(reason).await;
    }

    pub(super) async fn close(self, reason: &str) {
        // Whoever was waiting or being answered has been told by now.
        if let Some(gateway) = self.gateway {
            gateway.stop().await;
        }
        let stopped = Record::AgentStopped { reason: reason.to_owned() };
        drop(self.hands.recorder.record_one(&Context::none(), stopped).await);
        self.stop.send_replace(true);
        // The listeners end by themselves; the rest only ever waits.
        drop(self.switcher_task.await);
        self.schedules.end();
        for task in self.tasks {
            task.abort();
            // What it listened on is free for the next agent.
            drop(task.await);
        }
        drop(self.hands.recorder.journal().flush().await);
        self.hands.recorder.journal().clone().close().await;
        tracing::info!("the agent has stopped");
    }

    /// Ends the processes that are still starting. They serve nobody, a start may take minutes, and a stop waits behind
    /// the start that is running: so the process goes first, and its start with it.
    async fn end_starts(&self) {
        let mut nodes = self.switcher.watch();
        loop {
            let node = Arc::clone(&nodes.borrow_and_update());
            let starts = |id: &EngineId| {
                let engine = node.engine(*id);
                engine.process && !engine.dead && engine.capabilities.is_none()
            };
            let starting: Vec<EngineId> = node.ids().filter(starts).collect();
            for id in &starting {
                let slot = self.hands.slot(*id);
                slot.stop(slot.config.stop_grace).await;
            }
            // One whose process is only about to be there is met at its next step.
            if starting.is_empty() || nodes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn stop_engines(&self) {
        self.end_starts().await;
        for engine in self.switcher.node().ids() {
            let drain = Drain { policy: Some(DrainPolicy::Abort), deadline: None };
            let request = Request::Stop { engine, drain };
            let order = Order { request, by: By::Agent, run: None, client: None };
            match self.switcher.submit(order).await {
                Admission::Begun(id) | Admission::Queued(id) | Admission::Joined(id) => {
                    self.switcher.wait(id).await;
                }
                Admission::Nothing(_) | Admission::Refused(_) => {}
            }
        }
    }
}
