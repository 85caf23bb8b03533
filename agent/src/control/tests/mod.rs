//! The server over a real socket, in front of a fake agent, through the typed client and by hand.

mod fake;

use super::{Allow, Peer, Socket, serve};
use fake::{Agent, operation};
use futures_util::{Stream, StreamExt};
use hotbunk_api::check::CheckRequest;
use hotbunk_api::client::{Client, Error as ClientError};
use hotbunk_api::cycle::{PlanSource, RunCycle};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::event::{Event, Happening};
use hotbunk_api::explain::ExplainRequest;
use hotbunk_api::journal::JournalQuery;
use hotbunk_api::logs::LogsQuery;
use hotbunk_api::operation::{EngineRequest, OperationRequest, Submit};
use hotbunk_api::route::{Method, Route};
use hotbunk_api::version::API_VERSION;
use hotbunk_api::words::State;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server with its agent, socket and way to stop it.
struct Server {
    agent: Agent,
    client: Client,
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        Self::start_with(Allow::own(None))
    }

    fn start_with(allow: Allow) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = Socket::bind(&path, None).unwrap();
        let agent = Agent::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(serve(socket, agent.clone(), allow, async {
            drop(stopped.await);
        }));
        let client = Client::new(&path).unwrap();
        Server { agent, client, path, stop: Some(stop), task, _directory: directory }
    }

    fn order_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Sends one request by hand; gives the status and the body.
    async fn raw(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

fn wake(id: Option<&str>, engine: &str) -> Submit {
    let request = OperationRequest::Wake(EngineRequest { engine: engine.into() });
    Submit { id: id.map(str::to_owned), request }
}

fn api_error<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ApiError {
    match result {
        Err(ClientError::Api(error)) => error,
        other => panic!("not an API error: {other:?}"),
    }
}

async fn next<T>(stream: &mut (impl Stream<Item = Result<T, ClientError>> + Unpin)) -> T {
    tokio::time::timeout(PATIENCE, stream.next()).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn the_same_id_is_one_operation_and_another_request_under_it_a_conflict() {
    let server = Server::start();
    let first = server.client.submit(&wake(Some("mine"), "A")).await.unwrap();
    let again = server.client.submit(&wake(Some("mine"), "A")).await.unwrap();
    assert_eq!((first.id.as_str(), &again, server.agent.submitted()), ("mine", &first, 1));

    let other = Submit {
        request: OperationRequest::Start(EngineRequest { engine: "A".into() }),
        ..wake(Some("mine"), "A")
    };
    let conflict = api_error(server.client.submit(&other).await);
    assert_eq!((conflict.code, conflict.operation.as_deref()), (ErrorCode::IdConflict, Some("mine")));
    assert_eq!(server.agent.submitted(), 1);

    let body = serde_json::to_string(&wake(Some("mine"), "A")).unwrap();
    assert_eq!(server.raw("POST", "/v1/operations", "", &body).await.0, 200);
    server.agent.finish("mine");
    let body = serde_json::to_string(&wake(Some("next"), "A")).unwrap();
    assert_eq!(server.raw("POST", "/v1/operations", "", &body).await.0, 202);
}

#[tokio::test]
async fn posts_of_one_id_at_once_are_one_operation() {
    let server = Server::start();
    let submit = wake(Some("storm"), "A");
    let answers = futures_util::future::join_all((0..16).map(|_| server.client.submit(&submit))).await;
    assert!(answers.iter().all(|a| a.as_ref().is_ok_and(|o| o.id == "storm")));
    assert_eq!(server.agent.submitted(), 1);
}

#[tokio::test]
async fn an_id_is_known_after_the_agents_restart() {
    let server = Server::start();
    let peer = Peer { uid: 0, gid: 0, pid: None };
    let old = operation("old".into(), wake(None, "A").request, peer);
    server.agent.0.operations.lock().unwrap().insert("old".into(), old.clone());
    assert_eq!(server.client.submit(&wake(Some("old"), "A")).await.unwrap(), old);
    assert_eq!(api_error(server.client.submit(&wake(Some("old"), "B")).await).code, ErrorCode::IdConflict);
    assert_eq!(server.agent.submitted(), 0);
}

#[tokio::test]
async fn a_joined_operation_answers_to_both_ids() {
    let server = Server::start();
    server.client.submit(&wake(Some("first"), "A")).await.unwrap();
    let joined = server.client.submit(&wake(Some("second"), "A")).await.unwrap();
    assert_eq!(joined.id, "first");
    assert_eq!(server.client.operation("second").await.unwrap().id, "first");
    assert_eq!(server.client.submit(&wake(Some("second"), "A")).await.unwrap().id, "first");
    assert_eq!(server.client.cancel_operation("second").await.unwrap().state, State::Cancelled);
}

#[tokio::test]
async fn the_agent_chooses_an_id_where_the_client_does_not_and_refuses_bad_ones() {
    let server = Server::start();
    let made = server.client.submit(&wake(None, "A")).await.unwrap().id;
    assert_eq!(uuid::Uuid::parse_str(&made).unwrap().get_version_num(), 7);
    assert_eq!(api_error(server.client.submit(&wake(Some("a/b"), "A")).await).code, ErrorCode::BadRequest);
    let latest = RunCycle { id: Some("latest".into()), plan: PlanSource::default() };
    assert_eq!(api_error(server.client.run_cycle(&latest).await).code, ErrorCode::BadRequest);
}

#[tokio::test]
async fn a_refusal_spends_no_id_and_carries_its_help() {
    let server = Server::start();
    let unknown = api_error(server.client.submit(&wake(Some("x"), "C")).await);
    assert_eq!(unknown.code, ErrorCode::UnknownEngine);
    assert_eq!(unknown.help.as_deref(), Some("configured engines: A, B"));
    assert_eq!(server.client.submit(&wake(Some("x"), "A")).await.unwrap().id, "x", "the id is still free");

    let body = serde_json::to_string(&wake(None, "busy")).unwrap();
    let (status, answer) = server.raw("POST", "/v1/operations", "", &body).await;
    assert_eq!(status, 409);
    assert!(answer.contains("retry-after: 2\r\n") && answer.contains(r#""code":"busy""#), "{answer}");
}

#[tokio::test]
async fn waiting_ends_with_the_operation_or_with_the_time() {
    let server = Server::start();
    server.client.submit(&wake(Some("w"), "A")).await.unwrap();
    let early = server.client.wait_operation("w", Duration::from_millis(1)).await.unwrap();
    assert_eq!(early.state, State::Running);
    let (waited, ()) = tokio::join!(server.client.wait_operation("w", PATIENCE), async {
        server.agent.finish("w");
    });
    assert_eq!(waited.unwrap().state, State::Succeeded);
    for bad in ["-1", "NaN", "x"] {
        let path = format!("/v1/operations/w?wait_s={bad}");
        assert_eq!(server.raw("GET", &path, "", "").await.0, 400, "{bad}");
    }
}

#[tokio::test]
async fn every_error_is_json_with_a_code() {
    let server = Server::start();
    let long = "x".repeat(1024 * 1024 + 1);
    let cases = [
        ("GET", "/v1/nothing", "", 404, "no_route"),
        ("DELETE", "/v1/status", "", 405, "method_not_allowed"),
        ("GET", "/v1/explain", "", 405, "method_not_allowed"),
        ("POST", "/v1/operations", "{", 400, "bad_request"),
        (
            "POST",
            "/v1/operations",
            r#"{"request":{"kind":"wake","engine":"A","lave":1}}"#,
            400,
            "bad_request",
        ),
        (
            "POST",
            "/v1/operations",
            r#"{"request":{"kind":"switch","engine":"A","deadline_s":-1}}"#,
            400,
            "bad_request",
        ),
        ("POST", "/v1/operations", long.as_str(), 413, "too_large"),
        ("GET", "/v1/operations/none", "", 404, "unknown_operation"),
        ("GET", "/v1/operations/%ff", "", 400, "bad_request"),
        ("GET", "/v1/cycles/latest/report", "", 404, "unknown_run"),
        ("GET", "/v1/journal?limt=3", "", 400, "bad_request"),
        ("GET", "/v1/engines/C/logs/follow", "", 404, "unknown_engine"),
    ];
    for (method, path, body, status, code) in cases {
        let (got, answer) = server.raw(method, path, "", body).await;
        assert_eq!(got, status, "{method} {path}: {answer}");
        assert!(answer.contains("content-type: application/json"), "{method} {path}: {answer}");
        assert!(answer.contains(&format!(r#"{{"error":{{"code":"{code}""#)), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn every_documented_route_is_served() {
    let server = Server::start();
    // The doctor of the fake panics, and streams do not end by themselves; they have tests of their own.
    for route in Route::ALL.iter().filter(|r| !matches!(r, Route::Events | Route::FollowLogs | Route::Doctor))
    {
        let method = if route.method() == Method::Get { "GET" } else { "POST" };
        let (_, answer) = server.raw(method, &route.path_with("A"), "", "{}").await;
        let missing = [r#"{"code":"no_route""#, r#"{"code":"method_not_allowed""#];
        assert!(!missing.iter().any(|code| answer.contains(code)), "{route:?}: {answer}");
    }
    let document = server.raw("GET", "/v1/openapi.json", "", "").await.1;
    assert!(document.contains(r#""openapi":"3.1.0""#));
}

#[tokio::test]
async fn events_resume_where_the_client_lost_them() {
    let server = Server::start();
    for n in 1..=3 {
        server.agent.publish(&n.to_string());
    }
    let numbers = async |since: Option<u64>, count: usize| -> Vec<Event> {
        let mut events = pin!(server.client.events(since).await.unwrap());
        let mut seen = Vec::new();
        for _ in 0..count {
            seen.push(next(&mut events).await);
        }
        seen
    };
    let seqs = |events: Vec<Event>| events.iter().map(|e| e.seq).collect::<Vec<_>>();
    assert_eq!(seqs(numbers(Some(1), 2).await), [2, 3]);

    let mut live = pin!(server.client.events(None).await.unwrap());
    server.agent.publish("4");
    assert_eq!(next(&mut live).await.seq, 4, "from now on");

    server.agent.publish("5");
    let resumed = numbers(Some(0), 5).await;
    assert_eq!(resumed[0].what, Happening::Gap { resumes_at: 2 }, "1 is forgotten");
    assert_eq!(seqs(resumed), [1, 2, 3, 4, 5]);

    let (status, answer) = server.raw("GET", "/v1/events", "last-event-id: soon\r\n", "").await;
    assert_eq!(status, 400, "{answer}");
}

#[tokio::test]
async fn the_last_event_id_header_wins_and_the_stream_is_well_formed() {
    let server = Server::start();
    for n in 1..=3 {
        server.agent.publish(&n.to_string());
    }
    let mut stream = UnixStream::connect(&server.path).await.unwrap();
    stream
        .write_all(b"GET /v1/events?since=0 HTTP/1.1\r\nhost: x\r\nlast-event-id: 2\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    while !answer.windows(6).any(|w| w == b"id: 3\n") {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut answer)).await.unwrap().unwrap();
        assert_ne!(read, 0, "the stream ended early");
    }
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("content-type: text/event-stream"), "{answer}");
    assert!(answer.contains("id: 3\n"), "{answer}");
    assert!(!answer.contains("id: 2\n"), "{answer}");
}

#[tokio::test]
async fn logs_are_tailed_and_followed() {
    let server = Server::start();
    let tail = server.client.logs("A", LogsQuery { lines: Some(1_000_000) }).await.unwrap();
    assert_eq!(tail.lines[0].text, LogsQuery::MAX_LINES.to_string());
    let mut lines = pin!(server.client.follow_logs("A", LogsQuery::default()).await.unwrap());
    for n in 1..=2 {
        assert_eq!(next(&mut lines).await.text, format!("line {n}\r with\ttabs: and data: colons"));
    }
}

#[tokio::test]
async fn the_newest_run_has_a_name() {
    let server = Server::start();
    let client = &server.client;
    assert_eq!(api_error(client.cycle("latest").await).code, ErrorCode::UnknownRun);
    let run = |id: &str| RunCycle { id: Some(id.into()), plan: PlanSource::Named { name: "quick".into() } };
    client.run_cycle(&run("one")).await.unwrap();
    client.run_cycle(&run("one")).await.unwrap();
    client.cancel_cycle("one").await.unwrap();
    client.run_cycle(&run("two")).await.unwrap();
    assert_eq!(client.cycles().await.unwrap().runs.len(), 2);
    assert_eq!(client.cycle("latest").await.unwrap().id, "two");
    assert_eq!(client.report("latest").await.unwrap()["run"], "one", "two has not ended");
    assert_eq!(client.report_table("two").await.unwrap(), "table of two\n");
}

#[tokio::test]
async fn queries_reach_the_agent_and_its_other_answers_come_back() {
    let server = Server::start();
    let client = &server.client;
    let query = JournalQuery { after: Some(5), kind: Some("x".into()), ..JournalQuery::default() };
    assert!(client.journal(&query).await.unwrap().more);
    assert_eq!(client.version().await.unwrap().api, API_VERSION);
    assert_eq!(client.status().await.unwrap().node.host.total_bytes, None);
    let explain = ExplainRequest { engine: "A".into(), strategy: None, leave: None, drain: None };
    assert_eq!(client.explain(&explain).await.unwrap().nothing_to_do.as_deref(), Some("already awake"));
    let check = CheckRequest { path: "p".into(), text: "x".into() };
    assert!(!client.check(&check).await.unwrap().ok);
    assert!(client.operations().await.unwrap().operations.is_empty());
}

#[tokio::test]
async fn a_stranger_is_refused_before_any_handler() {
    // Whoever runs this is neither user 1 of the pretended agent nor in its group, unless it is root.
    let allow = Allow { uid: 1, group: None };
    let stranger = rustix::process::geteuid().as_raw();
    let server = Server::start_with(allow);
    let answer = server.client.submit(&wake(Some("x"), "A")).await;
    if stranger <= 1 {
        answer.unwrap();
    } else {
        assert_eq!(api_error(answer).code, ErrorCode::Forbidden);
        assert_eq!(server.agent.submitted(), 0);
    }
}

#[tokio::test]
async fn stopping_ends_streams_and_waits_and_removes_the_socket() {
    let mut server = Server::start();
    server.client.submit(&wake(Some("w"), "A")).await.unwrap();
    let mut events = pin!(server.client.events(None).await.unwrap());
    let mut logs = pin!(server.client.follow_logs("A", LogsQuery::default()).await.unwrap());
    let waiting = {
        let client = server.client.clone();
        tokio::spawn(async move { client.wait_operation("w", PATIENCE).await })
    };
    server.agent.publish("seen");
    next(&mut events).await;
    server.order_stop();
    tokio::time::timeout(PATIENCE, async {
        assert!(events.next().await.is_none(), "the stream ends in order");
        while logs.next().await.is_some() {}
    })
    .await
    .unwrap();
    // The long poll is answered with how it stands, unless the order came before it had arrived.
    match waiting.await.unwrap() {
        Ok(operation) => assert_eq!(operation.state, State::Running),
        Err(ClientError::Unreachable { .. } | ClientError::Lost { .. }) => {}
        Err(e) => panic!("{e}"),
    }
    tokio::time::timeout(PATIENCE, server.task).await.unwrap().unwrap().unwrap();
    assert!(!server.path.exists());
    let gone = server.client.version().await.unwrap_err();
    let ClientError::Unreachable { source, .. } = gone else { panic!("{gone}") };
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_handler_that_panics_takes_only_its_connection_down() {
    let server = Server::start();
    assert!(matches!(server.client.doctor().await, Err(ClientError::Lost { .. })));
    server.client.version().await.unwrap();
}
