//! The right to have one request on an engine, from its admission to its last byte.

use super::hub::Hub;
use super::tenant::{Seat, Tenant};
use crate::config::Secret;
use hotbunk_core::ids::EngineId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// On loopback.
    Tcp(SocketAddr),
    /// On a unix socket.
    Unix(PathBuf),
}

/// What does not change from one incarnation to the next.
#[derive(Debug)]
pub(super) struct Place {
    pub address: Address,
    pub api_key: Option<Secret>,
}

/// Where the request goes.
#[derive(Debug, Clone)]
pub struct Upstream {
    place: Arc<Place>,
    incarnation: u64,
}

impl Upstream {
    pub(super) fn new(place: Arc<Place>, incarnation: u64) -> Self {
        Upstream { place, incarnation }
    }

    /// Where the engine listens.
    pub fn address(&self) -> &Address {
        &self.place.address
    }

    /// The key that the engine demands: to be sent instead of the tenant's, which never goes upstream.
    pub fn api_key(&self) -> Option<&Secret> {
        self.place.api_key.as_ref()
    }

    /// Which process life of the engine; a connection to an earlier one is of no use.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }
}

/// Why a lease was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aborted {
    /// The engine goes to sleep, and the drain policy is `abort`.
    Drain,
    /// The engine's process is gone.
    Died,
    /// The agent goes, and the request has had the time that it was given.
    Leaving,
}

/// The right to have one request on an engine. Dropping it ends it: the gate and the tenant count one less.
///
/// It is held for as long as the request may be in the engine: where nobody waits for the answer any more, until the engine
/// has taken notice of that ([`Lease::hang_up`]).
#[derive(Debug)]
pub struct Lease {
    pub(super) hub: Arc<Hub>,
    pub(super) engine: EngineId,
    pub(super) generation: u64,
    pub(super) upstream: Upstream,
    /// Aborts that there had been when it was given.
    pub(super) epoch: u64,
    pub(super) tenant: Tenant,
    pub(super) seat: Mutex<Option<Seat>>,
    pub(super) hung_up: AtomicBool,
    pub(super) tokens_estimate: u64,
    pub(super) settled: AtomicBool,
}

impl Lease {
    /// The engine that it is for.
    pub fn engine(&self) -> EngineId {
        self.engine
    }

    /// The engine's generation when it was given. A frozen request goes on under a later one.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Where the request goes.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Whose request it is.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Until it is ended from outside; pending for ever where it is not.
    pub async fn aborted(&self) -> Aborted {
        self.hub.line(self.engine).aborted(self.epoch).await
    }

    /// Whether the engine does not work on the request at present: it is asleep, going to sleep or waking, and the
    /// request is waited for or frozen in it.
    pub fn frozen(&self) -> bool {
        !self.hub.line(self.engine).gate.is_open()
    }

    /// Nobody waits for the answer any more. To the tenant it is over; to the engine it is not before the lease is
    /// dropped.
    pub fn hang_up(&self) {
        if self.hung_up.swap(true, Ordering::SeqCst) {
            return;
        }
        let line = self.hub.line(self.engine);
        line.hung_up.fetch_add(1, Ordering::SeqCst);
        drop(self.seat.lock().unwrap_or_else(PoisonError::into_inner).take());
        if line.gate.is_open() {
            line.pump(&self.hub);
        }
    }

    /// What the request did cost, prompt and answer together, against the estimate. The first word counts.
    pub fn settle(&self, usage_tokens: u64) {
        if !self.settled.swap(true, Ordering::Relaxed) {
            self.tenant.settle(self.engine, self.tokens_estimate, usage_tokens);
        }
    }

    /// An inference ended well: that is what counts as use of the engine.
    pub fn finished(&self) {
        self.hub.line(self.engine).finished();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // First the tenant, so that whoever is let in next finds the seat free.
        drop(self.seat.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if *self.hung_up.get_mut() {
            self.hub.line(self.engine).hung_up.fetch_sub(1, Ordering::SeqCst);
        }
        self.hub.left(self.engine);
    }
}
