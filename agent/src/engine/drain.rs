//! Waiting until an engine has nothing to do.
//!
//! vLLM sends no event when its last request ends, so the only way to know is to ask again: at once, then after 10 ms,
//! then ever less often up to ten times a second (an answer costs the API server 7 ms, which the running requests would
//! feel). An idle engine costs one question.
//!
//! Below 0.25 `/sleep` does not wait for the device, and the engine may still be at its last step when `running` is
//! already 0: 200 ms are let pass, and the question is asked once more (CONTRACT 1.3; nothing shows that moment).

use super::http::Budget;
use super::metrics::InFlight;
use super::{Client, Error};
use hotbunk_core::capability::Capabilities;
use serde_json::json;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
const SETTLE: Duration = Duration::from_millis(200);

/// What is done about requests that run. (`freeze` needs no drain: `/sleep?mode=keep` does it.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainPolicy {
    /// Let them end.
    Wait,
    /// End them from outside, where `/sleep` cannot do so safely (below 0.25).
    Abort,
}

/// How a drain ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// Nothing is in flight.
    Drained,
    /// `/sleep?mode=abort` does it safely on this release: nothing was asked, nothing was waited for.
    NotNeeded,
    /// The deadline passed; the last counts that were seen.
    TimedOut {
        /// In the running batch.
        running: Option<u64>,
        /// Queued in the engine.
        waiting: Option<u64>,
    },
    /// This engine cannot be drained in this way.
    Impossible {
        /// Why, and what to do.
        reason: String,
    },
    /// It does not say what runs.
    Blind {
        /// Why, and what to do.
        reason: String,
    },
    /// It gave no usable answer.
    Failed(Error),
}

impl Client {
    /// Waits until nothing is in flight, or until the deadline. Admission must be closed before, or it may never end.
    pub async fn drain(&self, can: Capabilities, policy: DrainPolicy, deadline: Duration) -> Drain {
        let budget = Budget::new(deadline);
        let needs_settling = !can.can_abort_in_sleep();
        if policy == DrainPolicy::Abort {
            if can.can_abort_in_sleep() {
                return Drain::NotNeeded;
            }
            if !can.routes.abort_requests {
                let version = can.version;
                let reason = format!(
                    "vLLM {version} has no /abort_requests here, and its /sleep does not abort safely: wait instead"
                );
                return Drain::Impossible { reason };
            }
            // No ids means all. The body is not optional: without one 0.32 answers 400.
            let aborted = self.post("/abort_requests", Some(&json!({})), budget.left()).await;
            if let Err(e) = aborted.ok("POST /abort_requests") {
                return Drain::Failed(e);
            }
        }
        let mut pause = FIRST_PAUSE;
        let mut last = InFlight::default();
        let mut settled = !needs_settling;
        loop {
            match self.in_flight(budget.left()).await {
                Ok(now) => last = now,
                // The last question was cut short by the deadline, not by the engine.
                Err(Error::Unknown { .. }) if last != InFlight::default() => return timed_out(last),
                Err(e) => return Drain::Failed(e),
            }
            let wait = match last.is_idle() {
                None => {
                    let reason = "its /metrics shows no vllm:num_requests_running (--disable-log-stats?), so nobody \
                                  can tell when it is idle: start it with --enable-server-load-tracking";
                    return Drain::Blind { reason: reason.to_owned() };
                }
                Some(true) if settled => return Drain::Drained,
                Some(true) => {
                    settled = true;
                    SETTLE
                }
                Some(false) => {
                    settled = !needs_settling;
                    let now = pause;
                    pause = (pause * 3 / 2).min(LONGEST_PAUSE);
                    now
                }
            };
            if budget.left() <= wait {
                return timed_out(last);
            }
            tokio::time::sleep(wait).await;
        }
    }
}

fn timed_out(last: InFlight) -> Drain {
    Drain::TimedOut { running: last.running, waiting: last.waiting }
}
