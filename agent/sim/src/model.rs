//! The arithmetic of time and bytes: pure, no timer, no file.
//!
//! A sleep is copies (weights, level 1 only), then unmapping; a wake is mapping, then copies; prefill and decode slow
//! down with the batch. All times are simulated seconds, all sizes bytes; whoever waits divides by the speed.

use crate::profile::{DeviceProfile, EngineProfile};

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
const GIB: f64 = 1_073_741_824.0;

/// One engine's figures with its KV cache size.
#[derive(Debug, Clone)]
pub struct Model {
    device: DeviceProfile,
    engine: EngineProfile,
    kv_bytes: u64,
}

impl Model {
    /// `kv_bytes` is what the flags made of the KV cache.
    pub fn new(device: DeviceProfile, engine: EngineProfile, kv_bytes: u64) -> Self {
        Model { device, engine, kv_bytes }
    }

    /// The engine's figures.
    pub fn engine(&self) -> &EngineProfile {
        &self.engine
    }

    /// Weights on the device.
    pub fn weights_bytes(&self) -> u64 {
        self.engine.weights_mib * MIB
    }

    /// KV cache on the device.
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// What no sleep gives back.
    pub fn residual_bytes(&self) -> u64 {
        self.engine.residual_mib * MIB
    }

    /// Taken with a wake, outside the pool.
    pub fn growth_bytes(&self) -> u64 {
        self.engine.growth_mib * MIB
    }

    /// Awake, before the first wake.
    pub fn fresh_bytes(&self) -> u64 {
        self.residual_bytes() + self.weights_bytes() + self.kv_bytes
    }

    /// Tokens that fit in the KV cache.
    pub fn kv_tokens(&self) -> u64 {
        self.kv_bytes / self.engine.kv_bytes_per_token.max(1)
    }

    /// Fixed part of an operation that unmaps.
    pub fn unmap_fixed_s(&self) -> f64 {
        self.device.unmap_fixed_s
    }

    /// Unmapping `bytes`, without the fixed part.
    pub fn unmap_s(&self, bytes: u64) -> f64 {
        self.device.unmap_s_per_gib * gib(bytes)
    }

    /// Mapping `bytes`.
    pub fn map_s(&self, bytes: u64) -> f64 {
        self.device.map_s_per_gib * gib(bytes)
    }

    /// Copying `bytes` of weights to the host.
    pub fn offload_s(&self, bytes: u64) -> f64 {
        self.engine.offload_s * self.share(bytes)
    }

    /// Pinning host memory for `bytes` of weights.
    pub fn pin_s(&self, bytes: u64) -> f64 {
        self.engine.pin_s * self.share(bytes)
    }

    /// Copying `bytes` of weights to the device.
    pub fn restore_s(&self, bytes: u64) -> f64 {
        self.engine.restore_s * self.share(bytes)
    }

    fn share(&self, bytes: u64) -> f64 {
        let all = self.weights_bytes();
        if all == 0 { 0.0 } else { bytes as f64 / all as f64 }
    }

    /// A whole sleep from awake: `level` 1 offloads (and pins when `first`), 2 discards.
    pub fn sleep_s(&self, level: u8, first: bool) -> f64 {
        let unmap = self.unmap_fixed_s() + self.unmap_s(self.weights_bytes() + self.kv_bytes);
        match level {
            0 => 0.0,
            1 => unmap + self.engine.offload_s + if first { self.engine.pin_s } else { 0.0 },
            _ => unmap + self.engine.discard_s,
        }
    }

    /// A whole wake: after level 2 with `reload`, else with the copy back.
    pub fn wake_s(&self, reload: bool) -> f64 {
        self.map_s(self.weights_bytes() + self.kv_bytes)
            + if reload { self.engine.reload_s } else { self.engine.restore_s }
    }

    /// `/release_kv_cache_memory`.
    pub fn release_kv_s(&self) -> f64 {
        self.unmap_fixed_s() + self.unmap_s(self.kv_bytes)
    }

    /// `/wake_up?tags=kv_cache`.
    pub fn wake_kv_s(&self) -> f64 {
        self.map_s(self.kv_bytes)
    }

    /// A step that prefills `requests` prompts of together `tokens` tokens.
    pub fn prefill_s(&self, requests: u32, tokens: u64) -> f64 {
        let base = between(self.engine.ttft_1_s, self.engine.ttft_4_s, requests);
        let included = u64::from(self.engine.ttft_prompt_tokens) * u64::from(requests);
        base + tokens.saturating_sub(included) as f64 * self.engine.prefill_s_per_token
    }

    /// What the first prefill after a wake costs beyond [`Model::prefill_s`]; more where no request had been served
    /// before the first sleep.
    pub fn first_after_wake_extra_s(&self, warmed: bool) -> f64 {
        let factor = if warmed { 1.0 } else { self.engine.unwarmed_factor.max(1.0) };
        (self.engine.first_after_wake_s * factor - self.engine.ttft_1_s).max(0.0)
    }

    /// A decode step of a batch.
    pub fn tpot_s(&self, batch: u32) -> f64 {
        between(self.engine.tpot_1_s, self.engine.tpot_4_s, batch)
    }
}

/// Linear through the figures at 1 and 4, and beyond.
fn between(at_1: f64, at_4: f64, n: u32) -> f64 {
    let n = f64::from(n.max(1));
    at_1 + (at_4 - at_1) * (n - 1.0) / 3.0
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    fn l20(role: &str) -> Model {
        let profile = Profile::load("l20").unwrap();
        let engine = profile.engine(role).unwrap().clone();
        let kv = engine.kv_mib * MIB;
        Model::new(profile.device, engine, kv)
    }

    fn within(percent: f64, got: f64, reference: f64, what: &str) {
        let off = (got / reference - 1.0).abs() * 100.0;
        assert!(off <= percent, "{what}: {got} is {off:.2} % off the reference's {reference}");
    }

    #[test]
    fn operations_hit_the_reference_medians() {
        let (a, b) = (l20("A"), l20("B"));
        within(1.0, a.sleep_s(1, false), 1.336195, "A level 1, cycles");
        within(1.0, a.sleep_s(1, false), 1.346614, "A level 1, handoffs");
        within(1.0, a.sleep_s(1, true), 18.466763, "A level 1, first");
        within(1.0, a.sleep_s(2, false), 0.587180, "A level 2");
        within(1.0, a.wake_s(false), 1.758080, "A wake, cycles");
        within(1.0, a.wake_s(false), 1.752494, "A wake, handoffs");
        within(1.0, a.wake_s(true), 14.800920, "A wake with reload");
        // The reference's own two medians for B are 7 % apart: one figure lies between them.
        within(3.6, b.sleep_s(1, false), 0.183789, "B level 1, cycles");
        within(3.6, b.sleep_s(1, false), 0.171769, "B level 1, handoffs");
        within(1.0, b.sleep_s(1, true), 2.074455, "B level 1, first");
        within(1.0, b.sleep_s(2, false), 0.100897, "B level 2");
        within(1.0, b.wake_s(false), 0.217930, "B wake, cycles");
        within(1.0, b.wake_s(false), 0.219111, "B wake, handoffs");
        within(1.0, b.wake_s(true), 2.152865, "B wake with reload");
    }

    #[test]
    fn serving_hits_the_reference_medians() {
        let (a, b) = (l20("A"), l20("B"));
        within(1.0, a.prefill_s(1, 26), 0.097798, "A TTFT at 1");
        within(1.0, a.prefill_s(4, 104), 0.199031, "A TTFT at 4");
        within(1.0, a.tpot_s(1), 0.038958, "A TPOT at 1");
        within(1.0, a.tpot_s(4), 0.041923, "A TPOT at 4");
        within(1.0, b.prefill_s(1, 25), 0.017089, "B TTFT at 1");
        within(1.0, b.prefill_s(4, 100), 0.031183, "B TTFT at 4");
        within(1.0, b.tpot_s(1), 0.005568, "B TPOT at 1");
        within(1.0, b.tpot_s(4), 0.005865, "B TPOT at 4");
        within(
            1.0,
            a.wake_s(false) + a.prefill_s(1, 26) + a.first_after_wake_extra_s(true),
            1.862026,
            "A first token",
        );
        within(
            1.0,
            b.wake_s(false) + b.prefill_s(1, 25) + b.first_after_wake_extra_s(true),
            0.238740,
            "B first token",
        );
        within(1.0, a.engine().ready_cold_s + a.prefill_s(1, 26), 219.197010, "A cold");
        within(1.0, a.engine().ready_warm_s + a.prefill_s(1, 26), 55.628853, "A warm");
        within(1.0, b.engine().ready_cold_s + b.prefill_s(1, 25), 84.059117, "B cold");
        within(1.0, b.engine().ready_warm_s + b.prefill_s(1, 25), 36.054833, "B warm");
    }

    #[test]
    fn bytes_are_the_reference_digits() {
        let (a, b) = (l20("A"), l20("B"));
        let awake = |m: &Model| m.fresh_bytes() + m.growth_bytes();
        let released = |before: u64, after: u64| (before - after) as f64 / before as f64 * 100.0;
        let (ra, rb) = (a.residual_bytes(), b.residual_bytes());
        assert!((released(awake(&a), ra) - 98.21220016171054).abs() < 1e-9);
        assert!((released(awake(&a) + rb, ra + rb) - 96.89198770976128).abs() < 1e-9);
        assert!((released(awake(&b) + ra, ra + rb) - 87.63807285546416).abs() < 1e-9);
        assert!((released(b.fresh_bytes() + ra, ra + rb) - 87.62644083745002).abs() < 1e-9);
        assert!((gib(a.fresh_bytes()) - 32.5263671875).abs() < 1e-12);
        let peak = awake(&a) + rb + a.engine().wake_transient_mib * MIB;
        assert!((gib(peak) - 33.0888671875).abs() < 1e-12);
        let host = |m: &Model| (m.engine().host_base_mib + m.engine().host_pinned_mib) as f64 / 1024.0;
        assert!((host(&a) - 51.36977).abs() < 0.01 && (host(&b) - 11.28008).abs() < 0.01);
    }

    #[test]
    fn parking_costs_what_the_mapping_figures_say() {
        let b = l20("B");
        assert!((b.release_kv_s() - 0.042).abs() < 1e-9);
        assert!((b.wake_kv_s() - 0.072).abs() < 1e-9);
    }

    #[test]
    fn batches_and_prompts_slow_down() {
        let a = l20("A");
        assert!(a.tpot_s(8) > a.tpot_s(4) && a.tpot_s(2) > a.tpot_s(1));
        assert!(a.prefill_s(1, 4000) > a.prefill_s(1, 26));
        assert!(a.first_after_wake_extra_s(false) > 4.0 * a.engine().first_after_wake_s);
    }
}
