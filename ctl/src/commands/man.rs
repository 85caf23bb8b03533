//! `ctl man`: manual pages.

use crate::args::Cli;
use crate::context::Context;
use crate::failure::Failure;
use clap::CommandFactory;
use hotbunk_api::error::ExitCode;
use std::io;
use std::path::PathBuf;

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write a page for each subcommand into this folder, instead of the main page to stdout
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<(), Failure> {
    let failed =
        |e: io::Error| Failure::new(ExitCode::Failed, "output", format!("cannot write manual pages: {e}"));
    match &args.dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(failed)?;
            context.out.bytes(&page)
        }
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), folder).map_err(failed)
        }
    }
}
