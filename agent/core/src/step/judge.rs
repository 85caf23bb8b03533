//! Replies from the edge: does this answer complete its step?

use super::Cx;
use crate::call::{Call, CallOutcome, SleepingAnswer};
use crate::effect::{Incident, Note, Shown, StepResult, Ticket};
use crate::ids::{EngineId, OperationId};
use crate::program::{Cause, Step};
use crate::state::{Condition, Stage};
use crate::tier::Tier;
use crate::time::Moment;

impl Cx<'_> {
    /// An action ended.
    pub(super) fn done(&mut self, ticket: Ticket, result: StepResult) {
        let op = self
            .node
            .operations
            .iter_mut()
            .find(|op| op.current.as_ref().is_some_and(|c| c.ticket == ticket));
        let Some((id, current)) = op.and_then(|op| Some((op.id, op.current.take()?))) else {
            return self.note(Note::Late(ticket));
        };
        match self.judge(id, &current.step, result) {
            Ok(first_token) => {
                if let Step::Drain(engine) = current.step {
                    let took = self.now.since(current.began);
                    self.node.engine_mut(engine).costs.drain = Some(took);
                }
                self.note(Note::StepEnded {
                    id,
                    index: current.index,
                    step: current.step,
                    began: current.began,
                    failure: None,
                    first_token,
                });
                if let Some(op) = self.op(id) {
                    op.attempts = 0;
                }
            }
            Err((cause, detail)) => self.step_failed(id, current, cause, detail),
        }
        self.advance(id);
    }

    /// An engine's leader ended.
    pub(super) fn exited(&mut self, engine: EngineId, life: u64, reason: &str) {
        let e = self.node.engine(engine);
        if e.life == life && !e.process {
            return self.exited_while_held(engine, reason);
        }
        if e.life != life || !e.process || e.dead {
            return;
        }
        let reason = format!("{}: {reason}", e.spec.name);
        let devices = e.spec.devices.clone();
        let Some(op) =
            self.node.operations.iter_mut().find(|op| op.devices.iter().any(|d| devices.contains(d)))
        else {
            self.died(engine);
            return self.incident(Incident::Crashed, Some(engine), reason);
        };
        let id = op.id;
        match op.current.take() {
            Some(current)
                if current.step.engine() == Some(engine) && !matches!(current.step, Step::Ask(_)) =>
            {
                if matches!(current.step, Step::Stop { .. } | Step::AwaitRelease { tier: Tier::Stopped, .. })
                {
                    op.current = Some(current);
                    return;
                }
                self.died(engine);
                self.step_failed(id, current, Cause::Gone, reason);
                self.advance(id);
            }
            current => {
                op.current = current;
                let first = !op.reported.contains(&engine);
                if first {
                    op.reported.push(engine);
                }
                self.died(engine);
                if first {
                    self.incident(Incident::Crashed, Some(engine), reason);
                }
            }
        }
    }

    pub(super) fn died(&mut self, engine: EngineId) {
        let e = self.node.engine_mut(engine);
        e.dead = true;
        e.admission = false;
    }

    /// The first token where the step shows one, or why the step is not done.
    fn judge(
        &mut self,
        id: OperationId,
        step: &Step,
        result: StepResult,
    ) -> Result<Option<Moment>, (Cause, String)> {
        let Some(engine) = step.engine() else { return Ok(None) };
        let name = self.node.engine(engine).spec.name.clone();
        match result {
            // A neighbour's answer is about itself: nothing that it may be fails the operation that has asked.
            StepResult::Sleeping(answer) if matches!(step, Step::Ask(_)) => {
                if answer == (SleepingAnswer::Says { is_sleeping: true }) {
                    self.found_asleep(engine);
                }
                Ok(None)
            }
            StepResult::Gone(message) => Err((Cause::Gone, format!("{name}: {message}"))),
            StepResult::Drained
            | StepResult::Warmed
            | StepResult::Spawned
            | StepResult::Held
            | StepResult::LetGo => Ok(None),
            StepResult::PortTaken(why) => Err((Cause::PortTaken, format!("{name}: {why}"))),
            StepResult::NotHeld(why) => Err((Cause::NotAdopted, format!("{name}: {why}"))),
            StepResult::TakenIn(taken) => {
                if *step == Step::Keep(engine) {
                    self.taken_in(id, engine, *taken);
                }
                Ok(None)
            }
            StepResult::DrainTimedOut { running, waiting } => Err((
                Cause::DrainDeadline,
                format!(
                    "{name} still had {running} running and {waiting} waiting requests when the drain deadline passed"
                ),
            )),
            StepResult::DrainImpossible(why) => Err((Cause::DrainImpossible, format!("{name}: {why}"))),
            StepResult::Called(outcome) => called(&name, step, outcome).map(|()| None),
            StepResult::Sleeping(answer) => {
                let want = matches!(step, Step::ConfirmAsleep(_) | Step::Resolve { asleep: true, .. });
                sleeping(&name, want, answer).map(|()| None)
            }
            StepResult::Reached { used } if !self.released(engine, step, &used) => {
                let shown: Vec<Shown> = used.iter().map(|(d, used)| Shown::only(*d, *used)).collect();
                Err(self.out_of_bounds(engine, step, &shown))
            }
            StepResult::Reached { used } => {
                if let Step::AwaitRelease { tier, .. } = step {
                    if matches!(self.node.engine(engine).condition, Condition::Failed(_)) {
                        // Processes outlived their stop, but they hold nothing.
                        self.node.engine_mut(engine).held = 0;
                    }
                    self.learn_release(engine, *tier, &used);
                }
                Ok(None)
            }
            StepResult::OutOfBounds { shown } if self.resides(engine, step, &shown) => Ok(None),
            StepResult::OutOfBounds { shown } if self.returned(id, engine, step, &shown) => Ok(None),
            StepResult::OutOfBounds { shown } => Err(self.out_of_bounds(engine, step, &shown)),
            StepResult::NoEvidence(reason) => Err((Cause::NoEvidence, format!("{name}: {reason}"))),
            StepResult::Token { at } => {
                let counted = matches!(step, Step::Probe { counted: true, .. });
                if let Some(op) = self.op(id)
                    && op.incoming == Some(engine)
                    && op.stage == Stage::Forward
                    && counted
                {
                    op.first_token = Some(at);
                }
                Ok(Some(at))
            }
            StepResult::Mismatch(what) => Err((Cause::CanaryMismatch, format!("{name}: {what}"))),
            StepResult::ProbeFailed(why) => Err((Cause::ProbeFailed, format!("{name}: {why}"))),
            StepResult::SpawnFailed(why) => Err((Cause::SpawnFailed, format!("{name}: {why}"))),
            StepResult::Ready(capabilities) => {
                self.node.engine_mut(engine).capabilities = Some(capabilities);
                Ok(None)
            }
            StepResult::NotReady(why) => Err((Cause::NotReady, format!("{name}: {why}"))),
            StepResult::WarmUpFailed(why) => Err((Cause::WarmUpFailed, format!("{name}: {why}"))),
            StepResult::Stopped { left: 0 } => Ok(None),
            StepResult::Stopped { left } => {
                Err((Cause::Leftovers, format!("{left} processes of {name} could not be ended")))
            }
            StepResult::Measured { used, engine: own, host } => {
                if let Step::Measure { tier, .. } = step {
                    self.measured(engine, *tier, &used, own, host);
                }
                Ok(None)
            }
        }
    }
}

fn called(name: &str, step: &Step, outcome: CallOutcome) -> Result<(), (Cause, String)> {
    let Step::Call { call, .. } = step else { return Ok(()) };
    match outcome {
        CallOutcome::Accepted { success: Some(false) } if *call == Call::ResetPrefixCache => Err((
            Cause::CallRefused,
            format!("{name}: the prefix cache was not reset (blocks are still held)"),
        )),
        CallOutcome::Accepted { .. } => Ok(()),
        CallOutcome::Refused { status, message } => {
            Err((Cause::CallRefused, format!("{name} answered {status}: {message}")))
        }
        CallOutcome::Unknown => {
            Err((Cause::CallUnanswered, format!("{name} did not answer before the deadline")))
        }
        CallOutcome::Gone { message } => Err((Cause::Gone, format!("{name}: {message}"))),
    }
}

fn sleeping(name: &str, want: bool, answer: SleepingAnswer) -> Result<(), (Cause, String)> {
    match answer {
        SleepingAnswer::Says { is_sleeping } if is_sleeping == want => Ok(()),
        SleepingAnswer::Says { .. } if want => Err((
            Cause::NotAsleep,
            format!("{name} accepted the sleep but says that it is awake: nothing happened"),
        )),
        SleepingAnswer::Says { .. } => {
            Err((Cause::NotAwake, format!("{name} accepted the wake but says that it still sleeps")))
        }
        SleepingAnswer::Refused { status, message } => {
            Err((Cause::CallUnanswered, format!("{name} answered /is_sleeping with {status}: {message}")))
        }
        SleepingAnswer::Unknown => {
            Err((Cause::CallUnanswered, format!("{name} did not answer /is_sleeping")))
        }
        SleepingAnswer::Gone { message } => Err((Cause::Gone, format!("{name}: {message}"))),
    }
}
