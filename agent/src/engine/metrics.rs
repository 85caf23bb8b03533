//! `/metrics` and `/load`: who is running, does it make progress, and what the engine's own clock says.
//!
//! Real vLLM 0.32 answers with 70 kB, of which a dozen lines matter here, and it is asked while a handoff waits. So the
//! text is scanned once, line by line, and only the lines of known names are taken apart: a general Prometheus parser
//! builds every sample of the 900 lines, and those at hand split labels at every comma and brace, which model names may
//! contain. Names changed little (CONTRACT section 2); each field below is `None` where the release does not have it.
//!
//! What the figures mean, seen on real 0.32. `running` is raised with the step that yields a request's first token and
//! is back at 0 with the step after the last, some milliseconds later; between steps it stands still. So it keeps its
//! last value while requests are frozen (1 for a frozen stream), and knows nothing of requests that have reached the API
//! server and no step yet, nor of those queued in a sleeping engine. `/load` has no such gap, but answers 0 whatever
//! runs unless the server was started with `--enable-server-load-tracking`, and loses a request whose client hangs up a
//! moment before the engine does. Reading `/metrics` costs the API server about 7 ms, `/load` about 1 ms.

use super::{Client, Error};
use serde::Deserialize;
use std::time::Duration;

/// Requests inside an engine. `None`: the engine does not tell (`--disable-log-stats`, no load tracking).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// In the running batch.
    pub running: Option<u64>,
    /// Queued in the engine.
    pub waiting: Option<u64>,
    /// Requests inside the API server, where it counts them.
    pub server_load: Option<u64>,
}

impl InFlight {
    /// Whether nothing is in flight; `None` where that cannot be told.
    pub fn is_idle(self) -> Option<bool> {
        let counts = [self.running, self.waiting, self.server_load];
        if counts.iter().flatten().any(|&n| n > 0) {
            return Some(false);
        }
        // Running and waiting together are an answer, and so is the load, which includes them.
        ((self.running.is_some() && self.waiting.is_some()) || self.server_load.is_some()).then_some(true)
    }
}

/// vLLM's `engine_sleep_state`, as the API server remembers it: not evidence of anything (CONTRACT section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepState {
    /// Not asleep, or only paused.
    Awake,
    /// Level 1.
    WeightsOffloaded,
    /// Level 2.
    DiscardAll,
    /// All three are 0: after level 0, and with the KV cache released.
    Neither,
}

/// One kind of sleep-mode operation by the engine's own clock (≥ 0.32). No-ops and failures are counted too.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Operation {
    /// Time that all of them took, seconds.
    pub seconds: f64,
    /// How many have ended.
    pub ended: u64,
    /// How many are under way; one stays here after its caller has left, so this tells when an unknown call ends.
    pub in_flight: u64,
}

impl Operation {
    /// What the one operation that ended between two readings took; `None` where none did or several (one sum cannot be
    /// shared out), or the engine was replaced.
    pub fn took_since(self, earlier: Option<Operation>) -> Option<Duration> {
        let earlier = earlier.unwrap_or_default();
        if self.ended != earlier.ended + 1 {
            return None;
        }
        Duration::try_from_secs_f64(self.seconds - earlier.seconds).ok()
    }
}

/// The three kinds. `None` until the first of its kind, and on releases without the metric.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Operations {
    /// `/sleep`.
    pub sleep: Option<Operation>,
    /// `/wake_up`.
    pub wake: Option<Operation>,
    /// `/release_kv_cache_memory`.
    pub release_kv_cache: Option<Operation>,
    /// Requests from their arrival to their first token (every release has this one).
    pub first_token: Option<Operation>,
}

/// One reading of `/metrics`. Counts are sums over the engine cores of a data-parallel server.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Progress {
    /// Requests in the running batch.
    pub running: Option<u64>,
    /// Requests queued in the engine.
    pub waiting: Option<u64>,
    /// Tokens generated so far.
    pub generated: Option<u64>,
    /// Engine steps that yielded something, so far.
    pub steps: Option<u64>,
    /// What the API server believes; `None` below 0.11.2, or where the engine cores differ.
    pub sleep_state: Option<SleepState>,
    /// Times by the engine's own clock.
    pub operations: Operations,
}

impl Progress {
    /// A number that grows as long as the engine works: with requests running and this standing still, it is stalled.
    pub fn heartbeat(self) -> Option<u64> {
        match (self.steps, self.generated) {
            (None, None) => None,
            (steps, generated) => Some(steps.unwrap_or(0).saturating_add(generated.unwrap_or(0))),
        }
    }

    /// Reads a `/metrics` text. Lines that are not understood are passed over.
    pub fn parse(text: &str) -> Self {
        let mut p = Progress::default();
        let mut states = States::default();
        for line in text.lines() {
            let Some(line) = line.strip_prefix("vllm:") else { continue };
            let Some(sample) = Sample::split(line) else { continue };
            match sample.name {
                "num_requests_running" => sample.add_to(&mut p.running),
                "num_requests_waiting" => sample.add_to(&mut p.waiting),
                "generation_tokens_total" => sample.add_to(&mut p.generated),
                "iteration_tokens_total_count" => sample.add_to(&mut p.steps),
                "engine_sleep_state" => states.take(&sample),
                "sleep_mode_operation_duration_seconds_sum"
                | "sleep_mode_operation_duration_seconds_count"
                | "sleep_mode_operations_in_flight" => p.operations.take(&sample),
                "time_to_first_token_seconds_sum" | "time_to_first_token_seconds_count" => {
                    sample.add_as(p.operations.first_token.get_or_insert_default());
                }
                _ => {}
            }
        }
        p.sleep_state = states.agreed();
        p
    }
}

impl Operations {
    fn take(&mut self, sample: &Sample<'_>) {
        let slot = match sample.label("operation") {
            Some("sleep") => &mut self.sleep,
            Some("wake") => &mut self.wake,
            Some("release_kv_cache_memory") => &mut self.release_kv_cache,
            _ => return,
        };
        sample.add_as(slot.get_or_insert_default());
    }
}

/// The state gauges: one for each engine core and state, 1 where it holds.
#[derive(Default)]
struct States {
    listed: bool,
    awake: u32,
    offloaded: u32,
    discarded: u32,
}

impl States {
    fn take(&mut self, sample: &Sample<'_>) {
        self.listed = true;
        if sample.value != 1.0 {
            return;
        }
        match sample.label("sleep_state") {
            Some("awake") => self.awake += 1,
            Some("weights_offloaded") => self.offloaded += 1,
            Some("discard_all") => self.discarded += 1,
            _ => {}
        }
    }

    fn agreed(&self) -> Option<SleepState> {
        match (self.awake, self.offloaded, self.discarded) {
            (0, 0, 0) => self.listed.then_some(SleepState::Neither),
            (_, 0, 0) => Some(SleepState::Awake),
            (0, _, 0) => Some(SleepState::WeightsOffloaded),
            (0, 0, _) => Some(SleepState::DiscardAll),
            _ => None,
        }
    }
}

/// One line: `name{label="value",…} 1.0`.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn split(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => inside.split_at_checked(closing(inside)?)?,
            None => ("", rest),
        };
        let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?.parse().ok()?;
        Some(Sample { name, labels, value })
    }

    /// The value of a label, as it stands in the text. The values asked for here contain nothing that is escaped.
    fn label(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let end = quoted(after)?;
            if name.trim_start_matches([',', ' ']) == wanted {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }

    /// The value as a count; `None` for what is none (NaN, negative).
    fn count(&self) -> Option<u64> {
        // Exact up to 2^53, beyond what any of these counters reaches.
        (self.value >= 0.0).then_some(self.value as u64)
    }

    /// Adds the sum or the count of a histogram, or a gauge of what is under way.
    fn add_as(&self, operation: &mut Operation) {
        if self.name.ends_with("_sum") {
            operation.seconds += self.value;
        } else if let Some(n) = self.count() {
            let field =
                if self.name.ends_with("_count") { &mut operation.ended } else { &mut operation.in_flight };
            *field = field.saturating_add(n);
        }
    }

    fn add_to(&self, sum: &mut Option<u64>) {
        if let Some(n) = self.count() {
            *sum = Some(sum.unwrap_or(0).saturating_add(n));
        }
    }
}

/// Where the quoted text that has begun ends (at its unescaped quote).
fn quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| {
        let end = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        end
    })
}

/// Where the labels that have begun end (at the brace outside quotes).
fn closing(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &text[at..];
        let next = rest.find(['"', '}'])?;
        if rest.as_bytes()[next] == b'}' {
            return Some(at + next);
        }
        at += next + 1;
        at += quoted(&text[at..])? + 1;
    }
}

#[derive(Deserialize)]
struct Load {
    server_load: u64,
}

impl Client {
    /// Reads `/metrics`.
    ///
    /// # Errors
    /// As every question.
    pub async fn progress(&self, deadline: Duration) -> Result<Progress, Error> {
        let body = self.get("/metrics", deadline).await.ok("GET /metrics")?;
        Ok(Progress::parse(&String::from_utf8_lossy(&body)))
    }

    /// Who is in flight: `/metrics`, and `/load` at the same time where the engine tracks it.
    ///
    /// # Errors
    /// As every question. An unanswered `/load` is an error too: half of the answer could say idle where it is not.
    pub async fn in_flight(&self, deadline: Duration) -> Result<InFlight, Error> {
        let load = async {
            if !self.endpoint.load_tracking {
                return Ok(None);
            }
            let body = self.get("/load", deadline).await.ok("GET /load")?;
            Ok(serde_json::from_slice::<Load>(&body).ok().map(|l| l.server_load))
        };
        let (progress, server_load) = futures_util::future::try_join(self.progress(deadline), load).await?;
        Ok(InFlight { running: progress.running, waiting: progress.waiting, server_load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_0_32_after_sleeps() {
        let p = Progress::parse(include_str!("fixtures/metrics-0.32.0-after-sleeps.txt"));
        let operation = |seconds, ended| Some(Operation { seconds, ended, in_flight: 0 });
        assert_eq!(
            p,
            Progress {
                running: Some(0),
                waiting: Some(0),
                generated: Some(14),
                steps: Some(14),
                sleep_state: Some(SleepState::Awake),
                operations: Operations {
                    sleep: operation(0.013430448999770306, 4),
                    wake: operation(0.011033897000061188, 6),
                    release_kv_cache: operation(0.008351299999731054, 2),
                    first_token: operation(18.272266149520874, 4),
                },
            }
        );
    }

    #[test]
    fn real_0_32_with_four_streams() {
        let p = Progress::parse(include_str!("fixtures/metrics-0.32.0-running.txt"));
        assert_eq!(
            (p.running, p.waiting, p.generated, p.steps),
            (Some(4), Some(0), Some(15_833), Some(15_665))
        );
        assert_eq!(p.heartbeat(), Some(31_498));
        assert_eq!(
            p.operations.sleep,
            Some(Operation { seconds: 21.51480042599951, ended: 26, in_flight: 0 })
        );
    }

    /// Written after CONTRACT section 2: no sleep state, no operations.
    #[test]
    fn as_0_8_5_names_them() {
        let p = Progress::parse(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{model_name=\"A\"} 2.0\n\
             vllm:num_requests_waiting{model_name=\"A\"} 1.0\n\
             vllm:gpu_cache_usage_perc{model_name=\"A\"} 0.25\n\
             vllm:generation_tokens_total{model_name=\"A\"} 1.234567e+06\n",
        );
        assert_eq!((p.running, p.waiting, p.generated, p.steps), (Some(2), Some(1), Some(1_234_567), None));
        assert_eq!((p.sleep_state, p.operations), (None, Operations::default()));
        assert_eq!(p.heartbeat(), Some(1_234_567));
    }

    /// Written after CONTRACT section 2, with two engine cores and a model name that would mislead a hasty splitter.
    #[test]
    fn several_cores_add_up_and_names_do_not_mislead() {
        let line = |name: &str, core: u8, more: &str, value: &str| {
            format!("vllm:{name}{{engine=\"{core}\",model_name=\"a,b}} 7 \\\"c\\\\\"{more}}} {value}\n")
        };
        let mut text = String::new();
        for core in [0, 1] {
            text += &line("num_requests_running", core, "", "3.0");
            text += &line("num_requests_waiting", core, "", "0.0");
            text += &line("num_requests_waiting_by_reason", core, ",reason=\"capacity\"", "9.0");
            text += &line("engine_sleep_state", core, ",sleep_state=\"awake\"", "0.0");
            text += &line("engine_sleep_state", core, ",sleep_state=\"weights_offloaded\"", "1.0");
        }
        let p = Progress::parse(&text);
        assert_eq!((p.running, p.waiting), (Some(6), Some(0)));
        assert_eq!(p.sleep_state, Some(SleepState::WeightsOffloaded));
        text += &line("engine_sleep_state", 2, ",sleep_state=\"awake\"", "1.0");
        assert_eq!(Progress::parse(&text).sleep_state, None, "cores that differ say nothing");
    }

    #[test]
    fn all_gauges_at_zero_are_a_state_of_their_own() {
        let text = "vllm:engine_sleep_state{sleep_state=\"awake\"} 0.0\n";
        assert_eq!(Progress::parse(text).sleep_state, Some(SleepState::Neither));
        assert_eq!(Progress::parse("").sleep_state, None);
    }

    #[test]
    fn broken_lines_are_passed_over() {
        for text in [
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running{a=\"b",
            "vllm:num_requests_running{a=\"b\"}",
            "vllm:num_requests_running{a=\"b\"} x",
            "vllm:num_requests_running NaN",
            "vllm:num_requests_running -1",
            "vllm:{} 1",
            "vllm:",
        ] {
            assert_eq!(Progress::parse(text).running, None, "{text}");
        }
    }

    #[test]
    fn idle_is_only_claimed_where_it_is_known() {
        let f = |running, waiting, server_load| InFlight { running, waiting, server_load }.is_idle();
        assert_eq!(f(Some(0), Some(0), None), Some(true));
        assert_eq!(f(Some(0), Some(0), Some(1)), Some(false));
        assert_eq!(f(None, None, Some(0)), Some(true));
        assert_eq!(f(Some(0), None, None), None);
        assert_eq!(f(None, Some(2), None), Some(false));
        assert_eq!(f(None, None, None), None);
    }

    #[test]
    fn the_engines_own_time_is_a_difference() {
        let op = |seconds, ended| Operation { seconds, ended, in_flight: 0 };
        assert_eq!(op(1.5, 3).took_since(Some(op(1.25, 2))), Some(Duration::from_millis(250)));
        assert_eq!(op(1.5, 1).took_since(None), Some(Duration::from_millis(1500)), "the first of all");
        assert_eq!(op(1.5, 3).took_since(Some(op(0.5, 1))), None, "two in one sum");
        assert_eq!(op(1.5, 3).took_since(Some(op(1.5, 3))), None);
        assert_eq!(op(0.5, 1).took_since(Some(op(1.5, 3))), None, "another process");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(vllm:(num_requests_running|engine_sleep_state)?[{}\"\\\\=, a-zü0-9\n]{0,20}){0,4}") {
            Progress::parse(&text);
        }
    }
}
