//! A gateway that goes: nobody is cut off who can be answered, and nobody waits for it in vain.

use super::*;
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

/// A request as it stands on the wire.
fn wire(model: &str, stream: bool) -> String {
    let body = completion(model, stream).to_string();
    format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Reads one answer with a length from a connection that stays open, or closes behind it.
async fn one_answer(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    patient("an answer", async {
        loop {
            let so_far = String::from_utf8_lossy(&text).into_owned();
            if let Some((head, body)) = so_far.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
                if length.is_some_and(|length| body.len() >= length.parse::<usize>().unwrap()) {
                    return so_far;
                }
            }
            assert_ne!(socket.read_buf(&mut text).await.unwrap(), 0, "it ended after {so_far:?}");
        }
    })
    .await
}

async fn is_closed(mut socket: TcpStream) {
    let mut rest = Vec::new();
    patient("the connection to close", socket.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
}

/// Goes, in the background; the gateway comes back when every connection that there was is over.
fn leave(hub: &Arc<Hub>, mut gateway: Gateway) -> JoinHandle<Gateway> {
    hub.leave();
    tokio::spawn(async move {
        gateway.leave().await;
        gateway
    })
}

/// The engine answers one request, and closes.
async fn answered(engine: &Engine) {
    let mut call = engine.call().await;
    call.json("{\"x\":1}").await;
}

async fn refused(answer: reqwest::Response) {
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "2"));
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "restarting");
}

/// Waits until new connections are turned away; a client whose connections are all new.
async fn until_its_thread_knows(url: &str) -> reqwest::Client {
    let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    loop {
        // One that was accepted just before is served as usual.
        let answer = http.get(format!("{url}/health")).send().await.unwrap();
        if answer.status() == 503 {
            refused(answer).await;
            return http;
        }
    }
}

#[tokio::test]
async fn what_runs_is_finished_and_who_waits_is_told() {
    let desk = Desk::new("", |g| g.keep_alive = Duration::from_millis(30)).await;
    let mut desk = desk;
    desk.serve(A);
    let stream = desk.ask(&completion("org/A", true));
    let mut streaming = desk.a.call().await;
    streaming.begin_stream().await;
    streaming.chunk("data: 1\n\n").await;
    let mut events = Events::of(stream.await.unwrap());
    events.until("data: 1\n\n").await;
    let plain = desk.ask(&completion("org/A", false));
    let mut answering = desk.a.call().await;
    let held = desk.ask(&completion("org/B", false));
    let mut begun = Events::of(desk.ask(&completion("org/B", true)).await.unwrap());
    begun.until(": hotbunk waiting").await;
    until("both to be held", || desk.hub.held(B) == 2).await;

    let url = desk.url("");
    let Desk { hub, gateway, .. } = desk;
    let leaving = leave(&hub, gateway);
    until_its_thread_knows(&url).await;
    refused(held.await.unwrap()).await;
    let text = begun.end().await;
    assert!(text.contains("\"code\":\"restarting\"") && text.ends_with("data: [DONE]\n\n"), "{text}");
    answering.json("{\"x\":1}").await;
    let answer = plain.await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["connection"].to_str().unwrap()), (200, "close"));
    assert_eq!(answer.text().await.unwrap(), "{\"x\":1}");
    assert!(!leaving.is_finished(), "a stream runs");
    streaming.chunk("data: 2\n\n").await;
    streaming.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\ndata: 2\n\n");
    patient("the end", leaving).await.unwrap().stop().await;
}

#[tokio::test]
async fn who_is_here_is_served_once_more_and_who_is_silent_is_not_waited_for() {
    let desk = Desk::usual().await;
    let mut kept = desk.raw().await;
    kept.write_all(wire("org/A", false).as_bytes()).await.unwrap();
    answered(&desk.a).await;
    let answer = one_answer(&mut kept).await;
    assert!(!answer.contains("connection: close"), "{answer}");
    let (mut half, mut new, silent) = (desk.raw().await, desk.raw().await, desk.raw().await);
    let text = wire("org/A", false);
    half.write_all(&text.as_bytes()[..20]).await.unwrap();
    // All of them have been accepted by the time that a later one is answered.
    assert_eq!(desk.http.get(desk.url("/health")).send().await.unwrap().status(), 200);

    let url = desk.url("");
    let Desk { hub, gateway, a, .. } = desk;
    let leaving = leave(&hub, gateway);
    until_its_thread_knows(&url).await;
    let begun = [(&mut kept, &*text), (&mut half, &text[20..]), (&mut new, &*text)];
    for (socket, text) in begun {
        socket.write_all(text.as_bytes()).await.unwrap();
    }
    for _ in 0..3 {
        answered(&a).await;
    }
    for socket in [&mut kept, &mut half, &mut new] {
        let answer = one_answer(socket).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("{\"x\":1}"), "{answer}");
    }
    for socket in [kept, half, new, silent] {
        is_closed(socket).await;
    }
    patient("the end", leaving).await.unwrap().stop().await;
}

#[tokio::test]
async fn who_reads_slowly_gets_all_of_the_answer() {
    let desk = Desk::usual().await;
    let mut slow = Vec::new();
    // Some of these fit into what the kernel keeps, some into what the gateway keeps besides, some into neither.
    for size in [100_000, 3_000_000, 4_000_000, 5_000_000] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        let mut socket = socket.connect(desk.gateway.address()).await.unwrap();
        socket.write_all(wire("org/A", false).as_bytes()).await.unwrap();
        let mut call = desk.a.call().await;
        let text = json!({ "x": "y".repeat(size) }).to_string();
        slow.push((socket, text.clone()));
        tokio::spawn(async move { call.json(&text).await });
    }
    let silent = desk.raw().await;
    assert_eq!(desk.http.get(desk.url("/health")).send().await.unwrap().status(), 200);
    let Desk { hub, gateway, a, .. } = desk;
    let leaving = leave(&hub, gateway);
    // Whoever has nothing more to get is gone by then.
    is_closed(silent).await;
    for (mut socket, text) in slow {
        let mut answer = Vec::new();
        patient("all of it", socket.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.ends_with(format!("\r\n\r\n{text}").as_bytes()), "{} of {}", answer.len(), text.len());
    }
    patient("the end", leaving).await.unwrap().stop().await;
    drop(a);
}

#[tokio::test]
async fn who_comes_is_told_so_where_nobody_else_will_answer() {
    let desk = Desk::usual().await;
    let stream = desk.ask(&completion("org/A", true));
    let mut streaming = desk.a.call().await;
    streaming.begin_stream().await;
    let events = Events::of(stream.await.unwrap());
    let url = desk.url("");
    let Desk { hub, gateway, .. } = desk;
    let leaving = leave(&hub, gateway);
    let http = until_its_thread_knows(&url).await;
    refused(
        http.post(format!("{url}/v1/completions")).json(&completion("org/A", true)).send().await.unwrap(),
    )
    .await;
    let messages =
        http.post(format!("{url}/v1/messages")).json(&completion("org/A", true)).send().await.unwrap();
    assert_eq!(messages.json::<Value>().await.unwrap()["type"], "error", "in the API's own form");
    assert!(!leaving.is_finished());
    streaming.end_stream().await;
    assert_eq!(events.end().await, "");
    patient("the end", leaving).await.unwrap().stop().await;
    assert!(http.get(format!("{url}/health")).send().await.is_err(), "it has closed");
}

#[tokio::test]
async fn who_comes_waits_for_the_next_gateway_where_the_socket_stays() {
    let kept = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let on = || Listen::Sockets(vec![kept.try_clone().unwrap()]);
    let mut desk = Desk::on(on(), "", |g| g.threads = Some(2)).await;
    desk.serve(A);
    let Desk { hub, gateway, a, .. } = desk;
    let gateway = patient("the end", leave(&hub, gateway)).await.unwrap();
    let mut waiting = TcpStream::connect(kept.local_addr().unwrap()).await.unwrap();
    waiting.write_all(wire("org/A", false).as_bytes()).await.unwrap();
    gateway.stop().await;
    assert!(a.is_left_alone().await);
    let mut desk = Desk::on(on(), "", |_| {}).await;
    desk.serve(A);
    answered(&desk.a).await;
    let answer = one_answer(&mut waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn what_takes_too_long_is_ended_with_an_error() {
    let desk = Desk::usual().await;
    let stream = desk.ask(&completion("org/A", true));
    let mut streaming = desk.a.call().await;
    streaming.begin_stream().await;
    streaming.chunk("data: 1\n\n").await;
    let mut events = Events::of(stream.await.unwrap());
    events.until("data: 1\n\n").await;
    let plain = desk.ask(&completion("org/A", false));
    let answering = desk.a.call().await;
    let Desk { hub, gateway, .. } = desk;
    let leaving = leave(&hub, gateway);
    assert_eq!(hub.all_in_flight(), 2);
    hub.cut();
    refused(plain.await.unwrap()).await;
    let text = events.end().await;
    assert!(text.starts_with("data: 1\n\ndata: {\"error\":") && text.contains("\"restarting\""), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    // The engine is told as well.
    streaming.closed().await;
    answering.closed().await;
    patient("the end", leaving).await.unwrap().stop().await;
}

#[tokio::test]
async fn connections_go_on_with_the_next_gateway() {
    let kept = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let on = || Listen::Sockets(vec![kept.try_clone().unwrap()]);
    let mut old = Desk::on(on(), "", |_| {}).await;
    old.serve(A);
    let request = |stream: bool| wire("org/A", stream);
    // One that has been used, one that is new, one on which a stream runs, one whose next request has come in part, and one
    // whose client was refused before it had sent all of its request.
    let mut used = old.raw().await;
    used.write_all(request(false).as_bytes()).await.unwrap();
    answered(&old.a).await;
    one_answer(&mut used).await;
    let mut streams = old.raw().await;
    streams.write_all(request(true).as_bytes()).await.unwrap();
    let mut streaming = old.a.call().await;
    streaming.begin_stream().await;
    let mut half = old.raw().await;
    half.write_all(&request(false).as_bytes()[..20]).await.unwrap();
    let mut refused = old.raw().await;
    refused.write_all(b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nGET").await.unwrap();
    let mut new = old.raw().await;
    assert_eq!(old.http.get(old.url("/health")).send().await.unwrap().status(), 200);
    let Desk { mut gateway, a, http: _keeps_one, .. } = old;

    let mut next = Desk::on(on(), "", |_| {}).await;
    next.serve(A);
    let mut going = gateway.pass_on();
    let takes = next.gateway.takes();
    // The connection of the client that asked for its health is a third.
    for _ in 0..3 {
        takes.take(patient("a connection", going.recv()).await.unwrap());
    }
    for socket in [&mut used, &mut new] {
        socket.write_all(wire("org/A", false).as_bytes()).await.unwrap();
        answered(&next.a).await;
        let answer = one_answer(socket).await;
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
    }
    half.write_all(&request(false).as_bytes()[20..]).await.unwrap();
    answered(&a).await;
    assert!(one_answer(&mut half).await.starts_with("HTTP/1.1 200"), "it had begun");
    takes.take(patient("it as well", going.recv()).await.unwrap());
    streaming.chunk("data: 1\n\n").await;
    streaming.end_stream().await;
    takes.take(patient("the one that streamed", going.recv()).await.unwrap());
    // Were it passed on, what is still to come of its request would be read as another.
    assert!(one_answer(&mut refused).await.starts_with("HTTP/1.1 404"));
    is_closed(refused).await;
    let over = tokio::spawn(async move {
        gateway.leave().await;
        gateway.stop().await;
    });
    patient("the end", over).await.unwrap();
    assert!(patient("no more of them", going.recv()).await.is_none());
    for socket in [half, streams] {
        let mut text = Vec::new();
        let (mut read, mut write) = socket.into_split();
        write.write_all(wire("org/A", false).as_bytes()).await.unwrap();
        answered(&next.a).await;
        patient("its answer", async {
            while !String::from_utf8_lossy(&text).contains("{\"x\":1}") {
                assert_ne!(read.read_buf(&mut text).await.unwrap(), 0);
            }
        })
        .await;
    }
}
