//! `ctl adopt`: takes over a server that somebody else has started.

use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Operating, operate};
use hotbunk_api::operation::{EngineRequest, OperationRequest};

/// Arguments of `adopt`.
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Take over a server that somebody else has started, as it runs: the process that listens on the \
    engine's port and serves its model. It is neither restarted nor put to sleep, and its clients notice nothing. From then \
    on it is an engine like any other; once it is stopped, it comes back with the configured command. What cannot be taken \
    over is left as it is, with the reason (exit code 5)."
)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let request = OperationRequest::Adopt(EngineRequest { engine: args.engine });
    operate(context, request, args.operating).await
}
