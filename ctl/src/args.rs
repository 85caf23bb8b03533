//! The command line.

use crate::commands::{
    adopt, check, completions, cycle, explain, journal, logs, man, pause, reload, report, reset, restart,
    resume, sleep, start, status, stop, switch, top, wake,
};
use clap::{Parser, Subcommand};
use hotbunk_api::error::ExitCode;
use std::path::PathBuf;

/// Operate Hotbunk's agent: which engine is awake, test cycles, reports
#[derive(Debug, Parser)]
#[command(name = "ctl", version, after_help = exit_codes(), subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// The agent's control socket [default: control.sock in $RUNTIME_DIRECTORY, for root /run/hotbunk, else
    /// $XDG_RUNTIME_DIR/hotbunk; without an agent there /run/hotbunk]
    #[arg(
        long,
        global = true,
        display_order = 900,
        env = "HOTBUNK_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    pub(crate) socket: Option<PathBuf>,

    /// Write JSON to stdout
    #[arg(long, global = true, display_order = 901)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show devices, engines and what is going on
    Status(status::Args),
    /// Watch the gateway: who runs, who waits, whose turn is next
    Top(top::Args),
    /// Make an engine the one that is awake
    Switch(switch::Args),
    /// Show what a switch would do, the alternatives, and what would make it faster
    Explain(explain::Args),
    /// Put an engine to sleep
    Sleep(sleep::Args),
    /// Wake an engine beside what is awake
    Wake(wake::Args),
    /// Start a stopped engine
    Start(start::Args),
    /// Stop an engine and its whole process tree
    Stop(stop::Args),
    /// Stop and start an engine
    Restart(restart::Args),
    /// Take over a server that somebody else has started, as it runs
    Adopt(adopt::Args),
    /// Let a failed engine start again
    Reset(reset::Args),
    /// Put every engine out of the way for maintenance
    Pause(pause::Args),
    /// End maintenance: what served before serves again
    Resume(resume::Args),
    /// Apply the configuration file as it is now, without touching what is unchanged
    Reload(reload::Args),
    /// Run test cycles
    Cycle(cycle::Args),
    /// Show the switch report of a cycle run
    Report(report::Args),
    /// Show the journal: every transition, phase and probe
    Journal(journal::Args),
    /// Show an engine's log
    Logs(logs::Args),
    /// Look for what is wrong with the node
    Doctor,
    /// Check a configuration file without applying it
    Check(check::Args),
    /// Write a shell's completion script to stdout
    Completions(completions::Args),
    /// Write manual pages
    Man(man::Args),
}

fn exit_codes() -> String {
    let mut text = "Exit codes:\n".to_owned();
    for (code, meaning) in ExitCode::MEANINGS {
        text.push_str(&format!("  {:>3}  {meaning}\n", code.number()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
