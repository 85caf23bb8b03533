//! What the handlers share.

use super::link::Link;
use super::metrics::Metrics;
use crate::args::Settings;
use crate::faults::Faults;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The API server's state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) link: Link,
    pub(crate) metrics: Arc<Mutex<Metrics>>,
    pub(crate) faults: Mutex<Faults>,
    /// Engine times are divided by this.
    pub(crate) speed: Mutex<f64>,
    /// `/load`: counts only with `--enable-server-load-tracking` (CONTRACT 1.1 [run]).
    pub(crate) load: AtomicI64,
    /// SIGTERM was received: `/health` answers 200 to the end (fact 2 [run]).
    pub(crate) is_shutting_down: AtomicBool,
    /// Wall clock of the start, s.
    pub(crate) created: u64,
    pub(crate) nonce: u64,
}

pub(crate) type Shared = Arc<State>;

impl State {
    /// Simulated seconds as a wall duration.
    pub(crate) fn wall(&self, simulated_s: f64) -> Duration {
        Duration::from_nanos(crate::clock::scaled_ns(simulated_s, *lock(&self.speed)))
    }
}

/// Locks, whatever an earlier holder did.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request counted in `/load` for as long as its answer lasts.
#[derive(Debug)]
pub(crate) struct LoadGuard(Option<Shared>);

impl LoadGuard {
    pub(crate) fn enter(shared: &Shared) -> Self {
        if !shared.settings.args.enable_server_load_tracking {
            return LoadGuard(None);
        }
        shared.load.fetch_add(1, Ordering::Relaxed);
        LoadGuard(Some(Arc::clone(shared)))
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
