//! When a crashed engine is started again, and when that is given up.
//!
//! Exponential: the n-th crash within the window waits `initial · 2ⁿ⁻¹`, at most `max`; more than `budget` crashes
//! within the window end in `failed`, which only an operator's reset leaves.

use crate::time::Moment;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Restart budget of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackoffPolicy {
    /// Crashes within the window that are followed by a restart.
    pub budget: u32,
    /// Crashes older than this are forgotten.
    pub window: Duration,
    /// First wait.
    pub initial: Duration,
    /// Longest wait.
    pub max: Duration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        BackoffPolicy {
            budget: 5,
            window: Duration::from_secs(600),
            initial: Duration::from_secs(1),
            max: Duration::from_secs(60),
        }
    }
}

/// What to do after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start again at this instant.
    RestartAt(Moment),
    /// The budget is used up.
    GiveUp,
}

/// Crashes of one engine, within the window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Crashes(Vec<Moment>);

impl Crashes {
    /// Notes a crash and says what follows.
    pub fn crashed(&mut self, policy: &BackoffPolicy, now: Moment) -> Verdict {
        self.0.retain(|at| now.since(*at) < policy.window);
        self.0.push(now);
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if count > policy.budget {
            return Verdict::GiveUp;
        }
        let doublings = (count - 1).min(31);
        let wait = policy.initial.saturating_mul(1 << doublings).min(policy.max);
        Verdict::RestartAt(now + wait)
    }

    /// Forgets everything: an operator's reset.
    pub fn reset(&mut self) {
        self.0.clear();
    }

    /// How many are remembered.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_up_to_the_maximum_then_gives_up() {
        let policy = BackoffPolicy { budget: 4, max: Duration::from_secs(5), ..Default::default() };
        let mut crashes = Crashes::default();
        let waits: Vec<_> = (0..5)
            .map(|_| match crashes.crashed(&policy, Moment(0)) {
                Verdict::RestartAt(at) => Some(at.since(Moment(0)).as_secs()),
                Verdict::GiveUp => None,
            })
            .collect();
        assert_eq!(waits, [Some(1), Some(2), Some(4), Some(5), None]);
        crashes.reset();
        assert_eq!(crashes.crashed(&policy, Moment(0)), Verdict::RestartAt(Moment(1_000_000_000)));
    }

    proptest! {
        #[test]
        fn a_wait_is_never_outside_its_bounds_and_old_crashes_are_forgotten(
            gaps in proptest::collection::vec(0u64..2_000, 1..40),
            budget in 0u32..8,
        ) {
            let policy = BackoffPolicy { budget, ..Default::default() };
            let mut crashes = Crashes::default();
            let mut now = Moment(0);
            let mut all = Vec::new();
            for gap in gaps {
                now = now + Duration::from_secs(gap);
                all.push(now);
                let recent = all.iter().filter(|at| now.since(**at) < policy.window).count();
                match crashes.crashed(&policy, now) {
                    Verdict::RestartAt(at) => {
                        prop_assert!(recent as u32 <= budget);
                        prop_assert!(at.since(now) >= policy.initial && at.since(now) <= policy.max);
                    }
                    Verdict::GiveUp => prop_assert!(recent as u32 > budget),
                }
                prop_assert_eq!(crashes.count(), recent);
            }
        }
    }
}
