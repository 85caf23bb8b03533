//! A run as the control API shows it.

use super::By;
use crate::clock;
use crate::config::cycle_plan::{CyclePlan, PlannedStep};
use crate::control::EventLog;
use crate::journal::record::CycleStep as Planned;
use hotbunk_api::cycle::{CycleRun, CycleStep};
use hotbunk_api::error::ApiError;
use hotbunk_api::event::Happening;
use hotbunk_api::words::State;
use hotbunk_core::time::Moment;
use std::sync::Arc;
use tokio::sync::watch;

/// A run that can be followed. Clones are the same.
#[derive(Debug, Clone)]
pub struct Shown {
    run: watch::Sender<CycleRun>,
    began: Moment,
    events: Arc<EventLog>,
}

impl Shown {
    pub(super) fn new(
        id: String,
        plan: &CyclePlan,
        steps: &[PlannedStep],
        by: By,
        events: Arc<EventLog>,
    ) -> Self {
        let step = |(index, planned): (usize, &PlannedStep)| CycleStep {
            index: u32::try_from(index).unwrap_or(u32::MAX),
            sentence: sentence(planned),
            state: State::Queued,
            duration_s: None,
            operations: Vec::new(),
            error: None,
        };
        let requests: u64 = steps.iter().map(|s| requests(&s.step)).sum();
        let run = CycleRun {
            id,
            plan: plan.name.clone(),
            state: State::Running,
            by: by.as_str().to_owned(),
            started_at: clock::epoch(),
            ended_at: None,
            elapsed_s: 0.0,
            eta_s: None,
            steps: steps.iter().enumerate().map(step).collect(),
            steps_total: u32::try_from(steps.len()).unwrap_or(u32::MAX),
            steps_done: 0,
            requests_total: requests,
            requests_ok: 0,
            error: None,
        };
        Shown { run: watch::Sender::new(run), began: clock::now(), events }
    }

    /// Since it began, seconds; the wall clock may be set meanwhile.
    pub(super) fn elapsed_s(&self) -> f64 {
        clock::now().since(self.began).as_secs_f64()
    }

    /// As it stands.
    pub fn get(&self) -> CycleRun {
        let mut run = self.run.borrow().clone();
        if run.ended_at.is_none() {
            run.elapsed_s = self.elapsed_s();
        }
        run
    }

    /// Follows it.
    pub fn watch(&self) -> watch::Receiver<CycleRun> {
        self.run.subscribe()
    }

    /// Its end.
    pub async fn over(&self) -> CycleRun {
        let mut run = self.run.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let _ = run.wait_for(|r| r.state.is_over()).await;
        self.get()
    }

    pub(super) fn change(&self, with: impl FnOnce(&mut CycleRun)) {
        self.run.send_modify(with);
        let mut run = self.get();
        // The stream tells how it goes on; the whole list of steps is a question of its own.
        run.steps.retain(|s| s.state == State::Running);
        self.events.publish(clock::epoch(), Happening::Cycle { run: Box::new(run) });
    }

    pub(super) fn step_began(&self, index: usize) {
        self.change(|run| {
            if let Some(step) = run.steps.get_mut(index) {
                step.state = State::Running;
            }
        });
    }

    pub(super) fn step_ended(
        &self,
        index: usize,
        seconds: f64,
        operations: Vec<String>,
        error: Option<ApiError>,
    ) {
        self.change(|run| {
            run.steps_done += 1;
            let Some(step) = run.steps.get_mut(index) else { return };
            step.state = if error.is_none() { State::Succeeded } else { State::Failed };
            step.duration_s = Some(seconds);
            step.operations = operations;
            step.error = error;
        });
    }
}

/// Requests that a step counts: those of its load, and its one probe.
fn requests(step: &Planned) -> u64 {
    match step {
        Planned::Load { rounds, requests, .. } => u64::from(*rounds) * u64::from(*requests),
        Planned::Sleep { .. } => 0,
        Planned::Start { .. }
        | Planned::SleepCycle { .. }
        | Planned::Activate { .. }
        | Planned::Handoff { .. } => 1,
    }
}

/// A step for people.
pub(super) fn sentence(planned: &PlannedStep) -> String {
    match &planned.step {
        Planned::Start { engine, initial: true } => format!("start {engine}"),
        Planned::Start { engine, initial: false } => format!("restart {engine}"),
        Planned::Load { engine, stage, concurrency, .. } => {
            format!("load {engine}, {stage}, concurrency {concurrency}")
        }
        Planned::SleepCycle { engine, tier } => format!("{engine}: sleep at {tier}, wake, probe"),
        Planned::Sleep { engine, tier } => format!("{engine}: sleep at {tier}"),
        Planned::Activate { engine, .. } => format!("activate {engine}"),
        Planned::Handoff { from, to, .. } => {
            let strategy = planned.strategy.map_or("", |s| s.as_str());
            format!("handoff {from} → {to} {strategy}").trim_end().to_owned()
        }
    }
}
