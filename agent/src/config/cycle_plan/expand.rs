//! From a plan to the flat list of steps that a run is made of.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::{Action, CyclePlan, EngineRef};
use crate::config::checked::Strategy;
use crate::config::diagnostics::{Diagnostics, Problems};
use crate::config::reader::{list, nearest};
use crate::journal::record::CycleStep;

/// What the caller of a run asks for beside its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Strategy of the handoffs outside the `auto` series, over the plan's own.
    pub strategy: Option<Strategy>,
    /// Tier that they leave the outgoing engine in, over the plan's own.
    pub leave: Option<Tier>,
}

/// One step of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedStep {
    /// What is done, as the journal records it.
    pub step: CycleStep,
    /// How long a sleep cycle holds the engine asleep.
    pub hold: Duration,
    /// Pause once it has ended. (Nothing is waited for after a run's last step.)
    pub pause_after: Duration,
    /// Strategy of a handoff; `None` is the configuration's policy.
    pub strategy: Option<Strategy>,
    /// Tier that a handoff leaves the outgoing engine in; `None` is the strategy's.
    pub leave: Option<Tier>,
    /// Whether a start is rehearsed.
    pub rehearse: bool,
    /// The report's measuring window that it belongs to; steps in a row with the same name make up one window.
    pub window: Option<String>,
}

/// Most steps of a run.
const MOST_STEPS: usize = 100_000;

impl CyclePlan {
    /// The steps of a run on these engines (names in the configuration's order).
    ///
    /// # Errors
    /// Engines that do not exist, and steps that cannot work because of what came before them.
    pub fn expand(&self, engines: &[String], options: &Options) -> Result<Vec<PlannedStep>, Diagnostics> {
        let mut expansion = Expansion {
            engines,
            options,
            problems: Problems::default(),
            steps: Vec::new(),
            states: vec![State::Unknown; engines.len()],
            started: vec![false; engines.len()],
            unknown: BTreeSet::new(),
        };
        for (i, step) in self.steps.iter().enumerate() {
            expansion.add(&step.action, &step.span, &format!("step[{i}]"));
            if expansion.steps.len() > MOST_STEPS {
                let message = format!("the plan has more than {MOST_STEPS} steps");
                expansion
                    .problems
                    .error("too_long", &step.span, format!("step[{i}]"), message)
                    .help("lower a `count`");
                break;
            }
        }
        if let Some(last) = expansion.steps.last_mut() {
            last.pause_after = Duration::ZERO;
        }
        if expansion.problems.has_errors() {
            return Err(expansion.problems.finish(&self.file, &self.text));
        }
        Ok(expansion.steps)
    }
}

/// What a plan may count on about an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// As the run finds it.
    Unknown,
    Awake,
    Asleep,
    Stopped,
}

struct Expansion<'a> {
    engines: &'a [String],
    options: &'a Options,
    problems: Problems,
    steps: Vec<PlannedStep>,
    states: Vec<State>,
    started: Vec<bool>,
    /// Names that were reported, each once.
    unknown: BTreeSet<String>,
}

impl Expansion<'_> {
    fn add(&mut self, action: &Action, span: &Range<usize>, path: &str) {
        match action {
            Action::Start { engine, restarts, rehearse } => {
                let Some(index) = self.engine(engine, &format!("{path}.engine")) else { return };
                for _ in 0..=*restarts {
                    let initial = !self.started[index];
                    self.started[index] = true;
                    let step = CycleStep::Start { engine: self.engines[index].clone(), initial };
                    self.steps.push(PlannedStep { rehearse: *rehearse, ..plain(step) });
                }
                self.states[index] = State::Awake;
            }
            Action::Load { engine, stage, concurrency, rounds, requests, output_tokens } => {
                let Some(index) = self.engine(engine, &format!("{path}.engine")) else { return };
                self.must_be_awake(index, span, path);
                let name = &self.engines[index];
                for &concurrency in concurrency {
                    let step = CycleStep::Load {
                        engine: name.clone(),
                        stage: stage.clone(),
                        concurrency,
                        rounds: *rounds,
                        requests: *requests,
                        output_tokens: *output_tokens,
                    };
                    self.steps.push(PlannedStep { window: Some(format!("{name}-{stage}")), ..plain(step) });
                }
            }
            Action::SleepCycles { engine, tier, count, hold } => {
                let Some(index) = self.engine(engine, &format!("{path}.engine")) else { return };
                self.must_be_awake(index, span, path);
                let name = &self.engines[index];
                // The reference measures the window of level 1 only.
                let window = (*tier == Tier::Level1).then(|| format!("{name}-sleep-level1"));
                let step = CycleStep::SleepCycle { engine: name.clone(), tier: *tier };
                let planned = PlannedStep { hold: *hold, window, ..plain(step) };
                self.steps
                    .extend(std::iter::repeat_n(planned, usize::try_from(*count).unwrap_or(usize::MAX)));
            }
            Action::Sleep { engine, tier } => {
                let Some(index) = self.engine(engine, &format!("{path}.engine")) else { return };
                if matches!(self.states[index], State::Asleep | State::Stopped) {
                    let message = format!("{} sleeps already when this step comes", self.engines[index]);
                    self.problems
                        .error("bad_order", span, path, message)
                        .help("drop the step, or activate the engine before it");
                }
                self.states[index] = if *tier == Tier::Stopped { State::Stopped } else { State::Asleep };
                self.steps.push(plain(CycleStep::Sleep { engine: self.engines[index].clone(), tier: *tier }));
            }
            Action::Activate { engine, pause, auto } => {
                let Some(index) = self.engine(engine, &format!("{path}.engine")) else { return };
                self.activate(index, *pause, *auto, span, path);
            }
            Action::Handoffs { between, count, strategy, leave, pause, start_from, auto } => {
                let first = self.engine(&between[0], &format!("{path}.between"));
                let second = self.engine(&between[1], &format!("{path}.between"));
                let wanted = start_from.as_ref().map(|name| self.engine(name, &format!("{path}.start_from")));
                let (Some(first), Some(second)) = (first, second) else { return };
                if first == second {
                    self.problems
                        .error("bad_engines", span, path, "handoffs go between two different engines")
                        .help("name two different ones in `between`");
                    return;
                }
                if wanted.is_some_and(|wanted| wanted.is_none()) {
                    return;
                }
                let Some(from) = self.awake_of([first, second], wanted.flatten(), span, path) else { return };
                let to = if from == first { second } else { first };
                let series = Series {
                    between: [first, second],
                    strategy: if *auto { *strategy } else { self.options.strategy.or(*strategy) },
                    leave: if *auto { *leave } else { self.options.leave.or(*leave) },
                    pause: *pause,
                    auto: *auto,
                };
                self.handoffs(&series, *count, from, to);
            }
        }
    }

    /// The index of the engine that a plan names.
    fn engine(&mut self, name: &EngineRef, key: &str) -> Option<usize> {
        let by_name = self.engines.iter().position(|engine| *engine == name.name);
        let position = match name.name.as_str() {
            "first" => Some(0),
            "second" => Some(1),
            _ => None,
        };
        let found = by_name.or(position.filter(|position| *position < self.engines.len()));
        if found.is_none() && self.unknown.insert(name.name.clone()) {
            let names = || self.engines.iter().map(String::as_str);
            let (message, help) = match position {
                Some(_) => (
                    format!("there is no {} engine", name.name),
                    format!("the node has {}; this plan needs two", list(names())),
                ),
                None => (
                    format!("there is no engine \"{}\"", name.name),
                    match nearest(&name.name, names().chain(["first", "second"])) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("the engines are {}; or write first or second", list(names())),
                    },
                ),
            };
            self.problems.error("unknown_engine", &name.span, key, message).help(help);
        }
        found
    }

    fn must_be_awake(&mut self, index: usize, span: &Range<usize>, path: &str) {
        if self.states[index] != State::Awake {
            let name = &self.engines[index];
            let message = format!("{name} is not known to be awake when this step comes");
            self.problems
                .error("bad_order", span, path, message)
                .help(format!("start or activate {name} before it"));
        }
    }

    fn activate(&mut self, index: usize, pause: Duration, auto: bool, span: &Range<usize>, path: &str) {
        let awake = (0..self.engines.len()).find(|&other| self.states[other] == State::Awake);
        let name = self.engines[index].clone();
        if let Some(awake) = awake {
            let other = &self.engines[awake];
            let message = format!("{other} is awake when {name} is to be activated");
            self.problems
                .error("bad_order", span, path, message)
                .help(format!("put {other} to sleep before it, or hand over by `handoffs`"));
        }
        self.states[index] = State::Awake;
        let step = CycleStep::Activate { engine: name, auto };
        // Its window is that of the handoffs that follow, which may go between any two engines: filled in by them.
        self.steps.push(PlannedStep { pause_after: pause, ..plain(step) });
    }

    /// Which of the two is awake when handoffs begin.
    fn awake_of(
        &mut self,
        between: [usize; 2],
        wanted: Option<usize>,
        span: &Range<usize>,
        path: &str,
    ) -> Option<usize> {
        let awake = between.into_iter().find(|&index| self.states[index] == State::Awake);
        let [a, b] = between.map(|index| self.engines[index].clone());
        match (awake, wanted) {
            (Some(awake), Some(wanted)) if awake != wanted => {
                let message = format!(
                    "{} is awake when the handoffs begin, not {}",
                    self.engines[awake], self.engines[wanted]
                );
                self.problems
                    .error("bad_order", span, path, message)
                    .help("change `start_from`, or activate that engine before it");
                None
            }
            (Some(awake), _) => Some(awake),
            (None, _) => {
                let message = format!("neither {a} nor {b} is known to be awake when the handoffs begin");
                self.problems
                    .error("bad_order", span, path, message)
                    .help("put a step before it with `action = \"activate\"`");
                None
            }
        }
    }

    fn handoffs(&mut self, series: &Series, count: u32, mut from: usize, mut to: usize) {
        let window = self.switch_window(series);
        // The activation that leads into the series is part of it.
        if let Some(before) = self.steps.last_mut()
            && matches!(&before.step, CycleStep::Activate { auto, .. } if *auto == series.auto)
        {
            before.window = Some(window.clone());
        }
        for i in 0..count {
            let step = CycleStep::Handoff {
                from: self.engines[from].clone(),
                to: self.engines[to].clone(),
                auto: series.auto,
            };
            self.steps.push(PlannedStep {
                pause_after: if i + 1 < count { series.pause } else { Duration::ZERO },
                strategy: series.strategy,
                leave: series.leave,
                window: Some(window.clone()),
                ..plain(step)
            });
            self.states[from] =
                if series.leave == Some(Tier::Stopped) { State::Stopped } else { State::Asleep };
            self.states[to] = State::Awake;
            (from, to) = (to, from);
        }
    }

    /// `AB-switch`; names longer than a letter are kept apart by a dash.
    fn switch_window(&self, series: &Series) -> String {
        let [a, b] = series.between.map(|index| self.engines[index].as_str());
        let dash = if a.len() == 1 && b.len() == 1 { "" } else { "-" };
        let auto = if series.auto { "-auto" } else { "" };
        format!("{a}{dash}{b}-switch{auto}")
    }
}

/// What the handoffs of one step have in common.
struct Series {
    between: [usize; 2],
    strategy: Option<Strategy>,
    leave: Option<Tier>,
    pause: Duration,
    auto: bool,
}

fn plain(step: CycleStep) -> PlannedStep {
    PlannedStep {
        step,
        hold: Duration::ZERO,
        pause_after: Duration::ZERO,
        strategy: None,
        leave: None,
        rehearse: false,
        window: None,
    }
}
