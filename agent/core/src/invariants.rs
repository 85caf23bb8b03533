//! What holds in every reachable state: one check, used by the model checker, the property tests, the simulation, and
//! after every step in debug builds.

use crate::event::{By, Request};
use crate::ids::{DeviceId, EngineId, OperationId};
use crate::ledger;
use crate::program::Step;
use crate::state::{Condition, Node, Operation, Stage};
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
    /// I1: admission is open to an engine that a step works on. (Who is merely asked whether it is awake serves on.)
    #[error("I1: engine {} takes requests while operation {} works on it", engine.0, operation.0)]
    OpenInHand {
        /// Which.
        engine: EngineId,
        /// What works on it.
        operation: OperationId,
    },
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
    /// A switch that nobody wants any more goes on although it has not begun to move memory.
    #[error("operation {} switches to engine {} for requests, and there are none", operation.0, engine.0)]
    Unwanted {
        /// Operation.
        operation: OperationId,
        /// To which engine.
        engine: EngineId,
    },
    /// Requests, or an idle ladder, put a pinned engine to sleep.
    #[error("operation {} puts engine {} to sleep, which is pinned, and no operator asked", operation.0, engine.0)]
    Unpinned {
        /// Operation.
        operation: OperationId,
        /// The pinned engine.
        engine: EngineId,
    },
    /// The node is paused and something switches, falls or starts of the agent's own accord.
    #[error("operation {} works although the node is paused", .0.0)]
    Paused(OperationId),
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
    node.operations.iter().try_for_each(|op| own_accord(node, op))?;
    for op in &node.operations {
        let step =
            op.current.as_ref().map(|current| &current.step).filter(|step| !matches!(step, Step::Ask(_)));
        let in_hand = step.and_then(Step::engine).filter(|id| node.engine(*id).admission);
        if let Some(engine) = in_hand {
            return Err(Broken::OpenInHand { engine, operation: op.id });
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

/// What the agent does of its own accord, for requests that wait or for want of them.
fn own_accord(node: &Node, op: &Operation) -> Result<(), Broken> {
    let operation = op.id;
    let ladder = op.by == By::Agent && matches!(op.request, Request::Sleep { .. });
    let demanded = op.by == By::Gateway && matches!(op.request, Request::Switch { .. });
    let own = ladder || demanded;
    let starts = op.by == By::Agent && matches!(op.request, Request::Start { .. });
    if node.is_paused() && (own || starts) {
        return Err(Broken::Paused(operation));
    }
    let pinned = |id: &&EngineId| node.engine(**id).spec.turn.pinned;
    if let Some(engine) = op.outgoing.iter().find(pinned).filter(|_| own) {
        return Err(Broken::Unpinned { operation, engine: *engine });
    }
    let to = op.incoming.filter(|id| demanded && node.engine(*id).demand.held == 0);
    match to {
        Some(engine) if op.stage == Stage::Forward && !op.moved => {
            Err(Broken::Unwanted { operation, engine })
        }
        _ => Ok(()),
    }
}
