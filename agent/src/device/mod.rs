//! Measuring device memory: the evidence that a sleep freed what it should and that a wake brought it back.
//!
//! ```text
//!   switcher, metrics,        commands: read now, subscribe          jobs: read, reopen
//!   journal, report    ───────────────────────────────►  sampler  ────────────────────►  driver thread
//!                      ◄───────────────────────────────  (a task)  ◄────────────────────  (NVML | ledger)
//!                         watch: reading, health                     replies
//! ```
//!
//! * **The driver thread** (`driver`) owns the NVML library and the opened devices. A call into a sick driver can
//!   block for seconds, so it has a thread of its own and nobody waits for that thread without a limit.
//! * **The sampler** (`sampler`, `schedule`) is the one task that asks it: 10 times a second at rest, 100 times while
//!   anybody holds a [`FastGuard`], and at once when a fresh reading is wanted. It publishes the newest [`Reading`] and
//!   the [`Health`] of every device, opens again what was lost (with back-off), and writes the samples' rows.
//! * **Readers** hold a [`Sampler`]: they look at the newest reading, ask for a fresh one, or wait for a condition.
//!   Waiting is for readings *taken after the call began*: a number from before the operation proves nothing about it.
//!
//! What is not known is `None` and says why: bytes of an engine whose process ids cannot be mapped (`owners`), a
//! reading that was missed, a device without health. A handoff that needs evidence asks [`Sampler::evidence`] first;
//! only `device = "none"` in the configuration ([`Source::None`]) lets it rely on probes alone.

mod driver;
mod error;
mod nvml;
mod owners;
mod reading;
mod rows;
mod sampler;
mod schedule;
mod simulated;
mod source;
mod watched;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use owners::Owners;
pub use reading::{
    AwaitOutcome, Cause, DeviceInfo, Evidence, Health, Process, Reading, Threshold, Unavailable,
};
pub use sampler::{FastGuard, Sampler, Timing};
pub use source::{DeviceSpec, LedgerLook, Look, Selector, Source};
