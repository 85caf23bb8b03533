//! From the checked configuration to what the core decides by.

use crate::config::{self, Config, Source};
use hotbunk_core::backoff::BackoffPolicy;
use hotbunk_core::creep::Recycle;
use hotbunk_core::ids::DeviceId;
use hotbunk_core::spec::{DeviceSpec, DrainPolicy, EngineSpec, Estimate, Levels, Policy, Strategy, Timeouts};
use hotbunk_core::tier::Tier;
use std::time::Duration;

/// Devices, before they have been read. `memory` gives the physical bytes of those that have been.
pub fn devices(config: &Config, memory: impl Fn(&str) -> Option<u64>) -> Vec<DeviceSpec> {
    let device = |d: &config::Device| DeviceSpec {
        name: d.name.clone(),
        evidence: d.source != Source::None,
        capacity: memory(&d.name).or(d.capacity_bytes),
        reserve: d.reserve_bytes,
        slack: d.slack_bytes,
        max_awake: d.max_awake,
    };
    config.devices.iter().map(device).collect()
}

/// Engines. `memory` gives the physical bytes of a device, which vLLM's utilisation is a share of.
pub fn engines(config: &Config, memory: impl Fn(&str) -> Option<u64>) -> Vec<EngineSpec> {
    config.engines.iter().map(|e| engine(config, e, &memory)).collect()
}

fn engine(config: &Config, e: &config::Engine, memory: &impl Fn(&str) -> Option<u64>) -> EngineSpec {
    let total = e.devices.iter().filter_map(|d| memory(&config.devices[*d].name)).min();
    // vLLM takes this share of the whole card for granted when it starts, and fills it with KV cache unless that is
    // fixed (CONTRACT 3.5).
    let start_free = total.map(|bytes| share(bytes, e.gpu_memory_utilization.unwrap_or(VLLM_UTILIZATION)));
    EngineSpec {
        name: e.name.clone(),
        devices: e.devices.iter().map(|d| DeviceId(u16::try_from(*d).unwrap_or(u16::MAX))).collect(),
        levels: Levels {
            parked: e.allows(Tier::Parked),
            level1: e.allows(Tier::Level1),
            level2: e.allows(Tier::Level2),
        },
        rest: e.rest_tier,
        autostart: e.autostart,
        rehearse: e.rehearse,
        estimate: Estimate {
            weights: e.weights_bytes,
            kv_cache: e.kv_cache_bytes,
            residual: e.residual_bytes,
            host: e.host_bytes,
            start_peak: e.start_peak_bytes,
            start_free,
        },
        timeouts: timeouts(e),
        stop_grace: e.stop_grace,
        backoff: BackoffPolicy {
            budget: e.restart.budget,
            window: e.restart.window,
            initial: e.restart.initial,
            max: e.restart.max,
        },
        turn: e.turn,
        ladder: e.idle.clone(),
        recycle: Recycle { creep: e.recycle.creep_bytes, sleeps: e.recycle.sleeps },
    }
}

/// vLLM's default of `--gpu-memory-utilization`.
const VLLM_UTILIZATION: f64 = 0.9;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of bytes"
)]
fn share(bytes: u64, utilization: f64) -> u64 {
    (bytes as f64 * utilization.clamp(0.0, 1.0)) as u64
}

/// Deadlines: by bytes where the weights are declared (pinning 2 GB/s, copying 10 GB/s, 30 s besides: CONTRACT 4 #42),
/// and as configured where they are.
fn timeouts(e: &config::Engine) -> Timeouts {
    let default = Timeouts::default();
    let by_bytes = |rate: u64| Duration::from_secs(30 + e.weights_bytes.unwrap_or(64 << 30) / rate);
    Timeouts {
        sleep: e.timeouts.sleep.unwrap_or(by_bytes(2_000_000_000) + by_bytes(10_000_000_000)),
        wake: e.timeouts.wake.unwrap_or(by_bytes(5_000_000_000)),
        reload: e.timeouts.reload.unwrap_or(by_bytes(200_000_000)),
        control: e.timeouts.control.unwrap_or(default.control),
        resolve: e.timeouts.is_sleeping.unwrap_or(by_bytes(2_000_000_000)),
        probe: e.timeouts.probe.unwrap_or(default.probe),
        evidence: e.timeouts.memory.unwrap_or(default.evidence),
        start: e.start_timeout,
    }
}

/// The node's defaults. `host_total` is the machine's memory.
pub fn policy(config: &Config, host_total: Option<u64>) -> Policy {
    Policy {
        strategy: strategy(config.policy.strategy),
        leave: config.policy.leave,
        drain: drain(config.policy.drain),
        drain_deadline: config.policy.drain_deadline,
        host_budget: host_total.map(|total| total.saturating_sub(config.node.host_memory_reserve)),
        stall_after: config.node.stall_after,
    }
}

/// The configuration's strategy.
pub fn strategy(word: config::Strategy) -> Strategy {
    match word {
        config::Strategy::Auto => Strategy::Auto,
        config::Strategy::SleepFirst => Strategy::SleepFirst,
        config::Strategy::WakeFirst => Strategy::WakeFirst,
        config::Strategy::Park => Strategy::Park,
    }
}

/// The configuration's drain policy.
pub fn drain(word: config::Drain) -> DrainPolicy {
    match word {
        config::Drain::Wait => DrainPolicy::Wait,
        config::Drain::Freeze => DrainPolicy::Freeze,
        config::Drain::Abort => DrainPolicy::Abort,
    }
}

/// A node of engines with these names, none of them started, on no device; for tests.
#[cfg(test)]
pub(crate) fn node_of(names: &[&str]) -> hotbunk_core::state::Node {
    let engine = |(at, name): (usize, &&str)| {
        let port = 8101 + at;
        format!(
            r#"
            [[engine]]
            name = "{name}"
            device = "none"
            model = "model-{name}"
            port = {port}
            command = ["vllm", "serve", "model-{name}", "--host", "127.0.0.1", "--port", "{port}", "--enable-sleep-mode"]
            env = {{ VLLM_SERVER_DEV_MODE = "1" }}
            "#
        )
    };
    let text: String = names.iter().enumerate().map(engine).collect();
    let parsed = config::parse(&text, std::path::Path::new("hotbunk.toml"), &config::Facts::default());
    let (config, _) = parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
    let unknown = |_: &str| None;
    let (engines, devices) = (engines(&config, unknown), devices(&config, unknown));
    hotbunk_core::state::Node::new(engines, devices, policy(&config, None), 1)
}
