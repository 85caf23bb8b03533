//! 19 handoffs in real time by each strategy: time to the incoming engine's first token, and what of it is the agent's.
//!
//! The engines' own part comes from their operation logs, so `overhead` is all that the agent, HTTP and verification
//! cost on the way from the command to the token (the reference's tool: 230 ms).

use anyhow::bail;
use hotbunk_agent::report::{REFERENCE_OVERHEAD_S, reference};
use hotbunk_api::report::Stat;
use hotbunk_benches::{Asked, Demo, agent, demo, machine, say, table, verdict};

/// Overhead: median and largest.
const OVERHEAD_S: (f64, f64) = (0.010, 0.025);
/// `sleep-first` repeats the reference, so it must be near it, in both senses.
const NEAR: f64 = 0.03;

/// A strategy with the most that each direction may take; `None`: within [`NEAR`] of the reference less its tool's part.
const STRATEGIES: [(&str, Option<(f64, f64)>); 4] = [
    ("sleep-first", None),
    ("wake-first", Some((0.30, 1.95))),
    ("park", Some((0.30, 0.30))),
    ("auto", Some((0.15, 0.25))),
];
const QUICK: [&str; 2] = ["sleep-first", "auto"];

fn main() -> anyhow::Result<()> {
    let asked = Asked::of_arguments()?;
    if let Some(name) = asked.names.iter().find(|n| !STRATEGIES.iter().any(|(known, _)| known == n)) {
        bail!("there is no strategy {name}");
    }
    let wanted = |name: &str| match asked.names.is_empty() {
        true => !asked.quick || QUICK.contains(&name),
        false => asked.names.iter().any(|n| n == name),
    };
    let agent = agent()?;
    let mut times =
        table(&["strategy", "direction", "n", "first token s", "budget s", "", "own work s", "drain ms"]);
    let mut overheads =
        table(&["strategy", "direction", "median ms", "budget", "", "max ms", "budget", "", "p95 ms"]);
    let mut failed = Vec::new();
    for (strategy, budgets) in STRATEGIES.iter().filter(|(name, _)| wanted(name)) {
        say(&format!("{strategy}: 19 handoffs at speed 1 ({})", machine()));
        let arguments = ["--plan", "handoffs", "--speed", "1", "--strategy", strategy];
        let done = demo(&asked, &agent, &format!("handoff-{strategy}"), &arguments)?;
        add(strategy, *budgets, &done, &mut times, &mut overheads)?;
        let switch = &done.report.switch;
        if !done.status.success() || switch.success != switch.handoffs {
            failed.push(format!("{strategy}: {} of {}", switch.success, switch.handoffs));
        }
    }
    say(&format!("\nTime to first token, medians\n{times}"));
    say(&format!("\nOverhead: all that is not the engines' own work or drain\n{overheads}"));
    say(&format!("\n{}", machine()));
    if !failed.is_empty() {
        bail!("handoffs failed: {}", failed.join("; "));
    }
    Ok(())
}

fn add(
    strategy: &str,
    budgets: Option<(f64, f64)>,
    done: &Demo,
    times: &mut comfy_table::Table,
    overheads: &mut comfy_table::Table,
) -> anyhow::Result<()> {
    let reference = reference()?;
    let median = |stat: Option<Stat>| stat.map_or(f64::NAN, |s| s.median);
    for (direction, ours) in &done.report.switch.directions {
        let first_token = median(ours.to_first_token_s);
        let (budget, verdict) = match budgets {
            Some((there, back)) => {
                let budget = if direction.starts_with('A') { there } else { back };
                (budget, verdict(first_token, budget))
            }
            None => {
                let theirs = reference.switch.directions.get(direction).and_then(|d| d.to_first_token_s);
                let bare = median(theirs) - REFERENCE_OVERHEAD_S;
                let off = first_token / bare - 1.0;
                let word = if off.abs() <= NEAR { "ok" } else { "OVER" };
                (bare, format!("{word} ({:+.1} %, ± {:.0} % allowed)", off * 100.0, NEAR * 100.0))
            }
        };
        times.add_row([
            strategy.to_owned(),
            direction.clone(),
            ours.n.to_string(),
            format!("{first_token:.3}"),
            format!("{budget:.3}"),
            verdict,
            format!("{:.3}", median(ours.engine_s)),
            format!("{:.1}", median(ours.drain_s) * 1e3),
        ]);
        overhead(strategy, direction, ours.overhead_s, overheads);
    }
    overhead(strategy, "all", done.report.switch.overhead_s, overheads);
    Ok(())
}

fn overhead(strategy: &str, direction: &str, stat: Option<Stat>, table: &mut comfy_table::Table) {
    let Some(stat) = stat else { return };
    let ms = |s: f64| format!("{:.1}", s * 1e3);
    table.add_row([
        strategy.to_owned(),
        direction.to_owned(),
        ms(stat.median),
        ms(OVERHEAD_S.0),
        verdict(stat.median, OVERHEAD_S.0),
        ms(stat.max),
        ms(OVERHEAD_S.1),
        verdict(stat.max, OVERHEAD_S.1),
        ms(stat.p95),
    ]);
}
