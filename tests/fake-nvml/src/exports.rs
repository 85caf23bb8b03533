//! NVML's C symbols, as far as the agent's wrapper loads them.
//!
//! Every export does the same: find the scenario, answer a fault that it asks for, else write the answer where the
//! caller wants it. The caller's pointers are written only where NVML would write them too. No export calls another,
//! so that each can be taken away alone.
#![expect(
    unsafe_code,
    reason = "C symbols and the caller's pointers: what the wrapper under test expects of NVML"
)]

use crate::locate::scenario_of;
use crate::scenario::{Code, Device, Process, Scenario};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often the library was begun and not yet shut down.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// One bit a device that was seen lost since the library was begun.
static LOST: AtomicU64 = AtomicU64::new(0);

const SUCCESS: u32 = 0;
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// `nvmlMemory_t`.
#[repr(C)]
struct MemoryV1 {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which the third version of the call uses too.
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

/// Turns an answer into a return code.
fn answer(call: impl FnOnce() -> Result<(), Code>) -> u32 {
    match call() {
        Ok(()) => SUCCESS,
        Err(code) => code.number(),
    }
}

/// The scenario, where the library is begun.
fn scenario() -> Result<Scenario, Code> {
    if BEGUN.load(Ordering::SeqCst) == 0 {
        return Err(Code::Uninitialized);
    }
    read_scenario().ok_or(Code::Unknown)
}

fn read_scenario() -> Option<Scenario> {
    let here = read_scenario as fn() -> Option<Scenario>;
    Scenario::load(&scenario_of(here as usize)?).ok()
}

/// A handle: the card's index plus one, and above that the instance's index plus one.
#[derive(Clone, Copy)]
struct Handle {
    card: usize,
    instance: Option<usize>,
}

const INSTANCE_SHIFT: u32 = 16;

impl Handle {
    fn read(handle: *mut c_void) -> Result<Self, Code> {
        let bits = handle as usize;
        let card = (bits & ((1 << INSTANCE_SHIFT) - 1)).checked_sub(1).ok_or(Code::InvalidArgument)?;
        Ok(Handle { card, instance: (bits >> INSTANCE_SHIFT).checked_sub(1) })
    }

    fn pointer(self) -> *mut c_void {
        let above = self.instance.map_or(0, |instance| (instance + 1) << INSTANCE_SHIFT);
        std::ptr::without_provenance_mut((self.card + 1) | above)
    }

    fn find(self, scenario: &Scenario) -> Option<&Device> {
        let card = scenario.devices.get(self.card)?;
        match self.instance {
            None => Some(card),
            Some(instance) => card.instances.get(instance),
        }
    }
}

/// A device by its handle, unless its card is lost.
fn device(handle: *mut c_void) -> Result<Device, Code> {
    let handle = Handle::read(handle)?;
    let scenario = scenario()?;
    let card = scenario.devices.get(handle.card).ok_or(Code::GpuLost)?;
    check_lost(handle.card, card)?;
    handle.find(&scenario).cloned().ok_or(Code::GpuLost)
}

fn check_lost(index: usize, device: &Device) -> Result<(), Code> {
    let bit = 1_u64 << (index % 64);
    if device.gpu_lost {
        LOST.fetch_or(bit, Ordering::SeqCst);
    }
    if LOST.load(Ordering::SeqCst) & bit != 0 { Err(Code::GpuLost) } else { Ok(()) }
}

/// Writes a C string with its end into a buffer of `length` bytes.
fn write_text(text: &str, buffer: *mut c_char, length: c_uint) -> Result<(), Code> {
    if buffer.is_null() {
        return Err(Code::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Code::InsufficientSize);
    }
    for (i, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: `i` is at most `text.len()`, below the length that the caller vouches for.
        unsafe { buffer.add(i).write(byte as c_char) };
    }
    Ok(())
}

/// Writes one value.
fn write<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, and the caller vouches for room and alignment of a `T`.
    unsafe { to.write(value) };
    Ok(())
}

fn begin() -> u32 {
    answer(|| {
        let scenario = read_scenario().ok_or(Code::DriverNotLoaded)?;
        if let Some(code) = scenario.init_fails {
            return Err(code);
        }
        if BEGUN.fetch_add(1, Ordering::SeqCst) == 0 {
            LOST.store(0, Ordering::SeqCst);
        }
        Ok(())
    })
}

/// `nvmlInit_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    begin()
}

/// `nvmlInitWithFlags`.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    begin()
}

/// `nvmlShutdown`.
#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    let lower = |n: usize| n.checked_sub(1);
    match BEGUN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lower) {
        Ok(_) => SUCCESS,
        Err(_) => Code::Uninitialized.number(),
    }
}

/// `nvmlErrorString`.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        9 => c"Driver Not Loaded",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// `nvmlSystemGetDriverVersion`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> u32 {
    answer(|| write_text(&scenario()?.driver, version, length))
}

/// `nvmlSystemGetNVMLVersion`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> u32 {
    answer(|| write_text(&format!("12.{}", scenario()?.driver), version, length))
}

/// `nvmlSystemGetCudaDriverVersion`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> u32 {
    answer(|| write(version, scenario()?.cuda))
}

/// `nvmlSystemGetCudaDriverVersion_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> u32 {
    answer(|| write(version, scenario()?.cuda))
}

/// `nvmlDeviceGetCount_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> u32 {
    answer(|| write(count, c_uint::try_from(scenario()?.devices.len()).unwrap_or(c_uint::MAX)))
}

fn open(scenario: &Scenario, wanted: Handle, handle: *mut *mut c_void) -> Result<(), Code> {
    let card = scenario.devices.get(wanted.card).ok_or(Code::InvalidArgument)?;
    check_lost(wanted.card, card)?;
    match wanted.find(scenario).ok_or(Code::InvalidArgument)?.open_fails {
        Some(code) => Err(code),
        None => write(handle, wanted.pointer()),
    }
}

/// `nvmlDeviceGetHandleByIndex_v2`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut *mut c_void) -> u32 {
    answer(|| open(&scenario()?, Handle { card: index as usize, instance: None }, handle))
}

/// `nvmlDeviceGetHandleByUUID`.
///
/// # Safety
/// `uuid` is a C string or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, handle: *mut *mut c_void) -> u32 {
    answer(|| {
        if uuid.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: not null, and the caller vouches for a C string.
        let uuid = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| Code::InvalidArgument)?;
        let scenario = scenario()?;
        let all = scenario.devices.iter().enumerate().flat_map(|(card, device)| {
            let instances = (0..device.instances.len()).map(Some);
            std::iter::once(None).chain(instances).map(move |instance| Handle { card, instance })
        });
        let named = |h: &Handle| h.find(&scenario).is_some_and(|d| d.uuid == uuid);
        let found = all.into_iter().find(named).ok_or(Code::NotFound)?;
        open(&scenario, found, handle)
    })
}

/// `nvmlDeviceGetIndex`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(handle: *mut c_void, index: *mut c_uint) -> u32 {
    answer(|| {
        device(handle)?;
        let handle = Handle::read(handle)?;
        write(index, c_uint::try_from(handle.instance.unwrap_or(handle.card)).unwrap_or(c_uint::MAX))
    })
}

/// `nvmlDeviceGetName`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(handle: *mut c_void, name: *mut c_char, length: c_uint) -> u32 {
    answer(|| write_text(&device(handle)?.name, name, length))
}

/// `nvmlDeviceGetUUID`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(handle: *mut c_void, uuid: *mut c_char, length: c_uint) -> u32 {
    answer(|| write_text(&device(handle)?.uuid, uuid, length))
}

/// `nvmlDeviceGetMigMode`: cards without the ability answer `NotSupported`, instances refuse the question.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(handle: *mut c_void, current: *mut c_uint, pending: *mut c_uint) -> u32 {
    answer(|| {
        let device = device(handle)?;
        if Handle::read(handle)?.instance.is_some() {
            return Err(Code::InvalidArgument);
        }
        if device.instances.is_empty() {
            return Err(Code::NotSupported);
        }
        write(current, 1)?;
        write(pending, 1)
    })
}

/// `nvmlDeviceGetMaxMigDeviceCount`: how many there may be, more than there are.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(handle: *mut c_void, count: *mut c_uint) -> u32 {
    answer(|| {
        let device = device(handle)?;
        write(count, if device.instances.is_empty() { 0 } else { 7 })
    })
}

/// `nvmlDeviceGetMigDeviceHandleByIndex`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: *mut c_void,
    index: c_uint,
    instance: *mut *mut c_void,
) -> u32 {
    answer(|| {
        let device = device(handle)?;
        let card = Handle::read(handle)?.card;
        if index as usize >= device.instances.len() {
            return Err(Code::NotFound);
        }
        write(instance, Handle { card, instance: Some(index as usize) }.pointer())
    })
}

/// A device's memory after its faults: `(device, used)`.
fn memory(handle: *mut c_void) -> Result<(Device, u64), Code> {
    let began = Instant::now();
    let device = loop {
        let device = device(handle)?;
        if began.elapsed() >= Duration::from_millis(device.slow_ms) {
            break device;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    match device.memory_fails {
        Some(code) => Err(code),
        None => {
            let (used, _) = device.usage().map_err(|_| Code::Unknown)?;
            Ok((device, used))
        }
    }
}

/// `nvmlDeviceGetMemoryInfo`: its `used` has the reserved memory in it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(handle: *mut c_void, info: *mut c_void) -> u32 {
    answer(|| {
        let (device, used) = memory(handle)?;
        let used = used.saturating_add(device.reserved);
        let free = device.total.saturating_sub(used);
        write(info.cast::<MemoryV1>(), MemoryV1 { total: device.total, free, used })
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`: its `used` has not; the version in the struct is checked.
///
/// # Safety
/// `info` is null or points to an `nvmlMemory_v2_t` whose version is set.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: *mut c_void, info: *mut c_void) -> u32 {
    answer(|| {
        let info = info.cast::<MemoryV2>();
        if info.is_null() {
            return Err(Code::InvalidArgument);
        }
        let version = c_uint::try_from(size_of::<MemoryV2>()).unwrap_or(0) | (2 << 24);
        // SAFETY: not null, and the caller vouches for a struct with its version set.
        if unsafe { (*info).version } != version {
            return Err(Code::ArgumentVersionMismatch);
        }
        let (device, used) = memory(handle)?;
        let Device { total, reserved, .. } = device;
        let free = total.saturating_sub(reserved).saturating_sub(used);
        write(info, MemoryV2 { version, total, reserved, free, used })
    })
}

/// `nvmlDeviceGetComputeRunningProcesses_v2`.
///
/// # Safety
/// `count` points to the length of `infos`, an array of `nvmlProcessInfo_v2_t`, or to 0.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    handle: *mut c_void,
    count: *mut c_uint,
    infos: *mut c_void,
) -> u32 {
    // SAFETY: the caller vouches for what is said above.
    unsafe { processes(handle, count, infos.cast()) }
}

/// `nvmlDeviceGetComputeRunningProcesses_v3`: the same with the same structs.
///
/// # Safety
/// As for the second version.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    infos: *mut c_void,
) -> u32 {
    // SAFETY: the caller vouches for what is said above.
    unsafe { processes(handle, count, infos.cast()) }
}

unsafe fn processes(handle: *mut c_void, count: *mut c_uint, infos: *mut ProcessInfo) -> u32 {
    answer(|| {
        let device = device(handle)?;
        if let Some(code) = device.processes_fail {
            return Err(code);
        }
        if count.is_null() {
            return Err(Code::InvalidArgument);
        }
        // SAFETY: not null, and the caller vouches for a number there.
        let room = unsafe { *count } as usize;
        let (_, mut processes) = device.usage().map_err(|_| Code::Unknown)?;
        if !infos.is_null() {
            let newcomers =
                (0..device.grow_process_list).map(|i| Process { pid: 4_000_000 + i, bytes: Some(0) });
            processes.extend(newcomers);
        }
        write(count, c_uint::try_from(processes.len()).unwrap_or(c_uint::MAX))?;
        if processes.is_empty() {
            return Ok(());
        }
        if processes.len() > room || infos.is_null() {
            return Err(Code::InsufficientSize);
        }
        for (i, process) in processes.iter().enumerate() {
            let info = ProcessInfo {
                pid: process.pid,
                used_gpu_memory: process.bytes.unwrap_or(NOT_AVAILABLE),
                gpu_instance_id: c_uint::MAX,
                compute_instance_id: c_uint::MAX,
            };
            // SAFETY: `i` is below the room that the caller vouches for.
            unsafe { infos.add(i).write(info) };
        }
        Ok(())
    })
}
