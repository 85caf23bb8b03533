//! One engine's line: its gate, and those who wait before it.
//!
//! What must not be missed: somebody starts to wait just as the gate opens, or as room is made. Whoever starts to wait
//! is counted in `held` before looking at the gate once more; whoever opens it or leaves does so before looking at
//! `held`. So one of the two lets them in ([`Line::pump`] under the lock; all of it `SeqCst`).

use super::gate::{Entry, Gate};
use super::hub::Hub;
use super::lease::{Aborted, Lease, Place as Where, Upstream};
use super::refusal::Refusal;
use super::tenant::{Chair, Tenant};
use crate::clock;
use crate::config;
use arc_swap::ArcSwap;
use hotbunk_core::demand::Demand;
use hotbunk_core::event::Event;
use hotbunk_core::hold::{Place, Queue};
use hotbunk_core::ids::EngineId;
use hotbunk_core::time::Moment;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// Reasons for which leases are ended from outside, by the two lowest bits of an epoch.
const REASONS: [Aborted; 4] = [Aborted::Drain, Aborted::Died, Aborted::Leaving, Aborted::Drain];

/// One engine, as clients see it.
#[derive(Debug)]
pub(super) struct Line {
    pub id: EngineId,
    pub name: String,
    pub gate: Gate,
    /// Of those in it, those that nobody waits for any more and that the engine may still be busy with.
    pub hung_up: AtomicU32,
    /// Most requests at once.
    limit: AtomicU32,
    place: ArcSwap<Where>,
    /// Process life.
    life: AtomicU64,
    /// Four times the number of times that its leases were ended from outside, and why the last time: see [`REASONS`].
    epoch: AtomicU64,
    aborts: Notify,
    /// Those who wait, to be asked without a lock.
    held: AtomicU32,
    waiting: Mutex<Waiting>,
    began: AtomicU64,
    finished: AtomicU64,
}

/// Those who wait, and what is true of them all.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: Queue<Waiter>,
    standing: Standing,
    /// Since when requests are frozen in the engine: they wait for its turn as those in the queue do.
    frozen: Option<Moment>,
    /// Since when the one waits that the switcher was last told of.
    told: Option<Moment>,
    /// The last trouble that was told of the engine.
    trouble: Option<String>,
}

/// What to do with whoever does not find the gate open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Standing {
    /// Let them wait.
    #[default]
    May,
    /// The engine is given up.
    Failed(String),
    /// Its process has ended and is started again later.
    Down,
    /// Maintenance.
    Paused,
    /// The agent goes, and another one comes.
    Leaving,
    /// The agent ends.
    Closing,
    /// The engine is not configured any more.
    Retired,
}

/// Why somebody cannot wait.
#[derive(Debug)]
pub(super) enum TurnedAway {
    /// Nobody can, and the last trouble that was told of the engine.
    Standing(Standing, Option<String>),
    /// It must not cause a switch, and would.
    WouldSwitch,
}

/// One who waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub answer: oneshot::Sender<Result<Lease, Refusal>>,
    pub tenant: Tenant,
    pub since: Moment,
    pub tokens_estimate: u64,
    pub no_switch: bool,
    pub _bytes: Bytes,
    pub _chair: Chair,
}

/// Bytes of a body that waits; dropping it gives them back to the node's budget.
#[derive(Debug)]
pub(super) struct Bytes {
    hub: Arc<Hub>,
    bytes: u64,
}

impl Bytes {
    /// Takes them from the budget, if there are so many.
    pub(super) fn take(hub: &Arc<Hub>, limit: u64, bytes: u64) -> Option<Self> {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= limit);
        hub.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Bytes { hub: Arc::clone(hub), bytes })
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.hub.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// What was true as the gate was passed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    generation: u64,
    life: u64,
    epoch: u64,
}

fn place(engine: &config::Engine) -> Where {
    Where {
        address: super::Address::Tcp(SocketAddr::new(engine.host, engine.port)),
        api_key: engine.api_key.clone(),
    }
}

impl Line {
    pub(super) fn new(id: EngineId, engine: &config::Engine) -> Self {
        Line {
            id,
            name: engine.name.clone(),
            gate: Gate::new(),
            hung_up: AtomicU32::new(0),
            limit: AtomicU32::new(engine.max_in_flight.unwrap_or(u32::MAX)),
            place: ArcSwap::from_pointee(place(engine)),
            life: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            aborts: Notify::new(),
            held: AtomicU32::new(0),
            waiting: Mutex::default(),
            began: AtomicU64::new(0),
            finished: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Ordering::SeqCst)
    }

    /// When the one that came first did.
    pub(super) fn oldest(&self) -> Option<Moment> {
        if self.held() == 0 { None } else { self.lock().queue.oldest().map(|w| w.since) }
    }

    /// Whose request waits longest.
    pub(super) fn first_tenant(&self) -> Option<Tenant> {
        self.lock().queue.oldest().map(|w| w.tenant.clone())
    }

    /// When it was last used: when an inference last ended well, or while some run, when the last one began.
    pub(super) fn used_at(&self) -> Moment {
        let (began, finished) = (self.began.load(Ordering::Relaxed), self.finished.load(Ordering::Relaxed));
        Moment(if self.gate.in_flight() > 0 { began.max(finished) } else { finished })
    }

    /// When an inference last ended well.
    pub(super) fn finished_at(&self) -> Option<Moment> {
        Some(Moment(self.finished.load(Ordering::Relaxed))).filter(|at| at.0 > 0)
    }

    /// Most requests at once, where there is a limit.
    pub(super) fn limit(&self) -> Option<u32> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit < u32::MAX)
    }

    /// Another limit. Those who are in stay; [`Line::pump`] lets in whoever waits for room that there is now.
    pub(super) fn limit_to(&self, limit: Option<u32>) {
        self.limit.store(limit.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Newer settings of its engine are in force: its next process is reached as they say.
    pub(super) fn revised(&self, engine: &config::Engine) {
        self.limit_to(engine.max_in_flight);
        self.place.store(Arc::new(place(engine)));
    }

    pub(super) fn finished(&self) {
        self.finished.fetch_max(clock::now().0, Ordering::Relaxed);
    }

    /// Goes in, if that is possible now.
    pub(super) fn enter(&self) -> Option<Stamp> {
        loop {
            let (life, epoch) = (self.life.load(Ordering::SeqCst), self.epoch.load(Ordering::SeqCst));
            let Entry::In(generation) = self.gate.enter(self.limit.load(Ordering::Relaxed)) else {
                return None;
            };
            // The gate may have closed and opened again before it was passed; then these belong to an earlier time.
            if (life, epoch) == (self.life.load(Ordering::SeqCst), self.epoch.load(Ordering::SeqCst)) {
                self.began.fetch_max(clock::now().0, Ordering::Relaxed);
                return Some(Stamp { generation, life, epoch });
            }
            self.gate.leave();
        }
    }

    pub(super) fn lease(
        &self,
        hub: &Arc<Hub>,
        stamp: Stamp,
        tenant: Tenant,
        seat: super::tenant::Seat,
        tokens_estimate: u64,
    ) -> Lease {
        Lease {
            hub: Arc::clone(hub),
            engine: self.id,
            generation: stamp.generation,
            upstream: Upstream::new(self.place.load_full(), stamp.life),
            epoch: stamp.epoch,
            tenant,
            seat: std::sync::Mutex::new(Some(seat)),
            hung_up: std::sync::atomic::AtomicBool::new(false),
            tokens_estimate,
            settled: AtomicBool::new(false),
        }
    }

    /// Opens the gate for a life and a generation, and lets in those who wait.
    pub(super) fn open(&self, hub: &Arc<Hub>, life: u64, generation: u64) {
        self.life.store(life, Ordering::SeqCst);
        if self.gate.open(generation) {
            self.pump(hub);
        }
    }

    /// Closes the gate. Whoever waits for room only, and must not cause a switch, waits no longer.
    pub(super) fn close(&self, hub: &Arc<Hub>, state: &str) {
        if !self.gate.close() || self.held() == 0 {
            return;
        }
        let mut waiting = self.lock();
        let places: Vec<Place> =
            waiting.queue.iter().filter(|(_, w)| w.no_switch).map(|(place, _)| place).collect();
        for waiter in places.into_iter().filter_map(|place| waiting.queue.remove(place)) {
            let _ = waiter.answer.send(Err(Refusal::WouldSwitch { state: state.to_owned() }));
        }
        self.changed(hub, &mut waiting);
    }

    /// Ends every lease there is from outside.
    pub(super) fn abort(&self, why: Aborted) {
        let reason = REASONS.iter().position(|reason| *reason == why).unwrap_or_default() as u64;
        let next = |epoch: u64| Some((((epoch >> 2) + 1) << 2) | reason);
        // The function always gives a value.
        let _ = self.epoch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        self.aborts.notify_waiters();
    }

    /// Until the leases of an epoch are ended from outside.
    pub(super) async fn aborted(&self, epoch: u64) -> Aborted {
        loop {
            let told = self.aborts.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let now = self.epoch.load(Ordering::SeqCst);
            if now != epoch {
                return REASONS[(now & 3) as usize];
            }
            told.await;
        }
    }

    /// Starts to wait. The answer may be there when this returns.
    pub(super) fn wait(&self, hub: &Arc<Hub>, waiter: Waiter) -> Result<Place, TurnedAway> {
        let mut waiting = self.lock();
        if waiting.standing != Standing::May {
            return Err(TurnedAway::Standing(waiting.standing.clone(), waiting.trouble.clone()));
        }
        // Asked under the lock, which whoever closes the gate takes after having closed it: one of the two notices.
        if waiter.no_switch && !self.gate.is_open() {
            return Err(TurnedAway::WouldSwitch);
        }
        let (tenant, weight) = (waiter.tenant.id(), waiter.tenant.weight());
        let place = waiting.queue.push(tenant, weight, waiter);
        self.changed(hub, &mut waiting);
        let lost = self.let_in(hub, &mut waiting);
        drop(waiting);
        drop(lost);
        Ok(place)
    }

    /// Waits no longer. False where it had its answer already.
    pub(super) fn give_up(&self, hub: &Arc<Hub>, place: Place) -> bool {
        let mut waiting = self.lock();
        let waiter = waiting.queue.remove(place);
        self.changed(hub, &mut waiting);
        drop(waiting);
        if let Some(waiter) = &waiter {
            waiter.tenant.settle(self.id, waiter.tokens_estimate, 0);
        }
        waiter.is_some()
    }

    /// How many go before.
    pub(super) fn ahead(&self, place: Place) -> Option<usize> {
        self.lock().queue.ahead(place)
    }

    /// Lets in whoever is next, as long as there is room.
    pub(super) fn pump(&self, hub: &Arc<Hub>) {
        if self.held() == 0 {
            return;
        }
        let mut waiting = self.lock();
        let lost = self.let_in(hub, &mut waiting);
        drop(waiting);
        // Leases of those who had just gone; their end looks for the next.
        drop(lost);
    }

    fn let_in(&self, hub: &Arc<Hub>, waiting: &mut Waiting) -> Vec<Lease> {
        let mut lost = Vec::new();
        loop {
            let face = hub.face();
            let has_seat = |tenant: &Tenant| tenant.has_seat(self.id);
            let may = |tenant: u16| face.tenants.all().get(usize::from(tenant)).is_some_and(has_seat);
            let Some((place, next)) = waiting.queue.next(may) else { break };
            let Ok(seat) = next.tenant.seat(self.id) else { continue };
            let Some(stamp) = self.enter() else { break };
            let Some(waiter) = waiting.queue.take(place) else { break };
            hub.metrics.gateway_waited(&self.name, clock::now().since(waiter.since));
            let lease = self.lease(hub, stamp, waiter.tenant, seat, waiter.tokens_estimate);
            if let Err(Ok(lease)) = waiter.answer.send(Ok(lease)) {
                lost.push(lease);
            }
        }
        self.changed(hub, waiting);
        lost
    }

    /// What everybody who waits is told, now and from now on.
    pub(super) fn stand(&self, hub: &Arc<Hub>, standing: Standing) {
        let mut waiting = self.lock();
        // Asked under the lock, which whoever says it takes after having said it: so it is the last word.
        let standing = if hub.is_leaving() { Standing::Leaving } else { standing };
        if waiting.standing == standing {
            return;
        }
        waiting.standing = standing.clone();
        if standing != Standing::May {
            let trouble = waiting.trouble.clone();
            self.refuse(hub, &mut waiting, &hub.because(self, &standing, trouble));
        }
    }

    /// Everybody who waits is refused; whoever comes later may wait again.
    pub(super) fn refuse_all(&self, hub: &Arc<Hub>, refusal: &Refusal) {
        self.refuse(hub, &mut self.lock(), refusal);
    }

    fn refuse(&self, hub: &Arc<Hub>, waiting: &mut Waiting, refusal: &Refusal) {
        for waiter in waiting.queue.drain() {
            waiter.tenant.settle(self.id, waiter.tokens_estimate, 0);
            // Whoever has gone need not be told.
            let _ = waiter.answer.send(Err(refusal.clone()));
        }
        self.changed(hub, waiting);
    }

    /// Whether requests are frozen in the engine. Nobody may ask for its model again, and still they must go on one
    /// day: so they are demand like those in the queue, from the moment on in which they were frozen.
    pub(super) fn freeze(&self, hub: &Hub, frozen: bool, now: Moment) {
        let frozen = frozen && self.gate.in_flight() > 0;
        let mut waiting = self.lock();
        if waiting.frozen.is_some() != frozen {
            waiting.frozen = frozen.then_some(now);
            self.changed(hub, &mut waiting);
        }
    }

    /// Remembers what went wrong with the engine last.
    pub(super) fn trouble(&self, detail: &str) {
        self.lock().trouble = Some(detail.to_owned());
    }

    /// Keeps the counts, and tells the switcher where demand begins, ends or is older or younger than it was told.
    fn changed(&self, hub: &Hub, waiting: &mut Waiting) {
        let held = u32::try_from(waiting.queue.len()).unwrap_or(u32::MAX);
        let before = self.held.swap(held, Ordering::SeqCst);
        if held >= before {
            hub.held.fetch_add(held - before, Ordering::SeqCst);
        } else {
            hub.held.fetch_sub(before - held, Ordering::SeqCst);
        }
        let oldest = waiting.queue.oldest().map(|w| w.since).into_iter().chain(waiting.frozen).min();
        if oldest != waiting.told {
            waiting.told = oldest;
            let frozen = if waiting.frozen.is_some() { self.gate.in_flight() } else { 0 };
            let held = held.saturating_add(frozen);
            hub.tell(Event::Demand { engine: self.id, demand: Demand { held, oldest } });
        }
    }
}
