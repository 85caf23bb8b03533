//! The API server process: HTTP, metrics, and what vLLM's front end believes.
//!
//! It binds its port at once and listens only when the engine core is ready, as vLLM does. One thread serves HTTP (one
//! write a chunk, no delay), one reads the engine core's lines.

mod boot;
mod completions;
mod dev;
mod errors;
mod events;
mod info;
mod key;
mod link;
mod messages;
mod metrics;
mod openai;
mod openapi;
mod pause;
mod request_log;
mod responses;
mod shutdown;
mod sim_routes;
mod sleep;
mod sse;
mod state;
mod tokenize;

pub(crate) use boot::run;
pub use request_log::RequestRecord;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use state::Shared;
use std::io::Write;

/// Writes a log line as vLLM's API server does.
pub(crate) fn log(message: &str) {
    // A closed stderr leaves nobody to tell.
    drop(writeln!(std::io::stderr(), "(APIServer pid={}) {message}", std::process::id()));
}

/// All routes that this release has, behind the gates it has (CONTRACT 1.1).
fn router(shared: &Shared) -> Router {
    let mut router: Router<Shared> = Router::new();
    for route in openapi::routes(shared) {
        router = router.route(route.path, (route.handler)());
    }
    router
        .fallback(async || (StatusCode::NOT_FOUND, axum::Json(json!({ "detail": "Not Found" }))))
        .method_not_allowed_fallback(async || method_not_allowed())
        .layer(middleware::from_fn(refuse_head))
        .layer(middleware::from_fn_with_state(shared.clone(), key::guard))
        .layer(middleware::from_fn_with_state(shared.clone(), request_log::note))
        // vLLM has no limit; prompts with images are large.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared.clone())
}

fn method_not_allowed() -> Response {
    (StatusCode::METHOD_NOT_ALLOWED, axum::Json(json!({ "detail": "Method Not Allowed" }))).into_response()
}

/// FastAPI's GET routes do not answer HEAD (CONTRACT 1.1 [run]).
async fn refuse_head(request: Request, next: Next) -> Response {
    if request.method() == Method::HEAD { method_not_allowed() } else { next.run(request).await }
}
