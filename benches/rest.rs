//! The agent at rest: two engines, devices read ten times a second, nothing asked of it.
//!
//! CPU time and resident memory are the agent process's own (`/proc/PID/stat`, `/proc/PID/status`); shims and engines
//! are others. Budgets: 1 % of a core, 40 MiB. And what a record costs before its step may act: a commit of the
//! journal, awaited.

use hotbunk_agent::journal::record::{Phase, Record};
use hotbunk_agent::journal::{Journal, NewRecord};
use hotbunk_api::status::Status;
use hotbunk_api::words::Tier;
use hotbunk_benches::daemon::{Daemon, Engine, Node, free_address};
use hotbunk_benches::usage::{cpu_seconds, rss_mib};
use hotbunk_benches::{Asked, agent, folder, machine, say, table, verdict};
use std::path::Path;
use std::time::{Duration, Instant};

const CPU_PERCENT: f64 = 1.0;
const RSS_MIB: f64 = 40.0;
/// After the start, so that what the start left to do is done.
const SETTLE: Duration = Duration::from_secs(3);
const COMMITS: usize = 400;

fn main() -> anyhow::Result<()> {
    let asked = Asked::of_arguments()?;
    let watched = Duration::from_secs(if asked.quick { 10 } else { 30 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = table(&["figure", "is", "budget", ""]);

    let mut daemon = Daemon::start(&asked, &agent()?, &folder("rest")?, &node()?)?;
    let tiers = |status: &Status| status.engines.iter().map(|e| e.tier).collect::<Vec<_>>();
    runtime.block_on(daemon.until(|s| tiers(s) == [Some(Tier::Awake), Some(Tier::Level1)]))?;
    std::thread::sleep(SETTLE);
    let pids = [daemon.pid()];
    let (began, cpu) = (Instant::now(), cpu_seconds(&pids)?);
    std::thread::sleep(watched);
    let percent = (cpu_seconds(&pids)? - cpu) / began.elapsed().as_secs_f64() * 100.0;
    let mib = rss_mib(&pids)?;
    daemon.stop()?;
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

/// Two engines, A awake and B asleep, with the agent's own intervals.
fn node() -> anyhow::Result<Node> {
    let engine = |name, model| -> anyhow::Result<Engine> {
        Ok(Engine { name, role: name, model, port: free_address()?.port(), before: Vec::new() })
    };
    let engines = vec![engine("A", "model-a")?, engine("B", "model-b")?];
    Ok(Node { engines, speed: 20.0, max_awake: 1, gateway: None, tenants: "" })
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
