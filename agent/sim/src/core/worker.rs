//! The worker: what the memory really is, and the allocator of sleep mode.
//!
//! The pool is a row of allocations in allocation order, weights first and KV cache last (CONTRACT 3.1 [src]). A sleep
//! walks it: copy to the host where the tag is offloaded, unmap, next; a wake maps, copies back, next. Each step takes
//! its time and then moves the ledger, so other processes see memory appear and vanish as it does on a device, and an
//! allocation that does not fit fails half way and leaves what was mapped mapped (CONTRACT 3.4 [run][sim]).

use super::devices::{Devices, OUT_OF_MEMORY};
use super::host::HostMemory;
use crate::args::Settings;
use crate::clock::Timeline;
use crate::faults::{FaultKind, Faults};
use crate::ledger::Owner;
use crate::model::{MIB, Model};
use crate::tokens::mix;
use crate::version::Version;

const WEIGHT_CHUNKS: u64 = 8;
const KV_CHUNKS: u64 = 4;

/// A pool allocation's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Weights,
    Kv,
}

impl Tag {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Tag::Weights => "weights",
            Tag::Kv => "kv_cache",
        }
    }
}

#[derive(Debug)]
struct Chunk {
    tag: Tag,
    bytes: u64,
    is_asleep: bool,
    has_backup: bool,
    /// The content is not what was loaded (level 2).
    is_lost: bool,
    /// Physical bytes that a faulty sleep kept although the pages are unmapped.
    withheld: u64,
}

/// The one worker of an engine (with tensor parallelism: all of them, in step).
#[derive(Debug)]
pub(crate) struct Worker {
    model: Model,
    devices: Devices,
    chunks: Vec<Chunk>,
    has_sleep_mode: bool,
    speed: f64,
    host: HostMemory,
    is_pinned: bool,
    /// Bytes outside the pool that came with a wake and go with a sleep.
    growth: u64,
    /// Bytes that came with a wake and go with the first prefill after it.
    transient: u64,
    /// Level 2 saved buffers to the host; the next wake of the weights' tag writes them back.
    has_saved_buffers: bool,
    version: Version,
    identity: u64,
    is_corrupt: bool,
    /// Counts the KV caches that this process has had: blocks of an earlier one hold nothing.
    kv_epoch: u64,
}

/// Why a start cannot go on; the text goes to the log and the API server.
pub(crate) type StartError = String;

impl Worker {
    /// Starts the CUDA context and takes half of the residual.
    pub(crate) fn new(settings: &Settings, owners: Vec<Owner>) -> Result<Self, StartError> {
        let devices = Devices::open(settings, owners)?;
        let model = settings.model(settings.fixed_kv_bytes());
        let host = HostMemory::with_base(settings.engine.host_base_mib * MIB, settings.args.host_scale);
        let worker = Worker {
            devices,
            chunks: Vec::new(),
            has_sleep_mode: settings.args.enable_sleep_mode,
            speed: settings.args.speed,
            host,
            is_pinned: false,
            growth: 0,
            transient: 0,
            has_saved_buffers: false,
            version: settings.args.version,
            identity: settings.weights_identity(),
            is_corrupt: false,
            kv_epoch: 0,
            model,
        };
        worker.devices.allocate(worker.model.residual_bytes() / 2)?;
        Ok(worker)
    }

    /// Loads the next part of the weights.
    pub(crate) fn load_weights(&mut self) -> Result<(), StartError> {
        let total = self.model.weights_bytes();
        let loaded = u64::try_from(self.chunks.len()).unwrap_or(0);
        self.add_chunk(Tag::Weights, part(total, loaded, WEIGHT_CHUNKS))
    }

    /// How many calls of [`Worker::load_weights`] load all.
    pub(crate) fn weight_parts() -> u32 {
        WEIGHT_CHUNKS as u32
    }

    /// Takes the KV cache, of the size that start-up found.
    pub(crate) fn take_kv_cache(&mut self, model: Model) -> Result<(), StartError> {
        self.model = model;
        for index in 0..KV_CHUNKS {
            self.add_chunk(Tag::Kv, part(self.model.kv_bytes(), index, KV_CHUNKS))?;
        }
        Ok(())
    }

    /// Graphs and the rest of the residual.
    pub(crate) fn finish_start(&mut self) -> Result<(), StartError> {
        let residual = self.model.residual_bytes();
        self.devices.allocate(residual - residual / 2)
    }

    fn add_chunk(&mut self, tag: Tag, bytes: u64) -> Result<(), StartError> {
        self.devices.allocate(bytes)?;
        self.chunks.push(Chunk {
            tag,
            bytes,
            is_asleep: false,
            has_backup: false,
            is_lost: false,
            withheld: 0,
        });
        Ok(())
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    pub(crate) fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    /// From the next operation on.
    pub(crate) fn set_speed(&mut self, speed: f64) {
        self.speed = speed;
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Whether every page of a tag is mapped.
    pub(crate) fn is_mapped(&self, tag: Tag) -> bool {
        self.chunks.iter().all(|c| c.tag != tag || !c.is_asleep)
    }

    pub(crate) fn kv_epoch(&self) -> u64 {
        self.kv_epoch
    }

    /// What the weights on the device are: the model's own only while nothing of them is lost or corrupted.
    pub(crate) fn identity(&self) -> u64 {
        // Discarded and mapped again, the pages hold anything but the weights (CONTRACT 1.3, #29341 [iss]).
        let lost = self.chunks.iter().any(|c| c.tag == Tag::Weights && c.is_lost);
        match (lost, self.is_corrupt) {
            (false, false) => self.identity,
            (true, _) => mix(self.identity, 0xdead),
            (false, true) => mix(self.identity, 0xbad),
        }
    }

    /// The worker's `sleep`. Level 1 offloads weights; 2 (and 3, CONTRACT 1.1 [src]) discards all.
    pub(crate) fn sleep(&mut self, level: u8, faults: &mut Faults) -> Result<(), String> {
        if !self.has_sleep_mode {
            // The pool is empty: nothing to do, and no error (CONTRACT 1.1 [src]).
            return Ok(());
        }
        if !self.version.allocator_is_idempotent() && self.chunks.iter().any(|c| c.is_asleep) {
            // CONTRACT 3.4 [sim]: up to 0.27 a second sleep copies from unmapped pages.
            return Err("CUDA Error: invalid argument at cumem_allocator.cpp (unmapped page)".into());
        }
        let mut time = Timeline::start(self.speed);
        if let Some(fault) = faults.strike(FaultKind::SleepHang) {
            hang(&mut time, fault.arg);
        }
        let free_before = self.devices.free_bytes()?;
        let halves = faults.strike(FaultKind::SleepFreesHalf).is_some();
        let dies = faults.strike(FaultKind::CrashInSleep).is_some();
        let pins = level == 1 && !self.is_pinned;
        if level != 1 {
            time.advance(self.model.engine().discard_s);
        }
        let (count, mut released) = (self.chunks.len(), 0);
        for index in 0..count {
            if dies && index == count / 2 {
                super::die("CUDA error: an illegal memory access was encountered (fault crash_in_sleep)");
            }
            let (tag, bytes) = (self.chunks[index].tag, self.chunks[index].bytes);
            if self.chunks[index].is_asleep {
                continue;
            }
            let offloads = level == 1 && tag == Tag::Weights;
            if offloads {
                let mut copy_s = self.model.offload_s(bytes);
                if pins {
                    copy_s += self.model.pin_s(bytes);
                    let pinned = u128::from(self.model.engine().host_pinned_mib * MIB) * u128::from(bytes)
                        / u128::from(self.model.weights_bytes().max(1));
                    self.host.pin(u64::try_from(pinned).unwrap_or(0));
                }
                time.advance(copy_s);
            }
            let withheld = if halves { bytes / 2 } else { 0 };
            self.devices.release(bytes - withheld)?;
            released += bytes - withheld;
            let chunk = &mut self.chunks[index];
            chunk.is_asleep = true;
            chunk.withheld = withheld;
            chunk.has_backup = offloads;
            chunk.is_lost |= !offloads;
            if tag == Tag::Kv {
                self.kv_epoch += 1;
            }
            // The ledger moves first: its own time must not come on top.
            time.advance(self.model.unmap_s(bytes));
        }
        self.is_pinned |= pins;
        self.has_saved_buffers |= level != 1;
        // gc.collect and empty_cache.
        self.devices.release(self.growth)?;
        released += self.growth;
        self.growth = 0;
        self.settle();
        if let Some(fault) = faults.strike(FaultKind::ResidualCreep) {
            drop(self.devices.allocate(mib(fault.arg.unwrap_or(64.0))));
        }
        if let Some(fault) = faults.strike(FaultKind::NeighbourAllocInSleep) {
            self.devices.bring_neighbour(fault.arg.map_or(released + 256 * MIB, mib));
        }
        time.advance(self.model.unmap_fixed_s());
        let free_after = self.devices.free_bytes()?;
        if free_after < free_before {
            // CONTRACT 3.4 [run], every version: device-wide, no matter whose.
            return Err("Memory usage increased after sleeping.".into());
        }
        let gib = |bytes: u64| bytes as f64 / (1024.0 * MIB as f64);
        super::log(&format!(
            "INFO gpu_worker: Sleep mode freed {:.2} GiB memory, {:.2} GiB memory is still in use.",
            gib(free_after - free_before),
            gib(self.devices.total_bytes()?.saturating_sub(free_after)),
        ));
        Ok(())
    }

    /// The worker's `discard` of the KV cache (0.31, CONTRACT 1.1 [src]).
    pub(crate) fn discard_kv(&mut self) -> Result<(), String> {
        if !self.has_sleep_mode {
            return Ok(());
        }
        let mut time = Timeline::start(self.speed);
        for index in 0..self.chunks.len() {
            if self.chunks[index].tag != Tag::Kv || self.chunks[index].is_asleep {
                continue;
            }
            let bytes = self.chunks[index].bytes;
            self.devices.release(bytes)?;
            time.advance(self.model.unmap_s(bytes));
            self.chunks[index].is_asleep = true;
            self.chunks[index].is_lost = true;
            self.kv_epoch += 1;
        }
        time.advance(self.model.unmap_fixed_s());
        Ok(())
    }

    /// The worker's `wake_up`; no tags means all.
    pub(crate) fn wake_up(&mut self, tags: Option<&[String]>, faults: &mut Faults) -> Result<(), String> {
        if !self.has_sleep_mode {
            return Ok(());
        }
        let mut time = Timeline::start(self.speed);
        if let Some(fault) = faults.strike(FaultKind::WakeHang) {
            hang(&mut time, fault.arg);
        }
        let chosen: Vec<usize> = (0..self.chunks.len())
            .filter(|i| tags.is_none_or(|tags| tags.iter().any(|t| t == self.chunks[*i].tag.as_str())))
            .collect();
        let sleeping = chosen.iter().filter(|i| self.chunks[**i].is_asleep).count();
        let short = sleeping > 0 && faults.strike(FaultKind::WakeOom).is_some();
        let dies = sleeping > 0 && faults.strike(FaultKind::CrashInWake).is_some();
        let mut mapped = 0;
        let mut restored = false;
        if tags.is_none_or(|tags| tags.iter().any(|t| t == Tag::Weights.as_str())) {
            self.has_saved_buffers = false;
        } else if self.has_saved_buffers && self.version.wake_writes_buffers_always() {
            super::die(
                "CUDA error: an illegal memory access was encountered (buffers into unmapped weights)",
            );
        }
        for index in chosen {
            let bytes = self.chunks[index].bytes;
            if !self.chunks[index].is_asleep {
                if self.version.allocator_is_idempotent() {
                    continue;
                }
                // Fact 6 [sim]: up to 0.27 a mapped page is created again; the old handle's memory is never given back.
                drop(self.devices.allocate(bytes));
                return Err(
                    "CUDA Error: invalid argument at cumem_allocator.cpp (page already mapped)".into()
                );
            }
            if mapped == sleeping / 2 {
                if dies {
                    super::die("CUDA error: an illegal memory access was encountered (fault crash_in_wake)");
                }
                if short {
                    return Err(OUT_OF_MEMORY.into());
                }
            }
            self.devices.allocate(bytes - self.chunks[index].withheld)?;
            let has_backup = self.chunks[index].has_backup;
            self.chunks[index].withheld = 0;
            self.chunks[index].is_asleep = false;
            mapped += 1;
            let mut took_s = self.model.map_s(bytes);
            if has_backup {
                took_s += self.model.restore_s(bytes);
                restored = true;
            }
            let chunk = &mut self.chunks[index];
            chunk.has_backup = false;
            if chunk.tag == Tag::Kv {
                // An empty cache is all a KV cache need be.
                chunk.is_lost = false;
            }
            if mapped == sleeping {
                self.take_workspace(restored);
            }
            time.advance(took_s);
        }
        if sleeping > 0 && faults.strike(FaultKind::CorruptAfterWake).is_some() {
            self.is_corrupt = true;
        }
        Ok(())
    }

    /// What a wake takes outside the pool. A failure is the caching allocator's to retry later: no error of the wake.
    fn take_workspace(&mut self, restored: bool) {
        let growth = self.model.growth_bytes();
        let is_awake = self.is_mapped(Tag::Weights) && self.is_mapped(Tag::Kv);
        if is_awake && self.growth == 0 && self.devices.allocate(growth).is_ok() {
            self.growth = growth;
        }
        let transient = self.model.engine().wake_transient_mib * MIB;
        if restored && self.transient == 0 && self.devices.allocate(transient).is_ok() {
            self.transient = transient;
        }
    }

    /// The RPC `reload_weights`: reads the checkpoint again, into whatever is mapped.
    pub(crate) fn reload_weights(&mut self) -> Result<(), String> {
        if !self.is_mapped(Tag::Weights) {
            // Writing into unmapped pages is an illegal access (CONTRACT 1.3 [src]).
            super::die("CUDA error: an illegal memory access was encountered (reload into unmapped weights)");
        }
        Timeline::start(self.speed).advance(self.model.engine().reload_s);
        if self.model.engine().is_quantized && !self.version.reloads_quantized() {
            return Err("AssertionError: param_data.shape == loaded_weight.shape".into());
        }
        for chunk in &mut self.chunks {
            chunk.is_lost = false;
        }
        self.is_corrupt = false;
        Ok(())
    }

    /// `/weight_checker` with `reset`: the weights are zeroed where they lie.
    pub(crate) fn reset_weights(&mut self) -> Result<(), String> {
        if !self.is_mapped(Tag::Weights) {
            super::die("CUDA error: an illegal memory access was encountered (zeroes into unmapped weights)");
        }
        for chunk in self.chunks.iter_mut().filter(|c| c.tag == Tag::Weights) {
            chunk.is_lost = true;
        }
        Ok(())
    }

    /// The first prefill after a wake is over, or the engine sleeps again: its workspace goes.
    pub(crate) fn settle(&mut self) {
        if self.transient > 0 {
            // An unusable ledger shows with the next operation.
            drop(self.devices.release(self.transient));
            self.transient = 0;
        }
    }
}

/// The `index`-th of `count` nearly equal parts of `total`.
fn part(total: u64, index: u64, count: u64) -> u64 {
    total * (index + 1) / count - total * index / count
}

fn mib(number: f64) -> u64 {
    (number.max(0.0) * MIB as f64) as u64
}

/// Hangs for simulated seconds, or until somebody kills the process.
fn hang(time: &mut Timeline, simulated_s: Option<f64>) {
    match simulated_s {
        Some(seconds) => time.advance(seconds),
        None => loop {
            std::thread::park();
        },
    }
}
