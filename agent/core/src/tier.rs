//! The residency ladder: where an engine's state lives.
//!
//! ```text
//!  awake ──► parked ──► level1 ──► level2 ──► stopped        (demotion frees device memory, then host memory)
//!    ▲          │          │          │          │
//!    └──────────┴──────────┴──────────┴──────────┘            (a wake or a start leads back to awake)
//! ```

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Where an engine's state lives, from the quickest to serve to the slowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Weights and KV cache on the device, scheduler running.
    Awake,
    /// Weights on the device, KV cache released, scheduler paused (vLLM ≥ 0.31).
    Parked,
    /// Weights in host memory, KV cache gone.
    Level1,
    /// Weights dropped, to be read again from disk.
    Level2,
    /// No process.
    Stopped,
}

impl Tier {
    /// Every tier, from the most to the least resident.
    pub const ALL: [Tier; 5] = [Tier::Awake, Tier::Parked, Tier::Level1, Tier::Level2, Tier::Stopped];

    /// The word used in configuration, metrics, journal and documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Awake => "awake",
            Tier::Parked => "parked",
            Tier::Level1 => "level1",
            Tier::Level2 => "level2",
            Tier::Stopped => "stopped",
        }
    }

    /// Whether the engine has a process in this tier.
    pub fn has_process(self) -> bool {
        self != Tier::Stopped
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A word that names no tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a tier; use awake, parked, level1, level2 or stopped")]
pub struct UnknownTier(pub String);

impl FromStr for Tier {
    type Err = UnknownTier;
    fn from_str(s: &str) -> Result<Self, UnknownTier> {
        Tier::ALL.into_iter().find(|t| t.as_str() == s).ok_or_else(|| UnknownTier(s.to_owned()))
    }
}
