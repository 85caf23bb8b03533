//! `/health`, `/ping`, `/version`, `/v1/models`, `/load`, `/metrics`.

use super::metrics;
use super::state::{Shared, lock};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::atomic::Ordering;

/// 200 while asleep, while a copy runs, while the engine hangs and until the end of a shutdown; otherwise only when
/// the engine is known to be dead (fact 2 [run], CONTRACT 1.4).
pub(crate) async fn health(State(shared): State<Shared>) -> Response {
    let dying = shared.is_shutting_down.load(Ordering::Relaxed);
    let code =
        if shared.link.is_dead() && !dying { shared.settings.args.version.health_when_dead() } else { 200 };
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).into_response()
}

pub(crate) async fn version(State(shared): State<Shared>) -> Response {
    Json(json!({ "version": shared.settings.args.version.to_string() })).into_response()
}

pub(crate) async fn models(State(shared): State<Shared>) -> Response {
    let settings = &shared.settings;
    let data: Vec<_> = settings
        .served
        .iter()
        .map(|name| {
            json!({
                "id": name,
                "object": "model",
                "created": shared.created,
                "owned_by": "vllm",
                "root": settings.engine.model,
                "parent": null,
                "max_model_len": settings.max_model_len,
                "permission": [],
            })
        })
        .collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

pub(crate) async fn load(State(shared): State<Shared>) -> Response {
    Json(json!({ "server_load": shared.load.load(Ordering::Relaxed) })).into_response()
}

pub(crate) async fn metrics(State(shared): State<Shared>) -> Response {
    let text = metrics::render(&lock(&shared.metrics), &shared.settings);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
