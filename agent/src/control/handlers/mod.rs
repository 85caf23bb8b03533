//! Handlers, one file a family.

pub(super) mod cycles;
pub(super) mod node;
pub(super) mod operations;
pub(super) mod records;

use super::router::Shared;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::operation::{MAX_WAIT_S, WaitQuery};
use std::future::Future;
use std::time::Duration;

/// How long a query wants to wait, within bounds; `None` where it does not.
fn wait_time(query: WaitQuery) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = query.wait_s else { return Ok(None) };
    let bounded = if seconds.is_nan() { -1.0 } else { seconds.min(MAX_WAIT_S) };
    Duration::try_from_secs_f64(bounded).map(Some).map_err(|_| {
        ApiError::new(ErrorCode::BadRequest, format!("`wait_s` is {seconds}, but must be 0 or more seconds"))
    })
}

/// Waits for `wait`, but no longer than the server runs; then `now` is the answer.
async fn unless_stopped<B, T>(
    shared: &Shared<B>,
    wait: impl Future<Output = T>,
    now: impl Future<Output = T>,
) -> T {
    tokio::select! {
        answer = wait => answer,
        () = shared.stopped() => now.await,
    }
}

/// The client's id, checked, or a new one.
fn id_or_new(id: Option<String>) -> Result<String, ApiError> {
    match id {
        Some(id) => hotbunk_api::operation::check_id(&id).map(|()| id),
        None => Ok(uuid::Uuid::now_v7().to_string()),
    }
}

/// The result of a spawned task; one that panicked is a fault of the agent, and answered as such.
async fn joined<T>(task: tokio::task::JoinHandle<T>) -> Result<T, ApiError> {
    task.await.map_err(|e| {
        tracing::error!(error = %e, "control API: a handler failed");
        ApiError::new(ErrorCode::Internal, "the agent failed while it handled the request; its log says why")
    })
}
