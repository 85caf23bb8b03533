//! What only the keys say: command and environment as such, tiers, restarts, recycling, logs, time-outs.

use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::{OneEngine, size};
use crate::config::check::command::{Command, Program};
use crate::config::check::missing;
use crate::config::checked::{Device, LogFiles, MIB, Recycle, Restart, Timeouts};
use crate::config::raw::{RawLog, RawRecycle, RawRestart, RawTimeouts};
use crate::config::reader::{Field, Located, Span};
use crate::config::units::show_size;

impl OneEngine<'_, '_, '_> {
    pub(super) fn command(&mut self, args: &[Located<String>]) {
        let raw = self.raw;
        if raw.command.is_absent() {
            missing(
                self.checking.problems,
                self.table,
                &self.path,
                "command",
                "`command = [\"vllm\", \"serve\", …]`",
            );
        } else if let Some(command) = raw
            .command
            .located()
            .filter(|command| command.value.first().is_none_or(|p| p.value.trim().is_empty()))
        {
            let key = self.key("command");
            self.checking
                .problems
                .error("empty", &command.span, key, "the command names no program")
                .help("write `command = [\"vllm\", \"serve\", …]`");
        }
        for (k, arg) in args.iter().enumerate().filter(|(_, arg)| arg.value.contains('\0')) {
            let key = self.key(&format!("command[{k}]"));
            self.checking
                .problems
                .error("bad_text", &arg.span, key, "an argument cannot contain a zero byte")
                .help("remove it");
        }
        if Command::new(args).program() == Program::Shell {
            let key = self.key("command");
            let span = raw.command.located().map_or(self.table, |command| &command.span);
            self.checking
                .problems
                .warning(
                    "shell_command",
                    span,
                    key,
                    "a shell hides the engine's flags, and signals reach the shell instead of vLLM",
                )
                .help("write program and arguments one by one, and variables under `env`");
        }
    }

    pub(super) fn environment(&mut self) {
        for (name, value) in self.raw.env.get().into_iter().flatten() {
            let bad_name = name.is_empty() || name.contains(['=', '\0']);
            if bad_name || value.value.contains('\0') {
                let key = self.key(&format!("env.{name}"));
                self.checking
                    .problems
                    .error("bad_text", &value.span, key, "this cannot be an environment variable")
                    .help("names have no `=`, and neither has a zero byte");
            }
        }
        for (k, name) in self.raw.unset_env.get().into_iter().flatten().enumerate() {
            let key = self.key(&format!("unset_env[{k}]"));
            if name.value.is_empty() || name.value.contains(['=', '\0']) {
                self.checking
                    .problems
                    .error("bad_text", &name.span, key, "this is no name of an environment variable")
                    .help("write the name alone");
            } else if let Some(set) = self.raw.env.get().and_then(|env| env.get(&name.value)) {
                self.checking
                    .problems
                    .error("conflict", &name.span, key, format!("`{}` is set and unset", name.value))
                    .related(&set.span, "set here")
                    .help("keep one");
            }
        }
    }

    pub(super) fn sleep_tiers(&mut self) -> Vec<Tier> {
        let mut tiers = Vec::new();
        match self.raw.levels.get() {
            None => tiers.extend([Tier::Level1, Tier::Level2]),
            Some(levels) => {
                for (k, level) in levels.iter().enumerate() {
                    let key = self.key(&format!("levels[{k}]"));
                    match level.value {
                        Tier::Level1 | Tier::Level2 if tiers.contains(&level.value) => {}
                        Tier::Level1 | Tier::Level2 => tiers.push(level.value),
                        other => {
                            let help = match other {
                                Tier::Parked => "parking is allowed by `park = true`, which is the default",
                                _ => "use level1, level2, or neither",
                            };
                            self.checking
                                .problems
                                .error("bad_level", &level.span, key, format!("{other} is no sleep level"))
                                .help(help);
                        }
                    }
                }
            }
        }
        let may_park = self.raw.park.or(true);
        if let Some(park) = self.raw.park.located().filter(|park| park.value && tiers.is_empty()) {
            let key = self.key("park");
            self.checking
                .problems
                .error("conflict", &park.span, key, "an engine without sleep levels cannot be parked")
                .help("drop `park`, or allow a level");
        }
        if may_park && !tiers.is_empty() {
            tiers.push(Tier::Parked);
        }
        tiers.sort();
        tiers
    }

    pub(super) fn rest_tier(&mut self, sleep_tiers: &[Tier]) -> Tier {
        let default = [Tier::Level1, Tier::Level2]
            .into_iter()
            .find(|tier| sleep_tiers.contains(tier))
            .unwrap_or(Tier::Stopped);
        let Some(given) = self.raw.rest_tier.located() else { return default };
        if given.value != Tier::Stopped && !sleep_tiers.contains(&given.value) {
            let key = self.key("rest_tier");
            let (message, help) = match given.value {
                Tier::Awake => (
                    "an engine rests in a sleeping tier".to_owned(),
                    "name it in `awake_at_start` of [policy] instead",
                ),
                tier => (
                    format!("this engine may not be put to {tier}"),
                    "allow it in `levels`, or rest elsewhere",
                ),
            };
            self.checking.problems.error("bad_level", &given.span, key, message).help(help);
        }
        given.value
    }

    pub(super) fn duration(&mut self, field: &Field<Span>, key: &str, default: Duration) -> Duration {
        let key = self.key(key);
        self.checking.duration(field, &key, default, Duration::from_millis(10))
    }

    pub(super) fn restart(&mut self) -> Restart {
        let none = RawRestart::default();
        let raw = self.raw.restart.get().unwrap_or(&none);
        let restart = Restart {
            budget: raw.budget.or(5),
            window: self.duration(&raw.window, "restart.window", Duration::from_secs(600)),
            initial: self.duration(&raw.initial, "restart.initial", Duration::from_secs(1)),
            max: self.duration(&raw.max, "restart.max", Duration::from_secs(60)),
        };
        if restart.initial > restart.max {
            let span = raw.initial.located().or(raw.max.located()).map_or(self.table, |given| &given.span);
            let key = self.key("restart.initial");
            self.checking
                .problems
                .error("conflict", span, key, "the first delay is longer than the longest")
                .help("raise `max` or lower `initial`");
        }
        restart
    }

    pub(super) fn recycle(&mut self, on: &[usize], devices: &[Device]) -> Recycle {
        let none = RawRecycle::default();
        let raw = self.raw.recycle.get().unwrap_or(&none);
        let slack = on.iter().filter_map(|&d| devices.get(d)).map(|d| d.slack_bytes).min().unwrap_or(0);
        if let Some(given) = raw.creep.located().filter(|given| given.value.0 > slack) {
            let key = self.key("recycle.creep");
            let message = format!(
                "a sleep that leaves so much counts as failed: the device's slack is {}",
                show_size(slack)
            );
            self.checking
                .problems
                .error("out_of_range", &given.span, key, message)
                .help("stay below the slack, half of it for instance, or raise the device's `slack`");
        }
        if let Some(few) = raw.sleeps.located().filter(|sleeps| sleeps.value < 2) {
            let key = self.key("recycle.sleeps");
            self.checking
                .problems
                .error(
                    "out_of_range",
                    &few.span,
                    key,
                    "it would be started anew after every start: it is put to sleep once when it comes up",
                )
                .help("some hundreds, or leave it out for no limit");
        }
        Recycle {
            creep_bytes: Some(size(&raw.creep).unwrap_or(slack / 2)).filter(|bytes| *bytes > 0),
            sleeps: raw.sleeps.get().copied(),
        }
    }

    pub(super) fn log(&mut self) -> LogFiles {
        let none = RawLog::default();
        let raw = self.raw.log.get().unwrap_or(&none);
        if let Some(small) = raw.max_size.located().filter(|size| size.value.0 < 64 << 10) {
            let key = self.key("log.max_size");
            self.checking
                .problems
                .error("out_of_range", &small.span, key, "a log file needs at least 64KiB")
                .help("leave it out for 16MiB");
        }
        if let Some(none) = raw.keep.located().filter(|keep| keep.value == 0) {
            let key = self.key("log.keep");
            self.checking
                .problems
                .error("out_of_range", &none.span, key, "at least one log file is kept")
                .help("leave it out for 5");
        }
        LogFiles { max_bytes: size(&raw.max_size).unwrap_or(16 * MIB), keep: raw.keep.or(5) }
    }

    pub(super) fn timeouts(&mut self) -> Timeouts {
        let none = RawTimeouts::default();
        let raw = self.raw.timeouts.get().unwrap_or(&none);
        let mut read = |field: &Field<Span>, key: &str| {
            let given = field.located()?;
            let key = self.key(&format!("timeouts.{key}"));
            self.checking.at_least(given, &key, Duration::from_millis(10));
            Some(given.value.0)
        };
        Timeouts {
            sleep: read(&raw.sleep, "sleep"),
            wake: read(&raw.wake, "wake"),
            reload: read(&raw.reload, "reload"),
            probe: read(&raw.probe, "probe"),
            is_sleeping: read(&raw.is_sleeping, "is_sleeping"),
            control: read(&raw.control, "control"),
            memory: read(&raw.memory, "memory"),
        }
    }
}
