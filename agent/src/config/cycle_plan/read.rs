//! The plan file as written, and its checks that need no engines.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::{Action, CyclePlan, EngineRef, PlanStep};
use crate::config::checked::Strategy;
use crate::config::diagnostics::Problems;
use crate::config::reader::{Field, Located, OneOrMany, Section, Span, list, section, words};

/// A step's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Start,
    Load,
    SleepCycles,
    Sleep,
    Activate,
    Handoffs,
}

words!(Kind, [
    "start" => Kind::Start,
    "load" => Kind::Load,
    "sleep_cycles" => Kind::SleepCycles,
    "sleep" => Kind::Sleep,
    "activate" => Kind::Activate,
    "handoffs" => Kind::Handoffs,
]);

section! {
    /// A cycle plan.
    struct RawPlan {
        /// Its name. Default: the file's.
        name: String,
        /// One line about it.
        description: String,
        /// How far measuring windows reach beyond their work. Default 2s.
        margin: Span,
        /// What it does, in order.
        step (required): Vec<Located<RawStep>>,
    }
}

section! {
    /// One step.
    struct RawStep {
        /// What it does.
        action (required): Kind,
        /// Engine's name, or first or second.
        engine: String,
        /// Restarts after the start. Default 0.
        restarts: u32,
        /// One verified sleep and wake after each start. Default false.
        rehearse: bool,
        /// Name of a load stage: baseline, after-wake.
        stage: String,
        /// Requests in flight: a list gives one stage each. Default 1.
        concurrency: OneOrMany<u32>,
        /// Rounds of a load stage. Default 2.
        rounds: u32,
        /// Requests of a round. Default 8.
        requests: u32,
        /// Output tokens of a request. Default 128.
        output_tokens: u32,
        /// Where to. Default level1.
        tier: Tier,
        /// How often. Default 1.
        count: u32,
        /// How long it is held asleep. Default 3s.
        hold: Span,
        /// Pause after an activation, and between handoffs. Default none.
        pause: Span,
        /// Part of the auto series. Default false.
        auto: bool,
        /// The two engines of handoffs. Default first and second.
        between: OneOrMany<String>,
        /// Strategy of handoffs. Default: what the caller asks for, else the configuration's.
        strategy: Strategy,
        /// Tier that the outgoing engine is left in. Default: the strategy's.
        leave: Tier,
        /// Engine that must be awake when handoffs begin. Default: whichever is.
        start_from: String,
    }
}

/// Most repetitions that one key may ask for: more is a slip of the finger.
const MOST: u32 = 10_000;

/// Checks a plan. Wrong values are reported and replaced by something harmless.
pub(super) fn check(raw: &RawPlan, file: &Path, text: &str, problems: &mut Problems) -> CyclePlan {
    let stem = file.file_stem().map_or_else(|| "plan".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let raw_steps = raw.step.get().map_or(&[][..], Vec::as_slice);
    if raw.step.is_absent() || raw.step.get().is_some_and(Vec::is_empty) {
        problems
            .error("missing_key", &(0..0), "step", "the plan has no step")
            .help("add a [[step]] table with an `action`, as `action = \"handoffs\"`");
    }
    let steps = raw_steps
        .iter()
        .enumerate()
        .filter_map(|(i, raw)| {
            Step { problems, raw: &raw.value, span: &raw.span, path: format!("step[{i}]") }.check()
        })
        .collect();
    CyclePlan {
        name: raw.name.or(stem),
        description: raw.description.or(String::new()),
        margin: raw.margin.get().map_or(Duration::from_secs(2), |span| span.0),
        steps,
        file: file.to_owned(),
        text: text.to_owned(),
    }
}

struct Step<'p, 'r> {
    problems: &'p mut Problems,
    raw: &'r RawStep,
    span: &'r Range<usize>,
    path: String,
}

impl Step<'_, '_> {
    fn check(mut self) -> Option<PlanStep> {
        let raw = self.raw;
        if raw.action.is_absent() {
            self.missing("action", "`action = \"start\"`, load, sleep_cycles, sleep, activate or handoffs");
        }
        let kind = *raw.action.get()?;
        self.only(kind);
        let pause = raw.pause.get().map_or(Duration::ZERO, |span| span.0);
        let auto = raw.auto.or(false);
        let action = match kind {
            Kind::Start => Action::Start {
                engine: self.engine()?,
                restarts: self.count(&raw.restarts, "restarts", 0, 0),
                rehearse: raw.rehearse.or(false),
            },
            Kind::Load => Action::Load {
                engine: self.engine()?,
                stage: self.stage()?,
                concurrency: self.concurrency(),
                rounds: self.count(&raw.rounds, "rounds", 2, 1),
                requests: self.count(&raw.requests, "requests", 8, 1),
                output_tokens: self.count(&raw.output_tokens, "output_tokens", 128, 1),
            },
            Kind::SleepCycles => Action::SleepCycles {
                engine: self.engine()?,
                tier: self.tier(&[Tier::Parked, Tier::Level1, Tier::Level2]),
                count: self.count(&raw.count, "count", 1, 1),
                hold: raw.hold.get().map_or(Duration::from_secs(3), |span| span.0),
            },
            Kind::Sleep => Action::Sleep {
                engine: self.engine()?,
                tier: self.tier(&[Tier::Parked, Tier::Level1, Tier::Level2, Tier::Stopped]),
            },
            Kind::Activate => Action::Activate { engine: self.engine()?, pause, auto },
            Kind::Handoffs => {
                if raw.count.is_absent() {
                    self.missing("count", "`count = 19`");
                }
                if let Some(leave) = raw.leave.located().filter(|leave| leave.value == Tier::Awake) {
                    let key = self.key("leave");
                    self.problems
                        .error(
                            "bad_level",
                            &leave.span,
                            key,
                            "a handoff cannot leave the outgoing engine awake",
                        )
                        .help("use parked, level1, level2 or stopped");
                }
                Action::Handoffs {
                    between: self.between(),
                    count: self.count(&raw.count, "count", 1, 1),
                    strategy: raw.strategy.get().copied(),
                    leave: raw.leave.get().copied(),
                    pause,
                    start_from: raw.start_from.located().map(reference),
                    auto,
                }
            }
        };
        Some(PlanStep { action, span: self.span.clone() })
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn missing(&mut self, key: &str, example: &str) {
        let path = self.key(key);
        self.problems
            .error("missing_key", self.span, path, format!("`{}` has no `{key}`", self.path))
            .help(format!("add {example}"));
    }

    /// Reports keys that mean nothing to this action.
    fn only(&mut self, kind: Kind) {
        let (word, keys): (_, &[&str]) = match kind {
            Kind::Start => ("start", &["engine", "restarts", "rehearse"]),
            Kind::Load => {
                ("load", &["engine", "stage", "concurrency", "rounds", "requests", "output_tokens"])
            }
            Kind::SleepCycles => ("sleep_cycles", &["engine", "tier", "count", "hold"]),
            Kind::Sleep => ("sleep", &["engine", "tier"]),
            Kind::Activate => ("activate", &["engine", "pause", "auto"]),
            Kind::Handoffs => {
                ("handoffs", &["between", "count", "strategy", "leave", "pause", "start_from", "auto"])
            }
        };
        for (key, span) in
            self.raw.given().into_iter().filter(|(key, _)| *key != "action" && !keys.contains(key))
        {
            let path = self.key(key);
            self.problems
                .error("unknown_key", span, path, format!("the action `{word}` has no key `{key}`"))
                .help(format!("it takes {}", list(keys.iter().copied())));
        }
    }

    fn engine(&mut self) -> Option<EngineRef> {
        if self.raw.engine.is_absent() {
            self.missing("engine", "`engine = \"first\"`, or an engine's name");
        }
        self.raw.engine.located().map(reference)
    }

    fn stage(&mut self) -> Option<String> {
        if self.raw.stage.is_absent() {
            self.missing("stage", "`stage = \"baseline\"`, or \"after-wake\"");
        }
        let stage = self.raw.stage.located()?;
        let sound = (1..=64).contains(&stage.value.len())
            && stage.value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !sound {
            let key = self.key("stage");
            self.problems
                .error("bad_name", &stage.span, key, format!("\"{}\" is no name", stage.value))
                .help("use 1 to 64 letters, digits, `_` and `-`");
        }
        Some(stage.value.clone())
    }

    fn concurrency(&mut self) -> Vec<u32> {
        let Some(given) = self.raw.concurrency.located() else { return vec![1] };
        if given.value.0.is_empty() {
            let key = self.key("concurrency");
            self.problems
                .error("empty", &given.span, key, "a load stage needs a concurrency")
                .help("write a number, or a list as [1, 4]");
        }
        for (k, value) in given.value.0.iter().enumerate() {
            let key = if given.value.0.len() == 1 {
                self.key("concurrency")
            } else {
                self.key(&format!("concurrency[{k}]"))
            };
            self.range(value, &key, 1);
        }
        given.value.0.iter().map(|value| value.value).collect()
    }

    fn tier(&mut self, allowed: &[Tier]) -> Tier {
        let Some(given) = self.raw.tier.located() else { return Tier::Level1 };
        if !allowed.contains(&given.value) {
            let key = self.key("tier");
            self.problems
                .error("bad_level", &given.span, key, format!("this action cannot lead to {}", given.value))
                .help(format!("use one of {}", list(allowed.iter().map(|tier| tier.as_str()))));
        }
        given.value
    }

    fn between(&mut self) -> [EngineRef; 2] {
        let none = |name: &str| EngineRef { name: name.to_owned(), span: self.span.clone() };
        let default = [none("first"), none("second")];
        let Some(given) = self.raw.between.located() else { return default };
        match given.value.0.as_slice() {
            [a, b] if a.value != b.value => [reference(a), reference(b)],
            _ => {
                let key = self.key("between");
                self.problems
                    .error("bad_engines", &given.span, key, "handoffs go between two engines")
                    .help("write two different ones, as [\"first\", \"second\"], or leave the key out");
                default
            }
        }
    }

    fn count(&mut self, field: &Field<u32>, key: &str, default: u32, least: u32) -> u32 {
        let Some(given) = field.located() else { return default };
        let key = self.key(key);
        self.range(given, &key, least);
        given.value.min(MOST)
    }

    fn range(&mut self, given: &Located<u32>, key: &str, least: u32) {
        if !(least..=MOST).contains(&given.value) {
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` is out of range"))
                .help(format!("write a whole number from {least} to {MOST}"));
        }
    }
}

fn reference(name: &Located<String>) -> EngineRef {
    EngineRef { name: name.value.clone(), span: name.span.clone() }
}
