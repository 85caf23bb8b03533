//! Requests that are wrong, and clients that misbehave.

use super::*;

/// Sends bytes and reads what comes until the connection closes.
async fn raw(desk: &Desk, text: impl AsRef<[u8]>) -> String {
    let mut client = desk.raw().await;
    // It may be closed before all of it is written.
    let _ = client.write_all(text.as_ref()).await;
    read_all(client).await
}

/// The status and the error of a raw answer, which must be in OpenAI's form.
fn error(text: &str) -> (u16, Value) {
    let status =
        text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.to_lowercase().contains("content-type: application/json"), "{text}");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {text}"));
    let error = body["error"].clone();
    for key in ["message", "type", "code"] {
        assert!(error[key].is_string(), "{error}");
    }
    assert!(error.get("param").is_some());
    (status, error)
}

fn request(path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

#[tokio::test]
async fn the_table() {
    let tenants = "\n[[tenant]]\nname = \"t\"\nkey_sha256 = [\"5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8\"]\n";
    let change = |gateway: &mut config::Gateway| {
        gateway.max_body = 100_000;
        gateway.max_header = 16 << 10;
        gateway.header_timeout = Duration::from_millis(300);
    };
    let mut desk = Desk::new(tenants, change).await;
    desk.serve(A);
    let key = "authorization: Bearer password\r\n";
    let path = "/v1/completions";
    let ok = "{\"model\":\"org/A\"}";
    let long = format!("{{\"model\":\"org/A\",\"prompt\":\"{}\"}}", "x".repeat(200_000));
    let chunked = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{key}transfer-encoding: chunked\r\nconnection: close\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let header = format!("{key}x-long: {}\r\n", "y".repeat(20 << 10));
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let cases = [
        ("no key", request(path, "", ok), 401, "invalid_api_key", "API key"),
        (
            "wrong key",
            request(path, "authorization: Bearer wrong\r\n", ok),
            401,
            "invalid_api_key",
            "not known",
        ),
        (
            "models, no key",
            "GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(),
            401,
            "invalid_api_key",
            "API key",
        ),
        ("two hosts", request(path, &format!("{key}host: y\r\n"), ok), 400, "ambiguous_header", "`host`"),
        (
            "encoded in two ways",
            request(path, &format!("{key}content-encoding: identity\r\ncontent-encoding: gzip\r\n"), ok),
            400,
            "ambiguous_header",
            "`content-encoding`",
        ),
        ("no body", request(path, key, ""), 400, "invalid_json", "not valid JSON"),
        ("malformed", request(path, key, "{\"model\":"), 400, "invalid_json", "not valid JSON"),
        ("an array", request(path, key, "[]"), 400, "invalid_json", "must be a JSON object"),
        ("no model", request(path, key, "{}"), 400, "model_required", "GET /v1/models"),
        ("a number", request(path, key, "{\"model\":7}"), 400, "invalid_model", "must be a string"),
        (
            "unknown",
            request(path, key, "{\"model\":\"nope\"}"),
            404,
            "model_not_found",
            "`org/A`, `small-A`, `org/B`",
        ),
        ("engine's name", request(path, key, "{\"model\":\"A\"}"), 404, "model_not_found", "does not exist"),
        ("too long", request(path, key, &long), 413, "body_too_large", "100000 bytes"),
        ("too long, chunked", chunked, 413, "body_too_large", "100000 bytes"),
        ("header", request(path, &header, ok), 431, "header_too_large", "max_header"),
        ("headers", request(path, &many, ok), 431, "header_too_large", "too many"),
        (
            "compressed",
            request(path, &format!("{key}content-encoding: gzip\r\n"), ok),
            415,
            "content_encoding",
            "not supported",
        ),
        (
            "no boundary",
            request(path, &format!("{key}content-type: multipart/form-data\r\n"), ok),
            400,
            "invalid_form",
            "boundary",
        ),
        ("no HTTP", "rubbish\r\n\r\n".to_owned(), 400, "invalid_http", "HTTP/1.1"),
        ("HTTP/3", "GET / HTTP/3.0\r\n\r\n".to_owned(), 400, "invalid_http", "HTTP/1.1"),
        (
            "two lengths",
            format!("POST {path} HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
            400,
            "invalid_http",
            "HTTP/1.1",
        ),
        (
            "GET",
            format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            405,
            "method_not_allowed",
            "POST",
        ),
        (
            "no switch",
            request(path, &format!("{key}x-no-switch: 1\r\n"), "{\"model\":\"org/B\"}"),
            409,
            "would_switch",
            "X-No-Switch",
        ),
        ("tokenize", request("/tokenize", key, "{\"model\":\"org/B\"}"), 409, "would_switch", "not ready"),
        ("slow head", "POST / HTTP/1.1\r\nx: ".to_owned(), 408, "header_too_slow", "in time"),
    ];
    for (what, text, status, code, words) in cases {
        let (got, error) = error(&raw(&desk, &text).await);
        assert_eq!((got, error["code"].as_str().unwrap()), (status, code), "{what}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{what}: {error}");
    }
    assert!(desk.a.is_left_alone().await && desk.b.is_left_alone().await);
    desk.until_empty().await;
    // It serves on.
    let mut client = desk.raw().await;
    client.write_all(request(path, key, ok).as_bytes()).await.unwrap();
    desk.a.call().await.json("{}").await;
    assert!(read_all(client).await.starts_with("HTTP/1.1 200 OK"));
    desk.until_empty().await;
}

#[tokio::test]
async fn a_silent_connection_is_closed_and_a_kept_one_is_not_too_slow() {
    let mut desk = Desk::new("", |g| g.header_timeout = Duration::from_millis(200)).await;
    desk.serve(A);
    assert_eq!(raw(&desk, "").await, "", "nothing is said to whoever says nothing");
    let mut client = desk.raw().await;
    let get = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    for _ in 0..2 {
        client.write_all(get.as_bytes()).await.unwrap();
        let mut text = String::new();
        while !text.ends_with("{\"status\":\"ok\"}") {
            let mut piece = [0; 512];
            let n = patient("the answer", client.read(&mut piece)).await.unwrap();
            assert_ne!(n, 0, "{text}");
            text.push_str(std::str::from_utf8(&piece[..n]).unwrap());
        }
        // One that comes now and says nothing is closed: so long a head may take, and a connection may be idle for longer.
        assert_eq!(raw(&desk, "").await, "");
    }
    // But once the next head has begun, it has to come.
    client.write_all(b"GET /hea").await.unwrap();
    let (status, error) = error(&read_all(client).await);
    assert_eq!((status, &error["code"]), (408, &json!("header_too_slow")));
}

/// I9, over real sockets: every control route in every spelling is a 404 in OpenAI's form, and no engine hears of it.
#[tokio::test]
async fn control_routes_are_not_reachable() {
    let mut desk = Desk::usual().await;
    desk.serve(B);
    let body = completion("org/A", false).to_string();
    let mut asked = 0;
    for name in [
        "sleep",
        "wake_up",
        "collective_rpc",
        "pause",
        "resume",
        "abort_requests",
        "server_info",
        "load",
        "metrics",
        "v1/load_lora_adapter",
    ] {
        for target in [
            format!("/{name}"),
            format!("//{name}"),
            format!("/{name}?level=2"),
            format!("/v1/../{name}"),
            format!("/v1/%2e%2e/{name}"),
            format!("/v1/chat/completions/..%2f..%2f..%2f{name}"),
            format!("/v1//../{name}"),
            format!("/./{name}"),
            format!("/{name}/"),
            format!("/{name}#x"),
            format!("http://127.0.0.1:{}/{name}", desk.a.port),
            format!("http://127.0.0.1:{}/v1/../{name}", desk.a.port),
            format!("HTTP://x//{name}"),
            name.to_owned(),
            format!("*/{name}"),
        ] {
            for method in ["POST", "GET"] {
                let text = format!(
                    "{method} {target} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\nx-original-url: /{name}\r\nx-rewrite-url: /{name}\r\n\
                     x-http-method-override: POST\r\nconnection: close\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n{body}",
                    desk.a.port,
                    body.len()
                );
                let (status, error) = error(&raw(&desk, text).await);
                // What is no HTTP is 400.
                assert!(matches!(status, 404 | 400), "{method} {target}: {status} {error}");
                asked += 1;
            }
        }
    }
    assert!(desk.a.is_left_alone().await && desk.b.is_left_alone().await, "{asked} asked");
    desk.until_empty().await;
}

/// A whole address in the request line is allowed by HTTP; only its path counts.
#[tokio::test]
async fn an_absolute_address_means_its_path() {
    let desk = Desk::usual().await;
    let mut client = desk.raw().await;
    let text = request("http://elsewhere:1/v1/completions?x=1", "", "{\"model\":\"org/A\"}");
    client.write_all(text.as_bytes()).await.unwrap();
    let mut call = desk.a.call().await;
    assert!(call.head.starts_with("POST /v1/completions?x=1 HTTP/1.1\r\n"), "{}", call.head);
    call.json("{}").await;
    assert!(read_all(client).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn clients_that_hang_up_leave_nothing_behind() {
    let mut desk = Desk::usual().await;
    let text = request("/v1/completions", "", "{\"model\":\"org/A\"}");
    let held = request("/v1/completions", "", "{\"model\":\"org/B\"}");
    let stream = request("/v1/completions", "", "{\"model\":\"org/B\",\"stream\":true}");
    // Within the head, within the body.
    for cut in [10, text.len() - 3] {
        let mut client = desk.raw().await;
        client.write_all(&text.as_bytes()[..cut]).await.unwrap();
        drop(client);
    }
    // While it waits for its model.
    for text in [&held, &stream] {
        let mut client = desk.raw().await;
        client.write_all(text.as_bytes()).await.unwrap();
        until("the request to be held", || desk.hub.held(B) == 1).await;
        drop(client);
        until("it to leave the queue", || desk.hub.held(B) == 0).await;
    }
    // Before the engine has answered.
    let mut client = desk.raw().await;
    client.write_all(text.as_bytes()).await.unwrap();
    let call = desk.a.call().await;
    assert_eq!(desk.hub.in_flight(A), 1);
    drop(client);
    call.closed().await;
    desk.until_empty().await;
    // Within the answer, plain and streamed.
    for head in [
        "content-type: application/json\r\ncontent-length: 100",
        "content-type: text/plain\r\ncontent-length: 100",
        "content-type: text/event-stream\r\ncontent-length: 100",
    ] {
        let mut client = desk.raw().await;
        client.write_all(text.as_bytes()).await.unwrap();
        let mut call = desk.a.call().await;
        call.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\ndata: 1\n\n")).await;
        if head.contains("json") {
            until("the answer to be read", || desk.hub.in_flight(A) == 1).await;
        } else {
            client.read_exact(&mut [0; 15]).await.unwrap();
        }
        drop(client);
        call.closed().await;
        desk.until_empty().await;
    }
    // A stream that began in the queue.
    let mut desk2 = Desk::new("", |g| g.keep_alive = Duration::from_millis(50)).await;
    desk2.serve(A);
    let mut client = desk2.raw().await;
    client.write_all(stream.as_bytes()).await.unwrap();
    client.read_exact(&mut [0; 15]).await.unwrap();
    assert_eq!(desk2.hub.held(B), 1);
    drop(client);
    desk2.until_empty().await;
    assert!(desk.b.is_left_alone().await && desk2.b.is_left_alone().await);
    desk.serve(B);
    desk.until_empty().await;
}
