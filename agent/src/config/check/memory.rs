//! Memory plans that cannot work, as far as the configuration states figures.
//!
//! Nobody has to state any: footprints are measured. What is stated must fit, though, and what cannot fit is better
//! refused here than found by an out-of-memory at three in the morning.

use std::ops::Range;

use hotbunk_core::tier::Tier;

use super::Checking;
use crate::config::checked::{Config, Device, Engine};
use crate::config::raw::{RawConfig, RawEngine};
use crate::config::units::show_size;

/// Checks device memory and host memory.
pub(super) fn check(checking: &mut Checking<'_>, raw: &RawConfig, config: &Config) {
    for (index, device) in config.devices.iter().enumerate() {
        let on_it: Vec<Resident<'_>> = config
            .engines
            .iter()
            .enumerate()
            .filter(|(_, engine)| engine.devices.contains(&index))
            .filter_map(|(i, engine)| {
                let raw = raw.engine.get()?.get(i)?;
                Some(Resident { i, engine, raw: &raw.value, table: &raw.span })
            })
            .collect();
        let total =
            device.capacity_bytes.or_else(|| checking.facts.device_memory_total.get(&device.name).copied());
        match total {
            Some(total) => device_memory(checking, device, total, &on_it),
            None => utilization_alone(checking, device, &on_it),
        }
    }
    host_memory(checking, raw, config);
}

struct Resident<'a> {
    i: usize,
    engine: &'a Engine,
    raw: &'a RawEngine,
    table: &'a Range<usize>,
}

impl Resident<'_> {
    /// Bytes that it holds awake on one of its devices, as far as they are stated, and where.
    fn awake_bytes(&self) -> Option<(u64, &Range<usize>)> {
        // vLLM's KV size is one of each worker; weights are split over the devices.
        let spread = u64::try_from(self.engine.devices.len()).unwrap_or(1).max(1);
        let weights = self.engine.weights_bytes? / spread;
        let kv = self.engine.kv_cache_bytes.unwrap_or(0);
        let span = self.raw.weights.located().map_or(self.table, |given| &given.span);
        Some((weights.saturating_add(kv), span))
    }

    fn utilization_span(&self) -> &Range<usize> {
        self.raw
            .gpu_memory_utilization
            .located()
            .map(|given| &given.span)
            .or_else(|| self.raw.command.located().map(|given| &given.span))
            .unwrap_or(self.table)
    }
}

fn device_memory(checking: &mut Checking<'_>, device: &Device, total: u64, engines: &[Resident<'_>]) {
    let usable = total.saturating_sub(device.reserve_bytes);
    for one in engines {
        let neighbours = engines.iter().filter(|other| other.i != one.i).fold(0_u64, |sum, other| {
            // A neighbour can always be stopped, unless it may not.
            sum.saturating_add(if other.engine.sleep_tiers.is_empty() {
                0
            } else {
                other.engine.residual_bytes
            })
        });
        if let Some((bytes, span)) = one.awake_bytes() {
            if bytes > usable {
                let message = format!(
                    "{} cannot be awake on {}: weights and KV cache take {}, and {} of {} may be used",
                    one.engine.name,
                    device.name,
                    show_size(bytes),
                    show_size(usable),
                    show_size(total)
                );
                checking
                    .problems
                    .error("impossible_memory", span, format!("engine[{}].weights", one.i), message)
                    .help("lower --kv-cache-memory-bytes or the device's `reserve`, or spread the engine over more devices");
            } else if bytes.saturating_add(neighbours) > usable {
                let message = format!(
                    "{} fits on {} only while other engines are stopped: asleep they keep about {}",
                    one.engine.name,
                    device.name,
                    show_size(neighbours)
                );
                checking
                    .problems
                    .warning("tight_memory", span, format!("engine[{}].weights", one.i), message)
                    .help("lower --kv-cache-memory-bytes, or state a smaller `residual` for the others if you measured it");
            }
        }
        if let Some(peak) = one.raw.start_peak.located().filter(|peak| peak.value.0 > total) {
            let message = format!(
                "{} cannot start on {}: its peak exceeds {}",
                one.engine.name,
                device.name,
                show_size(total)
            );
            checking
                .problems
                .error("impossible_memory", &peak.span, format!("engine[{}].start_peak", one.i), message)
                .help("state what was measured, or leave it out");
        }
        // vLLM starts only if utilisation × total is free (CONTRACT 3.5), whatever the size of its KV cache.
        if let Some(share) = one.engine.gpu_memory_utilization {
            let demanded = share * total as f64;
            if demanded > total.saturating_sub(neighbours) as f64 {
                let message = format!(
                    "{} starts only if {} are free, and sleeping neighbours keep about {} of {}",
                    one.engine.name,
                    show_size(demanded as u64),
                    show_size(neighbours),
                    show_size(total)
                );
                checking
                    .problems
                    .warning(
                        "tight_memory",
                        one.utilization_span(),
                        format!("engine[{}].gpu_memory_utilization", one.i),
                        message,
                    )
                    .help("lower --gpu-memory-utilization");
            }
        }
    }
    awake_together(checking, device, usable, engines);
}

/// With `max_awake` of two and more, that many must fit at once.
fn awake_together(checking: &mut Checking<'_>, device: &Device, usable: u64, engines: &[Resident<'_>]) {
    let mut sizes: Vec<(u64, &Resident<'_>)> =
        engines.iter().filter_map(|one| Some((one.awake_bytes()?.0, one))).collect();
    if device.max_awake < 2 || sizes.len() < 2 || sizes.len() != engines.len() {
        return;
    }
    sizes.sort_by_key(|(bytes, _)| *bytes);
    let count = usize::from(device.max_awake).min(sizes.len());
    let least = sizes[..count].iter().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
    if least > usable {
        let message = format!(
            "`max_awake = {}` cannot be reached on {}: even the {count} smallest engines take {} of {}",
            device.max_awake,
            device.name,
            show_size(least),
            show_size(usable)
        );
        let (_, one) = sizes[count - 1];
        let span = one.raw.weights.located().map_or(one.table, |given| &given.span);
        checking
            .problems
            .error("impossible_memory", span, format!("engine[{}].weights", one.i), message)
            .help("lower `max_awake`, or the engines' KV caches");
    }
}

/// Without the device's size, shares of it can still be added.
fn utilization_alone(checking: &mut Checking<'_>, device: &Device, engines: &[Resident<'_>]) {
    if device.max_awake < 2 {
        return;
    }
    let mut shares: Vec<(f64, &Resident<'_>)> = engines
        .iter()
        .filter(|one| one.engine.kv_cache_bytes.is_none())
        .filter_map(|one| Some((one.engine.gpu_memory_utilization?, one)))
        .collect();
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = usize::from(device.max_awake).min(engines.len());
    let Some(smallest) = shares.get(..count).filter(|_| shares.len() == engines.len()) else { return };
    let sum: f64 = smallest.iter().map(|(share, _)| share).sum();
    if sum > 1.0 {
        let (_, one) = smallest[count - 1];
        let message = format!(
            "`max_awake = {}` cannot be reached on {}: the shares add up to {sum:.2}",
            device.max_awake, device.name
        );
        checking
            .problems
            .error(
                "impossible_memory",
                one.utilization_span(),
                format!("engine[{}].gpu_memory_utilization", one.i),
                message,
            )
            .help("lower `max_awake` or --gpu-memory-utilization, or fix --kv-cache-memory-bytes");
    }
}

/// Pinned backups of level 1 stay for an engine's life (CONTRACT 5): 1.4 to 2 times the weights, unless it is stated.
fn host_memory(checking: &mut Checking<'_>, raw: &RawConfig, config: &Config) {
    let Some(total) = checking.facts.host_memory_total else { return };
    // Simulated engines really take less by the scale.
    let scale =
        config.simulated.as_ref().map_or(1.0, |simulated| simulated.host_scale.max(f64::MIN_POSITIVE));
    let (mut least, mut most) = (0_u64, 0_u64);
    let mut largest: Option<(u64, usize)> = None;
    for (i, engine) in config.engines.iter().enumerate().filter(|(_, engine)| engine.allows(Tier::Level1)) {
        let scaled = |bytes: f64| (if engine.simulated { bytes / scale } else { bytes }) as u64;
        let (low, high) = match (engine.host_bytes, engine.weights_bytes) {
            (Some(stated), _) => (scaled(stated as f64), scaled(stated as f64)),
            (None, Some(weights)) => (scaled(weights as f64 * 1.4), scaled(weights as f64 * 2.0)),
            (None, None) => continue,
        };
        least = least.saturating_add(low);
        most = most.saturating_add(high);
        if largest.is_none_or(|(bytes, _)| high > bytes) {
            largest = Some((high, i));
        }
    }
    let Some((_, i)) = largest else { return };
    let usable = total.saturating_sub(config.node.host_memory_reserve);
    let Some(engine) = raw.engine.get().and_then(|list| list.get(i)) else { return };
    let (key, span) = match (engine.value.host_memory.located(), engine.value.weights.located()) {
        (Some(given), _) => ("host_memory", &given.span),
        (None, Some(given)) => ("weights", &given.span),
        (None, None) => ("", &engine.span),
    };
    let key = format!("engine[{i}].{key}");
    let reserve = show_size(config.node.host_memory_reserve);
    let have = format!("this machine has {}, of which {reserve} are reserved", show_size(total));
    if least > usable {
        let message = format!(
            "sleeping at level 1 the engines pin at least {} of host memory; {have}",
            show_size(least)
        );
        checking
            .problems
            .error("impossible_host_memory", span, key, message)
            .help("use `levels = [\"level2\"]` for the largest, or lower `host_memory_reserve` in [node]");
    } else if most > usable {
        let message = format!(
            "sleeping at level 1 the engines may pin up to {} of host memory; {have}",
            show_size(most)
        );
        checking.problems.warning("tight_host_memory", span, key, message).help(
            "state `host_memory` where it was measured, or use `levels = [\"level2\"]` for the largest",
        );
    }
}
