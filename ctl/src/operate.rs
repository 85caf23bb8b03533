//! Asking for an operation, waiting for it, saying how it ended: what `switch`, `sleep`, `wake`, … share.

use crate::context::{AwaitedKind, Context};
use crate::failure::Failure;
use crate::human;
use crate::output::note;
use crate::progress::Progress;
use crate::words;
use clap::Args;
use futures_util::StreamExt;
use hotbunk_api::client::Client;
use hotbunk_api::cycle::CycleRun;
use hotbunk_api::event::Event;
use hotbunk_api::operation::{Operation, OperationRequest, Submit};
use hotbunk_api::words::{Drain, OperationKind, State};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// Flags of every operation.
#[derive(Debug, Args)]
pub(crate) struct Operating {
    /// Name the operation; the same id again is the same operation
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Write the operation's id and do not wait for its end
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// Flags of operations that end an engine's service.
#[derive(Debug, Args)]
pub(crate) struct Draining {
    /// What happens to running requests: wait for them, freeze them until the engine wakes, or abort them
    #[arg(long, value_parser = words::drain())]
    pub(crate) drain: Option<Drain>,
    /// How long to wait for running requests; then the operation is given up
    #[arg(long, value_name = "DURATION", value_parser = words::duration)]
    pub(crate) deadline: Option<f64>,
}

/// How long one long poll waits. The agent's events make progress visible in between.
const POLL: Duration = Duration::from_secs(30);

/// Asks for an operation and, unless told otherwise, waits for its end.
pub(crate) async fn operate(
    context: &Context,
    request: OperationRequest,
    operating: Operating,
) -> Result<(), Failure> {
    let client = context.client()?;
    let id = operating.id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let engine = request.engine().to_owned();
    // An interruption from here on leaves something behind: the request is on its way.
    context.ask_for(AwaitedKind::Operation, &id);
    let submitted = client.submit(&Submit { id: Some(id.clone()), request }).await;
    let mut operation = submitted.map_err(|e| Failure::from(e).asked_for(&engine).while_asking(&id))?;
    context.wait_for(AwaitedKind::Operation, &operation.id);
    if operation.id != id {
        note(format!("joined operation {}, which does this already", operation.id));
    }
    if operating.no_wait {
        return if context.json { context.out.json(&operation) } else { context.out.line(&operation.id) };
    }
    if !operation.state.is_over() {
        let progress = Progress::new(&operation.id);
        progress.operation(&operation);
        let end = async {
            loop {
                let now = client.wait_operation(&operation.id, POLL).await?;
                if now.state.is_over() {
                    return Ok(now);
                }
                progress.operation(&now);
            }
        };
        let what = format!("operation {}", operation.id);
        let ended = followed(client, end, |event| progress.event(event)).await;
        operation = ended.map_err(|e: Failure| e.while_waiting(&what))?;
    }
    context.waited();
    finish(context, &operation)
}

/// Says how an operation has ended.
fn finish(context: &Context, operation: &Operation) -> Result<(), Failure> {
    if context.json {
        context.out.json(operation)?;
    }
    let what = match operation.kind {
        OperationKind::Switch => format!("switch to {}", operation.engine),
        kind @ (OperationKind::Pause | OperationKind::Resume) => format!("{kind} of the node"),
        kind => format!("{kind} of {}", operation.engine),
    };
    match operation.state {
        State::Succeeded if context.json => Ok(()),
        State::Succeeded => context.out.line(outcome(operation)),
        State::Cancelled => {
            let what = format!("the {what} was cancelled");
            Err(Failure::of_resource(&what, operation.error.as_ref(), operation.note.as_deref()))
        }
        State::Queued | State::Running | State::Failed => {
            let what = format!("the {what} failed");
            Err(Failure::of_resource(&what, operation.error.as_ref(), operation.note.as_deref()))
        }
    }
}

/// How an operation ended well, a sentence.
fn outcome(operation: &Operation) -> String {
    let of_node = matches!(operation.kind, OperationKind::Pause | OperationKind::Resume);
    let engine = if of_node { "the node" } else { &operation.engine };
    if let Some(note) = &operation.note {
        return format!("{engine}: {note}");
    }
    let leave = operation.plan.as_ref().and_then(|p| p.leave);
    let done = match operation.kind {
        OperationKind::Switch | OperationKind::Wake => format!("{engine} is awake"),
        OperationKind::Sleep => leave
            .map_or_else(|| format!("{engine} sleeps"), |tier| format!("{engine} is {}", human::tier(tier))),
        OperationKind::Start => format!("{engine} has started"),
        OperationKind::Restart => format!("{engine} has restarted"),
        OperationKind::Stop => format!("{engine} is stopped"),
        OperationKind::Reset => format!("{engine} may start again"),
        OperationKind::Repair => format!("{engine} is repaired"),
        OperationKind::Pause => format!("{engine} is paused"),
        OperationKind::Resume => format!("{engine} serves again"),
        OperationKind::Adopt => format!("{engine} is taken over"),
    };
    let mut parts = vec![done];
    if let Some(s) = operation.first_token_s {
        parts.push(format!("first token after {}", human::seconds(s)));
    }
    if let (OperationKind::Switch, Some(from), Some(tier)) = (operation.kind, &operation.from, leave) {
        parts.push(format!("{from} is {}", human::tier(tier)));
    }
    if operation.kind != OperationKind::Reset {
        parts.push(format!("done after {}", human::seconds(operation.elapsed_s)));
    }
    parts.join(", ")
}

/// Waits for a run's end.
pub(crate) async fn await_run(context: &Context, run: CycleRun) -> Result<CycleRun, Failure> {
    if run.state.is_over() {
        return Ok(run);
    }
    let client = context.client()?;
    context.wait_for(AwaitedKind::Run, &run.id);
    let progress = Progress::new(&run.id);
    progress.run(&run);
    let end = async {
        loop {
            let now = client.wait_cycle(&run.id, POLL).await?;
            if now.state.is_over() {
                return Ok(now);
            }
            progress.run(&now);
        }
    };
    let ended = followed(client, end, |event| progress.event(event)).await;
    context.waited();
    ended.map_err(|e: Failure| e.while_waiting(&format!("cycle run {}", run.id)))
}

/// Waits for `end` and meanwhile hands events on. Events only show progress: when their stream breaks, the waiting
/// goes on without.
async fn followed<T>(
    client: &Client,
    end: impl Future<Output = Result<T, Failure>>,
    on_event: impl Fn(&Event),
) -> Result<T, Failure> {
    let follow = async {
        if let Ok(events) = client.events(None).await {
            let mut events = pin!(events);
            while let Some(Ok(event)) = events.next().await {
                on_event(&event);
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = end => ended,
        () = follow => std::future::pending().await,
    }
}
