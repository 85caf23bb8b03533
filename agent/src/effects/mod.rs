//! The hands: everything that the core wants done is done here, and comes back as an event.
//!
//! Each action is a task of its own; nothing here decides. An engine has at most one action at a time: a new one aborts
//! an earlier one that the core has given up (its HTTP call goes on inside vLLM all the same).

mod device;
mod drain;
mod engine;
mod seen;
mod slots;
mod take_over;
mod work;

pub use device::SLOW_IS_LOST;
pub use engine::{Ended, EngineSlot, Facts, NotSpawned, Settings, chain};
pub use seen::{Compared, Seen, Stopped};
pub use slots::Slots;
pub use work::{Called, WorkLog};

use crate::adopt::keep_life;
use crate::clock;
use crate::device::{AwaitOutcome, Reading, Sampler, Threshold};
use crate::engine::{self as vllm, Depth, Health, ProbeEnd, ProbeKind as Ask, ProbeResult};
use crate::events::{Context, Incident, Recorder};
use crate::gateway::Hub;
use crate::host::{self, HostSampler};
use crate::journal::record::{Bytes, Outcome, Record};
use crate::process::tree::Member;
use crate::process::{EngineProcess, LeftAlone, LossCause, ProcessEvent, Shims};
use crate::switcher::{Around, Input};
use hotbunk_core::call::{Call, CallOutcome, Mode, SleepingAnswer};
use hotbunk_core::capability::Capabilities;
use hotbunk_core::effect::{Action, Bound, ProbeKind, Shown, StepResult, Ticket};
use hotbunk_core::event::{Event, Survey};
use hotbunk_core::ids::{DeviceId, EngineId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Warm-up requests: the first may compile, the second shows that it has.
const WARM_UPS: u32 = 2;
/// A survey's questions; an engine that does not answer within this is not known to be anything.
const SURVEY: Duration = Duration::from_secs(2);
/// How long `/health` may take once something has failed; it is answered by the HTTP server alone.
const HEALTH: Duration = Duration::from_secs(1);
/// A device reading older than this does not say what was before a step.
const FRESH: Duration = Duration::from_millis(15);

/// Everything at the edge.
#[derive(Debug)]
pub struct Hands {
    /// Engines by their ids.
    pub engines: Slots,
    /// Device memory.
    pub sampler: Sampler,
    /// Host memory.
    pub host: HostSampler,
    /// Starts processes.
    pub shims: Shims,
    /// Admission of clients' requests.
    pub hub: Arc<Hub>,
    /// Journal, metrics, log.
    pub recorder: Recorder,
    /// What of a former agent was left alone.
    pub left_alone: Vec<LeftAlone>,
    /// Back to the owner of the state.
    pub inputs: mpsc::UnboundedSender<Input>,
}

/// How good a reading beside a step must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Whatever is there.
    Newest,
    /// Of just now.
    Fresh,
    /// Of just now, and with the processes' own bytes.
    Processes,
}

/// What an action is done for: names for records, and what the core knows of the engine.
#[derive(Debug, Clone)]
pub struct Purpose {
    /// Operation and run.
    pub context: Context,
    /// Word of a probe: `probe`, `rehearsal`, `canary`.
    pub probe: &'static str,
    /// What the engine can do, where it is known.
    pub capabilities: Option<Capabilities>,
    /// First of its devices.
    pub device: Option<DeviceId>,
}

impl Hands {
    /// An engine. Ids come from the configuration that the slots were made of.
    pub fn slot(&self, id: EngineId) -> Arc<EngineSlot> {
        self.engines.get(id)
    }

    /// Newer settings of an engine are in force, says the core.
    pub fn put_in_force(&self, id: EngineId) {
        if self.engines.put_in_force(id) {
            self.hub.revised(id, &self.slot(id).config);
        }
    }

    /// Does an action; the answer comes as [`Input::Done`].
    pub fn run(self: &Arc<Self>, ticket: Ticket, action: Action, purpose: Purpose) {
        let hands = Arc::clone(self);
        let slot = self.slot(action.engine());
        let task = tokio::spawn(async move {
            let need = match &action {
                Action::Call { call: Call::Sleep { .. } | Call::ReleaseKvCache, .. } => Need::Processes,
                Action::Call { .. } | Action::Stop { .. } | Action::Spawn { .. } => Need::Fresh,
                _ => Need::Newest,
            };
            let before = hands.bytes(action.engine(), &purpose, need).await;
            let (result, pss) = hands.perform(&action, &purpose).await;
            // Evidence is recorded as it was seen, the engine's own bytes included.
            let evidence = matches!(action, Action::AwaitUsed { .. });
            let need = if evidence { Need::Processes } else { Need::Newest };
            let after = hands.bytes(action.engine(), &purpose, need).await;
            // An error means that the switcher has ended.
            let _ = hands.inputs.send(Input::Done { ticket, result, around: Around { before, after, pss } });
        });
        slot.begin_action(task.abort_handle());
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            // Every action ends in an answer, even one that hits a bug of ours: its operation must not wait for ever.
            if let Err(error) = task.await
                && error.is_panic()
            {
                let result = StepResult::Gone("internal error of the agent, see its log".to_owned());
                let _ = inputs.send(Input::Done { ticket, result, around: Around::default() });
            }
        });
    }

    async fn perform(self: &Arc<Self>, action: &Action, purpose: &Purpose) -> (StepResult, Option<u64>) {
        let slot = self.slot(action.engine());
        let client = slot.client();
        let result = match (action, client) {
            (Action::Spawn { engine, life }, _) => self.spawn(*engine, *life, purpose).await,
            (Action::Stop { grace, .. }, _) => {
                let ended = slot.stop(*grace).await;
                if let Some(incident) = ended.incident {
                    drop(self.recorder.record_one(&purpose.context, incident).await);
                }
                StepResult::Stopped { left: ended.left }
            }
            (Action::AwaitUsed { engine, bounds, deadline }, _) => {
                self.await_used(*engine, bounds, *deadline).await
            }
            (Action::Measure { engine, .. }, _) => return self.measure(*engine).await,
            (Action::Hold { engine, life, deadline }, _) => self.hold(*engine, *life, *deadline).await,
            (Action::Keep { engine, deadline }, _) => return self.keep(*engine, *deadline, purpose).await,
            (Action::LetGo { engine }, _) => self.let_go(*engine).await,
            (Action::Ready { deadline, .. }, _) => match slot.ready(*deadline).await {
                Ok(capabilities) => {
                    self.record_ready(&slot, purpose).await;
                    StepResult::Ready(capabilities)
                }
                Err(why) => StepResult::NotReady(self.with_last_line(&slot, why).await),
            },
            (_, None) => StepResult::Gone("it has no process".to_owned()),
            (Action::Drain { engine, policy, deadline }, Some(client)) => {
                let drain =
                    drain::drain(&self.hub, *engine, &client, *policy, *deadline, purpose.capabilities);
                let drained = drain.await;
                if drained == StepResult::Drained && slot.canary().is_none() {
                    self.record_late(&slot, &client, *deadline, purpose).await;
                }
                drained
            }
            (Action::Call { engine, call, deadline }, Some(client)) => {
                let freezes = matches!(
                    call,
                    Call::Sleep { mode: Some(Mode::Keep), .. } | Call::Pause { mode: Mode::Keep }
                );
                if freezes {
                    drain::arrival(&self.hub, *engine, &client).await;
                }
                StepResult::Called(client.call(*call, *deadline).await)
            }
            (Action::IsSleeping { deadline, .. }, Some(client)) => {
                StepResult::Sleeping(client.is_sleeping(*deadline).await)
            }
            (Action::Probe { kind, deadline, .. }, Some(client)) => {
                self.probe(&slot, &client, *kind, *deadline, purpose).await
            }
            (Action::WarmUp { deadline, .. }, Some(client)) => {
                self.warm_up(&slot, &client, *deadline, purpose).await
            }
        };
        (self.or_gone(&slot, result).await, None)
    }

    /// A failure of an engine whose core is dead is its death: its process ends a little later (CONTRACT 5), and until
    /// then every call fails in its own way.
    async fn or_gone(&self, slot: &EngineSlot, result: StepResult) -> StepResult {
        let failed = match &result {
            StepResult::Called(CallOutcome::Refused { status, .. })
            | StepResult::Sleeping(SleepingAnswer::Refused { status, .. }) => *status >= 500,
            StepResult::Called(CallOutcome::Gone { .. })
            | StepResult::Sleeping(SleepingAnswer::Gone { .. })
            | StepResult::ProbeFailed(_)
            | StepResult::WarmUpFailed(_)
            | StepResult::DrainImpossible(_) => true,
            _ => false,
        };
        let Some(client) = slot.client().filter(|_| failed) else { return result };
        match client.health(HEALTH).await {
            Health::Ok | Health::Unknown => result,
            // Before 0.11.2 a dead core is told by 500.
            Health::Dead | Health::Refused { .. } => {
                StepResult::Gone(self.with_last_line(slot, "its engine core is dead".to_owned()).await)
            }
            Health::Gone { message } => StepResult::Gone(self.with_last_line(slot, message).await),
        }
    }

    /// Looks at an engine at rest; the answer comes as an event.
    pub fn survey(self: &Arc<Self>, engine: EngineId, generation: u64) {
        let hands = Arc::clone(self);
        tokio::spawn(async move {
            let slot = hands.slot(engine);
            let Some(client) = slot.client() else { return };
            let asked = slot.seen().changes;
            let (sleeping, progress) = tokio::join!(client.is_sleeping(SURVEY), client.progress(SURVEY));
            let progress = progress.unwrap_or_default();
            let in_flight =
                progress.running.zip(progress.waiting).map(|(running, waiting)| running + waiting);
            // Counted at rest, or not at all: it may have begun to move meanwhile, or be gone.
            if slot.seen().changes == asked {
                hands.recorder.metrics().in_flight(&slot.config.name, in_flight);
                slot.see(|seen| seen.in_flight = in_flight);
            }
            let survey = Survey {
                sleeping,
                running: progress.running,
                tokens: progress.heartbeat(),
                device_bytes: hands.own_bytes(&slot).await,
            };
            let _ = hands.inputs.send(Input::Event(Event::Surveyed { engine, generation, survey }));
        });
    }

    /// Bytes of an engine's own processes on its fullest device, where the driver tells.
    async fn own_bytes(&self, slot: &EngineSlot) -> Option<u64> {
        let mut most = None;
        for device in &slot.config.devices {
            let device = DeviceId(u16::try_from(*device).ok()?);
            let tells = |r: &Reading| r.has_own_processes() && r.age(clock::now()) <= FRESH;
            let reading = match self.sampler.latest(device).filter(tells) {
                Some(reading) => reading,
                None => self.sampler.read_now(device).await.ok().filter(Reading::has_own_processes)?,
            };
            most = most.max(Some(self.sampler.engine_bytes(&reading, &slot.config.name)?));
        }
        most
    }

    /// Memory now, as far as it is known: the newest reading, or a new one.
    async fn bytes(&self, engine: EngineId, purpose: &Purpose, need: Need) -> Bytes {
        let name = &self.slot(engine).config.name;
        let rss = self.host.latest(name).and_then(|reading| reading.rss);
        let Some(device) = purpose.device else { return Bytes { rss, ..Bytes::default() } };
        let latest = self.sampler.latest(device);
        let stale = latest.as_ref().is_none_or(|reading| reading.age(clock::now()) > FRESH);
        let listed = latest.as_ref().is_some_and(Reading::has_own_processes);
        let read = match need {
            Need::Newest => false,
            Need::Fresh => stale,
            Need::Processes => stale || !listed,
        };
        let reading = if read { self.sampler.read_now(device).await.ok() } else { latest };
        Bytes {
            device: reading.as_ref().map(|r| r.used),
            // A list of processes that was only carried along says nothing of this instant.
            engine: reading
                .as_ref()
                .filter(|r| r.has_own_processes())
                .and_then(|r| self.sampler.engine_bytes(r, name)),
            rss,
        }
    }

    async fn spawn(self: &Arc<Self>, engine: EngineId, life: u64, purpose: &Purpose) -> StepResult {
        let slot = self.slot(engine);
        let process = match slot.spawn(&self.shims).await {
            Ok(process) => process,
            Err(NotSpawned::PortTaken(why)) => return StepResult::PortTaken(why),
            Err(NotSpawned::Failed(why)) => return StepResult::SpawnFailed(why),
        };
        let configured =
            Record::Configured { engine: slot.config.name.clone(), fingerprint: slot.fingerprint.clone() };
        let spawned =
            Record::Spawned { engine: slot.config.name.clone(), incarnation: process.incarnation() };
        self.tell_of_life(&slot, &purpose.context, vec![configured, spawned]).await;
        self.watch(slot, engine, life, &process);
        StepResult::Spawned
    }

    /// Passes on what happens to a process, from now until its end.
    pub fn watch(&self, slot: Arc<EngineSlot>, engine: EngineId, life: u64, process: &EngineProcess) {
        let (mut events, mut incarnation) = (process.events(), process.incarnation());
        let (inputs, recorder) = (self.inputs.clone(), self.recorder.clone());
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                let reason = match event {
                    ProcessEvent::Exited { reason, .. } => reason,
                    ProcessEvent::ShimLost => "its shim was killed".to_owned(),
                    ProcessEvent::Contained(contained) => {
                        let Member { pid, start_ticks } = contained.leader;
                        tracing::info!(engine = slot.config.name, pid, group = ?contained.group, "container found");
                        // From now on it goes by that name, for a later agent too.
                        (incarnation.pid, incarnation.start_ticks) = (pid, start_ticks);
                        let keep = slot.life().map(|life| keep_life(&slot.config.name, &life));
                        drop(recorder.record_step(Vec::new(), keep.into_iter().collect()).await);
                        continue;
                    }
                    ProcessEvent::ClientGone => {
                        let engine = slot.config.name.clone();
                        drop(
                            recorder
                                .record_one(&Context::none(), Incident::ContainerClientLost { engine })
                                .await,
                        );
                        continue;
                    }
                    ProcessEvent::Swept(end) => {
                        let swept = Record::Swept {
                            engine: slot.config.name.clone(),
                            incarnation: incarnation.clone(),
                            killed: end.killed,
                            left: u32::try_from(end.left.len()).unwrap_or(u32::MAX),
                        };
                        drop(recorder.record_one(&Context::none(), swept).await);
                        continue;
                    }
                    ProcessEvent::LogLost(loss) => {
                        let (engine, lost_bytes) = (slot.config.name.clone(), loss.bytes);
                        let incident = match loss.cause {
                            LossCause::Flood => Incident::LogFlooded { engine, lost_bytes },
                            LossCause::Unwritable => Incident::LogUnwritable { engine, lost_bytes },
                        };
                        drop(recorder.record_one(&Context::none(), incident).await);
                        continue;
                    }
                };
                let _ = inputs.send(Input::Event(Event::Exited { engine, life, reason }));
            }
        });
    }

    /// Records facts of a life with what a later agent needs to know of it.
    async fn tell_of_life(&self, slot: &EngineSlot, context: &Context, records: Vec<Record>) {
        let events = records.into_iter().map(Into::into).collect();
        let keep = slot.life().map(|life| keep_life(&slot.config.name, &life));
        drop(self.recorder.record_step(vec![(context.clone(), events)], keep.into_iter().collect()).await);
    }

    async fn record_ready(&self, slot: &EngineSlot, purpose: &Purpose) {
        let facts = slot.facts();
        let record = Record::Ready {
            engine: slot.config.name.clone(),
            version: facts.version.unwrap_or_else(|| "unknown".to_owned()),
            context_tokens: facts.context_tokens,
        };
        self.tell_of_life(slot, &purpose.context, vec![record]).await;
    }

    /// Records facts that no step waits for; a journal that fails has said so itself.
    async fn tell(&self, context: &Context, records: Vec<Record>) {
        let events = records.into_iter().map(Into::into).collect();
        drop(self.recorder.record(context, events).await);
    }

    async fn with_last_line(&self, slot: &EngineSlot, why: String) -> String {
        let Some(process) = slot.process() else { return why };
        match process.tail(40).await.last() {
            Some(line) => format!("{why}; its log ends with: {line}"),
            None => why,
        }
    }

    async fn await_used(&self, engine: EngineId, bounds: &[Bound], deadline: Duration) -> StepResult {
        let end = clock::now() + deadline;
        let mut shown = Vec::new();
        let mut out = false;
        let name = &self.slot(engine).config.name;
        for bound in bounds {
            let device = bound.device;
            let threshold = match (bound.at_least, bound.at_most) {
                (Some(low), Some(high)) => Threshold::Between(low, high),
                (Some(low), None) => Threshold::AtLeast(low),
                (None, Some(high)) => Threshold::AtMost(high),
                (None, None) => Threshold::AtLeast(0),
            };
            match self.sampler.await_used(device, threshold, end).await {
                AwaitOutcome::Reached { reading } => shown.push(Shown::only(device, reading.used)),
                AwaitOutcome::TimedOut { last } => {
                    // Once more, with whose it is: both are of one moment.
                    self.refresh_owners();
                    let reading = self.sampler.read_now(device).await.unwrap_or(last);
                    out |= !threshold.holds(reading.used);
                    let own = self.sampler.engine_bytes(&reading, name);
                    shown.push(Shown {
                        device,
                        used: reading.used,
                        own,
                        strangers: self.strangers(&reading),
                    });
                }
                AwaitOutcome::NoEvidence { reason } => return StepResult::NoEvidence(reason),
                AwaitOutcome::NotWatched => {}
            }
        }
        if out {
            return StepResult::OutOfBounds { shown };
        }
        StepResult::Reached { used: shown.iter().map(|s| (s.device, s.used)).collect() }
    }

    async fn measure(&self, engine: EngineId) -> (StepResult, Option<u64>) {
        let slot = self.slot(engine);
        let mut used = Vec::new();
        let mut own: Option<u64> = None;
        self.refresh_owners();
        for device in &slot.config.devices {
            let device = DeviceId(u16::try_from(*device).unwrap_or(u16::MAX));
            let reading = self.sampler.read_now(device).await.ok();
            used.push((device, reading.as_ref().map(|r| r.used)));
            let bytes = reading.as_ref().and_then(|r| self.sampler.engine_bytes(r, &slot.config.name));
            own = own.max(bytes);
        }
        self.host.sample_now().await;
        let host = self.host.latest(&slot.config.name).and_then(|reading| reading.rss);
        let pids = slot.process().map(|p| p.pids()).unwrap_or_default();
        let pss = host::pss(pids).await;
        (StepResult::Measured { used, engine: own, host }, pss)
    }

    /// Tells the device sampler which process belongs to which engine.
    pub fn refresh_owners(&self) {
        let slots = self.engines.all();
        let owners = slots.iter().flat_map(|slot| {
            let pids = slot.process().map(|p| p.pids()).unwrap_or_default();
            pids.into_iter().map(|pid| (pid, slot.config.name.clone()))
        });
        self.sampler.set_owners(owners.collect());
    }

    async fn probe(
        &self,
        slot: &EngineSlot,
        client: &vllm::Client,
        kind: ProbeKind,
        deadline: Duration,
        purpose: &Purpose,
    ) -> StepResult {
        let canary = slot.canary();
        let ask = match (&canary, kind) {
            (Some(recorded), ProbeKind::Canary) => Ask::Canary { recorded, depth: Depth::First },
            (Some(recorded), ProbeKind::LongCanary) => Ask::Canary { recorded, depth: Depth::All },
            (None, _) | (_, ProbeKind::FirstToken) => Ask::FirstToken,
        };
        let compares = matches!(ask, Ask::Canary { .. });
        let result = client.probe(ask, deadline).await;
        let matched = match &result.end {
            ProbeEnd::Matched => Some(true),
            ProbeEnd::Mismatched(_) => Some(false),
            ProbeEnd::Answered | ProbeEnd::Unknown | ProbeEnd::Failed(_) => None,
        };
        if let Some(matched) = matched.filter(|_| compares) {
            slot.see(|seen| seen.canary = Some(Compared { matched, at: clock::epoch() }));
        }
        let step = match (&result.end, result.first_token) {
            (ProbeEnd::Answered | ProbeEnd::Matched, Some(at)) => StepResult::Token { at },
            (ProbeEnd::Answered | ProbeEnd::Matched, None) => {
                StepResult::ProbeFailed("an answer without a token".into())
            }
            (ProbeEnd::Mismatched(mismatch), _) => StepResult::Mismatch(mismatch.to_string()),
            (ProbeEnd::Unknown, _) => {
                StepResult::ProbeFailed(format!("no token within {} s", deadline.as_secs_f64()))
            }
            (ProbeEnd::Failed(failure), _) => StepResult::ProbeFailed(chain(failure)),
        };
        self.tell(&purpose.context, vec![probe_record(slot, purpose.probe, &result)]).await;
        step
    }

    /// Records the canary of an engine that was taken over without one (its journal was lost), before it is put to sleep:
    /// a wake that brings its weights back wrong could not be told from a good one later. Where that fails it stays
    /// without, as it was.
    async fn record_late(
        &self,
        slot: &EngineSlot,
        client: &vllm::Client,
        deadline: Duration,
        purpose: &Purpose,
    ) {
        let (probes, canary) = client.record_canary(deadline).await;
        let records = probes.iter().map(|r| probe_record(slot, "canary", r)).collect();
        if let Ok(canary) = canary {
            slot.set_canary(canary);
        }
        self.tell_of_life(slot, &purpose.context, records).await;
    }

    async fn warm_up(
        &self,
        slot: &EngineSlot,
        client: &vllm::Client,
        deadline: Duration,
        purpose: &Purpose,
    ) -> StepResult {
        let warm = client.warm_up(WARM_UPS, deadline).await;
        let (probes, canary) = client.record_canary(deadline).await;
        let mut records: Vec<Record> = warm.iter().map(|r| probe_record(slot, "warm_up", r)).collect();
        records.extend(probes.iter().map(|r| probe_record(slot, "canary", r)));
        let failed = warm.iter().find(|r| !r.ok());
        let result = match (failed, canary) {
            (Some(failed), _) => StepResult::WarmUpFailed(sentence(&failed.end)),
            (None, Ok(canary)) => {
                slot.set_canary(canary);
                StepResult::Warmed
            }
            (None, Err(why)) => StepResult::WarmUpFailed(chain(&why)),
        };
        self.tell_of_life(slot, &purpose.context, records).await;
        result
    }
}

fn probe_record(slot: &EngineSlot, purpose: &str, result: &ProbeResult) -> Record {
    let outcome = if result.ok() {
        Outcome::Ok
    } else {
        let code = match result.end {
            ProbeEnd::Mismatched(_) => "canary_mismatch",
            _ => "probe_failed",
        };
        Outcome::Failed { code: code.to_owned(), message: sentence(&result.end) }
    };
    Record::Probe {
        engine: slot.config.name.clone(),
        purpose: purpose.to_owned(),
        began: result.sent,
        first_token: result.first_token,
        outcome,
    }
}

fn sentence(end: &ProbeEnd) -> String {
    match end {
        ProbeEnd::Answered | ProbeEnd::Matched => "answered".to_owned(),
        ProbeEnd::Mismatched(mismatch) => mismatch.to_string(),
        ProbeEnd::Unknown => "no answer before the deadline".to_owned(),
        ProbeEnd::Failed(failure) => chain(failure),
    }
}
