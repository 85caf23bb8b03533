//! What one engine can do, from its version and the routes it lists.
//!
//! A route that exists is detected (`/openapi.json`), behaviour that no route shows follows from the version
//! (CONTRACT 1.1, 1.2). Unknown versions newer than the last one read are taken to behave like it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A vLLM release, `major.minor.patch`; suffixes such as `+cpu` or `.dev1` are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number, 0 where it is missing.
    pub patch: u16,
}

impl Version {
    /// Builds a version.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Version { major, minor, patch }
    }

    /// Reads `"0.31.0"`, `"0.32.0+cpu"`, `"0.17.1.dev3"`, `"v0.9.2"`; `None` where the first two numbers are missing.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let mut numbers = text.split(['.', '+', '-']).map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u16>().ok()
        });
        let major = numbers.next()??;
        let minor = numbers.next()??;
        let patch = numbers.next().flatten().unwrap_or(0);
        Some(Version { major, minor, patch })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Which of vLLM's control routes an engine serves, as its `/openapi.json` lists them (or as probing found).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Routes {
    /// `/sleep`, `/wake_up`, `/is_sleeping`: needs `VLLM_SERVER_DEV_MODE=1`.
    pub sleep: bool,
    /// `/collective_rpc` (≥ 0.10.2, development mode).
    pub collective_rpc: bool,
    /// `/release_kv_cache_memory` (≥ 0.31, development mode).
    pub release_kv_cache: bool,
    /// `/reset_prefix_cache`.
    pub reset_prefix_cache: bool,
    /// `/pause` and `/resume`.
    pub pause: bool,
    /// `/abort_requests`.
    pub abort_requests: bool,
}

/// What the agent may ask of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capabilities {
    /// Release.
    pub version: Version,
    /// Routes.
    pub routes: Routes,
    /// Worker processes (tensor × pipeline parallel); with more than one, any 500 of a control call means restart
    /// (CONTRACT fact 8).
    pub workers: u16,
}

impl Capabilities {
    fn from(self, major: u16, minor: u16) -> bool {
        self.version >= Version::new(major, minor, 0)
    }

    /// Level 1 exists: the sleep routes are there.
    pub fn can_level1(self) -> bool {
        self.routes.sleep
    }

    /// Level 2 can be recovered over HTTP: `reload_weights` exists (≥ 0.10.2, CONTRACT 1.3).
    pub fn can_level2(self) -> bool {
        self.routes.sleep && self.routes.collective_rpc && self.version >= Version::new(0, 10, 2)
    }

    /// The KV cache can be released alone (≥ 0.31).
    pub fn can_park(self) -> bool {
        self.routes.sleep && self.routes.release_kv_cache && self.has_modes()
    }

    /// `/sleep` takes `mode`, pauses the scheduler, and level 0 exists (≥ 0.17, CONTRACT 1.2).
    pub fn has_modes(self) -> bool {
        self.from(0, 17)
    }

    /// A partial wake keeps the scheduler paused (≥ 0.24, CONTRACT fact 5).
    pub fn partial_wake_is_safe(self) -> bool {
        self.from(0, 24)
    }

    /// `mode=keep` survives level 1 (≥ 0.25: device sync before unmapping).
    pub fn can_freeze_into_level1(self) -> bool {
        self.from(0, 25)
    }

    /// `mode=abort` inside `/sleep` is safe with requests running (≥ 0.25, CONTRACT 1.3).
    pub fn can_abort_in_sleep(self) -> bool {
        self.from(0, 25)
    }

    /// The allocator may be asked twice (≥ 0.28, one worker): failed sleeps and wakes can be retried.
    pub fn is_retry_safe(self) -> bool {
        self.from(0, 28) && self.workers == 1
    }

    /// `/sleep` after a partial wake or a release really sleeps (≥ 0.31).
    pub fn can_demote(self) -> bool {
        self.from(0, 31)
    }

    /// The prefix cache is cleared by `/sleep` itself (≥ 0.10.2).
    pub fn sleep_clears_prefix_cache(self) -> bool {
        self.version >= Version::new(0, 10, 2)
    }
}
