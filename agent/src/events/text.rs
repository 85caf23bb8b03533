//! Sentences for people: what the log line and the event stream say about a record.

use super::incident;
use crate::journal::record::{Outcome, Record, ReloadedEngine};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;
use tracing::Level;

/// Bytes as people read them.
pub(super) struct Size(pub(super) u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..1_048_576 => write!(f, "{:.0} KiB", bytes / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.0} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

/// A size that may be unknown.
struct MaybeSize(Option<u64>);

impl Display for MaybeSize {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(bytes) => Size(bytes).fmt(f),
            None => f.write_str("an unknown number of bytes"),
        }
    }
}

/// A stretch of time in seconds: to the millisecond where it is measured, plain where it is a round number or long.
pub(super) struct Span(pub(super) Duration);

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.subsec_nanos() == 0 || self.0 >= Duration::from_secs(60) {
            write!(f, "{:.0} s", self.0.as_secs_f64())
        } else {
            write!(f, "{:.3} s", self.0.as_secs_f64())
        }
    }
}

/// Counted as people do, from 1: records count from 0.
fn nth(index: u32) -> u32 {
    index.saturating_add(1)
}

struct How<'a>(&'a Outcome);

impl Display for How<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Ok => f.write_str("ok"),
            Outcome::Failed { code, message } => write!(f, "failed ({code}): {message}"),
            Outcome::Cancelled => f.write_str("cancelled"),
            Outcome::Recovered => f.write_str("finished by another agent"),
            Outcome::RolledBack { code, message } => {
                write!(f, "rolled back by another agent ({code}): {message}")
            }
        }
    }
}

/// A record as one sentence. Nothing is allocated until somebody reads it.
pub struct Sentence<'a>(pub &'a Record);

impl Display for Sentence<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Record::AgentStarted { version, pid, .. } => write!(f, "agent {version} started, pid {pid}"),
            Record::AgentStopped { reason } => write!(f, "agent stopped: {reason}"),
            Record::Spawned { engine, incarnation } => {
                write!(f, "engine {engine} started as pid {}", incarnation.pid)
            }
            Record::Swept { engine, incarnation, killed, left } => {
                write!(f, "engine {engine}: nothing of pid {} runs any more", incarnation.pid)?;
                if *left > 0 {
                    write!(f, " but {left} processes that cannot be killed")?;
                }
                if *killed > 0 { write!(f, ", {killed} by SIGKILL") } else { Ok(()) }
            }
            Record::Adopted { engine, incarnation, state, .. } => {
                write!(f, "engine {engine} is taken over, pid {}: {state}", incarnation.pid)
            }
            Record::Resumed { phase, engine, then, because } => {
                f.write_str("an operation of a former agent goes on")?;
                if let (Some(phase), Some(engine)) = (phase, engine) {
                    write!(f, " from its step {} of engine {engine}", phase.as_str())?;
                }
                write!(f, " ({then}): {because}")
            }
            Record::Recovered { engines, operations, began, recovered } => {
                let took = Span(recovered.since(*began));
                write!(f, "recovered after {took}: {engines} engines, {operations} operations")
            }
            Record::Configured { engine, fingerprint } => {
                write!(f, "engine {engine} has settings {fingerprint}")
            }
            Record::Reloaded { by, outcome, engines, settings, problem } => {
                write!(f, "configuration read again for {by}: {outcome}")?;
                for ReloadedEngine { engine, change, from, to } in engines {
                    write!(f, "; engine {engine}: {change}")?;
                    if let (Some(from), Some(to)) = (from, to)
                        && from != to
                    {
                        write!(f, " ({from} → {to})")?;
                    }
                }
                if !settings.is_empty() {
                    write!(f, "; changed: {}", settings.join(", "))?;
                }
                match problem {
                    Some(problem) => write!(f, ": {problem}"),
                    None => Ok(()),
                }
            }
            Record::Ready { engine, version, .. } => write!(f, "engine {engine} is ready, vLLM {version}"),
            Record::Transition { engine, from, to, reason, .. } => {
                write!(f, "engine {engine}: {from} → {to} ({reason})")
            }
            Record::Footprint { engine, tier, device_bytes, host_bytes, .. } => {
                let (device, host) = (MaybeSize(*device_bytes), MaybeSize(*host_bytes));
                write!(f, "engine {engine} at {tier} takes {device} of the device and {host} of the host")
            }
            Record::OperationAccepted { operation, engine, from, strategy, by, .. } => {
                write!(f, "{} ", operation.as_str())?;
                if let Some(from) = from {
                    write!(f, "{from} → ")?;
                }
                write!(f, "{engine} accepted for {by}")?;
                match strategy {
                    Some(strategy) => write!(f, ", strategy {strategy}"),
                    None => Ok(()),
                }
            }
            Record::StepBegan { index, phase, engine } => {
                write!(f, "step {}: {} of engine {engine} begins", nth(*index), phase.as_str())
            }
            Record::StepEnded { index, phase, engine, began, ended, outcome, .. } => {
                let (took, how) = (Span(ended.since(*began)), How(outcome));
                write!(f, "step {}: {} of engine {engine} after {took}: {how}", nth(*index), phase.as_str())
            }
            Record::Probe { engine, purpose, began, first_token, outcome } => {
                write!(f, "{purpose} of engine {engine}")?;
                if let Some(token) = first_token {
                    write!(f, ", first token after {}", Span(token.since(*began)))?;
                }
                write!(f, ": {}", How(outcome))
            }
            Record::EngineWork { work: Some(work) } => {
                write!(f, "the engines report {} pieces of work", work.len())
            }
            Record::EngineWork { work: None } => f.write_str("the engines do not report their own times"),
            Record::OperationEnded { outcome, accepted, first_token, ended } => {
                write!(f, "operation ended after {}", Span(ended.since(*accepted)))?;
                if let Some(token) = first_token {
                    write!(f, ", first token after {}", Span(token.since(*accepted)))?;
                }
                write!(f, ": {}", How(outcome))
            }
            Record::Incident { message, .. } => f.write_str(message),
            Record::RunStarted { plan, steps, .. } => {
                write!(f, "cycle {plan} began, {} steps", steps.len())
            }
            Record::CycleStepBegan { index } => write!(f, "cycle step {} begins", nth(*index)),
            Record::CycleStepEnded { index, outcome, .. } => {
                write!(f, "cycle step {} ended: {}", nth(*index), How(outcome))
            }
            Record::LoadRequest { index, round, error, began, ended, .. } => {
                write!(
                    f,
                    "request of cycle step {}, round {}, after {}",
                    nth(*index),
                    nth(*round),
                    Span(ended.since(*began))
                )?;
                match error {
                    Some(error) => write!(f, ": {error}"),
                    None => Ok(()),
                }
            }
            Record::LoadRound { index, round, began, ended } => {
                let took = Span(ended.since(*began));
                write!(f, "round {} of cycle step {} took {took}", nth(*round), nth(*index))
            }
            Record::Window { name, start, end } => {
                write!(f, "window {name}, {:.1} s", end - start)
            }
            Record::RunEnded { outcome } => write!(f, "cycle ended: {}", How(outcome)),
        }
    }
}

/// How loud the log says it.
pub fn level(record: &Record) -> Level {
    let of = |outcome: &Outcome, otherwise: Level| match outcome {
        Outcome::Failed { .. } | Outcome::RolledBack { .. } => Level::WARN,
        Outcome::Ok | Outcome::Cancelled | Outcome::Recovered => otherwise,
    };
    match record {
        Record::Incident { code, .. } => incident::level_of(code),
        Record::OperationEnded { outcome, .. } | Record::RunEnded { outcome } => of(outcome, Level::INFO),
        Record::StepEnded { outcome, .. }
        | Record::Probe { outcome, .. }
        | Record::CycleStepEnded { outcome, .. } => of(outcome, Level::DEBUG),
        Record::LoadRequest { ok: false, .. } => Level::WARN,
        Record::AgentStarted { .. }
        | Record::AgentStopped { .. }
        | Record::Spawned { .. }
        | Record::Swept { .. }
        | Record::Adopted { .. }
        | Record::Resumed { .. }
        | Record::Recovered { .. }
        | Record::Reloaded { .. }
        | Record::Ready { .. }
        | Record::Transition { .. }
        | Record::Footprint { .. }
        | Record::OperationAccepted { .. }
        | Record::RunStarted { .. } => Level::INFO,
        Record::Configured { .. }
        | Record::StepBegan { .. }
        | Record::EngineWork { .. }
        | Record::CycleStepBegan { .. }
        | Record::LoadRequest { .. }
        | Record::LoadRound { .. }
        | Record::Window { .. } => Level::DEBUG,
    }
}
