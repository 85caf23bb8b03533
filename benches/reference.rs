//! The reference cycle, 20 times faster: wall time, counts, and every median beside the reference's.

use anyhow::bail;
use hotbunk_agent::report::{Deviation, compare, reference};
use hotbunk_api::report::SwitchReport;
use hotbunk_benches::{Asked, agent, demo, machine, say, table, verdict};

/// Done within.
const WALL_S: f64 = 90.0;
/// A binding median may be off by this much, percent.
const OFF: f64 = 5.0;

fn main() -> anyhow::Result<()> {
    let asked = Asked::of_arguments()?;
    let agent = agent()?;
    let theirs = reference()?;
    say(&format!("the reference cycle at speed 20 ({})", machine()));
    let done = demo(&asked, &agent, "reference", &["--plan", "reference", "--speed", "20"])?;
    let wall = done.wall.as_secs_f64();
    say(&format!("wall time {wall:.1} s of {WALL_S} s: {}", verdict(wall, WALL_S)));

    let mut counted = table(&["count", "ours", "reference", ""]);
    let mut unequal = 0;
    for ((what, ours), (_, theirs)) in counts(&done.report).into_iter().zip(counts(&theirs)) {
        unequal += usize::from(ours != theirs);
        let word = if ours == theirs { "equal" } else { "DIFFERS" };
        counted.add_row([what, ours, theirs, word.to_owned()]);
    }
    say(&format!("\n{counted}"));

    let mut deviations = compare(&done.report, &theirs);
    deviations.sort_by(|a, b| b.percent.abs().total_cmp(&a.percent.abs()));
    let (binding, other): (Vec<_>, Vec<_>) = deviations.into_iter().partition(Deviation::is_binding);
    let over = binding.iter().filter(|d| d.percent.abs() > OFF).count();
    say(&format!(
        "\nBinding medians: {over} of {} off by more than {OFF} %\n{}",
        binding.len(),
        rows(&binding)
    ));
    say(&format!("\nMeasured too short a time to bind\n{}", rows(&other)));
    say(&format!("\nreport: {}\n{}", done.path.display(), machine()));
    if !done.status.success() || unequal > 0 {
        bail!("the cycle failed or counted otherwise than the reference");
    }
    Ok(())
}

fn rows(deviations: &[Deviation]) -> comfy_table::Table {
    let mut rows = table(&["figure", "ours", "reference", "off %", "measured"]);
    for d in deviations {
        rows.add_row([
            d.path.clone(),
            format!("{:.4}", d.ours_scaled),
            format!("{:.4}", d.reference),
            format!("{:+.1}", d.percent),
            format!("{:.4}", d.wall_measured),
        ]);
    }
    rows
}

/// Everything that both reports count, but for memory samples.
fn counts(report: &SwitchReport) -> Vec<(String, String)> {
    let requests = &report.requests;
    let mut counts = vec![
        ("requests executed".to_owned(), requests.executed.to_string()),
        ("requests complete".to_owned(), requests.success.to_string()),
        ("initial activations".to_owned(), report.switch.initial_activation.to_string()),
        ("handoffs".to_owned(), report.switch.handoffs.to_string()),
        ("handoffs complete".to_owned(), report.switch.success.to_string()),
    ];
    for (direction, d) in &report.switch.directions {
        counts.push((format!("handoffs {direction}"), d.n.to_string()));
    }
    let n = |stat: Option<hotbunk_api::report::Stat>| stat.map_or(0, |s| s.n).to_string();
    for (engine, model) in &report.models {
        counts.push((format!("{engine} restarts, warm"), n(model.restart_warm)));
        for (level, sleep) in &model.sleep {
            counts.push((format!("{engine} sleeps at level {level}"), n(sleep.sleep_s)));
            counts.push((format!("{engine} wakes from level {level}"), n(sleep.wake_api_s)));
        }
        for p in &model.performance {
            let stage = format!("{engine} requests timed, {} at {}", p.stage, p.concurrency);
            counts.push((stage, n(p.ttft_s)));
        }
    }
    for (engine, share) in &report.memory.l1_release_fraction {
        counts.push((format!("{engine} level-1 sleeps in all"), n(*share)));
    }
    counts
}
