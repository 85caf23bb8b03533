//! The engine's clock: `CLOCK_MONOTONIC` in nanoseconds, and waiting for an absolute instant of it.

use rustix::time::{ClockId, clock_gettime};
use std::num::NonZeroU64;
use std::time::Duration;

/// Now, nanoseconds of `CLOCK_MONOTONIC`: the clock of the operation log.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// Blocks the thread until `deadline_ns`; returns at once if that has passed.
pub fn sleep_until(deadline_ns: u64) {
    loop {
        let now = now_ns();
        if now >= deadline_ns {
            return;
        }
        std::thread::sleep(Duration::from_nanos(deadline_ns - now));
    }
}

/// Asks the kernel to wake this thread within a few microseconds of its deadlines (the default is 50 µs late).
/// Without the permission it stays as it was.
pub(crate) fn sharpen_timers() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
}

/// Turns simulated seconds into wall nanoseconds at a speed.
pub fn scaled_ns(simulated_s: f64, speed: f64) -> u64 {
    let ns = simulated_s / speed * 1e9;
    if ns.is_finite() && ns > 0.0 { ns as u64 } else { 0 }
}

/// A series of absolute deadlines: each step begins where the step before should have ended, so that late wake-ups
/// do not add up.
#[derive(Debug)]
pub struct Timeline {
    at_ns: u64,
    speed: f64,
}

impl Timeline {
    /// Starts now.
    pub fn start(speed: f64) -> Self {
        Timeline { at_ns: now_ns(), speed }
    }

    /// Moves on by `simulated_s` and waits until then.
    pub fn advance(&mut self, simulated_s: f64) {
        self.at_ns += scaled_ns(simulated_s, self.speed);
        sleep_until(self.at_ns);
    }
}
