//! vLLM's metrics, by its names and with its habits (CONTRACT 2).
//!
//! Running and waiting are what the engine told with its last step: a request queued in a sleeping engine shows
//! waiting 0 [run]. The sleep gauge is what the front end recorded.

use crate::args::Settings;
use crate::ipc::{Finish, Stats};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITL: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const OPERATION: &[f64] = &[0.01, 0.1, 1.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// What the front end recorded about sleeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepState {
    Awake,
    WeightsOffloaded,
    DiscardAll,
    /// Level 0, and a released KV cache: all three gauges 0.
    Neither,
}

impl SleepState {
    pub(crate) fn asleep(level: u8) -> Self {
        match level {
            1 => SleepState::WeightsOffloaded,
            2 => SleepState::DiscardAll,
            _ => SleepState::Neither,
        }
    }
}

/// Operations that 0.32 measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Sleep,
    Wake,
    ReleaseKvCache,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Operation::Sleep => "sleep",
            Operation::Wake => "wake",
            Operation::ReleaseKvCache => "release_kv_cache_memory",
        }
    }
}

#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Histogram { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        if let Some(index) = self.bounds.iter().position(|b| value <= *b) {
            self.counts[index] += 1;
        }
        self.sum += value;
        self.count += 1;
    }

    fn render(&self, out: &mut String, name: &str, labels: &str) {
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count;
            line(out, &format!("{name}_bucket"), &format!("{labels},le=\"{bound:?}\""), below as f64);
        }
        line(out, &format!("{name}_bucket"), &format!("{labels},le=\"+Inf\""), self.count as f64);
        line(out, &format!("{name}_sum"), labels, self.sum);
        line(out, &format!("{name}_count"), labels, self.count as f64);
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    stats: Stats,
    sleep_state: SleepState,
    iteration_tokens: Histogram,
    ttft: Histogram,
    itl: Histogram,
    request_tpot: Histogram,
    e2e: Histogram,
    generation_tokens: u64,
    prompt_tokens: u64,
    success: BTreeMap<Finish, u64>,
    durations: BTreeMap<Operation, Histogram>,
    in_flight: BTreeMap<Operation, i64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Metrics {
            stats: Stats::default(),
            sleep_state: SleepState::Awake,
            iteration_tokens: Histogram::new(TOKENS),
            ttft: Histogram::new(SECONDS),
            itl: Histogram::new(ITL),
            request_tpot: Histogram::new(ITL),
            e2e: Histogram::new(LATENCY),
            generation_tokens: 0,
            prompt_tokens: 0,
            success: BTreeMap::new(),
            durations: BTreeMap::new(),
            in_flight: BTreeMap::new(),
        }
    }

    pub(crate) fn step(&mut self, stats: Stats) {
        self.stats = stats;
        if let Some(tokens) = stats.iteration_tokens {
            self.iteration_tokens.observe(tokens as f64);
        }
    }

    pub(crate) fn first_token(&mut self, after: Duration, prompt_tokens: u32) {
        self.ttft.observe(after.as_secs_f64());
        self.prompt_tokens += u64::from(prompt_tokens);
        self.generation_tokens += 1;
    }

    pub(crate) fn next_token(&mut self, after: Duration) {
        self.itl.observe(after.as_secs_f64());
        self.generation_tokens += 1;
    }

    pub(crate) fn finished(&mut self, finish: Finish, e2e: Duration, decode: Option<Duration>, tokens: u32) {
        self.e2e.observe(e2e.as_secs_f64());
        if let Some(decode) = decode
            && tokens > 1
        {
            self.request_tpot.observe(decode.as_secs_f64() / f64::from(tokens - 1));
        }
        *self.success.entry(finish).or_default() += 1;
    }

    pub(crate) fn set_sleep_state(&mut self, state: SleepState) {
        self.sleep_state = state;
    }

    pub(crate) fn operation_began(&mut self, operation: Operation) {
        *self.in_flight.entry(operation).or_default() += 1;
    }

    pub(crate) fn operation_ended(&mut self, operation: Operation, took: Duration) {
        *self.in_flight.entry(operation).or_default() -= 1;
        let histogram = self.durations.entry(operation).or_insert_with(|| Histogram::new(OPERATION));
        histogram.observe(took.as_secs_f64());
    }
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{name}{{{labels}}} {value:?}");
}

fn head(out: &mut String, name: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} vLLM's metric of this name, simulated.\n# TYPE {name} {kind}");
}

fn one(out: &mut String, name: &str, kind: &str, labels: &str, value: f64) {
    head(out, name, kind);
    line(out, name, labels, value);
}

/// The Prometheus text of this release.
pub(crate) fn render(metrics: &Metrics, settings: &Settings) -> String {
    let version = settings.args.version;
    let mut out = String::with_capacity(16 * 1024);
    let labels =
        format!("engine=\"0\",model_name=\"{}\"", settings.model_name.replace(['\\', '"', '\n'], "_"));
    let stats = &metrics.stats;
    one(&mut out, "vllm:num_requests_running", "gauge", &labels, f64::from(stats.running));
    one(&mut out, "vllm:num_requests_waiting", "gauge", &labels, f64::from(stats.waiting));
    if version.has_waiting_by_reason() {
        head(&mut out, "vllm:num_requests_waiting_by_reason", "gauge");
        for (reason, count) in [("capacity", stats.waiting), ("deferred", 0)] {
            let labels = format!("{labels},reason=\"{reason}\"");
            line(&mut out, "vllm:num_requests_waiting_by_reason", &labels, f64::from(count));
        }
    }
    if version.has_kv_cache_usage() {
        one(&mut out, "vllm:kv_cache_usage_perc", "gauge", &labels, stats.kv_usage);
        one(&mut out, "vllm:prefix_cache_queries_total", "counter", &labels, stats.prefix_queries as f64);
        one(&mut out, "vllm:prefix_cache_hits_total", "counter", &labels, stats.prefix_hits as f64);
    }
    if version.has_gpu_cache_names() {
        one(&mut out, "vllm:gpu_cache_usage_perc", "gauge", &labels, stats.kv_usage);
        one(&mut out, "vllm:gpu_prefix_cache_queries_total", "counter", &labels, stats.prefix_queries as f64);
        one(&mut out, "vllm:gpu_prefix_cache_hits_total", "counter", &labels, stats.prefix_hits as f64);
    }
    one(&mut out, "vllm:num_preemptions_total", "counter", &labels, stats.preemptions as f64);
    one(&mut out, "vllm:prompt_tokens_total", "counter", &labels, metrics.prompt_tokens as f64);
    one(&mut out, "vllm:generation_tokens_total", "counter", &labels, metrics.generation_tokens as f64);
    if version.has_sleep_state_metric() {
        head(&mut out, "vllm:engine_sleep_state", "gauge");
        for (state, name) in [
            (SleepState::Awake, "awake"),
            (SleepState::WeightsOffloaded, "weights_offloaded"),
            (SleepState::DiscardAll, "discard_all"),
        ] {
            let value = if metrics.sleep_state == state { 1.0 } else { 0.0 };
            line(&mut out, "vllm:engine_sleep_state", &format!("{labels},sleep_state=\"{name}\""), value);
        }
    }
    head(&mut out, "vllm:request_success_total", "counter");
    for finish in [Finish::Stop, Finish::Length, Finish::Abort] {
        let count = metrics.success.get(&finish).copied().unwrap_or(0);
        let labels = format!("{labels},finished_reason=\"{}\"", finish.as_str());
        line(&mut out, "vllm:request_success_total", &labels, count as f64);
    }
    let mut histogram = |name: &str, histogram: &Histogram| {
        head(&mut out, name, "histogram");
        histogram.render(&mut out, name, &labels);
    };
    histogram("vllm:iteration_tokens_total", &metrics.iteration_tokens);
    histogram("vllm:time_to_first_token_seconds", &metrics.ttft);
    if version.has_inter_token_latency() {
        histogram("vllm:inter_token_latency_seconds", &metrics.itl);
    }
    if version.has_time_per_output_token() {
        histogram("vllm:time_per_output_token_seconds", &metrics.itl);
    }
    if version.has_sleep_state_metric() {
        histogram("vllm:request_time_per_output_token_seconds", &metrics.request_tpot);
    }
    histogram("vllm:e2e_request_latency_seconds", &metrics.e2e);
    if version.has_operation_metrics() {
        // These two carry no engine and model labels [src].
        head(&mut out, "vllm:sleep_mode_operation_duration_seconds", "histogram");
        for (operation, histogram) in &metrics.durations {
            let labels = format!("operation=\"{}\"", operation.as_str());
            histogram.render(&mut out, "vllm:sleep_mode_operation_duration_seconds", &labels);
        }
        head(&mut out, "vllm:sleep_mode_operations_in_flight", "gauge");
        for (operation, count) in &metrics.in_flight {
            let labels = format!("operation=\"{}\"", operation.as_str());
            line(&mut out, "vllm:sleep_mode_operations_in_flight", &labels, *count as f64);
        }
    }
    if let Some(bytes) = crate::process::resident_bytes(std::process::id()) {
        // Of the API server alone (section 2).
        let _ = writeln!(
            out,
            "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {bytes}"
        );
    }
    out
}
