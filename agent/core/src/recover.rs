//! The failure ladder: what follows when a step does not go as planned.
//!
//! A table, read from the top; nothing in it acts. `retry safe` is vLLM ≥ 0.28 with one worker (CONTRACT fact 6), the
//! rungs are those of CONTRACT 3.4.
//!
//! | step | cause | rung |
//! |---|---|---|
//! | any of a rehearsal | any | KV release refused: never park, go on; else: end it, start it without, switch by restart |
//! | drain | deadline | give up, admission opens again |
//! | drain, any way down | found asleep | give up: it is repaired first, and whoever waits inside it is served |
//! | `/sleep` | refused | once again if retry safe; 0.10.2–0.27: wake the worker behind the engine; else end it |
//! | `/release_kv_cache_memory` | refused | wake the KV cache, probe, never park again |
//! | any call, `/is_sleeping` | no answer | long poll; no answer to that: end it |
//! | asleep? | says no | nothing happened: probe, it serves on |
//! | bytes gone? | no | once: the worker's own sleep if retry safe; then wake it again |
//! | `/wake_up` | refused | once again if retry safe; then give back by the worker's own sleep, else end it |
//! | awake? | says no | give back, else end it |
//! | bytes back? | not at a glance | ask its neighbours whether they are awake, then wait for its bytes in earnest |
//! | bytes back? | no | end it: a probe would kill it anyway |
//! | probe | no token, other tokens | once again; then end it (after level 2: that level is unsafe) |
//! | bytes gone? | not to be seen | on its way out of awake: wake it again; further down: end it; stopped: believe the sweep |
//! | drain, of an engine being stopped | process gone | go on: what is left of it goes the same way |
//! | any | process gone | sweep it |
//! | spawn | port taken | nothing was started, which is no crash: once more when it is free |
//! | any, of a server that is being taken over | any | probe: once again; warm-up: go on without a canary; else let go of it, as it was |
//!
//! "End it" goes on where the engine was on its way out (its bytes are gone, which is what the handoff needs), and gives
//! the operation up otherwise; giving up restores what served before.

use crate::call::{Call, Mode, SleepLevel, WakeTags};
use crate::capability::{Capabilities, Version};
use crate::effect::ProbeKind;
use crate::ids::EngineId;
use crate::program::{Cause, Step, level_of};
use crate::sequence;
use crate::state::{Condition, Engine, Node, Operation, Stage};
use crate::tier::Tier;

/// What follows a failed step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovery {
    /// The same step again.
    Retry,
    /// The step is as good as done; go on.
    Accept,
    /// These steps, then the rest of the program.
    First(Vec<Step>),
    /// Before it is blamed: these neighbours are asked whether they are awake, then the step again.
    AskAround(Vec<EngineId>),
    /// The engine cannot be trusted any more: its process tree goes.
    Lost(EngineId),
    /// The operation's goal is given up: these steps, then what served before is restored.
    GiveUp(Vec<Step>),
    /// The rehearsal failed: end it and start it without one.
    RehearsalFailed(EngineId),
    /// The engine refuses to release its KV cache; these steps replace what is left of that part of the rehearsal.
    NeverPark(EngineId, Vec<Step>),
    /// Processes or bytes of an ended engine are still there.
    Leftovers(EngineId),
}

/// Reads the table.
pub fn recover(node: &Node, op: &Operation, step: &Step, cause: Cause) -> Recovery {
    let Some(id) = step.engine() else { return Recovery::GiveUp(Vec::new()) };
    let e = node.engine(id);
    let rehearsing = op.program.contains(&Step::Rehearsed(id)) && !op.program.contains(&Step::Rehearse(id));
    let park_refused =
        matches!(step, Step::Call { call: Call::ReleaseKvCache, .. }) && cause == Cause::CallRefused;
    match (step, cause) {
        // A server that is not ours yet: nothing but letting go of it can be wrong to do to it.
        (Step::LetGo(_), _) => Recovery::Accept,
        _ if op.takes_over(node, id) => not_taken_over(op, id, step, cause),
        (Step::Spawn(_), Cause::PortTaken) => Recovery::GiveUp(vec![Step::Defer(id)]),
        (Step::AwaitRelease { tier: Tier::Stopped, .. }, Cause::NoEvidence) => Recovery::Accept,
        (Step::AwaitRelease { tier: Tier::Stopped, .. } | Step::Stop { .. }, _) => Recovery::Leftovers(id),
        // It was to be stopped: what is left of it goes the same way.
        (Step::Drain(_), Cause::Gone) if is_being_stopped(op, id) => Recovery::First(Vec::new()),
        // Of a neighbour: what it is will be told by its exit.
        (Step::Ask(_), _) => Recovery::Accept,
        (_, Cause::Gone) => Recovery::Lost(id),
        (Step::AwaitResidence(_), Cause::ResidenceMissing | Cause::NoEvidence) if is_glance(node, op, id) => {
            Recovery::AskAround(neighbours(node, id))
        }
        (Step::AwaitRelease { .. } | Step::AwaitResidence(_), Cause::NoEvidence) if rehearsing => {
            Recovery::Accept
        }
        (Step::Call { .. }, _) if rehearsing && park_refused => Recovery::NeverPark(id, take_kv_back(id)),
        (Step::Probe { .. }, _) if rehearsing && op.attempts == 0 => Recovery::Retry,
        _ if rehearsing => Recovery::RehearsalFailed(id),
        (Step::Drain(_), Cause::Drifted) => Recovery::GiveUp(Vec::new()),
        (Step::Drain(_), _) => Recovery::GiveUp(vec![Step::Open(id)]),
        (Step::ReserveWake(_) | Step::ReserveStart(_), _) if e.condition != Condition::Moving => {
            Recovery::GiveUp(Vec::new())
        }
        (Step::ReserveWake(_) | Step::ReserveStart(_), _) => {
            Recovery::GiveUp(vec![Step::Settle { engine: id, tier: e.tier }])
        }
        (Step::Call { call, .. }, _) => call_failed(e, id, op, call, cause),
        (Step::ConfirmAsleep(_), Cause::CallUnanswered) => {
            Recovery::First(vec![Step::Resolve { engine: id, asleep: true }])
        }
        (Step::ConfirmAsleep(_) | Step::Resolve { asleep: true, .. }, Cause::NotAsleep)
            if e.tier == Tier::Awake =>
        {
            Recovery::GiveUp(still_awake(e, id))
        }
        (Step::ConfirmAwake(_), Cause::CallUnanswered) => {
            Recovery::First(vec![Step::Resolve { engine: id, asleep: false }])
        }
        (Step::ConfirmAwake(_) | Step::Resolve { asleep: false, .. }, Cause::NotAwake) => {
            give_back(e, id, op)
        }
        (Step::AwaitRelease { tier, .. }, Cause::ReleaseIncomplete) => incomplete(e, id, op, *tier),
        (Step::AwaitRelease { tier, .. }, _) if e.tier == Tier::Awake => {
            Recovery::GiveUp(revive(e, id, *tier))
        }
        (Step::AwaitResidence(_), Cause::NoEvidence) => Recovery::Accept,
        (Step::Probe { .. }, Cause::ProbeFailed | Cause::CanaryMismatch) if op.attempts == 0 => {
            Recovery::Retry
        }
        (Step::Fall { .. } | Step::Rise(_) | Step::Launch { .. }, _) => Recovery::GiveUp(Vec::new()),
        _ => Recovery::Lost(id),
    }
}

/// Neighbours that are believed to be awake: what one of them does not hold any more, the device does not show.
fn neighbours(node: &Node, id: EngineId) -> Vec<EngineId> {
    let devices = &node.engine(id).spec.devices;
    let awake = |other: &EngineId| {
        let e = node.engine(*other);
        let settled = e.tier == Tier::Awake && e.condition == Condition::Settled && e.process && !e.dead;
        *other != id && settled && e.spec.devices.iter().any(|d| devices.contains(d))
    };
    node.ids().filter(awake).collect()
}

/// Whether missing bytes are not held against an engine yet, since nobody has asked its neighbours.
pub(crate) fn is_glance(node: &Node, op: &Operation, id: EngineId) -> bool {
    !op.asked.contains(&id) && !neighbours(node, id).is_empty()
}

/// Of a server that is being taken over: whatever goes wrong, it is left as it was found.
fn not_taken_over(op: &Operation, id: EngineId, step: &Step, cause: Cause) -> Recovery {
    match step {
        Step::Probe { .. } if op.attempts == 0 && cause == Cause::ProbeFailed => Recovery::Retry,
        // It serves others meanwhile; later wakes are verified by a token, whichever it is.
        Step::WarmUp(_) if cause == Cause::WarmUpFailed => Recovery::Accept,
        _ => Recovery::GiveUp(vec![Step::LetGo(id)]),
    }
}

/// What follows a `/sleep` that was refused with the memory gone (CONTRACT 3.4), by capability alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailedSleep {
    /// The same call once more: the allocator may be asked twice.
    AskAgain,
    /// The worker is woken behind an engine that believes itself awake, by these calls.
    WakeBehind(Vec<Call>),
    /// Its process tree goes, and it is started again.
    Restart,
}

/// Reads the rung of a refused `/sleep`.
pub fn failed_sleep(caps: &Capabilities) -> FailedSleep {
    if caps.is_retry_safe() {
        FailedSleep::AskAgain
    } else if worker_can_be_woken(caps) {
        let after = if caps.has_modes() {
            Some(Call::WakeUp { tags: WakeTags::All })
        } else {
            caps.routes.pause.then_some(Call::Resume)
        };
        FailedSleep::WakeBehind([Some(Call::WorkerWakeUp), after].into_iter().flatten().collect())
    } else {
        FailedSleep::Restart
    }
}

fn call_failed(e: &Engine, id: EngineId, op: &Operation, call: &Call, cause: Cause) -> Recovery {
    let Some(caps) = e.capabilities else { return Recovery::Lost(id) };
    let retry = op.attempts == 0 && caps.is_retry_safe();
    match (call, cause) {
        (Call::Sleep { .. } | Call::ReleaseKvCache, Cause::CallUnanswered) => {
            Recovery::First(vec![Step::Resolve { engine: id, asleep: true }])
        }
        (Call::Sleep { level: SleepLevel::L0, .. }, Cause::CallRefused) => Recovery::GiveUp(unpause(id)),
        (Call::Sleep { .. }, Cause::CallRefused) => match failed_sleep(&caps) {
            FailedSleep::AskAgain if retry => Recovery::Retry,
            FailedSleep::WakeBehind(calls) if e.tier == Tier::Awake => {
                let calls = calls.into_iter().map(|call| Step::Call { engine: id, call });
                Recovery::GiveUp(calls.chain(verify_awake(id, ProbeKind::Canary)).collect())
            }
            FailedSleep::AskAgain | FailedSleep::WakeBehind(_) | FailedSleep::Restart => Recovery::Lost(id),
        },
        (Call::ReleaseKvCache, Cause::CallRefused) => Recovery::GiveUp(take_kv_back(id)),
        (Call::Pause { .. } | Call::ResetPrefixCache, Cause::CallRefused) if e.tier == Tier::Awake => {
            Recovery::GiveUp(still_awake(e, id))
        }
        (Call::WakeUp { tags: WakeTags::All | WakeTags::KvCache }, Cause::CallUnanswered) => {
            Recovery::First(vec![Step::Resolve { engine: id, asleep: false }])
        }
        (Call::WakeUp { .. }, Cause::CallRefused) if retry => Recovery::Retry,
        (Call::WakeUp { .. } | Call::ReloadWeights | Call::ResetPrefixCache, Cause::CallRefused) => {
            give_back(e, id, op)
        }
        _ => Recovery::Lost(id),
    }
}

/// Whether the leg under way ends its process anyway.
fn is_being_stopped(op: &Operation, id: EngineId) -> bool {
    let of_this_leg = op.program.iter().take_while(|s| !s.is_leg());
    of_this_leg.into_iter().any(|s| matches!(s, Step::Stop { engine, .. } if *engine == id))
}

/// CONTRACT 3.4, repair 0.10.2–0.27: with one worker, `wake_up` through `collective_rpc` maps and restores everything.
fn worker_can_be_woken(caps: &Capabilities) -> bool {
    caps.workers == 1
        && caps.routes.collective_rpc
        && caps.version >= Version::new(0, 10, 2)
        && caps.version < Version::new(0, 28, 0)
}

/// Its own answer says that it never slept.
fn still_awake(e: &Engine, id: EngineId) -> Vec<Step> {
    let paused = e.capabilities.is_some_and(|c| sequence::pauses_from_outside(&c));
    let resume = paused.then_some(Step::Call { engine: id, call: Call::Resume });
    let verified =
        [probe(id, ProbeKind::Canary), Step::Settle { engine: id, tier: Tier::Awake }, Step::Open(id)];
    resume.into_iter().chain(verified).collect()
}

/// Paused with all memory resident: `/resume` is safe then, and only then (CONTRACT 1.2).
fn unpause(id: EngineId) -> Vec<Step> {
    let mut steps = vec![Step::Call { engine: id, call: Call::Resume }];
    steps.extend(verify_awake(id, ProbeKind::Canary));
    steps
}

/// A release that the worker refused has left its tag asleep all the same: `/resume` answers 200 and the engine goes on
/// sleeping (seen on real 0.32). Waking the tag resumes the scheduler too, also where nothing was released.
fn take_kv_back(id: EngineId) -> Vec<Step> {
    let call = Call::WakeUp { tags: WakeTags::KvCache };
    let mut steps = vec![Step::Call { engine: id, call }];
    steps.extend(verify_awake(id, ProbeKind::Canary));
    steps
}

fn verify_awake(id: EngineId, kind: ProbeKind) -> Vec<Step> {
    vec![
        Step::ConfirmAwake(id),
        Step::AwaitResidence(id),
        probe(id, kind),
        Step::Settle { engine: id, tier: Tier::Awake },
        Step::Open(id),
    ]
}

fn probe(engine: EngineId, kind: ProbeKind) -> Step {
    Step::Probe { engine, kind, counted: false }
}

/// 200, asleep, and bytes still there.
fn incomplete(e: &Engine, id: EngineId, op: &Operation, tier: Tier) -> Recovery {
    let safe = e.capabilities.is_some_and(|c| c.is_retry_safe() && c.routes.collective_rpc);
    match level_of(tier) {
        Some(level @ (SleepLevel::L1 | SleepLevel::L2)) if safe && !op.repaired.contains(&id) => {
            Recovery::First(vec![
                Step::Call { engine: id, call: Call::WorkerSleep { level } },
                Step::AwaitRelease { engine: id, tier },
            ])
        }
        _ if e.tier == Tier::Awake => Recovery::GiveUp(revive(e, id, tier)),
        _ => Recovery::Lost(id),
    }
}

/// Awake again from a tier that it was going to.
fn revive(e: &Engine, id: EngineId, tier: Tier) -> Vec<Step> {
    let calls = e.capabilities.map(|c| sequence::leave(&c, tier)).unwrap_or_default();
    let kind = if tier == Tier::Level2 { ProbeKind::LongCanary } else { ProbeKind::Canary };
    let calls = calls.into_iter().map(|call| Step::Call { engine: id, call });
    calls.chain(verify_awake(id, kind)).collect()
}

/// Half awake: what has been mapped goes back by the worker's own sleep, if that is safe.
///
/// Out of level 2 the tags are woken one by one. The worker's own sleep would leave the engine believing that its weights
/// are awake, and no wake would ever bring them back (a tag that is awake already is skipped, CONTRACT 1.2). So the engine
/// itself is put to sleep again, which it does from 0.31 on when only a part of it sleeps.
fn give_back(e: &Engine, id: EngineId, op: &Operation) -> Recovery {
    let safe = e.capabilities.is_some_and(|c| c.is_retry_safe() && c.routes.collective_rpc);
    let caps = e.capabilities.filter(|c| safe && c.can_demote());
    match (e.tier, level_of(e.tier)) {
        (tier @ Tier::Level2, Some(level)) if caps.is_some() && op.stage == Stage::Forward => {
            let call = Call::Sleep { level, mode: Some(Mode::Wait) };
            Recovery::GiveUp(vec![
                Step::Call { engine: id, call },
                Step::ConfirmAsleep(id),
                Step::AwaitRelease { engine: id, tier },
                Step::Settle { engine: id, tier },
            ])
        }
        (Tier::Level2, _) => Recovery::Lost(id),
        (tier @ Tier::Level1, Some(level)) if safe && op.stage == Stage::Forward => Recovery::GiveUp(vec![
            Step::Call { engine: id, call: Call::WorkerSleep { level } },
            Step::ConfirmAsleep(id),
            Step::AwaitRelease { engine: id, tier },
            Step::Settle { engine: id, tier },
        ]),
        _ => Recovery::Lost(id),
    }
}
