//! What a vLLM release does differently, one question a line. Each names the lines of the contract it rests on.

use std::fmt;
use std::str::FromStr;

/// A release, `0.31.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u16>, _> = text.trim_start_matches('v').split('.').map(str::parse).collect();
        let version = match numbers.as_deref() {
            Ok([major, minor]) => Version { major: *major, minor: *minor, patch: 0 },
            Ok([major, minor, patch]) => Version { major: *major, minor: *minor, patch: *patch },
            _ => return Err(format!("`{text}` is no vLLM release; write for example 0.31 or 0.10.2")),
        };
        let (first, last) = (Version::new(0, 8, 5), Version::new(0, 32, 999));
        if version < first || version > last {
            return Err(format!("vLLM {version} is not simulated; the releases read are 0.8.5 to 0.32"));
        }
        Ok(version)
    }
}

impl Version {
    /// Builds a version.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Version { major, minor, patch }
    }

    fn from(self, minor: u16, patch: u16) -> bool {
        self >= Version::new(0, minor, patch)
    }

    /// `/collective_rpc`: from 0.10.2, absent in 0.9.2 (CONTRACT 1.1 [src]).
    pub fn has_collective_rpc(self) -> bool {
        self.from(10, 2)
    }

    /// The RPC `reload_weights`: none up to 0.9.2 (1.2 [src]).
    pub fn has_reload_weights(self) -> bool {
        self.from(10, 2)
    }

    /// `/reset_mm_cache`: 0.11.2 (1.1 [src]).
    pub fn has_reset_mm_cache(self) -> bool {
        self.from(11, 2)
    }

    /// `/reset_encoder_cache`: 0.16 (1.1 [src]).
    pub fn has_reset_encoder_cache(self) -> bool {
        self.from(16, 0)
    }

    /// `/pause`, `/resume`, `/is_paused`: 0.12 (1.1 [src]).
    pub fn has_pause(self) -> bool {
        self.from(12, 0)
    }

    /// 0.12–0.15: `/pause` and its kin have no gate; later development mode (1.1 [src]).
    pub fn pause_needs_dev_mode(self) -> bool {
        self.from(16, 0)
    }

    /// `/abort_requests`: 0.13 (1.1 [src]).
    pub fn has_abort_requests(self) -> bool {
        self.from(13, 0)
    }

    /// `/release_kv_cache_memory`: 0.31 (1.1 [src]).
    pub fn has_release_kv_cache(self) -> bool {
        self.from(31, 0)
    }

    /// `/get_world_size`: seen on 0.32 [run]; where it began was not looked up.
    pub fn has_world_size(self) -> bool {
        self.from(32, 0)
    }

    /// `/v1/responses`: seen on 0.32 [run]; taken to be there since 0.10.2.
    pub fn has_responses(self) -> bool {
        self.from(10, 2)
    }

    /// `/v1/messages`: seen on 0.32 [run]; taken to be there since 0.12.
    pub fn has_messages(self) -> bool {
        self.from(12, 0)
    }

    /// `max_tokens` that do not fit beside the prompt are as many as fit: seen on 0.32 [run]; before they are taken to be
    /// refused.
    pub fn clips_max_tokens(self) -> bool {
        self.from(32, 0)
    }

    /// `/weight_checker`: 0.32 (1.1 [src]).
    pub fn has_weight_checker(self) -> bool {
        self.from(32, 0)
    }

    /// JSON bodies of `/sleep` and `/wake_up`, and 400 for a bad level or mode: 0.32 (1.1 [run]).
    pub fn has_json_bodies(self) -> bool {
        self.from(32, 0)
    }

    /// `/reset_prefix_cache` answers `{"success":bool}`: 0.26 (1.1 [src]).
    pub fn reset_prefix_cache_tells(self) -> bool {
        self.from(26, 0)
    }

    /// `reset_running_requests` of `/reset_prefix_cache`: 0.12 (1.1 [src]).
    pub fn has_reset_running_requests(self) -> bool {
        self.from(12, 0)
    }

    /// `/sleep` takes `mode`, knows level 0 and the tag `scheduling`, and pauses the scheduler: 0.17 (1.2, fact 4
    /// [src][run]). Before, a request to a sleeping engine runs on unmapped memory.
    pub fn sleep_pauses(self) -> bool {
        self.from(17, 0)
    }

    /// A partial wake keeps the scheduler paused: 0.24; from 0.17 to 0.23 any wake un-pauses it (fact 5 [src]).
    pub fn partial_wake_stays_paused(self) -> bool {
        self.from(24, 0)
    }

    /// The prefix cache is cleared by `/sleep`: 0.10.2 (1.2 [src]).
    pub fn sleep_clears_prefix_cache(self) -> bool {
        self.from(10, 2)
    }

    /// The allocator skips pages that are already as asked: 0.28 (fact 6 [sim]).
    pub fn allocator_is_idempotent(self) -> bool {
        self.from(28, 0)
    }

    /// `/sleep` waits for the device before it unmaps: 0.25; from 0.17 without it a step in flight meets unmapped
    /// memory (1.2 [src], #45520 [iss]).
    pub fn sleep_synchronises(self) -> bool {
        self.from(25, 0)
    }

    /// A wake of the KV cache alone writes saved buffers too, into unmapped weights: up to 0.26 (1.3, #49774 [iss]).
    pub fn wake_writes_buffers_always(self) -> bool {
        !self.from(27, 0)
    }

    /// `reload_weights` redoes the post-processing of quantised weights: 0.16 (1.3, #28606 [iss]).
    pub fn reloads_quantized(self) -> bool {
        self.from(16, 0)
    }

    /// `/sleep` after a partial wake or a released cache really sleeps: 0.31; before it is a no-op (1.2 [src]).
    pub fn sleeps_from_partial(self) -> bool {
        self.from(31, 0)
    }

    /// `engine_sleep_state` exists: 0.11.2 (section 2 [src]).
    pub fn has_sleep_state_metric(self) -> bool {
        self.from(11, 2)
    }

    /// `engine_sleep_state` says `awake` only after a full wake: 0.31; before after a partial one too (section 2).
    pub fn sleep_state_knows_partial(self) -> bool {
        self.from(31, 0)
    }

    /// `sleep_mode_operation_duration_seconds` and its gauge: 0.32 (section 2 [run]).
    pub fn has_operation_metrics(self) -> bool {
        self.from(32, 0)
    }

    /// `kv_cache_usage_perc`: 0.9.2; `gpu_cache_usage_perc` up to 0.11.2 (section 2 [src]).
    pub fn has_kv_cache_usage(self) -> bool {
        self.from(9, 0)
    }

    /// The deprecated `gpu_` names are still there: up to 0.11 (section 2 [src]).
    pub fn has_gpu_cache_names(self) -> bool {
        !self.from(12, 0)
    }

    /// `num_requests_waiting_by_reason`: 0.20 (section 2 [src]).
    pub fn has_waiting_by_reason(self) -> bool {
        self.from(20, 0)
    }

    /// `inter_token_latency_seconds`: 0.10.2 (section 2 [src]).
    pub fn has_inter_token_latency(self) -> bool {
        self.from(10, 2)
    }

    /// `time_per_output_token_seconds`: gone in 0.15 (section 2 [src]).
    pub fn has_time_per_output_token(self) -> bool {
        !self.from(15, 0)
    }

    /// `/health` once the engine is dead: 200 in 0.8.5, 500 to 0.11.1, then 503 (1.4 [src][run]).
    pub fn health_when_dead(self) -> u16 {
        if self.from(11, 2) {
            503
        } else if self.from(9, 0) {
            500
        } else {
            200
        }
    }

    /// The error body of a control call is OpenAI's form with the message: seen in 0.32 (3.4 [run]).
    pub fn errors_are_told(self) -> bool {
        self.from(32, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_and_others_refused() {
        assert_eq!("0.31".parse(), Ok(Version::new(0, 31, 0)));
        assert_eq!("v0.10.2".parse(), Ok(Version::new(0, 10, 2)));
        for bad in ["", "31", "0.x", "1.0", "0.8.4", "0.33.0", "0.1.2.3"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_table_of_the_contract() {
        let at = |text: &str| text.parse::<Version>().unwrap();
        assert!(!at("0.9.2").has_collective_rpc() && at("0.10.2").has_collective_rpc());
        assert!(!at("0.16").sleep_pauses() && at("0.17.1").sleep_pauses());
        assert!(!at("0.23").partial_wake_stays_paused() && at("0.24").partial_wake_stays_paused());
        assert!(!at("0.27.1").allocator_is_idempotent() && at("0.28").allocator_is_idempotent());
        assert!(!at("0.30").has_release_kv_cache() && at("0.31").has_release_kv_cache());
        assert!(!at("0.31").has_json_bodies() && at("0.32").has_json_bodies());
        assert_eq!([200, 500, 503], ["0.8.5", "0.10.2", "0.31"].map(|v| at(v).health_when_dead()));
    }
}
