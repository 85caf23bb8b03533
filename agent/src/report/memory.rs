//! Device and host memory of a run.
//!
//! Device figures come from the samples inside the measuring windows: windows overlap (each is widened at both ends),
//! a sample is taken once. The window of the `auto` series is not among them, nor is what the margin of another window
//! holds of that series. A reading that failed is counted as
//! missed and enters no figure.

use super::models::{count, durations, values};
use super::run::Run;
use super::sleeps::{GIB, Sleep};
use crate::journal::record::{HostSample, Sample};
use hotbunk_api::report::{HostPeak, Memory, Sampling, Stat};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Ending of the names of windows that belong to the `auto` series.
const AUTO_WINDOW: &str = "-auto";

/// The samples that count: inside a window that is not of the `auto` series.
fn in_windows<'s>(run: &Run<'_>, samples: &'s [Sample]) -> Vec<&'s Sample> {
    let windows: Vec<(f64, f64)> =
        run.windows.iter().filter(|(name, _)| !name.ends_with(AUTO_WINDOW)).map(|(_, w)| *w).collect();
    samples
        .iter()
        .filter(|s| {
            !run.in_auto(s.at) && windows.iter().any(|(start, end)| (*start..=*end).contains(&s.wall))
        })
        .collect()
}

/// Peaks, and what level-1 sleeps released.
pub(super) fn memory(run: &Run<'_>, sleeps: &[Sleep<'_>], samples: &[Sample], host: &[HostSample]) -> Memory {
    let used = in_windows(run, samples).into_iter().filter_map(|s| s.used).map(|b| b as f64 / GIB);
    let release = |of: fn(&Sleep<'_>) -> Option<f64>| -> BTreeMap<String, Option<Stat>> {
        let engine = |engine: &str| {
            let own = sleeps.iter().filter(|s| s.engine == engine && !s.auto);
            values(own.filter(|s| s.requested == Some(Tier::Level1)).filter_map(of))
        };
        run.engines.iter().map(|e| (e.engine.clone(), engine(&e.engine))).collect()
    };
    let peak = |engine: &str, of: fn(&HostSample) -> Option<u64>| {
        let own = host.iter().filter(|s| s.engine == engine && belongs(run, s));
        own.filter_map(of).max().map(|b| b as f64 / GIB)
    };
    let peaks: BTreeMap<String, HostPeak> = run
        .engines
        .iter()
        .map(|e| {
            let peaks = HostPeak { rss: peak(&e.engine, |s| s.rss), pss: peak(&e.engine, |s| s.pss) };
            (e.engine.clone(), peaks)
        })
        .collect();
    Memory {
        physical_peak_gib: values(used),
        rss_peak_gib: peaks.iter().map(|(engine, peak)| (engine.clone(), peak.rss)).collect(),
        l1_release_fraction: release(|s| s.device_release_percent()),
        l1_process_release_fraction: release(|s| s.process_release_percent()),
        host_peak_gib: peaks,
    }
}

/// Whether a host sample lies in the run, before the `auto` series.
fn belongs(run: &Run<'_>, sample: &HostSample) -> bool {
    sample.at >= run.began && run.ended.is_none_or(|(end, ..)| sample.at <= end) && !run.in_auto(sample.at)
}

/// How the device was sampled.
pub(super) fn sampling(run: &Run<'_>, samples: &[Sample]) -> Sampling {
    let counted = in_windows(run, samples);
    let instants: BTreeSet<(&str, Moment)> = counted.iter().map(|s| (s.device.as_str(), s.at)).collect();
    let mut in_order: Vec<(&str, Moment)> = samples.iter().map(|s| (s.device.as_str(), s.at)).collect();
    in_order.sort_unstable();
    // Neighbours among all samples, both of which count: the time between two windows is no interval.
    let spacing: Vec<Duration> = in_order
        .windows(2)
        .filter(|pair| pair[0].0 == pair[1].0 && pair.iter().all(|s| instants.contains(s)))
        .map(|pair| pair[1].1.since(pair[0].1))
        .collect();
    let missed = counted.iter().filter(|s| s.used.is_none()).count();
    Sampling {
        source: run.device_source.map(str::to_owned),
        interval_s: durations(&spacing),
        samples: count(counted.len() - missed),
        missed: count(missed),
    }
}
