//! `ctl restart`: stops and starts an engine.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Draining, Operating, operate};
use hotbunk_api::operation::{OperationRequest, StopRequest};

/// Arguments of `restart`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    #[command(flatten)]
    draining: Draining,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Draining { drain, deadline } = args.draining;
    let request = OperationRequest::Restart(StopRequest { engine: args.engine, drain, deadline_s: deadline });
    operate(context, request, args.operating).await
}
