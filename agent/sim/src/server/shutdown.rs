//! How the API server ends (CONTRACT 5 [run]).
//!
//! ```text
//! SIGTERM            engine core: SIGTERM, at once SIGKILL; streams get an error event; gone after 3.7 s, exit code 0
//! engine core dead   /health says so, requests fail; gone after 2.8 s, exit code 0 (or stays, told to by environment)
//! ```

use super::link::CoreState;
use super::state::{Shared, lock};
use crate::faults::FaultKind;
use crate::process::children_of;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

const AFTER_TERM_S: f64 = 3.7;
const AFTER_DEATH_S: f64 = 2.8;

/// SIGTERM or SIGINT, unless the fault `ignore_sigterm` is armed.
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for one that counts.
    pub(crate) async fn wait(&mut self, shared: &Shared) {
        loop {
            self.next().await;
            if !lock(&shared.faults).is_armed(FaultKind::IgnoreSigterm) {
                return;
            }
        }
    }
}

/// Serves until something ends it; returns when the process should exit.
pub(crate) async fn until_the_end(
    shared: &Shared,
    core: &Mutex<Child>,
    signals: &mut Signals,
    mut state: watch::Receiver<CoreState>,
) {
    let keep_alive = shared.settings.keep_alive;
    let dies = async {
        // An error means that the reader thread has gone, and with it the core.
        drop(state.wait_for(|s| matches!(s, CoreState::Dead | CoreState::Failed(_))).await);
        if keep_alive {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = signals.wait(shared) => {
            super::log("INFO api_server: Shutting down");
            shared.is_shutting_down.store(true, Ordering::Relaxed);
            end_core(shared, core);
            tokio::time::sleep(shared.wall(AFTER_TERM_S)).await;
        }
        () = dies => {
            super::log("ERROR async_llm: AsyncLLM output_handler failed: EngineDeadError");
            tokio::time::sleep(shared.wall(AFTER_DEATH_S)).await;
        }
    }
}

/// SIGTERM, then almost at once SIGKILL; with the fault `orphan_worker` neither.
pub(crate) fn end_core(shared: &Shared, core: &Mutex<Child>) {
    if lock(&shared.faults).is_armed(FaultKind::OrphanWorker) {
        return;
    }
    let mut core = lock(core);
    // Its descendants with it, as vLLM does.
    let workers = children_of(core.id());
    if let Some(pid) = i32::try_from(core.id()).ok().and_then(Pid::from_raw) {
        // It may have ended already.
        let _ = kill_process(pid, Signal::TERM);
    }
    drop(core.kill());
    for worker in workers.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
        let _ = kill_process(worker, Signal::KILL);
    }
    drop(core.wait());
}
