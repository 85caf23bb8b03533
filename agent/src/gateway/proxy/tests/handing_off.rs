//! Requests through handoffs: held, frozen, ended from outside and sent again.

use super::*;

const ABORT: &str = "{\"choices\":[{\"text\":\" half\",\"finish_reason\":\"abort\"}]}";

fn data(event: &str) -> Value {
    let data = event
        .lines()
        .find_map(|l| l.strip_prefix("data: "))
        .unwrap_or_else(|| panic!("no data in {event:?}"));
    serde_json::from_str(data).unwrap()
}

/// The error that a stream ended with, which must be its last event but for vLLM's `[DONE]`.
fn last_error(text: &str) -> (String, Value) {
    let (before, error) =
        text.split_once("data: {\"error\"").unwrap_or_else(|| panic!("no error in {text:?}"));
    let error = format!("data: {{\"error\"{error}");
    let (error, done) = error.split_once("\n\n").unwrap();
    assert_eq!(done, "data: [DONE]\n\n");
    (before.to_owned(), data(error)["error"].clone())
}

#[tokio::test]
async fn a_plain_request_waits_for_its_model() {
    let mut desk = Desk::usual().await;
    let first = desk.ask(&completion("org/B", false));
    until("the first to be held", || desk.hub.held(B) == 1).await;
    let second = desk.ask(&completion("org/B", false));
    until("the second to be held", || desk.hub.held(B) == 2).await;
    assert!(desk.b.is_left_alone().await, "nothing reaches an engine that is not awake");
    desk.serve(B);
    for _ in 0..2 {
        desk.b.call().await.json("{\"x\":1}").await;
    }
    for (answer, position) in [(first, "1"), (second, "2")] {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["x-hotbunk-queue-position"], position);
        assert_eq!(answer.text().await.unwrap(), "{\"x\":1}");
    }
    desk.until_empty().await;
}

#[tokio::test]
async fn who_waits_too_long_is_told_when_to_come_back() {
    let desk = Desk::new("", |g| {
        g.hold_deadline = Duration::from_millis(50);
        g.hold_stream_deadline = Duration::from_millis(300);
        g.keep_alive = Duration::from_millis(20);
    })
    .await;
    let answer = desk.ask(&completion("org/B", false)).await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "not_ready_in_time");
    let answer = desk.ask(&completion("org/B", true)).await.unwrap();
    assert_eq!(answer.status(), 200, "it has begun by then");
    let (before, error) = last_error(&Events::of(answer).end().await);
    assert_eq!((&*before, &error["code"]), ("", &json!("not_ready_in_time")));
    desk.until_empty().await;
}

#[tokio::test]
async fn a_held_stream_begins_with_comments_and_goes_on_with_the_engines_events() {
    let mut desk = Desk::new("", |g| g.keep_alive = Duration::from_millis(30)).await;
    desk.serve(A);
    let answer = desk.ask(&completion("org/B", true)).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(answer.headers()["x-hotbunk-queue-position"], "1");
    let mut events = Events::of(answer);
    events.until(": hotbunk waiting position=1").await;
    events.until("\n\n: hotbunk waiting position=1").await;
    desk.serve(B);
    let mut call = desk.b.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\n").await;
    events.until("data: 1\n\n").await;
    // Silence is filled in, between events only.
    call.chunk("data: 2").await;
    events.until(": hotbunk alive\n\n: hotbunk alive\n\n").await;
    call.chunk("\n\ndata: [DONE]\n\n").await;
    call.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n");
    desk.until_empty().await;
}

#[tokio::test]
async fn a_short_wait_leaves_the_engine_its_own_status() {
    let mut desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/B", true));
    until("it to be held", || desk.hub.held(B) == 1).await;
    desk.serve(B);
    desk.b
        .call()
        .await
        .answer("400 Bad Request", "application/json", "{\"error\":{\"message\":\"no\"}}")
        .await;
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.text().await.unwrap(), "{\"error\":{\"message\":\"no\"}}");
    desk.until_empty().await;
}

#[tokio::test]
async fn an_engines_error_after_the_stream_began_is_an_event() {
    let mut desk = Desk::new("", |g| g.keep_alive = Duration::from_millis(30)).await;
    desk.serve(A);
    let answer = desk.ask(&completion("org/B", true)).await.unwrap();
    desk.serve(B);
    let said = "{\"error\":{\"message\":\"prompt too long\",\"code\":400}}";
    desk.b.call().await.answer("400 Bad Request", "application/json", said).await;
    let (_, error) = last_error(&Events::of(answer).end().await);
    assert_eq!(
        (&error["message"], &error["type"]),
        (&json!("prompt too long"), &json!("invalid_request_error"))
    );
    desk.until_empty().await;
}

#[tokio::test]
async fn a_frozen_stream_stays_open_and_goes_on() {
    let mut desk = Desk::new("", |g| g.keep_alive = Duration::from_millis(30)).await;
    desk.serve(A);
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\n").await;
    let mut events = Events::of(answer.await.unwrap());
    events.until("data: 1\n\n").await;
    desk.close(A);
    events.until(": hotbunk frozen\n\n").await;
    assert_eq!(desk.hub.in_flight(A), 1, "a frozen request keeps its lease");
    desk.serve(A);
    call.chunk("data: 2\n\n").await;
    call.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\ndata: 2\n\n");
    desk.until_empty().await;
}

#[tokio::test]
async fn a_plain_request_that_was_ended_is_sent_again_once() {
    let mut desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let call = desk.a.call().await;
    desk.close(A);
    desk.hub.abort(A);
    call.closed().await;
    until("it to wait again", || desk.hub.held(A) == 1).await;
    desk.serve(A);
    desk.a.call().await.json("{\"x\":2}").await;
    let answer = answer.await.unwrap();
    assert_eq!((answer.status().as_u16(), &*answer.text().await.unwrap()), (200, "{\"x\":2}"));
    desk.until_empty().await;

    // Not twice.
    let answer = desk.ask(&completion("org/A", false));
    for _ in 0..2 {
        let call = desk.a.call().await;
        desk.hub.abort(A);
        call.closed().await;
    }
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 503);
    assert!(answer.headers().contains_key("retry-after"));
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "aborted");
    desk.until_empty().await;
}

/// Whoever has all of its answer is not told that it was ended.
#[tokio::test]
async fn a_stream_that_is_over_but_for_its_end_was_not_ended() {
    let desk = Desk::usual().await;
    for died in [false, true] {
        let answer = desk.ask(&completion("org/A", true));
        let mut call = desk.a.call().await;
        call.begin_stream().await;
        call.chunk("data: 1\n\ndata: [DONE]\n\n").await;
        let mut events = Events::of(answer.await.unwrap());
        events.until("data: [DONE]\n\n").await;
        if died {
            drop(call);
        } else {
            desk.hub.abort(A);
        }
        assert_eq!(events.end().await, "data: 1\n\ndata: [DONE]\n\n");
        desk.until_empty().await;
    }
}

/// vLLM answers 200 and `finish_reason: "abort"`; that is no success.
#[tokio::test]
async fn a_plain_answer_that_says_abort_is_none() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", false));
    let mut call = desk.a.call().await;
    call.json(ABORT).await;
    let mut call = call.next().await.unwrap();
    call.json("{\"choices\":[{\"finish_reason\":\"stop\"}]}").await;
    assert!(answer.await.unwrap().text().await.unwrap().contains("stop"));
    let answer = desk.ask(&completion("org/A", false));
    for _ in 0..2 {
        call = call.next().await.unwrap();
        call.json(ABORT).await;
    }
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await.unwrap()["error"]["code"], "aborted");
    desk.until_empty().await;
}

#[tokio::test]
async fn a_stream_that_was_ended_says_so_or_is_sent_again() {
    let desk = Desk::usual().await;
    // Tokens have gone out: it cannot be sent again.
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\ndata: ha").await;
    let mut events = Events::of(answer.await.unwrap());
    events.until("data: 1\n\n").await;
    desk.hub.abort(A);
    let (before, error) = last_error(&events.end().await);
    assert_eq!((&*before, &error["code"]), ("data: 1\n\n", &json!("aborted")));
    call.closed().await;
    desk.until_empty().await;

    // Nothing has: it is.
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    let events = Events::of(answer.await.unwrap());
    desk.hub.abort(A);
    call.closed().await;
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\n").await;
    call.end_stream().await;
    assert_eq!(events.end().await, "data: 1\n\n");
    desk.until_empty().await;
}

#[tokio::test]
async fn a_stream_that_says_abort_ends_with_an_error() {
    let desk = Desk::usual().await;
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 1\n\n").await;
    // With a whole event before it, in the same chunk.
    call.chunk(&format!("data: 2\n\ndata: {ABORT}\n\ndata: [DONE]\n\n")).await;
    let (before, error) = last_error(&Events::of(answer.await.unwrap()).end().await);
    assert_eq!((&*before, &error["code"]), ("data: 1\n\ndata: 2\n\n", &json!("aborted")));
    assert!(!before.contains("half"));
    desk.until_empty().await;

    // First of all: it is sent again.
    let answer = desk.ask(&completion("org/A", true));
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk(&format!("data: {ABORT}\n\ndata: [DONE]\n\n")).await;
    call.end_stream().await;
    let mut call = desk.a.call().await;
    call.begin_stream().await;
    call.chunk("data: 3\n\n").await;
    call.end_stream().await;
    assert_eq!(Events::of(answer.await.unwrap()).end().await, "data: 3\n\n");
    desk.until_empty().await;
}
