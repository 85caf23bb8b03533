//! `ctl wake`: wakes an engine beside what is awake; the agent refuses where it does not fit.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Operating, operate};
use hotbunk_api::operation::{EngineRequest, OperationRequest};

/// Arguments of `wake`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let request = OperationRequest::Wake(EngineRequest { engine: args.engine });
    operate(context, request, args.operating).await
}
