//! What is known of a device at an instant, and how much that is worth.

use hotbunk_core::time::Moment;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name in the configuration.
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Marketing name, `NVIDIA L20`.
    pub model: String,
    /// All of its memory, bytes.
    pub total_bytes: u64,
    /// What the driver keeps for itself, bytes.
    pub reserved_bytes: u64,
    /// Driver version; `None` for a simulated device.
    pub driver: Option<String>,
    /// CUDA version that the driver supports, `12.4`; `None` where it is not known.
    pub cuda: Option<String>,
    /// Whether the device is simulated.
    pub simulated: bool,
}

impl DeviceInfo {
    /// Bytes that processes can have: the capacity of the device's ledger.
    pub fn usable_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Driver and CUDA for a report's `runtime`: `driver 550.54.15, CUDA 12.4`; `None` where neither is known.
    pub fn runtime(&self) -> Option<String> {
        let driver = self.driver.as_ref().map(|v| format!("driver {v}"));
        let cuda = self.cuda.as_ref().map(|v| format!("CUDA {v}"));
        let parts: Vec<String> = driver.into_iter().chain(cuda).collect();
        if parts.is_empty() { None } else { Some(parts.join(", ")) }
    }
}

/// A process on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process id as the driver gives it: the host's, whatever namespace the agent is in.
    pub pid: u32,
    /// Its bytes; `None` where the driver does not tell.
    pub bytes: Option<u64>,
}

/// The memory of a device at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// When the read began: what it says was true at this instant or later.
    pub at: Moment,
    /// Bytes in use by all processes; what the driver keeps for itself is not in it.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// All bytes of the device.
    pub total: u64,
    /// The processes on it. `None`: not known.
    pub processes: Option<Arc<[Process]>>,
    /// When `processes` were listed. Listing is dearer than reading, so at the fast rate a list is carried along for
    /// up to a tenth of a second.
    pub processes_at: Option<Moment>,
}

impl Reading {
    /// How old it is.
    pub fn age(&self, now: Moment) -> Duration {
        now.since(self.at)
    }

    /// Whether its process list was made with it, not carried along.
    pub fn has_own_processes(&self) -> bool {
        self.processes_at.is_some_and(|at| at >= self.at)
    }
}

/// What ails a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It has been opened, or is being opened, and was not read yet.
    Opening,
    /// The driver has not answered for a while.
    Slow,
    /// The last reads failed.
    ReadsFail {
        /// The error.
        message: String,
    },
    /// Device-wide bytes are there, but not the processes': engines' bytes are unknown.
    NoProcesses {
        /// The error.
        message: String,
    },
}

/// How much a device's numbers are worth at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Read as it should be.
    Ok,
    /// Something is missing.
    Degraded {
        /// What.
        cause: Cause,
        /// Since when.
        since: Moment,
    },
    /// Nothing is known any more; it is tried again with back-off.
    Lost {
        /// Why.
        reason: String,
    },
    /// `device = "none"`: nothing was asked for.
    NotWatched,
}

impl Health {
    /// The word for metrics and the API: `ok`, `degraded`, `lost`, `not_watched`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Health::Ok => "ok",
            Health::Degraded { .. } => "degraded",
            Health::Lost { .. } => "lost",
            Health::NotWatched => "not_watched",
        }
    }

    /// Whether device-wide bytes are being read, so that they can prove a release or a residence.
    pub fn evidence(&self) -> Evidence {
        match self {
            Health::Ok | Health::Degraded { cause: Cause::NoProcesses { .. }, .. } => Evidence::Available,
            Health::NotWatched => Evidence::NotWatched,
            Health::Degraded { .. } | Health::Lost { .. } => Evidence::Missing { reason: self.to_string() },
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Health::Ok => f.write_str("device memory is read as it should be"),
            Health::Degraded { cause: Cause::Opening, .. } => f.write_str("the device has not been read yet"),
            Health::Degraded { cause: Cause::Slow, .. } => {
                f.write_str("the driver is slow: it has not answered a call about device memory")
            }
            Health::Degraded { cause: Cause::ReadsFail { message }, .. } => {
                write!(f, "device memory cannot be read: {message}")
            }
            Health::Degraded { cause: Cause::NoProcesses { message }, .. } => {
                write!(f, "device bytes of single engines are unknown: {message}")
            }
            Health::Lost { reason } => write!(f, "the device is lost: {reason}"),
            Health::NotWatched => f.write_str("device memory is not watched (`device = \"none\"`)"),
        }
    }
}

/// Whether device bytes can prove something at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// They can.
    Available,
    /// They should, but cannot: what needs a proof is refused.
    Missing {
        /// Why.
        reason: String,
    },
    /// The configuration does without: probes alone.
    NotWatched,
}

/// A condition on used bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threshold {
    /// Used ≤ bytes: something was released.
    AtMost(u64),
    /// Used ≥ bytes: something is resident.
    AtLeast(u64),
    /// Lower ≤ used ≤ upper.
    Between(u64, u64),
}

impl Threshold {
    /// Whether `used` bytes meet it.
    pub fn holds(self, used: u64) -> bool {
        match self {
            Threshold::AtMost(bytes) => used <= bytes,
            Threshold::AtLeast(bytes) => used >= bytes,
            Threshold::Between(low, high) => (low..=high).contains(&used),
        }
    }
}

/// How a wait for a condition ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AwaitOutcome {
    /// A reading that was taken after the wait began meets it.
    Reached {
        /// That reading.
        reading: Reading,
    },
    /// The deadline passed, and readings up to the end say that it was not met.
    TimedOut {
        /// The last of them.
        last: Reading,
    },
    /// There is no telling: the device is lost, or the driver did not answer.
    NoEvidence {
        /// Why.
        reason: String,
    },
    /// The configuration does without device memory.
    NotWatched,
}

/// There is no fresh reading.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It should be there.
    #[error("no fresh reading of device memory: {0}")]
    Missing(String),
    /// The configuration does without.
    #[error("device memory is not watched (`device = \"none\"`)")]
    NotWatched,
}
