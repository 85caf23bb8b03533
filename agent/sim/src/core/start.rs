//! Starting: the process, the context, weights, profiling, KV cache, graphs; memory appears as it does on a device.

use super::executor::Executor;
use super::worker::{StartError, Worker};
use crate::args::Settings;
use crate::clock::Timeline;
use crate::faults::{FaultKind, Faults};
use crate::ledger::Owner;
use crate::model::MIB;
use std::path::Path;

// How the time until ready divides: estimated, the reference gives only the sum.
const BOOT: f64 = 0.15;
const CONTEXT: f64 = 0.05;
const WEIGHTS: f64 = 0.50;
const PROFILING: f64 = 0.10;
const KV_CACHE: f64 = 0.05;
const GRAPHS: f64 = 0.15;

/// Starts the engine; the error is what vLLM would have logged.
pub(crate) fn start(
    settings: &Settings,
    owners: Vec<Owner>,
    faults: &mut Faults,
) -> Result<Executor, StartError> {
    let mut time = Timeline::start(settings.args.speed);
    let is_cold = is_first_start(settings);
    let mut total_s = if is_cold { settings.engine.ready_cold_s } else { settings.engine.ready_warm_s };
    if let Some(fault) = faults.strike(FaultKind::SlowStart) {
        total_s *= fault.arg.unwrap_or(3.0).max(0.0);
    }
    time.advance(total_s * BOOT);

    let mut worker = Worker::new(settings, owners)?;
    let (initial_free, total) = (worker.devices().free_bytes()?, worker.devices().total_bytes()?);
    check_utilization(settings, initial_free, total)?;
    time.advance(total_s * CONTEXT);

    let parts = Worker::weight_parts();
    for index in 0..parts {
        if index == parts / 2 && faults.strike(FaultKind::ExitAtStart).is_some() {
            super::die("fault exit_at_start");
        }
        worker.load_weights()?;
        time.advance(total_s * WEIGHTS / f64::from(parts));
    }
    if faults.strike(FaultKind::HangStart).is_some() {
        loop {
            std::thread::park();
        }
    }

    let transient = settings.engine.profile_transient_mib * MIB;
    worker.devices().allocate(transient)?;
    time.advance(total_s * PROFILING);
    let free_after = worker.devices().free_bytes()?;
    if free_after > initial_free {
        // CONTRACT 3.5 [src]: neighbours must not give memory back meanwhile.
        return Err(format!(
            "Error in memory profiling. Initial free memory {initial_free} bytes, current free memory {free_after} \
             bytes. This happens when other processes sharing the same container release GPU memory while vLLM is \
             profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate vLLM in \
             its own container."
        ));
    }
    worker.devices().release(transient)?;

    let kv_bytes = kv_bytes(settings, total, initial_free, free_after)?;
    worker.take_kv_cache(settings.model(kv_bytes))?;
    time.advance(total_s * KV_CACHE);
    worker.finish_start()?;
    time.advance(total_s * GRAPHS);
    mark_started(settings);
    Ok(Executor::new(worker, settings.args.version, settings.args.tensor_parallel_size))
}

/// Start-up demands free ≥ utilisation × total (CONTRACT 3.5 [src]), also beside a fixed KV cache (3.3).
fn check_utilization(settings: &Settings, free: u64, total: u64) -> Result<(), StartError> {
    let Some(share) = settings.args.gpu_memory_utilization else { return Ok(()) };
    let wanted = share * total as f64;
    // Our own context is already in use: vLLM looks before it makes one.
    let before_us = free + settings.engine.residual_mib * MIB / 2;
    if (before_us as f64) < wanted {
        return Err(format!(
            "ValueError: Free memory on device ({}/{} MiB) on startup is less than desired GPU memory utilization \
             ({share}, {} MiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            before_us / MIB,
            total / MIB,
            wanted as u64 / MIB,
        ));
    }
    Ok(())
}

/// Fixed, or what the utilisation leaves by what start-up saw: a neighbour that took memory meanwhile makes it too
/// small, silently (CONTRACT 3.5, #55169 [iss]).
fn kv_bytes(settings: &Settings, total: u64, initial_free: u64, free_after: u64) -> Result<u64, StartError> {
    match (settings.args.kv_cache_memory_bytes, settings.args.gpu_memory_utilization) {
        (None, Some(share)) => {
            let used_by_us = initial_free.saturating_sub(free_after) + settings.engine.residual_mib * MIB;
            let budget = (share * total as f64) as u64;
            let left = budget.saturating_sub(used_by_us);
            if left < 64 * MIB {
                return Err("ValueError: No available memory for the cache blocks. Try increasing \
                            `gpu_memory_utilization` when initializing the engine."
                    .into());
            }
            Ok(left / MIB * MIB)
        }
        _ => Ok(settings.fixed_kv_bytes()),
    }
}

/// A model's first start with a cache directory is cold.
fn is_first_start(settings: &Settings) -> bool {
    settings.args.cache_dir.as_deref().is_some_and(|dir| !marker(dir, settings).exists())
}

fn mark_started(settings: &Settings) {
    let Some(dir) = settings.args.cache_dir.as_deref() else { return };
    let made = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(marker(dir, settings), b""));
    if let Err(error) = made {
        super::log(&format!(
            "WARNING core: cache directory {}: {error}; the next start is cold",
            dir.display()
        ));
    }
}

fn marker(dir: &Path, settings: &Settings) -> std::path::PathBuf {
    dir.join(format!("{}.started", settings.engine.model.replace('/', "--")))
}
