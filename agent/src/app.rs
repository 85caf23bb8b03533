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

mod devices;
mod leave;
mod shutdown;
mod tasks;

use crate::adopt::{self, Finishing};
use crate::backend::Backend;
use crate::config::{self, Config, Current};
use crate::control::{EventLog, Socket};
use crate::cycle::{Cycles, Parts};
use crate::effects::{EngineSlot, Hands, Slots, chain};
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
use crate::successor::{Connections, Listeners};
use crate::switcher::{Board, Handle, Input, Switcher, spec};
use anyhow::Context as _;
use hotbunk_core::event::Event;
use hotbunk_core::ids::EngineId;
use hotbunk_core::state::Node;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// Name of the journal in the state directory.
pub const JOURNAL: &str = "journal.db";
/// Events that a client of the control API may be behind.
const EVENTS: usize = 1024;

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

        let sampler = devices::open(&config).await?;
        let memory = |name: &str| {
            let at = config.devices.iter().position(|d| d.name == name)?;
            sampler.info(devices::id(at)).map(|info| info.usable_bytes())
        };
        let host_total = HostMemory::read().ok().map(|m| m.total);
        let mut node = Node::new(
            spec::engines(&config, memory),
            spec::devices(&config, memory),
            spec::policy(&config, host_total),
            opened.next_operation.0,
        );
        node.by_hand = begin.engines == Engines::Leave;
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
        let host = HostSampler::spawn(move || tasks::process_trees(&trees), config.node.sampling.host)
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
        let mut tasks = tasks::samples(&hands);
        tasks.extend(devices::follow(&hands, &handle));
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
            tasks.push(tokio::spawn(tasks::serve_metrics(listener, metrics, stopping.clone())));
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
        tasks.push(tokio::spawn(tasks::serve_control(socket, backend, stopping.clone())));
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
