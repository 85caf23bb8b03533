//! The released agent as a process, with simulated engines on one simulated L20.

use crate::Asked;
use anyhow::{Context, bail};
use hotbunk_api::client::Client;
use hotbunk_api::status::Status;
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Until all engines have been started and rehearsed.
const START: Duration = Duration::from_secs(120);
/// By how much less host memory the simulated engines take.
const HOST_SCALE: u64 = 64;

/// An address of this machine that is free now.
///
/// # Errors
/// There is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A simulated engine.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Its short name.
    pub name: &'static str,
    /// What it behaves as: `A` (28 GiB of weights) or `B` (3.3 GiB) of the profile.
    pub role: &'static str,
    /// The id that clients use.
    pub model: &'static str,
    /// Where it listens, on loopback.
    pub port: u16,
    /// Program and first argument that its command line is given to instead of being run.
    pub before: Vec<String>,
}

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The first is awake at start.
    pub engines: Vec<Engine>,
    /// How many times faster than real time the engines are.
    pub speed: f64,
    /// Engines that may be awake at once.
    pub max_awake: usize,
    /// Where the gateway listens.
    pub gateway: Option<SocketAddr>,
    /// Further lines of `[gateway]`, and tables after it.
    pub tenants: &'static str,
}

/// The daemon; ended, and its folder of sockets taken away, at the latest when it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    sockets: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts it on this node. What it writes goes to `agent.log` in the folder.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn start(asked: &Asked, program: &Path, dir: &Path, node: &Node) -> anyhow::Result<Daemon> {
        // A socket's path may have 107 bytes, and the target folder may be anywhere.
        let sockets = std::env::temp_dir().join(format!("hotbunk-bench-{}", std::process::id()));
        let config = dir.join("hotbunk.toml");
        std::fs::write(&config, node.configuration(program, dir, &sockets)?)?;
        DeviceLedger::create(&dir.join("device-ledger.json"), LedgerHeader::l20(0))?;
        let path = dir.join("agent.log");
        let log = std::fs::File::create(&path)?;
        let child = asked
            .command(program)
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", program.display()))?;
        Ok(Daemon { child, sockets, log: path })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client of its control API.
    ///
    /// # Errors
    /// None can be made.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.sockets.join("control.sock"))?)
    }

    /// Waits until nothing is under way and the node is as it should be.
    ///
    /// # Errors
    /// The agent has ended, or it took too long.
    pub async fn until(&mut self, is_so: impl Fn(&Status) -> bool) -> anyhow::Result<()> {
        let client = self.client()?;
        let end = Instant::now() + START;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent has ended ({status}); see {}", self.log.display());
            }
            if let Ok(status) = client.status().await
                && status.operation.is_none()
                && is_so(&status)
            {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("the engines are not up after {} s; see {}", START.as_secs(), self.log.display());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it as an init system would.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) && self.stop().is_err() {
            drop(self.child.kill());
        }
        drop(std::fs::remove_dir_all(&self.sockets));
    }
}

impl Node {
    fn configuration(&self, program: &Path, dir: &Path, sockets: &Path) -> anyhow::Result<String> {
        let mut text = format!(
            "[node]\nstate_dir = {:?}\nruntime_dir = {:?}\nmetrics_listen = {:?}\nhost_memory_reserve = \"1GiB\"\n\n\
             [simulated]\nprofile = \"l20\"\nspeed = {:?}\nhost_scale = {HOST_SCALE}\n\n\
             [policy]\nawake_at_start = {:?}\n\n\
             [[device]]\nname = \"gpu0\"\nledger = {:?}\nmax_awake = {}\n",
            dir.join("state"),
            sockets,
            free_address()?.to_string(),
            self.speed,
            self.engines.first().map_or("", |engine| engine.name),
            dir.join("device-ledger.json"),
            self.max_awake,
        );
        let listen = self.gateway.map_or_else(|| "none".to_owned(), |address| address.to_string());
        write!(text, "\n[gateway]\nlisten = {listen:?}\n{}\n", self.tenants)?;
        for engine in &self.engines {
            let (weights, utilization) = if engine.role == "A" { (28, "0.80") } else { (4, "0.25") };
            let mut words = engine.before.clone();
            words.extend([program.to_string_lossy().into_owned(), "sim-engine".to_owned()]);
            let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
            flag("name", engine.name.to_owned());
            flag("role", engine.role.to_owned());
            flag("model", engine.model.to_owned());
            flag("port", engine.port.to_string());
            flag("speed", format!("{:?}", self.speed));
            flag("device-ledger", dir.join("device-ledger.json").to_string_lossy().into_owned());
            flag("host-scale", HOST_SCALE.to_string());
            flag("kv-cache-memory-bytes", (4_u64 << 30).to_string());
            flag("gpu-memory-utilization", utilization.to_owned());
            words.push("--enable-sleep-mode".to_owned());
            write!(
                text,
                "\n[[engine]]\nname = {:?}\nmodel = {:?}\nport = {}\ncommand = {words:?}\n\
                 env = {{ VLLM_SERVER_DEV_MODE = \"1\" }}\nweights = \"{weights}GiB\"\nhost_memory = \"1GiB\"\n",
                engine.name, engine.model, engine.port,
            )?;
        }
        Ok(text)
    }
}
