//! Policy and schedules: what names engines and cycle plans.

use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::{Checking, check_short_name, duplicates, required};
use crate::config::checked::{Config, Drain, PlanRef, Policy, Schedule, Simulated, Strategy};
use crate::config::cycle_plan::{self, CyclePlan};
use crate::config::diagnostics::Problems;
use crate::config::raw::{RawConfig, RawPolicy, RawSchedule};
use crate::config::reader::{Located, list, nearest};
use crate::config::{cron, read_text};

impl Checking<'_> {
    pub(super) fn policy(&mut self, raw: &RawConfig, engines: &[String]) -> Policy {
        let default = RawPolicy::default();
        let raw = raw.policy.get().unwrap_or(&default);
        if let Some(leave) = raw.leave.located().filter(|leave| leave.value == Tier::Awake) {
            self.problems
                .error("conflict", &leave.span, "policy.leave", "a handoff cannot leave the outgoing engine awake")
                .help("use parked, level1, level2 or stopped; `max_awake` of the device allows two awake engines");
        }
        let mut awake = Vec::new();
        for name in raw.awake_at_start.get().map_or(&[][..], |names| names.0.as_slice()) {
            match engines.iter().position(|engine| *engine == name.value) {
                Some(index) if awake.contains(&index) => {}
                Some(index) => awake.push(index),
                None => {
                    let known = list(engines.iter().map(String::as_str));
                    let help = match nearest(&name.value, engines.iter().map(String::as_str)) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("the engines are {known}"),
                    };
                    let message = format!("there is no engine \"{}\"", name.value);
                    self.problems
                        .error("unknown_engine", &name.span, "policy.awake_at_start", message)
                        .help(help);
                }
            }
        }
        Policy {
            strategy: raw.strategy.or(Strategy::Auto),
            leave: raw.leave.get().copied(),
            drain: raw.drain.or(Drain::Wait),
            drain_deadline: raw.drain_deadline.get().map_or(Duration::from_secs(30), |span| span.0),
            awake_at_start: awake,
        }
    }

    pub(super) fn awake_at_start(&mut self, raw: &RawConfig, config: &Config) {
        let Some(written) = raw.policy.get().and_then(|policy| policy.awake_at_start.located()) else {
            return;
        };
        for (index, device) in config.devices.iter().enumerate() {
            let on_it = |engine: &&usize| config.engines[**engine].devices.contains(&index);
            let count = config.policy.awake_at_start.iter().filter(on_it).count();
            if count > usize::from(device.max_awake) {
                let message = format!(
                    "{count} engines are to be awake on {}, and its `max_awake` is {}",
                    device.name, device.max_awake
                );
                self.problems
                    .error("too_many_awake", &written.span, "policy.awake_at_start", message)
                    .help("name fewer, or raise the device's `max_awake`");
            }
        }
        for &index in &config.policy.awake_at_start {
            let engine = &config.engines[index];
            if !engine.autostart {
                let message =
                    format!("{} is to be awake at start, and its `autostart` is false", engine.name);
                self.problems
                    .error("conflict", &written.span, "policy.awake_at_start", message)
                    .help("drop one of the two");
            }
        }
    }

    pub(super) fn schedules(&mut self, raw: &RawConfig) -> Vec<Schedule> {
        let list = raw.schedule.get().map_or(&[][..], Vec::as_slice);
        let names = list
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((s.value.name.located()?, format!("schedule[{i}].name"))));
        duplicates(self.problems, names, ("duplicate_name", "the schedule name"));
        list.iter().enumerate().map(|(i, raw)| self.schedule(i, raw)).collect()
    }

    pub(super) fn schedule(&mut self, i: usize, raw: &Located<RawSchedule>) -> Schedule {
        let path = format!("schedule[{i}]");
        let (raw, table) = (&raw.value, &raw.span);
        let name = required(self.problems, &raw.name, table, (&path, "name"), "`name = \"nightly\"`");
        if let Some(name) = &name {
            check_short_name(self.problems, name, &path);
        }
        let cron = required(self.problems, &raw.cron, table, (&path, "cron"), "`cron = \"30 3 * * *\"`");
        if let Some(cron) = &cron
            && let Err(error) = cron::check(&cron.value)
        {
            self.problems
                .error("bad_cron", &cron.span, format!("{path}.cron"), error.to_string())
                .help("write minute, hour, day, month, weekday, as in \"30 3 * * *\" (daily at 03:30)");
        }
        let plan = required(self.problems, &raw.plan, table, (&path, "plan"), "`plan = \"reference\"`");
        let text = |value: Option<Located<String>>| value.map(|value| value.value).unwrap_or_default();
        Schedule {
            plan: plan
                .map_or_else(|| PlanRef::BuiltIn("reference".to_owned()), |plan| self.plan(&plan, &path)),
            name: text(name),
            cron: text(cron),
            unless_serving: raw.unless_serving.or(true),
        }
    }

    pub(super) fn plan(&mut self, plan: &Located<String>, path: &str) -> PlanRef {
        let built_in = cycle_plan::BUILT_IN.iter().map(|(name, _)| *name);
        if built_in.clone().any(|name| name == plan.value) {
            return PlanRef::BuiltIn(plan.value.clone());
        }
        if plan.value.contains('/') || plan.value.ends_with(".toml") {
            return PlanRef::File(self.resolve(&plan.value));
        }
        let help = match nearest(&plan.value, built_in.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"? A file is named with its .toml"),
            None => format!("the built-in plans are {}; a file is named with its .toml", list(built_in)),
        };
        let message = format!("there is no cycle plan \"{}\"", plan.value);
        self.problems.error("unknown_plan", &plan.span, format!("{path}.plan"), message).help(help);
        PlanRef::BuiltIn(plan.value.clone())
    }

    pub(super) fn simulated(&mut self, raw: &RawConfig) -> Option<Simulated> {
        let table = raw.simulated.located()?;
        let raw = &table.value;
        let profile = required(
            self.problems,
            &raw.profile,
            &table.span,
            ("simulated", "profile"),
            "`profile = \"l20\"`",
        );
        for (key, field) in [("speed", &raw.speed), ("host_scale", &raw.host_scale)] {
            if let Some(value) = field.located().filter(|value| value.value <= 0.0) {
                let key = format!("simulated.{key}");
                let message = format!("`{key}` must be greater than 0");
                self.problems.error("out_of_range", &value.span, key, message).help("leave it out for 1");
            }
        }
        let profile = profile.map(|profile| profile.value).unwrap_or_default();
        Some(Simulated { profile, speed: raw.speed.or(1.0), host_scale: raw.host_scale.or(1.0) })
    }
}

/// Reads and expands the plan files that schedules name.
pub(in crate::config) fn plan_files(raw: &RawConfig, config: &Config, problems: &mut Problems) {
    let Some(schedules) = raw.schedule.get() else { return };
    let engines: Vec<String> = config.engines.iter().map(|e| e.name.clone()).collect();
    for (i, (raw, schedule)) in schedules.iter().zip(&config.schedules).enumerate() {
        let (Some(written), PlanRef::File(path)) = (raw.value.plan.located(), &schedule.plan) else {
            continue;
        };
        let checked = read_text(path, "cycle plan")
            .and_then(|text| CyclePlan::parse(&text, path))
            .and_then(|(plan, _)| plan.expand(&engines, &cycle_plan::Options::default()));
        if let Err(diagnostics) = checked {
            let first = diagnostics.problems().first();
            let reason = first.map_or_else(String::new, |problem| {
                let line = problem.position.map_or_else(String::new, |at| format!("line {}: ", at.line));
                format!("{line}{}", problem.message)
            });
            let message = format!("the cycle plan {} cannot be used: {reason}", path.display());
            let more = match diagnostics.problems().len() {
                0 | 1 => String::new(),
                n => format!("; there are {} more problems in it", n - 1),
            };
            let help = first.and_then(|problem| problem.help.as_deref()).unwrap_or("correct the plan file");
            problems
                .error("bad_plan", &written.span, format!("schedule[{i}].plan"), message)
                .help(format!("{help}{more}"));
        }
    }
}
