//! NVIDIA's management library, through `nvml-wrapper`.
//!
//! Three things that its documentation does not stress: `memory_info` is NVML's second version, whose `used` leaves out
//! what the driver keeps for itself; a process list can outgrow its buffer between the call that counts and the one
//! that lists; and after a GPU was lost its index may mean another card, so a device is known by UUID once it is open.
//!
//! **MIG.** An instance (`MIG-…`) is a device like any other: NVML gives its own memory and its own processes. A card in
//! MIG mode is not: engines run in its instances, so its total is nobody's capacity, and it is refused with the names of
//! its instances.

use super::error::Error;
use super::reading::{DeviceInfo, Process};
use super::source::Selector;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use std::path::Path;

/// What is loaded where the configuration names nothing.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// How often a process list that has outgrown its buffer is asked for again.
const LIST_ATTEMPTS: u32 = 3;

/// Loads the library and begins it.
pub(super) fn begin(library: Option<&Path>) -> Result<Nvml, Error> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(path.as_os_str());
    }
    builder.init().map_err(|source| {
        let library = library.map_or_else(|| LIBRARY.to_owned(), |path| path.display().to_string());
        match source {
            NvmlError::LibloadingError(_) | NvmlError::FailedToLoadSymbol(_) => {
                Error::Library { library, source }
            }
            _ => Error::Init { library, source },
        }
    })
}

/// Opens one device.
pub(super) fn open<'a>(
    nvml: &'a Nvml,
    name: &str,
    selector: &Selector,
) -> Result<(Device<'a>, DeviceInfo), Error> {
    let failed = |call| move |source| Error::Driver { device: name.to_owned(), call, source };
    let device = match selector {
        Selector::Uuid(uuid) => nvml.device_by_uuid(uuid.as_str()),
        Selector::Index(index) => nvml.device_by_index(*index),
    };
    let device = device.map_err(|source| match source {
        NvmlError::NotFound | NvmlError::InvalidArg => {
            Error::NoSuchDevice { device: name.to_owned(), selector: selector.clone(), exist: existing(nvml) }
        }
        source => failed("open it")(source),
    })?;
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Err(Error::CardInMigMode {
            device: name.to_owned(),
            selector: selector.clone(),
            instances: instances(&device),
        });
    }
    let memory = device.memory_info().map_err(failed("read its memory"))?;
    let info = DeviceInfo {
        name: name.to_owned(),
        uuid: device.uuid().map_err(failed("tell its UUID"))?,
        model: device.name().map_err(failed("tell its name"))?,
        total_bytes: memory.total,
        reserved_bytes: memory.reserved,
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml
            .sys_cuda_driver_version()
            .ok()
            .map(|v| format!("{}.{}", cuda_driver_version_major(v), cuda_driver_version_minor(v))),
        simulated: false,
    };
    Ok((device, info))
}

/// What there is, for the message that says that something is not there.
fn existing(nvml: &Nvml) -> Vec<String> {
    let count = nvml.device_count().unwrap_or(0);
    let describe = |index| match nvml.device_by_index(index) {
        Ok(device) => {
            let uuid = device.uuid().unwrap_or_else(|e| e.to_string());
            let model = device.name().unwrap_or_else(|e| e.to_string());
            format!("{index}: {uuid} ({model})")
        }
        Err(error) => format!("{index}: {error}"),
    };
    (0..count).map(describe).collect()
}

/// The instances of a card in MIG mode: `MIG-… (NVIDIA A100 MIG 1g.5gb)`.
fn instances(card: &Device<'_>) -> Vec<String> {
    let most = card.mig_device_count().unwrap_or(0);
    let describe = |index| {
        let instance = card.mig_device_by_index(index).ok()?;
        let model = instance.name().unwrap_or_else(|e| e.to_string());
        Some(format!("{} ({model})", instance.uuid().ok()?))
    };
    (0..most).filter_map(describe).collect()
}

/// `(used, free, total)` bytes.
pub(super) fn memory(device: &Device<'_>) -> Result<(u64, u64, u64), NvmlError> {
    let memory = device.memory_info()?;
    Ok((memory.used, memory.free, memory.total))
}

/// The compute processes on a device.
pub(super) fn processes(device: &Device<'_>) -> Result<Vec<Process>, NvmlError> {
    let mut attempt = 1;
    let listed = loop {
        match device.running_compute_processes() {
            Err(NvmlError::InsufficientSize(_)) if attempt < LIST_ATTEMPTS => attempt += 1,
            // "Nothing to tell" is an empty list, not a failure.
            Err(NvmlError::NotFound) => break Vec::new(),
            other => break other?,
        }
    };
    let bytes = |memory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    Ok(listed.into_iter().map(|p| Process { pid: p.pid, bytes: bytes(p.used_gpu_memory) }).collect())
}
