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
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// `POST /reset_prefix_cache`: 200 empty, from 0.26 `{"success":bool}`.
pub(crate) async fn reset_prefix_cache(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let version = shared.settings.args.version;
    let pairs = query_pairs(query.as_deref());
    let running = if version.has_reset_running_requests() {
        let given = first(&pairs, "reset_running_requests");
        match errors::boolean("query.reset_running_requests", given, false) {
            Ok(running) => running,
            Err(response) => return *response,
        }
    } else {
        false
    };
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
    let method = match body.get("method") {
        None | Some(Value::Null) => return errors::validation("Missing 'method' in request body"),
        Some(Value::String(method)) => method.clone(),
        // No name: the worker finds nothing to call.
        Some(other) => other.to_string(),
    };
    let args = body.get("args").and_then(Value::as_array).cloned().unwrap_or_default();
    let kwargs = body.get("kwargs").cloned().unwrap_or_else(|| json!({}));
    match shared.link.call(Call::Rpc { method, args, kwargs }).await {
        Ok(results) => Json(results).into_response(),
        Err(error) => errors::control(&shared, &error),
    }
}

/// `POST /weight_checker {"action","baseline"}` (0.32 [run]).
pub(crate) async fn weight_checker(State(shared): State<Shared>, body: Bytes) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else {
        return errors::invalid("body.0", "json_invalid", "JSON decode error", "<dict of 0 items>");
    };
    let action = match body.get("action").and_then(Value::as_str) {
        Some(action @ ("checksum" | "reset" | "compare")) => action,
        None => return errors::invalid("body.action", "missing", "Field required", "None"),
        Some(other) => {
            let sentence = "Input should be 'checksum', 'reset' or 'compare'";
            return errors::invalid("body.action", "literal_error", sentence, other);
        }
    };
    if action == "reset" {
        let call = Call::Rpc { method: "reset_weights".to_owned(), args: Vec::new(), kwargs: json!({}) };
        return match shared.link.call(call).await {
            Ok(_) => Json(json!({ "status": "reset" })).into_response(),
            Err(error) => errors::control(&shared, &error),
        };
    }
    let baseline = body.get("baseline").and_then(Value::as_object);
    if action == "compare" && baseline.is_none() {
        return errors::validation("action='compare' requires a 'baseline' object");
    }
    let sums = match shared.link.call(Call::WeightChecksums).await {
        Ok(Value::Object(sums)) => sums,
        Ok(_) => Map::new(),
        Err(error) => return errors::control(&shared, &error),
    };
    let Some(baseline) = baseline.filter(|_| action == "compare") else {
        return Json(json!({ "checksums": sums })).into_response();
    };
    let names: BTreeSet<&String> = sums.keys().chain(baseline.keys()).collect();
    let mismatches: Vec<&String> =
        names.into_iter().filter(|name| sums.get(*name) != baseline.get(*name)).collect();
    Json(json!({ "match": mismatches.is_empty(), "mismatches": mismatches })).into_response()
}

/// `GET /get_world_size` (seen on 0.32 [run]).
pub(crate) async fn world_size(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    if let Err(response) = errors::boolean("query.include_dp", first(&pairs, "include_dp"), true) {
        return *response;
    }
    Json(json!({ "world_size": shared.settings.args.tensor_parallel_size })).into_response()
}

/// `GET /server_info?config_format=text|json`: the parts of it that somebody might read.
pub(crate) async fn server_info(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let pairs = query_pairs(query.as_deref());
    let settings = &shared.settings;
    let (model, workers) = (&settings.engine.model, settings.args.tensor_parallel_size);
    let config = match first(&pairs, "config_format").unwrap_or("text") {
        "text" => json!(format!(
            "model='{model}', speculative_config=None, tokenizer='{model}', dtype=torch.bfloat16, max_seq_len={}, \
             load_format=auto, tensor_parallel_size={workers}, pipeline_parallel_size=1, data_parallel_size=1, \
             quantization={}, enforce_eager=False, served_model_name={}",
            settings.max_model_len,
            if settings.engine.is_quantized { "fp8" } else { "None" },
            settings.model_name,
        )),
        "json" => json!({
            "model_config": {
                "model": model,
                "served_model_name": settings.model_name,
                "max_model_len": settings.max_model_len,
                "enable_sleep_mode": settings.args.enable_sleep_mode,
            },
            "cache_config": {
                "gpu_memory_utilization": settings.args.gpu_memory_utilization,
                "kv_cache_memory_bytes": settings.args.kv_cache_memory_bytes,
            },
            "parallel_config": {
                "tensor_parallel_size": workers,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
                "world_size": workers,
            },
        }),
        other => {
            let sentence = "Input should be 'text' or 'json'";
            return errors::invalid("query.config_format", "literal_error", sentence, other);
        }
    };
    let env = json!({ "VLLM_SERVER_DEV_MODE": true });
    Json(json!({ "vllm_config": config, "vllm_env": env, "system_env": {} })).into_response()
}
