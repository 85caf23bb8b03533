//! The gate under loom: the file itself, compiled on loom's atomics and mutex, under every interleaving.

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

#[expect(dead_code, reason = "what no case here needs")]
#[path = "../gate.rs"]
mod gate;
