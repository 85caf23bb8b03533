//! `ctl sleep`: puts an engine to sleep.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Draining, Operating, operate};
use crate::words;
use hotbunk_api::operation::{OperationRequest, SleepRequest};
use hotbunk_api::words::Tier;

/// Arguments of `sleep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    /// Where its state is left [default: from the configuration]
    #[arg(long, value_parser = words::sleep_tier())]
    tier: Option<Tier>,
    #[command(flatten)]
    draining: Draining,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Draining { drain, deadline } = args.draining;
    let request = SleepRequest { engine: args.engine, tier: args.tier, drain, deadline_s: deadline };
    operate(context, OperationRequest::Sleep(request), args.operating).await
}
