//! A wall clock that can be stepped while processes run: `LD_PRELOAD`ed, it stands before the C library's
//! `clock_gettime` and adds the seconds that the file named by `HOTBUNK_CLOCK_OFFSET` holds. Every other clock, and the wall
//! clock where there is no such file, is the kernel's own.
//!
//! The clock of a machine cannot be set for one process tree alone (a time namespace leaves the wall clock as it is), and
//! nobody sets that of the machine which runs the tests. So what is stepped here is what a process is told.
#![expect(unsafe_code, reason = "a C symbol, and the caller's pointer")]

use rustix::time::{ClockId, clock_gettime as kernels};
use std::ffi::{c_int, c_long};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The file that holds the offset, seconds.
const OFFSET_VARIABLE: &str = "HOTBUNK_CLOCK_OFFSET";

/// C's `struct timespec`.
#[derive(Debug)]
#[repr(C)]
pub struct Timespec {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanoseconds: c_long,
}

fn offset() -> i64 {
    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os(OFFSET_VARIABLE).map(PathBuf::from));
    let text = file.as_ref().and_then(|path| fs::read_to_string(path).ok());
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The clock of this number in `<time.h>`.
fn clock(number: c_int) -> Option<ClockId> {
    Some(match number {
        0 => ClockId::Realtime,
        1 => ClockId::Monotonic,
        2 => ClockId::ProcessCPUTime,
        3 => ClockId::ThreadCPUTime,
        4 => ClockId::MonotonicRaw,
        5 => ClockId::RealtimeCoarse,
        6 => ClockId::MonotonicCoarse,
        7 => ClockId::Boottime,
        _ => return None,
    })
}

/// `clock_gettime(2)`; −1 for clocks that no test asks for.
///
/// # Safety
/// `out` is null or points to memory for one `timespec`, as the C function demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(number: c_int, out: *mut Timespec) -> c_int {
    let Some(clock) = clock(number).filter(|_| !out.is_null()) else { return -1 };
    let stepped = matches!(clock, ClockId::Realtime | ClockId::RealtimeCoarse);
    let now = kernels(clock);
    let seconds = now.tv_sec.saturating_add(if stepped { offset() } else { 0 });
    // SAFETY: not null, and the caller's promise.
    unsafe { out.write(Timespec { seconds, nanoseconds: now.tv_nsec }) };
    0
}
