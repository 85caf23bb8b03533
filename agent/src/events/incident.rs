//! What happened that nobody asked for: one variant for each cause, with its stable code and its sentence.

use super::text::{Size, Span};
use crate::journal::OpenReport;
use crate::journal::record::Record;
use hotbunk_core::tier::Tier;
use std::time::Duration;
use tracing::Level;

/// An incident. Its [`code`](Incident::code) is for programs, its `Display` for people: what is wrong, and what the
/// agent does or an operator can do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Incident {
    /// The engine's process ended by itself.
    #[error("engine {engine} (pid {pid}) ended unasked: {how}{}", Tail(last_line))]
    Crashed {
        /// Engine's name.
        engine: String,
        /// Its leader.
        pid: u32,
        /// `exit status 1`, `killed by signal 9`.
        how: String,
        /// The last line of its log that says something.
        last_line: Option<String>,
    },
    /// A start did not lead to a ready engine.
    #[error("engine {engine} did not become ready: {reason}{}", Tail(last_line))]
    StartFailed {
        /// Engine's name.
        engine: String,
        /// Why.
        reason: String,
        /// The last line of its log that says something.
        last_line: Option<String>,
    },
    /// The engine was restarted too often; the agent leaves it alone.
    #[error(
        "engine {engine} was restarted {restarts} times within {} and is left alone; mend the cause, then reset it",
        Span(*within)
    )]
    Failed {
        /// Engine's name.
        engine: String,
        /// How often.
        restarts: u32,
        /// In which time.
        within: Duration,
    },
    /// The rehearsal after the start went wrong: the engine is switched by restarts only.
    #[error("engine {engine} failed its rehearsal and is switched by restart only: {reason}")]
    RehearsalFailed {
        /// Engine's name.
        engine: String,
        /// Why.
        reason: String,
    },
    /// A request for one token failed or was not answered.
    #[error("engine {engine} did not answer its probe: {reason}")]
    ProbeFailed {
        /// Engine's name.
        engine: String,
        /// Why.
        reason: String,
    },
    /// Tokens after a wake were not the recorded ones, twice.
    #[error("engine {engine} woke from {tier} with wrong tokens and is not served: {detail}")]
    CanaryMismatch {
        /// Engine's name.
        engine: String,
        /// Where it woke from.
        tier: Tier,
        /// Expected and found.
        detail: String,
    },
    /// The engine is not in the state that the agent left it in.
    #[error(
        "engine {engine} should be {expected} and is {found}: somebody else has acted on it; it is being repaired"
    )]
    Drifted {
        /// Engine's name.
        engine: String,
        /// What the agent believed.
        expected: String,
        /// What was found.
        found: String,
    },
    /// Requests run, but no token comes.
    #[error("engine {engine} has made no token for {} with {in_flight} requests running", Span(*silent_for))]
    Stalled {
        /// Engine's name.
        engine: String,
        /// Requests in it.
        in_flight: u64,
        /// Since the last progress.
        silent_for: Duration,
    },
    /// A control call was not answered in time: its outcome is not known.
    #[error("engine {engine} has not answered {call} for {}; what it did is not known", Span(*waited))]
    CallUnanswered {
        /// Engine's name.
        engine: String,
        /// `POST /sleep`.
        call: String,
        /// How long.
        waited: Duration,
    },
    /// The sleep call itself failed.
    #[error("engine {engine} refused to go to {tier}: {message}")]
    SleepFailed {
        /// Engine's name.
        engine: String,
        /// Where to.
        tier: Tier,
        /// The engine's words.
        message: String,
    },
    /// The sleep call was answered with success, and nothing happened.
    #[error("engine {engine} accepted to go to {tier} and did not")]
    SleepIgnored {
        /// Engine's name.
        engine: String,
        /// Where to.
        tier: Tier,
    },
    /// The engine sleeps, but its memory is not gone.
    #[error("engine {engine} at {tier} still holds {} where {} were allowed", Size(*held_bytes), Size(*allowed_bytes))]
    SleepIncomplete {
        /// Engine's name.
        engine: String,
        /// Where it is.
        tier: Tier,
        /// Device bytes that it holds.
        held_bytes: u64,
        /// Device bytes that its footprint and the slack allow.
        allowed_bytes: u64,
    },
    /// The engine does not wake.
    #[error("engine {engine} does not wake: {message}")]
    WakeFailed {
        /// Engine's name.
        engine: String,
        /// Why.
        message: String,
    },
    /// The engine does not wake because the device has no room.
    #[error("engine {engine} does not wake, the device has no room: {message}")]
    WakeOom {
        /// Engine's name.
        engine: String,
        /// The engine's words.
        message: String,
    },
    /// What a sleeping engine keeps has grown.
    #[error("engine {engine} keeps {} at {tier} where it kept {} before", Size(*now_bytes), Size(*before_bytes))]
    ResidualGrown {
        /// Engine's name.
        engine: String,
        /// Where it is.
        tier: Tier,
        /// Device bytes then.
        before_bytes: u64,
        /// Device bytes now.
        now_bytes: u64,
    },
    /// The device has no room for a start or a wake.
    #[error(
        "engine {engine} needs {} on device {device}, where {} are free; it waits",
        Size(*needed_bytes),
        Size(*free_bytes)
    )]
    NoRoom {
        /// Engine's name.
        engine: String,
        /// Device's name.
        device: String,
        /// Device bytes that it needs.
        needed_bytes: u64,
        /// Device bytes that are free for it.
        free_bytes: u64,
    },
    /// Host memory does not suffice.
    #[error("engine {engine} needs {} of host memory, {} are available", Size(*needed_bytes), Size(*available_bytes))]
    NoHostMemory {
        /// Engine's name.
        engine: String,
        /// Host bytes that it needs.
        needed_bytes: u64,
        /// Host bytes available.
        available_bytes: u64,
    },
    /// Somebody else uses the device.
    #[error("device {device} holds {} of processes that are not ours{}", Size(*bytes), Pids(pids))]
    ForeignMemory {
        /// Device's name.
        device: String,
        /// Device bytes that no engine accounts for.
        bytes: u64,
        /// Whose, where the driver says.
        pids: Vec<u32>,
    },
    /// The device cannot be read: what needs evidence is refused.
    #[error(
        "device {device} cannot be read, handoffs that need to see memory released are refused: {reason}"
    )]
    NoEvidence {
        /// Device's name.
        device: String,
        /// Why.
        reason: String,
    },
    /// The device can be read again.
    #[error("device {device} can be read again after {}", Span(*lost_for))]
    DeviceRestored {
        /// Device's name.
        device: String,
        /// How long it could not.
        lost_for: Duration,
    },
    /// An engine of an agent that is gone was found and stopped.
    #[error("engine {engine} of a former agent (pid {pid}) was still running and has been stopped")]
    PredecessorStopped {
        /// Engine's name.
        engine: String,
        /// Its leader.
        pid: u32,
    },
    /// Processes of an engine outlived it and were killed.
    #[error("engine {engine} left processes behind, which have been killed{}", Pids(pids))]
    OrphansKilled {
        /// Engine's name.
        engine: String,
        /// Which.
        pids: Vec<u32>,
    },
    /// The engine did not end when it was asked to.
    #[error("engine {engine} did not end within {} of SIGTERM and was killed", Span(*grace))]
    StopForced {
        /// Engine's name.
        engine: String,
        /// How long it had.
        grace: Duration,
    },
    /// What listens on the engine's port is not the engine.
    #[error("what answers for engine {engine} is not it, nothing is sent there: {detail}")]
    WrongIdentity {
        /// Engine's name.
        engine: String,
        /// What was found.
        detail: String,
    },
    /// The engine logs more than is kept.
    #[error("engine {engine} floods its log, {} were not kept", Size(*lost_bytes))]
    LogFlooded {
        /// Engine's name.
        engine: String,
        /// Bytes that were not kept.
        lost_bytes: u64,
    },
    /// A scheduled cycle did not run.
    #[error("the scheduled cycle {plan} was left out: {reason}")]
    CycleSkipped {
        /// Cycle plan's name.
        plan: String,
        /// Why.
        reason: String,
    },
    /// The journal was damaged, and a new one begun.
    #[error("the journal was damaged ({reason}); it is kept as {aside}, and a new one was begun")]
    JournalSetAside {
        /// Where it is now.
        aside: String,
        /// What was wrong.
        reason: String,
    },
    /// The journal cannot be written.
    #[error("the journal cannot be written, events are only logged: {reason}")]
    JournalFailed {
        /// Why.
        reason: String,
    },
}

struct Tail<'a>(&'a Option<String>);

impl std::fmt::Display for Tail<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(line) => write!(f, "; its log ends with: {line}"),
            None => Ok(()),
        }
    }
}

struct Pids<'a>(&'a [u32]);

impl std::fmt::Display for Pids<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, pid) in self.0.iter().enumerate() {
            write!(f, "{}{pid}", if index == 0 { ": pid " } else { ", " })?;
        }
        Ok(())
    }
}

impl Incident {
    /// Every code, for whoever validates or documents them.
    pub const CODES: [&'static str; 28] = [
        "crashed",
        "start_failed",
        "failed",
        "rehearsal_failed",
        "probe_failed",
        "canary_mismatch",
        "drifted",
        "stalled",
        "call_unanswered",
        "sleep_failed",
        "sleep_ignored",
        "sleep_incomplete",
        "wake_failed",
        "wake_oom",
        "residual_grown",
        "no_room",
        "no_host_memory",
        "foreign_memory",
        "no_evidence",
        "device_restored",
        "predecessor_stopped",
        "orphans_killed",
        "stop_forced",
        "wrong_identity",
        "log_flooded",
        "cycle_skipped",
        "journal_set_aside",
        "journal_failed",
    ];

    /// Stable, snake_case.
    pub fn code(&self) -> &'static str {
        match self {
            Incident::Crashed { .. } => "crashed",
            Incident::StartFailed { .. } => "start_failed",
            Incident::Failed { .. } => "failed",
            Incident::RehearsalFailed { .. } => "rehearsal_failed",
            Incident::ProbeFailed { .. } => "probe_failed",
            Incident::CanaryMismatch { .. } => "canary_mismatch",
            Incident::Drifted { .. } => "drifted",
            Incident::Stalled { .. } => "stalled",
            Incident::CallUnanswered { .. } => "call_unanswered",
            Incident::SleepFailed { .. } => "sleep_failed",
            Incident::SleepIgnored { .. } => "sleep_ignored",
            Incident::SleepIncomplete { .. } => "sleep_incomplete",
            Incident::WakeFailed { .. } => "wake_failed",
            Incident::WakeOom { .. } => "wake_oom",
            Incident::ResidualGrown { .. } => "residual_grown",
            Incident::NoRoom { .. } => "no_room",
            Incident::NoHostMemory { .. } => "no_host_memory",
            Incident::ForeignMemory { .. } => "foreign_memory",
            Incident::NoEvidence { .. } => "no_evidence",
            Incident::DeviceRestored { .. } => "device_restored",
            Incident::PredecessorStopped { .. } => "predecessor_stopped",
            Incident::OrphansKilled { .. } => "orphans_killed",
            Incident::StopForced { .. } => "stop_forced",
            Incident::WrongIdentity { .. } => "wrong_identity",
            Incident::LogFlooded { .. } => "log_flooded",
            Incident::CycleSkipped { .. } => "cycle_skipped",
            Incident::JournalSetAside { .. } => "journal_set_aside",
            Incident::JournalFailed { .. } => "journal_failed",
        }
    }

    /// The engine concerned, where there is one.
    pub fn engine(&self) -> Option<&str> {
        match self {
            Incident::Crashed { engine, .. }
            | Incident::StartFailed { engine, .. }
            | Incident::Failed { engine, .. }
            | Incident::RehearsalFailed { engine, .. }
            | Incident::ProbeFailed { engine, .. }
            | Incident::CanaryMismatch { engine, .. }
            | Incident::Drifted { engine, .. }
            | Incident::Stalled { engine, .. }
            | Incident::CallUnanswered { engine, .. }
            | Incident::SleepFailed { engine, .. }
            | Incident::SleepIgnored { engine, .. }
            | Incident::SleepIncomplete { engine, .. }
            | Incident::WakeFailed { engine, .. }
            | Incident::WakeOom { engine, .. }
            | Incident::ResidualGrown { engine, .. }
            | Incident::NoRoom { engine, .. }
            | Incident::NoHostMemory { engine, .. }
            | Incident::PredecessorStopped { engine, .. }
            | Incident::OrphansKilled { engine, .. }
            | Incident::StopForced { engine, .. }
            | Incident::WrongIdentity { engine, .. }
            | Incident::LogFlooded { engine, .. } => Some(engine),
            Incident::ForeignMemory { .. }
            | Incident::NoEvidence { .. }
            | Incident::DeviceRestored { .. }
            | Incident::CycleSkipped { .. }
            | Incident::JournalSetAside { .. }
            | Incident::JournalFailed { .. } => None,
        }
    }

    /// The device concerned, where there is one.
    pub fn device(&self) -> Option<&str> {
        match self {
            Incident::NoRoom { device, .. }
            | Incident::ForeignMemory { device, .. }
            | Incident::NoEvidence { device, .. }
            | Incident::DeviceRestored { device, .. } => Some(device),
            _ => None,
        }
    }

    /// What opening the journal found wrong, where it did: to be recorded first.
    pub fn of_open(report: &OpenReport) -> Option<Incident> {
        let (aside, reason) = report.set_aside.as_ref()?;
        Some(Incident::JournalSetAside { aside: aside.display().to_string(), reason: reason.clone() })
    }

    /// How loud the log says an incident with this code.
    pub(super) fn level_of(code: &str) -> Level {
        match code {
            "crashed" | "start_failed" | "failed" | "canary_mismatch" | "wake_failed" | "wake_oom"
            | "sleep_failed" | "stalled" | "wrong_identity" | "no_evidence" | "journal_failed" => {
                Level::ERROR
            }
            "device_restored" | "predecessor_stopped" => Level::INFO,
            _ => Level::WARN,
        }
    }
}

impl From<&Incident> for Record {
    fn from(incident: &Incident) -> Record {
        Record::Incident {
            code: incident.code().to_owned(),
            engine: incident.engine().map(str::to_owned),
            device: incident.device().map(str::to_owned),
            message: incident.to_string(),
        }
    }
}
