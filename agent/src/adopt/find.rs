//! Evidence: is this process the one on record, does it answer on its port, asleep or awake, with how many bytes?
//!
//! All engines are asked at once and none is waited for long. One that is busy with a call of the former agent answers
//! when it has ended; until then it is *silent*, which is an answer too.

use crate::device::Sampler;
use crate::effects::EngineSlot;
use crate::engine::{Client, Detected, Identity};
use crate::process::{EngineProcess, Ownership, Predecessor, ProcessEvent};
use hotbunk_core::adopt::{Found, Process};
use hotbunk_core::ids::DeviceId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long an engine may take to answer.
const ANSWER: Duration = Duration::from_millis(600);
/// How long a shim may take to say how its engine ended.
const EXIT: Duration = Duration::from_millis(300);
/// How long a device may take to be read.
const READING: Duration = Duration::from_millis(600);

/// Everything but its bytes. Whatever is found, the slot holds the process: it is ours, by its record.
pub(super) async fn evidence(
    slot: Arc<EngineSlot>,
    process: EngineProcess,
    predecessor: Predecessor,
    client: Client,
) -> Found {
    let taken_over = process.is_taken_over();
    let nothing = |process| Found { taken_over, ..Found::only(process) };
    if !predecessor.leader_runs() {
        return nothing(Process::Ended(how_it_ended(&process).await));
    }
    match process.owns_port(slot.config.port) {
        Ownership::Ours | Ownership::Unknown { .. } => {}
        // Still starting.
        Ownership::NobodyListens => return nothing(Process::Lives),
        Ownership::Foreign { pid } => {
            let holder = pid.map_or("a process".to_owned(), |pid| format!("process {pid}"));
            let why = format!("{holder} that is not ours answers on its port {}", slot.config.port);
            return nothing(Process::Strange(why));
        }
    }
    let (identity, sleeping, can) = tokio::join!(
        client.identify(&slot.config.model, ANSWER),
        client.is_sleeping(ANSWER),
        detected(&client, slot.config.workers)
    );
    if let Identity::Foreign { models } = identity {
        let why = format!("it serves {}, not `{}`", models.join(", "), slot.config.model);
        return nothing(Process::Strange(why));
    }
    can.into_iter().for_each(|can| slot.detected(can));
    let capabilities = can.map(|can| can.capabilities);
    Found { sleeping, capabilities, ..nothing(Process::Lives) }
}

async fn detected(client: &Client, workers: u16) -> Option<Detected> {
    let asked = client.detect(Some(workers), ANSWER);
    timeout(ANSWER, asked).await.ok()?.ok()
}

async fn how_it_ended(process: &EngineProcess) -> String {
    let mut events = process.events();
    let told = async {
        while let Some(event) = events.recv().await {
            if let ProcessEvent::Exited { reason, .. } = event {
                return Some(reason);
            }
        }
        None
    };
    timeout(EXIT, told).await.ok().flatten().unwrap_or_else(|| "how, nobody has told".to_owned())
}

/// Device-wide used bytes, where they can be read; and of each engine the bytes of its own processes (the largest over
/// its devices), where the driver tells them apart.
pub(super) async fn bytes(
    sampler: &Sampler,
    slots: &[Arc<EngineSlot>],
    devices: usize,
) -> (Vec<(DeviceId, u64)>, Vec<Option<u64>>) {
    let owners = slots.iter().flat_map(|slot| {
        let pids = slot.process().map(|p| p.pids()).unwrap_or_default();
        pids.into_iter().map(|pid| (pid, slot.config.name.clone()))
    });
    sampler.set_owners(owners.collect());
    let (mut used, mut own) = (Vec::new(), vec![None; slots.len()]);
    for at in 0..devices {
        let device = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
        let Ok(Ok(reading)) = timeout(READING, sampler.read_now(device)).await else { continue };
        used.push((device, reading.used));
        for (slot, own) in slots.iter().zip(&mut own) {
            if slot.config.devices.contains(&at) && reading.has_own_processes() {
                *own = (*own).max(sampler.engine_bytes(&reading, &slot.config.name));
            }
        }
    }
    (used, own)
}
