//! `ctl resume`: the end of maintenance; what served before serves again.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Operating, operate};
use hotbunk_api::operation::{OperationRequest, ResumeRequest};

/// Arguments of `resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    operate(context, OperationRequest::Resume(ResumeRequest {}), args.operating).await
}
