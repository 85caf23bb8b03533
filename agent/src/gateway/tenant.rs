//! Whose request it is, and what they may do.

use super::refusal::Refusal;
use crate::clock;
use crate::config;
use crate::config::gateway::DEFAULT_TENANT;
use hotbunk_core::bucket::{Bucket, Rate};
use hotbunk_core::ids::EngineId;
use hotbunk_core::time::Moment;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
    weight: u32,
    lanes: Vec<Lane>,
    switch_ns: AtomicU64,
}

/// One tenant on one engine.
#[derive(Debug)]
struct Lane {
    max_in_flight: Option<u32>,
    max_queued: Option<u32>,
    in_flight: AtomicU32,
    queued: AtomicU32,
    requests: Option<(String, Mutex<Bucket>)>,
    tokens: Option<(String, Mutex<Bucket>)>,
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
    fn new(limits: config::Limits, now: Moment) -> Self {
        let requests = limits.requests_per_second.map(|per_second| {
            let rate = requests_rate(per_second, limits.burst);
            (format!("{per_second} requests/s"), Mutex::new(Bucket::new(rate, now)))
        });
        let tokens = limits.tokens_per_minute.map(|per_minute| {
            let amount = u64::from(per_minute.max(1));
            let rate = Rate { amount, period: Duration::from_secs(60), burst: amount };
            (format!("{per_minute} tokens/min"), Mutex::new(Bucket::new(rate, now)))
        });
        Lane {
            max_in_flight: limits.max_in_flight,
            max_queued: limits.max_queued,
            in_flight: AtomicU32::new(0),
            queued: AtomicU32::new(0),
            requests,
            tokens,
        }
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
    fn new(id: u16, name: &str, weight: u32, limits: impl Iterator<Item = config::Limits>) -> Self {
        let now = clock::now();
        let lanes = limits.map(|l| Lane::new(l, now)).collect();
        let inner = Inner { id, name: name.to_owned(), weight, lanes, switch_ns: AtomicU64::new(0) };
        Tenant { inner: Arc::new(inner) }
    }

    /// Its name; `default` is everybody who is not configured.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub(super) fn id(&self) -> u16 {
        self.inner.id
    }

    pub(super) fn weight(&self) -> u32 {
        self.inner.weight
    }

    fn lane(&self, engine: EngineId) -> &Lane {
        &self.inner.lanes[usize::from(engine.0)]
    }

    /// Running and waiting on an engine.
    pub(super) fn load(&self, engine: EngineId) -> (u32, u32) {
        let lane = self.lane(engine);
        (lane.in_flight.load(Ordering::SeqCst), lane.queued.load(Ordering::SeqCst))
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
        if let Some((limit, bucket)) = &lane.requests {
            locked(bucket).take(1, now).map_err(|wait| over(limit, false, wait))?;
        }
        if let Some((limit, bucket)) = &lane.tokens {
            locked(bucket).take(tokens, now).map_err(|wait| {
                // It was not let pass, so it was no request.
                if let Some((_, requests)) = &lane.requests {
                    locked(requests).settle(1, 0, now);
                }
                over(limit, true, wait)
            })?;
        }
        Ok(())
    }

    /// Gives back what [`Tenant::charge`] took: the request is not served.
    pub(super) fn refund(&self, engine: EngineId, tokens: u64) {
        let lane = self.lane(engine);
        if let Some((_, bucket)) = &lane.requests {
            locked(bucket).settle(1, 0, clock::now());
        }
        self.settle(engine, tokens, 0);
    }

    pub(super) fn settle(&self, engine: EngineId, estimated: u64, real: u64) {
        if let Some((_, bucket)) = &self.lane(engine).tokens {
            locked(bucket).settle(estimated, real, clock::now());
        }
    }

    /// Whether one more may run.
    pub(super) fn has_seat(&self, engine: EngineId) -> bool {
        let lane = self.lane(engine);
        lane.max_in_flight.is_none_or(|limit| lane.in_flight.load(Ordering::SeqCst) < limit)
    }

    /// One more runs.
    pub(super) fn seat(&self, engine: EngineId) -> Result<Seat, Refusal> {
        let lane = self.lane(engine);
        if one_more(&lane.in_flight, lane.max_in_flight) {
            return Ok(Seat { tenant: self.clone(), engine });
        }
        Err(self.too_many(engine))
    }

    pub(super) fn too_many(&self, engine: EngineId) -> Refusal {
        Refusal::TooManyInFlight {
            tenant: self.name().to_owned(),
            limit: self.lane(engine).max_in_flight.unwrap_or(u32::MAX),
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
        if one_more(&lane.queued, lane.max_queued) {
            return Ok(Chair { tenant: self.clone(), engine });
        }
        Err(Refusal::TooManyQueued {
            tenant: self.name().to_owned(),
            limit: lane.max_queued.unwrap_or(u32::MAX),
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
        self.tenant.lane(self.engine).in_flight.fetch_sub(1, Ordering::SeqCst);
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
        self.tenant.lane(self.engine).queued.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Everybody.
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
        let is_default = |tenant: &&config::Tenant| tenant.name == DEFAULT_TENANT;
        let anybody = match gateway.tenants.iter().find(is_default) {
            Some(t) => Tenant::new(0, &t.name, t.weight, t.limits.iter().copied()),
            None => {
                let free = std::iter::repeat_n(config::Limits::default(), engines);
                Tenant::new(0, DEFAULT_TENANT, 1, free)
            }
        };
        let mut all = vec![anybody];
        let (mut by_key, mut by_header) = (HashMap::new(), HashMap::new());
        for tenant in gateway.tenants.iter().filter(|tenant| !is_default(tenant)) {
            let id = u16::try_from(all.len()).unwrap_or(u16::MAX);
            by_key.extend(tenant.keys.iter().map(|key| (*key, id)));
            by_header.insert(tenant.header.clone(), id);
            all.push(Tenant::new(id, &tenant.name, tenant.weight, tenant.limits.iter().copied()));
        }
        let header = gateway.tenant_header.as_ref().and_then(|name| name.parse().ok());
        Tenants { all, by_key, by_header, header, require_key: gateway.require_key }
    }

    pub(super) fn all(&self) -> &[Tenant] {
        &self.all
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
