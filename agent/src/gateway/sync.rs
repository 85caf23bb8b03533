//! What the gate is built of. The tests compile the gate a second time on loom's counterparts of these.

pub(super) use std::sync::Mutex;
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
