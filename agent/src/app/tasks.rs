//! Tasks that run beside the switcher: samples to the journal, `/metrics`, the control API.

use crate::backend::Backend;
use crate::control::{self, Allow, Socket};
use crate::effects::{Hands, Slots, chain};
use crate::metrics::{self, Metrics};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Batches of samples that may wait for the journal.
const BATCHES: usize = 64;

/// Whose memory the host sampler reads: pids by engine.
pub(super) fn process_trees(slots: &Slots) -> HashMap<String, Vec<u32>> {
    slots.all().iter().filter_map(|slot| Some((slot.config.name.clone(), slot.process()?.pids()))).collect()
}

/// Writes samples down.
pub(super) fn samples(hands: &Arc<Hands>) -> Vec<JoinHandle<()>> {
    let mut device_rows = hands.sampler.subscribe(BATCHES);
    let mut host_rows = hands.host.subscribe(BATCHES);
    let (device_recorder, host_recorder) = (hands.recorder.clone(), hands.recorder.clone());
    vec![
        tokio::spawn(async move {
            while let Some(rows) = device_rows.recv().await {
                device_recorder.samples(rows);
            }
        }),
        tokio::spawn(async move {
            while let Some(rows) = host_rows.recv().await {
                host_recorder.host_samples(rows);
            }
        }),
    ]
}

async fn until(mut stop: watch::Receiver<bool>) {
    // The sender lives as long as the agent.
    let _ = stop.wait_for(|stop| *stop).await;
}

pub(super) async fn serve_metrics(listener: TcpListener, metrics: Metrics, stop: watch::Receiver<bool>) {
    if let Err(error) = metrics::serve(listener, metrics, until(stop)).await {
        tracing::error!(error = chain(&error), "/metrics");
    }
}

/// The group that may operate the node beside root and the agent's own user: the agent's own group, where it has one
/// of its own (the service unit gives it `hotbunk`).
fn operators() -> Option<u32> {
    Some(rustix::process::getegid()).filter(|gid| !gid.is_root()).map(|gid| gid.as_raw())
}

pub(super) async fn serve_control(socket: Socket, backend: Backend, stop: watch::Receiver<bool>) {
    if let Err(error) = control::serve(socket, backend, Allow::own(operators()), until(stop)).await {
        tracing::error!(error = chain(&error), "control API");
    }
}
