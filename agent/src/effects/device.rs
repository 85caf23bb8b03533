//! What the owner of the state is told of a device.

use super::Hands;
use crate::clock;
use crate::device::{Cause, Health, Reading};
use crate::process::tree::ProcStat;
use hotbunk_core::event::Event;
use hotbunk_core::ids::DeviceId;
use std::collections::BTreeSet;
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

    /// Bytes of running processes that are no engine's; `None` where the driver does not tell. What it still ascribes to a
    /// process that has ended may be an engine's.
    pub(super) fn strangers(&self, reading: &Reading) -> Option<u64> {
        let slots = self.engines.all();
        let pids = |slot: &super::EngineSlot| slot.process().map(|p| p.pids()).unwrap_or_default();
        let ours: BTreeSet<u32> = slots.iter().flat_map(|slot| pids(slot)).collect();
        let runs = |pid: u32| ProcStat::read(pid).is_some_and(|stat| stat.is_running());
        strangers(reading, |pid| !ours.contains(&pid) && runs(pid))
    }
}

/// Bytes of the processes that are strangers; `None` where the driver does not tell.
fn strangers(reading: &Reading, is_stranger: impl Fn(u32) -> bool) -> Option<u64> {
    let processes = reading.processes.as_ref().filter(|_| reading.has_own_processes())?;
    processes.iter().filter(|process| is_stranger(process.pid)).map(|process| process.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Process;
    use hotbunk_core::time::Moment;

    #[test]
    fn strangers_are_counted_where_the_driver_tells() {
        let reading = |processes: Option<Vec<Process>>| Reading {
            at: Moment(5),
            used: 10,
            free: 0,
            total: 10,
            processes: processes.map(Into::into),
            processes_at: Some(Moment(5)),
        };
        let process = |pid, bytes| Process { pid, bytes };
        let list = vec![process(1, Some(3)), process(2, Some(4)), process(9, None)];
        assert_eq!(strangers(&reading(Some(list.clone())), |pid| pid == 2), Some(4));
        assert_eq!(strangers(&reading(Some(list)), |pid| pid != 1), None, "not all of them");
        assert_eq!(strangers(&reading(None), |_| true), None);
    }
}
