//! The two clocks: the monotonic one that every duration comes from, and the wall clock for people.

use hotbunk_core::time::Moment;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

static BEGAN: OnceLock<Moment> = OnceLock::new();

/// When this process began; the first call says so.
pub fn began() -> Moment {
    *BEGAN.get_or_init(now)
}

/// Now, on `CLOCK_MONOTONIC`: the same clock that engines log their operations by.
pub fn now() -> Moment {
    let t = clock_gettime(ClockId::Monotonic);
    Moment(u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0))
}

/// Now, as people tell the time.
pub fn wall() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Now, in seconds since the Unix epoch.
pub fn epoch() -> f64 {
    wall().as_duration().as_secs_f64()
}
