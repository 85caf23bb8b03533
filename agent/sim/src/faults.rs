//! Faults on demand: `--fault KIND[=ARG][*COUNT]`, or at run time `POST /sim/fault {"kind":…,"arg":…,"count":…}`,
//! `DELETE /sim/fault[?kind=…]`, `GET /sim/fault`.
//!
//! A fault is armed until it is cleared (sticky) or has struck `count` times; [`FaultKind::is_sticky`] tells the
//! default, and one-shots strike once unless `count` says more.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum FaultKind {
    /// Starting takes ARG times as long (default 3).
    SlowStart,
    /// Starting never ends: weights are loaded, readiness does not come.
    HangStart,
    /// The engine core exits with code 1 while it loads weights.
    ExitAtStart,
    /// A sleep answers 200 but gives back only half of the pool's bytes.
    SleepFreesHalf,
    /// `/sleep` answers 500 before anything is freed; the scheduler stays paused. One-shot.
    #[serde(rename = "sleep_500")]
    #[value(name = "sleep_500")]
    Sleep500,
    /// The worker hangs in the sleep, for ARG simulated seconds or for ever. One-shot.
    SleepHang,
    /// `/wake_up` answers 500 before anything is mapped. One-shot.
    #[serde(rename = "wake_500")]
    #[value(name = "wake_500")]
    Wake500,
    /// The worker hangs in the wake, for ARG simulated seconds or for ever. One-shot.
    WakeHang,
    /// The wake fails half way as CUDA does when memory is short; what was mapped stays mapped. One-shot.
    WakeOom,
    /// The next wake brings weights back wrong: other tokens and log-probabilities, status 200. One-shot.
    CorruptAfterWake,
    /// Every sleep leaves ARG MiB more behind (default 64).
    ResidualCreep,
    /// `/health` is 200, requests are accepted and counted as running, no token comes.
    CompletionsHang,
    /// The engine core dies half way through a sleep. One-shot.
    CrashInSleep,
    /// The engine core dies half way through a wake. One-shot.
    CrashInWake,
    /// The engine core leaves the session (`setsid`), ignores SIGTERM and is not killed when the API server ends.
    OrphanWorker,
    /// The API server ignores SIGTERM.
    IgnoreSigterm,
    /// The API server writes ARG MiB of log lines to stderr at once (default 16).
    FloodStderr,
    /// A neighbour takes ARG MiB inside the sleep's window (default: 256 more than the sleep releases), which fires
    /// the memory assertion. It keeps them until the fault is cleared. One-shot.
    NeighbourAllocInSleep,
}

impl FaultKind {
    /// Whether it stays armed after it has struck, unless a count says otherwise.
    pub fn is_sticky(self) -> bool {
        !matches!(
            self,
            FaultKind::Sleep500
                | FaultKind::SleepHang
                | FaultKind::Wake500
                | FaultKind::WakeHang
                | FaultKind::WakeOom
                | FaultKind::CorruptAfterWake
                | FaultKind::CrashInSleep
                | FaultKind::CrashInWake
                | FaultKind::NeighbourAllocInSleep
        )
    }
}

/// The kinds and what they do, for `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "Arm a fault; may be repeated. It strikes COUNT times; without a count, one-shots strike once",
    );
    for kind in FaultKind::value_variants() {
        if let Some(value) = kind.to_possible_value() {
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("\n  {}: {help}", value.get_name()));
        }
    }
    text
}

/// An armed fault.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Its figure; the unit is the kind's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg: Option<f64>,
    /// How often it still strikes; `None` is the kind's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (head, count) = match text.split_once('*') {
            Some((head, count)) => (head, Some(count.parse().map_err(|_| format!("`{count}` is no count"))?)),
            None => (text, None),
        };
        let (kind, arg) = match head.split_once('=') {
            Some((kind, arg)) => (kind, Some(arg.parse().map_err(|_| format!("`{arg}` is no number"))?)),
            None => (head, None),
        };
        let kind = FaultKind::from_str(kind, false).map_err(|_| {
            let known: Vec<_> =
                FaultKind::value_variants().iter().filter_map(|k| k.to_possible_value()).collect();
            let known: Vec<_> = known.iter().map(|v| v.get_name().to_owned()).collect();
            format!("no fault `{kind}`; there are {}", known.join(", "))
        })?;
        Ok(Fault { kind, arg, count })
    }
}

/// The armed faults of one process.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    armed: Vec<Fault>,
}

impl Faults {
    /// Arms the given ones.
    pub fn new(faults: &[Fault]) -> Self {
        let mut all = Faults::default();
        for fault in faults {
            all.arm(*fault);
        }
        all
    }

    /// Arms one; the same kind again replaces it.
    pub fn arm(&mut self, fault: Fault) {
        self.clear(Some(fault.kind));
        self.armed.push(fault);
    }

    /// Clears one kind, or all.
    pub fn clear(&mut self, kind: Option<FaultKind>) {
        self.armed.retain(|f| kind.is_some_and(|k| k != f.kind));
    }

    /// The armed faults.
    pub fn armed(&self) -> &[Fault] {
        &self.armed
    }

    /// Whether a kind is armed, without it striking.
    pub fn is_armed(&self, kind: FaultKind) -> bool {
        self.armed.iter().any(|f| f.kind == kind)
    }

    /// Strikes: the fault, if it is armed; a one-shot is used up by it.
    pub fn strike(&mut self, kind: FaultKind) -> Option<Fault> {
        let index = self.armed.iter().position(|f| f.kind == kind)?;
        let fault = self.armed[index];
        let left = fault.count.or((!kind.is_sticky()).then_some(1)).map(|n| n.saturating_sub(1));
        match left {
            Some(0) => {
                self.armed.remove(index);
            }
            other => self.armed[index].count = other,
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_wrong_ones_named() {
        assert_eq!(
            "residual_creep=12*3".parse(),
            Ok(Fault { kind: FaultKind::ResidualCreep, arg: Some(12.0), count: Some(3) })
        );
        assert_eq!("sleep_500".parse(), Ok(Fault { kind: FaultKind::Sleep500, arg: None, count: None }));
        assert!("sleep_5000".parse::<Fault>().unwrap_err().contains("sleep_500, sleep_hang"));
        assert!("slow_start=x".parse::<Fault>().is_err());
        assert!("slow_start*x".parse::<Fault>().is_err());
    }

    #[test]
    fn help_names_every_kind_with_what_it_does() {
        let text = help();
        for kind in FaultKind::value_variants() {
            let name = kind.to_possible_value().unwrap().get_name().to_owned();
            let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{name}: "))).unwrap();
            assert!(line.len() > name.len() + 12, "{line}");
        }
    }

    #[test]
    fn json_names_are_the_flag_names() {
        for kind in FaultKind::value_variants() {
            let name = kind.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(serde_json::to_value(kind).unwrap(), serde_json::Value::String(name));
        }
    }

    #[test]
    fn one_shots_strike_once_and_sticky_ones_always() {
        let mut faults = Faults::new(&["wake_500".parse().unwrap(), "residual_creep*2".parse().unwrap()]);
        assert!(faults.strike(FaultKind::Wake500).is_some());
        assert!(faults.strike(FaultKind::Wake500).is_none());
        assert!(faults.strike(FaultKind::ResidualCreep).is_some());
        assert!(faults.strike(FaultKind::ResidualCreep).is_some());
        assert!(faults.strike(FaultKind::ResidualCreep).is_none());
        faults.arm("completions_hang".parse().unwrap());
        assert!((0..5).all(|_| faults.strike(FaultKind::CompletionsHang).is_some()));
        faults.clear(None);
        assert!(faults.armed().is_empty());
    }
}
