//! Draining: first the gateway's requests, then whatever else runs in the engine.
//!
//! The gateway's own count is the truth about its requests: the gate has been closed before this begins, so the count
//! only falls, and its 0 comes as an event. A request whose client has gone is in it until the engine has taken notice: it
//! closes its side of the connection when it has read the request and the hang-up behind it. Others may reach an engine directly (on loopback), and the gateway knows
//! nothing of those; so the engine's own count is asked as well, with what is left of the deadline.
//!
//! An engine that shows no count (`--disable-log-stats`) cannot be asked. Where the gateway serves and its count is 0,
//! that is enough on releases whose `/sleep` itself waits for what runs (from 0.25 on, CONTRACT 1.3): a stranger's
//! request then costs time and is not lost. On older ones such a request would crash a sleep, and nobody would have
//! seen it coming: there it stays impossible.

use super::chain;
use crate::engine::{self as vllm, Client, Drain};
use crate::gateway::Hub;
use hotbunk_core::capability::Capabilities;
use hotbunk_core::effect::StepResult;
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::DrainPolicy;
use std::time::Duration;
use tokio::time::Instant;

/// Least time for the engine's own answer, however little is left.
const LEAST: Duration = Duration::from_secs(1);

/// Longest wait for requests that are on their way to an engine, which only takes as long as it takes to read them.
const ARRIVAL: Duration = Duration::from_millis(250);
/// The engine is asked again after this.
const AGAIN: Duration = Duration::from_millis(5);

/// Before an engine is frozen: whatever has been let through has reached it. The gate is closed, but what passed just before
/// may still be in a socket's buffer, and would arrive at an engine that sleeps. Nobody tells of an arrival, so the engine's
/// own count is held against the leases; not for long, since requests that only prepare something are in no count, and an
/// answer that its client is slow to take keeps its lease. A request that nobody waits for any more is not frozen at all: it is
/// gone when the engine has taken notice of that.
pub(super) async fn arrival(hub: &Hub, engine: EngineId, client: &Client) {
    let arrived = async {
        loop {
            let leased = u64::from(hub.in_flight(engine));
            if leased == 0 {
                return;
            }
            if hub.hung_up(engine) > 0 {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            let Ok(progress) = client.progress(ARRIVAL).await else { return };
            // Without a count there is nothing to wait for.
            let Some(running) = progress.running else { return };
            if running + progress.waiting.unwrap_or(0) >= leased {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    drop(tokio::time::timeout(ARRIVAL, arrived).await);
}

pub(super) async fn drain(
    hub: &Hub,
    engine: EngineId,
    client: &Client,
    policy: DrainPolicy,
    deadline: Duration,
    capabilities: Option<Capabilities>,
) -> StepResult {
    let Some(capabilities) = capabilities else {
        return StepResult::DrainImpossible("what it can do is not known".to_owned());
    };
    let began = Instant::now();
    let asked = match policy {
        // Frozen requests keep their leases.
        DrainPolicy::Freeze => vllm::DrainPolicy::Wait,
        DrainPolicy::Wait => vllm::DrainPolicy::Wait,
        DrainPolicy::Abort => {
            hub.abort(engine);
            vllm::DrainPolicy::Abort
        }
    };
    if policy != DrainPolicy::Freeze && tokio::time::timeout(deadline, hub.drained(engine)).await.is_err() {
        return StepResult::DrainTimedOut { running: hub.in_flight(engine).into(), waiting: 0 };
    }
    let left = deadline.saturating_sub(began.elapsed()).max(LEAST);
    match client.drain(capabilities, asked, left).await {
        Drain::Drained | Drain::NotNeeded => StepResult::Drained,
        Drain::TimedOut { running, waiting } => {
            StepResult::DrainTimedOut { running: running.unwrap_or(0), waiting: waiting.unwrap_or(0) }
        }
        Drain::Blind { .. } if hub.listens() && capabilities.can_abort_in_sleep() => StepResult::Drained,
        Drain::Impossible { reason } | Drain::Blind { reason } => StepResult::DrainImpossible(reason),
        Drain::Failed(vllm::Error::Gone { message, .. }) => StepResult::Gone(message),
        Drain::Failed(error) => StepResult::DrainImpossible(chain(&error)),
    }
}
