//! The other development routes: caches, RPC, weight checker, server info (CONTRACT 1.1).

use super::errors;
use super::sleep::{first, query_pairs};
use super::state::Shared;
use crate::ipc::Call;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// `POST /reset_prefix_cache`: 200 empty, from 0.26 `{"success":bool}`.
pub(crate) async fn reset_prefix_cache(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let version = shared.settings.args.version;
    let pairs = query_pairs(query.as_deref());
    let running = version.has_reset_running_requests()
        && first(&pairs, "reset_running_requests").is_some_and(|v| matches!(v, "true" | "True" | "1"));
    match shared.link.call(Call::ResetPrefixCache { running }).await {
        Ok(success) if version.reset_prefix_cache_tells() => {
            Json(json!({ "success": success })).into_response()
        }
        Ok(_) => StatusCode::OK.into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /reset_mm_cache`, `POST /reset_encoder_cache`.
pub(crate) async fn reset_nothing(State(shared): State<Shared>) -> Response {
    match shared.link.call(Call::Nothing).await {
        Ok(_) => StatusCode::OK.into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /collective_rpc {"method","args","kwargs","timeout"}`: 400 without a method, 500 on a worker's error.
pub(crate) async fn collective_rpc(State(shared): State<Shared>, body: Bytes) -> Response {
    let body: Value = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(error) => return errors::validation(&format!("JSON decode error: {error}")),
    };
    if !body.is_object() {
        return errors::validation("Request body must be a JSON object");
    }
    let Some(method) = body.get("method").and_then(Value::as_str) else {
        return errors::validation("Missing 'method' in request body");
    };
    let args = body.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
    let kwargs = body.get("kwargs").cloned().unwrap_or_else(|| json!({}));
    match shared.link.call(Call::Rpc { method: method.to_owned(), args, kwargs }).await {
        Ok(results) => Json(results).into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /weight_checker {"action","baseline"}` (0.32 [src]).
pub(crate) async fn weight_checker(State(shared): State<Shared>, body: Bytes) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return errors::validation("Invalid JSON format");
    };
    let action = body.get("action").and_then(Value::as_str).unwrap_or_default();
    if action == "reset" {
        return Json(json!({ "status": "reset" })).into_response();
    }
    let sums = match shared.link.call(Call::WeightChecksums).await {
        Ok(sums) => sums,
        Err(error) => return errors::control(&shared, &error),
    };
    match action {
        "checksum" => Json(json!({ "checksums": sums })).into_response(),
        "compare" => {
            let baseline = body.get("baseline").and_then(Value::as_object).cloned().unwrap_or_default();
            let mismatches: Vec<&String> = baseline
                .iter()
                .filter(|(name, sum)| sums.get(*name) != Some(sum))
                .map(|(name, _)| name)
                .collect();
            Json(json!({ "match": mismatches.is_empty(), "mismatches": mismatches })).into_response()
        }
        _ => errors::validation("action must be checksum, compare or reset"),
    }
}

/// `GET /server_info?config_format=text|json`.
pub(crate) async fn server_info(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    let settings = &shared.settings;
    let config = json!({
        "model": settings.model_name,
        "max_model_len": settings.max_model_len,
        "enable_sleep_mode": settings.args.enable_sleep_mode,
        "tensor_parallel_size": settings.args.tensor_parallel_size,
        "gpu_memory_utilization": settings.args.gpu_memory_utilization,
        "kv_cache_memory_bytes": settings.args.kv_cache_memory_bytes,
    });
    let config =
        if first(&pairs, "config_format") == Some("json") { config } else { json!(config.to_string()) };
    Json(json!({ "vllm_config": config })).into_response()
}
