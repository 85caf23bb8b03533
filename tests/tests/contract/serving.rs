//! Inference routes, as far as the agent and its gateway rely on them.

use crate::check::Check;
use crate::server::Server;
use crate::stream::End;
use crate::target::MODEL;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("serving.completion", "a completion's body: usage, finish_reason, logprobs", completion),
        Check::new(
            "serving.completion_streamed",
            "a stream's shape: chunks, finish_reason, usage, [DONE]",
            streamed,
        ),
        Check::new("serving.chat", "a chat's body and stream: the role comes first", chat),
        Check::new("serving.several_choices", "n > 1 and a list of prompts: a choice each", several),
        Check::new("serving.responses", "/v1/responses, plain and streamed", responses),
        Check::new("serving.messages", "/v1/messages and its count_tokens", messages),
        Check::new("serving.tokens", "/tokenize, /detokenize", tokens),
        Check::new("serving.bad_requests", "refusals in OpenAI's form: status, type, param", bad),
        Check::new(
            "serving.too_many_tokens_are_cut",
            "seen on 0.32: what does not fit beside the prompt",
            clipped,
        ),
        Check::new("serving.unknown_model", "404, param model", unknown),
        Check::new(
            "serving.routes_of_other_tasks",
            "a model that generates has no /v1/embeddings: 404",
            others,
        ),
    ]
}

async fn completion(server: Arc<Server>) {
    let mut body = Server::body(5);
    body["logprobs"] = json!(2);
    let reply = server.http.post_json("/v1/completions", &body).await;
    assert_eq!(reply.content_type, "application/json");
    let answer = reply.json;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!(MODEL)));
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    let (choice, usage) = (&answer["choices"][0], &answer["usage"]);
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(usage["completion_tokens"], 5);
    assert_eq!(
        usage["total_tokens"].as_u64(),
        usage["prompt_tokens"].as_u64().map(|prompt| prompt + 5),
        "{usage}"
    );
    let logprobs = &choice["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().map(Vec::len), Some(5), "{list}");
    }
    // Without a name the server's own model.
    let nameless = json!({ "prompt": "x", "max_tokens": 1 });
    assert_eq!(server.http.post_json("/v1/completions", &nameless).await.json["model"], MODEL);
}

async fn streamed(server: Arc<Server>) {
    let text = server.text(9).await;
    let mut body = Server::body(9);
    body["stream_options"] = json!({ "include_usage": true });
    let mut stream = server.http.stream("/v1/completions", &body).await;
    assert!(stream.content_type.starts_with("text/event-stream"), "{}", stream.content_type);
    let (end, got) = stream.end().await;
    assert_eq!((end, got), (End::Finish("length".into()), text));
    let seen = stream.seen();
    // Chunks are not tokens: a slow reader gets merged ones.
    assert!((1..=9).contains(&seen.chunks), "{}", seen.chunks);
    let last = seen.events.last().expect("an event");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(9)));
    assert!(seen.events.iter().all(|e| e["object"] == "text_completion" && e["model"] == MODEL));
    let reasons: Vec<&Value> =
        seen.events.iter().filter_map(|e| e["choices"].get(0)).map(|c| &c["finish_reason"]).collect();
    let (last, rest) = reasons.split_last().expect("a choice");
    assert!(*last == "length" && rest.iter().all(|r| r.is_null()));
}

async fn chat(server: Arc<Server>) {
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hello there" }], "max_tokens": 4,
                       "temperature": 0, "ignore_eos": true, "logprobs": true });
    let path = "/v1/chat/completions";
    let answer = server.http.post_json(path, &body).await.json;
    assert_eq!(
        (&answer["object"], &answer["usage"]["completion_tokens"]),
        (&json!("chat.completion"), &json!(4))
    );
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().map(Vec::len), Some(4));
    let mut body = body;
    body["stream_options"] = json!({ "include_usage": true });
    let mut stream = server.http.stream(path, &body).await;
    assert_eq!(stream.end().await.0, End::Finish("length".into()));
    let mut events = stream.seen().events.clone();
    let usage = events.pop().expect("the last event is the usage");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(4)));
    let logprob = |e: &Value| e["choices"][0]["logprobs"]["content"][0]["logprob"].as_f64();
    assert!(events.iter().skip(1).all(|e| logprob(e).is_some_and(|l| l <= 0.0)));
    let first = &events[0]["choices"][0];
    assert_eq!(first["delta"], json!({ "role": "assistant", "content": "" }));
    let deltas = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!(Some(deltas.collect::<String>().as_str()), message["content"].as_str());
    assert!(events.iter().all(|e| e["object"] == "chat.completion.chunk"));
    // Any role will do.
    let odd = json!({ "messages": [{ "role": "captain", "content": "x" }], "max_tokens": 1 });
    assert_eq!(server.http.post_json(path, &odd).await.status, 200);
}

async fn several(server: Arc<Server>) {
    let path = "/v1/completions";
    let two = json!({ "prompt": "x", "n": 2, "temperature": 1, "max_tokens": 3, "ignore_eos": true });
    let answer = server.http.post_json(path, &two).await.json;
    let indices = |answer: &Value| -> Vec<u64> {
        answer["choices"].as_array().into_iter().flatten().filter_map(|c| c["index"].as_u64()).collect()
    };
    assert_eq!(indices(&answer), [0, 1]);
    assert_eq!(answer["usage"]["completion_tokens"], 6, "of both");
    let prompts = json!({ "prompt": ["a", "b", "c"], "max_tokens": 2, "ignore_eos": true, "temperature": 0 });
    let answer = server.http.post_json(path, &prompts).await.json;
    assert_eq!((indices(&answer), &answer["usage"]["completion_tokens"]), (vec![0, 1, 2], &json!(6)));
    let mut stream = server.http.stream(path, &two).await;
    assert_eq!(stream.end().await.0, End::Finish("length".into()));
    let events = stream.seen().events.clone();
    let reasons = events.iter().filter(|e| e["choices"][0]["finish_reason"] == "length");
    let mut ended: Vec<u64> = reasons.filter_map(|e| e["choices"][0]["index"].as_u64()).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1]);
    let reply = server.http.post_json(path, &json!({ "prompt": "x", "n": 2, "temperature": 0 })).await;
    assert_eq!(reply.error(400).0, "n must be 1 when using greedy sampling, got 2.");
    let reply = server.http.post_json(path, &json!({ "prompt": "x", "n": 0 })).await;
    assert_eq!(reply.error(400).0, "n must be at least 1, got 0.");
}

/// The names of a stream's events, in order, without repetitions.
fn kinds(stream: &crate::stream::Stream) -> Vec<String> {
    let mut kinds: Vec<String> =
        stream.seen().events.iter().map(|e| e["type"].as_str().unwrap_or_default().to_owned()).collect();
    kinds.dedup();
    kinds
}

async fn responses(server: Arc<Server>) {
    // Not greedy: a real model of random weights may then say nothing at all, and a block without text is left out.
    let body = json!({ "model": MODEL, "input": "hello", "max_output_tokens": 60, "temperature": 1 });
    let answer = server.http.post_json("/v1/responses", &body).await.json;
    assert_eq!((&answer["object"], &answer["model"]), (&json!("response"), &json!(MODEL)));
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["content"][0]["type"]), (&json!("message"), &json!("output_text")));
    assert!(answer["usage"]["output_tokens"].as_u64().is_some_and(|n| n > 0));
    let mut stream = server.http.stream("/v1/responses", &body).await;
    assert!(stream.content_type.starts_with("text/event-stream"));
    stream.end().await;
    let kinds = kinds(&stream);
    assert_eq!((kinds[0].as_str(), kinds[1].as_str()), ("response.created", "response.in_progress"));
    assert_eq!(kinds.last().map(String::as_str), Some("response.completed"), "and no [DONE]");
    assert_eq!(
        server.http.post_json("/v1/responses", &json!({ "model": MODEL })).await.error(400).1,
        "body.input"
    );
}

async fn messages(server: Arc<Server>) {
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 60,
                       "temperature": 1 });
    let answer = server.http.post_json("/v1/messages", &body).await.json;
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!((&answer["content"][0]["type"], &answer["model"]), (&json!("text"), &json!(MODEL)));
    let input = answer["usage"]["input_tokens"].clone();
    let counted = server.http.post_json("/v1/messages/count_tokens", &body).await.json;
    assert_eq!(counted["input_tokens"], input);
    let mut stream = server.http.stream("/v1/messages", &body).await;
    stream.end().await;
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&stream), expected, "and no [DONE]");
    let endless = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "x" }] });
    assert_eq!(server.http.post_json("/v1/messages", &endless).await.error(400).1, "body.max_tokens");
    let mut nobodys = body;
    nobodys["model"] = json!("nobody");
    let reply = server.http.post_json("/v1/messages", &nobodys).await;
    assert_eq!((reply.status, &reply.json["type"]), (404, &json!("error")), "a form of its own");
    assert_eq!(reply.json["error"]["type"], "NotFoundError");
}

async fn tokens(server: Arc<Server>) {
    let told =
        server.http.post_json("/tokenize", &json!({ "model": MODEL, "prompt": "hello there" })).await.json;
    let tokens = told["tokens"].as_array().expect("tokens").clone();
    assert_eq!((told["count"].as_u64(), &told["max_model_len"]), (Some(tokens.len() as u64), &json!(2048)));
    let back = server.http.post_json("/detokenize", &json!({ "model": MODEL, "tokens": tokens })).await.json;
    assert!(back["prompt"].is_string());
}

async fn bad(server: Arc<Server>) {
    let path = "/v1/completions";
    for (body, param, word) in [
        (
            json!({ "prompt": "x", "max_tokens": 0 }),
            json!("max_tokens"),
            "max_tokens must be at least 1, got 0.",
        ),
        (
            json!({ "prompt": "x", "max_tokens": -1 }),
            json!("max_tokens"),
            "max_tokens must be at least 1, got -1.",
        ),
        (
            json!({ "prompt": "x", "max_tokens": 5000 }),
            json!("max_tokens"),
            "cannot be greater than max_model_len=2048",
        ),
        (json!({ "prompt": "x", "max_tokens": "many" }), json!("body.max_tokens"), "valid integer"),
        (json!({ "prompt": "x", "temperature": -1 }), json!("temperature"), "must be non-negative"),
        (json!({ "prompt": "x", "top_p": 2 }), json!("top_p"), "top_p must be in (0, 1], got 2.0."),
        (json!({ "prompt": "x", "logprobs": 100 }), json!("logprobs"), "greater than max allowed: 20"),
        (
            json!({ "prompt": "x", "stream_options": { "include_usage": true } }),
            json!("stream_options"),
            "Stream options",
        ),
        (json!({ "max_tokens": 1 }), json!("prompt"), "must be provided and non-empty"),
        (json!({ "prompt": "" }), json!("prompt"), "must be provided and non-empty"),
        (json!({ "prompt": [] }), Value::Null, "at least one prompt"),
        (json!([]), json!("body"), "valid dictionary"),
    ] {
        let reply = server.http.post_json(path, &body).await;
        let (message, named) = reply.error(400);
        assert!(message.contains(word), "{body}: {message}");
        assert_eq!(named, &param, "{body}");
    }
    // What FastAPI refuses is a `Bad Request`, what vLLM refuses a `BadRequestError`.
    let reply = server.http.post_json(path, &json!({ "prompt": "x", "max_tokens": "many" })).await;
    assert_eq!(reply.json["error"]["type"], "Bad Request");
    let reply = server.http.post_json(path, &json!({ "prompt": "x", "max_tokens": 0 })).await;
    assert_eq!(reply.json["error"]["type"], "BadRequestError");
    let reply = server.http.post_text(path, "application/json", "{\"prompt\":").await;
    assert!(reply.error(400).0.contains("JSON decode error"), "{}", reply.text);
    for kind in ["application/x-www-form-urlencoded", "text/plain"] {
        let reply = server.http.post_text(path, kind, "{\"prompt\":\"x\"}").await;
        assert!(reply.error(400).0.contains("Unsupported Media Type"), "{}", reply.text);
    }
    for (body, param, word) in [
        (json!({ "messages": [] }), Value::Null, "empty conversation"),
        (json!({}), json!("body.messages"), "Field required"),
        (json!({ "messages": "x" }), json!("body.messages"), "valid list"),
    ] {
        let reply = server.http.post_json("/v1/chat/completions", &body).await;
        let (message, named) = reply.error(400);
        assert!(message.contains(word), "{body}: {message}");
        assert_eq!(named, &param, "{body}");
    }
    // What is not known is ignored.
    assert_eq!(
        server.http.post_json(path, &json!({ "prompt": "x", "max_tokens": 1, "bogus": 1 })).await.status,
        200
    );
}

async fn clipped(server: Arc<Server>) {
    let body = json!({ "prompt": "x y z", "max_tokens": 2048, "ignore_eos": true });
    let answer = server.http.post_json("/v1/completions", &body).await.json;
    let usage = &answer["usage"];
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &usage["total_tokens"]),
        (&json!("length"), &json!(2048))
    );
    // A prompt that does not fit is refused.
    let body = json!({ "prompt": "sail ".repeat(4000), "max_tokens": 1 });
    let reply = server.http.post_json("/v1/completions", &body).await;
    assert!(reply.error(400).0.contains("maximum context length is 2048"), "{}", reply.text);
}

async fn unknown(server: Arc<Server>) {
    let chat = json!([{ "role": "user", "content": "x" }]);
    for (path, body) in [
        ("/v1/completions", json!({ "model": "nobody", "prompt": "x" })),
        ("/v1/chat/completions", json!({ "model": "nobody", "messages": chat })),
        ("/v1/responses", json!({ "model": "nobody", "input": "x" })),
    ] {
        let reply = server.http.post_json(path, &body).await;
        let (message, param) = reply.error(404);
        assert!(message.starts_with("The model `nobody` does not exist."), "{message}");
        assert_eq!((param, &reply.json["error"]["type"]), (&json!("model"), &json!("NotFoundError")));
    }
}

async fn others(server: Arc<Server>) {
    for path in ["/v1/embeddings", "/v1/score", "/v1/rerank", "/v1/audio/transcriptions"] {
        let reply = server.http.post_json(path, &json!({ "model": MODEL, "input": "x" })).await;
        assert_eq!((reply.status, reply.json), (404, json!({ "detail": "Not Found" })), "{path}");
    }
}
