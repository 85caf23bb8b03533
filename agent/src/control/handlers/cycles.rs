//! Cycle runs and their reports.

use super::{id_or_new, joined, unless_stopped, wait_time};
use crate::control::backend::Backend;
use crate::control::extract::{Answer, Ask, Body, Failure, Name};
use crate::control::ids::conflict;
use crate::control::peer::Peer;
use crate::control::router::{Ctx, Shared};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource, RunCycle};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::operation::WaitQuery;

/// Names the newest run.
const LATEST: &str = "latest";

pub(in crate::control) async fn list<B: Backend>(State(shared): Ctx<B>) -> Answer<CycleList> {
    Ok(Json(shared.backend.cycles().await?))
}

pub(in crate::control) async fn run<B: Backend>(
    State(shared): Ctx<B>,
    Extension(peer): Extension<Peer>,
    Body(RunCycle { id, plan }): Body<RunCycle>,
) -> Result<(StatusCode, Json<CycleRun>), Failure> {
    let chosen = id.is_some();
    let id = id_or_new(id)?;
    if id == LATEST {
        let message = "`latest` names the newest run and cannot be the id of one";
        return Err(ApiError::new(ErrorCode::BadRequest, message).into());
    }
    let task = tokio::spawn(async move {
        let _turn = shared.cycles.turn.lock().await;
        if let Some(resource) = shared.cycles.before(&id, &plan)? {
            return Ok((StatusCode::OK, Json(shared.backend.cycle(&resource).await?)));
        }
        if chosen {
            match shared.backend.cycle(&id).await {
                // From before the agent's restart: only a plan's name can still be compared.
                Ok(known) if matches!(&plan, PlanSource::Named { name } if *name == known.plan) => {
                    return Ok((StatusCode::OK, Json(known)));
                }
                Ok(known) => return Err(Failure(conflict(&id, &known.id))),
                Err(e) if e.code == ErrorCode::UnknownRun => {}
                Err(e) => return Err(Failure(e)),
            }
        }
        let run = shared.backend.run_cycle(id.clone(), plan.clone(), peer).await?;
        shared.cycles.record(id, plan, run.id.clone());
        Ok((StatusCode::ACCEPTED, Json(run)))
    });
    joined(task).await?
}

pub(in crate::control) async fn show<B: Backend>(
    State(shared): Ctx<B>,
    Name(id): Name,
    Ask(query): Ask<WaitQuery>,
) -> Answer<CycleRun> {
    let id = resolve(&shared, id, false).await?;
    let backend = &shared.backend;
    Ok(Json(match wait_time(query)? {
        Some(at_most) => {
            unless_stopped(&shared, backend.wait_cycle(&id, at_most), backend.cycle(&id)).await?
        }
        None => backend.cycle(&id).await?,
    }))
}

pub(in crate::control) async fn cancel<B: Backend>(
    State(shared): Ctx<B>,
    Extension(peer): Extension<Peer>,
    Name(id): Name,
) -> Answer<CycleRun> {
    let id = resolve(&shared, id, false).await?;
    Ok(Json(shared.backend.cancel_cycle(&id, peer).await?))
}

pub(in crate::control) async fn report<B: Backend>(
    State(shared): Ctx<B>,
    Name(run): Name,
) -> Answer<serde_json::Value> {
    let run = resolve(&shared, run, true).await?;
    Ok(Json(shared.backend.report(&run).await?))
}

pub(in crate::control) async fn report_table<B: Backend>(
    State(shared): Ctx<B>,
    Name(run): Name,
) -> Result<impl IntoResponse, Failure> {
    let run = resolve(&shared, run, true).await?;
    let table = shared.backend.report_table(&run).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], table))
}

/// The run that a name in a path means: `latest` is the newest one (that has ended, where `over`).
async fn resolve<B: Backend>(shared: &Shared<B>, name: String, over: bool) -> Result<String, ApiError> {
    if name != LATEST {
        return Ok(shared.cycles.resolve(&name));
    }
    let runs = shared.backend.cycles().await?.runs;
    runs.into_iter().find(|run| !over || run.state.is_over()).map(|run| run.id).ok_or_else(|| {
        let what = if over { "no cycle run has ended yet" } else { "there was no cycle run yet" };
        ApiError::new(ErrorCode::UnknownRun, what).help("`ctl cycle run` begins one")
    })
}
