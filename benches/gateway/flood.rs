//! One tenant floods, another must not notice: X has 200 clients with long requests, and a limit; Y asks one request after
//! the other. The simulated engine goes at a pace at which its own times are what counts, and it slows down with the
//! size of its batch as a real one does: what Y may lose is what X's limit costs.

use crate::client::{Wire, request_of};
use crate::rig::{FLOOD_LIMIT, Rig, SIMULATED};
use anyhow::bail;
use comfy_table::Table;
use hotbunk_benches::{Asked, say, verdict};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const CLIENTS: usize = 200;
const RATIO: f64 = 1.2;
/// Engine times are divided by it.
const SPEED: f64 = 2.0;
const TOKENS: u32 = 64;
const LONG_TOKENS: u32 = 512;
/// The least that a client may be told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Until the flood has filled what it may.
const RISE: Duration = Duration::from_secs(1);

/// Measures and prints it; the goal into `goals`.
pub(crate) fn measure(asked: &Asked, runtime: &Runtime, rig: &Rig, goals: &mut Table) -> anyhow::Result<()> {
    let count = if asked.quick { 12 } else { 60 };
    runtime.block_on(async {
        rig.set_speed(SPEED).await?;
        let address = rig.gateway().address;
        let alone = steadily(address, count).await?;
        let (served, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(flood(address, Arc::clone(&served), Arc::clone(&refused)));
        }
        tokio::time::sleep(RISE).await;
        let flooded = steadily(address, count).await?;
        if let Some(ended) = clients.try_join_next() {
            ended??;
        }
        clients.shutdown().await;
        let ratio = flooded / alone;
        say(&format!(
            "\n{CLIENTS} clients of tenant X, {FLOOD_LIMIT} at once by its limit ({} served, {} refused with 429), and Y's \
             {count} requests of {TOKENS} tokens:\np95 {:.1} ms alone, {:.1} ms in the flood: {ratio:.2} times",
            served.load(Ordering::Relaxed),
            refused.load(Ordering::Relaxed),
            alone * 1e3,
            flooded * 1e3,
        ));
        let what = "p95 of a tenant while another floods, of its p95 alone".to_owned();
        goals.add_row([what, format!("{ratio:.2}"), format!("{RATIO}"), verdict(ratio, RATIO)]);
        Ok(())
    })
}

/// Y's p95, s.
async fn steadily(address: SocketAddr, count: usize) -> anyhow::Result<f64> {
    let mut wire = Wire::open(address).await?;
    let request = request_of("y", SIMULATED, TOKENS);
    let mut took = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        wire.ask(&request).await?;
        took.push(began.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    Ok(took[(count * 95).div_ceil(100) - 1])
}

/// One client of X, for ever.
async fn flood(address: SocketAddr, served: Arc<AtomicU64>, refused: Arc<AtomicU64>) -> anyhow::Result<()> {
    let mut wire = Wire::open(address).await?;
    let request = request_of("x", SIMULATED, LONG_TOKENS);
    loop {
        match wire.answer(&request).await?.0 {
            200 => {
                served.fetch_add(1, Ordering::Relaxed);
            }
            429 => {
                refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(RETRY_AFTER).await;
            }
            other => bail!("a client of the flood got {other}"),
        }
    }
}
