//! What the benches share: the agent's own program, its demo, tables with budgets.
//!
//! ```text
//! cargo bench -p hotbunk-benches                                  everything, about four minutes
//! cargo bench -p hotbunk-benches --bench planner                  one decision, one step
//! cargo bench -p hotbunk-benches --bench handoff                  19 handoffs in real time by each strategy
//! cargo bench -p hotbunk-benches --bench handoff -- --quick       two strategies
//! cargo bench -p hotbunk-benches --bench handoff -- park auto     those that are named
//! cargo bench -p hotbunk-benches --bench reference                the reference cycle, 20 times faster
//! cargo bench -p hotbunk-benches --bench rest                     the agent at rest for 30 s (`-- --quick`: 10 s)
//! cargo bench -p hotbunk-benches --bench gateway                  the gateway beside nginx (`-- --quick`: less of it)
//! cargo bench -p hotbunk-benches --bench gateway -- latency       one of throughput, latency, streams, flood
//! ```
//!
//! All but `planner` run the released agent with simulated engines, real processes and a real journal, and read what
//! they print from its report. Each figure stands beside its budget; over a budget nothing fails, since times belong
//! to the machine and what else it is doing: the load average is printed with them. Reports, journals and logs of the
//! last run stay under `target/bench/`.

pub mod daemon;
pub mod usage;

use anyhow::{Context, bail};
use comfy_table::{CellAlignment, Table, presets};
use hotbunk_api::report::SwitchReport;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What the command line asks of a bench: names, and flags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Less of it.
    pub quick: bool,
    /// The agent before everything else on the machine.
    pub realtime: bool,
    /// What is not a flag.
    pub names: Vec<String>,
}

impl Asked {
    /// Of this process's arguments; `--bench`, which cargo adds, means nothing.
    ///
    /// # Errors
    /// A flag that there is not.
    pub fn of_arguments() -> anyhow::Result<Asked> {
        let mut asked = Asked::default();
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--bench" => {}
                "--quick" => asked.quick = true,
                "--realtime" => asked.realtime = true,
                flag if flag.starts_with('-') => {
                    bail!("there is no flag {flag}; there are --quick and --realtime")
                }
                name => asked.names.push(name.to_owned()),
            }
        }
        Ok(asked)
    }

    /// A command that runs a program as asked.
    pub fn command(&self, program: &Path) -> Command {
        if !self.realtime {
            return Command::new(program);
        }
        let mut command = Command::new("chrt");
        command.args(["--rr", "1"]).arg(program);
        command
    }
}

/// `target/release`, where this bench was built beside.
fn release_dir() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("a bench cannot find its own program")?;
    let dir = this.parent().and_then(Path::parent).context("a bench lies in target/release/deps")?;
    Ok(dir.to_owned())
}

/// The agent's program, built now where it is missing or old; `$HOTBUNK_AGENT` instead where that is set.
///
/// # Errors
/// It cannot be built.
pub fn agent() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("HOTBUNK_AGENT") {
        return Ok(PathBuf::from(path));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(&cargo)
        .args(["build", "--quiet", "--release", "--package", "hotbunk-agent", "--bin", "hotbunk-agent"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .context("cargo cannot be run; set HOTBUNK_AGENT to the agent's program")?;
    if !built.success() {
        bail!("the agent cannot be built");
    }
    Ok(release_dir()?.join("hotbunk-agent"))
}

/// An empty folder `target/bench/NAME` for what a run leaves.
///
/// # Errors
/// It cannot be emptied or made.
pub fn folder(name: &str) -> anyhow::Result<PathBuf> {
    let target = release_dir()?.parent().map(Path::to_owned).unwrap_or_default();
    let dir = target.join("bench").join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).with_context(|| format!("{} cannot be emptied", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    Ok(dir)
}

/// A demo that has ended.
#[derive(Debug)]
pub struct Demo {
    /// How.
    pub status: ExitStatus,
    /// From the call to its end.
    pub wall: Duration,
    /// What it reports.
    pub report: SwitchReport,
    /// Where that lies.
    pub path: PathBuf,
}

/// Runs `hotbunk-agent demo` with these arguments; what it says goes to `demo.log` in its folder.
///
/// # Errors
/// It cannot be run, or leaves no report.
pub fn demo(asked: &Asked, agent: &Path, name: &str, arguments: &[&str]) -> anyhow::Result<Demo> {
    let dir = folder(name)?;
    let log = std::fs::File::create(dir.join("demo.log"))?;
    let began = Instant::now();
    let status = asked
        .command(agent)
        .arg("demo")
        .args(arguments)
        .arg("--out")
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .with_context(|| format!("{} cannot be run", agent.display()))?;
    let wall = began.elapsed();
    let path = dir.join("switch-report.json");
    let read = || -> anyhow::Result<SwitchReport> { Ok(serde_json::from_slice(&std::fs::read(&path)?)?) };
    let report =
        read().with_context(|| format!("no report of `demo`; see {}", dir.join("demo.log").display()))?;
    Ok(Demo { status, wall, report, path })
}

/// A table with these columns; all but the first are numbers.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Beside a budget: how much of it was used.
pub fn verdict(is: f64, budget: f64) -> String {
    let word = if is <= budget { "ok" } else { "OVER" };
    format!("{word} ({:.2} of it)", is / budget)
}

/// Beside a goal that is to be reached or passed: how much of it is there.
pub fn reached(is: f64, goal: f64) -> String {
    let word = if is >= goal { "ok" } else { "UNDER" };
    format!("{word} ({:.2} of it)", is / goal)
}

/// Prints a line to stdout.
pub fn say(text: &str) {
    use std::io::Write;
    // A closed stdout leaves nobody to tell.
    drop(writeln!(std::io::stdout(), "{text}"));
}

/// The machine and what else it was doing: cores, and load averages of 1 and 5 minutes.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut load = load.split(' ');
    let (one, five) = (load.next().unwrap_or("?"), load.next().unwrap_or("?"));
    format!("{cores} cores, load average {one} (1 min), {five} (5 min)")
}
