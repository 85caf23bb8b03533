//! Operations and their plans.

use super::{id_or_new, unless_stopped, wait_time};
use crate::control::backend::Backend;
use crate::control::extract::{Answer, Ask, Body, Failure, Name};
use crate::control::ids::conflict;
use crate::control::peer::Peer;
use crate::control::router::Ctx;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use hotbunk_api::error::ErrorCode;
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::operation::{Operation, OperationList, Submit, WaitQuery};

pub(in crate::control) async fn list<B: Backend>(State(shared): Ctx<B>) -> Answer<OperationList> {
    Ok(Json(OperationList { operations: shared.backend.operations().await? }))
}

pub(in crate::control) async fn submit<B: Backend>(
    State(shared): Ctx<B>,
    Extension(peer): Extension<Peer>,
    Body(Submit { id, request }): Body<Submit>,
) -> Result<(StatusCode, Json<Operation>), Failure> {
    request.check()?;
    let chosen = id.is_some();
    let id = id_or_new(id)?;
    // Spawned, so that a client that hangs up cannot leave an accepted operation without a record of its id.
    let task = tokio::spawn(async move {
        let _turn = shared.operations.turn.lock().await;
        if let Some(resource) = shared.operations.before(&id, &request)? {
            return Ok((StatusCode::OK, Json(shared.backend.operation(&resource).await?)));
        }
        if chosen {
            match shared.backend.operation(&id).await {
                Ok(known) if known.request.as_ref() == Some(&request) => {
                    return Ok((StatusCode::OK, Json(known)));
                }
                Ok(known) => return Err(Failure(conflict(&id, &known.id))),
                Err(e) if e.code == ErrorCode::UnknownOperation => {}
                Err(e) => return Err(Failure(e)),
            }
        }
        let operation = shared.backend.submit(id.clone(), request.clone(), peer).await?;
        let fresh = operation.id == id && !operation.state.is_over();
        shared.operations.record(id, request, operation.id.clone());
        Ok((if fresh { StatusCode::ACCEPTED } else { StatusCode::OK }, Json(operation)))
    });
    super::joined(task).await?
}

pub(in crate::control) async fn show<B: Backend>(
    State(shared): Ctx<B>,
    Name(id): Name,
    Ask(query): Ask<WaitQuery>,
) -> Answer<Operation> {
    let id = shared.operations.resolve(&id);
    let backend = &shared.backend;
    Ok(Json(match wait_time(query)? {
        Some(at_most) => unless_stopped(&shared, backend.wait(&id, at_most), backend.operation(&id)).await?,
        None => backend.operation(&id).await?,
    }))
}

pub(in crate::control) async fn cancel<B: Backend>(
    State(shared): Ctx<B>,
    Extension(peer): Extension<Peer>,
    Name(id): Name,
) -> Answer<Operation> {
    Ok(Json(shared.backend.cancel(&shared.operations.resolve(&id), peer).await?))
}

pub(in crate::control) async fn explain<B: Backend>(
    State(shared): Ctx<B>,
    Body(request): Body<ExplainRequest>,
) -> Answer<Explanation> {
    Ok(Json(shared.backend.explain(request).await?))
}
