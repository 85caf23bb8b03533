//! The configuration file changes under everything that runs.

use super::bench::{Bench, LOOK, MEANWHILE, TRIES};
use super::faults::{Ends, Meanwhile, Whose};
use super::traffic::Traffic;
use crate::draw::Draw;
use hotbunk_api::reload::ReloadOutcome;
use hotbunk_tests::{ctl, signal, until};
use rustix::process::Signal;
use std::time::Duration;

/// What changes in it.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// Something that an engine's process is started with.
    Process(Whose),
    /// Something that the agent alone goes by.
    Own,
    /// It has errors.
    Errors,
    /// An engine is missing; later it is there again.
    Removed(Whose),
}

/// How it comes to the agent.
#[derive(Clone, Copy)]
pub(super) enum Told {
    /// `ctl reload`.
    Reload,
    /// `ctl reload --now`.
    Now,
    /// SIGHUP.
    Signal,
    /// `ctl reload`, and before anything could come of it the file is as it was, and reloaded.
    TakenBack,
    /// `ctl reload`, and the agent is killed at some instant of it; the next one reads the file.
    Killed,
    /// The next agent reads it, which this one starts.
    HandsOver,
}

impl Bench {
    pub(super) async fn revise(&mut self, change: Change, told: Told, traffic: &Traffic, draw: &mut Draw) {
        self.handoff(draw).await;
        let engine = match change {
            Change::Process(whose) | Change::Removed(whose) => self.whose(whose).await,
            Change::Own | Change::Errors => "A".to_owned(),
        };
        match change {
            Change::Process(_) => self.configuration.change(&engine),
            Change::Own => self.configuration.change_own(draw),
            Change::Errors => self.configuration.spoil(draw),
            Change::Removed(_) => self.configuration.remove(&engine),
        }
        let outcome = match change {
            Change::Errors => ReloadOutcome::Invalid,
            _ => ReloadOutcome::Applied,
        };
        match told {
            Told::Reload => self.reload(outcome).await,
            Told::Now => {
                // Clients may keep an engine from ending in time: it is restarted at its idle moment then.
                drop(ctl(&self.node.socket(), &["reload", "--now", "--deadline", "5s"]).await);
            }
            Told::Signal => {
                let said = "reloaded";
                let mark = self.agent().mark().await;
                signal(self.agent().pid(), Signal::HUP);
                until("the file to be read", async || !self.agent().entries(said, mark).await.is_empty())
                    .await;
            }
            Told::TakenBack => {
                self.reload(outcome).await;
                tokio::time::sleep(Duration::from_millis(draw.below(20))).await;
                self.configuration.take_back(&engine);
                self.reload(outcome).await;
            }
            Told::Killed => {
                let socket = self.node.socket();
                let asked = tokio::spawn(async move { ctl(&socket, &["reload"]).await });
                tokio::time::sleep(Duration::from_millis(draw.below(60))).await;
                self.replace(Ends::Killed, Meanwhile::Nothing, traffic, draw).await;
                drop(asked.await);
            }
            Told::HandsOver if outcome == ReloadOutcome::Invalid => {
                let refusals = |bench: &Bench| bench.agent().log().matches("this agent goes on").count();
                let before = refusals(self);
                signal(self.agent().pid(), Signal::USR2);
                until("the file to be refused", async || refusals(self) > before).await;
            }
            Told::HandsOver => self.replace(Ends::HandsOver, Meanwhile::Nothing, traffic, draw).await,
        }
        match change {
            // Nobody has taken it: to put it right nobody has to be told.
            Change::Errors => self.configuration.write(),
            // Its model is asked for all the same.
            Change::Removed(_) => traffic.pass(MEANWHILE).await,
            Change::Process(_) | Change::Own => {}
        }
    }

    /// `ctl reload`. It may be refused for a moment.
    pub(super) async fn reload(&self, wanted: ReloadOutcome) {
        for _ in 0..TRIES {
            match self.agent().reload().await {
                Ok(report) => {
                    let same = report.outcome == ReloadOutcome::Unchanged && wanted == ReloadOutcome::Applied;
                    assert!(same || report.outcome == wanted, "{report:#?}");
                    return;
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
        panic!("the file is not read");
    }
}
