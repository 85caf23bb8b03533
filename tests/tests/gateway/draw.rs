//! What is drawn at random, from a seed; and how much of it.

use hotbunk_sim::tokens::mix;

/// A sequence of numbers that follows from its seed.
#[derive(Debug, Clone)]
pub(crate) struct Draw {
    seed: u64,
    at: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Draw { seed, at: 0 }
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.at += 1;
        mix(self.seed, self.at) % end
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Whether the long runs are asked for.
pub(crate) fn is_full() -> bool {
    std::env::var("HOTBUNK_LOAD").is_ok_and(|word| word == "full")
}

/// The seed that is asked for, or this one.
pub(crate) fn seed(otherwise: u64) -> u64 {
    std::env::var("HOTBUNK_LOAD_SEED").ok().and_then(|word| word.parse().ok()).unwrap_or(otherwise)
}

/// A line of a table that whoever runs the tests with `--nocapture` reads.
#[expect(clippy::print_stderr, reason = "what a run measured, for whoever asked for it")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}
