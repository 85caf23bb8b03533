//! Where a device's numbers come from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Which GPU of the machine is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `GPU-…` or `MIG-…`: stays the same when other cards come and go.
    Uuid(String),
    /// NVML's index (PCI order). After the first opening the device is known by its UUID.
    Index(u32),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Uuid(uuid) => f.write_str(uuid),
            Selector::Index(index) => write!(f, "index {index}"),
        }
    }
}

impl FromStr for Selector {
    type Err = std::convert::Infallible;
    /// A number is an index, anything else a UUID.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Ok(s.parse().map_or_else(|_| Selector::Uuid(s.to_owned()), Selector::Index))
    }
}

/// One consistent look into the ledger of a simulated device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerLook {
    /// Marketing name of the simulated device.
    pub model: String,
    /// Its UUID.
    pub uuid: String,
    /// Its capacity in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes by process id.
    pub processes: Vec<(u32, u64)>,
}

/// Looks into a ledger. An error is a sentence for people.
pub type Look = Arc<dyn Fn() -> Result<LedgerLook, String> + Send + Sync>;

/// Where a device's numbers come from.
#[derive(Clone)]
pub enum Source {
    /// A real GPU, through NVIDIA's management library.
    Nvml(Selector),
    /// The simulated engines' shared ledger.
    Ledger {
        /// The ledger's file, to show.
        path: PathBuf,
        /// Looks into it.
        look: Look,
    },
    /// `device = "none"`: nothing is measured, and nothing is expected to be.
    None,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Nvml(selector) => write!(f, "Nvml({selector})"),
            Source::Ledger { path, .. } => write!(f, "Ledger({})", path.display()),
            Source::None => f.write_str("None"),
        }
    }
}

/// A device as the configuration names it. Its position in the list is its `DeviceId`.
#[derive(Debug, Clone)]
pub struct DeviceSpec {
    /// Name in the configuration, in metrics and in the journal.
    pub name: String,
    /// Where its numbers come from.
    pub source: Source,
}
