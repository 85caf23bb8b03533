//! An agent's end is survived: what a later agent makes of what was kept of a node, and of what it finds.
//!
//! An agent may be killed at any instant, with engines running and an operation half way. What the core knew then is
//! [kept](crate::kept), in one transaction with the notes of the step that it came from; so what is found is always the state
//! *between* two steps, and an operation under way always has exactly one action at the edge, of which it is not known
//! whether it was begun, is still running, or is done. The next agent holds what was kept against what it
//! [finds](Found): whether the process lives and is proven ours, what `/is_sleeping` says, how many bytes are there.
//!
//! ```text
//!   kept ─────┐
//!             ├──► at rest:       AT_REST  ──► believed, or adrift (and repaired), or dead (and swept)
//!   found ────┤
//!             └──► in its step:   IN_STEP  ──► the step again, go on behind it, wait first, the failure ladder
//! ```
//!
//! Both are tables, read from the top; nothing in them acts. A call that was under way when the agent died is a call
//! without an answer, nothing else: after the table has decided, an operation goes on by the same steps and the same
//! failure ladder ([`crate::recover`]) as any other, under its own number, and ends as it would have: done, or given up
//! with what served before serving again.

use crate::call::{Call, SleepLevel, SleepingAnswer, WakeTags};
use crate::capability::Capabilities;
use crate::ids::{DeviceId, EngineId};
use crate::kept::{KeptDevice, KeptEngine, KeptWork};
use crate::ledger;
use crate::program::Step;
use crate::state::{Condition, Node, Operation, Stage};
use crate::tier::Tier;
use crate::time::Moment;
use std::fmt::Write as _;

/// The process of an engine, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Process {
    /// There is none, nor anything that tells of one.
    None,
    /// Its leader has ended; how, as far as it is told.
    Ended(String),
    /// It lives: pid, start time and boot are those on record.
    Lives,
    /// It lives, and somebody else answers on its port.
    Strange(String),
}

/// What was found of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Found {
    /// Its process.
    pub process: Process,
    /// What it answered to `/is_sleeping`.
    pub sleeping: SleepingAnswer,
    /// Device bytes of its own processes, where they can be told apart (the largest over its devices).
    pub bytes: Option<u64>,
    /// What it can do, detected anew.
    pub capabilities: Option<Capabilities>,
    /// Its process was started by somebody else.
    pub taken_over: bool,
}

impl Found {
    /// A process of which nothing else is known.
    pub fn only(process: Process) -> Found {
        Found {
            process,
            sleeping: SleepingAnswer::Unknown,
            bytes: None,
            capabilities: None,
            taken_over: false,
        }
    }
}

/// One engine: what was kept, what was found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Adopted {
    /// Engine.
    pub engine: EngineId,
    /// What was kept of this process life, or of the place that it was left in.
    pub kept: Option<KeptEngine>,
    /// What was found.
    pub found: Found,
}

/// Everything that a new agent found, at once: no decision is made before all of it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Adoption {
    /// Engines of which anything was kept or found.
    pub engines: Vec<Adopted>,
    /// Devices of which anything was kept.
    pub devices: Vec<(DeviceId, KeptDevice)>,
    /// Device-wide used bytes, where they could be read.
    pub used: Vec<(DeviceId, u64)>,
    /// What was under way; `None` where nothing was kept, or where it means nothing in this configuration.
    pub work: Option<KeptWork>,
}

/// Where an engine was kept to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Verified awake.
    Awake,
    /// Verified parked, at level 1 or level 2.
    Asleep,
    /// Without a process, or with remains that were to be swept.
    Stopped,
    /// Drifting; a repair was due.
    Adrift,
    /// In the hands of an operation of which nothing was kept.
    Moving,
    /// Nothing was kept of it.
    Unknown,
}

/// What the step was doing that the operation was in. The step is always one at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Waiting for running requests.
    Drain,
    /// The same, and its deadline passed while no agent watched.
    DrainOver,
    /// `/sleep?level=1` or `2`.
    Sleep,
    /// `/sleep?level=0`, the first half of parking.
    Pause0,
    /// `/release_kv_cache_memory`.
    ReleaseKv,
    /// `/wake_up`, or `tags=kv_cache`: the last of the memory.
    Wake,
    /// `/wake_up?tags=weights`.
    WakeWeights,
    /// `reload_weights`.
    Reload,
    /// `/reset_prefix_cache`, `/pause`, `/resume`.
    Small,
    /// The worker's own wake or sleep: a repair.
    Worker,
    /// `/is_sleeping`, bytes awaited or measured, readiness, warm-up.
    Look,
    /// What it holds asleep is measured.
    Measure,
    /// A token.
    Probe,
    /// A process is started.
    Spawn,
    /// A process tree is ended, or its bytes are awaited to go.
    Stop,
    /// A server that somebody else has started is found, proven and held.
    Hold,
    /// What is held becomes ours.
    Keep,
    /// What is held is left as it was found.
    LetGo,
}

/// What an engine says for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Says {
    /// No process, and none on record.
    Nobody,
    /// Its process has ended.
    Ended,
    /// It does not answer `/is_sleeping`: busy with an operation, still starting, or hung.
    Silent,
    /// `true`.
    Asleep,
    /// `false`.
    Awake,
    /// Somebody else answers on its port.
    Strange,
}

/// Its device bytes, between the least and the most of what they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bytes {
    /// As much as where it came from (or, on its way up, as where it is going).
    There,
    /// As little as where it was going (or, on its way up, as where it came from).
    Gone,
    /// In between: a tag of two is mapped, or a move broke off.
    Half,
    /// Not to be told.
    Unknown,
}

/// What becomes of an engine that was at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rest {
    /// It is where it was left; admission is what it was.
    Believe,
    /// It sleeps and should not: weights are read again, whatever level it is at.
    FoundAsleep,
    /// It is awake and should not be: it is put back.
    FoundAwake,
    /// It cannot be trusted: its processes end, and it is started again where it was wanted.
    Restart,
    /// It has died: swept, and started again by back-off.
    Died,
    /// There is nothing to do.
    Nothing,
}

/// What becomes of the step that an operation was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// The same step again.
    Again,
    /// It is done; the verifying steps behind it have the word.
    GoOn,
    /// A long poll until the engine answers; then the steps behind it.
    Wait,
    /// A long poll; then the same step again.
    WaitAgain,
    /// As if the engine had refused it: the failure ladder.
    Refused,
    /// Its time is over: the operation is given up, and admission opens again.
    GiveUp,
    /// The engine cannot be trusted any more: its processes end, by the ladder's last rung.
    End,
    /// The engine has died of it: the ladder's answer to a process that is gone.
    Died,
}

/// A row of [`AT_REST`]; an empty list admits anything.
#[derive(Debug, Clone, Copy)]
pub struct RestRow {
    /// Where it was kept to be.
    pub place: &'static [Place],
    /// What it says.
    pub says: &'static [Says],
    /// What its bytes say.
    pub bytes: &'static [Bytes],
    /// What follows.
    pub then: Rest,
    /// Why.
    pub because: &'static str,
}

/// A row of [`IN_STEP`]; an empty list admits anything.
#[derive(Debug, Clone, Copy)]
pub struct StepRow {
    /// What the step was doing.
    pub doing: &'static [Doing],
    /// What the engine says.
    pub says: &'static [Says],
    /// What its bytes say.
    pub bytes: &'static [Bytes],
    /// What follows.
    pub then: Then,
    /// Why.
    pub because: &'static str,
}

const fn rest(
    place: &'static [Place],
    says: &'static [Says],
    bytes: &'static [Bytes],
    then: Rest,
    because: &'static str,
) -> RestRow {
    RestRow { place, says, bytes, then, because }
}

const fn row(
    doing: &'static [Doing],
    says: &'static [Says],
    bytes: &'static [Bytes],
    then: Then,
    because: &'static str,
) -> StepRow {
    StepRow { doing, says, bytes, then, because }
}

/// Engines that no operation was at work on.
pub static AT_REST: &[RestRow] = &[
    rest(
        &[Place::Stopped, Place::Unknown],
        &[Says::Nobody, Says::Ended],
        &[],
        Rest::Nothing,
        "it had no process and has none; what was still to be swept is",
    ),
    rest(&[], &[Says::Nobody, Says::Ended], &[], Rest::Died, "it ended while no agent watched"),
    rest(&[], &[Says::Strange], &[], Rest::Restart, "it lives, and clients of its port reach somebody else"),
    rest(
        &[Place::Stopped, Place::Moving],
        &[],
        &[],
        Rest::Restart,
        "a process that no operation answers for",
    ),
    rest(&[Place::Adrift], &[], &[], Rest::Restart, "its repair was due; nothing verified it since"),
    rest(
        &[Place::Awake, Place::Unknown],
        &[Says::Awake],
        &[Bytes::Gone],
        Rest::Restart,
        "it believes that it is awake and its memory is not there: the next request would kill it",
    ),
    rest(
        &[Place::Awake],
        &[Says::Awake, Says::Silent],
        &[],
        Rest::Believe,
        "it serves on; an answer that is late contradicts nothing, as at any other time",
    ),
    rest(
        &[Place::Unknown],
        &[Says::Awake],
        &[Bytes::There],
        Rest::Believe,
        "its own word and its bytes agree, without any record",
    ),
    rest(&[Place::Awake], &[Says::Asleep], &[], Rest::FoundAsleep, "somebody else put it to sleep"),
    rest(
        &[Place::Asleep],
        &[Says::Asleep],
        &[Bytes::There, Bytes::Half],
        Rest::Restart,
        "partially woken by somebody else: what it holds is in nobody's ledger",
    ),
    rest(&[Place::Asleep], &[Says::Asleep, Says::Silent], &[], Rest::Believe, "it sleeps where it was put"),
    rest(&[Place::Asleep], &[Says::Awake], &[], Rest::FoundAwake, "somebody else woke it"),
    rest(&[Place::Unknown], &[], &[], Rest::Restart, "at an unknown level, with unknown weights"),
];

/// The step that an operation was in, of the engine that it acts on.
pub static IN_STEP: &[StepRow] = &[
    row(&[Doing::Stop], &[], &[], Then::Again, "an end is asked for until it has come"),
    row(&[Doing::LetGo], &[], &[], Then::Again, "it never was ours: letting go of it twice does no harm"),
    row(&[Doing::Hold], &[Says::Nobody], &[], Then::Again, "nothing is held: it is looked for anew"),
    row(&[Doing::Spawn], &[Says::Nobody], &[], Then::Again, "no process was made"),
    row(&[], &[Says::Nobody, Says::Ended], &[], Then::Died, "its process ended"),
    row(&[Doing::Spawn], &[], &[], Then::GoOn, "the process is there: until it is ready"),
    row(&[], &[Says::Strange], &[], Then::End, "whatever is asked next would reach somebody else"),
    row(&[Doing::Hold], &[], &[], Then::Again, "held already: proven once more"),
    row(&[Doing::Keep], &[], &[], Then::Again, "kept twice is kept once"),
    row(&[Doing::DrainOver], &[], &[], Then::GiveUp, "nothing has moved, and nobody waits for it any more"),
    row(
        &[Doing::Measure],
        &[Says::Awake],
        &[],
        Then::End,
        "it was seen asleep and is awake: it has gone on since, and nothing on record holds of it",
    ),
    row(
        &[Doing::Measure],
        &[Says::Asleep],
        &[Bytes::There, Bytes::Half],
        Then::End,
        "it sleeps, and not there: it has gone on since, and nothing on record holds of it",
    ),
    row(&[Doing::Drain, Doing::Look, Doing::Measure], &[], &[], Then::Again, "it only looks, or waits"),
    row(&[Doing::Probe], &[], &[Bytes::Gone], Then::End, "its memory is not there: a probe would kill it"),
    row(&[Doing::Probe], &[], &[], Then::Again, "verified awake but for its token"),
    row(&[Doing::Worker], &[Says::Silent], &[], Then::End, "a repair that hangs"),
    row(
        &[Doing::Worker],
        &[],
        &[Bytes::Half, Bytes::Unknown],
        Then::End,
        "a repair that broke off half way is not asked twice",
    ),
    row(&[Doing::Worker], &[], &[], Then::Again, "all of it or nothing: the same call leads to the same end"),
    row(
        &[Doing::Sleep, Doing::Pause0, Doing::ReleaseKv],
        &[Says::Silent],
        &[],
        Then::Wait,
        "a call without an answer; vLLM goes on with it",
    ),
    row(&[Doing::Wake], &[Says::Silent], &[], Then::Wait, "a call without an answer; vLLM goes on with it"),
    row(
        &[Doing::WakeWeights, Doing::Reload, Doing::Small],
        &[Says::Silent],
        &[],
        Then::WaitAgain,
        "it may be asked twice, once it answers",
    ),
    row(&[Doing::Sleep], &[Says::Awake, Says::Asleep], &[Bytes::There], Then::Again, "it never arrived"),
    row(
        &[Doing::Sleep],
        &[Says::Awake],
        &[Bytes::Unknown],
        Then::Again,
        "most likely it never arrived; where it failed inside, this one fails as well, and the ladder follows",
    ),
    row(&[Doing::Sleep], &[Says::Asleep], &[], Then::GoOn, "it sleeps; its bytes are awaited"),
    row(
        &[Doing::Sleep],
        &[Says::Awake],
        &[Bytes::Gone, Bytes::Half],
        Then::Refused,
        "memory is gone and the engine believes that it is awake: the sleep failed inside",
    ),
    row(&[Doing::Pause0], &[Says::Asleep], &[], Then::GoOn, "paused: the KV cache is released next"),
    row(&[Doing::Pause0], &[], &[], Then::Again, "it never arrived"),
    row(&[Doing::ReleaseKv], &[Says::Asleep], &[Bytes::There], Then::Again, "it never arrived"),
    row(&[Doing::ReleaseKv], &[Says::Asleep], &[Bytes::Gone, Bytes::Half], Then::GoOn, "released"),
    row(
        &[Doing::ReleaseKv],
        &[],
        &[],
        Then::Refused,
        "whether it was released cannot be told: the KV cache is taken back",
    ),
    row(&[Doing::Wake], &[Says::Awake], &[], Then::GoOn, "awake by its own word; bytes and probe follow"),
    row(
        &[Doing::Wake],
        &[Says::Asleep],
        &[Bytes::Half],
        Then::Again,
        "partially woken: what sleeps of it is woken, what is awake stays",
    ),
    row(&[Doing::Wake], &[], &[], Then::Again, "it never arrived"),
    row(
        &[Doing::WakeWeights],
        &[],
        &[],
        Then::Again,
        "partially woken, or not at all: weights that are mapped stay so",
    ),
    row(&[Doing::Reload], &[], &[], Then::Again, "weights are read again, however far it had come"),
    row(&[Doing::Small], &[], &[], Then::Again, "it may be asked twice"),
];

/// Reads [`AT_REST`].
pub fn at_rest(place: Place, says: Says, bytes: Bytes) -> Option<&'static RestRow> {
    AT_REST.iter().find(|r| admits(r.place, place) && admits(r.says, says) && admits(r.bytes, bytes))
}

/// Reads [`IN_STEP`].
pub fn in_step(doing: Doing, says: Says, bytes: Bytes) -> Option<&'static StepRow> {
    IN_STEP.iter().find(|r| admits(r.doing, doing) && admits(r.says, says) && admits(r.bytes, bytes))
}

fn admits<T: PartialEq>(list: &[T], value: T) -> bool {
    list.is_empty() || list.contains(&value)
}

/// Where an engine was kept to be.
pub fn place(kept: Option<&KeptEngine>) -> Place {
    let Some(kept) = kept else { return Place::Unknown };
    match (&kept.condition, kept.tier) {
        _ if kept.dead => Place::Stopped,
        (Condition::Moving, _) => Place::Moving,
        (Condition::Adrift(_), _) => Place::Adrift,
        (Condition::Backoff(_) | Condition::NoRoom | Condition::PortTaken | Condition::Failed(_), _)
        | (_, Tier::Stopped) => Place::Stopped,
        (Condition::Settled, Tier::Awake) => Place::Awake,
        (Condition::Settled, _) => Place::Asleep,
    }
}

/// What a step is doing, at `now`.
pub fn doing(op: &Operation, step: &Step, began: Moment, now: Moment) -> Doing {
    match step {
        Step::Drain(_) if op.stage == Stage::Forward && now.since(began) > op.drain_deadline => {
            Doing::DrainOver
        }
        Step::Drain(_) => Doing::Drain,
        Step::Call { call, .. } => match call {
            Call::Sleep { level: SleepLevel::L0, .. } => Doing::Pause0,
            Call::Sleep { .. } => Doing::Sleep,
            Call::ReleaseKvCache => Doing::ReleaseKv,
            Call::WakeUp { tags: WakeTags::Weights } => Doing::WakeWeights,
            Call::WakeUp { .. } => Doing::Wake,
            Call::ReloadWeights => Doing::Reload,
            Call::ResetPrefixCache | Call::Pause { .. } | Call::Resume => Doing::Small,
            Call::WorkerWakeUp | Call::WorkerSleep { .. } => Doing::Worker,
        },
        Step::Probe { .. } => Doing::Probe,
        Step::Spawn(_) => Doing::Spawn,
        Step::Hold(_) => Doing::Hold,
        Step::Keep(_) => Doing::Keep,
        Step::LetGo(_) => Doing::LetGo,
        Step::Stop { .. } | Step::AwaitRelease { tier: Tier::Stopped, .. } => Doing::Stop,
        Step::Measure { tier: Tier::Parked | Tier::Level1 | Tier::Level2, .. } => Doing::Measure,
        _ => Doing::Look,
    }
}

/// What an engine says for itself.
pub fn says(found: &Found) -> Says {
    match (&found.process, &found.sleeping) {
        (Process::None, _) => Says::Nobody,
        (Process::Ended(_), _) => Says::Ended,
        (Process::Strange(_), _) => Says::Strange,
        (Process::Lives, SleepingAnswer::Says { is_sleeping: true }) => Says::Asleep,
        (Process::Lives, SleepingAnswer::Says { is_sleeping: false }) => Says::Awake,
        (Process::Lives, _) => Says::Silent,
    }
}

/// What its bytes say of a move between two tiers: a tenth of the way at either end counts as that end, more only
/// where the devices' slack is more.
pub fn bytes(node: &Node, engine: EngineId, own: Option<u64>, low: Tier, high: Tier) -> Bytes {
    let e = node.engine(engine);
    let ends = ledger::bytes_at(e, low).zip(ledger::bytes_at(e, high));
    let (Some(own), Some((low, high))) = (own, ends) else { return Bytes::Unknown };
    let slack = e.spec.devices.iter().map(|d| node.device(*d).spec.slack).max().unwrap_or(0);
    let margin = slack.max(high.saturating_sub(low) / 10);
    // Ends that are nearer to each other than to be told apart say nothing.
    if high <= low.saturating_add(margin.saturating_mul(2)) {
        return Bytes::Unknown;
    }
    match own {
        own if own >= high - margin => Bytes::There,
        own if own <= low + margin => Bytes::Gone,
        _ => Bytes::Half,
    }
}

/// Both tables as ARCHITECTURE.md has them.
pub fn markdown() -> String {
    let mut text = String::from("| was | says | bytes | then | because |\n|---|---|---|---|---|\n");
    for r in AT_REST {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            words(r.place),
            words(r.says),
            words(r.bytes),
            word(&r.then),
            r.because
        );
    }
    text.push_str("\n| in the step | says | bytes | then | because |\n|---|---|---|---|---|\n");
    for r in IN_STEP {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            words(r.doing),
            words(r.says),
            words(r.bytes),
            word(&r.then),
            r.because
        );
    }
    text
}

fn words<T: std::fmt::Debug>(list: &[T]) -> String {
    if list.is_empty() {
        return "any".to_owned();
    }
    list.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// `WakeWeights` → `wake weights`.
fn word<T: std::fmt::Debug>(value: &T) -> String {
    let mut text = String::new();
    for c in format!("{value:?}").chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

impl Then {
    /// The word in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            Then::Again => "again",
            Then::GoOn => "go on",
            Then::Wait => "wait",
            Then::WaitAgain => "wait again",
            Then::Refused => "refused",
            Then::GiveUp => "give up",
            Then::End => "end",
            Then::Died => "died",
        }
    }
}

#[cfg(test)]
mod tests;
