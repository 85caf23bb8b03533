//! Every route of CONTRACT 1.1, with good and bad parameters: status and body.

use crate::check::Check;
use crate::server::Server;
use crate::target::MODEL;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Control routes and their methods.
const CONTROL: &[(&str, Method)] = &[
    ("/sleep", Method::POST),
    ("/wake_up", Method::POST),
    ("/is_sleeping", Method::GET),
    ("/collective_rpc", Method::POST),
    ("/reset_prefix_cache", Method::POST),
    ("/reset_mm_cache", Method::POST),
    ("/reset_encoder_cache", Method::POST),
    ("/pause", Method::POST),
    ("/resume", Method::POST),
    ("/is_paused", Method::GET),
    ("/abort_requests", Method::POST),
    ("/release_kv_cache_memory", Method::POST),
    ("/weight_checker", Method::POST),
    ("/server_info", Method::GET),
    ("/get_world_size", Method::GET),
];
const OPEN: &[&str] = &["/health", "/ping", "/load", "/version", "/v1/models"];

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("routes.listed", "1.1: /openapi.json lists the routes", listed),
        Check::new(
            "routes.wrong_method_is_405",
            "1.1: GET on a POST route, HEAD /health -> 405 [run]",
            wrong_method,
        ),
        Check::new("routes.missing_is_404", "1.1: route missing -> 404", missing),
        Check::new("routes.health_ping_version_load", "1.1: the routes without a gate", plain),
        Check::new("routes.key_guards_v1_alone", "1.1: --api-key protects only /v1, …: control is open", key),
        Check::new("routes.server_info", "1.1: /server_info?config_format=text|json", server_info),
        Check::new("routes.world_size", "seen on 0.32: /get_world_size {\"world_size\":n}", world_size),
        Check::new(
            "routes.reset_caches",
            "1.1: /reset_prefix_cache {\"success\":bool}, the others empty",
            reset,
        ),
        Check::new(
            "routes.collective_rpc",
            "1.1: 200 {\"results\":[…]}; 400 missing method; 500 worker error",
            rpc,
        ),
        Check::new("routes.pause_and_resume", "1.1: /pause, /resume, /is_paused", pause),
        Check::new("routes.abort_requests", "1.1: /abort_requests {\"status\",\"aborted\"}", abort),
        Check::new("routes.weight_checker", "1.1: /weight_checker checksum, compare, reset", weights),
        Check::new(
            "routes.idle_connection_is_closed",
            "uvicorn: VLLM_HTTP_TIMEOUT_KEEP_ALIVE, 5 s unless set",
            idle,
        ),
        Check::new(
            "routes.connection_ends_after_500",
            "seen on 0.32: a 500 of no handler ends its connection",
            after_500,
        ),
    ]
}

async fn listed(server: Arc<Server>) {
    let document = server.http.get("/openapi.json").await;
    let paths = document.json["paths"].as_object().expect("paths");
    for (path, method) in CONTROL {
        let method = method.as_str().to_lowercase();
        assert!(paths.get(*path).is_some_and(|p| p.get(&method).is_some()), "{method} {path}");
    }
    let v1 =
        ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/metrics"];
    for path in OPEN.iter().chain(&v1) {
        assert!(paths.contains_key(*path), "{path}");
    }
    assert!(!paths.contains_key("/v1/embeddings"), "the model generates");
    assert!(!paths.contains_key("/fault_tolerance/status"), "only with --enable-fault-tolerance");
}

async fn wrong_method(server: Arc<Server>) {
    let detail = json!({ "detail": "Method Not Allowed" });
    let plain = [("/load", Method::GET), ("/version", Method::GET), ("/v1/completions", Method::POST)];
    for (path, method) in CONTROL.iter().chain(&plain) {
        let other = if *method == Method::GET { Method::POST } else { Method::GET };
        let reply = server.http.request(other, path, None, true).await;
        assert_eq!((reply.status, reply.json), (405, detail.clone()), "{path}");
    }
    assert_eq!(server.http.request(Method::HEAD, "/health", None, true).await.status, 405);
    // What is mounted and no route takes any method.
    assert_eq!(server.http.post("/metrics").await.status, 200);
}

async fn missing(server: Arc<Server>) {
    for path in ["/nothing", "/sleeping", "/fault_tolerance/status", "/v1/models/A"] {
        let reply = server.http.get(path).await;
        assert_eq!((reply.status, reply.json), (404, json!({ "detail": "Not Found" })), "{path}");
    }
}

async fn plain(server: Arc<Server>) {
    for (method, path) in [(Method::GET, "/health"), (Method::GET, "/ping"), (Method::POST, "/ping")] {
        let reply = server.http.request(method, path, None, false).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, ""), "{path}");
    }
    let version = server.http.get("/version").await.json;
    assert!(version["version"].as_str().is_some_and(|v| v.starts_with("0.32")), "{version}");
    assert_eq!(server.http.get("/load").await.json, json!({ "server_load": 0 }));
    let models = server.http.get("/v1/models").await.json;
    assert_eq!((models["object"].as_str(), models["data"].as_array().map(Vec::len)), (Some("list"), Some(1)));
    let model = &models["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!(MODEL), &json!("model")));
    assert_eq!((&model["owned_by"], &model["max_model_len"]), (&json!("vllm"), &json!(2048)));
}

async fn key(server: Arc<Server>) {
    for path in ["/health", "/is_sleeping", "/is_paused", "/metrics", "/load", "/version", "/openapi.json"] {
        assert_eq!(server.http.request(Method::GET, path, None, false).await.status, 200, "{path}");
    }
    for path in ["/wake_up", "/resume", "/reset_prefix_cache"] {
        assert_eq!(server.http.request(Method::POST, path, None, false).await.status, 200, "{path}");
    }
    let reply = server.http.request(Method::GET, "/v1/models", None, false).await;
    assert_eq!((reply.status, reply.json), (401, json!({ "error": "Unauthorized" })));
    let body = Server::body(1);
    let reply = server.http.request(Method::POST, "/v1/completions", Some(&body), false).await;
    assert_eq!((reply.status, reply.json), (401, json!({ "error": "Unauthorized" })));
    assert_eq!(server.http.post_json("/v1/completions", &body).await.status, 200);
}

async fn server_info(server: Arc<Server>) {
    for path in ["/server_info", "/server_info?config_format=text"] {
        let info = server.http.get(path).await.json;
        let text = info["vllm_config"].as_str().expect("a text");
        for part in ["max_seq_len=2048", "tensor_parallel_size=1", "pipeline_parallel_size=1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(info["vllm_env"].is_object() && info["system_env"].is_object());
    }
    let info = server.http.get("/server_info?config_format=json").await.json;
    let config = &info["vllm_config"];
    assert_eq!(config["parallel_config"]["tensor_parallel_size"], 1);
    assert_eq!(config["model_config"]["enable_sleep_mode"], true);
    assert_eq!(config["model_config"]["max_model_len"], 2048);
    let reply = server.http.get("/server_info?config_format=xml").await;
    let (message, param) = reply.error(400);
    assert!(message.contains("'text' or 'json'"), "{message}");
    assert_eq!(param, "query.config_format");
}

async fn world_size(server: Arc<Server>) {
    assert_eq!(server.http.get("/get_world_size").await.json, json!({ "world_size": 1 }));
    assert_eq!(server.http.get("/get_world_size?include_dp=false").await.json, json!({ "world_size": 1 }));
    assert_eq!(server.http.get("/get_world_size?include_dp=maybe").await.error(400).1, "query.include_dp");
}

async fn reset(server: Arc<Server>) {
    for path in ["/reset_prefix_cache", "/reset_prefix_cache?reset_running_requests=true&reset_external=true"]
    {
        assert_eq!(server.ok(path).await, json!({ "success": true }), "{path}");
    }
    let reply = server.http.post("/reset_prefix_cache?reset_running_requests=maybe").await;
    let (message, param) = reply.error(400);
    assert!(message.contains("valid boolean"), "{message}");
    assert_eq!(param, "query.reset_running_requests");
    for path in ["/reset_mm_cache", "/reset_encoder_cache"] {
        let reply = server.http.post(path).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, ""), "{path}");
    }
}

async fn rpc(server: Arc<Server>) {
    let path = "/collective_rpc";
    for (body, message) in [
        (json!([1]), "Request body must be a JSON object"),
        (json!({}), "Missing 'method' in request body"),
        (json!({ "method": null }), "Missing 'method' in request body"),
    ] {
        let reply = server.http.post_json(path, &body).await;
        assert_eq!(reply.error(400), (message, &Value::Null), "{body}");
    }
    let reply = server.http.post_text(path, "application/json", "nothing of the kind").await;
    assert!(reply.error(400).0.starts_with("JSON decode error"), "{}", reply.text);
    let reply = server.http.post_json(path, &json!({ "method": "no_such_method" })).await;
    let (message, _) = reply.error(500);
    assert!(
        message.starts_with("Call to collective_rpc method failed: Worker failed with error"),
        "{message}"
    );
    assert!(message.contains("no_such_method"), "{message}");
    let reply = server.http.post_json(path, &json!({ "method": "check_health", "args": [1] })).await;
    assert!(reply.error(500).0.contains("Worker failed with error"), "{}", reply.text);
    // The engine survives all of it (1.2 [run]).
    let reply = server.http.post_json(path, &json!({ "method": "check_health", "timeout": 30.0 })).await;
    assert_eq!((reply.status, reply.json), (200, json!({ "results": [null] })));
    assert_eq!(server.http.get("/health").await.status, 200);
}

async fn pause(server: Arc<Server>) {
    for (query, param) in
        [("mode=gently", "query.mode"), ("mode=wait&clear_cache=maybe", "query.clear_cache")]
    {
        assert_eq!(server.http.post(&format!("/pause?{query}")).await.error(400).1, param);
    }
    assert!(!server.is_paused().await);
    // The parameter of 0.12 to 0.15 is not known any more, and ignored.
    for query in ["", "?mode=wait", "?mode=keep", "?mode=abort", "?wait_for_inflight_requests=true"] {
        assert_eq!(server.ok(&format!("/pause{query}")).await, json!({ "status": "paused" }));
        assert!(server.is_paused().await && server.is_sleeping().await, "{query}");
    }
    // The sleep gauge knows nothing of it.
    assert_eq!(server.sleep_state().await, [1.0, 0.0, 0.0]);
    for _ in 0..2 {
        assert_eq!(server.ok("/resume").await, json!({ "status": "resumed" }));
    }
    assert!(!server.is_paused().await && !server.is_sleeping().await);
}

async fn abort(server: Arc<Server>) {
    let path = "/abort_requests";
    for body in ["", "x"] {
        let reply = server.http.post_text(path, "application/json", body).await;
        assert_eq!(reply.error(400).0, "Invalid JSON format");
    }
    let reply = server.http.post_json(path, &json!([])).await;
    assert_eq!(reply.error(400).0, "Request body must be a JSON object");
    let aborted = |n: u32| json!({ "status": "aborted", "aborted": n });
    assert_eq!(server.http.post_json(path, &json!({})).await.json, aborted(0));
    assert_eq!(server.http.post_json(path, &json!({ "request_ids": [] })).await.json, aborted(0));
    // It counts what was named, not what was found.
    assert_eq!(server.http.post_json(path, &json!({ "request_ids": ["x"] })).await.json, aborted(1));
    assert_eq!(server.http.post(path).await.status, 400);
}

async fn weights(server: Arc<Server>) {
    let path = "/weight_checker";
    for (body, param) in [
        (json!({}), json!("body.action")),
        (json!({ "action": "nothing" }), json!("body.action")),
        (json!({ "action": "compare" }), Value::Null),
    ] {
        let reply = server.http.post_json(path, &body).await;
        assert_eq!(reply.error(400).1, &param, "{body}");
    }
    let text = server.text(12).await;
    let sums = server.http.post_json(path, &json!({ "action": "checksum" })).await.json;
    let sums = sums["checksums"].clone();
    assert!(sums.as_object().is_some_and(|s| !s.is_empty()));
    let compare = json!({ "action": "compare", "baseline": sums });
    let same = json!({ "match": true, "mismatches": [] });
    assert_eq!(server.http.post_json(path, &compare).await.json, same);
    let other = json!({ "action": "compare", "baseline": { "x": "0" } });
    let told = server.http.post_json(path, &other).await.json;
    let mismatches = told["mismatches"].as_array().map_or(0, Vec::len);
    // What only one side has is a mismatch too.
    let count = sums.as_object().map_or(0, serde_json::Map::len);
    assert_eq!((&told["match"], mismatches), (&json!(false), count + 1));
    assert_eq!(
        server.http.post_json(path, &json!({ "action": "reset" })).await.json,
        json!({ "status": "reset" })
    );
    assert_eq!(server.http.post_json(path, &compare).await.json["match"], false, "reset loses the weights");
    assert_ne!(server.text(12).await, text);
    server.rpc("reload_weights", json!({})).await;
    server.ok("/reset_prefix_cache").await;
    assert_eq!(server.http.post_json(path, &compare).await.json, same);
    assert_eq!(server.text(12).await, text);
}

async fn idle(server: Arc<Server>) {
    let answer = until_closed(&server, "GET /health HTTP/1.1\r\nhost: engine\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

async fn after_500(server: Arc<Server>) {
    let request = "POST /release_kv_cache_memory HTTP/1.1\r\nhost: engine\r\ncontent-length: 0\r\n\r\n";
    let answer = until_closed(&server, request).await;
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(!answer.to_lowercase().contains("connection: close"), "unannounced: {answer}");
}

/// All that comes over a connection until the server closes it.
async fn until_closed(server: &Server, request: &str) -> String {
    let connection = tokio::net::TcpStream::connect(("127.0.0.1", server.http.port())).await;
    let mut connection = connection.expect("a connection");
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    let read = connection.read_to_string(&mut answer);
    tokio::time::timeout(server.patience(), read).await.expect("it ends").expect("read");
    answer
}
