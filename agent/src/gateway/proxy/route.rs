//! Which requests go to an engine, which the gateway answers itself, and which go nowhere.
//!
//! This is an allow list, and it is written for those who try to get past it. vLLM's control routes (`/sleep`,
//! `/collective_rpc`, `/update_weights`, …) stand beside its public ones on the same port, open to whoever reaches it. So
//! a path is forwarded only where it is spelled plainly: segments of letters, digits, `.`, `_`, `-`, none of them empty,
//! `.` or `..`, nothing percent-encoded. Whatever an engine's router would make of anything else need not be known then.
//!
//! ```text
//!   POST /v1/…                                  an engine, by the body's `model`; but for
//!        /v1/load_lora_adapter, /v1/unload_…      nobody: they change the engine
//!        /v1/responses/ID…                        nobody: an id does not say which engine keeps it
//!   POST /tokenize, /rerank, … (PUBLIC below)   an engine, by the body's `model`
//!   GET  /v1/models, /v1/models/ID              the gateway
//!   GET  /health, /ready                        the gateway
//!   anything else                               404, or 405
//! ```

use hyper::Method;

/// What vLLM serves for clients outside `/v1`. Each takes its `model` from a JSON body.
const PUBLIC: [&str; 12] = [
    "/classify",
    "/cohere/v2/chat",
    "/detokenize",
    "/generative_scoring",
    "/inference/v1/generate",
    "/invocations",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/v2/embed",
    "/v2/rerank",
];

/// Under `/v1`, and not for clients: they load code's worth of weights from a path that the caller names.
const OPERATORS: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

/// Last segments of routes that prepare or take apart what an inference would take or give: work for the engine's
/// front end alone. They are no reason to switch, and no use of the engine.
const PREPARATIONS: [&str; 5] = ["tokenize", "detokenize", "count_tokens", "render", "derender"];

/// Last segments of routes that answer with numbers, all at once, whatever `stream` says.
const NUMBERS: [&str; 8] =
    ["embeddings", "embed", "score", "rerank", "pooling", "classify", "generative_scoring", "batch"];

/// In which API's words the client is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Face {
    /// OpenAI's completions, chat and everything that has no words of its own.
    OpenAi,
    /// OpenAI's responses: typed events.
    Responses,
    /// Anthropic's messages: typed events, errors in an envelope.
    Messages,
}

/// A request for an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// Whose words.
    pub face: Face,
    /// Whether it makes the model work: only that may cause a switch and counts as use.
    pub inference: bool,
    /// Whether its answer may be a stream.
    pub streams: bool,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// To the engine of its model.
    Forward(Target),
    /// The list of models.
    Models,
    /// One model, by its id as the client wrote it.
    Model(String),
    /// Whether the gateway lives.
    Health,
    /// Whether it would take a request.
    Ready,
    /// Nowhere, with these methods allowed on the path.
    WrongMethod(&'static str),
    /// Nowhere.
    Nowhere(Why),
}

/// Why a path leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It is no route of the gateway.
    Unknown,
    /// It is for operators.
    Operators,
    /// It names an answer that one engine keeps, and does not say which.
    Kept,
}

/// Decides by method and path (as the client sent it, without the query).
pub(super) fn route(method: &Method, path: &str) -> Route {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    match path {
        "/health" | "/ready" | "/v1/models" if !reads => return Route::WrongMethod("GET, HEAD"),
        "/health" => return Route::Health,
        "/ready" => return Route::Ready,
        "/v1/models" => return Route::Models,
        _ => {}
    }
    if let Some(id) = path.strip_prefix("/v1/models/").filter(|id| !id.is_empty()) {
        // Never forwarded, so it may contain what it likes.
        return if reads { Route::Model(decoded(id)) } else { Route::WrongMethod("GET, HEAD") };
    }
    if !is_plain(path) {
        return Route::Nowhere(Why::Unknown);
    }
    if OPERATORS.contains(&path) {
        return Route::Nowhere(Why::Operators);
    }
    if path.starts_with("/v1/responses/") && !path.ends_with("/render") {
        return Route::Nowhere(Why::Kept);
    }
    if !(path.starts_with("/v1/") || PUBLIC.contains(&path)) {
        return Route::Nowhere(Why::Unknown);
    }
    if *method != Method::POST {
        return Route::WrongMethod("POST");
    }
    Route::Forward(target(path))
}

fn target(path: &str) -> Target {
    let face = match path {
        "/v1/responses" => Face::Responses,
        "/v1/messages" => Face::Messages,
        _ if path.starts_with("/v1/messages/") => Face::Messages,
        _ => Face::OpenAi,
    };
    let last = path.rsplit('/').next().unwrap_or_default();
    let inference = !PREPARATIONS.contains(&last);
    Target { face, inference, streams: inference && !NUMBERS.contains(&last) }
}

/// Whether every router would read this path in the same way.
fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    rest.split('/').all(|segment| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !segment.is_empty() && segment.bytes().any(|b| b != b'.') && segment.bytes().all(plain)
    })
}

/// Percent-encoding undone; what is no text stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let byte = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match byte {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn post(path: &str) -> Route {
        route(&Method::POST, path)
    }

    #[test]
    fn what_clients_use_is_forwarded() {
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/responses",
            "/v1/messages",
            "/v1/audio/transcriptions",
            "/v1/something.of/tomorrow_2",
            "/tokenize",
            "/v2/rerank",
            "/inference/v1/generate",
        ] {
            assert!(matches!(post(path), Route::Forward(_)), "{path}");
            assert_eq!(route(&Method::GET, path), Route::WrongMethod("POST"), "{path}");
        }
        let of = |path| match post(path) {
            Route::Forward(target) => target,
            other => panic!("{path}: {other:?}"),
        };
        let target = |face, inference, streams| Target { face, inference, streams };
        assert_eq!(of("/v1/messages/count_tokens"), target(Face::Messages, false, false));
        assert_eq!(of("/v1/responses/render"), target(Face::OpenAi, false, false));
        assert_eq!(of("/v1/messages"), target(Face::Messages, true, true));
        assert_eq!(of("/v1/responses"), target(Face::Responses, true, true));
        assert_eq!(of("/v1/chat/completions"), target(Face::OpenAi, true, true));
        assert_eq!(of("/v1/embeddings"), target(Face::OpenAi, true, false));
        assert_eq!(of("/tokenize"), target(Face::OpenAi, false, false));
    }

    #[test]
    fn the_gateway_answers_for_itself() {
        assert_eq!(route(&Method::GET, "/v1/models"), Route::Models);
        assert_eq!(route(&Method::GET, "/v1/models/org%2Fname"), Route::Model("org/name".into()));
        assert_eq!(route(&Method::GET, "/v1/models/org/name"), Route::Model("org/name".into()));
        assert_eq!(route(&Method::GET, "/v1/models/%zz%e9"), Route::Model("%zz%e9".into()));
        assert_eq!(route(&Method::HEAD, "/health"), Route::Health);
        assert_eq!(route(&Method::GET, "/ready"), Route::Ready);
        assert_eq!(post("/v1/models"), Route::WrongMethod("GET, HEAD"));
        assert_eq!(route(&Method::DELETE, "/v1/models/a"), Route::WrongMethod("GET, HEAD"));
        assert_eq!(route(&Method::GET, "/v1/responses/resp_1"), Route::Nowhere(Why::Kept));
        assert_eq!(post("/v1/responses/resp_1/cancel"), Route::Nowhere(Why::Kept));
        assert_eq!(post("/v1/load_lora_adapter"), Route::Nowhere(Why::Operators));
    }

    /// Every route of vLLM 0.32 that is not for clients.
    const CONTROL: [&str; 33] = [
        "sleep",
        "wake_up",
        "is_sleeping",
        "collective_rpc",
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "pause",
        "resume",
        "is_paused",
        "abort_requests",
        "release_kv_cache_memory",
        "weight_checker",
        "server_info",
        "load",
        "metrics",
        "version",
        "ping",
        "openapi.json",
        "docs",
        "get_world_size",
        "kv_event_sources",
        "tokenizer_info",
        "weight_info",
        "fault_tolerance/status",
        "fault_tolerance/apply",
        "init_weight_transfer_engine",
        "update_weights",
        "scale_elastic_ep",
        "is_scaling_elastic_ep",
        "start_profile",
        "stop_profile",
        "update_weight_version",
    ];

    /// I9: however a control route is spelled, it is not forwarded.
    #[test]
    fn control_routes_lead_nowhere() {
        for name in CONTROL {
            for spelled in [
                format!("/{name}"),
                format!("//{name}"),
                format!("/{name}/"),
                format!("/v1/../{name}"),
                format!("/v1/%2e%2e/{name}"),
                format!("/v1/..%2f{name}"),
                format!("/v1/./../{name}"),
                format!("/v1//../{name}"),
                format!("/v1/models/../../{name}"),
                format!("/v1/chat/completions/../../../{name}"),
                format!("/v1/..;/{name}"),
                format!("/v1\\..\\{name}"),
                format!("/v1/.../{name}"),
                format!("/V1/{name}"),
                format!("/%76%31/{name}"),
                format!("/tokenize/../{name}"),
                name.to_owned(),
            ] {
                for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
                    let to = route(&method, &spelled);
                    assert!(!matches!(to, Route::Forward(_)), "{method} {spelled}: {to:?}");
                }
            }
        }
    }

    proptest! {
        /// Whatever is forwarded means the same to every router: nothing in it is resolved, decoded or merged.
        #[test]
        fn only_plain_paths_are_forwarded(path in "(/(v1|v2|\\.|\\.\\.|%2e%2e|sleep|[a-z.%/;_-]{0,6})){1,5}") {
            if let Route::Forward(_) = post(&path) {
                prop_assert!(path.starts_with("/v1/") || PUBLIC.contains(&path.as_str()));
                prop_assert!(!path.contains("//") && !path.contains('%') && !path.contains(';'));
                prop_assert!(path.split('/').skip(1).all(|s| !s.is_empty() && s != "." && s != ".."));
            }
        }
    }
}
