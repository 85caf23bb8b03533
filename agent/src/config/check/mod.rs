//! From the file as written to the configuration as used.
//!
//! Every check runs, whatever the others found; a value that is wrong is replaced by something harmless for the rest
//! of the checks, and the configuration is given out only if nothing was wrong. A check looks at values that are
//! there and readable: what was reported once is not reported again as missing.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checked::{Config, Engine};
use super::diagnostics::Problems;
use super::places::Facts;
use super::raw::RawConfig;
use super::reader::{Field, Located, Span};
use super::{resolve, units};

mod command;
mod device;
mod engine;
mod flags;
mod gateway;
mod known_bad;
mod memory;
mod node;
mod policy;

pub use known_bad::{Releases, Row as KnownBad, Spoils};
pub(super) use policy::plan_files;

/// The name of the device without memory readings.
pub(super) const NO_DEVICE: &str = "none";

/// What every check needs.
pub(super) struct Checking<'a> {
    file: &'a Path,
    facts: &'a Facts,
    problems: &'a mut Problems,
}

/// Checks everything. `None` where there is nothing to build on; the caller looks at the problems as well.
pub(super) fn check(raw: &RawConfig, file: &Path, facts: &Facts, problems: &mut Problems) -> Option<Config> {
    let mut checking = Checking { file, facts, problems };
    let devices = checking.devices(raw);
    let (engines, devices) = engine::engines(&mut checking, raw, devices);
    let node = checking.node(raw);
    checking.ports_and_sockets(raw, &node, &engines);
    let gateway = checking.gateway(raw, &engines);
    let names: Vec<String> = engines.iter().map(|e| e.name.clone()).collect();
    let policy = checking.policy(raw, &names);
    let config = Config {
        file: file.to_owned(),
        node,
        devices,
        engines,
        policy,
        gateway,
        journal: checking.journal(raw),
        schedules: checking.schedules(raw),
        simulated: checking.simulated(raw),
    };
    checking.unused_devices(raw, &config);
    checking.graces(raw, &config);
    checking.ports_of_clients(raw, &config);
    checking.awake_at_start(raw, &config);
    checking.turns(raw, &config);
    if !checking.problems.has_errors() {
        checking.bounds(raw, &config);
    }
    memory::check(&mut checking, raw, &config);
    (!config.engines.is_empty()).then_some(config)
}

/// The whole table of known-bad options.
pub fn known_bad_table() -> &'static [KnownBad] {
    known_bad::ROWS
}

/// The rows of the table of known-bad options that this engine's command line and environment show, whatever its
/// release. What only its model's name suggests is among them.
pub fn known_bad(engine: &Engine) -> Vec<&'static KnownBad> {
    let words: Vec<Located<String>> =
        engine.command.iter().map(|word| Located { value: word.clone(), span: 0..0 }).collect();
    let command = command::Command::new(&words);
    let env = |name: &str| {
        let outside = || engine.env.get(name).cloned();
        match command.runtime() {
            None => outside(),
            Some(runtime) => {
                let inside = runtime.env(name).map(|value| value.text.to_owned());
                inside.or_else(|| outside().filter(|_| runtime.passes_env(name)))
            }
        }
    };
    let line = known_bad::Line { command, env: &env, model: &engine.model };
    known_bad::ROWS.iter().filter(|row| row.seen(&line).is_some()).collect()
}

/// A name that must be given and not empty; otherwise a report, and a stand-in.
fn required(
    problems: &mut Problems,
    field: &Field<String>,
    table: &Range<usize>,
    (path, key): (&str, &str),
    example: &str,
) -> Option<Located<String>> {
    match field {
        Field::Given(text) if text.value.trim().is_empty() => {
            problems
                .error("empty", &text.span, format!("{path}.{key}"), format!("`{path}.{key}` is empty"))
                .help(format!("write {example}"));
            None
        }
        Field::Given(text) => Some(text.clone()),
        Field::Bad => None,
        Field::Absent => {
            missing(problems, table, path, key, example);
            None
        }
    }
}

/// Reports a key that is not there.
fn missing(problems: &mut Problems, table: &Range<usize>, path: &str, key: &str, example: &str) {
    problems
        .error("missing_key", table, format!("{path}.{key}"), format!("`{path}` has no `{key}`"))
        .help(format!("add {example}"));
}

/// Whether a short name is one: 1 to 32 letters, digits, `_` and `-`.
fn is_short_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn check_short_name(problems: &mut Problems, name: &Located<String>, path: &str) {
    if !is_short_name(&name.value) {
        problems
            .error("bad_name", &name.span, format!("{path}.name"), format!("\"{}\" is no name", name.value))
            .help(
                "use 1 to 32 letters, digits, `_` and `-`: names become labels, file names and socket names",
            );
    }
}

/// Reports names that stand twice.
fn duplicates<'n>(
    problems: &mut Problems,
    names: impl IntoIterator<Item = (&'n Located<String>, String)>,
    (code, what): (&'static str, &str),
) {
    let mut first: HashMap<&str, &Range<usize>> = HashMap::new();
    for (name, key) in names {
        match first.get(name.value.as_str()) {
            None => {
                first.insert(&name.value, &name.span);
            }
            Some(before) => {
                problems
                    .error(code, &name.span, key, format!("{what} \"{}\" stands twice", name.value))
                    .related(before, "first here")
                    .help("give each its own");
            }
        }
    }
}

impl Checking<'_> {
    fn resolve(&self, written: &str) -> PathBuf {
        resolve(self.file, written)
    }

    /// A path that is not empty, from the file's folder.
    fn path(&mut self, field: &Field<String>, key: &str) -> Option<PathBuf> {
        let written = field.located()?;
        if written.value.is_empty() || written.value.contains('\0') {
            self.problems
                .error("bad_path", &written.span, key, format!("`{key}` is no path"))
                .help("write a path, relative to the folder of this file or absolute");
            return None;
        }
        if written.value.starts_with("~/") {
            self.problems
                .error("bad_path", &written.span, key, "`~` is not expanded here")
                .help("write the whole path");
        }
        Some(self.resolve(&written.value))
    }

    /// A duration of at least `least`, or the default.
    fn duration(&mut self, field: &Field<Span>, key: &str, default: Duration, least: Duration) -> Duration {
        let Some(given) = field.located() else { return default };
        self.at_least(given, key, least);
        given.value.0
    }

    fn at_least(&mut self, given: &Located<Span>, key: &str, least: Duration) {
        if given.value.0 < least {
            let least = units::format_duration(least);
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` is shorter than {least}"))
                .help(format!("write at least \"{least}\""));
        }
    }
}
