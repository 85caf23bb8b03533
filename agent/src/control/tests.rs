//! The server over a real socket, in front of a fake agent, through the typed client and by hand.

use super::{Allow, Backend, EventLog, LogStream, Peer, Socket, Subscription, serve};
use futures_util::{Stream, StreamExt, stream};
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::client::{Client, Error as ClientError};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource, RunCycle};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::event::{Event, Happening};
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::journal::{JournalPage, JournalQuery};
use hotbunk_api::logs::{LogLine, LogTail, LogsQuery};
use hotbunk_api::operation::{EngineRequest, Initiator, Operation, OperationRequest, Submit};
use hotbunk_api::route::{Method, Route};
use hotbunk_api::status::{HostStatus, NodeStatus, Status};
use hotbunk_api::version::{API_VERSION, VersionInfo};
use hotbunk_api::words::State;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Remembers operations; each runs until [`Fake::finish`].
struct Fake {
    operations: Mutex<BTreeMap<String, Operation>>,
    runs: Mutex<Vec<CycleRun>>,
    submitted: Mutex<u32>,
    ended: watch::Sender<u64>,
    log: EventLog,
}

#[derive(Clone)]
struct Agent(Arc<Fake>);

impl Agent {
    fn new() -> Self {
        let fake = Fake {
            operations: Mutex::default(),
            runs: Mutex::default(),
            submitted: Mutex::new(0),
            ended: watch::channel(0).0,
            log: EventLog::new(4),
        };
        Agent(Arc::new(fake))
    }

    fn finish(&self, id: &str) {
        self.0.operations.lock().unwrap().get_mut(id).unwrap().state = State::Succeeded;
        self.0.ended.send_modify(|n| *n += 1);
    }

    fn publish(&self, message: &str) {
        let what =
            Happening::Incident { code: "test".into(), engine: None, device: None, message: message.into() };
        self.0.log.publish(1.0, what);
    }

    fn submitted(&self) -> u32 {
        *self.0.submitted.lock().unwrap()
    }
}

fn operation(id: String, request: OperationRequest, peer: Peer) -> Operation {
    Operation {
        id,
        number: Some(1),
        kind: request.kind(),
        engine: request.engine().to_owned(),
        from: None,
        request: Some(request),
        initiator: Initiator::Operator { uid: peer.uid, pid: peer.pid },
        state: State::Running,
        note: None,
        error: None,
        plan: None,
        steps: Vec::new(),
        accepted_at: 0.0,
        ended_at: None,
        elapsed_s: 0.0,
        first_token_s: None,
        eta_s: None,
    }
}

fn unknown(code: ErrorCode, id: &str) -> ApiError {
    ApiError::new(code, format!("there is no `{id}`"))
}

impl Backend for Agent {
    fn version(&self) -> VersionInfo {
        VersionInfo { agent: "0.0.0-test".into(), api: API_VERSION, pid: std::process::id() }
    }

    async fn status(&self) -> Result<Status, ApiError> {
        Ok(Status {
            seq: self.0.log.last_seq(),
            node: NodeStatus {
                name: "node".into(),
                agent_version: "0.0.0-test".into(),
                pid: 1,
                started_at: 0.0,
                uptime_s: 0.0,
                config_path: None,
                simulated: None,
                host: HostStatus { total_bytes: None, available_bytes: None, reserved_bytes: None },
            },
            devices: Vec::new(),
            engines: Vec::new(),
            operation: None,
            queue: Vec::new(),
            cycle: None,
        })
    }

    /// Engine `A` is known. A switch to `A` while one runs joins it; `busy` is refused.
    async fn submit(&self, id: String, request: OperationRequest, peer: Peer) -> Result<Operation, ApiError> {
        *self.0.submitted.lock().unwrap() += 1;
        // Long enough for a second post of the same id to arrive meanwhile.
        tokio::task::yield_now().await;
        if request.engine() == "busy" {
            return Err(ApiError::new(ErrorCode::Busy, "B → A is running")
                .operation("other")
                .retry_after_s(1.2));
        }
        if request.engine() != "A" {
            return Err(ApiError::unknown_engine(request.engine(), ["A", "B"]));
        }
        let mut operations = self.0.operations.lock().unwrap();
        if let Some(running) = operations.values().find(|o| o.kind == request.kind() && !o.state.is_over()) {
            return Ok(running.clone());
        }
        let accepted = operation(id.clone(), request, peer);
        operations.insert(id, accepted.clone());
        Ok(accepted)
    }

    async fn operations(&self) -> Result<Vec<Operation>, ApiError> {
        Ok(self.0.operations.lock().unwrap().values().cloned().collect())
    }

    async fn operation(&self, id: &str) -> Result<Operation, ApiError> {
        let operations = self.0.operations.lock().unwrap();
        operations.get(id).cloned().ok_or_else(|| unknown(ErrorCode::UnknownOperation, id))
    }

    async fn wait(&self, id: &str, at_most: Duration) -> Result<Operation, ApiError> {
        let mut ended = self.0.ended.subscribe();
        let over = async {
            while !self.operation(id).await.is_ok_and(|o| o.state.is_over()) {
                ended.changed().await.unwrap();
            }
        };
        drop(tokio::time::timeout(at_most, over).await);
        self.operation(id).await
    }

    async fn cancel(&self, id: &str, _peer: Peer) -> Result<Operation, ApiError> {
        let mut operations = self.0.operations.lock().unwrap();
        let found = operations.get_mut(id).ok_or_else(|| unknown(ErrorCode::UnknownOperation, id))?;
        found.state = State::Cancelled;
        Ok(found.clone())
    }

    async fn explain(&self, request: ExplainRequest) -> Result<Explanation, ApiError> {
        Ok(Explanation {
            engine: request.engine,
            from: None,
            chosen: None,
            nothing_to_do: Some("already awake".into()),
            refused: None,
            alternatives: Vec::new(),
            faster: Vec::new(),
        })
    }

    async fn cycles(&self) -> Result<CycleList, ApiError> {
        Ok(CycleList { runs: self.0.runs.lock().unwrap().iter().rev().cloned().collect(), plans: Vec::new() })
    }

    async fn run_cycle(&self, id: String, plan: PlanSource, _peer: Peer) -> Result<CycleRun, ApiError> {
        let plan = match plan {
            PlanSource::Named { name } => name,
            PlanSource::Inline { origin, .. } => origin,
        };
        let run = CycleRun {
            id,
            plan,
            state: State::Running,
            by: "operator".into(),
            started_at: 0.0,
            ended_at: None,
            elapsed_s: 0.0,
            eta_s: None,
            steps: Vec::new(),
            steps_total: 0,
            steps_done: 0,
            requests_total: 0,
            requests_ok: 0,
            error: None,
        };
        self.0.runs.lock().unwrap().push(run.clone());
        Ok(run)
    }

    async fn cycle(&self, id: &str) -> Result<CycleRun, ApiError> {
        let runs = self.0.runs.lock().unwrap();
        runs.iter().find(|r| r.id == id).cloned().ok_or_else(|| unknown(ErrorCode::UnknownRun, id))
    }

    async fn wait_cycle(&self, id: &str, _at_most: Duration) -> Result<CycleRun, ApiError> {
        self.cycle(id).await
    }

    async fn cancel_cycle(&self, id: &str, _peer: Peer) -> Result<CycleRun, ApiError> {
        let mut runs = self.0.runs.lock().unwrap();
        let found = runs.iter_mut().find(|r| r.id == id).ok_or_else(|| unknown(ErrorCode::UnknownRun, id))?;
        found.state = State::Cancelled;
        Ok(found.clone())
    }

    async fn report(&self, run: &str) -> Result<serde_json::Value, ApiError> {
        Ok(serde_json::json!({ "run": run }))
    }

    async fn report_table(&self, run: &str) -> Result<String, ApiError> {
        Ok(format!("table of {run}\n"))
    }

    async fn journal(&self, query: JournalQuery) -> Result<JournalPage, ApiError> {
        assert!(query.limit.is_some_and(|limit| limit <= JournalQuery::MAX_LIMIT));
        Ok(JournalPage {
            entries: Vec::new(),
            more: query.after == Some(5) && query.kind.as_deref() == Some("x"),
        })
    }

    async fn logs(&self, engine: &str, lines: u32) -> Result<LogTail, ApiError> {
        let line = LogLine { pid: None, text: lines.to_string() };
        Ok(LogTail { engine: engine.to_owned(), path: None, lines: vec![line] })
    }

    async fn follow_logs(&self, engine: &str, _lines: u32) -> Result<LogStream, ApiError> {
        if engine != "A" {
            return Err(ApiError::unknown_engine(engine, ["A"]));
        }
        let line =
            |n: u32| LogLine { pid: Some(7), text: format!("line {n}\r with\ttabs: and data: colons") };
        // Then silent for ever: the server has to end it.
        Ok(Box::pin(stream::iter((1..=2).map(line)).chain(stream::pending())))
    }

    fn events(&self, since: Option<u64>) -> Subscription {
        self.0.log.subscribe(since)
    }

    async fn doctor(&self) -> Result<DoctorReport, ApiError> {
        panic!("the fake agent's doctor is ill")
    }

    async fn check(&self, request: CheckRequest) -> Result<CheckReport, ApiError> {
        Ok(CheckReport { ok: request.text.is_empty(), diagnostics: Vec::new(), rendered: request.path })
    }
}

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
