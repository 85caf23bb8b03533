//! Devices: found at start, and followed.

use crate::clock;
use crate::config::{self, Config};
use crate::device::{self, Cause, Health, Sampler, Timing};
use crate::effects::{Hands, SLOW_IS_LOST};
use crate::status;
use crate::switcher::{Handle, Input};
use anyhow::bail;
use hotbunk_api::event::Happening;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long the first look at a device may take before the agent goes on without it.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// A device's number, by its place in the configuration.
pub(super) fn id(at: usize) -> hotbunk_core::ids::DeviceId {
    hotbunk_core::ids::DeviceId(u16::try_from(at).unwrap_or(u16::MAX))
}

/// Begins to read every configured device; what can be looked up at once is in the log, or refused.
pub(super) async fn open(config: &Config) -> anyhow::Result<Sampler> {
    let source = |d: &config::Device| match &d.source {
        config::Source::Nvml(config::Selector::Uuid(uuid)) => {
            device::Source::Nvml(device::Selector::Uuid(uuid.clone()))
        }
        config::Source::Nvml(config::Selector::Index(index)) => {
            device::Source::Nvml(device::Selector::Index(*index))
        }
        config::Source::Simulated { ledger } => device::Source::simulated(ledger.clone()),
        config::Source::None => device::Source::None,
    };
    let specs = config
        .devices
        .iter()
        .map(|d| device::DeviceSpec { name: d.name.clone(), source: source(d) })
        .collect();
    let timing =
        Timing { rest: config.node.sampling.device, fast: config.node.sampling.handoff, ..Timing::default() };
    let sampler = Sampler::spawn(specs, config.node.nvml_library.clone(), timing)?;
    for (name, outcome) in sampler.opened(FIRST_LOOK).await {
        match outcome {
            Ok(info) => tracing::info!(device = name, uuid = info.uuid, model = info.model, "device found"),
            Err(error) if error.is_configuration() => bail!("{}", error.sentence()),
            Err(error) => tracing::warn!(
                device = name,
                error = error.sentence(),
                "the device cannot be read: handoffs, which need to see memory released, are refused until it can be"
            ),
        }
    }
    Ok(sampler)
}

/// Tells of each device's health as it changes, and of its size as soon as it is known.
pub(super) fn follow(hands: &Arc<Hands>, switcher: &Handle) -> Vec<JoinHandle<()>> {
    let one = |at: usize| {
        let id = id(at);
        let mut health = hands.sampler.health_changes(id)?;
        let (hands, switcher) = (Arc::clone(hands), switcher.clone());
        Some(tokio::spawn(async move {
            loop {
                let device = status::device(&switcher.node(), &hands, id);
                if let Some(info) = hands.sampler.info(id) {
                    hands.recorder.metrics().device_total(&device.name, info.total_bytes);
                }
                hands
                    .recorder
                    .events()
                    .publish(clock::epoch(), Happening::Device { device: Box::new(device) });
                let is_slow = matches!(*health.borrow(), Health::Degraded { cause: Cause::Slow, .. });
                tokio::select! {
                    changed = health.changed() => if changed.is_err() {
                        return;
                    },
                    // What lasts becomes a loss without a further change.
                    () = tokio::time::sleep(SLOW_IS_LOST + Duration::from_millis(50)), if is_slow => {}
                }
                // At once, not at the next periodic look: what needs evidence must not begin without it.
                if let Some(event) = hands.device_event(id) {
                    drop(hands.inputs.send(Input::Event(event)));
                }
            }
        }))
    };
    (0..switcher.node().devices.len()).filter_map(one).collect()
}
