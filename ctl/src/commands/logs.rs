//! `ctl logs`: an engine's own log.

use crate::context::Context;
use crate::failure::Failure;
use futures_util::StreamExt;
use hotbunk_api::logs::LogsQuery;
use std::pin::pin;

/// Arguments of `logs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    /// Show the last N lines, at most 10000
    #[arg(long, short = 'n', value_name = "N", default_value_t = LogsQuery::DEFAULT_LINES)]
    lines: u32,
    /// Go on with each new line, until interrupted
    #[arg(long, short)]
    follow: bool,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    let query = LogsQuery { lines: Some(args.lines) };
    let unknown = |e| Failure::from(e).asked_for(&args.engine);
    if !args.follow {
        let tail = client.logs(&args.engine, query).await.map_err(unknown)?;
        if context.json {
            return context.out.json(&tail);
        }
        return tail.lines.iter().try_for_each(|line| context.out.line(&line.text));
    }
    let mut lines = pin!(client.follow_logs(&args.engine, query).await.map_err(unknown)?);
    while !context.out.is_closed()
        && let Some(line) = lines.next().await
    {
        let line = line?;
        if context.json {
            context.out.json_line(&line)?;
        } else {
            context.out.line(&line.text)?;
        }
    }
    Ok(())
}
