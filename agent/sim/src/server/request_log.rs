//! The request log: what the API server was asked, in the order in which it was asked.
//!
//! The operation log says what the engine *did*; this one says what somebody *wanted* of it, no-ops and refusals
//! included. A test of a call sequence needs the second. JSON lines, appended before the request is handled, so a call
//! that kills the engine is in it too. Bodies are kept of `/collective_rpc` alone: a prompt is nobody's business.

use super::state::Shared;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The only route whose body says what is asked for.
const RPC: &str = "/collective_rpc";
/// More than any control call's body.
const LONGEST_BODY: usize = 1 << 20;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// The engine's name (`--name`).
    pub engine: String,
    /// `GET`, `POST`, …
    pub method: String,
    /// Path without the query.
    pub path: String,
    /// The query as it was sent; empty where there is none.
    pub query: String,
    /// The body of `/collective_rpc`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub body: Value,
}

/// Notes the request and passes it on.
pub(super) async fn note(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let Some(path) = shared.settings.args.request_log.as_deref() else { return next.run(request).await };
    let (head, body) = request.into_parts();
    let mut record = RequestRecord {
        engine: shared.settings.args.name.clone(),
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        body: Value::Null,
    };
    let body = if record.path == RPC {
        let Ok(bytes) = to_bytes(body, LONGEST_BODY).await else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        record.body = serde_json::from_slice(&bytes).unwrap_or_default();
        Body::from(bytes)
    } else {
        body
    };
    if let Err(error) = append(path, &record) {
        super::log(&format!("ERROR request log {}: {error}", path.display()));
    }
    next.run(Request::from_parts(head, body)).await
}

/// One line, one write: several engines may share a file.
fn append(path: &Path, record: &RequestRecord) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    File::options().create(true).append(true).open(path)?.write_all(&line)
}
