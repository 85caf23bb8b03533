//! What passes: bytes, headers, streams as they come; who is let through.

use super::*;

#[tokio::test]
async fn bytes_pass_untouched_and_credentials_do_not() {
    let desk = Desk::usual().await;
    let body = "{ \"model\" : \"org/A\",  \"prompt\":\"\\u00e9\" }\n";
    let sent = desk
        .http
        .post(desk.url("/v1/completions?x=1&y=%2F"))
        .body(body)
        .header("authorization", "Bearer secret");
    let sent = sent
        .header("content-type", "application/json")
        .header("traceparent", "00-1")
        .header("x-api-key", "secret");
    let answer = tokio::spawn(sent.send());
    let mut call = desk.a.call().await;
    assert_eq!(call.body, body.as_bytes());
    assert!(call.head.starts_with("POST /v1/completions?x=1&y=%2F HTTP/1.1\r\n"), "{}", call.head);
    for line in ["traceparent: 00-1\r\n", "authorization: Bearer engine-key\r\n", "x-request-id: "] {
        assert!(call.head.contains(line), "{line} in {}", call.head);
    }
    assert!(!call.head.contains("secret"));
    assert_eq!(desk.hub.in_flight(A), 1);
    let said = "{\"choices\":[{\"finish_reason\":\"length\"}], \"usage\": {\"total_tokens\": 3}}\n";
    call.json(said).await;
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["server"], "uvicorn");
    assert!(answer.headers().contains_key("x-request-id"));
    assert_eq!(answer.headers()["content-length"], said.len().to_string());
    assert_eq!(answer.text().await.unwrap(), said);
    desk.until_empty().await;

    // The same connection takes the next request, by an alias, and the client's request id stays.
    let next = desk
        .post("/v1/chat/completions", &completion("small-A", false))
        .header("x-request-id", "mine")
        .send();
    let next = tokio::spawn(next);
    let mut call = call.next().await.expect("the connection is kept");
    assert!(call.head.contains("x-request-id: mine\r\n"));
    assert_eq!(
        serde_json::from_slice::<Value>(&call.body).unwrap()["model"],
        "small-A",
        "aliases are the engine's own"
    );
    call.answer("418 I'm a teapot", "text/plain", "an engine's own words").await;
    let next = next.await.unwrap().unwrap();
    assert_eq!((next.status().as_u16(), &next.headers()["x-request-id"]), (418, &"mine".parse().unwrap()));
    assert_eq!(next.text().await.unwrap(), "an engine's own words");
    desk.until_empty().await;
}

#[tokio::test]
async fn a_stream_passes_event_by_event() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    let mut events = Events::of(answer.await.unwrap());
    assert_eq!(events.response.headers()["content-type"], "text/event-stream; charset=utf-8");
    call.chunk("data: 1\n\n").await;
    events.until("data: 1\n\n").await;
    // A piece of an event waits for its end; a whole one in front of it does not.
    call.chunk("data: 2\n\nda").await;
    events.until("data: 2\n\n").await;
    assert_eq!(events.text, "data: 1\n\ndata: 2\n\n");
    call.chunk("ta: 3\n").await;
    assert_eq!(desk.hub.in_flight(A), 1, "the lease is held as long as something may come");
    call.chunk("\ndata: [DONE]\n\n").await;
    call.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\ndata: 2\n\ndata: 3\n\ndata: [DONE]\n\n");
    desk.until_empty().await;
    // The connection is good for another.
    let next = desk.ask(&completion("org/A", false));
    call.next().await.unwrap().json("{}").await;
    assert_eq!(next.await.unwrap().status(), 200);
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let desk = Desk::usual().await;
    let image = "iVBORw0KGgo".repeat(500_000);
    let body = json!({ "messages": [{ "content": [{ "image_url": { "url": image } }] }], "model": "org/A" });
    let answer = desk.ask(&body);
    let mut call = desk.a.call().await;
    assert_eq!(serde_json::from_slice::<Value>(&call.body).unwrap(), body);
    let said = json!({ "data": image }).to_string();
    let writer = tokio::spawn(async move {
        call.json(&said).await;
        said
    });
    let answer = answer.await.unwrap();
    let got = patient("the answer", answer.text()).await.unwrap();
    assert!(got == writer.await.unwrap());
    desk.until_empty().await;
}

#[tokio::test]
async fn trailers_pass_to_those_who_take_them() {
    let desk = Desk::usual().await;
    let mut client = desk.raw().await;
    let body = completion("org/A", true).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nte: trailers\r\nconnection: te, close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes()).await.unwrap();
    let mut call = desk.a.call().await;
    assert!(call.head.contains("te: trailers\r\n"));
    call.write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n").await;
    call.chunk("data: 1\n\n").await;
    call.write("0\r\nx-sum: 42\r\n\r\n").await;
    let text = read_all(client).await;
    assert!(text.ends_with("0\r\nx-sum: 42\r\n\r\n"), "{text}");
    desk.until_empty().await;
}

#[tokio::test]
async fn forms_go_to_the_engine_of_their_model() {
    let desk = Desk::usual().await;
    let body = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n\
                --x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\norg/A\r\n--x--\r\n";
    let sent = desk.http.post(desk.url("/v1/audio/transcriptions")).body(body);
    let sent = tokio::spawn(sent.header("content-type", "multipart/form-data; boundary=x").send());
    let mut call = desk.a.call().await;
    assert_eq!(call.body, body.as_bytes());
    call.json("{\"text\":\"ahoy\"}").await;
    assert_eq!(sent.await.unwrap().unwrap().text().await.unwrap(), "{\"text\":\"ahoy\"}");
}

#[tokio::test]
async fn models_health_and_readiness_are_the_gateways() {
    let desk = Desk::usual().await;
    let get = async |path: &str| {
        let answer = desk.http.get(desk.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (status, list) = get("/v1/models").await;
    assert_eq!((status, &list["object"]), (200, &json!("list")));
    let short: Vec<(&str, &str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| {
            (m["id"].as_str().unwrap(), m["root"].as_str().unwrap(), m["hotbunk"]["tier"].as_str().unwrap())
        })
        .collect();
    assert_eq!(short[..2], [("org/A", "org/A", "awake"), ("small-A", "org/A", "awake")]);
    assert_eq!(short[2..], [("org/B", "org/B", "stopped"), ("small-B", "org/B", "stopped")]);
    assert!(list["data"][0]["created"].as_u64().unwrap() > 1_700_000_000);
    for path in ["/v1/models/org/B", "/v1/models/org%2FB"] {
        assert_eq!(get(path).await.1["id"], "org/B");
    }
    let (status, error) = get("/v1/models/nothing").await;
    assert_eq!(status, 404);
    assert!(error["error"]["message"].as_str().unwrap().contains("`small-B`"), "{error}");
    assert_eq!(get("/health").await, (200, json!({ "status": "ok" })));
    assert_eq!(get("/ready").await, (200, json!({ "status": "ready" })));
    assert!(desk.a.is_left_alone().await && desk.b.is_left_alone().await);
}

#[tokio::test]
async fn a_gateway_that_stops_ends_and_gives_its_address_back() {
    let desk = Desk::usual().await;
    let address = desk.gateway.address();
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\n").await;
    let mut events = Events::of(answer.await.unwrap());
    events.until("data: 1").await;
    let stopping = tokio::spawn(desk.gateway.stop());
    call.chunk("data: 2\n\n").await;
    call.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\ndata: 2\n\n", "what was being answered is");
    patient("the gateway to end", stopping).await.unwrap();
    std::net::TcpListener::bind(address).unwrap();
}
