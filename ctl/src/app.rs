//! From the command line to the exit code.

use crate::args::{Cli, Command};
use crate::commands;
use crate::context::Context;
use crate::failure::Failure;
use clap::Parser;
use hotbunk_api::error::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Does what was asked for.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are data, and no error; a closed pipe is nobody's fault.
            drop(e.print());
            return if e.use_stderr() { ExitCode::Usage } else { ExitCode::Ok };
        }
    };
    let json = cli.json;
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => match runtime.block_on(interruptible(cli)) {
            Ok(()) => ExitCode::Ok,
            Err(failure) => failure.report(json),
        },
        Err(e) => Failure::new(ExitCode::Failed, "internal", format!("cannot start: {e}")).report(json),
    }
}

/// Ctrl-C drops whatever is being waited for. What the agent has accepted goes on, and is named.
async fn interruptible(cli: Cli) -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|e| Failure::new(ExitCode::Failed, "internal", format!("cannot listen for Ctrl-C: {e}")))?;
    let context = Context::new(&cli)?;
    tokio::select! {
        result = dispatch(&context, cli.command) => match result {
            Err(failure) => Err(failure.with_suggestions(&context).await),
            Ok(()) => Ok(()),
        },
        _ = interrupt.recv() => Err(Failure::interrupted(context.awaited())),
    }
}

async fn dispatch(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Status(args) => commands::status::run(context, args).await,
        Command::Top(args) => commands::top::run(context, args).await,
        Command::Switch(args) => commands::switch::run(context, args).await,
        Command::Explain(args) => commands::explain::run(context, args).await,
        Command::Sleep(args) => commands::sleep::run(context, args).await,
        Command::Wake(args) => commands::wake::run(context, args).await,
        Command::Start(args) => commands::start::run(context, args).await,
        Command::Stop(args) => commands::stop::run(context, args).await,
        Command::Restart(args) => commands::restart::run(context, args).await,
        Command::Adopt(args) => commands::adopt::run(context, args).await,
        Command::Reset(args) => commands::reset::run(context, args).await,
        Command::Pause(args) => commands::pause::run(context, args).await,
        Command::Resume(args) => commands::resume::run(context, args).await,
        Command::Cycle(args) => commands::cycle::run(context, args).await,
        Command::Reload(args) => commands::reload::run(context, args).await,
        Command::Report(args) => commands::report::run(context, args).await,
        Command::Journal(args) => commands::journal::run(context, args).await,
        Command::Logs(args) => commands::logs::run(context, args).await,
        Command::Doctor => commands::doctor::run(context).await,
        Command::Check(args) => commands::check::run(context, args).await,
        Command::Completions(args) => commands::completions::run(context, &args),
        Command::Man(args) => commands::man::run(context, &args),
    }
}
