//! A socket that answers as the agent does, with figures that never change.

use axum::extract::{Path, Query, State as Shared};
use axum::http::StatusCode;
use axum::response::sse::{Event as SseEvent, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
use hotbunk_api::check::{CheckReport, CheckRequest, Diagnostic};
use hotbunk_api::cycle::{CycleList, CycleRun, CycleStep, PlanSource, PlanSummary, RunCycle};
use hotbunk_api::doctor::{DoctorCheck, DoctorReport, DoctorVerdict};
use hotbunk_api::error::{ApiError, ErrorBody, ErrorCode};
use hotbunk_api::explain::{
    Alternative, Change, ExplainRequest, Explanation, Faster, KvSize, Peak, Plan, PlanStep, Verdict,
};
use hotbunk_api::gateway::{Eta, GatewayStatus, LineStatus, TenantStatus, Turn};
use hotbunk_api::journal::{JournalEntry, JournalPage};
use hotbunk_api::logs::{LogLine, LogTail};
use hotbunk_api::operation::{Initiator, NODE, Operation, OperationRequest, Submit, WaitQuery};
use hotbunk_api::reload::{
    EngineChange, EngineReload, ReloadOutcome, ReloadReport, ReloadRequest, SettingChange,
};
use hotbunk_api::status::{
    Canary, Condition, DeviceHealth, DeviceStatus, EngineStatus, Footprint, HostStatus, NodeStatus, Settings,
    Simulated, Status, StoppedWhy,
};
use hotbunk_api::words::{OperationKind, Order, State, Strategy, Tier};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::oneshot;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The fake agent; gone when dropped.
pub(crate) struct Fake {
    pub(crate) socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    polls: mpsc::Receiver<()>,
    thread: Option<std::thread::JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Fake {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (polled, polls) = mpsc::channel();
        let file = directory.path().join("hotbunk.toml");
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, router(polled, file)) => served.unwrap(),
                    _ = stopped => {}
                }
            });
        });
        Fake { socket, stop: Some(stop), polls, thread: Some(thread), directory }
    }

    /// Returns when somebody has begun to wait for the operation `endless`.
    pub(crate) fn wait_for_poll(&self) {
        self.polls.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Ends it; its socket stays behind, as that of a killed agent does.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        // A test beside this one that is just starting a process holds its listener until that has begun.
        while std::os::unix::net::UnixStream::connect(&self.socket).is_ok() {
            std::thread::yield_now();
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn fail(error: ApiError) -> Response {
    let status = StatusCode::from_u16(error.code.http_status()).unwrap();
    (status, Json(ErrorBody { error })).into_response()
}

fn router(polled: mpsc::Sender<()>, file: PathBuf) -> Router {
    Router::new()
        .route("/v1/status", get(async || Json(status())))
        .route("/v1/operations", post(submit))
        .route("/v1/operations/{id}", get(show_operation))
        .route("/v1/explain", post(explain))
        .route("/v1/cycles", get(async || Json(cycles())).post(run_cycle))
        .route("/v1/cycles/{id}", get(show_cycle))
        .route("/v1/cycles/{id}/cancel", post(cancel_cycle))
        .route("/v1/cycles/{id}/report", get(async |Path(id): Path<String>| Json(json!({ "id": id }))))
        .route(
            "/v1/cycles/{id}/report.txt",
            get(async |Path(id): Path<String>| format!("REPORT OF {id}\nPASS\n")),
        )
        .route("/v1/journal", get(journal))
        .route("/v1/engines/{engine}/logs", get(logs))
        .route("/v1/engines/{engine}/logs/follow", get(follow))
        .route("/v1/events", get(events))
        .route("/v1/doctor", get(async || Json(doctor())))
        .route("/v1/check", post(async |Json(request): Json<CheckRequest>| Json(check(&request))))
        .route(
            "/v1/reload",
            post(async move |Json(request): Json<ReloadRequest>| Json(reload(&file, request))),
        )
        .with_state(polled)
}

/// What is asked for decides how it goes: the engine's name, and for switches to `B` the id.
async fn submit(Json(submit): Json<Submit>) -> Response {
    let engine = submit.request.engine().to_owned();
    let id = submit.id.unwrap_or_else(|| "made-by-agent".to_owned());
    let mut operation = operation(&id, submit.request);
    match engine.as_str() {
        "A" => {
            operation.state = State::Succeeded;
            operation.note = Some("already awake".to_owned());
            (StatusCode::OK, Json(operation)).into_response()
        }
        "B" if id == "joins" => {
            operation.id = "running-already".to_owned();
            (StatusCode::OK, Json(operation)).into_response()
        }
        "B" if id == "second" => fail(
            ApiError::new(ErrorCode::Busy, "operation 0193 (switch A → B) is running")
                .operation("0193")
                .retry_after_s(1.2),
        ),
        "B" => (StatusCode::ACCEPTED, Json(operation)).into_response(),
        NODE => {
            operation.state = State::Succeeded;
            operation.elapsed_s = 1.5;
            (StatusCode::OK, Json(operation)).into_response()
        }
        name => fail(ApiError::unknown_engine(name, ["A", "B", "llama-8b"])),
    }
}

async fn show_operation(
    Shared(polled): Shared<mpsc::Sender<()>>,
    Path(id): Path<String>,
    Query(query): Query<WaitQuery>,
) -> Response {
    let request: OperationRequest =
        serde_json::from_value(json!({ "kind": "switch", "engine": "B" })).unwrap();
    let mut operation = operation(&id, request);
    if id == "endless" {
        // Nobody has to be listening.
        let _ = polled.send(());
        let wait = Duration::from_secs_f64(query.wait_s.unwrap_or(0.0));
        tokio::time::sleep(wait).await;
        return Json(operation).into_response();
    }
    operation.ended_at = Some(1_796_040_001.9);
    operation.elapsed_s = 1.905;
    operation.eta_s = None;
    let failure = match id.as_str() {
        "fails" => Some(
            ApiError::new(ErrorCode::WakeFailed, "B did not wake: /wake_up answered 500")
                .help("`ctl logs B` shows why"),
        ),
        "drains" => Some(
            ApiError::new(ErrorCode::DrainDeadline, "2 requests of A were still running after 30 s")
                .help("--deadline 2m, or --drain freeze"),
        ),
        _ => None,
    };
    operation.note = failure.as_ref().map(|_| "A serves".to_owned());
    operation.state = if failure.is_some() { State::Failed } else { State::Succeeded };
    operation.first_token_s = failure.is_none().then_some(1.594);
    operation.error = failure;
    Json(operation).into_response()
}

fn operation(id: &str, request: OperationRequest) -> Operation {
    let switch = request.kind() == OperationKind::Switch;
    Operation {
        id: id.to_owned(),
        number: Some(7),
        kind: request.kind(),
        engine: request.engine().to_owned(),
        from: switch.then(|| "A".to_owned()),
        request: Some(request),
        initiator: Initiator::Operator { uid: 0, pid: Some(1) },
        state: State::Running,
        note: None,
        error: None,
        plan: Some(plan()),
        steps: Vec::new(),
        accepted_at: 1_796_040_000.0,
        ended_at: None,
        elapsed_s: 0.2,
        first_token_s: None,
        eta_s: Some(1.7),
    }
}

fn plan() -> Plan {
    let step = |sentence: &str, engine: &str, eta_s| PlanStep {
        sentence: sentence.to_owned(),
        engine: engine.to_owned(),
        eta_s,
    };
    Plan {
        strategy: Some(Strategy::Auto),
        order: Some(Order::MakeBeforeBreak),
        leave: Some(Tier::Parked),
        steps: vec![
            step("wake B (3.3 GiB of weights, 4.0 GiB of KV cache)", "B", Some(0.2)),
            step("probe B", "B", Some(0.03)),
            step("park A (releases 4.0 GiB)", "A", None),
        ],
        first_token_s: Some(0.24),
        total_s: Some(0.31),
        peaks: vec![peak()],
    }
}

fn peak() -> Peak {
    Peak { device: "gpu0".into(), peak_bytes: Some(41 * GIB), limit_bytes: Some(44 * GIB) }
}

async fn explain(Json(request): Json<ExplainRequest>) -> Response {
    let blank = Explanation {
        engine: request.engine.clone(),
        from: Some("A".into()),
        chosen: None,
        nothing_to_do: None,
        refused: None,
        alternatives: Vec::new(),
        faster: Vec::new(),
    };
    match request.engine.as_str() {
        "A" => Json(Explanation { nothing_to_do: Some("already awake".into()), ..blank }).into_response(),
        "B" if request.strategy == Some(Strategy::Park) => {
            let refused = ApiError::new(
                ErrorCode::Unsupported,
                "A cannot be parked: vLLM 0.30 cannot release its KV cache alone",
            )
            .help("vLLM 0.31 can");
            Json(Explanation { refused: Some(refused), ..blank }).into_response()
        }
        "B" => Json(Explanation {
            chosen: Some(plan()),
            alternatives: vec![
                Alternative {
                    order: Order::BreakBeforeMake,
                    leave: Tier::Level1,
                    verdict: Verdict::Fits,
                    first_token_s: Some(1.594),
                    return_s: Some(2.03),
                    peaks: vec![peak()],
                },
                Alternative {
                    order: Order::MakeBeforeBreak,
                    leave: Tier::Level2,
                    verdict: Verdict::Refused { because: "A has no way back from level2".into() },
                    first_token_s: None,
                    return_s: None,
                    peaks: Vec::new(),
                },
            ],
            faster: vec![Faster {
                sentence: "start A with --kv-cache-memory-bytes of at most 6.0 GiB: park fits".into(),
                change: Change::KvCache {
                    engines: vec![KvSize { engine: "A".into(), at_most_bytes: 6 * GIB, now_bytes: None }],
                },
                order: Some(Order::MakeBeforeBreak),
                leave: Some(Tier::Parked),
                saves_s: Some(1.35),
            }],
            ..blank
        })
        .into_response(),
        name => fail(ApiError::unknown_engine(name, ["A", "B", "llama-8b"])),
    }
}

fn engine(name: &str, model: &str, tier: Option<Tier>, condition: Condition) -> EngineStatus {
    EngineStatus {
        name: name.into(),
        model: model.into(),
        devices: vec!["gpu0".into()],
        address: Some("http://127.0.0.1:8001".into()),
        tier,
        condition,
        generation: 3,
        incarnation: None,
        version: Some("0.31.0".into()),
        capabilities: None,
        footprints: Vec::new(),
        in_flight: None,
        canary: Canary::None,
        restarts: 0,
        log_path: None,
        settings: Settings::InForce,
        retiring: false,
    }
}

fn status() -> Status {
    let a = EngineStatus {
        footprints: vec![Footprint {
            tier: Tier::Awake,
            device_bytes: Some(33 * GIB),
            host_bytes: Some(51 * GIB),
            measured: true,
        }],
        in_flight: Some(2),
        settings: Settings::PendingRestart,
        canary: Canary::Matched { at: 1_796_040_000.0 },
        ..engine("A", "org/model-14b", Some(Tier::Awake), Condition::Settled)
    };
    let b = EngineStatus {
        footprints: vec![Footprint {
            tier: Tier::Level1,
            device_bytes: Some(455 * MIB),
            host_bytes: None,
            measured: false,
        }],
        ..engine("B", "org/model-2b", Some(Tier::Level1), Condition::Moving { operation: "0193".into() })
    };
    let c = EngineStatus {
        version: None,
        retiring: true,
        ..engine("llama-8b", "org/llama", Some(Tier::Stopped), Condition::Stopped { why: StoppedWhy::NoRoom })
    };
    let request: OperationRequest =
        serde_json::from_value(json!({ "kind": "switch", "engine": "B" })).unwrap();
    Status {
        seq: 12,
        node: NodeStatus {
            name: "node-7".into(),
            agent_version: "0.1.0".into(),
            pid: 412,
            started_at: 1_796_000_000.0,
            uptime_s: 11_520.0,
            config_path: Some("/etc/hotbunk/hotbunk.toml".into()),
            simulated: Some(Simulated { profile: "l20".into(), speed: 20.0 }),
            host: HostStatus {
                total_bytes: Some(256 * GIB),
                available_bytes: Some(170 * GIB),
                reserved_bytes: None,
            },
            journal_trouble: None,
        },
        devices: vec![DeviceStatus {
            name: "gpu0".into(),
            uuid: Some("GPU-0".into()),
            product: Some("NVIDIA L20".into()),
            total_bytes: Some(46_068 * MIB),
            used_bytes: Some(33 * GIB + 455 * MIB),
            reserve_bytes: GIB,
            held_bytes: Some(33 * GIB + 455 * MIB),
            reserved_bytes: Some(7 * GIB),
            foreign_bytes: None,
            reading_age_s: Some(2.5),
            health: DeviceHealth::Stale,
        }],
        engines: vec![a, b, c],
        operation: Some(operation("0193", request)),
        queue: Vec::new(),
        cycle: None,
        gateway: Some(gateway()),
        maintenance: None,
    }
}

fn gateway() -> GatewayStatus {
    let line = |engine: &str, open, in_flight, held, eta| LineStatus {
        engine: engine.into(),
        open,
        in_flight,
        max_in_flight: None,
        held,
        oldest_s: (held > 0).then_some(1.25),
        eta,
        used_at: None,
    };
    GatewayStatus {
        listen: Some("127.0.0.1:8000".into()),
        held_bytes: 3 * MIB,
        held_bytes_limit: GIB,
        lines: vec![
            line("A", true, 2, 0, Eta::Serving),
            line("B", false, 0, 3, Eta::In { s: 0.24 }),
            line("llama-8b", false, 0, 0, Eta::Never { reason: "no room on gpu0".into() }),
        ],
        turns: vec![Turn { engine: "B".into(), turn_s: 0.0, latest_s: 58.5 }],
        tenants: vec![
            TenantStatus { name: "default".into(), in_flight: 0, held: 0, switch_s: 0.0 },
            TenantStatus { name: "research".into(), in_flight: 2, held: 3, switch_s: 12.5 },
        ],
    }
}

fn cycle(id: &str, state: State) -> CycleRun {
    let over = state.is_over();
    let step = |index, sentence: &str, state, duration_s| CycleStep {
        index,
        sentence: sentence.to_owned(),
        state,
        duration_s,
        operations: Vec::new(),
        error: None,
    };
    CycleRun {
        id: id.to_owned(),
        plan: "quick".into(),
        state,
        by: "operator".into(),
        started_at: 1_796_040_000.0,
        ended_at: over.then_some(1_796_040_025.0),
        elapsed_s: if over { 25.0 } else { 3.0 },
        eta_s: (!over).then_some(22.0),
        steps: vec![
            step(0, "start A", State::Succeeded, Some(2.4)),
            step(1, "hand off A → B", if over { State::Succeeded } else { State::Running }, Some(0.6)),
        ],
        steps_total: 2,
        steps_done: if over { 2 } else { 1 },
        requests_total: 10,
        requests_ok: 10,
        error: None,
    }
}

fn cycles() -> CycleList {
    let without_steps = |run: CycleRun| CycleRun { steps: Vec::new(), ..run };
    let plan = |name: &str, about: &str, steps| PlanSummary { name: name.into(), about: about.into(), steps };
    CycleList {
        runs: vec![
            without_steps(cycle("run-2", State::Running)),
            without_steps(cycle("run-1", State::Succeeded)),
        ],
        plans: vec![
            plan("reference", "restarts, sleeps, load and 38 handoffs", 96),
            plan("quick", "one sleep cycle of each level and four handoffs", 12),
        ],
    }
}

async fn run_cycle(Json(RunCycle { id, plan }): Json<RunCycle>) -> Response {
    match plan {
        PlanSource::Named { name } if name != "quick" && name != "reference" => {
            fail(ApiError::new(ErrorCode::UnknownPlan, format!("there is no plan `{name}`")))
        }
        PlanSource::Inline { origin, text } if text.contains("wrong") => fail(
            ApiError::new(ErrorCode::PlanInvalid, format!("{origin}:1: unknown step `wrong`"))
                .help("steps are restart, sleep, load and handoff"),
        ),
        _ => (StatusCode::ACCEPTED, Json(cycle(&id.unwrap(), State::Running))).into_response(),
    }
}

async fn show_cycle(Path(id): Path<String>) -> Response {
    match id.as_str() {
        "none" => fail(ApiError::new(ErrorCode::UnknownRun, "there is no cycle run `none`")),
        "fails" => {
            let error =
                ApiError::new(ErrorCode::CanaryMismatch, "step 1: B answered other tokens than before");
            Json(CycleRun { error: Some(error), ..cycle(&id, State::Failed) }).into_response()
        }
        _ => Json(cycle(&id, State::Succeeded)).into_response(),
    }
}

async fn cancel_cycle(Path(id): Path<String>) -> Response {
    match id.as_str() {
        "run-1" => fail(ApiError::new(ErrorCode::AlreadyOver, "run-1 has ended").operation("run-1")),
        _ => Json(cycle(&id, State::Running)).into_response(),
    }
}

async fn journal(Query(query): Query<HashMap<String, String>>) -> Response {
    let limit: usize = query["limit"].parse().unwrap();
    if limit > 5_000 {
        // Far more than a pipe holds, for a reader that goes away.
        let entry = |seq| entry(seq, json!({ "kind": "incident", "message": "x".repeat(200) }));
        return Json(JournalPage { entries: (0..10_000).map(entry).collect(), more: false }).into_response();
    }
    let entries = vec![
        entry(
            41,
            json!({ "kind": "transition", "engine": "A", "from": "awake", "to": "level1", "reason": "switch to B" }),
        ),
        entry(
            42,
            json!({ "kind": "step_ended", "index": 2, "phase": "wake", "engine": "B", "after": { "device": 7 }, "error": null }),
        ),
    ];
    Json(JournalPage { entries, more: query.contains_key("after") }).into_response()
}

fn entry(seq: u64, record: Value) -> JournalEntry {
    JournalEntry { seq, at: 5, wall: 1_796_040_000.25, run: None, operation: Some(7), record }
}

async fn logs(Path(engine): Path<String>) -> Response {
    if engine != "A" {
        return fail(ApiError::unknown_engine(&engine, ["A", "B", "llama-8b"]));
    }
    let line = |text: &str| LogLine { pid: Some(9), text: text.into() };
    Json(LogTail { engine, path: Some("/x/a.log".into()), lines: vec![line("one"), line("two")] })
        .into_response()
}

async fn follow(Path(_): Path<String>) -> impl IntoResponse {
    let lines = stream::iter(["one", "two", "three"])
        .map(|text| SseEvent::default().json_data(LogLine { pid: None, text: text.into() }));
    Sse::new(lines)
}

async fn events() -> impl IntoResponse {
    Sse::new(stream::pending::<Result<SseEvent, Infallible>>())
}

fn doctor() -> DoctorReport {
    let check = |name: &str, verdict, found: &str, help: Option<&str>| DoctorCheck {
        name: name.into(),
        verdict,
        found: found.into(),
        help: help.map(str::to_owned),
    };
    DoctorReport {
        checks: vec![
            check("NVML", DoctorVerdict::Ok, "driver 580.82, 1 device", None),
            check(
                "cgroup",
                DoctorVerdict::Warning,
                "not writable: trees are ended by their shim",
                Some("Delegate=yes"),
            ),
            check(
                "engine B: routes",
                DoctorVerdict::Error,
                "/sleep is missing",
                Some("set VLLM_SERVER_DEV_MODE=1"),
            ),
        ],
    }
}

fn check(request: &CheckRequest) -> CheckReport {
    if !request.text.contains("wrong") {
        return CheckReport { ok: true, diagnostics: Vec::new(), rendered: String::new() };
    }
    let diagnostic = Diagnostic {
        error: true,
        line: Some(1),
        column: Some(1),
        message: "unknown key `wrong`".into(),
        help: None,
    };
    let rendered = format!("error: unknown key `wrong`\n --> {}:1:1\n", request.path);
    CheckReport { ok: false, diagnostics: vec![diagnostic], rendered }
}

/// What the file says decides how it goes.
fn reload(file: &std::path::Path, request: ReloadRequest) -> ReloadReport {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let path = "/etc/hotbunk/hotbunk.toml".to_owned();
    let check = check(&CheckRequest { path: path.clone(), text: text.clone() });
    let setting = |key: &str, from: &str, to: &str| SettingChange {
        key: key.into(),
        from: Some(from.into()),
        to: Some(to.into()),
    };
    let outcome = match text.trim() {
        _ if !check.ok => ReloadOutcome::Invalid,
        "listen" => ReloadOutcome::NeedsRestart,
        "same" => ReloadOutcome::Unchanged,
        _ => ReloadOutcome::Applied,
    };
    let engine = |name: &str, change, keys: &[&str], from: Option<&str>, to: Option<&str>| EngineReload {
        engine: name.into(),
        change,
        keys: keys.iter().map(|key| (*key).into()).collect(),
        from: from.map(Into::into),
        to: to.map(Into::into),
    };
    let (engines, settings) = match outcome {
        ReloadOutcome::Applied => (
            vec![
                engine("A", EngineChange::Restart, &["command", "kv_cache"], Some("f1"), Some("f2")),
                engine("B", EngineChange::Settings, &["idle"], Some("f3"), Some("f3")),
                engine("llama-8b", EngineChange::Unchanged, &[], Some("f4"), Some("f4")),
                engine("D", EngineChange::Added, &[], None, Some("f5")),
            ],
            vec![setting("policy.drain", "wait", "freeze"), setting("tenant red", "set", "set")],
        ),
        _ => (Vec::new(), Vec::new()),
    };
    let needs_restart = match outcome {
        ReloadOutcome::NeedsRestart => vec![setting("gateway.listen", "127.0.0.1:8000", "127.0.0.1:9000")],
        _ => Vec::new(),
    };
    ReloadReport { path, outcome, dry_run: request.dry_run, check, engines, settings, needs_restart }
}
