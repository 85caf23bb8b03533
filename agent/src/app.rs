//! The agent: builds every part in order, and takes them down in order.
//!
//! ```text
//!   configuration (checked before anything is bound or started)
//!     └─ directories, journal (its lock keeps a second agent away), addresses of /metrics and of the gateway
//!          └─ what a former agent left: what cannot be taken over is stopped, and said
//!               └─ device and host samplers ─ the rest is taken over ─ switcher ─ gateway ─ cycles ─ schedule
//!                    └─ control socket, and both are served
//!                         └─ engines start
//! ```
//!
//! Shutdown goes the other way: no new work, what runs is finished, engines are stopped by their grace (clients are told
//! what becomes of their requests), then the gateway and the listeners close. An agent that leaves its engines to the next
//! one tells those who wait to come again, and lets answers that run end ([`leave`]).

mod leave;

use crate::adopt::{self, Finishing};
use crate::backend::Backend;
use crate::clock;
use crate::config::{self, Config, Current, OnStop};
use crate::control::{self, Allow, EventLog, Socket};
use crate::cycle::{Cycles, Parts};
use crate::device::{self, Cause, Health, Sampler, Timing};
use crate::effects::{EngineSlot, Hands, SLOW_IS_LOST, Slots, chain};
use crate::events::{Context, Incident, Recorder};
use crate::gateway::proxy::{self, Gateway, Listen, Sockets};
use crate::gateway::{Hub, Link};
use crate::host::{HostMemory, HostSampler};
use crate::inherited::{Inherited, Name};
use crate::journal::record::Record;
use crate::journal::{self, Journal};
use crate::metrics::{self, Metrics};
use crate::process::Shims;
use crate::reload::{self, Reloads};
use crate::schedule::Schedules;
use crate::status;
use crate::successor::{Connections, Listeners};
use crate::switcher::{Admission, Board, Handle, Input, Order, Switcher, spec};
use anyhow::{Context as _, bail};
use hotbunk_api::event::Happening;
use hotbunk_core::event::{By, Drain, Event, Request};
use hotbunk_core::ids::EngineId;
use hotbunk_core::spec::DrainPolicy;
use hotbunk_core::state::Node;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Name of the journal in the state directory.
pub const JOURNAL: &str = "journal.db";
/// How long the first look at a device may take before the agent goes on without it.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Events that a client of the control API may be behind.
const EVENTS: usize = 1024;
/// Batches of samples that may wait for the journal.
const BATCHES: usize = 64;

/// A running agent.
#[derive(Debug)]
pub struct App {
    /// What it goes by.
    pub config: Current,
    /// Commands and state.
    pub switcher: Handle,
    /// Everything at the edge.
    pub hands: Arc<Hands>,
    /// Cycles.
    pub cycles: Cycles,
    /// Where `/metrics` listens.
    pub metrics_address: Option<SocketAddr>,
    /// Where clients find the models.
    pub gateway_address: Option<SocketAddr>,
    /// The control API's socket.
    pub control_socket: PathBuf,
    /// What it says to those who follow.
    pub events: Arc<EventLog>,
    /// Admission of clients' requests.
    pub hub: Arc<Hub>,
    /// Applies the configuration file as it is by then.
    pub reloads: Reloads,
    schedules: Schedules,
    gateway: Option<Gateway>,
    /// What a successor is given.
    listeners: Listeners,
    /// Engines of a former agent that are not configured any more, on their way out.
    finishing: Finishing,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    switcher_task: JoinHandle<()>,
}

impl App {
    /// Builds and starts everything; engines begin to start when it returns. Once `hurry` comes, what has to be stopped
    /// meanwhile gets no grace any more.
    ///
    /// # Errors
    /// What keeps the agent from running at all, with what to do. Engines that cannot start are no such thing.
    pub async fn start(config: Config, begin: Begin, hurry: impl Future<Output = ()>) -> anyhow::Result<App> {
        let current = Current::new(config);
        let config = current.get();
        for dir in [&config.node.state_dir, &config.node.runtime_dir] {
            private_dir(dir)?;
        }
        let options = journal::Options {
            keep_entries: config.journal.retention,
            keep_samples: config.journal.sample_retention,
            max_bytes: config.journal.max_bytes,
            ..journal::Options::default()
        };
        let (journal, opened) = Journal::open_with(config.node.state_dir.join(JOURNAL), options)?;
        let metrics = Metrics::new();
        let events = Arc::new(EventLog::new(EVENTS));
        let recorder = Recorder::new(journal, metrics.clone(), Arc::clone(&events));
        let started = Record::AgentStarted {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            boot_id: opened.boot_id.clone(),
        };
        // A journal that cannot be written has said so; engines that serve must not want for an agent because of it.
        drop(recorder.record_one(&Context::none(), started).await);
        if let Some(incident) = Incident::of_open(&opened) {
            drop(recorder.record_one(&Context::none(), incident).await);
        }
        // What can be refused is refused while everything still is as it was found.
        let Inherited {
            gateway: given,
            gateway_is_ours,
            metrics: metrics_given,
            control: control_given,
            connections,
        } = begin.inherited;
        let mut listeners = Listeners::default();
        if let Some(given) = &metrics_given {
            listeners.keep(Name::Metrics, given, false)?;
        }
        if let Some(given) = &control_given {
            listeners.keep(Name::Control, given, false)?;
        }
        let metrics_listener = match (metrics_given, config.node.metrics_listen) {
            (Some(given), _) => {
                Some(of_metrics(given).context("the socket of /metrics that was handed over")?)
            }
            (None, None) => None,
            (None, Some(address)) => Some(TcpListener::bind(address).await.with_context(|| {
                format!("/metrics cannot listen on {address}; set `metrics_listen` to another address")
            })?),
        };
        let on = match config.gateway.listen {
            _ if given.is_empty() => config.gateway.listen.map(Listen::Address),
            _ if gateway_is_ours => Some(Listen::Former(given)),
            _ => Some(Listen::Sockets(given)),
        };
        let clients = on.map(|on| Sockets::bind(on, proxy::threads(&config.gateway))).transpose()?;
        if let Some((sockets, ours)) = clients.as_ref().map(Sockets::all) {
            for socket in sockets {
                listeners.keep(Name::Gateway, socket, ours)?;
            }
        }
        let mut left = adopt::look(&config, &recorder, begin.former == Former::TakeOver, hurry).await?;
        let left_alone = left.left_alone.clone();
        let finishing = left.finish(&recorder, config.policy.drain_deadline);

        let sampler = devices(&config).await?;
        let memory = |name: &str| {
            let at = config.devices.iter().position(|d| d.name == name)?;
            sampler.info(device_id(at)).map(|info| info.usable_bytes())
        };
        let host_total = HostMemory::read().ok().map(|m| m.total);
        let mut node = Node::new(
            spec::engines(&config, memory),
            spec::devices(&config, memory),
            spec::policy(&config, host_total),
            opened.next_operation.0,
        );
        let slots: Vec<Arc<EngineSlot>> = config
            .engines
            .iter()
            .enumerate()
            .map(|(at, e)| {
                metrics.engine(&e.name);
                Arc::new(EngineSlot::new(e.clone(), config.fingerprint(at).unwrap_or_default()))
            })
            .collect();
        remember_footprints(&mut node, &slots, &recorder).await;
        let taken = adopt::take_over(&mut node, &slots, left, &sampler, &recorder).await;

        let (inputs, received) = mpsc::unbounded_channel();
        let slots = Slots::new(slots);
        let trees = slots.clone();
        let host = HostSampler::spawn(move || process_trees(&trees), config.node.sampling.host)
            .context("the host sampler cannot be started")?;
        let shims = Shims {
            state_dir: config.node.state_dir.clone(),
            runtime_dir: config.node.runtime_dir.clone(),
            shim_exe: PathBuf::from("/proc/self/exe"),
            use_cgroup: true,
        };
        let hub = Hub::new(&config, metrics.clone());
        let tell = inputs.clone();
        let hands = Arc::new(Hands {
            engines: slots,
            sampler,
            host,
            shims,
            hub: Arc::clone(&hub),
            recorder,
            left_alone,
            inputs,
        });
        for a in &taken.adoption.engines {
            let slot = hands.slot(a.engine);
            if let Some(process) = slot.process() {
                let life = a.kept.as_ref().map_or(1, |kept| kept.life);
                hands.watch(slot, a.engine, life, &process);
            }
        }
        let board = Board::new(Arc::clone(&events));
        let (switcher, handle) =
            Switcher::new(node, Arc::clone(&hands), received, board, config.node.reconcile_interval);
        let needs_journal = config.journal.on_failure == config::OnFailure::RefuseSwitching;
        let switcher = switcher.needing_the_journal(needs_journal);
        // Before anything else reaches it.
        handle.take(taken);
        hub.attach(Link {
            // An error means that the switcher has ended.
            tell: Box::new(move |event| drop(tell.send(Input::Event(event)))),
            node: handle.watch(),
        });
        // Connections have been waiting; they are accepted now that demand has somewhere to go.
        let start = |sockets| Gateway::start(sockets, Arc::clone(&hub));
        let gateway = clients.map(start).transpose()?;
        let gateway_address = gateway.as_ref().map(Gateway::address);
        if let Some(address) = gateway_address {
            hub.listens_on(address);
        }
        if let Some(takes) = gateway.as_ref().map(Gateway::takes) {
            connections.into_iter().for_each(|connection| takes.take(connection));
        }
        let (stop, stopping) = watch::channel(false);
        let switcher_task = tokio::spawn(switcher.run(stopping.clone()));
        let mut tasks = sample_tasks(&hands);
        tasks.extend(device_tasks(&hands, &handle));
        tasks.push(tokio::spawn(metrics::upkeep(metrics.clone())));
        let cycles = Cycles::new(Parts {
            switcher: handle.clone(),
            hands: Arc::clone(&hands),
            config: current.clone(),
            events: Arc::clone(&events),
        });
        let schedules = Schedules::new(cycles.clone(), handle.clone());
        let reloads = Reloads::new(reload::Parts {
            config: current.clone(),
            switcher: handle.clone(),
            hands: Arc::clone(&hands),
            cycles: cycles.clone(),
            schedules: schedules.clone(),
        });

        let metrics_address = metrics_listener.and_then(|listener| {
            let bound = listener.local_addr().ok();
            tasks.push(tokio::spawn(serve_metrics(listener, metrics, stopping.clone())));
            bound
        });
        let control_socket = config.node.control_socket();
        let socket = match control_given {
            Some(given) => Socket::given(given, &control_socket)?,
            None => Socket::bind(&control_socket, None)?,
        };
        let backend = Backend::new(
            current.clone(),
            handle.clone(),
            Arc::clone(&hands),
            cycles.clone(),
            Arc::clone(&events),
            reloads.clone(),
        );
        tasks.push(tokio::spawn(serve_control(socket, backend, stopping.clone())));
        schedules.set(&config.schedules);

        let awake = match begin.engines {
            Engines::Start => {
                let id = |at: &usize| EngineId(u16::try_from(*at).unwrap_or(u16::MAX));
                handle.tell(Event::Boot { awake: config.policy.awake_at_start.iter().map(id).collect() });
                config.policy.awake_at_start.iter().map(|at| config.engines[*at].name.as_str()).collect()
            }
            Engines::Leave => Vec::new(),
        };
        tracing::info!(
            control = %control_socket.display(),
            metrics = metrics_address.map(|a| a.to_string()),
            gateway = gateway_address.map(|a| a.to_string()),
            engines = config.engines.len(),
            awake = awake.join(", "),
            "the agent is up"
        );
        Ok(App {
            config: current,
            switcher: handle,
            hands,
            cycles,
            metrics_address,
            gateway_address,
            control_socket,
            events,
            hub,
            reloads,
            schedules,
            gateway,
            listeners,
            finishing,
            stop,
            tasks,
            switcher_task,
        })
    }

    /// Serves clients whose connections a former agent has kept until now.
    pub fn take(&mut self, connections: Connections) {
        if let Some(gateway) = &self.gateway {
            self.tasks.push(tokio::spawn(connections.give(gateway.takes())));
        }
    }

    /// Ends what runs, stops every engine by its grace, and closes. What is not over by the configured limit, or when
    /// `hurry` comes, is killed.
    ///
    /// Engines that are left go on serving; what is under way is waited for within the same limit, and is otherwise the
    /// next agent's to finish, as after a crash.
    pub async fn shutdown(mut self, reason: &str, engines: OnStop, hurry: impl Future<Output = ()>) {
        // No handle of a listener is left when the gateway closes it.
        self.listeners = Listeners::default();
        self.events.publish(clock::epoch(), Happening::Stopping { reason: reason.to_owned() });
        let run = self.cycles.give_up();
        if engines == OnStop::Leave {
            return self.leave(reason, run, hurry).await;
        }
        self.switcher.tell(Event::Close);
        let mut finishing = std::mem::take(&mut self.finishing);
        let orderly = async {
            tokio::join!(self.stop_engines(), finishing.stop());
            // Its end stands in the journal before the agent's.
            if let Some(run) = run {
                run.over().await;
            }
        };
        let limit = tokio::time::sleep(self.config.get().node.shutdown_grace);
        tokio::select! {
            () = orderly => {}
            () = limit => tracing::warn!("not everything ended in time; what is left is killed"),
            () = hurry => tracing::warn!("told to hurry; what is left is killed"),
        }
        finishing.kill().await;
        for slot in self.hands.engines.all().iter() {
            let ended = slot.stop(Duration::ZERO).await;
            if ended.left > 0 {
                tracing::error!(engine = slot.config.name, left = ended.left, "processes could not be ended");
            }
        }
        self.close(reason).await;
    }

    async fn close(self, reason: &str) {
        // Whoever was waiting or being answered has been told by now.
        if let Some(gateway) = self.gateway {
            gateway.stop().await;
        }
        let stopped = Record::AgentStopped { reason: reason.to_owned() };
        drop(self.hands.recorder.record_one(&Context::none(), stopped).await);
        self.stop.send_replace(true);
        // The listeners end by themselves; the rest only ever waits.
        drop(self.switcher_task.await);
        self.schedules.end();
        for task in self.tasks {
            task.abort();
            // What it listened on is free for the next agent.
            drop(task.await);
        }
        drop(self.hands.recorder.journal().flush().await);
        self.hands.recorder.journal().clone().close().await;
        tracing::info!("the agent has stopped");
    }

    /// Ends the processes that are still starting. They serve nobody, a start may take minutes, and a stop waits behind
    /// the start that is running: so the process goes first, and its start with it.
    async fn end_starts(&self) {
        let mut nodes = self.switcher.watch();
        loop {
            let node = Arc::clone(&nodes.borrow_and_update());
            let starts = |id: &EngineId| {
                let engine = node.engine(*id);
                engine.process && !engine.dead && engine.capabilities.is_none()
            };
            let starting: Vec<EngineId> = node.ids().filter(starts).collect();
            for id in &starting {
                let slot = self.hands.slot(*id);
                slot.stop(slot.config.stop_grace).await;
            }
            // One whose process is only about to be there is met at its next step.
            if starting.is_empty() || nodes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn stop_engines(&self) {
        self.end_starts().await;
        for engine in self.switcher.node().ids() {
            let drain = Drain { policy: Some(DrainPolicy::Abort), deadline: None };
            let request = Request::Stop { engine, drain };
            let order = Order { request, by: By::Agent, run: None, client: None };
            match self.switcher.submit(order).await {
                Admission::Begun(id) | Admission::Queued(id) | Admission::Joined(id) => {
                    self.switcher.wait(id).await;
                }
                Admission::Nothing(_) | Admission::Refused(_) => {}
            }
        }
    }
}

/// How to begin.
#[derive(Debug)]
pub struct Begin {
    /// Whether engines start.
    pub engines: Engines,
    /// What becomes of those that run.
    pub former: Former,
    /// Sockets that were handed over, and that agree with the configuration.
    pub inherited: Inherited,
}

/// What becomes of what a former agent left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// It is taken over.
    TakeOver,
    /// It is stopped.
    Stop,
}

/// Whether the engines start with the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engines {
    /// Those that the configuration says so of.
    Start,
    /// None: a cycle starts them.
    Leave,
}

fn device_id(at: usize) -> hotbunk_core::ids::DeviceId {
    hotbunk_core::ids::DeviceId(u16::try_from(at).unwrap_or(u16::MAX))
}

fn of_metrics(given: std::net::TcpListener) -> std::io::Result<TcpListener> {
    given.set_nonblocking(true)?;
    TcpListener::from_std(given)
}

fn private_dir(dir: &std::path::Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).with_context(|| {
        format!("{} cannot be made; create it, or name another in the configuration", dir.display())
    })
}

async fn devices(config: &Config) -> anyhow::Result<Sampler> {
    let source = |d: &config::Device| match &d.source {
        config::Source::Nvml(config::Selector::Uuid(uuid)) => {
            device::Source::Nvml(device::Selector::Uuid(uuid.clone()))
        }
        config::Source::Nvml(config::Selector::Index(index)) => {
            device::Source::Nvml(device::Selector::Index(*index))
        }
        config::Source::Simulated { ledger } => device::Source::simulated(ledger.clone()),
        config::Source::None => device::Source::None,
    };
    let specs = config
        .devices
        .iter()
        .map(|d| device::DeviceSpec { name: d.name.clone(), source: source(d) })
        .collect();
    let timing =
        Timing { rest: config.node.sampling.device, fast: config.node.sampling.handoff, ..Timing::default() };
    let sampler = Sampler::spawn(specs, config.node.nvml_library.clone(), timing)?;
    for (name, outcome) in sampler.opened(FIRST_LOOK).await {
        match outcome {
            Ok(info) => tracing::info!(device = name, uuid = info.uuid, model = info.model, "device found"),
            Err(error) if error.is_configuration() => bail!("{}", error.sentence()),
            Err(error) => tracing::warn!(
                device = name,
                error = error.sentence(),
                "the device cannot be read: handoffs, which need to see memory released, are refused until it can be"
            ),
        }
    }
    Ok(sampler)
}

/// What was measured before counts until it is measured again, if the engine is started with the same settings.
async fn remember_footprints(node: &mut Node, slots: &[Arc<EngineSlot>], recorder: &Recorder) {
    let rows = match recorder.journal().read(|reader| reader.footprints()).await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(error = chain(&error), "footprints measured before are not known");
            return;
        }
    };
    for (engine, slot) in node.engines.iter_mut().zip(slots) {
        engine.footprints = reload::footprints(&rows, &slot.config.name, &slot.fingerprint);
    }
}

fn process_trees(slots: &Slots) -> HashMap<String, Vec<u32>> {
    slots.all().iter().filter_map(|slot| Some((slot.config.name.clone(), slot.process()?.pids()))).collect()
}

fn sample_tasks(hands: &Arc<Hands>) -> Vec<JoinHandle<()>> {
    let mut device_rows = hands.sampler.subscribe(BATCHES);
    let mut host_rows = hands.host.subscribe(BATCHES);
    let (device_recorder, host_recorder) = (hands.recorder.clone(), hands.recorder.clone());
    vec![
        tokio::spawn(async move {
            while let Some(rows) = device_rows.recv().await {
                device_recorder.samples(rows);
            }
        }),
        tokio::spawn(async move {
            while let Some(rows) = host_rows.recv().await {
                host_recorder.host_samples(rows);
            }
        }),
    ]
}

/// Tells of each device's health as it changes, and of its size as soon as it is known.
fn device_tasks(hands: &Arc<Hands>, switcher: &Handle) -> Vec<JoinHandle<()>> {
    let follow = |at: usize| {
        let id = device_id(at);
        let mut health = hands.sampler.health_changes(id)?;
        let (hands, switcher) = (Arc::clone(hands), switcher.clone());
        Some(tokio::spawn(async move {
            loop {
                let device = status::device(&switcher.node(), &hands, id);
                if let Some(info) = hands.sampler.info(id) {
                    hands.recorder.metrics().device_total(&device.name, info.total_bytes);
                }
                hands
                    .recorder
                    .events()
                    .publish(clock::epoch(), Happening::Device { device: Box::new(device) });
                let is_slow = matches!(*health.borrow(), Health::Degraded { cause: Cause::Slow, .. });
                tokio::select! {
                    changed = health.changed() => if changed.is_err() {
                        return;
                    },
                    // What lasts becomes a loss without a further change.
                    () = tokio::time::sleep(SLOW_IS_LOST + Duration::from_millis(50)), if is_slow => {}
                }
                // At once, not at the next periodic look: what needs evidence must not begin without it.
                if let Some(event) = hands.device_event(id) {
                    drop(hands.inputs.send(Input::Event(event)));
                }
            }
        }))
    };
    (0..switcher.node().devices.len()).filter_map(follow).collect()
}

async fn until(mut stop: watch::Receiver<bool>) {
    // The sender lives as long as the agent.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn serve_metrics(listener: TcpListener, metrics: Metrics, stop: watch::Receiver<bool>) {
    if let Err(error) = metrics::serve(listener, metrics, until(stop)).await {
        tracing::error!(error = chain(&error), "/metrics");
    }
}

/// The group that may operate the node beside root and the agent's own user: the agent's own group, where it has one
/// of its own (the service unit gives it `hotbunk`).
fn operators() -> Option<u32> {
    Some(rustix::process::getegid()).filter(|gid| !gid.is_root()).map(|gid| gid.as_raw())
}

async fn serve_control(socket: Socket, backend: Backend, stop: watch::Receiver<bool>) {
    if let Err(error) = control::serve(socket, backend, Allow::own(operators()), until(stop)).await {
        tracing::error!(error = chain(&error), "control API");
    }
}
