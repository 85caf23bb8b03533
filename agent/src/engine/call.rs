//! The core's control calls as HTTP.

use super::Client;
use super::http::Reply;
use hotbunk_core::call::{Call, CallOutcome, Mode, SleepLevel, WakeTags};
use hotbunk_measure::error::words;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Path with query, and body. Parameters belong into the query: vLLM ignores a JSON body silently and would sleep at
/// level 1 whatever it says (CONTRACT 1.1).
fn request(call: Call) -> (String, Option<Value>) {
    match call {
        Call::Sleep { level, mode } => {
            let mode = mode.map(|m| format!("&mode={}", m.as_str())).unwrap_or_default();
            (format!("/sleep?level={}{mode}", level.number()), None)
        }
        Call::WakeUp { tags } => {
            let query = match tags {
                WakeTags::All => "",
                WakeTags::Weights => "?tags=weights",
                WakeTags::KvCache => "?tags=kv_cache",
            };
            (format!("/wake_up{query}"), None)
        }
        Call::ReleaseKvCache => ("/release_kv_cache_memory".into(), None),
        Call::ReloadWeights => ("/collective_rpc".into(), Some(json!({ "method": "reload_weights" }))),
        Call::ResetPrefixCache => ("/reset_prefix_cache".into(), None),
        // 0.12-0.15 know only the second parameter, later releases only the first; each ignores the other's. `keep`
        // does not exist before 0.16, and the core does not ask for it there.
        Call::Pause { mode } => {
            let old = if mode == Mode::Wait { "&wait_for_inflight_requests=true" } else { "" };
            (format!("/pause?mode={}{old}", mode.as_str()), None)
        }
        Call::Resume => ("/resume".into(), None),
        Call::WorkerWakeUp => ("/collective_rpc".into(), Some(json!({ "method": "wake_up" }))),
        Call::WorkerSleep { level } => ("/collective_rpc".into(), Some(worker_sleep(level))),
    }
}

/// A call as people write it: `POST /sleep?level=1&mode=wait`.
pub fn described(call: Call) -> String {
    let (path, body) = request(call);
    let body = body.map(|body| format!(" {body}")).unwrap_or_default();
    format!("POST {path}{body}")
}

fn worker_sleep(level: SleepLevel) -> Value {
    json!({ "method": "sleep", "kwargs": { "level": level.number() } })
}

/// The only field of a success that says anything (`/reset_prefix_cache`, ≥ 0.26). The others differ by release and
/// front end, and 200 proves little anyway (CONTRACT fact 1).
#[derive(Deserialize)]
struct Success {
    success: Option<bool>,
}

impl Client {
    /// Makes one control call. Dropping the future does not cancel the call in the engine, nor does the deadline.
    pub async fn call(&self, call: Call, deadline: Duration) -> CallOutcome {
        let (path, body) = request(call);
        match self.post(&path, body.as_ref(), deadline).await {
            Reply::Answer { status: 200..=299, body } => {
                let success = serde_json::from_slice::<Success>(&body).ok().and_then(|s| s.success);
                CallOutcome::Accepted { success }
            }
            Reply::Answer { status, body } => CallOutcome::Refused { status, message: words(&body) },
            Reply::Unknown => CallOutcome::Unknown,
            Reply::Gone { message } => CallOutcome::Gone { message },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_the_contracts_request() {
        let plain = |call| {
            let (path, body) = request(call);
            format!("{path} {}", body.map(|b| b.to_string()).unwrap_or_default())
        };
        let cases = [
            (Call::Sleep { level: SleepLevel::L1, mode: None }, "/sleep?level=1 "),
            (Call::Sleep { level: SleepLevel::L0, mode: Some(Mode::Keep) }, "/sleep?level=0&mode=keep "),
            (Call::Sleep { level: SleepLevel::L2, mode: Some(Mode::Abort) }, "/sleep?level=2&mode=abort "),
            (Call::WakeUp { tags: WakeTags::All }, "/wake_up "),
            (Call::WakeUp { tags: WakeTags::Weights }, "/wake_up?tags=weights "),
            (Call::WakeUp { tags: WakeTags::KvCache }, "/wake_up?tags=kv_cache "),
            (Call::ReleaseKvCache, "/release_kv_cache_memory "),
            (Call::ReloadWeights, r#"/collective_rpc {"method":"reload_weights"}"#),
            (Call::ResetPrefixCache, "/reset_prefix_cache "),
            (Call::Pause { mode: Mode::Wait }, "/pause?mode=wait&wait_for_inflight_requests=true "),
            (Call::Pause { mode: Mode::Keep }, "/pause?mode=keep "),
            (Call::Resume, "/resume "),
            (Call::WorkerWakeUp, r#"/collective_rpc {"method":"wake_up"}"#),
            (
                Call::WorkerSleep { level: SleepLevel::L2 },
                r#"/collective_rpc {"kwargs":{"level":2},"method":"sleep"}"#,
            ),
        ];
        for (call, expected) in cases {
            assert_eq!(plain(call), expected);
        }
    }
}
