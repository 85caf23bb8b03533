//! Everything that is measured, running: the agent with its engines, nginx, this process as their client.

use crate::client::Wire;
use crate::nginx::Nginx;
use anyhow::Context;
use hotbunk_api::operation::{EngineRequest, OperationRequest, Submit};
use hotbunk_api::status::Status;
use hotbunk_api::words::Tier;
use hotbunk_benches::daemon::{Daemon, Engine, Node, free_address};
use hotbunk_benches::{Asked, agent, folder};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::SocketAddr;

/// The word that makes this program the back end.
pub(crate) const BACKEND: &str = "backend";
/// Model of the engine that costs next to nothing.
pub(crate) const FAST: &str = "fast";
/// Model of the simulated engine.
pub(crate) const SIMULATED: &str = "simulated";
/// A tenant that floods may have so many requests running at once.
pub(crate) const FLOOD_LIMIT: usize = 4;
const TENANTS: &str = "tenant_header = \"x-tenant\"\n\n[[tenant]]\nname = \"x\"\nmax_in_flight = 4\n\n[[tenant]]\nname = \"y\"\n";
/// A token of the simulated engine comes after some tenths of a millisecond.
const SPEED: f64 = 200.0;

/// A way to an engine.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    /// What it is called in tables.
    pub(crate) name: &'static str,
    /// Where requests go.
    pub(crate) address: SocketAddr,
    /// The processes that stand between.
    pub(crate) pids: Vec<u32>,
}

/// The whole of it; ended when it is dropped.
pub(crate) struct Rig {
    daemon: Daemon,
    nginx: Option<Nginx>,
    gateway: SocketAddr,
    fast: SocketAddr,
    simulated: SocketAddr,
    backend: u32,
}

impl Rig {
    /// Starts it and waits until both engines serve.
    pub(crate) fn start(asked: &Asked, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Rig> {
        let dir = folder("gateway")?;
        let this = std::env::current_exe()?.to_string_lossy().into_owned();
        let (gateway, fast, simulated) = (free_address()?, free_address()?, free_address()?);
        let engine = |name, model, address: SocketAddr, before| Engine {
            name,
            role: "B",
            model,
            port: address.port(),
            before,
        };
        let engines = vec![
            engine("F", FAST, fast, vec![this, BACKEND.to_owned()]),
            engine("S", SIMULATED, simulated, Vec::new()),
        ];
        let node = Node { engines, speed: SPEED, max_awake: 2, gateway: Some(gateway), tenants: TENANTS };
        let mut daemon = Daemon::start(asked, &agent()?, &dir, &node)?;
        let at = |status: &Status, name: &str, tier| {
            status.engines.iter().any(|e| e.name == name && e.tier == Some(tier))
        };
        runtime.block_on(async {
            daemon.until(|s| at(s, "F", Tier::Awake) && at(s, "S", Tier::Level1)).await?;
            let request = OperationRequest::Wake(EngineRequest { engine: "S".to_owned() });
            daemon.client()?.submit(&Submit { id: None, request }).await?;
            daemon.until(|s| at(s, "F", Tier::Awake) && at(s, "S", Tier::Awake)).await
        })?;
        let workers = std::thread::available_parallelism()?.get();
        let nginx = Nginx::start(&dir, fast, workers)?;
        let status = runtime.block_on(async { anyhow::Ok(daemon.client()?.status().await?) })?;
        let backend = status.engines.iter().find(|e| e.name == "F").and_then(|e| e.incarnation.as_ref());
        let backend = backend.context("the back end has no process")?.pid;
        Ok(Rig { daemon, nginx, gateway, fast, simulated, backend })
    }

    /// Pid of the agent.
    pub(crate) fn agent(&self) -> u32 {
        self.daemon.pid()
    }

    /// Pid of the back end.
    pub(crate) fn backend(&self) -> u32 {
        self.backend
    }

    /// What stands beside the agent.
    pub(crate) fn nginx_version(&self) -> &str {
        self.nginx.as_ref().map_or("no nginx: it is not installed", |nginx| &nginx.version)
    }

    /// Straight to the engine that costs next to nothing.
    pub(crate) fn direct(&self) -> Way {
        Way { name: "direct", address: self.fast, pids: Vec::new() }
    }

    /// Straight to the simulated engine.
    pub(crate) fn simulated(&self) -> Way {
        Way { name: "direct", address: self.simulated, pids: Vec::new() }
    }

    /// By way of the agent.
    pub(crate) fn gateway(&self) -> Way {
        Way { name: "gateway", address: self.gateway, pids: vec![self.agent()] }
    }

    /// By way of nginx, where there is one.
    pub(crate) fn nginx(&self) -> Option<Way> {
        let nginx = self.nginx.as_ref()?;
        Some(Way { name: "nginx", address: nginx.address, pids: nginx.pids() })
    }

    /// The simulated engine's times are divided by this from now on.
    ///
    /// # Errors
    /// It does not take it.
    pub(crate) async fn set_speed(&self, speed: f64) -> anyhow::Result<()> {
        let body = format!("{{\"speed\":{speed:?}}}");
        let request = format!(
            "POST /sim/speed HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        Wire::open(self.simulated).await?.ask(request.as_bytes()).await?;
        Ok(())
    }

    /// Ends everything in order.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.nginx = None;
        self.daemon.stop()
    }
}

/// Lets this process and what it starts open as many files as it may.
pub(crate) fn raise_file_limit() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    Ok(setrlimit(Resource::Nofile, limit)?)
}
