//! `ctl completions`: a shell's completion script.

use crate::args::Cli;
use crate::context::Context;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ctl", &mut script);
    context.out.bytes(&script)
}
