//! The node: who answers, how things stand, what is wrong with it.

use crate::control::backend::Backend;
use crate::control::extract::{Answer, Body};
use crate::control::peer::Peer;
use crate::control::router::Ctx;
use axum::extract::State;
use axum::{Extension, Json};
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::reload::{ReloadReport, ReloadRequest};
use hotbunk_api::status::Status;
use hotbunk_api::version::VersionInfo;

pub(in crate::control) async fn version<B: Backend>(State(shared): Ctx<B>) -> Json<VersionInfo> {
    Json(shared.backend.version())
}

pub(in crate::control) async fn openapi() -> Json<serde_json::Value> {
    Json(hotbunk_api::openapi::openapi())
}

pub(in crate::control) async fn status<B: Backend>(State(shared): Ctx<B>) -> Answer<Status> {
    Ok(Json(shared.backend.status().await?))
}

pub(in crate::control) async fn doctor<B: Backend>(State(shared): Ctx<B>) -> Answer<DoctorReport> {
    Ok(Json(shared.backend.doctor().await?))
}

pub(in crate::control) async fn check<B: Backend>(
    State(shared): Ctx<B>,
    Body(request): Body<CheckRequest>,
) -> Answer<CheckReport> {
    Ok(Json(shared.backend.check(request).await?))
}

pub(in crate::control) async fn reload<B: Backend>(
    State(shared): Ctx<B>,
    Extension(peer): Extension<Peer>,
    Body(request): Body<ReloadRequest>,
) -> Answer<ReloadReport> {
    // A task of its own: a client that hangs up must not leave half of it done.
    let task = tokio::spawn(async move { shared.backend.reload(request, peer).await });
    Ok(Json(super::joined(task).await??))
}
