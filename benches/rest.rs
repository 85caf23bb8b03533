//! The agent at rest: two engines, devices read ten times a second, nothing asked of it.
//!
//! CPU time and resident memory are the agent process's own (`/proc/PID/stat`, `/proc/PID/status`); shims and engines
//! are others. Budgets: 1 % of a core, 40 MiB. And what a record costs before its step may act: a commit of the
//! journal, awaited.

use anyhow::{Context, bail};
use hotbunk_agent::journal::record::{Phase, Record};
use hotbunk_agent::journal::{Journal, NewRecord};
use hotbunk_api::client::Client;
use hotbunk_api::words::Tier;
use hotbunk_benches::{Asked, agent, folder, machine, say, table, verdict};
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use std::fmt::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const CPU_PERCENT: f64 = 1.0;
const RSS_MIB: f64 = 40.0;
/// Until both engines have been started and rehearsed.
const START: Duration = Duration::from_secs(120);
/// After that, so that what the start left to do is done.
const SETTLE: Duration = Duration::from_secs(3);
const COMMITS: usize = 400;
/// The unit of `/proc/PID/stat` (`USER_HZ`), the same on every machine that the agent is for.
const TICKS_PER_SECOND: f64 = 100.0;

fn main() -> anyhow::Result<()> {
    let asked = Asked::of_arguments()?;
    let watched = Duration::from_secs(if asked.quick { 10 } else { 30 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = table(&["figure", "is", "budget", ""]);

    let mut agent = Agent::start(&asked, &agent()?, &folder("rest")?)?;
    runtime.block_on(agent.settled())?;
    std::thread::sleep(SETTLE);
    let pid = agent.child.id();
    let (began, cpu) = (Instant::now(), cpu_seconds(pid)?);
    std::thread::sleep(watched);
    let percent = (cpu_seconds(pid)? - cpu) / began.elapsed().as_secs_f64() * 100.0;
    let mib = rss_mib(pid)?;
    agent.stop()?;
    let seconds = watched.as_secs();
    let cpu = format!("CPU of one core over {seconds} s, %");
    rows.add_row([cpu, format!("{percent:.2}"), format!("{CPU_PERCENT}"), verdict(percent, CPU_PERCENT)]);
    let rss = "resident memory, MiB".to_owned();
    rows.add_row([rss, format!("{mib:.1}"), format!("{RSS_MIB}"), verdict(mib, RSS_MIB)]);

    let mut commits = runtime.block_on(commits(&folder("rest-journal")?))?;
    commits.sort();
    let ms = |at: usize| format!("{:.3}", commits[at].as_secs_f64() * 1e3);
    let row = |what: &str, at| [what.to_owned(), ms(at), String::new(), String::new()];
    rows.add_row(row("journal commit, median ms", COMMITS / 2));
    rows.add_row(row("journal commit, 99 % ms", COMMITS * 99 / 100));
    say(&format!("{rows}\n\n{}", machine()));
    Ok(())
}

/// CPU time that a process has used, s.
fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the agent has gone")?;
    // The name may hold spaces: the fields begin after its bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("/proc/PID/stat");
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// Resident memory of a process, MiB.
fn rss_mib(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the agent has gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/PID/status")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// One step's records at a time, as in a handoff: 10 ms between them.
async fn commits(dir: &Path) -> anyhow::Result<Vec<Duration>> {
    let (journal, _) = Journal::open(dir.join("journal.db"))?;
    let mut took = Vec::new();
    for index in 0u32.. {
        if took.len() == COMMITS {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let record = Record::StepBegan { index, phase: Phase::Sleep, engine: "A".into() };
        let began = Instant::now();
        journal.commit(vec![NewRecord::new(None, None, record)]).await?;
        took.push(began.elapsed());
    }
    journal.close().await;
    Ok(took)
}

/// The daemon with two simulated engines; ended, and its folder of sockets taken away, at the latest when it is dropped.
struct Agent {
    child: Child,
    sockets: PathBuf,
}

impl Agent {
    fn start(asked: &Asked, program: &Path, dir: &Path) -> anyhow::Result<Agent> {
        // A socket's path may have 107 bytes, and the target folder may be anywhere.
        let sockets = std::env::temp_dir().join(format!("hotbunk-bench-{}", std::process::id()));
        let config = dir.join("hotbunk.toml");
        std::fs::write(&config, configuration(program, dir, &sockets)?)?;
        DeviceLedger::create(&dir.join("device-ledger.json"), LedgerHeader::l20(0))?;
        let log = std::fs::File::create(dir.join("agent.log"))?;
        let child = asked
            .command(program)
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("{} cannot be run", program.display()))?;
        Ok(Agent { child, sockets })
    }

    /// Until A is awake, B asleep, and nothing is under way.
    async fn settled(&mut self) -> anyhow::Result<()> {
        let client = Client::new(self.sockets.join("control.sock"))?;
        let end = Instant::now() + START;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent has ended ({status}); see target/bench/rest/agent.log");
            }
            if let Ok(status) = client.status().await {
                let tiers: Vec<Option<Tier>> = status.engines.iter().map(|e| e.tier).collect();
                if status.operation.is_none() && tiers == [Some(Tier::Awake), Some(Tier::Level1)] {
                    return Ok(());
                }
            }
            if Instant::now() > end {
                bail!("the engines are not up after {} s; see target/bench/rest/agent.log", START.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) && self.stop().is_err() {
            drop(self.child.kill());
        }
        drop(std::fs::remove_dir_all(&self.sockets));
    }
}

/// Two simulated engines, A awake and B asleep, with the agent's own intervals.
fn configuration(program: &Path, dir: &Path, sockets: &Path) -> anyhow::Result<String> {
    let free_port =
        || -> anyhow::Result<u16> { Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()) };
    let mut text = format!(
        "[node]\nstate_dir = {:?}\nruntime_dir = {:?}\nmetrics_listen = \"127.0.0.1:{}\"\nhost_memory_reserve = \"1GiB\"\n\n\
         [gateway]\nlisten = \"127.0.0.1:0\"\n\n\
         [simulated]\nprofile = \"l20\"\nspeed = 20.0\nhost_scale = 64\n\n\
         [policy]\nawake_at_start = \"A\"\n\n\
         [[device]]\nname = \"gpu0\"\nledger = {:?}\n",
        dir.join("state"),
        sockets,
        free_port()?,
        dir.join("device-ledger.json"),
    );
    for (name, model, weights, utilization) in [("A", "model-a", 28, "0.80"), ("B", "model-b", 4, "0.25")] {
        let port = free_port()?;
        let words: [String; 19] = [
            program.to_string_lossy().into_owned(),
            "sim-engine".into(),
            "--name".into(),
            name.into(),
            "--port".into(),
            port.to_string(),
            "--served-model-name".into(),
            model.into(),
            "--speed".into(),
            "20".into(),
            "--device-ledger".into(),
            dir.join("device-ledger.json").to_string_lossy().into_owned(),
            "--host-scale".into(),
            "64".into(),
            "--kv-cache-memory-bytes".into(),
            (4_u64 << 30).to_string(),
            "--gpu-memory-utilization".into(),
            utilization.into(),
            "--enable-sleep-mode".into(),
        ];
        write!(
            text,
            "\n[[engine]]\nname = {name:?}\nmodel = {model:?}\nport = {port}\ncommand = {words:?}\n\
             env = {{ VLLM_SERVER_DEV_MODE = \"1\" }}\nweights = \"{weights}GiB\"\nhost_memory = \"1GiB\"\n"
        )?;
    }
    Ok(text)
}
