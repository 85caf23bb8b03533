//! What holds in every reachable state: one check, used by the model checker, the property tests, the simulation, and
//! after every step in debug builds.

use crate::ids::{DeviceId, EngineId};
use crate::ledger;
use crate::state::{Condition, Node};
use crate::tier::Tier;
use thiserror::Error;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Broken {
    /// I2: something is reserved although it does not fit.
    #[error("I2: {charged} bytes are held and reserved on device {}, {limit} are allowed", device.0)]
    Overcommitted {
        /// Where.
        device: DeviceId,
        /// Held and reserved.
        charged: u64,
        /// Allowed.
        limit: u64,
    },
    /// One memory-moving operation per device.
    #[error("two operations work on device {}", .0.0)]
    TwoOperations(DeviceId),
    /// I1: admission is open to an engine that is not verified awake.
    #[error("I1: engine {} takes requests and is not verified awake", .0.0)]
    OpenUnverified(EngineId),
    /// Only an operation may hold an engine in motion or a reservation.
    #[error("engine {} is in motion and no operation is at work on it", .0.0)]
    Stray(EngineId),
    /// An engine at rest holds a reservation.
    #[error("engine {} is at rest and keeps {reserved} bytes reserved", engine.0)]
    StaleReservation {
        /// Which.
        engine: EngineId,
        /// Bytes.
        reserved: u64,
    },
    /// `stopped` and a process, or a tier and none.
    #[error("engine {} is at {tier} and its process is {process}", engine.0)]
    Process {
        /// Which.
        engine: EngineId,
        /// Its tier.
        tier: Tier,
        /// Whether it has one.
        process: bool,
    },
}

/// Checks them all.
pub fn check(node: &Node) -> Result<(), Broken> {
    for (at, _) in node.devices.iter().enumerate() {
        let device = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
        if node.operations.iter().filter(|op| op.devices.contains(&device)).count() > 1 {
            return Err(Broken::TwoOperations(device));
        }
        let reserves = node.engines_on(device).any(|id| node.engine(id).reserved > 0);
        if let (Some(limit), true) = (ledger::limit(node, device), reserves) {
            let charged = ledger::charged(node, device);
            if charged > limit {
                return Err(Broken::Overcommitted { device, charged, limit });
            }
        }
    }
    for engine in node.ids() {
        let e = node.engine(engine);
        let at_work = node.operation_on(&e.spec.devices).is_some();
        if e.admission
            && !(e.tier == Tier::Awake && e.condition == Condition::Settled && e.process && !e.dead)
        {
            return Err(Broken::OpenUnverified(engine));
        }
        if e.condition == Condition::Moving && !at_work {
            return Err(Broken::Stray(engine));
        }
        if e.reserved > 0 && e.condition != Condition::Moving {
            return Err(Broken::StaleReservation { engine, reserved: e.reserved });
        }
        let settled_without = e.condition == Condition::Settled && e.tier.has_process() != e.process;
        if settled_without {
            return Err(Broken::Process { engine, tier: e.tier, process: e.process });
        }
    }
    Ok(())
}
