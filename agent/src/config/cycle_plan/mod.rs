//! Cycle plans: which engine is restarted, put to sleep, loaded and handed over, how often, in what order.
//!
//! A plan is a TOML file of `[[step]]` tables, each with an `action`. It names engines by their names, or by `first`
//! and `second`: the configuration's first and second engine, so that one plan serves every node. (An engine that is
//! really called `first` is meant by that word.)
//!
//! ```text
//!  text ──read──► CyclePlan (what to do, in general) ──expand(engine names)──► PlannedStep, PlannedStep, …
//! ```
//!
//! | `action` | keys | what it does |
//! |---|---|---|
//! | `start` | `engine`, `restarts` (0), `rehearse` (false) | starts it, then restarts it that often |
//! | `load` | `engine`, `stage`, `concurrency` (1, or a list), `rounds`, `requests`, `output_tokens` | one stage per concurrency |
//! | `sleep_cycles` | `engine`, `tier`, `count` (1), `hold` (3s) | sleep, hold, wake, probe |
//! | `sleep` | `engine`, `tier` (level1) | sleeps and stays asleep |
//! | `activate` | `engine`, `pause` (0), `auto` (false) | wakes it with nothing else awake |
//! | `handoffs` | `count`, `between` (first, second), `strategy`, `leave`, `pause` (0), `start_from`, `auto` (false) | to and fro, from the engine that is awake |
//!
//! Both reading and expanding are pure, and report everything that is wrong at once, as the configuration does.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::checked::Strategy;
use super::diagnostics::{Diagnostics, Problems};
use super::{read_document, read_text};

mod expand;
mod read;
#[cfg(test)]
mod tests;

pub use expand::{Options, PlannedStep};

/// The plans that come with the agent: name and text.
pub const BUILT_IN: [(&str, &str); 3] = [
    ("reference", include_str!("../plans/reference.toml")),
    ("handoffs", include_str!("../plans/handoffs.toml")),
    ("quick", include_str!("../plans/quick.toml")),
];

/// A checked cycle plan, general over the node's engines.
#[derive(Debug, Clone, PartialEq)]
pub struct CyclePlan {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub description: String,
    /// How far measuring windows reach beyond their work, at both ends. Default 2 s.
    pub margin: Duration,
    /// What it does, in order; at least one.
    pub steps: Vec<PlanStep>,
    /// Where it was read, for what is found wrong when it is expanded.
    file: PathBuf,
    text: String,
}

/// One `[[step]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanStep {
    /// What it does.
    pub action: Action,
    span: Range<usize>,
}

/// An engine as a plan names it, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineRef {
    /// Its name, or `first` or `second`.
    pub name: String,
    span: Range<usize>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Start, then restart `restarts` times.
    Start {
        /// Which.
        engine: EngineRef,
        /// How often it is restarted after that.
        restarts: u32,
        /// Whether each start is followed by one verified sleep and wake.
        rehearse: bool,
    },
    /// One load stage for each concurrency.
    Load {
        /// Which.
        engine: EngineRef,
        /// `baseline`, `after-wake`, …
        stage: String,
        /// Requests in flight, one stage each.
        concurrency: Vec<u32>,
        /// Rounds of each.
        rounds: u32,
        /// Requests of a round.
        requests: u32,
        /// Output tokens of a request.
        output_tokens: u32,
    },
    /// Sleep, hold, wake, probe.
    SleepCycles {
        /// Which.
        engine: EngineRef,
        /// Where to.
        tier: Tier,
        /// How often.
        count: u32,
        /// How long it is held asleep.
        hold: Duration,
    },
    /// Sleep and stay asleep.
    Sleep {
        /// Which.
        engine: EngineRef,
        /// Where to.
        tier: Tier,
    },
    /// Wake with nothing else awake.
    Activate {
        /// Which.
        engine: EngineRef,
        /// After it.
        pause: Duration,
        /// Belongs to the `auto` series.
        auto: bool,
    },
    /// To and fro between two engines.
    Handoffs {
        /// The two.
        between: [EngineRef; 2],
        /// How many.
        count: u32,
        /// `None`: what the caller asks for, or the configuration's policy.
        strategy: Option<Strategy>,
        /// `None`: the strategy's.
        leave: Option<Tier>,
        /// Between two of them.
        pause: Duration,
        /// The engine that must be awake when they begin; `None`: whichever is.
        start_from: Option<EngineRef>,
        /// Belongs to the `auto` series, which is reported apart.
        auto: bool,
    },
}

impl CyclePlan {
    /// Checks the text of a plan. Its warnings come with it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, file: &Path) -> Result<(CyclePlan, Diagnostics), Diagnostics> {
        let mut problems = Problems::default();
        let mut raw = read::RawPlan::default();
        let sound = read_document(text, &mut problems, |table, reading| {
            raw = read::RawPlan::from_table(table, reading)
        });
        let plan = if sound { Some(read::check(&raw, file, text, &mut problems)) } else { None };
        let refused = problems.has_errors();
        let diagnostics = problems.finish(file, text);
        match plan {
            Some(plan) if !refused => Ok((plan, diagnostics)),
            _ => Err(diagnostics),
        }
    }

    /// Reads a plan: one of [`BUILT_IN`] by its name, anything else as a file.
    ///
    /// # Errors
    /// Everything that is wrong with it; also that the file cannot be read.
    pub fn open(name_or_path: &str) -> Result<(CyclePlan, Diagnostics), Diagnostics> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
            return CyclePlan::parse(text, Path::new(&format!("{name}.toml")));
        }
        let path = Path::new(name_or_path);
        CyclePlan::parse(&read_text(path, "cycle plan")?, path)
    }
}
