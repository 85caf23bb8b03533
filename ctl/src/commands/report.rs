//! `ctl report`: the switch report of a cycle run, from the journal.

use crate::context::Context;
use crate::failure::Failure;
use clap::ValueEnum;

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The run's id; without it the newest run that has ended
    #[arg(default_value = "latest")]
    run: String,
    /// How to write it [default: table, with --json json]
    #[arg(long)]
    format: Option<Format>,
}

/// How to write a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    // As `switch-report.json` holds it.
    Json,
    // For people.
    Table,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    match args.format.unwrap_or(if context.json { Format::Json } else { Format::Table }) {
        Format::Json => context.out.json(&client.report(&args.run).await?),
        Format::Table => context.out.bytes(client.report_table(&args.run).await?.as_bytes()),
    }
}
