//! The command line: one file a subcommand.
//!
//! Data goes to stdout, everything else to stderr. Exit codes are those of [`hotbunk_api::error::ExitCode`].

mod check;
pub(crate) mod run;
mod syslog;
mod terminal;

use crate::demo::{self, DemoArgs};
use clap::{CommandFactory, Parser, Subcommand};
use hotbunk_api::error::ExitCode as Code;
pub(crate) use run::filter_log;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
pub use terminal::{out, say};

/// Lets several vLLM servers share one GPU: supervises them, switches between them, measures every phase.
#[derive(Debug, Parser)]
#[command(name = "hotbunk-agent", version, about, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 7 a file has errors, 130 interrupted.\n\
                     Operate a running agent with `ctl`.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent.
    Run(run::RunArgs),
    /// Two simulated engines on a simulated L20: no GPU and no vLLM needed.
    Demo(DemoArgs),
    /// Check a configuration file and say everything that is wrong with it.
    Check(check::CheckArgs),
    /// A simulated vLLM server, as strict as the real one.
    SimEngine(Box<hotbunk_sim::SimArgs>),
    /// The process between the agent and an engine (the agent starts it).
    #[command(hide = true)]
    Shim {
        /// What to run, as JSON.
        #[arg(long)]
        spec: PathBuf,
    },
    /// The process between the agent and its successor (the agent starts it).
    #[command(hide = true, name = crate::orphan::SUBCOMMAND)]
    Beget {
        /// What to start.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<OsString>,
    },
    /// Write shell completions to stdout.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual page to stdout.
    Man,
}

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let _ = crate::clock::began();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; clap prints them to stdout.
            drop(error.print());
            return if error.use_stderr() { Code::Usage.into() } else { Code::Ok.into() };
        }
    };
    match cli.command {
        Command::Run(args) => run::main(args),
        Command::Demo(args) => demo::main(args),
        Command::Check(args) => check::main(&args),
        Command::SimEngine(args) => hotbunk_sim::run(*args),
        Command::Shim { spec } => crate::process::run_shim(&spec),
        Command::Beget { words } => crate::orphan::beget(&words),
        Command::Completions { shell } => {
            let mut command = Cli::command();
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "hotbunk-agent", &mut text);
            out(&String::from_utf8_lossy(&text));
            Code::Ok.into()
        }
        Command::Man => {
            let mut text = Vec::new();
            match clap_mangen::Man::new(Cli::command())
                .render(&mut text)
                .and_then(|()| std::io::stdout().write_all(&text))
            {
                Ok(()) => Code::Ok.into(),
                Err(_) => Code::Failed.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
