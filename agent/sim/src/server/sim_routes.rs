//! `/sim/fault`, `/sim/speed`, `/sim/arrivals`: faults and pace while the engine runs, and which requests came while it
//! was not awake. The simulation's own routes.

use super::errors;
use super::sleep::{first, query_pairs};
use super::state::{Shared, lock};
use crate::args::is_speed;
use crate::faults::{Fault, FaultKind};
use crate::ipc::{Call, ToCore};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use clap::ValueEnum;
use serde_json::{Value, json};

/// `POST /sim/fault {"kind":…,"arg":…,"count":…}`.
pub(crate) async fn arm(State(shared): State<Shared>, body: Bytes) -> Response {
    let fault: Fault = match serde_json::from_slice(&body) {
        Ok(fault) => fault,
        Err(error) => {
            let body = json!({ "detail": format!("no fault: {error}") });
            return (StatusCode::BAD_REQUEST, Json(body)).into_response();
        }
    };
    lock(&shared.faults).arm(fault);
    shared.link.send(&ToCore::ArmFault(fault));
    if fault.kind == FaultKind::FloodStderr {
        super::boot::flood(fault);
    }
    Json(json!({ "armed": fault })).into_response()
}

/// `POST /sim/speed {"speed":…}`: from the next operation or step on.
pub(crate) async fn set_speed(State(shared): State<Shared>, body: Bytes) -> Response {
    let asked: Option<f64> =
        serde_json::from_slice::<Value>(&body).ok().and_then(|b| b.get("speed").and_then(Value::as_f64));
    let Some(speed) = asked.filter(|s| is_speed(*s)) else {
        let body = json!({ "detail": "speed must be a number above 0; 1 is real time" });
        return (StatusCode::BAD_REQUEST, Json(body)).into_response();
    };
    *lock(&shared.speed) = speed;
    shared.link.send(&ToCore::SetSpeed(speed));
    Json(json!({ "speed": speed })).into_response()
}

/// `GET /sim/arrivals`: `{"arrived":…,"asleep":…,"late_ms":[…]}` of this process's life.
pub(crate) async fn arrivals(State(shared): State<Shared>) -> Response {
    match shared.link.call(Call::Arrivals).await {
        Ok(value) => Json(value).into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `DELETE /sim/fault[?kind=…]`.
pub(crate) async fn clear(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    let kind = match first(&pairs, "kind").map(|name| FaultKind::from_str(name, false)) {
        None => None,
        Some(Ok(kind)) => Some(kind),
        Some(Err(error)) => {
            return (StatusCode::BAD_REQUEST, Json(json!({ "detail": error }))).into_response();
        }
    };
    lock(&shared.faults).clear(kind);
    shared.link.send(&ToCore::ClearFault(kind));
    StatusCode::OK.into_response()
}

/// `GET /sim/fault`: as they were armed; a one-shot that has struck is still listed.
pub(crate) async fn list(State(shared): State<Shared>) -> Response {
    Json(json!({ "faults": lock(&shared.faults).armed() })).into_response()
}
