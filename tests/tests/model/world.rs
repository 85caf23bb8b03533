//! The world that the core acts on: processes, weights, KV caches and schedulers as CONTRACT describes them by version.
//!
//! It is the ground truth, independent of the core's own ledger and of the simulated engine: it shares no arithmetic
//! with either. Bytes are abstract units.
//!
//! ```text
//!   what the worker holds      weights: mapped / half mapped / in host memory / dropped, KV cache: mapped or not
//!   what the engine believes   which of the two it put to sleep; whether its scheduler is paused
//! ```
//!
//! The two sides part when a call fails half way (CONTRACT 3.4): that is what verification is for.

use hotbunk_core::call::{Call, CallOutcome, SleepLevel, WakeTags};
use hotbunk_core::capability::{Capabilities, Routes, Version};

/// Where an engine's weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Weights {
    /// Not loaded yet, or no process.
    None,
    /// On the device.
    Mapped,
    /// A wake ran out of memory half way: half of them on the device.
    Half,
    /// In host memory.
    Host,
    /// Gone; to be read again.
    Dropped,
}

/// Sizes of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Size {
    /// Weights.
    pub(crate) weights: u64,
    /// KV cache.
    pub(crate) kv: u64,
    /// Context, graphs.
    pub(crate) residual: u64,
}

/// One engine's process and memory, as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Proc {
    /// The API server and its engine live.
    pub(crate) alive: bool,
    /// Where the weights are.
    pub(crate) weights: Weights,
    /// The KV cache is mapped.
    pub(crate) kv: bool,
    /// Weights are mapped and hold no model: level 2 was left without a reload.
    pub(crate) garbage: bool,
    /// The scheduler is paused.
    pub(crate) paused: bool,
    /// The engine believes that its weights sleep.
    pub(crate) weights_asleep: bool,
    /// The engine believes that its KV cache sleeps.
    pub(crate) kv_asleep: bool,
    /// Handles leaked or worker wedged: the next forward kills it.
    pub(crate) broken: bool,
    /// A call that nobody waits for any more is still at work.
    pub(crate) busy: bool,
    /// Requests are running.
    pub(crate) running: bool,
    /// Bytes on the device that no process of ours explains.
    pub(crate) leftover: u64,
}

/// What a probe sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    /// The right token.
    Token,
    /// Other tokens.
    Garbage,
    /// Nothing before the deadline.
    Nothing,
    /// The forward hit unmapped memory and the engine died of it.
    Killed,
}

impl Proc {
    /// No process.
    pub(crate) fn stopped() -> Self {
        Proc {
            alive: false,
            weights: Weights::None,
            kv: false,
            garbage: false,
            paused: false,
            weights_asleep: false,
            kv_asleep: false,
            broken: false,
            busy: false,
            running: false,
            leftover: 0,
        }
    }

    /// Loaded and serving.
    pub(crate) fn awake() -> Self {
        Proc { alive: true, weights: Weights::Mapped, kv: true, ..Proc::stopped() }
    }

    /// Verified asleep at level 1 or 2, or parked.
    pub(crate) fn asleep(weights: Weights) -> Self {
        let parked = weights == Weights::Mapped;
        Proc {
            alive: true,
            weights,
            paused: true,
            weights_asleep: !parked,
            kv_asleep: true,
            ..Proc::stopped()
        }
    }

    /// Device bytes that it really holds.
    pub(crate) fn bytes(&self, size: Size) -> u64 {
        let weights = match self.weights {
            Weights::Mapped => size.weights,
            Weights::Half => size.weights / 2,
            _ => 0,
        };
        let kv = if self.kv { size.kv } else { 0 };
        let residual = if self.weights == Weights::None { 0 } else { size.residual };
        self.leftover + if self.alive { weights + kv + residual } else { 0 }
    }

    /// It could answer a request now: memory there, scheduler running, weights right.
    pub(crate) fn serves(&self) -> bool {
        self.alive
            && self.weights == Weights::Mapped
            && self.kv
            && !self.paused
            && !self.garbage
            && !self.broken
            && !self.weights_asleep
            && !self.kv_asleep
    }

    /// What `/is_sleeping` says.
    pub(crate) fn is_sleeping(&self, caps: &Capabilities) -> bool {
        self.weights_asleep || self.kv_asleep || (caps.has_modes() && self.paused)
    }

    /// The process ends; a driver takes its memory back.
    pub(crate) fn die(&mut self) {
        *self = Proc { leftover: self.leftover, ..Proc::stopped() };
    }

    /// A start has come as far as its memory; `false` when that is not there.
    pub(crate) fn load(&mut self, size: Size, room: u64) -> bool {
        if size.weights + size.kv + size.residual > room {
            return false;
        }
        *self = Proc { leftover: self.leftover, ..Proc::awake() };
        true
    }

    /// What one token asked of it does.
    pub(crate) fn probe(&mut self, caps: &Capabilities) -> Seen {
        if !self.alive {
            return Seen::Nothing;
        }
        if self.paused {
            return Seen::Nothing;
        }
        let asleep = self.weights_asleep || self.kv_asleep;
        if asleep && caps.has_modes() && self.weights == Weights::Mapped && self.kv {
            return Seen::Nothing;
        }
        if self.weights != Weights::Mapped || !self.kv || self.broken {
            self.die();
            return Seen::Killed;
        }
        if self.garbage { Seen::Garbage } else { Seen::Token }
    }

    /// A control call runs to its own end; `room` is what is free on its fullest device.
    pub(crate) fn call(&mut self, caps: &Capabilities, size: Size, call: Call, room: u64) -> CallOutcome {
        if !self.alive {
            return CallOutcome::Gone { message: String::new() };
        }
        match call {
            Call::Sleep { level: SleepLevel::L0, .. } | Call::Pause { .. } => {
                self.paused = true;
                accepted()
            }
            Call::Resume => {
                self.paused = false;
                accepted()
            }
            Call::ResetPrefixCache => accepted(),
            Call::Sleep { level, .. } => self.sleep(caps, level),
            Call::WakeUp { tags } => self.wake(caps, size, tags, room),
            Call::ReleaseKvCache => {
                if !self.paused || self.weights_asleep || self.kv_asleep || self.weights != Weights::Mapped {
                    return refused();
                }
                self.kv = false;
                self.kv_asleep = true;
                accepted()
            }
            Call::ReloadWeights => {
                if self.weights != Weights::Mapped {
                    return refused();
                }
                self.garbage = false;
                accepted()
            }
            Call::WorkerWakeUp => {
                if self.map(caps, size, true, true, room) {
                    accepted()
                } else {
                    refused()
                }
            }
            Call::WorkerSleep { level } => {
                self.unmap(level);
                accepted()
            }
        }
    }

    fn sleep(&mut self, caps: &Capabilities, level: SleepLevel) -> CallOutcome {
        if caps.has_modes() {
            self.paused = true;
        }
        let (any, all) = (self.weights_asleep || self.kv_asleep, self.weights_asleep && self.kv_asleep);
        if all || (any && !caps.can_demote()) {
            return accepted();
        }
        if !caps.is_retry_safe() && self.weights != Weights::Mapped {
            self.broken = true;
            return refused();
        }
        self.unmap(level);
        (self.weights_asleep, self.kv_asleep) = (true, true);
        accepted()
    }

    /// The assertion of CONTRACT 3.4: memory is gone, the engine believes that it is awake.
    pub(crate) fn wreck(&mut self, caps: &Capabilities, call: Call) {
        if let Call::Sleep { level, .. } = call {
            self.unmap(level);
            self.paused |= caps.has_modes();
        }
    }

    /// The worker's own sleep.
    pub(crate) fn unmap(&mut self, level: SleepLevel) {
        self.kv = false;
        self.weights = match (self.weights, level) {
            (_, SleepLevel::L0) | (Weights::None, _) => self.weights,
            (Weights::Dropped, _) | (_, SleepLevel::L2) => Weights::Dropped,
            (Weights::Mapped | Weights::Half | Weights::Host, SleepLevel::L1) if self.garbage => {
                Weights::Dropped
            }
            (Weights::Mapped | Weights::Half | Weights::Host, SleepLevel::L1) => Weights::Host,
        };
    }

    fn wake(&mut self, caps: &Capabilities, size: Size, tags: WakeTags, room: u64) -> CallOutcome {
        let (weights, kv) = match tags {
            WakeTags::All => (self.weights_asleep, self.kv_asleep),
            WakeTags::Weights => (self.weights_asleep, false),
            WakeTags::KvCache => (false, self.kv_asleep),
        };
        let anything = self.weights_asleep || self.kv_asleep;
        if !weights && !kv {
            // Nothing of that sleeps: 200, and a tagless one resumes the scheduler all the same.
            if tags == WakeTags::All && !anything && caps.has_modes() {
                self.paused = false;
            }
            return accepted();
        }
        if !self.map(caps, size, weights, kv, room) {
            return refused();
        }
        self.weights_asleep &= !weights;
        self.kv_asleep &= !kv;
        let all_awake = !self.weights_asleep && !self.kv_asleep;
        if caps.has_modes() && (all_awake || !caps.partial_wake_is_safe()) {
            self.paused = false;
        }
        accepted()
    }

    /// Maps what is asked for as far as there is room; `false` when that was not far enough.
    fn map(&mut self, caps: &Capabilities, size: Size, weights: bool, kv: bool, room: u64) -> bool {
        let missing = match self.weights {
            Weights::Half => size.weights - size.weights / 2,
            Weights::Host | Weights::Dropped => size.weights,
            Weights::Mapped | Weights::None => 0,
        };
        let weights_needed = if weights { missing } else { 0 };
        let needed = weights_needed + if kv && !self.kv { size.kv } else { 0 };
        // Before 0.28 pages that are mapped already are mapped again.
        let again =
            self.weights == Weights::Half || (weights && self.weights == Weights::Mapped) || (kv && self.kv);
        if again && !caps.is_retry_safe() {
            self.broken = true;
            return false;
        }
        if needed > room {
            if weights_needed == size.weights && room >= size.weights / 2 {
                self.garbage |= self.weights == Weights::Dropped;
                self.weights = Weights::Half;
            }
            return false;
        }
        if weights && missing > 0 {
            self.garbage |= self.weights == Weights::Dropped;
            self.weights = Weights::Mapped;
        }
        self.kv |= kv;
        true
    }
}

fn accepted() -> CallOutcome {
    CallOutcome::Accepted { success: None }
}

/// A 500 in the engine's words.
pub(crate) fn refused() -> CallOutcome {
    CallOutcome::Refused { status: 500, message: String::new() }
}

/// The version classes that behave differently enough to be checked apart.
pub(crate) fn vllm(minor: u16) -> Capabilities {
    Capabilities {
        version: Version::new(0, minor, 0),
        routes: Routes {
            sleep: true,
            collective_rpc: minor >= 11,
            release_kv_cache: minor >= 31,
            reset_prefix_cache: true,
            pause: minor >= 12,
            abort_requests: minor >= 13,
        },
        workers: 1,
    }
}
