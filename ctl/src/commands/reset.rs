//! `ctl reset`: lets an engine that has failed too often start again.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Operating, operate};
use hotbunk_api::operation::{EngineRequest, OperationRequest};

/// Arguments of `reset`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let request = OperationRequest::Reset(EngineRequest { engine: args.engine });
    operate(context, request, args.operating).await
}
