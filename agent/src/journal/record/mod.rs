//! What the journal holds: one enum variant for each kind of fact.
//!
//! Reports are pure functions of these records, so a record carries instants and bytes, never a figure already
//! computed. Instants are [`Moment`]s (monotonic nanoseconds of this boot); the wall clock stands beside each record.

mod parts;
mod sample;
mod words;

pub use parts::{Bytes, CycleStep, EngineWork, ReloadedEngine, RunEngine, SimulatedRun};
pub use sample::{HostSample, Sample};
pub use words::{AGENT_ENDED, OperationKind, Outcome, Phase};

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
