//! The node as the control API shows it, from the switcher's newest state and the newest readings.

use crate::clock;
use crate::config::{Config, OnFailure};
use crate::control::EventLog;
use crate::cycle::Cycles;
use crate::device::{Cause, Health};
use crate::effects::{Hands, Seen, Stopped};
use crate::switcher::{Board, Handle};
use crate::translate::tier_out;
use hotbunk_api::gateway::{Maintenance, MaintenanceStage};
use hotbunk_api::status as wire;
use hotbunk_api::words;
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::ledger;
use hotbunk_core::state::{Condition, Drift, Engine, Node, Paused, Pausing};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;

/// Who answers, and since when.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Wall clock at the agent's start, epoch seconds.
    pub started_at: f64,
    /// The same on the clock that nobody sets.
    pub started: Moment,
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
            uptime_s: clock::now().since(identity.started).as_secs_f64(),
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
            journal_trouble: hands.recorder.trouble().map(|trouble| wire::JournalTrouble {
                reason: trouble.reason,
                since_at: trouble.since,
                lost_events: trouble.lost,
                refuses_switching: config.journal.on_failure == OnFailure::RefuseSwitching,
            }),
        },
        devices: device_ids(&node).map(|id| device(&node, hands, id)).collect(),
        engines: node
            .ids()
            .filter(|id| is_shown(node.engine(*id)))
            .map(|id| engine(&node, hands, switcher.board(), id))
            .collect(),
        operation,
        queue,
        gateway: Some(hands.hub.show(&node)),
        maintenance: node.paused.as_ref().map(|paused| maintenance(&node, paused)),
        cycle: cycles.current(),
    }
}

/// Whether anybody is told of an engine: what is not configured any more is, as long as a process of it is left.
pub fn is_shown(engine: &Engine) -> bool {
    !engine.retired || engine.process
}

/// Host bytes that engines have pinned, or will.
fn host_reserved(node: &Node) -> u64 {
    node.engines.iter().filter(|e| e.pinned).filter_map(ledger::host_need).sum()
}

fn device_ids(node: &Node) -> impl Iterator<Item = DeviceId> + use<> {
    (0..u16::try_from(node.devices.len()).unwrap_or(u16::MAX)).map(DeviceId)
}

fn maintenance(node: &Node, paused: &Paused) -> Maintenance {
    Maintenance {
        for_s: clock::now().since(paused.since).as_secs_f64(),
        stage: match paused.stage {
            Pausing::Begins => MaintenanceStage::Begins,
            Pausing::Lasts => MaintenanceStage::Lasts,
            Pausing::Ends => MaintenanceStage::Ends,
        },
        served: paused.served.iter().map(|id| node.engine(*id).spec.name.clone()).collect(),
    }
}

/// What a device's ledger says: a change of it is worth telling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    held: u64,
    reserved: u64,
    /// How much is foreign changes with each reading; whether anything is does not.
    has_foreign: bool,
}

/// The ledgers of all devices.
pub fn ledgers(node: &Node) -> Vec<Ledger> {
    let sum = |id, of: fn(&Engine) -> u64| node.engines_on(id).map(|e| of(node.engine(e))).sum();
    let ledger = |id| Ledger {
        held: sum(id, |e| e.held),
        reserved: sum(id, |e| e.reserved),
        has_foreign: node.device(id).foreign > 0,
    };
    device_ids(node).map(ledger).collect()
}

/// One device.
pub fn device(node: &Node, hands: &Hands, id: DeviceId) -> wire::DeviceStatus {
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
        health: health(hands.sampler.health(id)),
    }
}

fn health(health: Health) -> wire::DeviceHealth {
    match health {
        Health::Ok => wire::DeviceHealth::Ok,
        Health::Degraded { cause: Cause::NoProcesses { message }, .. } => {
            wire::DeviceHealth::ProcessesUnknown { reason: message }
        }
        Health::Degraded { cause: Cause::Opening | Cause::Slow | Cause::ReadsFail { .. }, .. } => {
            wire::DeviceHealth::Stale
        }
        Health::Lost { reason } => wire::DeviceHealth::Lost { reason },
        Health::NotWatched => wire::DeviceHealth::None,
    }
}

/// One engine.
pub fn engine(node: &Node, hands: &Hands, board: &Board, id: EngineId) -> wire::EngineStatus {
    let e = node.engine(id);
    let slot = hands.slot(id);
    let (facts, seen) = (slot.facts(), slot.seen());
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
        tier: tier(e.tier, &e.condition),
        condition: condition(node, board, &seen, id),
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
        in_flight: seen.in_flight,
        canary: canary(slot.canary().is_some(), &seen),
        // The first life is a start.
        restarts: u32::try_from(e.life.saturating_sub(1)).unwrap_or(u32::MAX),
        log_path: slot.log_path().map(|p| p.display().to_string()),
        settings: settings(e),
        retiring: e.retired,
    }
}

fn settings(e: &Engine) -> wire::Settings {
    match &e.revised {
        None => wire::Settings::InForce,
        Some(revised) if revised.process && e.process => wire::Settings::PendingRestart,
        Some(_) => wire::Settings::Pending,
    }
}

/// The last tier that was verified; `None` while it is known to be elsewhere, but not where.
fn tier(tier: Tier, condition: &Condition) -> Option<words::Tier> {
    (!matches!(condition, Condition::Adrift(_))).then(|| tier_out(tier))
}

fn canary(recorded: bool, seen: &Seen) -> wire::Canary {
    match seen.canary {
        _ if !recorded => wire::Canary::None,
        None => wire::Canary::Recorded,
        Some(compared) if compared.matched => wire::Canary::Matched { at: compared.at },
        Some(compared) => wire::Canary::Mismatched { at: compared.at },
    }
}

fn why_stopped(life: u64, seen: &Seen) -> wire::StoppedWhy {
    match seen.stopped {
        _ if life == 0 => wire::StoppedWhy::NotStarted,
        // An engine without a process that has had one has stopped before this could be asked.
        None | Some(Stopped::Operator) => wire::StoppedWhy::Operator,
        Some(Stopped::Handoff) => wire::StoppedWhy::Handoff,
        Some(Stopped::CannotSleep) => wire::StoppedWhy::CannotSleep,
        Some(Stopped::Idle) => wire::StoppedWhy::Idle,
        Some(Stopped::Maintenance) => wire::StoppedWhy::Maintenance,
        Some(Stopped::Shutdown) => wire::StoppedWhy::Shutdown,
    }
}

fn condition(node: &Node, board: &Board, seen: &Seen, id: EngineId) -> wire::Condition {
    let e = node.engine(id);
    let operation = node.operation_on(&e.spec.devices);
    match &e.condition {
        Condition::Moving if e.tier == Tier::Stopped => wire::Condition::Starting {
            for_s: operation.map(|op| clock::now().since(op.accepted).as_secs_f64()),
        },
        Condition::Moving => {
            let id = operation.and_then(|op| board.by_number(op.id)).map(|o| o.id);
            wire::Condition::Moving { operation: id.unwrap_or_else(|| "unknown".to_owned()) }
        }
        Condition::Settled if e.tier == Tier::Stopped => {
            wire::Condition::Stopped { why: why_stopped(e.life, seen) }
        }
        Condition::Settled => wire::Condition::Settled,
        Condition::NoRoom => wire::Condition::Stopped { why: wire::StoppedWhy::NoRoom },
        Condition::PortTaken => wire::Condition::Stopped { why: wire::StoppedWhy::PortTaken },
        Condition::Backoff(at) => wire::Condition::Backoff {
            until_at: epoch_of(*at),
            failures: u32::try_from(e.crashes.count()).unwrap_or(u32::MAX),
            reason: seen.trouble.clone().unwrap_or_else(|| "its process ended".to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effects::Compared;

    #[test]
    fn a_device_whose_processes_are_unknown_is_not_stale() {
        let degraded = |cause| health(Health::Degraded { cause, since: Moment(0) });
        let message = "not supported".to_owned();
        assert_eq!(
            degraded(Cause::NoProcesses { message: message.clone() }),
            wire::DeviceHealth::ProcessesUnknown { reason: message.clone() }
        );
        for cause in [Cause::Opening, Cause::Slow, Cause::ReadsFail { message }] {
            assert_eq!(degraded(cause), wire::DeviceHealth::Stale);
        }
        assert_eq!(health(Health::Ok), wire::DeviceHealth::Ok);
        assert_eq!(health(Health::NotWatched), wire::DeviceHealth::None);
    }

    #[test]
    fn a_tier_is_told_unless_the_engine_is_adrift() {
        let told = |condition| tier(Tier::Parked, &condition);
        assert_eq!(told(Condition::Settled), Some(words::Tier::Parked));
        assert_eq!(told(Condition::Moving), Some(words::Tier::Parked), "the last one verified");
        assert_eq!(told(Condition::Adrift(Drift::FoundAwake)), None);
        assert_eq!(tier(Tier::Stopped, &Condition::NoRoom), Some(words::Tier::Stopped));
    }

    #[test]
    fn a_canary_says_how_it_compared_last() {
        let seen = |matched| Seen { canary: Some(Compared { matched, at: 7.0 }), ..Seen::default() };
        assert_eq!(canary(true, &Seen::default()), wire::Canary::Recorded);
        assert_eq!(canary(true, &seen(true)), wire::Canary::Matched { at: 7.0 });
        assert_eq!(canary(true, &seen(false)), wire::Canary::Mismatched { at: 7.0 });
        assert_eq!(canary(false, &seen(true)), wire::Canary::None, "that one is gone with its process");
    }

    #[test]
    fn why_an_engine_has_no_process() {
        let seen = |stopped| Seen { stopped: Some(stopped), ..Seen::default() };
        assert_eq!(why_stopped(0, &seen(Stopped::Operator)), wire::StoppedWhy::NotStarted);
        let cases = [
            (Stopped::Operator, wire::StoppedWhy::Operator),
            (Stopped::Handoff, wire::StoppedWhy::Handoff),
            (Stopped::CannotSleep, wire::StoppedWhy::CannotSleep),
            (Stopped::Idle, wire::StoppedWhy::Idle),
            (Stopped::Maintenance, wire::StoppedWhy::Maintenance),
            (Stopped::Shutdown, wire::StoppedWhy::Shutdown),
        ];
        for (stopped, why) in cases {
            assert_eq!(why_stopped(1, &seen(stopped)), why);
        }
    }
}
