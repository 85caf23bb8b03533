//! What the owner of the state is told of a device.

use super::Hands;
use crate::clock;
use crate::device::{Cause, Health};
use hotbunk_core::event::Event;
use hotbunk_core::ids::DeviceId;
use std::time::Duration;

/// How long a driver may be slow until it counts as lost, beyond the time after which it is called slow.
pub const SLOW_IS_LOST: Duration = Duration::from_secs(2);

impl Hands {
    /// A device as it is now, as an event. `None` where there is nothing to tell: it is not watched, it is being opened,
    /// or single reads fail, which becomes a loss if it lasts.
    ///
    /// A driver that has not answered for a while is a loss for as long as it does not: its last reading is from before,
    /// and an old number proves nothing. A hiccup is none.
    pub fn device_event(&self, device: DeviceId) -> Option<Event> {
        match self.sampler.health(device) {
            Health::Lost { reason } => Some(Event::DeviceLost { device, reason }),
            ref health @ Health::Degraded { cause: Cause::Slow, since } => {
                let lasts = clock::now().since(since) >= SLOW_IS_LOST;
                lasts.then(|| Event::DeviceLost { device, reason: health.to_string() })
            }
            Health::Ok | Health::Degraded { cause: Cause::NoProcesses { .. }, .. } => {
                let reading = self.sampler.latest(device)?;
                let reserved = self.sampler.info(device).map_or(0, |info| info.reserved_bytes);
                let capacity = reading.total.saturating_sub(reserved);
                Some(Event::DeviceRead { device, capacity, used: reading.used })
            }
            Health::Degraded { .. } | Health::NotWatched => None,
        }
    }
}
