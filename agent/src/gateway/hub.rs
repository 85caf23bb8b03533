//! Where requests and engines meet: one for the node.

use super::face::{Face, Serves};
use super::follow::Moves;
use super::held::Held;
use super::lease::{Aborted, Lease};
use super::line::{Bytes, Line, Standing, TurnedAway, Waiter};
use super::refusal::Refusal;
use super::tenant::{Tenant, Tenants};
use crate::clock;
use crate::config::{self, Config};
use crate::metrics::Metrics;
use arc_swap::{ArcSwap, Guard};
use hotbunk_core::demand::{self, Never};
use hotbunk_core::event::{Event, Use};
use hotbunk_core::ids::EngineId;
use hotbunk_core::state::Node;
use hyper::HeaderMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// When to ask again where nothing is known.
const SOME_TIME: Duration = Duration::from_secs(10);

/// When to ask again where the next agent is about to come.
pub(crate) const BACK: Duration = Duration::from_secs(2);

/// A request, as far as admission needs it.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    /// The engine of its model.
    pub engine: EngineId,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Bytes of its body, which wait with it.
    pub body_bytes: u64,
    /// What it may cost, prompt and answer together; put right by [`Lease::settle`].
    pub tokens_estimate: u64,
    /// It must not cause a switch.
    pub no_switch: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Admit {
    /// It may be sent.
    Go(Lease),
    /// It waits.
    Hold(Held),
    /// It is not served.
    Refuse(Refusal),
}

/// A model id that clients may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The id.
    pub id: String,
    /// The engine that serves it.
    pub engine: EngineId,
    /// The engine's name.
    pub engine_name: String,
    /// The model's own id, where this one is an alias.
    pub alias_of: Option<String>,
    /// The engine's tier, or why it is in none.
    pub tier: &'static str,
}

/// When an engine should serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eta {
    /// It does.
    Serving,
    /// After about this time.
    In(Duration),
    /// Nobody knows.
    Unknown,
}

/// The hub's way to the switcher, which comes into being after it.
pub struct Link {
    /// Tells it of demand and use.
    pub tell: Box<dyn Fn(Event) + Send + Sync>,
    /// Its newest state.
    pub node: watch::Receiver<Arc<Node>>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Hub {
    /// By engine id; it only grows, and is read without a lock while it does.
    lines: boxcar::Vec<Line>,
    face: ArcSwap<Face>,
    /// Bytes of bodies that wait.
    pub(super) bytes: AtomicU64,
    /// Requests that wait, all engines together.
    pub(super) held: AtomicU32,
    pub(super) metrics: Metrics,
    pub(super) moves: Mutex<Moves>,
    link: OnceLock<Link>,
    address: OnceLock<SocketAddr>,
    leaving: AtomicBool,
}

impl Hub {
    /// A hub whose gates are all closed.
    pub fn new(config: &Config, metrics: Metrics) -> Arc<Self> {
        let tenants = Arc::new(Tenants::new(&config.gateway, config.engines.len()));
        let serves = config.engines.iter().map(|engine| Some(engine.into())).collect();
        let hub = Arc::new(Hub {
            lines: boxcar::Vec::new(),
            face: ArcSwap::from_pointee(Face::new(serves, tenants, Arc::new(config.gateway.clone()))),
            bytes: AtomicU64::new(0),
            held: AtomicU32::new(0),
            metrics,
            moves: Mutex::default(),
            link: OnceLock::new(),
            address: OnceLock::new(),
            leaving: AtomicBool::new(false),
        });
        config.engines.iter().for_each(|engine| hub.grow(engine));
        let measured = Arc::downgrade(&hub);
        hub.metrics.before_scrape(move |metrics| {
            if let Some(hub) = measured.upgrade() {
                hub.measure(metrics);
            }
        });
        hub
    }

    /// Gives it its way to the switcher; the first one counts.
    pub fn attach(&self, link: Link) {
        drop(self.link.set(link));
    }

    /// One more engine, of the next id. Its models can be asked for once [`Hub::configure`] names them.
    pub(crate) fn grow(&self, engine: &config::Engine) {
        let id = EngineId(u16::try_from(self.lines.count()).unwrap_or(u16::MAX));
        self.lines.push(Line::new(id, engine));
    }

    /// Another configuration, of the same engines and such as were added since. `in_force` is an engine with the settings
    /// that its process runs with, where the configured ones wait for its next one: what is served is still what those say.
    ///
    /// Limits and counts of a tenant go on where they were. Whoever asks for a model of an engine that is not configured any
    /// more is told that there is none from now on; what was asked for before is finished.
    pub(crate) fn configure(
        self: &Arc<Self>,
        config: &Config,
        in_force: impl Fn(EngineId) -> Option<Arc<crate::effects::EngineSlot>>,
    ) {
        let mut serves: Vec<Option<Serves>> = Vec::new();
        for (line, engine) in self.lines().zip(&config.engines) {
            let waits = in_force(line.id);
            serves.push(match (&waits, engine.retired) {
                (_, true) => None,
                (Some(slot), false) => Some((&slot.config).into()),
                (None, false) => Some(engine.into()),
            });
            line.limit_to(engine.max_in_flight);
        }
        let tenants = self.face().tenants.again(&config.gateway, config.engines.len());
        self.face.store(Arc::new(Face::new(serves, Arc::new(tenants), Arc::new(config.gateway.clone()))));
        // There may be room by the new limits.
        self.lines().for_each(|line| line.pump(self));
    }

    /// Newer settings of an engine are in force.
    pub(crate) fn revised(&self, id: EngineId, engine: &config::Engine) {
        self.line(id).revised(engine);
        self.face.store(Arc::new(self.face().serving(id, engine)));
    }

    /// What clients find, as it is now.
    pub(super) fn face(&self) -> Guard<Arc<Face>> {
        self.face.load()
    }

    /// The endpoint's settings, as they are now.
    pub(super) fn settings(&self) -> Arc<config::Gateway> {
        Arc::clone(&self.face().settings)
    }

    /// All engines, in the order of their ids.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().map(|(_, line)| line)
    }

    pub(super) fn line(&self, engine: EngineId) -> &Line {
        &self.lines[usize::from(engine.0)]
    }

    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.link.get().map(|link| Arc::clone(&link.node.borrow()))
    }

    pub(super) fn tell(&self, told: Event) {
        if let Some(link) = self.link.get() {
            (link.tell)(told);
        }
    }

    /// Every id that a request may name, in the configuration's order, with the engine's tier now.
    pub fn models(&self) -> Vec<Model> {
        let mut models = self.face().models.clone();
        if let Some(node) = self.node() {
            for model in &mut models {
                model.tier = node.engine(model.engine).condition_word();
            }
        }
        models
    }

    /// The engine of a model or an alias.
    pub fn resolve(&self, model: &str) -> Option<EngineId> {
        self.face().names.get(model).copied()
    }

    /// Whose request it is.
    ///
    /// # Errors
    /// It must say so, and does not.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Tenant, Refusal> {
        self.face().tenants.of(headers)
    }

    /// Lets a request pass, lets it wait, or refuses it. Never blocks for longer than a queue operation takes.
    pub fn admit(self: &Arc<Self>, tenant: &Tenant, ask: Ask) -> Admit {
        match self.try_admit(tenant, ask) {
            Ok(admit) => admit,
            Err(refusal) => {
                self.refused(ask.engine, &refusal);
                Admit::Refuse(refusal)
            }
        }
    }

    fn try_admit(self: &Arc<Self>, tenant: &Tenant, ask: Ask) -> Result<Admit, Refusal> {
        let line = self.line(ask.engine);
        tenant.charge(ask.engine, ask.tokens_estimate)?;
        let refund = |refusal| {
            tenant.refund(ask.engine, ask.tokens_estimate);
            refusal
        };
        // Whoever comes later does not overtake those who wait.
        if line.held() == 0 {
            match tenant.seat(ask.engine) {
                Ok(seat) => {
                    if let Some(stamp) = line.enter() {
                        let lease = line.lease(self, stamp, tenant.clone(), seat, ask.tokens_estimate);
                        return Ok(Admit::Go(lease));
                    }
                }
                Err(refusal) if line.gate.is_open() => return Err(refund(refusal)),
                Err(_) => {}
            }
        } else if line.gate.is_open() && !tenant.has_seat(ask.engine) {
            return Err(refund(tenant.too_many(ask.engine)));
        }
        self.hold(line, tenant, ask).map_err(refund)
    }

    fn hold(self: &Arc<Self>, line: &Line, tenant: &Tenant, ask: Ask) -> Result<Admit, Refusal> {
        let full = |what: String| Refusal::QueueFull { what, retry_after: self.retry_after(line.id) };
        let would_switch = || Refusal::WouldSwitch { state: self.state(line.id).to_owned() };
        if self.is_leaving() {
            return Err(Refusal::Restarting { retry_after: BACK });
        }
        if ask.no_switch && !line.gate.is_open() {
            return Err(would_switch());
        }
        // Asked of the first one only: the others wait for what it waits for.
        if line.held() == 0
            && !line.gate.is_open()
            && let Some(refusal) = self.in_vain(line.id)
        {
            return Err(refusal);
        }
        let settings = self.settings();
        let most = settings.hold_requests;
        if line.held() >= most {
            return Err(full(format!("{most} requests wait for this model already")));
        }
        let Some(bytes) = Bytes::take(self, settings.hold_bytes, ask.body_bytes) else {
            return Err(full("the requests that wait have used up the memory for their bodies".to_owned()));
        };
        let chair = tenant.chair(line.id, || self.retry_after(line.id))?;
        let (answer, mut received) = oneshot::channel();
        let since = clock::now();
        let waiter = Waiter {
            answer,
            tenant: tenant.clone(),
            since,
            tokens_estimate: ask.tokens_estimate,
            no_switch: ask.no_switch,
            _bytes: bytes,
            _chair: chair,
        };
        let place = line.wait(self, waiter).map_err(|turned_away| match turned_away {
            TurnedAway::Standing(standing, trouble) => self.because(line, &standing, trouble),
            TurnedAway::WouldSwitch => would_switch(),
        })?;
        // There was room by now.
        if let Ok(answer) = received.try_recv() {
            return answer.map(Admit::Go);
        }
        let limit = if ask.stream { settings.hold_stream_deadline } else { settings.hold_deadline };
        Ok(Admit::Hold(Held {
            hub: Arc::clone(self),
            engine: line.id,
            place,
            since,
            limit,
            answer: received,
            timer: None,
            over: false,
        }))
    }

    /// A lease has ended.
    pub(super) fn left(self: &Arc<Self>, engine: EngineId) {
        let line = self.line(engine);
        let left = line.gate.leave();
        if left.open {
            line.pump(self);
        } else if left.in_flight == 0 {
            // Whoever was frozen has gone.
            line.freeze(self, false, clock::now());
        }
        if left.in_flight == 0 && self.held.load(Ordering::SeqCst) > 0 {
            let used = Use { engine, in_flight: line.gate.in_flight(), at: line.used_at() };
            self.tell(Event::Uses(vec![used]));
        }
    }

    pub(super) fn refused(&self, engine: EngineId, refusal: &Refusal) {
        self.metrics.gateway_refused(&self.line(engine).name, refusal.code());
    }

    fn state(&self, engine: EngineId) -> &'static str {
        self.node().map_or("stopped", |node| node.engine(engine).condition_word())
    }

    /// When an engine should serve.
    pub fn eta(&self, engine: EngineId) -> Eta {
        if self.line(engine).gate.is_open() {
            return Eta::Serving;
        }
        let node = self.node();
        match node.map(|node| demand::eta(&node, engine, clock::now())) {
            Some(demand::Eta::Serving) => Eta::Serving,
            Some(demand::Eta::In(time)) => Eta::In(time),
            Some(demand::Eta::Never(_)) | None => Eta::Unknown,
        }
    }

    /// When asking again for an engine may help.
    pub(super) fn retry_after(&self, engine: EngineId) -> Duration {
        match self.eta(engine) {
            Eta::Serving => Duration::from_secs(1),
            Eta::In(time) => time,
            Eta::Unknown => SOME_TIME,
        }
    }

    /// Why waiting for an engine would be in vain, as things are.
    fn in_vain(&self, engine: EngineId) -> Option<Refusal> {
        match demand::eta(self.node()?.as_ref(), engine, clock::now()) {
            demand::Eta::Never(Never::Refused(why)) => {
                Some(Refusal::NoWay { reason: why.to_string(), retry_after: SOME_TIME })
            }
            _ => None,
        }
    }

    /// What whoever cannot wait is told.
    pub(super) fn because(&self, line: &Line, standing: &Standing, trouble: Option<String>) -> Refusal {
        let reason = || trouble.unwrap_or_else(|| "see `ctl journal`".to_owned());
        match standing {
            Standing::Failed(reason) => Refusal::EngineFailed { reason: reason.clone() },
            Standing::May | Standing::Down => {
                Refusal::EngineDown { reason: reason(), retry_after: self.retry_after(line.id) }
            }
            Standing::Paused => Refusal::Paused { retry_after: SOME_TIME },
            Standing::Leaving => Refusal::Restarting { retry_after: BACK },
            Standing::Closing => Refusal::ShuttingDown { retry_after: SOME_TIME },
            Standing::Retired => Refusal::NotConfigured,
        }
    }

    /// Whether an engine's gate is closed and no lease is left. An event.
    pub async fn drained(&self, engine: EngineId) {
        self.line(engine).gate.drained().await;
    }

    /// Ends the leases of an engine: the drain policy is `abort`.
    pub fn abort(&self, engine: EngineId) {
        self.line(engine).abort(Aborted::Drain);
    }

    /// The agent goes and leaves the engines to another one. Whoever waits is told so, and from now on nobody waits:
    /// a queue cannot be handed over. What runs goes on, and whoever finds an open gate may still pass.
    pub fn leave(self: &Arc<Self>) {
        self.leaving.store(true, Ordering::SeqCst);
        for line in self.lines() {
            line.stand(self, Standing::Leaving);
        }
    }

    /// Whether [`Hub::leave`] has been called.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Closes every gate for good: the engines are another's. What runs in them goes on.
    pub fn shut(&self) {
        for line in self.lines() {
            line.gate.close();
        }
    }

    /// Ends every lease there is: whoever has been left time has had it.
    pub fn cut(&self) {
        for line in self.lines() {
            line.abort(Aborted::Leaving);
        }
    }

    /// Leases, all engines together.
    pub fn all_in_flight(&self) -> u32 {
        self.lines().map(|line| line.gate.in_flight()).sum()
    }

    /// Where the endpoint listens, for those who ask; the first word counts.
    pub fn listens_on(&self, address: SocketAddr) {
        // Once it is said it stays so.
        let _ = self.address.set(address);
    }

    pub(super) fn bound(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// Whether there is an endpoint in front of it: otherwise its counts say nothing about the engines.
    pub fn listens(&self) -> bool {
        self.face().settings.listen.is_some()
    }

    /// Leases of an engine.
    pub fn in_flight(&self, engine: EngineId) -> u32 {
        self.line(engine).gate.in_flight()
    }

    /// Those of them that nobody waits for any more, and of which it is not known that the engine has taken notice.
    pub fn hung_up(&self, engine: EngineId) -> u32 {
        self.line(engine).hung_up.load(Ordering::SeqCst)
    }

    /// Requests that wait for an engine.
    pub fn held(&self, engine: EngineId) -> u32 {
        self.line(engine).held()
    }
}
