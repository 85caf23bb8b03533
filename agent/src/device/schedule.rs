//! The task that decides when the driver is asked what, and publishes what it says.
//!
//! One job is with the driver's thread at a time. Ticks and wishes for a fresh reading that come meanwhile are merged
//! into the next job; a tick that is overtaken by the next one before it was served is a missed sample, and its row
//! says so.
//!
//! ```text
//!             opened                    read, read, …
//!  Opening ───────────► Ok ◄──────────────────────────────► Degraded(Slow | ReadsFail | NoProcesses)
//!     │                 │                                        │
//!     │ not opened      │ lost, uninitialised, …                 │ reads fail for `slow_after`
//!     └────────► Lost ◄─┴────────────────────────────────────────┘
//!                 │ ▲
//!                 └─┘ opened again with back-off; the first good reading makes it Ok
//! ```

use super::driver::{Job, Raw, Reply};
use super::error::Error;
use super::owners::Owners;
use super::reading::{Cause, DeviceInfo, Health, Reading, Unavailable};
use super::rows::Rows;
use super::sampler::Timing;
use super::watched::Device;
use crate::clock;
use crate::journal::record::Sample;
use hotbunk_core::time::Moment;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock, mpsc as blocking};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// What a [`super::Sampler`] asks for.
#[derive(Debug)]
pub(super) enum Command {
    /// Read a device now; with a process list where somebody waits for the reply.
    Read { device: usize, at: Moment, reply: Option<oneshot::Sender<Result<Reading, Unavailable>>> },
    /// Send rows there.
    Subscribe(mpsc::Sender<Vec<Sample>>),
    /// Send waiting rows now.
    Flush(oneshot::Sender<()>),
    /// Read at other rates from now on.
    Pace { rest: Duration, fast: Duration },
}

/// The driver's thread, from here.
pub(super) type Driver = (blocking::Sender<Job>, mpsc::UnboundedReceiver<Reply>);

#[derive(Debug)]
struct InFlight {
    since: Instant,
    is_slow: bool,
    has_processes: bool,
}

#[derive(Debug)]
struct Waiter {
    device: usize,
    at: Moment,
    reply: oneshot::Sender<Result<Reading, Unavailable>>,
}

/// The task's state.
pub(super) struct Actor {
    devices: Vec<Device>,
    driver: Option<Driver>,
    commands: mpsc::UnboundedReceiver<Command>,
    fast: watch::Receiver<usize>,
    owners: Arc<RwLock<Owners>>,
    timing: Timing,

    in_flight: Option<InFlight>,
    next_tick: Instant,
    /// A tick that no job has served yet.
    tick: Option<Moment>,
    /// Devices that somebody wants read.
    wanted: BTreeSet<usize>,
    waiters: Vec<Waiter>,
    lists_due: Instant,
    retry_at: Option<Instant>,
    retry_delay: Duration,

    rows: Rows,
}

impl Actor {
    pub(super) fn new(
        devices: Vec<Device>,
        driver: Option<Driver>,
        commands: mpsc::UnboundedReceiver<Command>,
        fast: watch::Receiver<usize>,
        owners: Arc<RwLock<Owners>>,
        timing: Timing,
    ) -> Self {
        let now = Instant::now();
        Actor {
            devices,
            // The thread opens the devices unasked.
            in_flight: driver.is_some().then_some(InFlight {
                since: now,
                is_slow: false,
                has_processes: false,
            }),
            driver,
            commands,
            fast,
            owners,
            timing,
            next_tick: now,
            tick: None,
            wanted: BTreeSet::new(),
            waiters: Vec::new(),
            lists_due: now,
            retry_at: None,
            retry_delay: timing.retry_first,
            rows: Rows::new(timing.batch),
        }
    }

    /// Runs until the last [`super::Sampler`] is gone.
    pub(super) async fn run(mut self) {
        loop {
            let has_driver = self.driver.is_some();
            let slow_at =
                self.in_flight.as_ref().filter(|f| !f.is_slow).map(|f| f.since + self.timing.slow_after);
            let retry_at = self.retry_at.filter(|_| self.in_flight.is_none());
            tokio::select! {
                biased;
                reply = next_reply(&mut self.driver) => match reply {
                    Some(reply) => self.on_reply(reply),
                    None => self.on_driver_ended(),
                },
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command),
                    None => break,
                },
                changed = self.fast.changed() => match changed {
                    Ok(()) => self.next_tick = Instant::now(),
                    Err(_) => break,
                },
                () = at(slow_at) => self.on_slow(),
                () = at(retry_at) => self.reopen(),
                () = at(has_driver.then_some(self.next_tick)) => self.on_tick(),
                () = at(self.rows.due()) => self.rows.flush(),
            }
            self.dispatch();
        }
    }

    fn period(&self) -> Duration {
        if *self.fast.borrow() > 0 { self.timing.fast } else { self.timing.rest }
    }

    fn on_tick(&mut self) {
        let now = clock::now();
        if let Some(missed) = self.tick.replace(now) {
            for index in 0..self.devices.len() {
                self.miss(index, missed);
            }
        }
        self.next_tick = (self.next_tick + self.period()).max(Instant::now());
    }

    /// Gives the driver what is waiting, when it is free.
    fn dispatch(&mut self) {
        if self.in_flight.is_some() {
            return;
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        if let Some(tick) = self.tick.take() {
            for index in 0..self.devices.len() {
                match self.devices[index].is_open {
                    true => wanted.extend([index]),
                    false => self.miss(index, tick),
                }
            }
        }
        wanted.retain(|index| self.devices[*index].is_open);
        if wanted.is_empty() {
            return;
        }
        let now = Instant::now();
        let processes = now >= self.lists_due || self.waiters.iter().any(|w| wanted.contains(&w.device));
        if processes {
            self.lists_due = now + self.timing.processes;
        }
        self.send(Job::Read { devices: wanted.into_iter().collect(), processes }, processes);
    }

    fn send(&mut self, job: Job, has_processes: bool) {
        let is_sent = self.driver.as_ref().is_some_and(|(jobs, _)| jobs.send(job).is_ok());
        match is_sent {
            true => self.in_flight = Some(InFlight { since: Instant::now(), is_slow: false, has_processes }),
            false => self.on_driver_ended(),
        }
    }

    fn reopen(&mut self) {
        self.retry_at = None;
        self.send(Job::Reopen, false);
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Subscribe(rows) => self.rows.subscribe(rows),
            Command::Pace { rest, fast } => {
                (self.timing.rest, self.timing.fast) = (rest, fast);
                // The next one may have been due much later.
                self.next_tick = self.next_tick.min(Instant::now() + self.period());
            }
            Command::Flush(done) => {
                self.rows.flush();
                // Whoever asked may be gone.
                let _ = done.send(());
            }
            Command::Read { device, at, reply } => {
                let health = self.devices.get(device).map(|d| d.health.borrow().clone());
                let refusal = match health {
                    None | Some(Health::NotWatched) => Some(Unavailable::NotWatched),
                    Some(Health::Lost { reason }) => Some(Unavailable::Missing(reason)),
                    Some(health @ Health::Degraded { cause: Cause::Slow, .. }) => {
                        Some(Unavailable::Missing(health.to_string()))
                    }
                    Some(Health::Ok | Health::Degraded { .. }) => None,
                };
                match (refusal, reply) {
                    (Some(refusal), Some(reply)) => drop(reply.send(Err(refusal))),
                    (Some(_), None) => {}
                    (None, reply) => {
                        self.wanted.insert(device);
                        self.waiters.extend(reply.map(|reply| Waiter { device, at, reply }));
                    }
                }
            }
        }
    }

    fn on_reply(&mut self, reply: Reply) {
        match reply {
            Reply::Opened(outcomes) => {
                self.in_flight = None;
                for (index, outcome) in outcomes {
                    self.on_opened(index, outcome);
                }
                self.schedule_retry();
            }
            Reply::Read(index, Ok(raw)) => self.on_read(index, raw),
            Reply::Read(index, Err(error)) => self.on_read_failed(index, &error),
            Reply::Done => self.in_flight = None,
        }
    }

    fn on_opened(&mut self, index: usize, outcome: Result<DeviceInfo, Arc<Error>>) {
        let Some(device) = self.devices.get_mut(index) else { return };
        match &outcome {
            Ok(_) => {
                device.is_open = true;
                self.wanted.insert(index);
            }
            Err(error) => {
                let reason = error.sentence();
                device.lose(reason.clone());
                self.refuse(index, &reason);
            }
        }
        self.devices[index].opened.send_replace(Some(outcome));
    }

    fn schedule_retry(&mut self) {
        if self.retry_at.is_none() && self.devices.iter().any(Device::is_lost) {
            self.retry_at = Some(Instant::now() + self.retry_delay);
            self.retry_delay = (self.retry_delay * 2).min(self.timing.retry_most);
        }
    }

    fn on_read(&mut self, index: usize, raw: Raw) {
        let Some(device) = self.devices.get_mut(index) else { return };
        device.failing_since = None;
        match raw.processes {
            Some(Ok(list)) => {
                let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
                owners.observe(&list);
                (device.list, device.list_error) = (Some((list, raw.at)), None);
            }
            Some(Err(message)) => (device.list, device.list_error) = (None, Some(message)),
            None => {}
        }
        let (processes, processes_at) = device.list.clone().unzip();
        let reading =
            Reading { at: raw.at, used: raw.used, free: raw.free, total: raw.total, processes, processes_at };
        device.reading.send_replace(Some(reading.clone()));
        match device.list_error.clone() {
            None => device.set_health(Health::Ok),
            Some(message) => device.degrade(Cause::NoProcesses { message }),
        }
        let has_processes = self.in_flight.as_ref().is_some_and(|f| f.has_processes);
        let served = |w: &mut Waiter| has_processes && w.device == index && w.at <= reading.at;
        for waiter in self.waiters.extract_if(.., served) {
            // Whoever asked may be gone.
            let _ = waiter.reply.send(Ok(reading.clone()));
        }
        if !self.devices.iter().any(Device::is_lost) {
            self.retry_delay = self.timing.retry_first;
        }
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        let engines = match has_processes {
            true => owners.attribute(reading.processes.as_deref()),
            false => Vec::new(),
        };
        drop(owners);
        self.rows.push(&self.devices[index].name, reading.at, Some(reading.used), engines);
    }

    fn on_read_failed(&mut self, index: usize, error: &Error) {
        let message = error.sentence();
        let slow_after = self.timing.slow_after;
        let Some(device) = self.devices.get_mut(index) else { return };
        let failing_since = *device.failing_since.get_or_insert_with(Instant::now);
        if error.is_loss() || failing_since.elapsed() >= slow_after {
            device.lose(message.clone());
            self.schedule_retry();
        } else {
            device.degrade(Cause::ReadsFail { message: message.clone() });
        }
        self.refuse(index, &message);
        self.miss(index, clock::now());
    }

    /// Nobody need wait for a reading of this device now.
    fn refuse(&mut self, index: usize, reason: &str) {
        for waiter in self.waiters.extract_if(.., |w| w.device == index) {
            // Whoever asked may be gone.
            let _ = waiter.reply.send(Err(Unavailable::Missing(reason.to_owned())));
        }
    }

    fn on_slow(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.is_slow = true;
        }
        for index in 0..self.devices.len() {
            let device = &self.devices[index];
            if device.is_watched && !device.is_lost() {
                device.degrade(Cause::Slow);
                let reason = device.health.borrow().to_string();
                self.refuse(index, &reason);
            }
        }
    }

    fn on_driver_ended(&mut self) {
        self.driver = None;
        self.in_flight = None;
        self.retry_at = None;
        for index in 0..self.devices.len() {
            if self.devices[index].is_watched {
                let reason = "the thread for the driver's calls has ended".to_owned();
                self.refuse(index, &reason);
                self.devices[index].lose(reason);
                self.devices[index].opened.send_if_modified(|opened| {
                    opened.is_none() && opened.replace(Err(Arc::new(Error::Ended))).is_none()
                });
            }
        }
    }

    /// A sample of a watched device is not there.
    fn miss(&mut self, index: usize, at: Moment) {
        if self.devices[index].is_watched {
            let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
            let engines = owners.attribute(None);
            drop(owners);
            self.rows.push(&self.devices[index].name, at, None, engines);
        }
    }
}

/// The driver's next reply; never, where there is no driver.
async fn next_reply(driver: &mut Option<Driver>) -> Option<Reply> {
    match driver {
        Some((_, replies)) => replies.recv().await,
        None => std::future::pending().await,
    }
}

/// Until then; for ever, where there is no instant.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
