//! From the core's notes to journal records: names for ids, bytes and instants beside each step.

use crate::clock;
use crate::journal::record::{Bytes, OperationKind, Outcome, Phase, Record};
use hotbunk_core::call::{Call, WakeTags};
use hotbunk_core::effect::Note;
use hotbunk_core::event::Request;
use hotbunk_core::ids::{EngineId, OperationId};
use hotbunk_core::program::{Failure, Step};
use hotbunk_core::queue::Refusal;
use hotbunk_core::state::Node;

/// Memory around a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Around {
    /// When it began.
    pub before: Bytes,
    /// When it ended.
    pub after: Bytes,
    /// Proportional host bytes, where the step measured them.
    pub pss: Option<u64>,
}

/// The operation that a note is about.
pub(super) fn operation_of(note: &Note) -> Option<OperationId> {
    match note {
        Note::Accepted { id, .. }
        | Note::NothingToDo { id, .. }
        | Note::Refused { id, .. }
        | Note::Joined { id, .. }
        | Note::Queued { id, .. }
        | Note::StepBegan { id, .. }
        | Note::StepEnded { id, .. }
        | Note::Ended { id, .. }
        | Note::Resumed { id, .. }
        | Note::TakenIn { id, .. }
        | Note::NotCancelled { id, .. } => Some(*id),
        Note::Transition { .. }
        | Note::Measured { .. }
        | Note::Incident { .. }
        | Note::Late(_)
        | Note::Revised { .. } => None,
    }
}

/// The record of a note; `None` where the journal has no use for it (answers to the caller).
pub(super) fn record(node: &Node, note: &Note, around: Around) -> Option<Record> {
    let name = |id: EngineId| node.engine(id).spec.name.clone();
    Some(match note {
        Note::Accepted { request, by, outgoing, strategy, order, leave, drain, steps, .. } => {
            let from = outgoing.first().filter(|id| request.engine().is_some_and(|to| to != **id));
            let from = from.map(|id| name(*id));
            let operation = match request {
                Request::Switch { .. } if outgoing.is_empty() => OperationKind::Activation,
                Request::Switch { .. } => OperationKind::Handoff,
                Request::Wake(_) => OperationKind::Activation,
                Request::Sleep { .. } => OperationKind::Sleep,
                Request::Start { .. } => OperationKind::Start,
                Request::Stop { .. } => OperationKind::Stop,
                Request::Restart { .. } => OperationKind::Restart,
                Request::Reset(_) | Request::Bury(_) | Request::Repair(_) => OperationKind::Repair,
                Request::Pause { .. } => OperationKind::Pause,
                Request::Resume => OperationKind::Resume,
                Request::Adopt(_) => OperationKind::Adopt,
            };
            Record::OperationAccepted {
                operation,
                engine: node.subject(request),
                from,
                strategy: strategy.map(|s| s.as_str().to_owned()),
                order: order.map(|o| o.as_str().to_owned()),
                leave: *leave,
                drain: Some(drain.as_str().to_owned()),
                by: by.as_str().to_owned(),
                plan: steps.iter().map(|s| s.sentence(node)).collect(),
            }
        }
        Note::StepBegan { index, step, .. } => {
            Record::StepBegan { index: *index, phase: phase(step)?, engine: name(step.engine()?) }
        }
        Note::StepEnded { index, step, began, failure, .. } => Record::StepEnded {
            index: *index,
            phase: phase(step)?,
            engine: name(step.engine()?),
            began: *began,
            ended: clock::now(),
            outcome: outcome(failure.as_ref()),
            before: around.before,
            after: around.after,
        },
        Note::Transition { engine, from, to, reason } => Record::Transition {
            engine: name(*engine),
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            generation: node.engine(*engine).generation,
            reason: reason.clone(),
        },
        Note::Measured { engine, tier } => {
            let footprint = node.engine(*engine).footprints[*tier as usize]?;
            Record::Footprint {
                engine: name(*engine),
                tier: *tier,
                device_bytes: footprint.device,
                host_bytes: footprint.host,
                pss_bytes: around.pss,
            }
        }
        Note::Incident { incident, engine, device, detail } => Record::Incident {
            code: incident.code().to_owned(),
            engine: engine.map(name),
            device: device.map(|d| node.device(d).spec.name.clone()),
            message: detail.clone(),
        },
        Note::Resumed { step, then, because, .. } => Record::Resumed {
            phase: step.as_ref().and_then(phase),
            engine: step.as_ref().and_then(Step::engine).map(name),
            then: then.as_str().to_owned(),
            because: (*because).to_owned(),
        },
        Note::Ended { failure, accepted, first_token, .. } => Record::OperationEnded {
            outcome: outcome(failure.as_ref()),
            accepted: *accepted,
            first_token: *first_token,
            ended: clock::now(),
        },
        Note::NothingToDo { .. }
        | Note::Refused { .. }
        | Note::Joined { .. }
        | Note::Queued { .. }
        | Note::NotCancelled { .. }
        // With the process, which only the shell knows.
        | Note::TakenIn { .. }
        | Note::Late(_)
        | Note::Revised { .. } => return None,
    })
}

/// The end of an operation that another agent began says so.
pub(super) fn by_whom(record: Record, resumed: bool) -> Record {
    match record {
        Record::OperationEnded { outcome, accepted, first_token, ended } if resumed => {
            let outcome = match outcome {
                Outcome::Ok => Outcome::Recovered,
                Outcome::Failed { code, message } => Outcome::RolledBack { code, message },
                other => other,
            };
            Record::OperationEnded { outcome, accepted, first_token, ended }
        }
        record => record,
    }
}

fn outcome(failure: Option<&Failure>) -> Outcome {
    match failure {
        None => Outcome::Ok,
        Some(f) if f.cause == hotbunk_core::program::Cause::Cancelled => Outcome::Cancelled,
        Some(f) => Outcome::Failed { code: f.cause.code().to_owned(), message: f.detail.clone() },
    }
}

/// The phase of a step at the edge; `None` for those that act at once.
pub(super) fn phase(step: &Step) -> Option<Phase> {
    Some(match step {
        Step::Drain(_) => Phase::Drain,
        Step::Call { call, .. } => match call {
            Call::Sleep { .. } => Phase::Sleep,
            Call::WakeUp { tags: WakeTags::All } => Phase::Wake,
            Call::WakeUp { tags: WakeTags::Weights } => Phase::WakeWeights,
            Call::WakeUp { tags: WakeTags::KvCache } => Phase::WakeKv,
            Call::ReleaseKvCache => Phase::ReleaseKv,
            Call::ReloadWeights => Phase::Reload,
            Call::ResetPrefixCache => Phase::ResetPrefixCache,
            Call::Pause { .. } => Phase::Pause,
            Call::Resume => Phase::Resume,
            Call::WorkerWakeUp | Call::WorkerSleep { .. } => Phase::Repair,
        },
        Step::ConfirmAsleep(_) => Phase::VerifyAsleep,
        Step::ConfirmAwake(_) | Step::Ask(_) => Phase::VerifyAwake,
        Step::Resolve { .. } => Phase::Resolve,
        Step::AwaitRelease { .. } => Phase::AwaitRelease,
        Step::AwaitResidence(_) => Phase::AwaitResidence,
        Step::Probe { .. } => Phase::Probe,
        Step::Spawn(_) => Phase::Spawn,
        Step::Ready(_) => Phase::Ready,
        Step::WarmUp(_) => Phase::WarmUp,
        Step::Stop { .. } => Phase::Stop,
        Step::Measure { .. } => Phase::Measure,
        Step::Hold(_) => Phase::Hold,
        Step::Keep(_) => Phase::Keep,
        Step::LetGo(_) => Phase::LetGo,
        Step::Fall { .. }
        | Step::Rise(_)
        | Step::Launch { .. }
        | Step::Kill(_)
        | Step::Restore
        | Step::Close(_)
        | Step::Open(_)
        | Step::Take(_)
        | Step::ReserveWake(_)
        | Step::ReserveStart(_)
        | Step::Settle { .. }
        | Step::Bury(_)
        | Step::Rehearse(_)
        | Step::Rehearsed(_)
        | Step::Defer(_) => return None,
    })
}

/// How a command was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It has begun.
    Begun(OperationId),
    /// It waits for the agent's own work.
    Queued(OperationId),
    /// Another operation does the same already.
    Joined(OperationId),
    /// Nothing was to be done, with the reason.
    Nothing(String),
    /// Refused.
    Refused(Refusal),
}
