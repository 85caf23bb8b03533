//! 2,000 open streams: memory of what stands between, CPU time for each event, and what is left when all clients have
//! gone at once.

use crate::client::{Wire, request};
use crate::rig::{FAST, Rig, Way};
use crate::wire::find;
use anyhow::{Context, ensure};
use comfy_table::Table;
use hotbunk_benches::usage::{cpu_seconds, open_files, rss_mib};
use hotbunk_benches::{Asked, say, table, verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const STREAMS: usize = 2_000;
const RSS_MIB: f64 = 100.0;
/// Between two events of one stream.
const EVERY: Duration = Duration::from_millis(500);
/// Opened at a time.
const AT_ONCE: usize = 50;
/// For the last of them to have its first event, and for the files of all to be given back.
const PATIENCE: Duration = Duration::from_secs(30);

/// Of one way with all streams open.
struct Seen {
    before_mib: f64,
    open_mib: f64,
    after_mib: f64,
    files: [usize; 3],
    events_per_second: f64,
    micros_per_event: f64,
}

/// Measures and prints it; goals into `goals`.
pub(crate) fn measure(asked: &Asked, runtime: &Runtime, rig: &Rig, goals: &mut Table) -> anyhow::Result<()> {
    let lasting = Duration::from_secs(if asked.quick { 2 } else { 6 });
    let mut rows = table(&[
        "way",
        "RSS MiB before",
        "open",
        "after",
        "KiB/stream",
        "files before",
        "open",
        "after",
        "events/s",
        "CPU µs/event",
    ]);
    let mut ours = f64::NAN;
    for way in [rig.nginx(), Some(rig.gateway())].into_iter().flatten() {
        let seen = runtime.block_on(watch(&way, lasting))?;
        if way.name == "gateway" {
            ours = seen.open_mib;
        }
        let each = (seen.open_mib - seen.before_mib) * 1024.0 / STREAMS as f64;
        let mib = |mib: f64| format!("{mib:.1}");
        let [before, open, after] = seen.files.map(|files| files.to_string());
        rows.add_row([
            way.name.to_owned(),
            mib(seen.before_mib),
            mib(seen.open_mib),
            mib(seen.after_mib),
            format!("{each:.1}"),
            before,
            open,
            after,
            format!("{:.0}", seen.events_per_second),
            format!("{:.1}", seen.micros_per_event),
        ]);
    }
    say(&format!(
        "\n{STREAMS} open streams, an event of each every {} ms, then all clients hang up\n{rows}",
        EVERY.as_millis()
    ));
    let what = format!("resident memory of the agent with {STREAMS} open streams, MiB");
    goals.add_row([what, format!("{ours:.1}"), format!("{RSS_MIB}"), verdict(ours, RSS_MIB)]);
    Ok(())
}

async fn watch(way: &Way, lasting: Duration) -> anyhow::Result<Seen> {
    let files = || way.pids.iter().map(|pid| open_files(*pid)).sum::<anyhow::Result<usize>>();
    let (before_mib, files_before) = (rss_mib(&way.pids)?, files()?);
    let events = Arc::new(AtomicU64::new(0));
    // Far more events than will be read: no stream ends by itself.
    let asked = Arc::new(request(FAST, Some(&format!("stream 100000 {}", EVERY.as_millis()))));
    let mut readers = JoinSet::new();
    for _ in 0..STREAMS.div_ceil(AT_ONCE) {
        let mut opened = JoinSet::new();
        for _ in 0..AT_ONCE {
            opened.spawn(open(way.address, Arc::clone(&asked)));
        }
        while let Some(wire) = opened.join_next().await {
            readers.spawn(read(wire??, Arc::clone(&events)));
        }
    }
    let (began, had, cpu) = (Instant::now(), events.load(Ordering::Relaxed), cpu_seconds(&way.pids)?);
    tokio::time::sleep(lasting).await;
    let (took, cpu) = (began.elapsed(), cpu_seconds(&way.pids)? - cpu);
    let came = (events.load(Ordering::Relaxed) - had) as f64;
    ensure!(readers.try_join_next().is_none(), "a stream has ended by itself");
    let (open_mib, files_open) = (rss_mib(&way.pids)?, files()?);
    readers.shutdown().await;
    let end = Instant::now() + PATIENCE;
    // A few connections to the engine may be kept for the next request.
    while files()? > files_before + STREAMS / 10 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(Seen {
        before_mib,
        open_mib,
        after_mib: rss_mib(&way.pids)?,
        files: [files_before, files_open, files()?],
        events_per_second: came / took.as_secs_f64(),
        micros_per_event: cpu * 1e6 / came.max(1.0),
    })
}

/// A stream whose first event has come.
async fn open(address: std::net::SocketAddr, asked: Arc<Vec<u8>>) -> anyhow::Result<Wire> {
    let mut wire = Wire::open(address).await?;
    wire.send(&asked).await?;
    let first = async {
        while find(wire.more().await?, b"data: ").is_none() {}
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, first).await.context("a stream has no first event")??;
    Ok(wire)
}

/// Reads and counts, until the stream ends.
async fn read(mut wire: Wire, events: Arc<AtomicU64>) -> anyhow::Result<()> {
    loop {
        wire.clear();
        let more = wire.more().await?;
        let came = more.windows(6).filter(|window| *window == b"data: ").count();
        events.fetch_add(u64::try_from(came)?, Ordering::Relaxed);
    }
}
