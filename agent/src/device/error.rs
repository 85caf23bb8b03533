//! What can go wrong while devices are opened and read.

use super::source::Selector;
use nvml_wrapper::error::NvmlError;
use std::error::Error as _;
use std::time::Duration;

/// Why a device cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The management library is not there or is no NVML.
    #[error(
        "the NVIDIA management library `{library}` cannot be used; install the driver, set `nvml_library` to its path, \
         or set `device = \"none\"` to do without device memory"
    )]
    Library {
        /// Name or path that was loaded.
        library: String,
        /// What the loader said.
        #[source]
        source: NvmlError,
    },
    /// The library is there, but does not begin.
    #[error("`{library}` is there but refuses to begin; does `nvidia-smi` work on this machine?")]
    Init {
        /// Name or path that was loaded.
        library: String,
        /// What NVML said.
        #[source]
        source: NvmlError,
    },
    /// The configuration names a device that the machine does not have.
    #[error("device `{device}`: this machine has no GPU {selector}; {}", there_are(exist))]
    NoSuchDevice {
        /// Name in the configuration.
        device: String,
        /// What was looked for.
        selector: Selector,
        /// What there is: `0: GPU-… (NVIDIA L20)`.
        exist: Vec<String>,
    },
    /// The configuration names a card that is cut into MIG instances.
    #[error(
        "device `{device}`: the GPU {selector} is in MIG mode, and engines run in its instances: {}",
        name_one(instances)
    )]
    CardInMigMode {
        /// Name in the configuration.
        device: String,
        /// What was looked for.
        selector: Selector,
        /// What there is: `MIG-… (NVIDIA A100 MIG 1g.5gb)`.
        instances: Vec<String>,
    },
    /// Two devices of the configuration are one GPU.
    #[error(
        "device `{device}` is the same GPU as `{other}` ({uuid}): one GPU has one ledger; remove one of the two"
    )]
    Twice {
        /// Name in the configuration.
        device: String,
        /// The one that stands before it.
        other: String,
        /// The GPU.
        uuid: String,
    },
    /// A call about one device failed.
    #[error("device `{device}`: the driver failed to {call}")]
    Driver {
        /// Name in the configuration.
        device: String,
        /// What was asked: `read its memory`.
        call: &'static str,
        /// What NVML said.
        #[source]
        source: NvmlError,
    },
    /// The simulated ledger failed.
    #[error("device `{device}`: its ledger cannot be read: {message}")]
    Ledger {
        /// Name in the configuration.
        device: String,
        /// What it said.
        message: String,
    },
    /// The driver did not answer in time.
    #[error("the driver has not answered for {} s while devices are being opened", limit.as_secs_f64())]
    Slow {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The thread for the driver's calls could not be started.
    #[error("the thread for the driver's calls cannot be started")]
    Thread(#[source] std::io::Error),
    /// The sampler has ended, so the agent is going down.
    #[error("the device sampler has ended")]
    Ended,
}

fn there_are(exist: &[String]) -> String {
    if exist.is_empty() { "it has none at all".to_owned() } else { format!("it has {}", exist.join(", ")) }
}

fn name_one(instances: &[String]) -> String {
    if instances.is_empty() {
        "it has none yet; create some with `nvidia-smi mig`, or switch MIG off".to_owned()
    } else {
        format!("write `uuid = \"MIG-…\"`, one of {}", instances.join(", "))
    }
}

impl Error {
    /// Whether the configuration is at fault: to be refused before anything is started.
    pub fn is_configuration(&self) -> bool {
        matches!(self, Error::NoSuchDevice { .. } | Error::CardInMigMode { .. } | Error::Twice { .. })
    }

    /// Whether the device or the library is gone for good until it has been opened again.
    pub(super) fn is_loss(&self) -> bool {
        match self {
            Error::Driver { source, .. } => matches!(
                source,
                NvmlError::GpuLost
                    | NvmlError::Uninitialized
                    | NvmlError::DriverNotLoaded
                    | NvmlError::ResetRequired
                    | NvmlError::InvalidArg
                    | NvmlError::LibRmVersionMismatch
                    | NvmlError::NotSupported
                    | NvmlError::NoPermission
                    | NvmlError::FailedToLoadSymbol(_)
            ),
            _ => true,
        }
    }

    /// The whole sentence, with what lies beneath.
    pub fn sentence(&self) -> String {
        let mut text = self.to_string();
        let mut below = self.source();
        while let Some(error) = below {
            text.push_str(&format!(": {error}"));
            below = error.source();
        }
        text
    }
}
