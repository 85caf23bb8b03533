//! `ctl pause`: maintenance; every engine out of the way, and none woken by requests until `ctl resume`.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Draining, Operating, operate};
use crate::words;
use hotbunk_api::operation::{OperationRequest, PauseRequest};
use hotbunk_api::words::Tier;

/// Arguments of `pause`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the engines' state is left, at least [default: each engine's quickest tier that gives its memory back]
    #[arg(long, value_parser = words::leave())]
    tier: Option<Tier>,
    #[command(flatten)]
    draining: Draining,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Draining { drain, deadline } = args.draining;
    let request = PauseRequest { tier: args.tier, drain, deadline_s: deadline };
    operate(context, OperationRequest::Pause(request), args.operating).await
}
