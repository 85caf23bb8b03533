//! The configuration: one TOML file, refused whole or taken whole.
//!
//! ```text
//!  text ──reader──► raw (places kept) ──check──► checked::Config ──► the agent
//!                      │                   │
//!                      └──── problems ─────┴──► diagnostics: all at once, each with line, reason and what to write
//! ```
//!
//! Nothing is bound or started before a [`Config`] exists. [`parse`] is pure: what it needs to know of the machine
//! comes in as [`Facts`]. [`load`] reads the file, and the plan files that schedules name. Cycle plans
//! ([`cycle_plan`]) are files of the same kind, read and refused the same way.

use std::path::{Path, PathBuf};

use toml::de::DeTable;

mod arrange;
pub mod changes;
mod check;
pub mod checked;
pub mod client_ports;
mod cron;
mod current;
pub mod cycle_plan;
pub mod diagnostics;
pub mod gateway;
pub mod places;
mod raw;
mod reader;
pub mod schema;
pub mod settings;
pub mod units;

#[cfg(test)]
mod tests;

pub use check::{KnownBad, Releases, Spoils, known_bad, known_bad_table};
pub use checked::{
    Config, Container, Device, Drain, Engine, Journal, LogFiles, LogFormat, Node, OnFailure, OnStop, PlanRef,
    Policy, Recycle, Restart, Sampling, Schedule, Secret, Selector, Simulated, Source, Strategy, Timeouts,
};
pub use current::Current;
pub use cycle_plan::CyclePlan;
pub use diagnostics::{Diagnostics, Position, Problem, Severity};
pub use gateway::{Gateway, Limits, Tenant};
pub use places::{DEFAULT_CONFIG, Facts};

use diagnostics::Problems;
use raw::RawConfig;
use reader::Reading;

/// Reads and checks a configuration file and the plan files that its schedules name.
///
/// With the configuration come its warnings. Relative paths in the file are taken from the file's own folder.
///
/// # Errors
/// Everything that is wrong with it, warnings included; also that it cannot be read.
pub fn load(path: &Path, facts: &Facts) -> Result<(Config, Diagnostics), Diagnostics> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = read_text(&path, "configuration")?;
    let mut problems = Problems::default();
    let (raw, config) = read_config(&text, &path, facts, &mut problems);
    if let Some(config) = &config {
        check::plan_files(&raw, config, &mut problems);
    }
    conclude(config, problems, &path, &text)
}

/// Checks the text of a configuration. Pure: plan files are not looked at.
///
/// # Errors
/// Everything that is wrong with it, warnings included.
pub fn parse(text: &str, file: &Path, facts: &Facts) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut problems = Problems::default();
    let (_, config) = read_config(text, file, facts, &mut problems);
    conclude(config, problems, file, text)
}

fn read_config(
    text: &str,
    file: &Path,
    facts: &Facts,
    problems: &mut Problems,
) -> (RawConfig, Option<Config>) {
    let mut raw = RawConfig::default();
    let sound = read_document(text, problems, |table, reading| raw = RawConfig::from_table(table, reading));
    // Cross-checks on half a file would report what is only a consequence of the syntax error.
    let config = if sound { check::check(&raw, file, facts, problems) } else { None };
    (raw, config)
}

fn conclude(
    config: Option<Config>,
    problems: Problems,
    file: &Path,
    text: &str,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let refused = problems.has_errors();
    let diagnostics = problems.finish(file, text);
    match config {
        Some(config) if !refused => Ok((config, diagnostics)),
        _ => Err(diagnostics),
    }
}

/// Parses a document and hands its root table to `read`. False where the text is not TOML; then `read` has seen what
/// could be made out, and only its problems on sound lines are kept.
fn read_document(
    text: &str,
    problems: &mut Problems,
    read: impl FnOnce(&DeTable<'_>, &mut Reading<'_>),
) -> bool {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut inner = Problems::default();
    read(table.get_ref(), &mut Reading { problems: &mut inner, key: String::new() });
    let line_of =
        |offset: usize| text.as_bytes()[..offset.min(text.len())].iter().filter(|&&b| b == b'\n').count();
    let mut broken_lines = Vec::new();
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        broken_lines.push(line_of(span.start));
        let message = error.message().replace('\n', ", ");
        let help = match message.as_str() {
            "duplicate key" => "keep one of the two",
            text if text.contains("must be quoted") => "put the text in quotation marks",
            text if text.contains("expected `\"`") => "close the text with a quotation mark",
            text if text.contains("unclosed table") => "close the header with a bracket",
            _ => "the mark is where TOML's rules are broken first; the cause may stand just before it",
        };
        problems.error("syntax", &span, "", format!("not TOML: {message}")).help(help);
    }
    inner.retain(|problem| problem.offset().is_none_or(|at| !broken_lines.contains(&line_of(at))));
    problems.append(inner);
    errors.is_empty()
}

/// Reads a whole file; what prevents it becomes a problem of its own. `what` names the kind of file.
fn read_text(path: &Path, what: &str) -> Result<String, Diagnostics> {
    std::fs::read(path)
        .map_err(|error| (error.to_string(), "give the path of a file that this user may read"))
        .and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| {
                (error.utf8_error().to_string(), "save the file in UTF-8, which TOML demands")
            })
        })
        .map_err(|(reason, help)| {
            let mut problems = Problems::default();
            problems
                .file_error("unreadable", format!("cannot read the {what} {}: {reason}", path.display()))
                .help(help);
            problems.finish(path, "")
        })
}

/// A path as written, from the folder of the file that it was written in.
fn resolve(file: &Path, written: &str) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(written)
}
