//! The report of synthetic runs against figures computed by other means.

mod journal;
mod load;
mod odd;
mod reference_run;
mod script;

use super::switch_report;
use hotbunk_api::report::{Stat, SwitchReport};
use journal::Journal;

fn report(journal: &Journal) -> SwitchReport {
    switch_report(&journal.entries, &journal.samples, &journal.host).expect("the records of one run")
}

/// The summary of what was chosen, by counting and not by ranking.
fn summary(nanos: &[u64]) -> Stat {
    let n = nanos.len();
    let at_most = |x: u64| nanos.iter().filter(|v| **v <= x).count();
    let at_least = |x: u64| nanos.iter().filter(|v| **v >= x).count();
    let middles: Vec<u64> =
        nanos.iter().copied().filter(|x| at_most(*x) * 2 >= n && at_least(*x) * 2 >= n).collect();
    let (low, high) = (middles.iter().min().expect("a middle"), middles.iter().max().expect("a middle"));
    let p95 = nanos.iter().copied().filter(|x| at_most(*x) * 100 >= 95 * n).min().expect("a p95");
    let seconds = |ns: u64| ns as f64 / 1e9;
    Stat {
        n: u32::try_from(n).expect("a small sample"),
        median: (low + high) as f64 / 2.0 / 1e9,
        min: seconds(*nanos.iter().min().expect("not empty")),
        max: seconds(*nanos.iter().max().expect("not empty")),
        p95: seconds(p95),
    }
}

#[track_caller]
fn assert_stat(path: &str, got: Option<Stat>, expected: Stat) {
    let got = got.unwrap_or_else(|| panic!("{path} is null"));
    assert_eq!(got.n, expected.n, "{path}.n");
    for (name, got, expected) in [
        ("median", got.median, expected.median),
        ("min", got.min, expected.min),
        ("max", got.max, expected.max),
        ("p95", got.p95, expected.p95),
    ] {
        assert!((got - expected).abs() < 1e-9, "{path}.{name}: {got} is not {expected}");
    }
}
