//! The demo's folder: a configuration like any other, a ledger for the simulated card, and places for everything else.

use super::DemoArgs;
use crate::app::JOURNAL;
use crate::clock;
use crate::config::client_ports::ClientPorts;
use crate::journal::Journal;
use anyhow::Context;
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use hotbunk_sim::profile::{EngineProfile, Profile};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
/// State folder within the demo's.
const STATE: &str = "state";

/// By how much less host memory the simulated engines take: 62 GiB would be too much for a laptop.
pub(super) const HOST_SCALE: u64 = 64;

/// What has been made.
#[derive(Debug)]
pub(super) struct Setup {
    /// Report, journal, logs, configuration.
    pub(super) dir: PathBuf,
    /// The configuration.
    pub(super) config_file: PathBuf,
    /// Sockets: their paths may have 107 bytes at most, and the folder may be anywhere.
    sockets: PathBuf,
    /// The same of the demo that used this folder before: a demo that was killed leaves it behind.
    former_sockets: Option<PathBuf>,
}

impl Setup {
    /// Makes the folder and everything in it.
    pub(super) fn make(args: &DemoArgs, engine_speed: f64) -> anyhow::Result<Setup> {
        let name = format!("hotbunk-demo-{}", clock::wall().strftime("%Y%m%dT%H%M%S"));
        let dir = std::path::absolute(args.out.clone().unwrap_or_else(|| PathBuf::from(name)))?;
        let make = |dir: &Path| {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("{} cannot be made; name another folder with --out", dir.display()))
        };
        // The demo that runs there goes by what it has written.
        Journal::is_unused(&dir.join(STATE).join(JOURNAL))?;
        make(&dir)?;
        let sockets = std::env::temp_dir().join(format!("hotbunk-{}", std::process::id()));
        make(&sockets)?;
        let config_file = dir.join("hotbunk.toml");
        let mut setup = Setup {
            dir: dir.clone(),
            config_file: PathBuf::new(),
            sockets: sockets.clone(),
            former_sockets: former_sockets(&config_file).filter(|former| *former != sockets),
        };
        let profile = Profile::load(&args.profile)?;
        let ledger = dir.join("device-ledger.json");
        let header = LedgerHeader::new(&profile.device.name, 0, profile.device.total_mib * MIB);
        DeviceLedger::open_or_create(&ledger, header)?;
        let text = text(args, engine_speed, &dir, &sockets, &ledger, &profile)?;
        std::fs::write(&config_file, text)
            .with_context(|| format!("{} cannot be written", config_file.display()))?;
        setup.config_file = config_file;
        Ok(setup)
    }

    /// Removes the sockets of the demo before. To be called once its agent is known to be gone.
    pub(super) fn clear_former(&self) {
        if let Some(former) = &self.former_sockets {
            drop(std::fs::remove_dir_all(former));
        }
    }
}

/// Where an earlier demo had its sockets, by the configuration that it wrote; nothing but such a place.
fn former_sockets(config_file: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(config_file).ok()?;
    let table: toml::Table = toml::from_str(&text).ok()?;
    let dir = PathBuf::from(table.get("node")?.get("runtime_dir")?.as_str()?);
    let pid = dir.file_name()?.to_str()?.strip_prefix("hotbunk-")?;
    let is_a_demos = dir.parent() == Some(&std::env::temp_dir()) && pid.bytes().all(|b| b.is_ascii_digit());
    is_a_demos.then_some(dir)
}

impl Drop for Setup {
    fn drop(&mut self) {
        // Sockets only; everything else is the demo's result.
        drop(std::fs::remove_dir_all(&self.sockets));
    }
}

fn text(
    args: &DemoArgs,
    engine_speed: f64,
    dir: &Path,
    sockets: &Path,
    ledger: &Path,
    profile: &Profile,
) -> anyhow::Result<String> {
    let exe = std::env::current_exe().context("the agent's own program cannot be found")?;
    let quote = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let path = |path: &Path| quote(&path.to_string_lossy());
    let mut ports = FreePorts::new();
    let mut text = format!(
        "# Written by `hotbunk-agent demo`; `hotbunk-agent run --config` of this file works as well.\n\
         [node]\n\
         state_dir = {}\n\
         runtime_dir = {}\n\
         metrics_listen = \"127.0.0.1:{}\"\n\
         log_filter = \"warn\"\n\
         host_memory_reserve = \"1GiB\"\n\n\
         [gateway]\n\
         listen = \"127.0.0.1:{}\"\n\n\
         [simulated]\n\
         profile = {}\n\
         speed = {:?}\n\
         host_scale = {HOST_SCALE}\n\n\
         [[device]]\n\
         name = \"gpu0\"\n\
         ledger = {}\n",
        path(&dir.join(STATE)),
        path(sockets),
        ports.next()?,
        ports.next()?,
        quote(&args.profile),
        args.speed,
        path(ledger),
    );
    for (role, engine) in &profile.engines {
        let port = ports.next()?;
        let op_log = dir.join(format!("{role}.ops.jsonl"));
        let kv = engine.kv_mib * MIB;
        let words: Vec<String> = [
            exe.to_string_lossy().into_owned(),
            "sim-engine".into(),
            "--name".into(),
            role.clone(),
            "--port".into(),
            port.to_string(),
            "--profile".into(),
            args.profile.clone(),
            "--speed".into(),
            format!("{engine_speed:?}"),
            "--version".into(),
            args.vllm.to_string(),
            "--device-ledger".into(),
            ledger.to_string_lossy().into_owned(),
            "--op-log".into(),
            op_log.to_string_lossy().into_owned(),
            "--cache-dir".into(),
            dir.join("cache").to_string_lossy().into_owned(),
            "--host-scale".into(),
            HOST_SCALE.to_string(),
            "--kv-cache-memory-bytes".into(),
            kv.to_string(),
            "--gpu-memory-utilization".into(),
            utilization(engine, profile.device.total_mib),
            "--enable-sleep-mode".into(),
            "--enable-server-load-tracking".into(),
        ]
        .iter()
        .map(|word| quote(word))
        .collect();
        text.push_str(&format!(
            "\n[[engine]]\n\
             name = {}\n\
             model = {}\n\
             port = {port}\n\
             command = [{}]\n\
             env = {{ VLLM_SERVER_DEV_MODE = \"1\" }}\n\
             autostart = false\n\
             kv_cache = \"{} B\"\n\
             weights = \"{} B\"\n\
             host_memory = \"{} B\"\n\
             ready_interval = \"10ms\"\n\
             op_log = {}\n",
            quote(role),
            quote(&engine.model),
            words.join(", "),
            kv,
            engine.weights_mib * MIB,
            (engine.host_base_mib + engine.host_pinned_mib) * MIB / HOST_SCALE,
            path(&op_log),
        ));
    }
    Ok(text)
}

/// The share of the card that the engine asks vLLM for: all that it holds, and what profiling takes for a moment.
fn utilization(engine: &EngineProfile, total_mib: u64) -> String {
    let mib = engine.residual_mib
        + engine.weights_mib
        + engine.kv_mib
        + engine.growth_mib
        + engine.profile_transient_mib;
    let percent = (mib * 100).div_ceil(total_mib.max(1)).min(99);
    format!("0.{percent:02}")
}

/// Ports that are free now and that no outgoing connection is given, so that an engine finds its own free again after a
/// restart. Somebody may take one before its engine does; then the start says so.
struct FreePorts(std::ops::Range<u16>);

impl FreePorts {
    fn new() -> Self {
        // Demos that begin at the same moment look in different places.
        let from = 15_000 + u16::try_from(std::process::id() % 12_000).unwrap_or(0);
        FreePorts(from..u16::MAX)
    }

    fn next(&mut self) -> anyhow::Result<u16> {
        let clients = ClientPorts::of_this_machine();
        let free = |port: &u16| {
            clients.with(*port).is_none() && TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()
        };
        self.0.by_ref().find(free).context("no free port on 127.0.0.1")
    }
}
