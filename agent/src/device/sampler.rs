//! What the rest of the agent holds: the newest readings, and ways to ask for better ones.

use super::driver;
use super::error::Error;
use super::owners::Owners;
use super::reading::{AwaitOutcome, DeviceInfo, Evidence, Health, Reading, Threshold, Unavailable};
use super::schedule::{Actor, Command};
use super::source::{DeviceSpec, Source};
use super::watched::{Channels, Device};
use crate::clock;
use crate::journal::record::Sample;
use hotbunk_core::ids::DeviceId;
use hotbunk_core::time::Moment;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How often devices are read, and how long what may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two samples at rest.
    pub rest: Duration,
    /// Between two samples while a [`FastGuard`] is held.
    pub fast: Duration,
    /// At least this long between two process lists, which are dearer than a device's bytes.
    pub processes: Duration,
    /// A driver that has not answered for this long is slow; reads that fail for this long are a loss.
    pub slow_after: Duration,
    /// Before the first attempt to open a lost device again; doubled with each failure.
    pub retry_first: Duration,
    /// The longest time between two attempts.
    pub retry_most: Duration,
    /// How long a row waits for others before it is handed to the journal.
    pub batch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            rest: Duration::from_millis(100),
            fast: Duration::from_millis(10),
            processes: Duration::from_millis(100),
            slow_after: Duration::from_secs(1),
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_secs(60),
            batch: Duration::from_secs(1),
        }
    }
}

/// Access to all devices of the node. Cheap to clone; sampling ends with the last clone.
#[derive(Debug, Clone)]
pub struct Sampler {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    devices: Vec<Channels>,
    commands: mpsc::UnboundedSender<Command>,
    fast: Arc<watch::Sender<usize>>,
    owners: Arc<RwLock<Owners>>,
    slow_after: Duration,
}

/// While it lives, devices are read at the fast rate.
#[derive(Debug)]
pub struct FastGuard {
    fast: Arc<watch::Sender<usize>>,
}

impl Drop for FastGuard {
    fn drop(&mut self) {
        self.fast.send_modify(|holders| *holders = holders.saturating_sub(1));
    }
}

impl Sampler {
    /// Starts sampling `devices`, whose places in the list are their [`DeviceId`]s. `library` is the path of NVIDIA's
    /// management library where it is not to be searched. To be called in a tokio runtime. What cannot be opened is
    /// no error here: see [`Sampler::opened`] and [`Sampler::health`].
    ///
    /// # Errors
    /// The driver's thread could not be started.
    pub fn spawn(devices: Vec<DeviceSpec>, library: Option<PathBuf>, timing: Timing) -> Result<Self, Error> {
        let is_watched = |spec: &DeviceSpec| !matches!(spec.source, Source::None);
        let (watched, channels): (Vec<Device>, Vec<Channels>) =
            devices.iter().map(|spec| Device::new(&spec.name, is_watched(spec))).unzip();
        let to_read: Vec<_> = devices.into_iter().enumerate().filter(|(_, spec)| is_watched(spec)).collect();
        let driver = if to_read.is_empty() { None } else { Some(driver::spawn(to_read, library)?) };
        let (commands, command_queue) = mpsc::unbounded_channel();
        let fast = Arc::new(watch::Sender::new(0));
        let owners = Arc::default();
        let actor = Actor::new(watched, driver, command_queue, fast.subscribe(), Arc::clone(&owners), timing);
        tokio::spawn(actor.run());
        let shared = Shared { devices: channels, commands, fast, owners, slow_after: timing.slow_after };
        Ok(Sampler { shared: Arc::new(shared) })
    }

    fn channels(&self, device: DeviceId) -> Option<&Channels> {
        self.shared.devices.get(usize::from(device.0))
    }

    /// How the first attempt to open each watched device ended, with its name; waits for it no longer than `limit`.
    /// Whether a failure is fatal says [`Error::is_configuration`]; any other degrades what depends on the device.
    pub async fn opened(&self, limit: Duration) -> Vec<(String, Result<DeviceInfo, Arc<Error>>)> {
        let end = tokio::time::Instant::now() + limit;
        let mut all = Vec::new();
        for channels in self.shared.devices.iter().filter(|c| *c.health.borrow() != Health::NotWatched) {
            let mut opened = channels.opened.clone();
            let outcome = match tokio::time::timeout_at(end, opened.wait_for(Option::is_some)).await {
                Ok(Ok(outcome)) => outcome.clone().unwrap_or_else(|| Err(Arc::new(Error::Ended))),
                Ok(Err(_)) => Err(Arc::new(Error::Ended)),
                Err(_) => Err(Arc::new(Error::Slow { limit })),
            };
            all.push((channels.name.clone(), outcome));
        }
        all
    }

    /// What the device is, as it was opened last.
    pub fn info(&self, device: DeviceId) -> Option<DeviceInfo> {
        self.channels(device)?.opened.borrow().as_ref()?.as_ref().ok().cloned()
    }

    /// The newest reading; look at its age.
    pub fn latest(&self, device: DeviceId) -> Option<Reading> {
        self.channels(device)?.reading.borrow().clone()
    }

    /// Follows the newest reading.
    pub fn readings(&self, device: DeviceId) -> Option<watch::Receiver<Option<Reading>>> {
        Some(self.channels(device)?.reading.clone())
    }

    /// How much the device's numbers are worth. A device that the configuration does not have is not watched.
    pub fn health(&self, device: DeviceId) -> Health {
        self.channels(device).map_or(Health::NotWatched, |c| c.health.borrow().clone())
    }

    /// Follows the health.
    pub fn health_changes(&self, device: DeviceId) -> Option<watch::Receiver<Health>> {
        Some(self.channels(device)?.health.clone())
    }

    /// Whether device bytes can prove something at present.
    pub fn evidence(&self, device: DeviceId) -> Evidence {
        self.health(device).evidence()
    }

    /// Reads at the fast rate until the guard is dropped.
    pub fn fast(&self) -> FastGuard {
        self.shared.fast.send_modify(|holders| *holders += 1);
        FastGuard { fast: Arc::clone(&self.shared.fast) }
    }

    /// Tells which engine each process belongs to, as the process trees are now.
    pub fn set_owners(&self, by_pid: HashMap<u32, String>) {
        self.shared.owners.write().unwrap_or_else(PoisonError::into_inner).set(by_pid);
    }

    /// The device bytes of an engine in a reading; `None` is unknown.
    pub fn engine_bytes(&self, reading: &Reading, engine: &str) -> Option<u64> {
        let owners = self.shared.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.bytes_of(engine, reading.processes.as_deref())
    }

    /// A reading, with its own process list, that is taken after this call began.
    ///
    /// # Errors
    /// There is none: the device is lost, its driver slow, or it is not watched.
    pub async fn read_now(&self, device: DeviceId) -> Result<Reading, Unavailable> {
        if self.evidence(device) == Evidence::NotWatched {
            return Err(Unavailable::NotWatched);
        }
        let (reply, answer) = oneshot::channel();
        let ended = |_| Unavailable::Missing(Error::Ended.to_string());
        let command = Command::Read { device: device.0.into(), at: clock::now(), reply: Some(reply) };
        self.shared.commands.send(command).map_err(|e| ended(e.to_string()))?;
        match tokio::time::timeout(self.shared.slow_after, answer).await {
            Ok(answer) => answer.map_err(|e| ended(e.to_string()))?,
            Err(_) => {
                Err(Unavailable::Missing(format!("none within {} s", self.shared.slow_after.as_secs_f64())))
            }
        }
    }

    /// Waits until a reading that is taken after this call began meets `threshold`, or until `deadline`. Reads at once
    /// and then at the fast rate.
    pub async fn await_used(&self, device: DeviceId, threshold: Threshold, deadline: Moment) -> AwaitOutcome {
        let began = clock::now();
        let Some(channels) = self.channels(device) else { return AwaitOutcome::NotWatched };
        let (mut readings, mut health) = (channels.reading.clone(), channels.health.clone());
        let no_evidence = |reason: &str| AwaitOutcome::NoEvidence { reason: reason.to_owned() };
        let command = Command::Read { device: device.0.into(), at: began, reply: None };
        if self.shared.commands.send(command).is_err() {
            return no_evidence(&Error::Ended.to_string());
        }
        let _fast = self.fast();
        let limit = tokio::time::sleep(deadline.since(began));
        tokio::pin!(limit);
        let mut last = None;
        loop {
            if let Some(reading) = readings.borrow_and_update().as_ref().filter(|r| r.at >= began) {
                if threshold.holds(reading.used) {
                    return AwaitOutcome::Reached { reading: reading.clone() };
                }
                last = Some(reading.clone());
            }
            match &*health.borrow_and_update() {
                Health::NotWatched => return AwaitOutcome::NotWatched,
                Health::Lost { reason } => return no_evidence(reason),
                Health::Ok | Health::Degraded { .. } => {}
            }
            let alive = tokio::select! {
                biased;
                changed = readings.changed() => changed.is_ok(),
                changed = health.changed() => changed.is_ok(),
                () = &mut limit => break,
            };
            if !alive {
                return no_evidence(&Error::Ended.to_string());
            }
        }
        // A last reading from before the driver fell silent does not say what is true now.
        let evidence = health.borrow().evidence();
        match (evidence, last) {
            (Evidence::Available, Some(last)) => AwaitOutcome::TimedOut { last },
            (Evidence::Missing { reason }, _) => AwaitOutcome::NoEvidence { reason },
            _ => no_evidence("no reading was taken before the deadline"),
        }
    }

    /// The samples' rows for the journal, in batches: one row a device and sample, `used: None` where a sample was
    /// missed. A subscriber that lets more than `capacity` batches pile up loses the newest, which is logged.
    pub fn subscribe(&self, capacity: usize) -> mpsc::Receiver<Vec<Sample>> {
        let (rows, queue) = mpsc::channel(capacity.max(1));
        // Where the sampler has ended, the queue ends at once.
        let _ = self.shared.commands.send(Command::Subscribe(rows));
        queue
    }

    /// Reads at other rates from now on: at rest, and while a [`FastGuard`] lives.
    pub fn pace(&self, rest: Duration, fast: Duration) {
        // Where the sampler has ended, nothing is read.
        let _ = self.shared.commands.send(Command::Pace { rest, fast });
    }

    /// Hands over the rows that are waiting for a batch, and returns when that was done.
    pub async fn flush(&self) {
        let (done, finished) = oneshot::channel();
        if self.shared.commands.send(Command::Flush(done)).is_ok() {
            // An error means that the sampler has ended, and its rows with it.
            let _ = finished.await;
        }
    }
}
