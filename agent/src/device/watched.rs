//! One device: what its readers see, and what the sampler remembers of it.

use super::error::Error;
use super::reading::{Cause, DeviceInfo, Health, Process, Reading};
use crate::clock;
use hotbunk_core::time::Moment;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;

/// How the last opening ended; `None` before the first has.
type Opened = Option<Result<DeviceInfo, Arc<Error>>>;

/// A device as readers see it.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) name: String,
    pub(super) reading: watch::Receiver<Option<Reading>>,
    pub(super) health: watch::Receiver<Health>,
    pub(super) opened: watch::Receiver<Opened>,
}

/// A device as the sampler sees it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) is_watched: bool,
    pub(super) is_open: bool,
    pub(super) reading: watch::Sender<Option<Reading>>,
    pub(super) health: watch::Sender<Health>,
    pub(super) opened: watch::Sender<Opened>,
    /// Since when every read has failed.
    pub(super) failing_since: Option<Instant>,
    /// The newest process list.
    pub(super) list: Option<(Arc<[Process]>, Moment)>,
    /// Why there is none.
    pub(super) list_error: Option<String>,
}

impl Device {
    /// Both sides of a device.
    pub(super) fn new(name: &str, is_watched: bool) -> (Self, Channels) {
        let (reading, readings) = watch::channel(None);
        let (opened, openings) = watch::channel(None);
        let health = match is_watched {
            true => Health::Degraded { cause: Cause::Opening, since: clock::now() },
            false => Health::NotWatched,
        };
        let (health, healths) = watch::channel(health);
        let channels =
            Channels { name: name.to_owned(), reading: readings, health: healths, opened: openings };
        let device = Device {
            name: name.to_owned(),
            is_watched,
            is_open: false,
            reading,
            health,
            opened,
            failing_since: None,
            list: None,
            list_error: None,
        };
        (device, channels)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(*self.health.borrow(), Health::Lost { .. })
    }

    pub(super) fn set_health(&self, health: Health) {
        self.health.send_if_modified(|old| {
            let is_news = *old != health;
            if is_news {
                tracing::info!(device = %self.name, health = health.as_str(), "{health}");
                *old = health;
            }
            is_news
        });
    }

    /// A degradation keeps its beginning while its cause stays the same.
    pub(super) fn degrade(&self, cause: Cause) {
        let since = match &*self.health.borrow() {
            Health::Degraded { cause: old, since } if *old == cause => *since,
            _ => clock::now(),
        };
        self.set_health(Health::Degraded { cause, since });
    }

    pub(super) fn lose(&mut self, reason: String) {
        self.is_open = false;
        self.failing_since = None;
        self.list = None;
        self.set_health(Health::Lost { reason });
    }
}
