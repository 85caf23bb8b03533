//! `hotbunk-agent check FILE`: everything that is wrong with a configuration, without touching anything.

use super::{out, say};
use crate::config::{self, DEFAULT_CONFIG, Diagnostics, Facts};
use clap::Args;
use hotbunk_api::error::ExitCode as Code;
use hotbunk_core::capability::Version;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Configuration file.
    #[arg(default_value = DEFAULT_CONFIG)]
    file: PathBuf,
    /// Judge options by this vLLM release, such as 0.31; without it, by all releases.
    #[arg(long, value_name = "X.Y", value_parser = release)]
    vllm: Option<Version>,
    /// Problems as JSON on stdout.
    #[arg(long)]
    json: bool,
}

fn release(text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| format!("`{text}` is no vLLM release; write for example 0.31"))
}

pub(super) fn main(args: &CheckArgs) -> ExitCode {
    let (code, problems) =
        match config::load(&args.file, &Facts { vllm: args.vllm, ..Facts::of_this_machine() }) {
            Ok((_, warnings)) => (Code::Ok, warnings),
            Err(problems) => (Code::BadFile, problems),
        };
    if args.json {
        let json = serde_json::to_string_pretty(problems.problems()).unwrap_or_default();
        out(&format!("{json}\n"));
    } else {
        show(&problems);
        let verdict = if code == Code::Ok { "is in order" } else { "has errors" };
        say(&format!("{} {verdict}", args.file.display()));
    }
    code.into()
}

/// Problems to stderr, as rustc shows them.
pub(super) fn show(problems: &Diagnostics) {
    if !problems.is_empty() {
        say(problems.render(std::io::stderr().is_terminal()).trim_end());
    }
}
