//! What the owner of the state is told of a device.

use super::Hands;
use crate::device::{Cause, Health};
use hotbunk_core::event::Event;
use hotbunk_core::ids::DeviceId;

impl Hands {
    /// A device as it is now, as an event. `None` where there is nothing to tell: it is not watched, it is being opened,
    /// or single reads fail, which becomes a loss if it lasts.
    ///
    /// A driver that does not answer is a loss for as long as it does not: its last reading is from before, and an old
    /// number proves nothing.
    pub fn device_event(&self, device: DeviceId) -> Option<Event> {
        match self.sampler.health(device) {
            Health::Lost { reason } => Some(Event::DeviceLost { device, reason }),
            health @ Health::Degraded { cause: Cause::Slow, .. } => {
                Some(Event::DeviceLost { device, reason: health.to_string() })
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
