//! Servers that somebody else has started on an engine's port.

use super::bench::{Bench, LOOK, MEANWHILE};
use super::configuration::MARK;
use super::faults::{Ends, Meanwhile, Whose};
use super::traffic::Traffic;
use crate::draw::Draw;
use hotbunk_api::words::Tier;
use hotbunk_tests::{ByHand, Process, adopt, kill, stop, until};
use std::time::Duration;

/// What becomes of it.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    /// It becomes the engine.
    Adopted,
    /// The same, and the agent is killed at some instant of it.
    AgentKilled,
    /// The same, and the agent starts the next one meanwhile.
    HandsOver,
    /// It is there when the agent comes, and waits to be taken over.
    Waits,
    /// It serves another model and is refused.
    Refused,
    /// It is killed while it is being taken over.
    Killed,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Stranger {
    engine: String,
    server: ByHand,
    /// All that it consists of.
    pids: Vec<u32>,
    /// It must become the engine, as it runs, until something else strikes it.
    is_to_stay: bool,
}

impl Bench {
    pub(super) async fn meet(&mut self, fate: Fate, whose: Whose, traffic: &Traffic, draw: &mut Draw) {
        // There is room for a second server of the small one's model, and for none of the other's.
        let engine = if let Fate::Refused = fate { "A".to_owned() } else { self.whose(whose).await };
        // Clients would have it started again.
        traffic.spare(Some(if engine == "A" { "A" } else { "B" }));
        self.stop(&engine).await;
        if let Fate::Waits = fate {
            traffic.away(true);
            self.end_agent().await;
        }
        self.settle_in(&engine, if let Fate::Refused = fate { other(&engine) } else { &engine }).await;
        if let Fate::Waits = fate {
            self.agent = Some(self.node.start().await);
            traffic.away(false);
        }
        traffic.spare(None);
        let moment = Duration::from_millis(draw.below(120));
        match fate {
            Fate::Adopted | Fate::Waits => {}
            Fate::Refused => {
                traffic.pass(MEANWHILE).await;
                let outcome = self.try_to_adopt(&engine).await;
                assert!(outcome.is_err(), "the server of another model was taken over");
                assert!(self.strangers.last_mut().is_some_and(|s| s.server.runs()), "it was touched");
                self.send_away().await;
            }
            Fate::AgentKilled | Fate::HandsOver | Fate::Killed => {
                drop(self.agent().submit(adopt(&engine)).await);
                tokio::time::sleep(moment).await;
                match fate {
                    Fate::AgentKilled => self.replace(Ends::Killed, Meanwhile::Nothing, traffic, draw).await,
                    Fate::HandsOver => self.replace(Ends::HandsOver, Meanwhile::Nothing, traffic, draw).await,
                    _ => self.send_away().await,
                }
            }
        }
        if self.strangers.last().is_some_and(|s| s.is_to_stay) {
            until("it to be taken over", async || {
                self.is_adopted().await || self.try_to_adopt(&engine).await.is_ok()
            })
            .await;
        }
    }

    /// Somebody starts a server on an engine's port, with the words of one of the engines.
    async fn settle_in(&mut self, engine: &str, of: &str) {
        let mark = format!("{MARK}={}", self.configuration.mark(of));
        let mut words = vec!["/usr/bin/env".to_owned(), mark];
        words.extend(self.node.command(of));
        let port = self.node.engine(engine).port().to_string();
        if let Some(at) = words.iter().position(|word| word == "--port") {
            words[at + 1].clone_from(&port);
        }
        let server = self.node.run_by_hand(engine, &words, &[]).await;
        let on_port = format!("--port {port} ");
        let its = |p: &Process| p.command.contains(&on_port) && !p.command.contains(" shim ");
        let pids = self.node.living().into_iter().filter(its).map(|p| p.pid).collect();
        self.strangers.push(Stranger { engine: engine.to_owned(), server, pids, is_to_stay: true });
    }

    async fn try_to_adopt(&self, engine: &str) -> Result<(), String> {
        let begun = self.agent().submit(adopt(engine)).await.map_err(|error| error.message)?;
        let operation = self.agent().wait(&begun.id).await;
        operation.error.map_or(Ok(()), |error| Err(error.message))
    }

    async fn is_adopted(&self) -> bool {
        let Some(Stranger { engine, server, .. }) = self.strangers.last() else { return false };
        self.agent().engine(engine).await.incarnation.is_some_and(|i| i.pid == server.pid())
    }

    /// Whoever was taken over by what struck last runs as it did, and is the engine. Not where the engine is switched by restart,
    /// since a rehearsal has failed in the storm.
    pub(super) async fn stranger_stays(&mut self) -> bool {
        let Some(stranger) = self.strangers.last_mut() else { return true };
        let is_to_stay = std::mem::take(&mut stranger.is_to_stay);
        let by_restart = format!("rehearsal_failed {}", stranger.engine);
        let stays = !is_to_stay || stranger.server.runs() && self.is_adopted().await;
        stays || self.agent().incident_codes(0).await.contains(&by_restart)
    }

    /// An engine has no process, and nobody asks for it.
    async fn stop(&self, engine: &str) {
        until("the engine to be stopped", async || {
            let status = self.agent().status().await;
            let held: u32 = status.gateway.iter().flat_map(|g| &g.lines).map(|line| line.held).sum();
            let at_rest = status.operation.is_none() && status.queue.is_empty();
            let of_name = status.engines.iter().find(|e| e.name == engine);
            let down = of_name.is_some_and(|e| e.tier == Some(Tier::Stopped) && e.incarnation.is_none());
            if !down && at_rest {
                drop(self.agent().submit(stop(engine)).await);
                tokio::time::sleep(LOOK).await;
            }
            down && at_rest && held == 0 && self.node.tree(engine).is_empty()
        })
        .await;
    }

    /// A server that is not wanted on that port ends, with all that it consists of.
    async fn send_away(&mut self) {
        let Some(stranger) = self.strangers.last_mut() else { return };
        stranger.is_to_stay = false;
        stranger.pids.iter().for_each(|pid| kill(*pid));
        stranger.server.ended().await;
    }
}

fn other(engine: &str) -> &'static str {
    if engine == "A" { "B" } else { "A" }
}
