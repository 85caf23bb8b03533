//! Re-adoption: an agent that begins takes over what a former one left, whether that was killed, crashed, or went on
//! purpose.
//!
//! ```text
//!   shims on record ──► proven ours? ──► configured? ──► hold of the process ──► evidence ──┐
//!        │ no             │ no             │ no                                              ├──► one event: Adopted
//!        ▼                ▼                ▼                  what was kept (journal) ───────┘
//!     left alone      left alone        stopped
//!     and said        and said          and said
//! ```
//!
//! Nothing here decides what becomes of an engine or of an operation: that is [`hotbunk_core::adopt`], by its tables.
//! Here stands what it takes to hold a process again: its shim's socket (log, exit status, stop), a client, its canary,
//! and proof, in this order: the record's pid, start time and boot name the process; the kernel says that it is that
//! process that listens on the configured port; it serves the configured model. `/is_sleeping` and device bytes say how
//! it is.
//!
//! A process that was started with other settings than are configured now serves on as it is (that is what it was doing)
//! and is said; it is restarted with them at its next idle moment, as after a reload. One whose engine is not configured any more is stopped
//! once its requests have ended ([`finishing`]). One without its shim cannot be held: nobody reads its output or would hear of its end, so its tree is ended, as when a shim dies under
//! a living agent. A server that somebody else had started, and that was not ours yet when its agent ended
//! ([`hotbunk_core::step`]), is held on to where its taking over goes on, and else let go as it was.

mod find;
mod finishing;
mod keep;

pub use finishing::Finishing;
pub use keep::{Former, Keeper, Life, keep_life};

use crate::clock;
use crate::config::Config;
use crate::device::Sampler;
use crate::effects::{EngineSlot, chain};
use crate::events::{Context, Incident, Recorder};
use crate::journal::record::{AGENT_ENDED, Outcome, Record};
use crate::process::{self, LeftAlone, Predecessor, Scan};
use crate::switcher::Order;
use finishing::Serving;
use hotbunk_api::operation::Operation;
use hotbunk_core::adopt::{Adopted, Adoption, Found, Process};
use hotbunk_core::event::Request;
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::kept::KeptWork;
use hotbunk_core::revise::Revised;
use hotbunk_core::state::{Node, Stage};
use hotbunk_core::time::Moment;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// What is handed to the owner of the state.
#[derive(Debug)]
pub struct Taken {
    /// For the core.
    pub adoption: Adoption,
    /// Who had asked for what is under way.
    pub orders: HashMap<OperationId, Order>,
    /// Operations of clients that were over, oldest first.
    pub done: Vec<Operation>,
    /// When this agent's process began.
    pub began: Moment,
}

impl Taken {
    /// The engines whose process lives.
    pub fn lives(&self) -> Vec<EngineId> {
        let lives = |a: &&Adopted| matches!(a.found.process, Process::Lives | Process::Strange(_));
        self.adoption.engines.iter().filter(lives).map(|a| a.engine).collect()
    }
}

/// What is left on the machine, before anything else is done.
#[derive(Debug)]
pub struct Left {
    candidates: Vec<Predecessor>,
    serving: Vec<Serving>,
    resume: bool,
    /// What proves nothing; an operator's.
    pub left_alone: Vec<LeftAlone>,
}

/// Looks at what a former agent left; ends what cannot be taken over (all of it, where nothing is to be resumed), and says
/// so. Once `hurry` comes, ending has no grace.
///
/// # Errors
/// The records cannot be read, or a tree that is ours cannot be ended.
pub async fn look(
    config: &Config,
    recorder: &Recorder,
    resume: bool,
    hurry: impl Future<Output = ()>,
) -> anyhow::Result<Left> {
    let Scan { predecessors, left_alone, .. } = process::find_predecessors(&config.node.state_dir)?;
    for left in &left_alone {
        let (record, pids) = (left.path.display().to_string(), left.pids.clone());
        let incident = Incident::LeftAlone { record, pids, why: left.why.clone() };
        drop(recorder.record_one(&Context::none(), incident).await);
    }
    let former = former(recorder).await;
    let mut candidates: Vec<Predecessor> = Vec::new();
    let mut strays = Vec::new();
    for predecessor in predecessors {
        let configured = config.engines.iter().any(|e| e.name == predecessor.engine());
        let held = resume && configured && predecessor.shim_alive;
        if never_ours(&predecessor, &former) && !held {
            let_go(&predecessor).await;
            continue;
        }
        if !resume || !configured || !predecessor.shim_alive {
            strays.push(predecessor);
            continue;
        }
        let rival = candidates.iter().position(|c| c.engine() == predecessor.engine());
        let Some(rival) = rival else {
            candidates.push(predecessor);
            continue;
        };
        // Of two the one that was recorded last is the engine; the other was on its way out.
        let recorded = former.lives.get(predecessor.engine()).map(|life| &life.incarnation);
        let newer = predecessor.state.started > candidates[rival].state.started;
        let is_it = predecessor.incarnation().as_ref() == recorded && recorded.is_some();
        let rival_is = candidates[rival].incarnation().as_ref() == recorded && recorded.is_some();
        if is_it || (newer && !rival_is) {
            strays.push(std::mem::replace(&mut candidates[rival], predecessor));
        } else {
            strays.push(predecessor);
        }
    }
    let mut serving = Vec::new();
    let mut at_once = Vec::new();
    for stray in strays {
        let configured = config.engines.iter().any(|e| e.name == stray.engine());
        if !resume || configured || !stray.shim_alive {
            at_once.push(stray);
            continue;
        }
        match Serving::of(stray).await {
            Ok(one) => serving.push(one),
            Err(stray) => at_once.push(*stray),
        }
    }
    tokio::pin!(hurry);
    let mut hurried = false;
    for stray in at_once {
        let grace = match config.engines.iter().find(|e| e.name == stray.engine()) {
            // Without its shim it cannot even write a line any more.
            _ if !stray.shim_alive => Duration::ZERO,
            Some(engine) => engine.stop_grace,
            None => Duration::from_millis(stray.state.grace_ms),
        };
        let report = tokio::select! {
            report = process::stop_tree(&stray, if hurried { Duration::ZERO } else { grace }) => report,
            () = &mut hurry, if !hurried => {
                hurried = true;
                process::stop_tree(&stray, Duration::ZERO).await
            }
        };
        let (engine, pid) =
            (stray.engine().to_owned(), stray.incarnation().map_or(stray.state.shim.pid, |i| i.pid));
        let left = report?.left;
        anyhow::ensure!(
            left.is_empty(),
            "engine {engine} of a former agent (pid {pid}) cannot be ended; end it by hand, then start the agent again"
        );
        drop(recorder.record_one(&Context::none(), Incident::PredecessorStopped { engine, pid }).await);
    }
    Ok(Left { candidates, serving, left_alone, resume })
}

impl Left {
    /// Those that end their requests first are let go on, for so long at most.
    pub fn finish(&mut self, recorder: &Recorder, deadline: Duration) -> Finishing {
        Finishing::begin(std::mem::take(&mut self.serving), recorder, deadline)
    }
}

/// Whether it is a server that somebody else had started, and that had not become an engine when the agent ended that was
/// about to take it over.
fn never_ours(predecessor: &Predecessor, former: &Former) -> bool {
    let unknown = || former.engines.get(predecessor.engine()).is_some_and(|kept| !kept.process);
    predecessor.is_only_held() || (predecessor.is_adopted() && unknown())
}

async fn let_go(predecessor: &Predecessor) {
    let pid = predecessor.incarnation().map(|incarnation| incarnation.pid);
    tracing::info!(engine = predecessor.engine(), pid, "its taking over does not go on: left as it was");
    process::let_go(predecessor).await;
}

async fn former(recorder: &Recorder) -> Former {
    let boot = process::tree::boot_id().unwrap_or_default();
    match recorder.journal().read(|reader| reader.kept()).await {
        Ok(kept) => Former::read(kept, &boot),
        Err(error) => {
            tracing::warn!(error = chain(&error), "what a former agent has written down is not known");
            Former::default()
        }
    }
}

/// Takes hold of what is left, and gathers everything that is known of it.
pub async fn take_over(
    node: &mut Node,
    slots: &[Arc<EngineSlot>],
    left: Left,
    sampler: &Sampler,
    recorder: &Recorder,
) -> Taken {
    let former = if left.resume { former(recorder).await } else { Former::default() };
    if !former.unreadable.is_empty() {
        tracing::warn!(keys = ?former.unreadable, "written by another version; evidence alone decides");
    }
    let same_boot = former.same_boot;
    let work = former.work.clone().filter(|_| same_boot).map(|work| work.onto(node));
    let mut asked = JoinSet::new();
    for predecessor in left.candidates {
        if never_ours(&predecessor, &former)
            && !is_being_taken_over(node, work.as_ref(), predecessor.engine())
        {
            let_go(&predecessor).await;
            continue;
        }
        let Some(at) = slots.iter().position(|slot| slot.config.name == predecessor.engine()) else {
            continue;
        };
        let slot = Arc::clone(&slots[at]);
        let life = former.lives.get(predecessor.engine());
        let life = life.filter(|life| Some(&life.incarnation) == predecessor.incarnation().as_ref());
        if let Some(life) = life.filter(|life| life.fingerprint != slot.fingerprint) {
            let (engine, was) = (slot.config.name.clone(), life.fingerprint.clone());
            drop(recorder.record_one(&Context::none(), Incident::SettingsChanged { engine, was }).await);
        }
        let process = predecessor.adopt();
        match slot.take(process.clone(), life) {
            Ok(client) => {
                asked.spawn(async move { (at, find::evidence(slot, process, predecessor, client).await) });
            }
            Err(why) => tracing::error!(engine = slot.config.name, why, "it cannot be asked anything"),
        }
    }
    let mut found: HashMap<usize, Found> = HashMap::new();
    while let Some(answer) = asked.join_next().await {
        found.extend(answer.ok());
    }
    let (used, own) = find::bytes(sampler, slots, node.devices.len()).await;
    let mut engines = Vec::new();
    for (at, slot) in slots.iter().enumerate() {
        let name = &slot.config.name;
        let mut found = found.remove(&at).unwrap_or(Found::only(Process::None));
        found.bytes = own[at];
        let kept = former.engines.get(name).cloned();
        // What was learned with these settings counts, whatever became of the process.
        let lives = matches!(found.process, Process::Lives | Process::Strange(_));
        let other = former.is_of_others(name, &slot.fingerprint, lives);
        let same = !other && former.lives.contains_key(name);
        if let Some(kept) = kept.as_ref().filter(|_| same) {
            node.engines[at].costs = kept.costs;
        }
        let kept = kept.filter(|_| former.same_boot);
        // What was kept is of other settings: with or without a process, it is not taken for measured with these.
        if other {
            let (spec, footprints) = (node.engines[at].spec.clone(), node.engines[at].footprints);
            node.engines[at].revised = Some(Box::new(Revised { spec, process: true, footprints }));
        }
        if kept.is_some() || found.process != Process::None {
            let engine = EngineId(u16::try_from(at).unwrap_or(u16::MAX));
            engines.push(Adopted { engine, kept, found });
        }
    }
    let devices = node.devices.iter().enumerate().filter_map(|(at, d)| {
        let kept = former.devices.get(&d.spec.name)?;
        Some((DeviceId(u16::try_from(at).unwrap_or(u16::MAX)), *kept))
    });
    let devices = if former.same_boot { devices.collect() } else { Vec::new() };
    let goes_on: Vec<OperationId> =
        work.iter().flat_map(|work| work.operations.iter().map(|op| op.id)).collect();
    // First, so that the last record before a run's end is one of its own agent's.
    end_runs(recorder).await;
    end_the_rest(recorder, &goes_on).await;
    let adoption = Adoption { engines, devices, used, work };
    Taken { adoption, orders: former.orders, done: former.done, began: clock::began() }
}

/// Whether an operation that takes it over goes on.
fn is_being_taken_over(node: &Node, work: Option<&KeptWork>, engine: &str) -> bool {
    let Some((work, id)) = work.zip(node.by_name(engine)) else { return false };
    work.operations.iter().any(|op| op.request == Request::Adopt(id) && op.stage == Stage::Forward)
}

/// Operations that have begun and cannot go on (their agent ended with the machine, or its configuration is another one
/// now) get their end.
async fn end_the_rest(recorder: &Recorder, goes_on: &[OperationId]) {
    let unfinished = match recorder.journal().read(|reader| reader.unfinished_operations()).await {
        Ok(page) => page.entries,
        Err(error) => {
            tracing::warn!(error = chain(&error), "operations without an end are not known");
            return;
        }
    };
    for entry in unfinished {
        let Some(id) = entry.operation.filter(|id| !goes_on.contains(id)) else { continue };
        let message = "its agent ended before it did, and it means nothing to this one".to_owned();
        let outcome = Outcome::RolledBack { code: AGENT_ENDED.to_owned(), message };
        let ended =
            Record::OperationEnded { outcome, accepted: entry.at, first_token: None, ended: clock::now() };
        let context = Context { run: entry.run, operation: Some(id) };
        drop(recorder.record_one(&context, ended).await);
    }
}

/// Cycle runs that have begun and have no end: nobody goes on with them, whatever becomes of their operations. When they ended
/// nobody knows; what is recorded is when that was found.
async fn end_runs(recorder: &Recorder) {
    let runs = match recorder.journal().read(|reader| reader.runs()).await {
        Ok(runs) => runs,
        Err(error) => {
            tracing::warn!(error = chain(&error), "runs without an end are not known");
            return;
        }
    };
    for run in runs.into_iter().filter(|run| run.ended.is_none()) {
        let message = "its agent ended before it did; this is when that was found, not when it happened";
        let outcome = Outcome::Failed { code: AGENT_ENDED.to_owned(), message: message.to_owned() };
        drop(recorder.record_one(&Context::none().in_run(run.run), Record::RunEnded { outcome }).await);
    }
}
