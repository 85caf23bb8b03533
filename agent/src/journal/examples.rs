//! One record of every kind, for the tests of this module and of those that render records.

use super::record::{
    Bytes, CycleStep, EngineWork, OperationKind, Outcome, Phase, Record, ReloadedEngine, RunEngine,
    SimulatedRun,
};
use hotbunk_core::ids::{Incarnation, OperationId};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;

/// One of each, fields filled where they can be.
pub(crate) fn one_of_each() -> Vec<Record> {
    let engine = || "A".to_owned();
    let bytes = Bytes { device: Some(34_359_738_368), engine: None, rss: Some(1 << 30) };
    vec![
        Record::AgentStarted { version: "0.1.0".into(), pid: 7, boot_id: "b-1".into() },
        Record::Configured { engine: engine(), fingerprint: "f1".into() },
        Record::Spawned {
            engine: engine(),
            incarnation: Incarnation { pid: 100, start_ticks: 5000, boot_id: "b-1".into() },
        },
        Record::Swept {
            engine: engine(),
            incarnation: Incarnation { pid: 100, start_ticks: 5000, boot_id: "b-1".into() },
            killed: 1,
            left: 0,
        },
        Record::Adopted {
            engine: engine(),
            incarnation: Incarnation { pid: 100, start_ticks: 5000, boot_id: "b-1".into() },
            state: "awake".into(),
            generation: 3,
        },
        Record::Resumed {
            phase: Some(Phase::WakeKv),
            engine: Some("B".into()),
            then: "again".into(),
            because: "it never arrived".into(),
        },
        Record::Recovered {
            engines: 2,
            operations: 1,
            began: Moment(1_000_000_000),
            recovered: Moment(1_300_000_000),
        },
        Record::Reloaded {
            by: "operator (uid 0)".into(),
            outcome: "applied".into(),
            engines: vec![ReloadedEngine {
                engine: engine(),
                change: "restart".into(),
                from: Some("f1".into()),
                to: Some("f2".into()),
            }],
            settings: vec!["policy.drain".into()],
            problem: None,
        },
        Record::Ready { engine: engine(), version: "0.31.0".into(), context_tokens: Some(8192) },
        Record::Transition {
            engine: engine(),
            from: "starting".into(),
            to: "awake".into(),
            generation: 3,
            reason: "ready".into(),
        },
        Record::Footprint {
            engine: engine(),
            tier: Tier::Level1,
            device_bytes: Some(626_003_968),
            host_bytes: Some(54_760_833_024),
            pss_bytes: None,
        },
        Record::OperationAccepted {
            operation: OperationKind::Handoff,
            engine: "B".into(),
            from: Some(engine()),
            strategy: Some("auto".into()),
            order: Some("make-before-break".into()),
            leave: Some(Tier::Parked),
            drain: Some("wait".into()),
            by: "operator".into(),
            plan: vec!["wake the KV cache of B".into(), "park A".into()],
        },
        Record::StepBegan { index: 0, phase: Phase::WakeKv, engine: "B".into() },
        Record::StepEnded {
            index: 0,
            phase: Phase::WakeKv,
            engine: "B".into(),
            began: Moment(1_000_000_000),
            ended: Moment(1_080_000_000),
            outcome: Outcome::Ok,
            before: bytes,
            after: bytes,
        },
        Record::Probe {
            engine: "B".into(),
            purpose: "probe".into(),
            began: Moment(1_080_000_000),
            first_token: Some(Moment(1_095_000_000)),
            outcome: Outcome::Ok,
        },
        Record::EngineWork {
            work: Some(vec![EngineWork {
                engine: "B".into(),
                work: "wake".into(),
                began: Moment(1_001_000_000),
                ended: Moment(1_079_000_000),
            }]),
        },
        Record::OperationEnded {
            outcome: Outcome::Ok,
            accepted: Moment(999_000_000),
            first_token: Some(Moment(1_095_000_000)),
            ended: Moment(1_200_000_000),
        },
        Record::Incident {
            code: "crashed".into(),
            engine: Some(engine()),
            device: None,
            message: "engine A crashed".into(),
        },
        Record::RunStarted {
            plan: "reference".into(),
            steps: vec![
                CycleStep::Start { engine: engine(), initial: true },
                CycleStep::Load {
                    engine: engine(),
                    stage: "baseline".into(),
                    concurrency: 2,
                    rounds: 3,
                    requests: 4,
                    output_tokens: 64,
                },
                CycleStep::SleepCycle { engine: engine(), tier: Tier::Level2 },
                CycleStep::Sleep { engine: engine(), tier: Tier::Level1 },
                CycleStep::Activate { engine: engine(), auto: true },
                CycleStep::Handoff { from: engine(), to: "B".into(), auto: false },
            ],
            engines: vec![RunEngine {
                engine: engine(),
                model: "m".into(),
                context_tokens: None,
                kv_bytes: None,
            }],
            runtime: "vLLM 0.31.0".into(),
            gpu: "1 × NVIDIA L20".into(),
            kv_gib: Some(4.0),
            device_source: None,
            simulated: Some(SimulatedRun {
                profile: "l20".into(),
                speed: 20.0,
                host_scale: 256.0,
                start_speed: None,
            }),
        },
        Record::CycleStepBegan { index: 0 },
        Record::CycleStepEnded {
            index: 0,
            operations: vec![OperationId(4), OperationId(5)],
            outcome: Outcome::Failed { code: "start_failed".into(), message: "exit 1".into() },
        },
        Record::LoadRequest {
            index: 1,
            round: 0,
            ok: false,
            error: Some("connection reset".into()),
            began: Moment(2_000_000_000),
            first_token: None,
            ended: Moment(2_100_000_000),
            output_tokens: None,
            prompt_tokens: None,
        },
        Record::LoadRound { index: 1, round: 0, began: Moment(2_000_000_000), ended: Moment(2_100_000_000) },
        Record::Window { name: "A-baseline".into(), start: 1_790_000_000.5, end: 1_790_000_010.0 },
        Record::RunEnded { outcome: Outcome::Cancelled },
        Record::AgentStopped { reason: "SIGTERM".into() },
    ]
}
