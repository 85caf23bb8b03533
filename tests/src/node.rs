//! A node of real processes: its directory, its engines, its agent.

use crate::agent::Agent;
use crate::engine::Engine;
use crate::processes::{self, Process};
use crate::wait::PATIENCE;
use hotbunk_sim::ledger::{DeviceLedger, Owner};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A node. Clones are the same; with the last one everything goes.
#[derive(Debug, Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engines: Vec<Engine>,
    pub(crate) through: Vec<Engine>,
    pub(crate) gateway_port: u16,
    pub(crate) metrics_port: u16,
    pub(crate) ledgers: Vec<DeviceLedger>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) dir: tempfile::TempDir,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Twice: what was about to be started when its parent was killed.
        for _ in 0..2 {
            processes::living(self.dir.path()).iter().for_each(|p| processes::kill(p.pid));
        }
    }
}

impl Node {
    pub(crate) fn of(inner: Inner) -> Node {
        Node { inner: Arc::new(inner) }
    }

    /// Where everything lies.
    pub fn dir(&self) -> &Path {
        self.inner.dir.path()
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir().join("hotbunk.toml")
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("run/control.sock")
    }

    /// Variables of the agent's environment.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&str, String)> {
        let dir = self.dir().display().to_string();
        self.inner.env.iter().map(move |(name, value)| (&**name, value.replace("{dir}", &dir)))
    }

    /// Runs an agent and waits until it answers.
    pub async fn start(&self) -> Agent {
        Agent::start(self.clone()).await
    }

    /// An engine's own HTTP face.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn engine(&self, name: &str) -> &Engine {
        self.inner.engines.iter().find(|e| e.name() == name).expect("an engine of the node")
    }

    /// An engine's model as clients reach it: through the gateway.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn model(&self, name: &str) -> &Engine {
        self.inner.through.iter().find(|e| e.name() == name).expect("an engine of the node")
    }

    /// Where the gateway listens, unless the test has said otherwise.
    pub fn gateway_port(&self) -> u16 {
        self.inner.gateway_port
    }

    /// Where `/metrics` is, unless the test has said otherwise.
    pub fn metrics_port(&self) -> u16 {
        self.inner.metrics_port
    }

    /// The page of `/metrics`, unless the test has said otherwise where it is.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn metrics(&self) -> String {
        let url = format!("http://127.0.0.1:{}/metrics", self.inner.metrics_port);
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let page = http.get(url).timeout(PATIENCE).send().await.expect("a page");
        page.text().await.expect("its text")
    }

    /// Its engines.
    pub fn engines(&self) -> &[Engine] {
        &self.inner.engines
    }

    /// Flags for an engine's next starts; none clears them.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn start_flags(&self, engine: &str, flags: &str) {
        fs::write(self.dir().join(format!("{engine}.flags")), flags).expect("the flags");
    }

    /// A device's ledger, by its place.
    pub fn ledger(&self, device: usize) -> &DeviceLedger {
        &self.inner.ledgers[device]
    }

    /// Device-wide used bytes of the first device.
    ///
    /// # Panics
    /// The ledger cannot be read.
    pub fn used(&self) -> u64 {
        self.ledger(0).used().expect("the ledger")
    }

    /// Device bytes of one engine on the first device.
    ///
    /// # Panics
    /// The ledger cannot be read.
    pub fn used_by(&self, engine: &str) -> u64 {
        let all = self.ledger(0).processes().expect("the ledger");
        all.iter().filter(|(_, _, name)| name == engine).map(|(_, bytes, _)| bytes).sum()
    }

    /// Takes bytes that belong to nobody of ours, until they are given back or the machine ends.
    ///
    /// # Panics
    /// They do not fit.
    pub fn foreign(&self, bytes: u64) -> Foreign {
        let owner = Owner::current().expect("this process");
        self.ledger(0).allocate(owner, "foreign", bytes).expect("room");
        Foreign { ledger: self.ledger(0).clone(), owner, bytes }
    }

    /// The same where there may be no room for it.
    pub fn try_foreign(&self, bytes: u64) -> Option<Foreign> {
        let owner = Owner::current()?;
        self.ledger(0).allocate(owner, "foreign", bytes).ok()?;
        Some(Foreign { ledger: self.ledger(0).clone(), owner, bytes })
    }

    /// Everything of ours that runs, shims included.
    pub fn living(&self) -> Vec<Process> {
        processes::living(self.dir())
    }

    /// Living processes of one engine, without its shim.
    pub fn tree(&self, engine: &str) -> Vec<Process> {
        let word = format!("--name {engine} ");
        self.living().into_iter().filter(|p| p.command.contains(&word)).collect()
    }

    /// The engine's core process.
    ///
    /// # Panics
    /// It has none.
    pub fn core(&self, engine: &str) -> Process {
        let tree = self.tree(engine);
        let found = tree.iter().find(|p| p.comm.starts_with("VLLM::EngineCor")).cloned();
        found.unwrap_or_else(|| panic!("no engine core of {engine} among {tree:?}"))
    }
}

/// Memory of a process that is not ours; given back when it is dropped.
#[derive(Debug)]
pub struct Foreign {
    ledger: DeviceLedger,
    owner: Owner,
    bytes: u64,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        drop(self.ledger.free(self.owner, "foreign", self.bytes));
    }
}
