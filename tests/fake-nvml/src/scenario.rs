//! What the library is to say.

use hotbunk_sim::ledger::DeviceLedger;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a scenario could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read or written.
    #[error("the fake NVML's file {} cannot be read or written", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The file is not a scenario.
    #[error("{} is not a scenario of the fake NVML", .0.display())]
    Json(PathBuf, #[source] serde_json::Error),
}

/// An NVML return code that a scenario can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// `NVML_ERROR_UNINITIALIZED`.
    Uninitialized,
    /// `NVML_ERROR_INVALID_ARGUMENT`.
    InvalidArgument,
    /// `NVML_ERROR_NOT_SUPPORTED`.
    NotSupported,
    /// `NVML_ERROR_NO_PERMISSION`.
    NoPermission,
    /// `NVML_ERROR_NOT_FOUND`: also what NVML says for "no samples".
    NotFound,
    /// `NVML_ERROR_INSUFFICIENT_SIZE`.
    InsufficientSize,
    /// `NVML_ERROR_DRIVER_NOT_LOADED`.
    DriverNotLoaded,
    /// `NVML_ERROR_TIMEOUT`.
    Timeout,
    /// `NVML_ERROR_GPU_IS_LOST`.
    GpuLost,
    /// `NVML_ERROR_RESET_REQUIRED`.
    ResetRequired,
    /// `NVML_ERROR_LIB_RM_VERSION_MISMATCH`: driver and library of different releases, as after an upgrade.
    VersionMismatch,
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`.
    ArgumentVersionMismatch,
    /// `NVML_ERROR_UNKNOWN`.
    Unknown,
}

impl Code {
    /// The number of the C header.
    pub fn number(self) -> u32 {
        match self {
            Code::Uninitialized => 1,
            Code::InvalidArgument => 2,
            Code::NotSupported => 3,
            Code::NoPermission => 4,
            Code::NotFound => 6,
            Code::InsufficientSize => 7,
            Code::DriverNotLoaded => 9,
            Code::Timeout => 10,
            Code::GpuLost => 15,
            Code::ResetRequired => 16,
            Code::VersionMismatch => 18,
            Code::ArgumentVersionMismatch => 25,
            Code::Unknown => 999,
        }
    }
}

/// A process on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process id, in whatever namespace the test wants.
    pub pid: u32,
    /// Its device bytes; `None` is NVML's "not available".
    pub bytes: Option<u64>,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Marketing name.
    pub name: String,
    /// `GPU-…`, or `MIG-…`.
    pub uuid: String,
    /// All of its memory, bytes.
    pub total: u64,
    /// What the driver keeps for itself, bytes: neither used nor free.
    pub reserved: u64,
    /// Used bytes. Ignored where `ledger` is set.
    pub used: u64,
    /// Compute processes. Ignored where `ledger` is set.
    pub processes: Vec<Process>,
    /// A simulated device ledger to follow instead of `used` and `processes`.
    pub ledger: Option<PathBuf>,
    /// The GPU is lost: every call about it fails, until it is back *and* NVML has been begun again.
    pub gpu_lost: bool,
    /// What opening a handle answers instead.
    pub open_fails: Option<Code>,
    /// What reading memory answers instead.
    pub memory_fails: Option<Code>,
    /// What listing processes answers instead.
    pub processes_fail: Option<Code>,
    /// How long a memory call takes, milliseconds; less where the scenario changes its mind meanwhile.
    pub slow_ms: u64,
    /// So many processes appear between the call that counts them and the one that lists them, each time.
    pub grow_process_list: u32,
    /// What every process id is raised by: ids of another namespace.
    pub pid_offset: u32,
    /// The card is in MIG mode, and these are its instances (UUIDs `MIG-…`). Each is a device of its own for whoever
    /// asks for it by UUID; none has an index.
    pub instances: Vec<Device>,
}

impl Device {
    /// A device that follows a simulated device's ledger, with its name, UUID and capacity.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn of_ledger(path: &Path) -> Result<Self, hotbunk_sim::ledger::Error> {
        let header = DeviceLedger::open(path)?.header()?;
        Ok(Device {
            name: header.name,
            uuid: header.uuid,
            total: header.total_bytes,
            ledger: Some(path.to_owned()),
            ..Device::default()
        })
    }

    /// Used bytes and processes as they are now: the scenario's, or the ledger's.
    ///
    /// # Errors
    /// The ledger cannot be read.
    pub fn usage(&self) -> Result<(u64, Vec<Process>), hotbunk_sim::ledger::Error> {
        let Some(path) = &self.ledger else { return Ok((self.used, self.processes.clone())) };
        let usage = DeviceLedger::open(path)?.usage()?;
        let mut processes: Vec<Process> = Vec::new();
        for allocation in &usage.allocations {
            let pid = allocation.owner.pid.wrapping_add(self.pid_offset);
            match processes.iter_mut().find(|p| p.pid == pid) {
                Some(process) => process.bytes = process.bytes.map(|bytes| bytes + allocation.bytes),
                None => processes.push(Process { pid, bytes: Some(allocation.bytes) }),
            }
        }
        Ok((usage.used(), processes))
    }
}

/// Everything the library says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Driver version.
    pub driver: String,
    /// CUDA driver version as NVML gives it: 12040 is 12.4.
    pub cuda: i32,
    /// What `nvmlInit` answers instead.
    pub init_fails: Option<Code>,
    /// Devices, in NVML's order.
    pub devices: Vec<Device>,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario { driver: "550.54.15".into(), cuda: 12_040, init_fails: None, devices: Vec::new() }
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// The file cannot be read or is no scenario.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|e| Error::Io(path.into(), e))?;
        serde_json::from_str(&text).map_err(|e| Error::Json(path.into(), e))
    }

    /// Writes a scenario file in one step: a reader sees the old or the new one, never a part.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Json(path.into(), e))?;
        let draft = path.with_extension("draft");
        fs::write(&draft, text).map_err(|e| Error::Io(draft.clone(), e))?;
        fs::rename(&draft, path).map_err(|e| Error::Io(path.into(), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_survives_its_file_and_a_misspelt_key_is_refused() {
        let dir = std::env::temp_dir().join(format!("fake-nvml-scenario-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("scenario.json");
        let scenario = Scenario {
            devices: vec![Device {
                name: "NVIDIA L20".into(),
                uuid: "GPU-1".into(),
                total: 10,
                processes: vec![Process { pid: 1, bytes: None }],
                memory_fails: Some(Code::GpuLost),
                ..Device::default()
            }],
            ..Scenario::default()
        };
        scenario.save(&path).unwrap();
        assert_eq!(Scenario::load(&path).unwrap(), scenario);
        fs::write(&path, r#"{"devises": []}"#).unwrap();
        assert!(matches!(Scenario::load(&path), Err(Error::Json(..))));
        assert!(matches!(Scenario::load(&dir.join("none")), Err(Error::Io(..))));
        fs::remove_dir_all(&dir).unwrap();
    }
}
