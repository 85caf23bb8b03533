//! `ctl reload`: applies the configuration file as it is now.
//!
//! The agent reads, checks and applies it, all of it or nothing. What has to be restarted for it waits for its idle moment;
//! with `--now` it is restarted here, one engine after the other, by the same operations as `ctl restart` and `ctl stop`.

use crate::context::Context;
use crate::failure::Failure;
use crate::human;
use crate::operate::{Draining, Operating, operate};
use crate::output::note;
use hotbunk_api::error::ExitCode;
use hotbunk_api::operation::{Operation, OperationRequest, StopRequest};
use hotbunk_api::reload::{
    EngineChange, EngineReload, ReloadOutcome, ReloadReport, ReloadRequest, SettingChange,
};
use hotbunk_api::status::Settings;
use hotbunk_api::words::OperationKind;
use std::time::Duration;

/// How long one long poll waits.
const POLL: Duration = Duration::from_secs(30);

/// Arguments of `reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Restart changed engines and stop removed ones at once, one after the other, not at their next idle moment
    #[arg(long, conflicts_with = "dry_run")]
    now: bool,
    /// Only say what would happen
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    draining: Draining,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let request = ReloadRequest { dry_run: args.dry_run };
    let report = context.client()?.reload(&request).await?;
    if context.json {
        context.out.json(&report)?;
    } else {
        context.out.line(render(&report, args.now))?;
    }
    if !report.outcome.is_ok() {
        return Err(refused(&report));
    }
    if args.now { at_once(context, &report, &args.draining).await } else { Ok(()) }
}

/// Exit code 7 for a file with errors, as `check` has it; 5 for what a running agent refuses.
fn refused(report: &ReloadReport) -> Failure {
    let errors = report.check.diagnostics.iter().filter(|d| d.error).count();
    let failure = match report.outcome {
        ReloadOutcome::Invalid => {
            let message =
                format!("{} has {errors} error(s); the agent goes on with what it had", report.path);
            Failure::new(ExitCode::BadFile, "config_invalid", message)
        }
        _ => {
            let message = "the file changes what a running agent cannot change; nothing was applied";
            Failure::new(ExitCode::Refused, "needs_restart", message).help(
                "`systemctl restart hotbunk-agent` applies all of it; with `on_stop = \"leave\"` in [node], or after \
                 SIGUSR1, engines go on meanwhile",
            )
        }
    };
    failure.already_told()
}

/// The operations that bring changed engines up with their new settings. All are tried; the first failure counts.
async fn at_once(context: &Context, report: &ReloadReport, draining: &Draining) -> Result<(), Failure> {
    let mut first = None;
    for changed in &report.engines {
        let stop = StopRequest {
            engine: changed.engine.clone(),
            drain: draining.drain,
            deadline_s: draining.deadline,
        };
        let request = match changed.change {
            EngineChange::Restart if is_done(context, &changed.engine).await? => {
                context.out.line(format!("{} runs with its new settings already", changed.engine))?;
                continue;
            }
            EngineChange::Restart => OperationRequest::Restart(stop),
            EngineChange::Removed => OperationRequest::Stop(stop),
            EngineChange::Unchanged | EngineChange::Settings | EngineChange::Added => continue,
        };
        if let Err(failure) = operate(context, request, Operating { id: None, no_wait: false }).await {
            // One that nobody used may have been stopped by itself already.
            if changed.change == EngineChange::Removed && failure.exit_code() == ExitCode::Unknown {
                context.out.line(format!("{} is stopped", changed.engine))?;
                continue;
            }
            note(format!(
                "{}: {}; it is tried again at its next idle moment",
                changed.engine,
                failure.message()
            ));
            first = first.or(Some(failure));
        }
    }
    first.map_or(Ok(()), Err)
}

/// Whether an engine has been restarted by itself meanwhile: its idle moment may have come. A restart under way is waited
/// for, so that it is not followed by another.
async fn is_done(context: &Context, engine: &str) -> Result<bool, Failure> {
    let client = context.client()?;
    loop {
        let status = client.status().await?;
        let waits = status.engines.iter().any(|e| e.name == engine && e.settings == Settings::PendingRestart);
        let restarts = |o: &Operation| o.kind == OperationKind::Restart && o.engine == engine;
        match status.operation.filter(restarts) {
            Some(operation) if waits => drop(client.wait_operation(&operation.id, POLL).await?),
            _ => return Ok(!waits),
        }
    }
}

/// The report for people.
fn render(report: &ReloadReport, now: bool) -> String {
    let mut parts: Vec<String> = Vec::new();
    if !report.check.rendered.is_empty() {
        parts.push(report.check.rendered.trim_end().to_owned());
    }
    match report.outcome {
        ReloadOutcome::Invalid => return parts.join("\n"),
        ReloadOutcome::NeedsRestart => {
            parts.push("these settings need a new agent:".to_owned());
            parts.extend(report.needs_restart.iter().map(setting_line));
            return parts.join("\n");
        }
        ReloadOutcome::Unchanged => parts.push(format!("{}: nothing has changed", report.path)),
        ReloadOutcome::Applied if report.dry_run => parts.push(format!("{} would be applied", report.path)),
        ReloadOutcome::Applied => parts.push(format!("{} is applied", report.path)),
    }
    let changed = report.engines.iter().filter(|e| e.change != EngineChange::Unchanged);
    let rows: Vec<Vec<String>> = changed.map(|engine| engine_row(engine, report.dry_run, now)).collect();
    if !rows.is_empty() {
        parts.push(human::table(&["ENGINE", "CHANGE", "KEYS"], &[], rows));
    }
    let same = report.engines.iter().filter(|e| e.change == EngineChange::Unchanged);
    let same: Vec<&str> = same.map(|e| e.engine.as_str()).collect();
    if !same.is_empty() && report.outcome == ReloadOutcome::Applied {
        parts.push(format!("unchanged: {}", same.join(", ")));
    }
    if !report.settings.is_empty() {
        parts.push("settings of the node:".to_owned());
        parts.extend(report.settings.iter().map(setting_line));
    }
    parts.join("\n")
}

fn engine_row(engine: &EngineReload, dry_run: bool, now: bool) -> Vec<String> {
    let change = match engine.change {
        EngineChange::Unchanged => "unchanged",
        EngineChange::Settings => "new settings, without a restart",
        EngineChange::Restart if now => "restart",
        EngineChange::Restart => "restart at its next idle moment",
        EngineChange::Added if dry_run => "added",
        EngineChange::Added => "added, starts",
        EngineChange::Removed if now => "removed, stop",
        EngineChange::Removed => "removed, stops at its next idle moment",
    };
    vec![engine.engine.clone(), change.to_owned(), engine.keys.join(", ")]
}

fn setting_line(setting: &SettingChange) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not there".to_owned());
    if setting.from == setting.to {
        return format!("  {}: changed", setting.key);
    }
    format!("  {}: {} → {}", setting.key, value(&setting.from), value(&setting.to))
}
