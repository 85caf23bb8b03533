//! Engines that fail.

use super::*;

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_one_more_attempt() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let mut call = desk.a.call().await;
    call.json("{}").await;
    answer.await.unwrap();
    // The engine closes it in the very moment in which the next request is written.
    let answer = desk.ask(&completion("org/A", false));
    drop(call.next().await.unwrap());
    desk.a.call().await.json("{\"x\":1}").await;
    assert_eq!(answer.await.unwrap().text().await.unwrap(), "{\"x\":1}");
    desk.until_empty().await;
}

#[tokio::test]
async fn nothing_else_is_sent_again() {
    let desk = Desk::usual().await;
    // A new connection.
    let answer = desk.ask(&completion("org/A", false));
    drop(desk.a.call().await);
    let answer = answer.await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true));
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "engine_gone");
    // A used one, after bytes of an answer.
    let answer = desk.ask(&completion("org/A", false));
    let mut call = desk.a.call().await;
    call.json("{}").await;
    answer.await.unwrap();
    let answer = desk.ask(&completion("org/A", false));
    let mut call = call.next().await.unwrap();
    call.write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{").await;
    drop(call);
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 503, "half a document is none");
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "engine_gone");
    assert!(desk.a.is_left_alone().await);
    desk.until_empty().await;
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_an_error() {
    let desk = Desk::usual().await;
    for half in ["", "data: {\"choices\":"] {
        let answer = desk.ask(&completion("org/A", true));
        let mut call = desk.a.call().await;
        call.begin_stream().await;
        call.chunk(&format!("data: 1\n\n{half}")).await;
        let mut events = Events::of(answer.await.unwrap());
        events.until("data: 1\n\n").await;
        drop(call);
        let text = events.end().await;
        let rest = text.strip_prefix("data: 1\n\ndata: {\"error\":").unwrap_or_else(|| panic!("{text:?}"));
        assert!(rest.contains("engine_died") && rest.ends_with("\n\ndata: [DONE]\n\n"), "{rest}");
        desk.until_empty().await;
    }
}

/// An event that is too long to be held has been passed on in part: then an error event would be a part of it.
#[tokio::test]
async fn a_stream_that_breaks_off_within_a_huge_event_is_cut_off() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    let huge = format!("data: {}", "x".repeat(3 << 20));
    let writer = tokio::spawn(async move {
        call.chunk(&huge).await;
        call
    });
    let mut answer = answer.await.unwrap();
    let mut got = 0;
    while got < 2 << 20 {
        got += patient("a piece", answer.chunk()).await.unwrap().expect("more").len();
    }
    desk.hub.abort(A);
    loop {
        match patient("the end", answer.chunk()).await {
            Ok(Some(piece)) => assert!(!String::from_utf8_lossy(&piece).contains("error")),
            Ok(None) => panic!("it ended as if nothing had happened"),
            Err(_) => break,
        }
    }
    writer.abort();
    desk.until_empty().await;
}

#[tokio::test]
async fn an_engine_that_died_gets_nothing_again() {
    let mut desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let call = desk.a.call().await;
    let engine = desk.node.engine_mut(A);
    (engine.admission, engine.dead) = (false, true);
    desk.apply();
    call.closed().await;
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "engine_died");
    desk.until_empty().await;
}

/// A connection to an earlier life is never used for a later one.
#[tokio::test]
async fn a_new_life_has_new_connections() {
    let mut desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let mut old = desk.a.call().await;
    old.json("{}").await;
    answer.await.unwrap();
    desk.until_empty().await;
    desk.node.engine_mut(A).life = 2;
    desk.serve(A);
    let answer = desk.ask(&completion("org/A", false));
    desk.a.call().await.json("{\"life\":2}").await;
    assert_eq!(answer.await.unwrap().text().await.unwrap(), "{\"life\":2}");
}

/// vLLM's server closes connections that were idle for 5 s.
#[tokio::test]
async fn idle_connections_are_closed_in_time() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let mut call = desk.a.call().await;
    call.json("{}").await;
    answer.await.unwrap();
    let begun = Instant::now();
    call.closed().await;
    assert!(begun.elapsed() > Duration::from_secs(3), "it is kept for a while: {:?}", begun.elapsed());
}
