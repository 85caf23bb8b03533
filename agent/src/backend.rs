//! The agent behind its control API: requests become commands, state becomes answers.

use crate::clock;
use crate::config::{self, Current, Facts, cycle_plan};
use crate::control::{self, EventLog, LogStream, Peer, Subscription};
use crate::cycle::{By as CycleBy, Cycles};
use crate::doctor;
use crate::effects::{EngineSlot, Hands, chain};
use crate::explain;
use crate::journal::Query;
use crate::journal::record::AGENT_ENDED;
use crate::logs;
use crate::reload::{self, Reloads};
use crate::reports;
use crate::status::{self, Identity};
use crate::switcher::{Admission, Client, Handle, Order};
use crate::translate::{self, drain_in, strategy_in, tier_in};
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::journal::{JournalEntry, JournalPage, JournalQuery};
use hotbunk_api::logs::LogTail;
use hotbunk_api::operation::{Initiator, Operation, OperationRequest};
use hotbunk_api::reload::{ReloadReport, ReloadRequest};
use hotbunk_api::status::Status;
use hotbunk_api::version::{API_VERSION, VersionInfo};
use hotbunk_api::words::{self, State};
use hotbunk_core::event::{By, Drain, Request};
use hotbunk_core::ids::{EngineId, OperationId};
use hotbunk_core::plan::Ask;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The agent's parts, as the control API needs them. Clones are the same.
#[derive(Debug, Clone)]
pub struct Backend {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    identity: Identity,
    config: Current,
    switcher: Handle,
    hands: Arc<Hands>,
    cycles: Cycles,
    events: Arc<EventLog>,
    reloads: Reloads,
}

impl Backend {
    /// The agent's face.
    pub fn new(
        config: Current,
        switcher: Handle,
        hands: Arc<Hands>,
        cycles: Cycles,
        events: Arc<EventLog>,
        reloads: Reloads,
    ) -> Self {
        let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let identity = Identity { started_at: clock::epoch(), started: clock::now(), node };
        Backend { parts: Arc::new(Parts { identity, config, switcher, hands, cycles, events, reloads }) }
    }

    fn engine(&self, name: &str) -> Result<EngineId, ApiError> {
        let node = self.parts.switcher.node();
        node.by_name(name).filter(|id| status::is_shown(node.engine(*id))).ok_or_else(|| {
            let config = self.parts.config.get();
            ApiError::unknown_engine(name, config.configured().map(|(_, e)| e.name.as_str()))
        })
    }

    fn slot(&self, name: &str) -> Result<Arc<EngineSlot>, ApiError> {
        Ok(self.parts.hands.slot(self.engine(name)?))
    }

    fn request(&self, request: &OperationRequest) -> Result<Request, ApiError> {
        Ok(match request {
            OperationRequest::Switch(r) => Request::Switch {
                to: self.engine(&r.engine)?,
                strategy: r.strategy.map(strategy_in),
                leave: r.leave.map(tier_in),
                drain: drain(r.drain, r.deadline_s),
            },
            OperationRequest::Sleep(r) => Request::Sleep {
                engine: self.engine(&r.engine)?,
                tier: r.tier.map(tier_in),
                drain: drain(r.drain, r.deadline_s),
            },
            OperationRequest::Wake(r) => Request::Wake(self.engine(&r.engine)?),
            OperationRequest::Start(r) => {
                let engine = self.engine(&r.engine)?;
                // Nobody else awake: then it is wanted awake; else it goes to its rest tier.
                let node = self.parts.switcher.node();
                let alone = !node.engines.iter().any(hotbunk_core::state::Engine::is_serving);
                Request::Start { engine, rehearse: None, awake: alone }
            }
            OperationRequest::Stop(r) => {
                Request::Stop { engine: self.engine(&r.engine)?, drain: drain(r.drain, r.deadline_s) }
            }
            OperationRequest::Restart(r) => Request::Restart {
                engine: self.engine(&r.engine)?,
                rehearse: None,
                drain: drain(r.drain, r.deadline_s),
            },
            OperationRequest::Reset(r) => Request::Reset(self.engine(&r.engine)?),
            OperationRequest::Pause(r) => {
                Request::Pause { tier: r.tier.map(tier_in), drain: drain(r.drain, r.deadline_s) }
            }
            OperationRequest::Resume(_) => Request::Resume,
            OperationRequest::Adopt(r) => Request::Adopt(self.engine(&r.engine)?),
        })
    }

    fn known(&self, number: OperationId) -> Result<Operation, ApiError> {
        let unknown =
            || ApiError::new(ErrorCode::Internal, format!("operation {} is not on the board", number.0));
        self.parts.switcher.board().by_number(number).ok_or_else(unknown)
    }
}

fn drain(policy: Option<words::Drain>, deadline_s: Option<f64>) -> Drain {
    let deadline = deadline_s.and_then(|s| Duration::try_from_secs_f64(s).ok());
    Drain { policy: policy.map(drain_in), deadline }
}

fn unknown_operation(id: &str) -> ApiError {
    ApiError::new(ErrorCode::UnknownOperation, format!("there is no operation `{id}`"))
}

fn unknown_run(id: &str) -> ApiError {
    ApiError::new(ErrorCode::UnknownRun, format!("there is no run `{id}`"))
        .help("`ctl cycle list` shows the runs")
}

impl control::Backend for Backend {
    fn version(&self) -> VersionInfo {
        VersionInfo { agent: env!("CARGO_PKG_VERSION").to_owned(), api: API_VERSION, pid: std::process::id() }
    }

    async fn status(&self) -> Result<Status, ApiError> {
        let p = &self.parts;
        Ok(status::status(&p.identity, &p.config.get(), &p.switcher, &p.hands, &p.cycles, &p.events))
    }

    async fn submit(&self, id: String, request: OperationRequest, peer: Peer) -> Result<Operation, ApiError> {
        let core = self.request(&request)?;
        let initiator = Initiator::Operator { uid: peer.uid, pid: peer.pid };
        let client = Client { id: id.clone(), request, initiator };
        let order = Order { request: core, by: By::Operator, run: None, client: Some(client) };
        match self.parts.switcher.submit(order).await {
            Admission::Begun(number) | Admission::Queued(number) | Admission::Joined(number) => {
                self.known(number)
            }
            Admission::Nothing(_) => self.operation(&id).await,
            Admission::Refused(refusal) => Err(translate::refusal(&refusal, self.parts.switcher.board())),
        }
    }

    async fn operations(&self) -> Result<Vec<Operation>, ApiError> {
        Ok(self.parts.switcher.board().list())
    }

    async fn operation(&self, id: &str) -> Result<Operation, ApiError> {
        self.parts.switcher.board().find(id).ok_or_else(|| unknown_operation(id))
    }

    async fn wait(&self, id: &str, at_most: Duration) -> Result<Operation, ApiError> {
        let board = self.parts.switcher.board();
        let number = board.number(id).ok_or_else(|| unknown_operation(id))?;
        // Passing the limit is no error: the answer is the operation as it stands.
        drop(tokio::time::timeout(at_most, board.ended(number)).await);
        self.operation(id).await
    }

    async fn cancel(&self, id: &str, _peer: Peer) -> Result<Operation, ApiError> {
        let board = self.parts.switcher.board();
        let number = board.number(id).ok_or_else(|| unknown_operation(id))?;
        self.parts.switcher.cancel(number).await.map_err(|r| translate::refusal(&r, board))?;
        self.operation(id).await
    }

    async fn explain(&self, request: ExplainRequest) -> Result<Explanation, ApiError> {
        let to = self.engine(&request.engine)?;
        let node = self.parts.switcher.node();
        let ask = Ask {
            to,
            strategy: request.strategy.map_or(node.policy.strategy, strategy_in),
            leave: request.leave.map(tier_in).or(node.policy.leave),
            drain: request.drain.map_or(node.policy.drain, drain_in),
            spare_pinned: false,
        };
        Ok(explain::explain(&node, self.parts.switcher.board(), &ask))
    }

    async fn cycles(&self) -> Result<CycleList, ApiError> {
        let mut runs = self.parts.cycles.recent();
        for run in &mut runs {
            run.steps.clear();
        }
        let rows = self.parts.hands.recorder.journal().read(|r| r.runs()).await;
        let rows = rows.map_err(|e| ApiError::new(ErrorCode::Internal, chain(&e)))?;
        for row in rows {
            if !runs.iter().any(|r| r.id == row.run) {
                runs.push(from_row(row));
            }
        }
        runs.sort_by(|a, b| b.started_at.total_cmp(&a.started_at));
        Ok(CycleList { runs, plans: self.parts.cycles.plans() })
    }

    async fn run_cycle(&self, id: String, plan: PlanSource, _peer: Peer) -> Result<CycleRun, ApiError> {
        let (plan, steps) = self.parts.cycles.read(&plan, &cycle_plan::Options::default())?;
        Ok(self.parts.cycles.begin(id, plan, steps, CycleBy::Operator)?.get())
    }

    async fn cycle(&self, id: &str) -> Result<CycleRun, ApiError> {
        if let Some(shown) = self.parts.cycles.find(id) {
            return Ok(shown.get());
        }
        let rows = self.parts.hands.recorder.journal().read(|r| r.runs()).await;
        let rows = rows.map_err(|e| ApiError::new(ErrorCode::Internal, chain(&e)))?;
        rows.into_iter().find(|r| r.run == id).map(from_row).ok_or_else(|| unknown_run(id))
    }

    async fn wait_cycle(&self, id: &str, at_most: Duration) -> Result<CycleRun, ApiError> {
        if let Some(shown) = self.parts.cycles.find(id) {
            drop(tokio::time::timeout(at_most, shown.over()).await);
            return Ok(shown.get());
        }
        self.cycle(id).await
    }

    async fn cancel_cycle(&self, id: &str, _peer: Peer) -> Result<CycleRun, ApiError> {
        let run = self.cycle(id).await?;
        if run.state.is_over() {
            return Err(ApiError::new(ErrorCode::AlreadyOver, format!("run {id} is over")));
        }
        self.parts.cycles.cancel(id).ok_or_else(|| unknown_run(id))
    }

    async fn report(&self, run: &str) -> Result<serde_json::Value, ApiError> {
        let report = reports::of_run(self.parts.hands.recorder.journal(), run).await?;
        serde_json::to_value(report).map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))
    }

    async fn report_table(&self, run: &str) -> Result<String, ApiError> {
        reports::table_of_run(self.parts.hands.recorder.journal(), run).await
    }

    async fn journal(&self, query: JournalQuery) -> Result<JournalPage, ApiError> {
        let limit = usize::try_from(query.limit()).unwrap_or(usize::MAX);
        let mut wanted = Query::all();
        if let Some(run) = query.run {
            wanted = wanted.run(run);
        }
        if let Some(kind) = query.kind {
            wanted = wanted.kind(kind);
        }
        if let Some(engine) = query.engine {
            wanted = wanted.engine(engine);
        }
        if let Some(id) = query.operation {
            let number = self.parts.switcher.board().number(&id);
            let number = number.or_else(|| id.trim_start_matches("op-").parse().ok().map(OperationId));
            wanted = wanted.operation(number.ok_or_else(|| unknown_operation(&id))?);
        }
        // One more than asked for tells whether there is more.
        let wanted = match query.after {
            Some(seq) => wanted.since(seq).first(limit + 1),
            None => wanted.last(limit),
        };
        let page = self.parts.hands.recorder.journal().read(move |r| r.entries(&wanted)).await;
        let mut entries = page.map_err(|e| ApiError::new(ErrorCode::Internal, chain(&e)))?.entries;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let entries = entries
            .into_iter()
            .map(|e| JournalEntry {
                seq: e.seq,
                at: e.at.0,
                wall: e.wall,
                run: e.run,
                operation: e.operation.map(|id| id.0),
                record: serde_json::to_value(e.record).unwrap_or_default(),
            })
            .collect();
        Ok(JournalPage { entries, more })
    }

    async fn logs(&self, engine: &str, lines: u32) -> Result<LogTail, ApiError> {
        Ok(logs::tail(self.slot(engine)?.as_ref(), lines).await)
    }

    async fn follow_logs(&self, engine: &str, lines: u32) -> Result<LogStream, ApiError> {
        Ok(logs::follow(self.slot(engine)?, lines).await)
    }

    fn events(&self, since: Option<u64>) -> Subscription {
        self.parts.events.subscribe(since)
    }

    async fn doctor(&self) -> Result<DoctorReport, ApiError> {
        Ok(doctor::examine(&self.parts.config.get(), &self.parts.switcher, &self.parts.hands).await)
    }

    async fn check(&self, request: CheckRequest) -> Result<CheckReport, ApiError> {
        let facts = Facts::of_this_machine();
        let (ok, diagnostics) = match config::parse(&request.text, Path::new(&request.path), &facts) {
            Ok((_, warnings)) => (true, warnings),
            Err(problems) => (false, problems),
        };
        Ok(translate::diagnostics(ok, &diagnostics))
    }

    async fn reload(&self, request: ReloadRequest, peer: Peer) -> Result<ReloadReport, ApiError> {
        let by = reload::By::Operator { uid: peer.uid, pid: peer.pid };
        self.parts.reloads.reload(by, request.dry_run).await
    }
}

fn from_row(row: crate::journal::RunRow) -> CycleRun {
    let state = match (row.outcome.as_deref(), row.ended) {
        (Some("ok"), _) => State::Succeeded,
        (Some("cancelled"), _) => State::Cancelled,
        // A run whose agent died has no end; it has not succeeded.
        (Some(_), _) | (None, _) => State::Failed,
    };
    let agent_ended = row.outcome.as_deref().is_none_or(|code| code == AGENT_ENDED);
    let error = match row.outcome.as_deref() {
        Some("ok" | "cancelled") => None,
        Some(AGENT_ENDED) | None => Some(ApiError::new(ErrorCode::Other, "its agent ended before it did")),
        Some(code) => Some(ApiError::new(ErrorCode::from_word(code), format!("the run failed ({code})"))),
    };
    CycleRun {
        id: row.run,
        plan: row.plan,
        state,
        by: "unknown".to_owned(),
        started_at: row.started,
        ended_at: row.ended,
        // When its end was found says nothing of how long it took.
        elapsed_s: row.ended.filter(|_| !agent_ended).map_or(0.0, |end| end - row.started),
        eta_s: None,
        steps: Vec::new(),
        steps_total: 0,
        steps_done: 0,
        requests_total: 0,
        requests_ok: 0,
        error,
    }
}
