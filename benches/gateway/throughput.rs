//! Requests per second at 64 connections, and what a request costs each process in CPU time.

use crate::client::{closed_loops, request};
use crate::rig::{FAST, Rig, Way};
use comfy_table::Table;
use hotbunk_benches::usage::cpu_seconds;
use hotbunk_benches::{Asked, reached, say, table};
use std::time::Duration;
use tokio::runtime::Runtime;

const CONNECTIONS: usize = 64;
/// Of nginx's requests per second.
const SHARE: f64 = 0.8;
/// How many times faster the back end should be than the faster proxy, so that it is not what is measured.
const FASTER: f64 = 5.0;

/// Several rounds of one way.
struct Rounds {
    way: Way,
    per_second: Vec<f64>,
    requests: f64,
    cpu: [f64; 3],
}

impl Rounds {
    /// CPU microseconds per request of proxy, back end, client.
    fn micros(&self) -> [f64; 3] {
        self.cpu.map(|seconds| seconds * 1e6 / self.requests.max(1.0))
    }
}

/// Measures and prints it; goals into `goals`.
pub(crate) fn measure(asked: &Asked, runtime: &Runtime, rig: &Rig, goals: &mut Table) -> anyhow::Result<()> {
    let (rounds, lasting) = if asked.quick { (3, 1.0) } else { (8, 2.0) };
    let request = request(FAST, Some("plain"));
    let ways = [Some(rig.direct()), rig.nginx(), Some(rig.gateway())];
    let empty = |way| Rounds { way, per_second: Vec::new(), requests: 0.0, cpu: [0.0; 3] };
    let mut measured: Vec<Rounds> = ways.into_iter().flatten().map(empty).collect();
    // The first round warms up: connections, caches, pools.
    for round in 0..=rounds {
        for one in &mut measured {
            let used = || -> anyhow::Result<[f64; 3]> {
                let proxy = cpu_seconds(&one.way.pids)?;
                Ok([proxy, cpu_seconds(&[rig.backend()])?, cpu_seconds(&[std::process::id()])?])
            };
            let before = used()?;
            let lasting = Duration::from_secs_f64(if round == 0 { 0.3 } else { lasting });
            let (answered, took) =
                runtime.block_on(closed_loops(one.way.address, &request, CONNECTIONS, lasting))?;
            let after = used()?;
            if round > 0 {
                one.per_second.push(answered as f64 / took.as_secs_f64());
                one.requests += answered as f64;
                (0..3).for_each(|at| one.cpu[at] += after[at] - before[at]);
            }
        }
    }
    show(&measured, rounds, goals);
    Ok(())
}

fn show(measured: &[Rounds], rounds: usize, goals: &mut Table) {
    let mut rows = table(&["way", "requests/s", "CPU µs/request: proxy", "back end", "client"]);
    for one in measured {
        let [proxy, backend, client] = one.micros().map(|us| format!("{us:.1}"));
        let proxy = if one.way.pids.is_empty() { "—".to_owned() } else { proxy };
        rows.add_row([
            one.way.name.to_owned(),
            format!("{:.0}", median(&one.per_second)),
            proxy,
            backend,
            client,
        ]);
    }
    say(&format!(
        "\n{CONNECTIONS} connections, short plain requests, {rounds} rounds in turns (medians; CPU over all)\n{rows}"
    ));
    let of = |name: &str| measured.iter().find(|one| one.way.name == name);
    let (Some(direct), Some(gateway)) = (of("direct"), of("gateway")) else { return };
    let goal = format!("{SHARE}");
    let what = format!("requests/s at {CONNECTIONS} connections, of nginx's");
    let nginx = of("nginx");
    if let Some(nginx) = nginx {
        let ratios: Vec<f64> =
            gateway.per_second.iter().zip(&nginx.per_second).map(|(ours, theirs)| ours / theirs).collect();
        let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(l, m), r| (l.min(*r), m.max(*r)));
        let ratio = median(&ratios);
        say(&format!(
            "requests/s, gateway of nginx, round by round: median {ratio:.2} ({least:.2} to {most:.2}); \
             by CPU per request: {:.2}",
            nginx.micros()[0] / gateway.micros()[0]
        ));
        goals.add_row([what, format!("{ratio:.2}"), goal, reached(ratio, SHARE)]);
    } else {
        goals.add_row([what, "—".to_owned(), goal, "nginx is not installed".to_owned()]);
    }
    let proxy = nginx.map_or(f64::MAX, |n| n.micros()[0]).min(gateway.micros()[0]);
    let alone = direct.micros()[1];
    say(&format!(
        "the back end answers {:.0}/s a core, {:.1} times what the quicker proxy passes on a core ({:.0}/s)",
        1e6 / alone,
        proxy / alone,
        1e6 / proxy
    ));
    if proxy / alone < FASTER {
        say(&format!(
            "(below {FASTER}: it only receives and sends, once each, and a proxy must do both twice; CPU time of the \
             proxy's own process is what does not depend on it)"
        ));
    }
}

/// The middle one; of none 0.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
