//! Whose request it is, and what they may do.

use super::refusal::Refusal;
use crate::clock;
use crate::config;
use crate::config::gateway::DEFAULT_TENANT;
use arc_swap::ArcSwap;
use hotbunk_core::bucket::{Bucket, Rate};
use hotbunk_core::ids::EngineId;
use hotbunk_core::time::Moment;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When a seat gets free is not known.
const A_MOMENT: Duration = Duration::from_secs(1);

/// A tenant. Clones are the same.
#[derive(Debug, Clone)]
pub struct Tenant {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// 0 is whoever is not configured.
    id: u16,
    name: String,
    /// It is in the configuration.
    configured: AtomicBool,
    weight: AtomicU32,
    /// By engine; replaced as a whole where limits change.
    lanes: ArcSwap<Vec<Arc<Lane>>>,
    switch_ns: AtomicU64,
}

/// One tenant on one engine.
#[derive(Debug)]
struct Lane {
    limits: config::Limits,
    load: Arc<Load>,
    requests: Option<Arc<Rated>>,
    tokens: Option<Arc<Rated>>,
}

/// What it has there. Other limits count on from the same.
#[derive(Debug, Default)]
struct Load {
    in_flight: AtomicU32,
    queued: AtomicU32,
}

/// A rate, and what is left of it.
#[derive(Debug)]
struct Rated {
    limit: String,
    bucket: Mutex<Bucket>,
}

fn locked(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more, if there are fewer than the limit.
fn one_more(count: &AtomicU32, limit: Option<u32>) -> bool {
    let Some(limit) = limit else {
        count.fetch_add(1, Ordering::SeqCst);
        return true;
    };
    let more = |n: u32| (n < limit).then(|| n + 1);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

impl Lane {
    /// A rate that is as it was goes on with what is left of it: nobody gets a new burst by a change of something else.
    fn new(limits: config::Limits, now: Moment, before: Option<&Lane>) -> Self {
        let same_requests = |was: &&Lane| {
            let of = |l: &config::Limits| (l.requests_per_second, l.burst);
            of(&was.limits) == of(&limits)
        };
        let requests = match before.filter(same_requests) {
            Some(was) => was.requests.clone(),
            None => limits.requests_per_second.map(|per_second| {
                let rate = requests_rate(per_second, limits.burst);
                Arc::new(Rated::new(format!("{per_second} requests/s"), rate, now))
            }),
        };
        let same_tokens = |was: &&Lane| was.limits.tokens_per_minute == limits.tokens_per_minute;
        let tokens = match before.filter(same_tokens) {
            Some(was) => was.tokens.clone(),
            None => limits.tokens_per_minute.map(|per_minute| {
                let amount = u64::from(per_minute.max(1));
                let rate = Rate { amount, period: Duration::from_secs(60), burst: amount };
                Arc::new(Rated::new(format!("{per_minute} tokens/min"), rate, now))
            }),
        };
        let load = before.map_or_else(Arc::default, |was| Arc::clone(&was.load));
        Lane { limits, load, requests, tokens }
    }
}

impl Rated {
    fn new(limit: String, rate: Rate, now: Moment) -> Self {
        Rated { limit, bucket: Mutex::new(Bucket::new(rate, now)) }
    }
}

/// Thousandths of a request, so that less than one a second can be said.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be small and positive"
)]
fn requests_rate(per_second: f64, burst: Option<u32>) -> Rate {
    let amount = ((per_second * 1000.0).round() as u64).max(1);
    let burst = burst.map_or_else(|| (per_second.ceil() as u64).max(1), u64::from).max(1);
    Rate { amount, period: Duration::from_secs(1000), burst }
}

impl Tenant {
    fn new(id: u16, name: &str) -> Self {
        let inner = Inner {
            id,
            name: name.to_owned(),
            configured: AtomicBool::new(false),
            weight: AtomicU32::new(1),
            lanes: ArcSwap::default(),
            switch_ns: AtomicU64::new(0),
        };
        Tenant { inner: Arc::new(inner) }
    }

    /// What it may do from now on, by engine; `None`: it is not configured, and what it still has under way goes on by what
    /// was so before.
    fn may(&self, of: Option<&config::Tenant>, engines: usize) {
        let now = clock::now();
        let before = self.inner.lanes.load();
        let limits = |at: usize| match of {
            Some(tenant) => tenant.limits.get(at).copied().unwrap_or_default(),
            None => before.get(at).map(|lane| lane.limits).unwrap_or_default(),
        };
        let lane = |at: usize| Arc::new(Lane::new(limits(at), now, before.get(at).map(AsRef::as_ref)));
        self.inner.lanes.store(Arc::new((0..engines).map(lane).collect()));
        if let Some(tenant) = of {
            self.inner.weight.store(tenant.weight, Ordering::Relaxed);
        }
        self.inner.configured.store(of.is_some(), Ordering::Relaxed);
    }

    /// Its name; `default` is everybody who is not configured.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(super) fn id(&self) -> u16 {
        self.inner.id
    }

    pub(super) fn weight(&self) -> u32 {
        self.inner.weight.load(Ordering::Relaxed)
    }

    fn lane(&self, engine: EngineId) -> Arc<Lane> {
        Arc::clone(&self.inner.lanes.load()[usize::from(engine.0)])
    }

    /// Running and waiting on an engine.
    pub(super) fn load(&self, engine: EngineId) -> (u32, u32) {
        let lane = self.lane(engine);
        (lane.load.in_flight.load(Ordering::SeqCst), lane.load.queued.load(Ordering::SeqCst))
    }

    /// Debits a request and its estimated tokens.
    pub(super) fn charge(&self, engine: EngineId, tokens: u64) -> Result<(), Refusal> {
        let lane = self.lane(engine);
        if lane.requests.is_none() && lane.tokens.is_none() {
            return Ok(());
        }
        let now = clock::now();
        let over = |limit: &str, tokens: bool, retry_after: Duration| Refusal::RateLimited {
            tenant: self.name().to_owned(),
            limit: limit.to_owned(),
            tokens,
            retry_after,
        };
        if let Some(Rated { limit, bucket }) = lane.requests.as_deref() {
            locked(bucket).take(1, now).map_err(|wait| over(limit, false, wait))?;
        }
        if let Some(Rated { limit, bucket }) = lane.tokens.as_deref() {
            locked(bucket).take(tokens, now).map_err(|wait| {
                // It was not let pass, so it was no request.
                if let Some(requests) = &lane.requests {
                    locked(&requests.bucket).settle(1, 0, now);
                }
                over(limit, true, wait)
            })?;
        }
        Ok(())
    }

    /// Gives back what [`Tenant::charge`] took: the request is not served.
    pub(super) fn refund(&self, engine: EngineId, tokens: u64) {
        let lane = self.lane(engine);
        if let Some(requests) = &lane.requests {
            locked(&requests.bucket).settle(1, 0, clock::now());
        }
        self.settle(engine, tokens, 0);
    }

    pub(super) fn settle(&self, engine: EngineId, estimated: u64, real: u64) {
        if let Some(tokens) = &self.lane(engine).tokens {
            locked(&tokens.bucket).settle(estimated, real, clock::now());
        }
    }

    /// Whether one more may run.
    pub(super) fn has_seat(&self, engine: EngineId) -> bool {
        let lane = self.lane(engine);
        lane.limits.max_in_flight.is_none_or(|limit| lane.load.in_flight.load(Ordering::SeqCst) < limit)
    }

    /// One more runs.
    pub(super) fn seat(&self, engine: EngineId) -> Result<Seat, Refusal> {
        let lane = self.lane(engine);
        if one_more(&lane.load.in_flight, lane.limits.max_in_flight) {
            return Ok(Seat { tenant: self.clone(), engine });
        }
        Err(self.too_many(engine))
    }

    pub(super) fn too_many(&self, engine: EngineId) -> Refusal {
        Refusal::TooManyInFlight {
            tenant: self.name().to_owned(),
            limit: self.lane(engine).limits.max_in_flight.unwrap_or(u32::MAX),
            retry_after: A_MOMENT,
        }
    }

    /// One more waits.
    pub(super) fn chair(
        &self,
        engine: EngineId,
        retry_after: impl FnOnce() -> Duration,
    ) -> Result<Chair, Refusal> {
        let lane = self.lane(engine);
        if one_more(&lane.load.queued, lane.limits.max_queued) {
            return Ok(Chair { tenant: self.clone(), engine });
        }
        Err(Refusal::TooManyQueued {
            tenant: self.name().to_owned(),
            limit: lane.limits.max_queued.unwrap_or(u32::MAX),
            retry_after: retry_after(),
        })
    }

    /// A switch that its request caused took this long.
    pub(super) fn switched(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.inner.switch_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Time of switches that its requests caused.
    pub(super) fn switch_time(&self) -> Duration {
        Duration::from_nanos(self.inner.switch_ns.load(Ordering::Relaxed))
    }
}

/// One request of a tenant that runs; dropping it frees the seat.
#[derive(Debug)]
pub(super) struct Seat {
    tenant: Tenant,
    engine: EngineId,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.tenant.lane(self.engine).load.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One request of a tenant that waits.
#[derive(Debug)]
pub(super) struct Chair {
    tenant: Tenant,
    engine: EngineId,
}

impl Drop for Chair {
    fn drop(&mut self) {
        self.tenant.lane(self.engine).load.queued.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Everybody. A tenant keeps its number for the agent's life, whatever the configuration says later: queues go by it.
#[derive(Debug)]
pub(super) struct Tenants {
    all: Vec<Tenant>,
    by_key: HashMap<[u8; 32], u16>,
    by_header: HashMap<String, u16>,
    header: Option<HeaderName>,
    require_key: bool,
}

impl Tenants {
    pub(super) fn new(gateway: &config::Gateway, engines: usize) -> Self {
        Tenants::of_these(vec![Tenant::new(0, DEFAULT_TENANT)], gateway, engines)
    }

    /// By another configuration. Who is configured again goes on with what they have under way.
    pub(super) fn again(&self, gateway: &config::Gateway, engines: usize) -> Self {
        Tenants::of_these(self.all.clone(), gateway, engines)
    }

    fn of_these(mut all: Vec<Tenant>, gateway: &config::Gateway, engines: usize) -> Self {
        let is_default = |tenant: &&config::Tenant| tenant.name == DEFAULT_TENANT;
        let (mut by_key, mut by_header) = (HashMap::new(), HashMap::new());
        for tenant in gateway.tenants.iter().filter(|tenant| !is_default(tenant)) {
            let known = all.iter().position(|known| known.name() == tenant.name);
            let at = known.unwrap_or(all.len());
            let id = u16::try_from(at).unwrap_or(u16::MAX);
            if known.is_none() {
                all.push(Tenant::new(id, &tenant.name));
            }
            by_key.extend(tenant.keys.iter().map(|key| (*key, id)));
            by_header.insert(tenant.header.clone(), id);
        }
        // Whoever is not known is there in any case, and free where nothing is said of them.
        let free = config::Tenant {
            name: DEFAULT_TENANT.to_owned(),
            keys: Vec::new(),
            header: DEFAULT_TENANT.to_owned(),
            weight: 1,
            limits: Vec::new(),
        };
        for tenant in &all {
            let configured = gateway.tenants.iter().find(|t| t.name == tenant.name());
            tenant.may(configured.or((tenant.id() == 0).then_some(&free)), engines);
        }
        let header = gateway.tenant_header.as_ref().and_then(|name| name.parse().ok());
        Tenants { all, by_key, by_header, header, require_key: gateway.require_key }
    }

    /// By their numbers; also those that were configured once.
    pub(super) fn all(&self) -> &[Tenant] {
        &self.all
    }

    /// Those that are configured.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Tenant> {
        self.all.iter().filter(|tenant| tenant.inner.configured.load(Ordering::Relaxed))
    }

    /// By the trusted header, else by the API key. Whoever is not known is everybody, unless a key is demanded.
    pub(super) fn of(&self, headers: &HeaderMap) -> Result<Tenant, Refusal> {
        let named = self.header.as_ref().and_then(|name| headers.get(name));
        let by_header = named.and_then(|value| self.by_header.get(value.to_str().ok()?));
        let key = api_key(headers);
        // Nobody has a key: then nothing need be hashed.
        let by_key = || key.filter(|_| !self.by_key.is_empty()).and_then(|key| self.by_key.get(&digest(key)));
        match by_header.or_else(by_key) {
            Some(id) => Ok(self.all[usize::from(*id)].clone()),
            None if self.require_key => {
                Err(Refusal::UnknownKey { missing: named.is_none() && key.is_none() })
            }
            None => Ok(self.all[0].clone()),
        }
    }
}

/// As OpenAI's clients send it, or Anthropic's.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let value = value.as_bytes();
        let (scheme, key) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes().trim_ascii()))
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}
