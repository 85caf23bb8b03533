//! Progress on stderr, where that is a terminal.

use crate::human;
use hotbunk_api::cycle::CycleRun;
use hotbunk_api::event::{Event, Happening};
use hotbunk_api::operation::Operation;
use hotbunk_api::words::State;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// One line that follows an operation or a run; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    id: String,
}

impl Progress {
    /// Follows the resource with this id. Draws nothing where stderr is no terminal.
    pub(crate) fn new(id: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress { bar, id: id.to_owned() }
    }

    /// Takes an event; those of other resources are passed over.
    pub(crate) fn event(&self, event: &Event) {
        match &event.what {
            Happening::Operation { operation } if operation.id == self.id => self.operation(operation),
            Happening::Cycle { run } if run.id == self.id => self.run(run),
            _ => {}
        }
    }

    /// Shows how an operation stands.
    pub(crate) fn operation(&self, operation: &Operation) {
        self.bar.set_message(operation_line(operation));
    }

    /// Shows how a run stands.
    pub(crate) fn run(&self, run: &CycleRun) {
        self.bar.set_message(run_line(run));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// `switch A → B: wake on B (step 2 of 5), 0.31 s to go`.
pub(crate) fn operation_line(operation: &Operation) -> String {
    let from = operation.from.as_ref().map_or_else(String::new, |from| format!("{from} → "));
    let what = format!("{} {from}{}", operation.kind, operation.engine);
    let step = operation.steps.iter().find(|s| s.state == State::Running);
    let doing = match (operation.state, step) {
        (State::Queued, _) => "waits for its turn".to_owned(),
        (_, Some(step)) => {
            let of = operation.plan.as_ref().map_or(operation.steps.len(), |p| p.steps.len());
            let of = of.max(operation.steps.len());
            let place = operation.steps.iter().position(|s| s.index == step.index).map_or(0, |i| i + 1);
            format!("{} on {} (step {place} of {of})", step.phase, step.engine)
        }
        (state, None) => state.to_string(),
    };
    let eta = operation.eta_s.map_or_else(String::new, |s| format!(", {} to go", human::seconds(s)));
    format!("{what}: {doing}{eta}")
}

/// `reference 12/43: hand off A → B, 3 min 5 s to go`.
pub(crate) fn run_line(run: &CycleRun) -> String {
    let step = run.steps.iter().find(|s| s.state == State::Running);
    let doing = step.map_or_else(|| run.state.to_string(), |s| s.sentence.clone());
    let eta = run.eta_s.map_or_else(String::new, |s| format!(", {} to go", human::seconds(s)));
    format!("{} {}/{}: {doing}{eta}", run.plan, run.steps_done, run.steps_total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_operation_shows_its_step_among_those_planned() {
        let step = |index: u32, state: &str| json!({ "index": index, "phase": "wake", "engine": "B", "state": state, "began_s": 0.0 });
        let planned = json!({ "sentence": "", "engine": "B", "eta_s": null });
        let mut operation: Operation = serde_json::from_value(json!({
            "id": "x", "kind": "switch", "engine": "B", "from": "A", "initiator": { "by": "agent" },
            "state": "running", "steps": [step(0, "succeeded"), step(1, "running")], "accepted_at": 0.0,
            "elapsed_s": 0.1, "eta_s": 0.314,
            "plan": { "steps": [planned, planned, planned], "peaks": [] },
        }))
        .unwrap();
        assert_eq!(operation_line(&operation), "switch A → B: wake on B (step 2 of 3), 0.31 s to go");
        operation.state = State::Queued;
        operation.steps.clear();
        operation.eta_s = None;
        assert_eq!(operation_line(&operation), "switch A → B: waits for its turn");
    }
}
