//! A client goes before its engine has so much as read the request: to the tenant that is the end of it, to a drain not before
//! the engine has taken notice.

use super::*;
use crate::gateway::proxy::upstream::NOTICE;
use tokio::time::timeout;

/// Enough for everything that is going to happen at once.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Asks, and goes once the request is with the engine; its socket, of which nothing has been read.
async fn asked_and_gone(desk: &Desk, body: &Value) -> TcpStream {
    let asked = desk.ask(body);
    let (socket, _) = patient("a connection", desk.a.listener.accept()).await.unwrap();
    // It is there, and unread.
    patient("the request", socket.peek(&mut [0; 1])).await.unwrap();
    asked.abort();
    until("the hang-up", || desk.hub.hung_up(A) == 1).await;
    socket
}

async fn is_drained(desk: &Desk, within: Duration) -> bool {
    timeout(within, desk.hub.drained(A)).await.is_ok()
}

#[tokio::test]
async fn a_drain_ends_when_the_engine_has_read_the_hang_up() {
    for stream in [true, false] {
        let mut desk = Desk::usual().await;
        let mut socket = asked_and_gone(&desk, &completion("org/A", stream)).await;
        desk.close(A);
        assert!(!is_drained(&desk, AT_ONCE).await, "the engine has not even read it");
        // It reads at last: the whole request, then the end of it. Only then it closes.
        let mut text = Vec::new();
        patient("the hang-up", socket.read_to_end(&mut text)).await.unwrap();
        assert!(text.starts_with(b"POST /v1/completions"), "{}", String::from_utf8_lossy(&text));
        assert_eq!((desk.hub.in_flight(A), desk.hub.hung_up(A)), (1, 1));
        drop(socket);
        patient("the drain", desk.hub.drained(A)).await;
        desk.until_empty().await;
        assert_eq!(desk.hub.hung_up(A), 0);
    }
}

/// In the middle of a stream, too, by whomever it is ended; what the engine still sends is nobody's.
#[tokio::test]
async fn a_stream_that_is_hung_up_or_aborted_is_in_the_count_until_its_connection_is_closed() {
    for aborted in [false, true] {
        let mut desk = Desk::usual().await;
        let asked = desk.ask(&completion("org/A", true));
        let mut call = desk.a.call().await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        call.socket.write_all(format!("{head}8\r\ndata: 1\n\r\n2\r\n\n\n\r\n").as_bytes()).await.unwrap();
        let mut answer = patient("the head", asked).await.unwrap();
        patient("an event", answer.chunk()).await.unwrap();
        if aborted {
            desk.close(A);
            desk.hub.abort(A);
        } else {
            drop(answer);
        }
        until("the hang-up", || desk.hub.hung_up(A) == 1).await;
        desk.close(A);
        call.socket.write_all(b"8\r\ndata: 2\n\r\n").await.unwrap();
        assert!(!is_drained(&desk, AT_ONCE).await);
        drop(call);
        patient("the drain", desk.hub.drained(A)).await;
        desk.until_empty().await;
    }
}

/// The seat is the tenant's again at once; and an engine that never takes notice is not waited for for ever.
#[tokio::test]
async fn a_tenant_does_not_wait_for_an_engine_to_notice_and_neither_does_anybody_for_ever() {
    let tenants = "\n[[tenant]]\nname = \"one\"\nheader = \"one\"\nmax_in_flight = 1\n[gateway]\ntenant_header = \"x-team\"\n";
    let mut desk = Desk::new(tenants, |_| {}).await;
    desk.serve(A);
    let with_key = |desk: &Desk| {
        let sent = desk.post("/v1/completions", &completion("org/A", false)).header("x-team", "one").send();
        tokio::spawn(sent)
    };
    let asked = with_key(&desk);
    let (silent, _) = patient("a connection", desk.a.listener.accept()).await.unwrap();
    patient("the request", silent.peek(&mut [0; 1])).await.unwrap();
    asked.abort();
    until("the hang-up", || desk.hub.hung_up(A) == 1).await;
    let asked = with_key(&desk);
    let second = desk.a.call().await;
    assert_eq!(desk.hub.in_flight(A), 2, "both may be in the engine");
    asked.abort();
    drop(second);
    desk.close(A);
    assert!(is_drained(&desk, NOTICE + PATIENCE).await);
    drop(silent);
}
