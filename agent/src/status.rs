//! The node as the control API shows it, from the switcher's newest state and the newest readings.

use crate::clock;
use crate::config::Config;
use crate::control::EventLog;
use crate::cycle::Cycles;
use crate::device::Health;
use crate::effects::Hands;
use crate::switcher::Handle;
use crate::translate::tier_out;
use hotbunk_api::status as wire;
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::ledger;
use hotbunk_core::state::{Condition, Drift, Node};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;

/// Who answers, and since when.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Wall clock at the agent's start, epoch seconds.
    pub started_at: f64,
    /// Host's name.
    pub node: String,
}

/// Everything.
pub fn status(
    identity: &Identity,
    config: &Config,
    switcher: &Handle,
    hands: &Hands,
    cycles: &Cycles,
    events: &EventLog,
) -> wire::Status {
    let seq = events.last_seq();
    let node = switcher.node();
    let (operation, queue) = switcher.board().current();
    let memory = hands.host.memory();
    wire::Status {
        seq,
        node: wire::NodeStatus {
            name: identity.node.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_at: identity.started_at,
            uptime_s: clock::epoch() - identity.started_at,
            config_path: Some(config.file.display().to_string()),
            simulated: config
                .simulated
                .as_ref()
                .map(|s| wire::Simulated { profile: s.profile.clone(), speed: s.speed }),
            host: wire::HostStatus {
                total_bytes: memory.as_ref().map(|m| m.total),
                available_bytes: memory.as_ref().map(|m| m.available),
                reserved_bytes: Some(host_reserved(&node)),
            },
        },
        devices: (0..node.devices.len()).map(|at| device(&node, hands, at)).collect(),
        engines: node.ids().map(|id| engine(&node, hands, switcher, id)).collect(),
        operation,
        queue,
        cycle: cycles.current(),
    }
}

/// Host bytes that engines have pinned, or will.
fn host_reserved(node: &Node) -> u64 {
    node.engines.iter().filter(|e| e.pinned).filter_map(ledger::host_need).sum()
}

fn device(node: &Node, hands: &Hands, at: usize) -> wire::DeviceStatus {
    let id = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
    let device = node.device(id);
    let info = hands.sampler.info(id);
    let reading = hands.sampler.latest(id);
    let reserved: u64 = node.engines_on(id).map(|e| node.engine(e).reserved).sum();
    let held: u64 = node.engines_on(id).map(|e| node.engine(e).held).sum();
    let watched = device.spec.evidence.then_some(());
    wire::DeviceStatus {
        name: device.spec.name.clone(),
        uuid: info.as_ref().map(|i| i.uuid.clone()),
        product: info.as_ref().map(|i| i.model.clone()),
        total_bytes: device.spec.capacity,
        used_bytes: reading.as_ref().map(|r| r.used),
        reserve_bytes: device.spec.reserve,
        held_bytes: watched.map(|()| held),
        reserved_bytes: watched.map(|()| reserved),
        foreign_bytes: watched.map(|()| device.foreign),
        reading_age_s: reading.as_ref().map(|r| r.age(clock::now()).as_secs_f64()),
        health: match hands.sampler.health(id) {
            Health::Ok => wire::DeviceHealth::Ok,
            Health::Degraded { .. } => wire::DeviceHealth::Stale,
            Health::Lost { reason } => wire::DeviceHealth::Lost { reason },
            Health::NotWatched => wire::DeviceHealth::None,
        },
    }
}

fn engine(node: &Node, hands: &Hands, switcher: &Handle, id: EngineId) -> wire::EngineStatus {
    let e = node.engine(id);
    let slot = hands.slot(id);
    let facts = slot.facts();
    let caps = e.capabilities;
    let footprint = |tier: &Tier| {
        let measured = e.footprints[*tier as usize];
        wire::Footprint {
            tier: tier_out(*tier),
            device_bytes: ledger::bytes_at(e, *tier),
            host_bytes: measured.and_then(|f| f.host),
            measured: measured.is_some(),
        }
    };
    wire::EngineStatus {
        name: e.spec.name.clone(),
        model: slot.config.model.clone(),
        devices: e.spec.devices.iter().map(|d| node.device(*d).spec.name.clone()).collect(),
        address: Some(slot.config.base_url()),
        tier: (e.condition == Condition::Settled || e.tier == Tier::Stopped).then(|| tier_out(e.tier)),
        condition: condition(node, switcher, id),
        generation: e.generation,
        incarnation: slot
            .process()
            .map(|p| p.incarnation())
            .map(|i| wire::IncarnationStatus { pid: i.pid, start_ticks: i.start_ticks }),
        version: facts.version,
        capabilities: caps.map(|c| wire::Capabilities {
            level1: c.can_level1(),
            level2: c.can_level2(),
            park: c.can_park() && !e.cannot_park,
            freeze: c.can_freeze_into_level1(),
            abort: c.can_abort_in_sleep() || c.routes.abort_requests,
            retry: c.is_retry_safe(),
        }),
        footprints: [Tier::Awake, Tier::Parked, Tier::Level1, Tier::Level2]
            .iter()
            .filter(|tier| e.may_rest_in(**tier))
            .map(footprint)
            .collect(),
        in_flight: None,
        canary: if slot.canary().is_some() { wire::Canary::Recorded } else { wire::Canary::None },
        restarts: u32::try_from(e.crashes.count()).unwrap_or(u32::MAX),
        log_path: slot.log_path().map(|p| p.display().to_string()),
    }
}

fn condition(node: &Node, switcher: &Handle, id: EngineId) -> wire::Condition {
    let e = node.engine(id);
    let operation = node.operation_on(&e.spec.devices);
    match &e.condition {
        Condition::Moving if e.tier == Tier::Stopped => wire::Condition::Starting {
            for_s: operation.map(|op| clock::now().since(op.accepted).as_secs_f64()),
        },
        Condition::Moving => {
            let id = operation.and_then(|op| switcher.board().by_number(op.id)).map(|o| o.id);
            wire::Condition::Moving { operation: id.unwrap_or_else(|| "unknown".to_owned()) }
        }
        Condition::Settled if e.tier == Tier::Stopped => {
            let why = if e.life == 0 { wire::StoppedWhy::NotStarted } else { wire::StoppedWhy::Operator };
            wire::Condition::Stopped { why }
        }
        Condition::Settled => wire::Condition::Settled,
        Condition::NoRoom => wire::Condition::Stopped { why: wire::StoppedWhy::NoRoom },
        Condition::Backoff(at) => wire::Condition::Backoff {
            until_at: epoch_of(*at),
            failures: u32::try_from(e.crashes.count()).unwrap_or(u32::MAX),
            reason: "its process ended".to_owned(),
        },
        Condition::Failed(reason) => wire::Condition::Failed { reason: reason.clone() },
        Condition::Adrift(Drift::Stalled) => {
            wire::Condition::Stalled { reason: "requests run and no token comes".to_owned() }
        }
        Condition::Adrift(Drift::FoundAsleep) => {
            wire::Condition::Drifted { reason: "it should be awake and says that it sleeps".to_owned() }
        }
        Condition::Adrift(Drift::FoundAwake) => {
            wire::Condition::Drifted { reason: "it should be asleep and says that it is awake".to_owned() }
        }
        Condition::Adrift(Drift::Unresolved) => {
            wire::Condition::Drifted { reason: "no operation could verify where it is".to_owned() }
        }
    }
}

fn epoch_of(at: Moment) -> f64 {
    clock::epoch() + at.since(clock::now()).as_secs_f64()
}
