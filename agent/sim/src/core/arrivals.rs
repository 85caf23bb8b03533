//! Which requests came while the engine was not awake. The simulation's own record, for tests: a request that reaches a
//! sleeping engine simply waits (fact 4 [run]), so nobody would see it otherwise.

use crate::clock::now_ns;
use serde_json::{Value, json};

/// So many of those that came asleep are remembered one by one.
const REMEMBERED: usize = 16;

/// Counts of a process's life.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    arrived: u64,
    asleep: u64,
    /// By how much they came after the engine stopped being awake, ms.
    late_ms: Vec<f64>,
    /// When the engine stopped being awake, if it has.
    left_ns: Option<u64>,
    /// When it was last wholly awake again.
    back_ns: u64,
}

impl Arrivals {
    /// Looks at whether the engine is awake; to be called after each control call, `began_ns` its arrival.
    pub(super) fn look(&mut self, is_awake: bool, began_ns: u64) {
        match (is_awake, self.left_ns) {
            (false, None) => self.left_ns = Some(began_ns),
            (true, Some(_)) => {
                self.left_ns = None;
                self.back_ns = now_ns();
            }
            _ => {}
        }
    }

    /// Counts a request. One that came before the end of a wake came asleep, though it is looked at afterwards.
    pub(super) fn count(&mut self, at_ns: u64) {
        self.arrived += 1;
        if self.left_ns.is_none() && at_ns >= self.back_ns {
            return;
        }
        self.asleep += 1;
        if self.late_ms.len() < REMEMBERED {
            let since = at_ns.saturating_sub(self.left_ns.unwrap_or(at_ns));
            self.late_ms.push(since as f64 / 1e6);
        }
    }

    pub(super) fn report(&self) -> Value {
        json!({ "arrived": self.arrived, "asleep": self.asleep, "late_ms": self.late_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awake_is_from_the_end_of_a_wake_to_the_call_that_ends_it() {
        let mut arrivals = Arrivals::default();
        arrivals.count(10);
        arrivals.look(false, 20);
        arrivals.count(2_000_020);
        arrivals.look(false, 30);
        arrivals.look(true, 40);
        // It came before the wake had ended.
        arrivals.count(50);
        arrivals.count(u64::MAX);
        assert_eq!(arrivals.report(), json!({ "arrived": 4, "asleep": 2, "late_ms": [2.0, 0.0] }));
    }
}
