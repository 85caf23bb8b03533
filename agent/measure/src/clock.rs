//! The one clock that measurements come from.

use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds on `CLOCK_MONOTONIC`.
///
/// Not `std::time::Instant`, which cannot be compared across processes: engines log their own operations by this
/// clock, and a report subtracts the two.
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}
