//! An agent without engines: it remembers what it was asked for.

use crate::control::{Backend, EventLog, LogStream, Peer, Subscription};
use futures_util::{StreamExt, stream};
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::event::Happening;
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::journal::{JournalPage, JournalQuery};
use hotbunk_api::logs::{LogLine, LogTail};
use hotbunk_api::operation::{Initiator, Operation, OperationRequest};
use hotbunk_api::reload::{ReloadOutcome, ReloadReport, ReloadRequest};
use hotbunk_api::status::{HostStatus, NodeStatus, Status};
use hotbunk_api::version::{API_VERSION, VersionInfo};
use hotbunk_api::words::State;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// Remembers operations; each runs until [`Fake::finish`].
pub(super) struct Fake {
    pub(super) operations: Mutex<BTreeMap<String, Operation>>,
    runs: Mutex<Vec<CycleRun>>,
    submitted: Mutex<u32>,
    ended: watch::Sender<u64>,
    log: EventLog,
}

#[derive(Clone)]
pub(super) struct Agent(pub(super) Arc<Fake>);

impl Agent {
    pub(super) fn new() -> Self {
        let fake = Fake {
            operations: Mutex::default(),
            runs: Mutex::default(),
            submitted: Mutex::new(0),
            ended: watch::channel(0).0,
            log: EventLog::new(4),
        };
        Agent(Arc::new(fake))
    }

    pub(super) fn finish(&self, id: &str) {
        self.0.operations.lock().unwrap().get_mut(id).unwrap().state = State::Succeeded;
        self.0.ended.send_modify(|n| *n += 1);
    }

    pub(super) fn publish(&self, message: &str) {
        let what =
            Happening::Incident { code: "test".into(), engine: None, device: None, message: message.into() };
        self.0.log.publish(1.0, what);
    }

    pub(super) fn submitted(&self) -> u32 {
        *self.0.submitted.lock().unwrap()
    }
}

pub(super) fn operation(id: String, request: OperationRequest, peer: Peer) -> Operation {
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
                journal_trouble: None,
            },
            devices: Vec::new(),
            engines: Vec::new(),
            operation: None,
            queue: Vec::new(),
            gateway: None,
            maintenance: None,
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

    async fn reload(&self, request: ReloadRequest, _peer: Peer) -> Result<ReloadReport, ApiError> {
        Ok(ReloadReport {
            path: "/etc/hotbunk/hotbunk.toml".into(),
            outcome: ReloadOutcome::Unchanged,
            dry_run: request.dry_run,
            check: CheckReport { ok: true, diagnostics: Vec::new(), rendered: String::new() },
            engines: Vec::new(),
            settings: Vec::new(),
            needs_restart: Vec::new(),
        })
    }
}
