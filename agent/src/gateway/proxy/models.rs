//! `/v1/models`, answered by the gateway: every model and alias that is configured, awake or not.

use super::answer::Failure;
use crate::gateway::{BACK, Hub, Model, Refusal};
use hyper::StatusCode;
use serde_json::{Value, json};

/// The list. `created` is when the agent started, epoch seconds.
pub(super) fn list(hub: &Hub, created: u64) -> Value {
    let data: Vec<Value> = hub.models().iter().map(|model| one(model, created)).collect();
    json!({ "object": "list", "data": data })
}

/// One of them.
///
/// # Errors
/// There is none of this id.
pub(super) fn get(hub: &Hub, id: &str, created: u64) -> Result<Value, Failure> {
    let models = hub.models();
    let found = models.iter().find(|model| model.id == id);
    found.map(|model| one(model, created)).ok_or_else(|| unknown(hub, id))
}

/// What is said of a model that does not exist: those that do.
pub(super) fn unknown(hub: &Hub, id: &str) -> Failure {
    let ids: Vec<String> = hub.models().iter().map(|m| format!("`{}`", m.id)).collect();
    let shown: String = id.chars().take(200).collect();
    let message = format!("The model `{shown}` does not exist. Models here: {}.", ids.join(", "));
    Failure { param: Some("model"), ..Failure::bad(StatusCode::NOT_FOUND, "model_not_found", message) }
}

/// Whether a request would be served or wait: not where every engine is given up.
///
/// # Errors
/// It would not.
pub(super) fn ready(hub: &Hub) -> Result<Value, Failure> {
    if hub.is_leaving() {
        return Err(Refusal::Restarting { retry_after: BACK }.into());
    }
    if hub.node().is_some_and(|node| node.closing) {
        return Err(Failure::ours("shutting_down", "the gateway is shutting down", 1));
    }
    if hub.models().iter().any(|model| model.tier != "failed") {
        return Ok(json!({ "status": "ready" }));
    }
    let failure = Failure::ours("engine_failed", "every engine has failed; see `ctl status`", 1);
    Err(Failure { retry_after: None, ..failure })
}

fn one(model: &Model, created: u64) -> Value {
    json!({
        "id": model.id,
        "object": "model",
        "created": created,
        "owned_by": "hotbunk",
        "root": model.alias_of.as_ref().unwrap_or(&model.id),
        "parent": null,
        "hotbunk": { "engine": model.engine_name, "tier": model.tier },
    })
}
