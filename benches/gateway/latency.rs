//! What a proxy adds to the time of one request at a time: the same request by each way in turns, on kept connections.

use crate::client::{Wire, request};
use crate::rig::{FAST, Rig, SIMULATED, Way};
use comfy_table::Table;
use hotbunk_benches::{Asked, say, table, verdict};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const P50_US: f64 = 120.0;
const P99_US: f64 = 1000.0;
/// Requests before it counts.
const WARM_UP: usize = 100;
/// Between requests: at the pace of somebody, not of a flood.
const PAUSE: Duration = Duration::from_micros(500);

/// Measures and prints it; goals into `goals`.
pub(crate) fn measure(asked: &Asked, runtime: &Runtime, rig: &Rig, goals: &mut Table) -> anyhow::Result<()> {
    let count = if asked.quick { 1_000 } else { 5_000 };
    let mut rows = table(&["engine", "way", "p50 µs", "p99 µs", "added p50", "added p99"]);
    let fast = request(FAST, Some("plain"));
    let simulated = request(SIMULATED, None);
    let ways = vec![rig.simulated(), rig.gateway()];
    let ours = runtime.block_on(in_turns(&ways, &simulated, count))?;
    let [p50, p99] = add("simulated", &ours, &mut rows);
    let mut ways = vec![rig.direct(), rig.gateway()];
    ways.extend(rig.nginx());
    add("fast", &runtime.block_on(in_turns(&ways, &fast, count))?, &mut rows);
    say(&format!("\nOne request at a time, {count} by each way in turns\n{rows}"));
    let mut goal = |what: &str, is: f64, goal: f64| {
        let what = format!("latency added to the simulated engine, {what}, µs");
        goals.add_row([what, format!("{is:.0}"), format!("{goal:.0}"), verdict(is, goal)]);
    };
    goal("p50", p50, P50_US);
    goal("p99", p99, P99_US);
    Ok(())
}

/// The times of one way, µs, in order.
struct Times(&'static str, Vec<f64>);

impl Times {
    fn at(&self, share: f64) -> f64 {
        let rank = (share * self.1.len() as f64).ceil() as usize;
        self.1.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

async fn in_turns(ways: &[Way], request: &[u8], count: usize) -> anyhow::Result<Vec<Times>> {
    let mut wires = Vec::new();
    for way in ways {
        wires.push((Wire::open(way.address).await?, Times(way.name, Vec::with_capacity(count))));
    }
    for turn in 0..WARM_UP + count {
        // Nobody is always the first after a pause.
        let first = turn % wires.len();
        wires.rotate_left(first);
        for (wire, times) in &mut wires {
            let began = Instant::now();
            wire.ask(request).await?;
            let took = began.elapsed();
            if turn >= WARM_UP {
                times.1.push(took.as_secs_f64() * 1e6);
            }
        }
        wires.rotate_right(first);
        tokio::time::sleep(PAUSE).await;
    }
    let sorted = |(_, mut times): (Wire, Times)| {
        times.1.sort_by(f64::total_cmp);
        times
    };
    Ok(wires.into_iter().map(sorted).collect())
}

/// Rows of these ways, the first being the direct one; what the second adds at p50 and p99.
fn add(engine: &str, times: &[Times], rows: &mut Table) -> [f64; 2] {
    let quantiles = |times: &Times| [times.at(0.50), times.at(0.99)];
    let direct = times.first().map_or([f64::NAN; 2], quantiles);
    let mut ours = [f64::NAN; 2];
    for (place, way) in times.iter().enumerate() {
        let is = quantiles(way);
        let added = [is[0] - direct[0], is[1] - direct[1]];
        if place == 1 {
            ours = added;
        }
        let word = |us: f64| if place == 0 { "—".to_owned() } else { format!("{us:+.0}") };
        let [p50, p99] = is.map(|us| format!("{us:.0}"));
        rows.add_row([engine.to_owned(), way.0.to_owned(), p50, p99, word(added[0]), word(added[1])]);
    }
    ours
}
