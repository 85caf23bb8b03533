//! What the journal holds: one enum variant for each kind of fact.
//!
//! Reports are pure functions of these records, so a record carries instants and bytes, never a figure already
//! computed. Instants are [`Moment`]s (monotonic nanoseconds of this boot); the wall clock stands beside each record.

use hotbunk_core::ids::{Incarnation, OperationId};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use serde::{Deserialize, Serialize};

/// A record with its place in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Position, ascending in the order of commits.
    pub seq: u64,
    /// When it was made, monotonic.
    pub at: Moment,
    /// When it was made, seconds since the Unix epoch.
    pub wall: f64,
    /// The cycle run that it belongs to.
    pub run: Option<String>,
    /// The operation that it belongs to.
    pub operation: Option<OperationId>,
    /// The fact.
    pub record: Record,
}

/// Device memory at one instant. Unknown is `None`, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Device-wide used bytes (what NVML reports).
    pub device: Option<u64>,
    /// The engine's own processes on the device, where pids can be mapped.
    pub engine: Option<u64>,
    /// Resident host bytes of the engine's process tree.
    pub rss: Option<u64>,
}

/// What kind of work an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// One engine to sleep or stop, another to wake.
    Handoff,
    /// A wake with nothing else awake.
    Activation,
    /// An engine into a sleeping tier.
    Sleep,
    /// A process started.
    Start,
    /// A process stopped.
    Stop,
    /// Stop and start.
    Restart,
    /// A repair begun by the agent itself.
    Repair,
    /// Every engine out of the way for maintenance.
    Pause,
    /// What served before maintenance serves again.
    Resume,
    /// A server that somebody else has started is taken over.
    Adopt,
}

/// A phase of an operation: the `phase` label of the histogram and the bar of the waterfall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Waiting for running requests.
    Drain,
    /// `/pause`.
    Pause,
    /// `/sleep`.
    Sleep,
    /// `/release_kv_cache_memory`.
    ReleaseKv,
    /// `/is_sleeping` says true.
    VerifyAsleep,
    /// Device bytes are gone.
    AwaitRelease,
    /// Tagless `/wake_up`.
    Wake,
    /// `/wake_up?tags=weights`.
    WakeWeights,
    /// `reload_weights`.
    Reload,
    /// `/wake_up?tags=kv_cache`.
    WakeKv,
    /// `/reset_prefix_cache`.
    ResetPrefixCache,
    /// `/resume`.
    Resume,
    /// `/is_sleeping` says false.
    VerifyAwake,
    /// Device bytes are there.
    AwaitResidence,
    /// The one-token request, or the canary.
    Probe,
    /// Process spawned under its shim.
    Spawn,
    /// Until `/health` and identity.
    Ready,
    /// Warm-up requests.
    WarmUp,
    /// SIGTERM to nothing left of the tree.
    Stop,
    /// Device and host bytes are read for a footprint.
    Measure,
    /// A worker call that repairs (CONTRACT 3.4).
    Repair,
    /// Long poll after an unanswered call.
    Resolve,
    /// A server that somebody else has started is found, proven and held.
    Hold,
    /// What is held becomes ours.
    Keep,
    /// What is held is left as it was found.
    LetGo,
}

/// The code of what a killed agent had begun and nobody goes on with. Its record was made when that was found.
pub const AGENT_ENDED: &str = "agent_ended";

/// How a step, an operation or a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Outcome {
    /// As planned.
    Ok,
    /// Not: a stable code (see the API's error codes) and a sentence.
    Failed {
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
    },
    /// Given up because somebody asked.
    Cancelled,
    /// As planned, but by another agent than the one that began it, which was killed meanwhile.
    Recovered,
    /// Not, and begun by an agent that was killed meanwhile: what served before serves again, as far as it can.
    RolledBack {
        /// Stable, snake_case.
        code: String,
        /// For people.
        message: String,
    },
}

/// One interval of an engine's own work, by the engine's own clock (operation log, or vLLM ≥ 0.32's metric).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineWork {
    /// Engine's name.
    pub engine: String,
    /// The engine's word: `sleep`, `wake`, `release_kv_cache`, `reload_weights`, `first_token`, …
    pub work: String,
    /// Begin, monotonic.
    pub began: Moment,
    /// End, monotonic.
    pub ended: Moment,
}

/// What a simulated run says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimulatedRun {
    /// Profile's name, `l20`.
    pub profile: String,
    /// Engine times are divided by this.
    pub speed: f64,
    /// By how much less host memory the simulated engines really take.
    pub host_scale: f64,
    /// What the times of starts are divided by, where that is another figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_speed: Option<f64>,
}

/// An engine's facts in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunEngine {
    /// Short name (`A`).
    pub engine: String,
    /// Served model.
    pub model: String,
    /// `max_model_len`, where it was known when the run began.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// Device bytes of its KV cache, where known: tells a release of the KV cache from a sleep.
    #[serde(default)]
    pub kv_bytes: Option<u64>,
}

/// A stage of a cycle, as planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum CycleStep {
    /// Start a stopped engine, or restart a running one; `initial` for the first start in the run.
    Start {
        /// Engine's name.
        engine: String,
        /// First start of the run (`restart_initial`), else `restart_warm`.
        initial: bool,
    },
    /// One load stage: rounds at one concurrency.
    Load {
        /// Engine's name.
        engine: String,
        /// `baseline` or `after-wake`.
        stage: String,
        /// Requests in flight.
        concurrency: u32,
        /// Rounds.
        rounds: u32,
        /// Requests of a round.
        requests: u32,
        /// Output tokens of a request.
        output_tokens: u32,
    },
    /// Sleep at a level, hold, wake, probe.
    SleepCycle {
        /// Engine's name.
        engine: String,
        /// `level1`, `level2` or `parked`.
        tier: Tier,
    },
    /// Sleep and stay asleep.
    Sleep {
        /// Engine's name.
        engine: String,
        /// Where to.
        tier: Tier,
    },
    /// Wake with nothing else awake.
    Activate {
        /// Engine's name.
        engine: String,
        /// In the `auto` series.
        auto: bool,
    },
    /// Hand the device over.
    Handoff {
        /// Outgoing engine.
        from: String,
        /// Incoming engine.
        to: String,
        /// In the `auto` series (reported apart).
        auto: bool,
    },
}

/// What a new configuration makes of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadedEngine {
    /// Engine's name.
    pub engine: String,
    /// `settings`, `restart`, `added` or `removed`.
    pub change: String,
    /// Fingerprint of what it ran with; `None` where it is new.
    pub from: Option<String>,
    /// Fingerprint of what it is started with next; `None` where it is not any more.
    pub to: Option<String>,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// The agent began.
    AgentStarted {
        /// The agent's version.
        version: String,
        /// Its pid.
        pid: u32,
        /// The boot it runs in.
        boot_id: String,
    },
    /// The agent ended in order.
    AgentStopped {
        /// Why.
        reason: String,
    },
    /// An engine process was spawned.
    Spawned {
        /// Engine's name.
        engine: String,
        /// Which process.
        incarnation: Incarnation,
    },
    /// Nothing of an engine's process tree runs any more, but for what is left over.
    Swept {
        /// Engine's name.
        engine: String,
        /// Which process it was.
        incarnation: Incarnation,
        /// Processes that had to be sent SIGKILL.
        killed: u32,
        /// Processes that SIGKILL has not ended.
        left: u32,
    },
    /// An engine's process is taken over that a former agent had started, or somebody else.
    Adopted {
        /// Engine's name.
        engine: String,
        /// Which process.
        incarnation: Incarnation,
        /// Where it is: a tier's word, or a condition's.
        state: String,
        /// Its generation.
        generation: u64,
    },
    /// An operation that a former agent began goes on.
    Resumed {
        /// The step that it was in.
        phase: Option<Phase>,
        /// The engine of that step.
        engine: Option<String>,
        /// What becomes of that step.
        then: String,
        /// Why.
        because: String,
    },
    /// Everything that a former agent left has been taken over, and decided.
    Recovered {
        /// Engines taken over.
        engines: u32,
        /// Operations that go on.
        operations: u32,
        /// When this agent's process began.
        began: Moment,
        /// When it had decided.
        recovered: Moment,
    },
    /// The settings that an engine is started with changed, or were seen for the first time. Footprints that follow
    /// belong to this fingerprint.
    Configured {
        /// Engine's name.
        engine: String,
        /// Digest of everything that shapes its memory: command, model, version, device.
        fingerprint: String,
    },
    /// An engine answered ready and was identified.
    Ready {
        /// Engine's name.
        engine: String,
        /// `/version`.
        version: String,
        /// `/v1/models`' `max_model_len`.
        context_tokens: Option<u32>,
    },
    /// An engine's tier or condition changed.
    Transition {
        /// Engine's name.
        engine: String,
        /// Before: a tier's word, or `starting`, `backoff`, `failed`, `unknown`.
        from: String,
        /// After, likewise.
        to: String,
        /// Raised at each wake and start.
        generation: u64,
        /// Why.
        reason: String,
    },
    /// A footprint was measured.
    Footprint {
        /// Engine's name.
        engine: String,
        /// At which tier.
        tier: Tier,
        /// Device bytes of this engine.
        device_bytes: Option<u64>,
        /// Resident host bytes of this engine.
        host_bytes: Option<u64>,
        /// Proportional host bytes (PSS) of this engine.
        pss_bytes: Option<u64>,
    },
    /// A command was accepted: t0.
    OperationAccepted {
        /// Kind of work.
        operation: OperationKind,
        /// The engine it is for (the incoming one of a handoff).
        engine: String,
        /// The outgoing engine of a handoff.
        from: Option<String>,
        /// Asked for.
        strategy: Option<String>,
        /// `make-before-break` or `break-before-make`.
        order: Option<String>,
        /// Tier the outgoing engine is left in (or the sleep's target).
        leave: Option<Tier>,
        /// Drain policy.
        drain: Option<String>,
        /// `operator`, `cycle`, `agent`.
        by: String,
        /// The plan, a sentence a step.
        plan: Vec<String>,
    },
    /// A step is about to act.
    StepBegan {
        /// Its place in the operation, ascending; rungs of the failure ladder and roll-back continue the count.
        index: u32,
        /// Phase.
        phase: Phase,
        /// On which engine.
        engine: String,
    },
    /// A step ended.
    StepEnded {
        /// Its place in the operation.
        index: u32,
        /// Phase.
        phase: Phase,
        /// On which engine.
        engine: String,
        /// Begin.
        began: Moment,
        /// End.
        ended: Moment,
        /// How.
        outcome: Outcome,
        /// Memory when it began.
        before: Bytes,
        /// Memory when it ended.
        after: Bytes,
    },
    /// A verified first token, or a request made for verification.
    Probe {
        /// Engine's name.
        engine: String,
        /// `probe` (counted in `requests.executed`) or `warm_up`, `rehearsal`, `canary` (never counted there).
        purpose: String,
        /// Sent.
        began: Moment,
        /// First token, where one came.
        first_token: Option<Moment>,
        /// How it ended.
        outcome: Outcome,
    },
    /// The engines' own work during an operation; `None` where an engine gives no clock.
    EngineWork {
        /// Intervals.
        work: Option<Vec<EngineWork>>,
    },
    /// An operation ended.
    OperationEnded {
        /// How.
        outcome: Outcome,
        /// Acceptance of the command.
        accepted: Moment,
        /// Probe's first token of the incoming engine.
        first_token: Option<Moment>,
        /// When it ended.
        ended: Moment,
    },
    /// Something happened that nobody asked for; `code` names the cause.
    Incident {
        /// Stable, snake_case: `crashed`, `start_failed`, `sleep_incomplete`, `wake_failed`, `drifted`, `stalled`, …
        code: String,
        /// Engine, where one is concerned.
        engine: Option<String>,
        /// Device, where one is concerned.
        device: Option<String>,
        /// For people.
        message: String,
    },
    /// A cycle run began.
    RunStarted {
        /// Cycle plan's name.
        plan: String,
        /// Planned steps, in order.
        steps: Vec<CycleStep>,
        /// Engines of the run.
        engines: Vec<RunEngine>,
        /// `vLLM 0.31.0`.
        runtime: String,
        /// `1 × NVIDIA L20`.
        gpu: String,
        /// KV cache of an engine, GiB, where all have the same.
        kv_gib: Option<f64>,
        /// Where the run is simulated.
        simulated: Option<SimulatedRun>,
        /// Where device memory is read from: `nvml`, `simulated`, `none`.
        #[serde(default)]
        device_source: Option<String>,
    },
    /// A cycle's step is about to act.
    CycleStepBegan {
        /// Its place in `RunStarted.steps`.
        index: u32,
    },
    /// A cycle's step ended.
    CycleStepEnded {
        /// Its place in `RunStarted.steps`.
        index: u32,
        /// The operations that it was made of, in order (a sleep cycle has two: sleep, wake).
        operations: Vec<OperationId>,
        /// How.
        outcome: Outcome,
    },
    /// One request of a load round.
    LoadRequest {
        /// Cycle step.
        index: u32,
        /// Round, from 0.
        round: u32,
        /// Whether the stream was complete.
        ok: bool,
        /// Why not.
        error: Option<String>,
        /// Sent.
        began: Moment,
        /// First token.
        first_token: Option<Moment>,
        /// End.
        ended: Moment,
        /// `usage.completion_tokens`.
        output_tokens: Option<u32>,
        /// `usage.prompt_tokens`.
        prompt_tokens: Option<u32>,
    },
    /// A load round ended.
    LoadRound {
        /// Cycle step.
        index: u32,
        /// Round, from 0.
        round: u32,
        /// Begin.
        began: Moment,
        /// End.
        ended: Moment,
    },
    /// A measuring window of the report, wall clock, already widened by its margins.
    Window {
        /// `A-baseline`, `AB-switch`, …
        name: String,
        /// Epoch seconds.
        start: f64,
        /// Epoch seconds.
        end: f64,
    },
    /// A cycle run ended.
    RunEnded {
        /// How.
        outcome: Outcome,
    },
    /// The configuration file was read again while the agent ran.
    Reloaded {
        /// Who wanted it.
        by: String,
        /// `applied`, `unchanged`, `invalid` or `needs_restart`.
        outcome: String,
        /// Engines that something becomes of.
        engines: Vec<ReloadedEngine>,
        /// Other settings that are different.
        settings: Vec<String>,
        /// Why it was refused.
        problem: Option<String>,
    },
}

impl OperationKind {
    /// The word used in metrics and journal.
    pub fn as_str(self) -> &'static str {
        match self {
            OperationKind::Handoff => "handoff",
            OperationKind::Activation => "activation",
            OperationKind::Sleep => "sleep",
            OperationKind::Start => "start",
            OperationKind::Stop => "stop",
            OperationKind::Restart => "restart",
            OperationKind::Repair => "repair",
            OperationKind::Pause => "pause",
            OperationKind::Resume => "resume",
            OperationKind::Adopt => "adopt",
        }
    }
}

impl Phase {
    /// The word used in metrics and journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Drain => "drain",
            Phase::Pause => "pause",
            Phase::Sleep => "sleep",
            Phase::ReleaseKv => "release_kv",
            Phase::VerifyAsleep => "verify_asleep",
            Phase::AwaitRelease => "await_release",
            Phase::Wake => "wake",
            Phase::WakeWeights => "wake_weights",
            Phase::Reload => "reload",
            Phase::WakeKv => "wake_kv",
            Phase::ResetPrefixCache => "reset_prefix_cache",
            Phase::Resume => "resume",
            Phase::VerifyAwake => "verify_awake",
            Phase::AwaitResidence => "await_residence",
            Phase::Probe => "probe",
            Phase::Spawn => "spawn",
            Phase::Ready => "ready",
            Phase::WarmUp => "warm_up",
            Phase::Stop => "stop",
            Phase::Measure => "measure",
            Phase::Repair => "repair",
            Phase::Resolve => "resolve",
            Phase::Hold => "hold",
            Phase::Keep => "keep",
            Phase::LetGo => "let_go",
        }
    }
}

impl Outcome {
    /// The bounded word used as a metric's label: `ok`, `failed`, `cancelled`, `recovered`, `rolled_back`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed { .. } => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Recovered => "recovered",
            Outcome::RolledBack { .. } => "rolled_back",
        }
    }
}

impl Record {
    /// The kind's word: the `kind` column, and the `kind` field of the body.
    pub fn kind(&self) -> &'static str {
        match self {
            Record::AgentStarted { .. } => "agent_started",
            Record::AgentStopped { .. } => "agent_stopped",
            Record::Spawned { .. } => "spawned",
            Record::Swept { .. } => "swept",
            Record::Adopted { .. } => "adopted",
            Record::Resumed { .. } => "resumed",
            Record::Recovered { .. } => "recovered",
            Record::Configured { .. } => "configured",
            Record::Ready { .. } => "ready",
            Record::Transition { .. } => "transition",
            Record::Footprint { .. } => "footprint",
            Record::OperationAccepted { .. } => "operation_accepted",
            Record::StepBegan { .. } => "step_began",
            Record::StepEnded { .. } => "step_ended",
            Record::Probe { .. } => "probe",
            Record::EngineWork { .. } => "engine_work",
            Record::OperationEnded { .. } => "operation_ended",
            Record::Incident { .. } => "incident",
            Record::RunStarted { .. } => "run_started",
            Record::CycleStepBegan { .. } => "cycle_step_began",
            Record::CycleStepEnded { .. } => "cycle_step_ended",
            Record::LoadRequest { .. } => "load_request",
            Record::LoadRound { .. } => "load_round",
            Record::Window { .. } => "window",
            Record::RunEnded { .. } => "run_ended",
            Record::Reloaded { .. } => "reloaded",
        }
    }

    /// The engine that the fact is about, where it is about one: the incoming engine of a handoff.
    pub fn engine(&self) -> Option<&str> {
        match self {
            Record::Spawned { engine, .. }
            | Record::Swept { engine, .. }
            | Record::Adopted { engine, .. }
            | Record::Configured { engine, .. }
            | Record::Ready { engine, .. }
            | Record::Transition { engine, .. }
            | Record::Footprint { engine, .. }
            | Record::OperationAccepted { engine, .. }
            | Record::StepBegan { engine, .. }
            | Record::StepEnded { engine, .. }
            | Record::Probe { engine, .. } => Some(engine),
            Record::Incident { engine, .. } | Record::Resumed { engine, .. } => engine.as_deref(),
            Record::AgentStarted { .. }
            | Record::AgentStopped { .. }
            | Record::Recovered { .. }
            | Record::EngineWork { .. }
            | Record::OperationEnded { .. }
            | Record::RunStarted { .. }
            | Record::CycleStepBegan { .. }
            | Record::CycleStepEnded { .. }
            | Record::LoadRequest { .. }
            | Record::LoadRound { .. }
            | Record::Window { .. }
            | Record::RunEnded { .. }
            | Record::Reloaded { .. } => None,
        }
    }
}

/// One device sample (its own table: there are many).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When the device was read, monotonic.
    pub at: Moment,
    /// The same, epoch seconds.
    pub wall: f64,
    /// Device's name.
    pub device: String,
    /// Device-wide used bytes; `None` is a missed sample.
    pub used: Option<u64>,
    /// Device bytes by engine name, where pids can be mapped.
    pub engines: Vec<(String, Option<u64>)>,
}

/// One host sample of an engine's process tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// When it was read, monotonic.
    pub at: Moment,
    /// The same, epoch seconds.
    pub wall: f64,
    /// Engine's name.
    pub engine: String,
    /// Σ RSS over the tree.
    pub rss: Option<u64>,
    /// Σ PSS over the tree, where it was read.
    pub pss: Option<u64>,
}
