//! What is not vLLM's to tell: lengths, the end of a text, batches; routes by release. The contract suite has the rest.

use crate::harness::Node;
use reqwest::Method;
use serde_json::{Value, json};

/// 17 words: 26 prompt tokens for A, 25 for B, with the chat template; so do 25 words as a plain completion.
const CHAT: &str = "Tell me in a few plain words how two sailors share one bunk by night and day.";
const PLAIN: &str = "Tell me in a few plain words how two sailors can share one bunk by shifts so that nobody on \
                     board must sleep on deck.";

#[tokio::test]
async fn the_reference_prompt_has_26_and_25_tokens() {
    let node = Node::new();
    for (name, tokens) in [("A", 26), ("B", 25)] {
        let engine = node.start(name, &[]).await;
        let chat = json!({ "messages": [{ "role": "user", "content": CHAT }], "max_tokens": 2 });
        let plain = json!({ "prompt": PLAIN, "max_tokens": 2 });
        for (path, body) in [("/v1/chat/completions", chat), ("/v1/completions", plain)] {
            let (status, answer) = engine.post_json(path, &body).await;
            assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(tokens)), "{name} {path}");
            assert_eq!(answer["usage"]["completion_tokens"], 2);
        }
    }
}

#[tokio::test]
async fn generation_ends_by_itself_unless_told_to_ignore_it() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    let body = json!({ "prompt": "an end", "max_tokens": 3000, "temperature": 0 });
    let (_, answer) = engine.post_json("/v1/completions", &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let seeded = json!({ "prompt": "an end", "max_tokens": 8, "temperature": 0.7, "seed": 5 });
    let other = json!({ "prompt": "an end", "max_tokens": 8, "temperature": 0.7, "seed": 6 });
    let mut texts = Vec::new();
    for body in [&seeded, &seeded, &other] {
        texts.push(engine.post_json("/v1/completions", body).await.1["choices"][0]["text"].clone());
    }
    assert!(texts[0] == texts[1] && texts[0] != texts[2]);
}

#[tokio::test]
async fn routes_are_those_of_the_release_and_openapi_lists_exactly_them() {
    let node = Node::new();
    for (version, has, lacks) in [
        ("0.8.5", vec!["/sleep"], vec!["/collective_rpc", "/pause", "/release_kv_cache_memory"]),
        ("0.16", vec!["/collective_rpc", "/pause", "/abort_requests"], vec!["/release_kv_cache_memory"]),
        ("0.31", vec!["/release_kv_cache_memory", "/reset_encoder_cache"], vec!["/weight_checker"]),
        ("0.32", vec!["/weight_checker"], vec![]),
    ] {
        let engine = node.start("B", &["--version", version, "--kv-cache-memory-bytes", "256MiB"]).await;
        let told: Value = engine.get("/version").await.json().await.unwrap();
        assert!(told["version"].as_str().unwrap().starts_with(version));
        let document: Value = engine.get("/openapi.json").await.json().await.unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert!(has.iter().all(|p| paths.contains_key(*p)) && lacks.iter().all(|p| !paths.contains_key(*p)));
        for path in lacks {
            assert_eq!(engine.post(path).await, 404, "{version} {path}");
        }
        assert_eq!(engine.get("/sleep").await.status(), 405);
        let head = engine.client.request(Method::HEAD, engine.url("/health")).send().await.unwrap();
        assert_eq!(head.status(), 405);
    }
}

#[tokio::test]
async fn metrics_move_only_with_the_engines_steps() {
    let node = Node::new();
    let engine = node.start_slow("B", 10.0, &["--enable-server-load-tracking"]).await;
    let mut stream = engine.stream(1500).await;
    stream.until(5).await;
    assert_eq!(engine.metric("vllm:num_requests_running{").await, Some(1.0));
    assert!(engine.metric("vllm:kv_cache_usage_perc{").await.unwrap() > 0.0);
    engine.until_load(1).await;
    stream.end().await;
    engine.until_load(0).await;
    assert_eq!(engine.metric("vllm:num_requests_running{").await, Some(0.0));
    assert_eq!(engine.metric("vllm:generation_tokens_total{").await, Some(1500.0));
    assert_eq!(engine.metric("vllm:iteration_tokens_total_count{").await, Some(1500.0));
    let models: Value = engine.get("/v1/models").await.json().await.unwrap();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("Qwen3-1.7B"), &json!(4096))
    );
}

#[tokio::test]
async fn a_batch_changes_no_token_and_logprobs_by_a_hair() {
    let node = Node::new();
    let engine = node.start_slow("B", 5.0, &[]).await;
    let logprobs = |body: &Value| -> Vec<f64> {
        let list = body["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone();
        list.iter().map(|l| l.as_f64().unwrap()).collect()
    };
    let (_, alone) = engine.complete(400).await;
    assert_eq!(alone["choices"], engine.complete(400).await.1["choices"], "alone it is exact");
    let all =
        tokio::join!(engine.complete(400), engine.complete(400), engine.complete(400), engine.complete(400));
    let mut differs = false;
    for (status, body) in [all.0, all.1, all.2, all.3] {
        assert_eq!((status, &body["choices"][0]["text"]), (200, &alone["choices"][0]["text"]));
        for (a, b) in logprobs(&alone).into_iter().zip(logprobs(&body)) {
            assert!((a - b).abs() <= 0.002);
            differs |= a != b;
        }
    }
    assert!(differs, "the noise is there");
}

#[tokio::test]
async fn without_development_mode_the_control_routes_are_not_there() {
    let node = Node::new();
    let off = "env:VLLM_SERVER_DEV_MODE=0";
    for (version, pause) in [("0.15.1", 200), ("0.31", 404)] {
        let engine = node.start("B", &["--version", version, "--kv-cache-memory-bytes", "256MiB", off]).await;
        for path in ["/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache"] {
            assert_eq!(engine.post(path).await, 404, "{version} {path}");
        }
        assert_eq!(engine.post("/pause").await, pause, "0.12 to 0.15 have no gate before /pause");
        let document: Value = engine.get("/openapi.json").await.json().await.unwrap();
        assert!(document["paths"].get("/sleep").is_none());
        assert_eq!(document["paths"].get("/pause").is_some(), pause == 200);
    }
}

#[tokio::test]
async fn a_long_prompt_is_taken_whole() {
    let node = Node::new();
    let engine = node.start("B", &["--max-model-len", "1000000"]).await;
    let body = json!({ "prompt": "sail ".repeat(700_000), "max_tokens": 1 });
    let (status, answer) = engine.post_json("/v1/completions", &body).await;
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(700_000)));
}

#[tokio::test]
async fn a_speed_that_is_none_is_refused() {
    let node = Node::new();
    let engine = node.start("B", &[]).await;
    assert_eq!(engine.post_json("/sim/speed", &json!({ "speed": 0 })).await.0, 400);
}

#[tokio::test]
async fn it_listens_on_a_unix_socket_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let node = Node::new();
    let socket = node.oplog().with_file_name("engine.sock");
    // One that an earlier process has left.
    std::fs::write(&socket, "").unwrap();
    let mut engine = node.launch("B", &["--uds", socket.to_str().unwrap()]);
    let mut answer = String::new();
    crate::harness::until("the socket", async || {
        let Ok(mut connection) = tokio::net::UnixStream::connect(&socket).await else { return false };
        let request = "GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).await.unwrap();
        answer.clear();
        connection.read_to_string(&mut answer).await.unwrap();
        answer.starts_with("HTTP/1.1 200 OK")
    })
    .await;
    engine.note_family();
    assert!(engine.client.get(engine.url("/health")).send().await.is_err(), "and nowhere else");
}
