//! `ctl check`: a configuration's text, judged by the running agent.
//!
//! The rules are the agent's, so they are asked for over the API; where none is up, `hotbunk-agent check` knows them.

use crate::context::Context;
use crate::failure::Failure;
use hotbunk_api::check::CheckRequest;
use hotbunk_api::client::Error;
use hotbunk_api::error::ExitCode;
use std::path::PathBuf;

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    config: PathBuf,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let path = args.config.display().to_string();
    let text = std::fs::read_to_string(&args.config).map_err(|e| {
        Failure::new(ExitCode::BadFile, "unreadable_file", format!("{path} cannot be read: {e}"))
    })?;
    let checked = context.client()?.check(&CheckRequest { path: path.clone(), text }).await;
    let report = checked.map_err(|e| {
        let unreachable = matches!(e, Error::Unreachable { .. });
        let failure = Failure::from(e);
        if unreachable {
            failure.help(format!("`hotbunk-agent check {path}` needs no running agent"))
        } else {
            failure
        }
    })?;
    if context.json {
        context.out.json(&report)?;
    } else if !report.rendered.is_empty() {
        context.out.line(report.rendered.trim_end())?;
    }
    if report.ok {
        return if context.json {
            Ok(())
        } else {
            context.out.line(format!("{path}: an agent would start with it"))
        };
    }
    let errors = report.diagnostics.iter().filter(|d| d.error).count();
    Err(Failure::new(ExitCode::BadFile, "config_invalid", format!("{path} has {errors} error(s)"))
        .already_told())
}
