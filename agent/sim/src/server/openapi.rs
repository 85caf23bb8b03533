//! The table of routes, by release and gate, and `/openapi.json`, which lists exactly those that exist.

use super::state::{Shared, State as ServerState};
use super::{completions, dev, info, messages, pause, responses, sim_routes, sleep, tokenize};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use serde_json::{Map, Value, json};

/// One route.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    methods: &'static [&'static str],
    pub(crate) handler: fn() -> MethodRouter<Shared>,
}

const GET: &[&str] = &["get"];
const POST: &[&str] = &["post"];

/// The routes that this server has (CONTRACT 1.1).
pub(crate) fn routes(shared: &ServerState) -> Vec<Route> {
    let version = shared.settings.args.version;
    let dev_mode = shared.settings.dev_mode;
    let mut routes = Vec::new();
    let mut add = |exists: bool, path, methods, handler| {
        if exists {
            routes.push(Route { path, methods, handler });
        }
    };
    add(true, "/health", GET, || get(info::health));
    add(true, "/ping", &["get", "post"], || get(info::health).post(info::health));
    add(true, "/version", GET, || get(info::version));
    add(true, "/load", GET, || get(info::load));
    // Mounted, so that any method will do; the document lists the one.
    add(true, "/metrics", GET, || any(info::metrics));
    add(true, "/v1/models", GET, || get(info::models));
    add(true, "/v1/completions", POST, || post(completions::completions));
    add(true, "/v1/chat/completions", POST, || post(completions::chat));
    add(version.has_responses(), "/v1/responses", POST, || post(responses::create));
    add(version.has_messages(), "/v1/messages", POST, || post(messages::create));
    add(version.has_messages(), "/v1/messages/count_tokens", POST, || post(messages::count));
    add(true, "/tokenize", POST, || post(tokenize::tokenize));
    add(true, "/detokenize", POST, || post(tokenize::detokenize));
    add(true, "/openapi.json", GET, || get(document));
    add(dev_mode, "/sleep", POST, || post(sleep::sleep));
    add(dev_mode, "/wake_up", POST, || post(sleep::wake_up));
    add(dev_mode, "/is_sleeping", GET, || get(sleep::is_sleeping));
    add(dev_mode && version.has_release_kv_cache(), "/release_kv_cache_memory", POST, || {
        post(sleep::release_kv_cache_memory)
    });
    add(dev_mode, "/reset_prefix_cache", POST, || post(dev::reset_prefix_cache));
    add(dev_mode && version.has_reset_mm_cache(), "/reset_mm_cache", POST, || post(dev::reset_nothing));
    add(dev_mode && version.has_reset_encoder_cache(), "/reset_encoder_cache", POST, || {
        post(dev::reset_nothing)
    });
    add(dev_mode && version.has_collective_rpc(), "/collective_rpc", POST, || post(dev::collective_rpc));
    add(dev_mode && version.has_weight_checker(), "/weight_checker", POST, || post(dev::weight_checker));
    add(dev_mode, "/server_info", GET, || get(dev::server_info));
    add(dev_mode && version.has_world_size(), "/get_world_size", GET, || get(dev::world_size));
    let pauses = version.has_pause() && (dev_mode || !version.pause_needs_dev_mode());
    add(pauses, "/pause", POST, || post(pause::pause));
    add(pauses, "/resume", POST, || post(pause::resume));
    add(pauses, "/is_paused", GET, || get(pause::is_paused));
    add(pauses && version.has_abort_requests(), "/abort_requests", POST, || post(pause::abort_requests));
    add(true, "/sim/fault", &["get", "post", "delete"], || {
        get(sim_routes::list).post(sim_routes::arm).delete(sim_routes::clear)
    });
    add(true, "/sim/speed", POST, || post(sim_routes::set_speed));
    add(true, "/sim/arrivals", GET, || get(sim_routes::arrivals));
    routes
}

/// `GET /openapi.json`.
async fn document(State(shared): State<Shared>) -> Response {
    // The document does not list itself, and the simulation's own routes are nobody's business.
    let hidden = ["/openapi.json", "/sim/fault", "/sim/speed", "/sim/arrivals"];
    let mut paths = Map::new();
    for route in routes(&shared).iter().filter(|r| !hidden.contains(&r.path)) {
        let methods: Map<String, Value> = route
            .methods
            .iter()
            .map(|m| {
                ((*m).to_owned(), json!({ "responses": { "200": { "description": "Successful Response" } } }))
            })
            .collect();
        paths.insert(route.path.to_owned(), Value::Object(methods));
    }
    let info = json!({ "title": "FastAPI", "version": "0.1.0" });
    Json(json!({ "openapi": "3.1.0", "info": info, "paths": paths })).into_response()
}
