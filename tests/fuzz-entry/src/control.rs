//! The control API, over its real socket, in front of an agent that reads what it is told and does nothing.
//!
//! The first line of an input is a method and a path; what follows is the body. Whatever is sent, the answer is one of
//! HTTP, a refusal is JSON with a code, and none is the agent's own fault (500).

use futures_util::stream;
use hotbunk_agent::config::{self, CyclePlan, Facts, cycle_plan};
use hotbunk_agent::control::{self, Allow, Backend, EventLog, LogStream, Peer, Socket, Subscription};
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::error::{ApiError, ErrorBody, ErrorCode};
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::journal::{JournalPage, JournalQuery};
use hotbunk_api::logs::LogTail;
use hotbunk_api::operation::{Initiator, Operation, OperationRequest};
use hotbunk_api::reload::{ReloadReport, ReloadRequest};
use hotbunk_api::status::Status;
use hotbunk_api::version::{API_VERSION, VersionInfo};
use hotbunk_api::words::State;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Longer than any answer takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of the one server that lives as long as this process.
fn server() -> &'static Path {
    static SERVER: OnceLock<(PathBuf, tempfile::TempDir)> = OnceLock::new();
    let (path, _) = SERVER.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("control.sock");
        let (bound, ready) = std::sync::mpsc::channel();
        let place = path.clone();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let socket = Socket::bind(&place, None).expect("binds");
                bound.send(()).expect("somebody waits");
                control::serve(socket, Deaf, Allow::own(None), std::future::pending()).await
            })
        });
        ready.recv_timeout(PATIENCE).expect("the server comes up");
        (path, dir)
    });
    path
}

/// Sends one request and judges the answer.
pub(crate) fn run(bytes: &[u8]) {
    let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    let (line, body) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    if line.iter().any(|b| b.is_ascii_control()) {
        return;
    }
    let mut request = line.to_vec();
    let head = format!(" HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(body);
    let mut stream = UnixStream::connect(server()).expect("the server is there");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // A refusal may come, and the connection be closed, before all of it has been taken.
    drop(stream.write_all(&request));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "no answer within {PATIENCE:?}: {error}"
        );
        return;
    }
    // hyper takes what follows a head that it cannot read for HTTP/2, where it looks like that, and closes.
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if answer.is_empty() && body.windows(preface.len()).any(|part| part == preface) {
        return;
    }
    judge(&String::from_utf8_lossy(&answer));
}

fn judge(answer: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    let status = head.split(' ').nth(1).and_then(|word| word.parse::<u16>().ok());
    let status = status.unwrap_or_else(|| panic!("no status in {head:?}"));
    if status < 400 {
        return;
    }
    if body.is_empty() {
        // What is not HTTP at all is refused before there is an API.
        assert!(matches!(status, 400 | 414 | 431), "{head}");
        return;
    }
    let body = body.split_once('{').map_or_else(String::new, |(_, rest)| format!("{{{rest}"));
    let refusal: ErrorBody = serde_json::Deserializer::from_str(&body)
        .into_iter()
        .next()
        .expect("a body")
        .unwrap_or_else(|e| panic!("a refusal is JSON: {e} in {answer}"));
    assert_ne!(refusal.error.code, ErrorCode::Internal, "{answer}");
    assert!(!refusal.error.message.is_empty());
}

/// Reads what it is told, and does nothing.
struct Deaf;

fn nothing<T>() -> Result<T, ApiError> {
    Err(ApiError::new(ErrorCode::UnknownOperation, "there is nothing here"))
}

fn unknown_run<T>(run: &str) -> Result<T, ApiError> {
    Err(ApiError::new(ErrorCode::UnknownRun, format!("there is no run `{run}`")))
}

impl Backend for Deaf {
    fn version(&self) -> VersionInfo {
        VersionInfo { agent: "0.0.0".to_owned(), api: API_VERSION, pid: 1 }
    }

    async fn status(&self) -> Result<Status, ApiError> {
        nothing()
    }

    async fn submit(&self, id: String, request: OperationRequest, peer: Peer) -> Result<Operation, ApiError> {
        if request.engine() != "A" {
            return Err(ApiError::unknown_engine(request.engine(), ["A", "B"]));
        }
        let said = serde_json::to_value(&request).expect("a request is JSON");
        let again: OperationRequest = serde_json::from_value(said).expect("what was said can be read");
        assert_eq!(again, request, "what was asked for comes back");
        Ok(Operation {
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
        })
    }

    async fn operations(&self) -> Result<Vec<Operation>, ApiError> {
        Ok(Vec::new())
    }

    async fn operation(&self, _id: &str) -> Result<Operation, ApiError> {
        nothing()
    }

    async fn wait(&self, _id: &str, _at_most: Duration) -> Result<Operation, ApiError> {
        nothing()
    }

    async fn cancel(&self, _id: &str, _peer: Peer) -> Result<Operation, ApiError> {
        nothing()
    }

    async fn explain(&self, request: ExplainRequest) -> Result<Explanation, ApiError> {
        Err(ApiError::unknown_engine(&request.engine, ["A", "B"]))
    }

    async fn cycles(&self) -> Result<CycleList, ApiError> {
        Ok(CycleList { runs: Vec::new(), plans: Vec::new() })
    }

    /// Reads the plan as the agent does, and then declines it.
    async fn run_cycle(&self, id: String, plan: PlanSource, _peer: Peer) -> Result<CycleRun, ApiError> {
        if let PlanSource::Inline { origin, text } = plan {
            let engines = ["A".to_owned(), "B".to_owned()];
            let read = CyclePlan::parse(&text, Path::new(&origin))
                .and_then(|(plan, _)| plan.expand(&engines, &cycle_plan::Options::default()));
            if let Err(wrong) = read {
                return Err(ApiError::new(ErrorCode::PlanInvalid, wrong.render(false)));
            }
        }
        unknown_run(&id)
    }

    async fn cycle(&self, id: &str) -> Result<CycleRun, ApiError> {
        unknown_run(id)
    }

    async fn wait_cycle(&self, id: &str, _at_most: Duration) -> Result<CycleRun, ApiError> {
        unknown_run(id)
    }

    async fn cancel_cycle(&self, id: &str, _peer: Peer) -> Result<CycleRun, ApiError> {
        unknown_run(id)
    }

    async fn report(&self, run: &str) -> Result<serde_json::Value, ApiError> {
        unknown_run(run)
    }

    async fn report_table(&self, run: &str) -> Result<String, ApiError> {
        unknown_run(run)
    }

    async fn journal(&self, query: JournalQuery) -> Result<JournalPage, ApiError> {
        assert!(query.limit.is_some_and(|limit| limit <= JournalQuery::MAX_LIMIT), "an unbounded page");
        Ok(JournalPage { entries: Vec::new(), more: false })
    }

    async fn logs(&self, engine: &str, _lines: u32) -> Result<LogTail, ApiError> {
        Err(ApiError::unknown_engine(engine, ["A", "B"]))
    }

    async fn follow_logs(&self, _engine: &str, _lines: u32) -> Result<LogStream, ApiError> {
        Ok(Box::pin(stream::empty()))
    }

    /// Of a log that is gone at once, so that the stream ends.
    fn events(&self, since: Option<u64>) -> Subscription {
        EventLog::new(1).subscribe(since)
    }

    async fn reload(&self, _request: ReloadRequest, _peer: Peer) -> Result<ReloadReport, ApiError> {
        nothing()
    }

    async fn doctor(&self) -> Result<DoctorReport, ApiError> {
        nothing()
    }

    async fn check(&self, request: CheckRequest) -> Result<CheckReport, ApiError> {
        let checked = config::parse(&request.text, Path::new(&request.path), &Facts::default());
        let ok = checked.is_ok();
        let found = checked.map_or_else(|refused| refused, |(_, warnings)| warnings);
        Ok(CheckReport { ok, diagnostics: Vec::new(), rendered: found.render(false) })
    }
}
