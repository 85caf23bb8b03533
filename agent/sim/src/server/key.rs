//! `--api-key`: guards inference routes and no other (CONTRACT 1.1 [run]).

use super::state::Shared;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

const GUARDED: [&str; 4] = ["/v1", "/v2", "/inference", "/cohere"];

/// Lets through what needs no key or carries one.
pub(crate) async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let keys = &shared.settings.args.api_key;
    let is_guarded = GUARDED.iter().any(|prefix| request.uri().path().starts_with(prefix));
    let told = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let token = told.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
    if keys.is_empty() || !is_guarded || keys.iter().any(|key| key == token) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, Json(json!({ "error": "Unauthorized" }))).into_response()
}
