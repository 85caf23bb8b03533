//! SIGTERM and SIGINT of the engine core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// An orphaned engine core took 12.4 s to end on SIGTERM (CONTRACT 5 [run]).
const TERM_S: f64 = 12.4;

/// The signal thread's switch.
#[derive(Debug)]
pub(crate) struct Signals {
    is_orphan: Arc<AtomicBool>,
    grace_ns: Arc<AtomicU64>,
}

/// Starts the thread that ends the process some time after a signal, unless the fault `orphan_worker` is armed.
pub(crate) fn watch(speed: f64, is_orphan: bool) -> std::io::Result<Signals> {
    let switch = Signals { is_orphan: Arc::default(), grace_ns: Arc::default() };
    switch.set_speed(speed);
    switch.set_orphan(is_orphan);
    let (is_orphan, grace_ns) = (Arc::clone(&switch.is_orphan), Arc::clone(&switch.grace_ns));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut interrupt) = {
        let _guard = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if !is_orphan.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_nanos(grace_ns.load(Ordering::Relaxed))).await;
                    std::process::exit(0);
                }
            }
        });
    });
    Ok(switch)
}

impl Signals {
    pub(crate) fn set_speed(&self, speed: f64) {
        self.grace_ns.store(crate::clock::scaled_ns(TERM_S, speed), Ordering::Relaxed);
    }

    /// With the fault armed the core leaves the session and ignores signals.
    pub(crate) fn set_orphan(&self, is_orphan: bool) {
        if is_orphan && !self.is_orphan.load(Ordering::Relaxed) {
            // Fails only where the process leads a group already: then it has left before.
            let _ = rustix::process::setsid();
        }
        self.is_orphan.store(is_orphan, Ordering::Relaxed);
    }
}
