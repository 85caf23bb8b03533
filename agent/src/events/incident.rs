//! What happened that nobody asked for.
//!
//! Most of it is for the decision core to notice: [`hotbunk_core::effect::Incident`] is its list, and the switcher turns
//! its notes into records. Here stands what only the shell sees. The two lists share no code and no fault: a fault in the
//! field is reported by whichever side sees it first-hand, once.

use super::text::{Size, Span};
use crate::journal::OpenReport;
use crate::journal::record::Record;
use hotbunk_core::effect::Incident as Core;
use std::fmt;
use std::time::Duration;
use tracing::Level;

/// An incident that the shell reports. Its [`code`](Incident::code) is for programs, its `Display` for people: what is
/// wrong, and what the agent does or an operator can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incident {
    /// An engine of an agent that is gone was found and stopped.
    #[error("engine {engine} of a former agent (pid {pid}) was still running and has been stopped")]
    PredecessorStopped {
        /// Engine's name.
        engine: String,
        /// Its leader.
        pid: u32,
    },
    /// Something of a former agent can be neither taken over nor proven ours.
    #[error("left alone, since nothing proves it ours: {record} ({}): {why}", Pids(pids))]
    LeftAlone {
        /// Its record.
        record: String,
        /// Processes concerned.
        pids: Vec<u32>,
        /// Why, and what to do.
        why: String,
    },
    /// An engine was taken over that runs with other settings than are configured.
    #[error(
        "engine {engine} serves on with the settings it was started with ({was}), which are not the configured ones; \
         it is restarted with those at its next idle moment"
    )]
    SettingsChanged {
        /// Engine's name.
        engine: String,
        /// Fingerprint of the settings that it runs with.
        was: String,
    },
    /// The engine ended as it was asked to, and left processes behind.
    #[error(
        "engine {engine} ended when asked to, but left {processes} processes behind, which have been killed"
    )]
    OrphansKilled {
        /// Engine's name.
        engine: String,
        /// How many had to be sent SIGKILL.
        processes: u32,
    },
    /// The engine did not end when it was asked to.
    #[error(
        "engine {engine} did not end within {} of SIGTERM and was killed; give it more `stop_grace` if it needs it",
        Span(*grace)
    )]
    StopForced {
        /// Engine's name.
        engine: String,
        /// How long it had.
        grace: Duration,
    },
    /// The engine logs more than is kept.
    #[error(
        "engine {engine} floods its log: its files hold less than the last hour, the oldest {} are gone already",
        Size(*lost_bytes)
    )]
    LogFlooded {
        /// Engine's name.
        engine: String,
        /// Bytes that were not kept when it was noticed.
        lost_bytes: u64,
    },
    /// The engine's output cannot be written down.
    #[error("the log of engine {engine} cannot be written, {} are lost so far; is the disk full?", Size(*lost_bytes))]
    LogUnwritable {
        /// Engine's name.
        engine: String,
        /// Bytes that were lost when it was noticed.
        lost_bytes: u64,
    },
    /// The container runtime's client has ended alone.
    #[error(
        "the container of engine {engine} runs on, but its client has ended: its output is not kept until it is restarted"
    )]
    ContainerClientLost {
        /// Engine's name.
        engine: String,
    },
    /// A scheduled cycle did not run.
    #[error("the scheduled cycle {plan} was left out: {reason}")]
    CycleSkipped {
        /// Schedule's name.
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
    /// The journal can be written again.
    #[error("the journal can be written again; {lost} events stand in the log alone")]
    JournalRestored {
        /// Events that it lacks.
        lost: u64,
    },
    /// The journal cannot be written.
    #[error("the journal cannot be written, events are only logged: {reason}")]
    JournalFailed {
        /// Why.
        reason: String,
    },
    /// A changed configuration was not applied, and nobody waited for the answer.
    #[error("the configuration was not reloaded, the agent goes on with what it had: {reason}")]
    ReloadRefused {
        /// Why, and what to do.
        reason: String,
    },
}

impl Incident {
    /// The code of every incident of this list.
    pub const CODES: [&'static str; 13] = [
        "predecessor_stopped",
        "left_alone",
        "settings_changed",
        "orphans_killed",
        "stop_forced",
        "log_flooded",
        "log_unwritable",
        "container_client_lost",
        "cycle_skipped",
        "journal_set_aside",
        "journal_failed",
        "journal_restored",
        "reload_refused",
    ];

    /// Stable, snake_case.
    pub fn code(&self) -> &'static str {
        match self {
            Incident::PredecessorStopped { .. } => "predecessor_stopped",
            Incident::LeftAlone { .. } => "left_alone",
            Incident::SettingsChanged { .. } => "settings_changed",
            Incident::OrphansKilled { .. } => "orphans_killed",
            Incident::StopForced { .. } => "stop_forced",
            Incident::LogFlooded { .. } => "log_flooded",
            Incident::LogUnwritable { .. } => "log_unwritable",
            Incident::ContainerClientLost { .. } => "container_client_lost",
            Incident::CycleSkipped { .. } => "cycle_skipped",
            Incident::JournalSetAside { .. } => "journal_set_aside",
            Incident::JournalFailed { .. } => "journal_failed",
            Incident::JournalRestored { .. } => "journal_restored",
            Incident::ReloadRefused { .. } => "reload_refused",
        }
    }

    /// The engine concerned, where there is one.
    pub fn engine(&self) -> Option<&str> {
        match self {
            Incident::PredecessorStopped { engine, .. }
            | Incident::SettingsChanged { engine, .. }
            | Incident::OrphansKilled { engine, .. }
            | Incident::StopForced { engine, .. }
            | Incident::LogFlooded { engine, .. }
            | Incident::LogUnwritable { engine, .. }
            | Incident::ContainerClientLost { engine } => Some(engine),
            Incident::LeftAlone { .. }
            | Incident::CycleSkipped { .. }
            | Incident::JournalSetAside { .. }
            | Incident::JournalFailed { .. }
            | Incident::JournalRestored { .. }
            | Incident::ReloadRefused { .. } => None,
        }
    }

    /// What opening the journal found wrong, where it did: to be recorded first.
    pub fn of_open(report: &OpenReport) -> Option<Incident> {
        let (aside, reason) = report.set_aside.as_ref()?;
        Some(Incident::JournalSetAside { aside: aside.display().to_string(), reason: reason.clone() })
    }
}

impl From<&Incident> for Record {
    fn from(incident: &Incident) -> Record {
        Record::Incident {
            code: incident.code().to_owned(),
            engine: incident.engine().map(str::to_owned),
            device: None,
            message: incident.to_string(),
        }
    }
}

/// Pids for people.
struct Pids<'a>(&'a [u32]);

impl fmt::Display for Pids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no process known");
        }
        let pids: Vec<String> = self.0.iter().map(u32::to_string).collect();
        write!(f, "pids {}", pids.join(", "))
    }
}

/// The code of every incident there is, the core's and the shell's.
pub fn codes() -> impl Iterator<Item = &'static str> {
    Core::ALL.into_iter().map(Core::code).chain(Incident::CODES)
}

/// How loud the log says an incident with this code; a code that nobody knows is a warning.
pub(super) fn level_of(code: &str) -> Level {
    if let Some(incident) = Core::ALL.into_iter().find(|incident| incident.code() == code) {
        return level_of_core(incident);
    }
    match code {
        "journal_failed" | "log_unwritable" => Level::ERROR,
        "journal_restored" => Level::INFO,
        _ => Level::WARN,
    }
}

/// An error: something does not serve, or cannot be trusted, until somebody or the agent has done something about it.
fn level_of_core(incident: Core) -> Level {
    match incident {
        Core::Crashed
        | Core::StartFailed
        | Core::SleepFailed
        | Core::WakeFailed
        | Core::WakeIgnored
        | Core::WakeIncomplete
        | Core::CanaryMismatch
        | Core::Stalled
        | Core::Leftovers
        | Core::GivenUp
        | Core::RollbackFailed
        | Core::DeviceLost => Level::ERROR,
        Core::SleepIgnored
        | Core::SleepIncomplete
        | Core::ParkRefused
        | Core::CallUnanswered
        | Core::ProbeFailed
        | Core::Drifted
        | Core::ForeignMemory
        | Core::RehearsalFailed
        | Core::NoRoom
        | Core::ResidualCreep => Level::WARN,
        Core::DeviceRestored => Level::INFO,
    }
}
