//! `ctl switch`: makes an engine the one that is awake.

use super::explain;
use crate::context::Context;
use crate::failure::Failure;
use crate::operate::{Draining, Operating, operate};
use crate::words;
use hotbunk_api::explain::ExplainRequest;
use hotbunk_api::operation::{OperationRequest, SwitchRequest};
use hotbunk_api::words::{Strategy, Tier};

/// Arguments of `switch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    /// Plan by name [default: from the configuration]
    #[arg(long, value_parser = words::strategy())]
    strategy: Option<Strategy>,
    /// Tier that the outgoing engine is left in [default: by strategy]
    #[arg(long, value_name = "TIER", value_parser = words::leave())]
    leave: Option<Tier>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    draining: Draining,
    #[command(flatten)]
    operating: Operating,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { engine, strategy, leave, dry_run, draining: Draining { drain, deadline }, operating } = args;
    if dry_run {
        return explain::show(context, ExplainRequest { engine, strategy, leave, drain }).await;
    }
    let request = SwitchRequest { engine, strategy, leave, drain, deadline_s: deadline };
    operate(context, OperationRequest::Switch(request), operating).await
}
