//! One run: its steps in order, each recorded before it acts.

use super::{Parts, Shown, shown};
use crate::clock;
use crate::config::Source;
use crate::config::cycle_plan::{CyclePlan, PlannedStep};
use crate::effects::chain;
use crate::events::Context;
use crate::journal::record::{CycleStep, Outcome, Record, RunEngine, SimulatedRun};
use crate::switcher::{Admission, Handle, Order, spec};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::words::State;
use hotbunk_core::event::{By, Drain, Event, Request};
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::queue::Refusal;
use hotbunk_core::state::{Engine, Node};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use hotbunk_measure::load::{RoundSpec, run_round};
use hotbunk_measure::target::Api;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What each request of a load round asks: 25 words, of which the simulated models count 26 and 25 tokens, as the
/// reference's models did of its prompt.
const PROMPT: &str = "Two sailors share one bunk on a ship and take turns by the watch so that it is \
                      never cold and never empty at night";
/// One request of a load round.
const REQUEST: Duration = Duration::from_secs(300);
/// Longest wait for a simulated engine to take a new pace over.
const PACE: Duration = Duration::from_secs(5);

/// A run under way.
pub(super) struct Run {
    parts: Arc<Parts>,
    id: String,
    plan: CyclePlan,
    steps: Vec<PlannedStep>,
    shown: Shown,
    cancelled: watch::Receiver<bool>,
    context: Context,
    speed: f64,
}

/// Why a step did not succeed.
enum Stop {
    Failed(String, String),
    Cancelled,
}

/// The engines are left to this run, however it ends: meanwhile no request and no idle ladder moves them.
#[derive(Debug)]
struct Alone(Handle);

impl Alone {
    fn new(switcher: Handle) -> Self {
        switcher.tell(Event::Cycle { runs: true });
        Alone(switcher)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.tell(Event::Cycle { runs: false });
    }
}

impl Run {
    pub(super) fn new(
        parts: Arc<Parts>,
        id: String,
        plan: CyclePlan,
        steps: Vec<PlannedStep>,
        shown: Shown,
        cancelled: watch::Receiver<bool>,
    ) -> Self {
        let context = Context::none().in_run(id.clone());
        let speed = parts.config.get().simulated.as_ref().map_or(1.0, |s| s.speed);
        Run { parts, id, plan, steps, shown, cancelled, context, speed }
    }

    /// To its end.
    pub(super) async fn work(self) {
        let alone = Alone::new(self.parts.switcher.clone());
        self.measure().await;
        drop(alone);
    }

    async fn measure(&self) {
        let begun = self.comes_to_rest().await;
        let found = self.parts.switcher.node();
        self.record(vec![self.started()]).await;
        let mut window: Option<(String, f64)> = None;
        let failure = match begun {
            Ok(()) => self.all_steps(&mut window).await.err(),
            Err(stop) => Some(stop),
        };
        if window.is_some() {
            self.close_window(window).await;
            // The last window's margin belongs to the run: its samples are taken before the report can be asked for.
            tokio::time::sleep(self.plan.margin.div_f64(self.speed)).await;
        }
        let outcome = match &failure {
            None => Outcome::Ok,
            Some(Stop::Cancelled) => {
                self.restore(&found).await;
                Outcome::Cancelled
            }
            Some(Stop::Failed(code, message)) => {
                // Whatever served before the run serves again: nobody may be there to see to it.
                if found.engines.iter().any(Engine::is_serving) {
                    self.restore(&found).await;
                }
                Outcome::Failed { code: code.clone(), message: message.clone() }
            }
        };
        // What was sampled up to here belongs to the run.
        self.parts.hands.host.sample_now().await;
        self.parts.hands.sampler.flush().await;
        self.record(vec![Record::RunEnded { outcome: outcome.clone() }]).await;
        drop(self.parts.hands.recorder.journal().flush().await);
        let elapsed_s = self.shown.elapsed_s();
        self.shown.change(|run| {
            run.ended_at = Some(clock::epoch());
            run.elapsed_s = elapsed_s;
            (run.state, run.error) = match outcome {
                Outcome::Ok | Outcome::Recovered => (State::Succeeded, None),
                Outcome::Cancelled => (State::Cancelled, None),
                Outcome::Failed { code, message } | Outcome::RolledBack { code, message } => {
                    (State::Failed, Some(ApiError::new(ErrorCode::from_word(&code), message)))
                }
            };
        });
    }

    /// Waits for what is under way: an agent that has just come up is still starting its engines, and they are to be found as
    /// they will be then. While the node is paused, those starts wait as well.
    async fn comes_to_rest(&self) -> Result<(), Stop> {
        let (mut nodes, mut cancelled) = (self.parts.switcher.watch(), self.cancelled.clone());
        tokio::select! {
            // An error means that the switcher has ended; the first step says so.
            _ = nodes.wait_for(|node| node.is_at_rest()) => Ok(()),
            _ = cancelled.wait_for(|c| *c) => Err(Stop::Cancelled),
        }
    }

    async fn all_steps(&self, window: &mut Option<(String, f64)>) -> Result<(), Stop> {
        let mut paced = false;
        for (index, planned) in self.steps.iter().enumerate() {
            if planned.window != window.as_ref().map(|(name, _)| name.clone()) {
                self.close_window(window.take()).await;
                *window = planned.window.clone().map(|name| (name, clock::epoch()));
            }
            if !paced && matches!(planned.step, CycleStep::Handoff { .. }) {
                self.pace().await;
                paced = true;
            }
            self.step(index, planned).await?;
            self.pause(planned.pause_after).await?;
        }
        Ok(())
    }

    /// Handoffs pass at the speed that the report names, whatever the simulated engines were started with: `demo`
    /// starts and rehearses them fast where its handoffs are to be looked at in real time.
    async fn pace(&self) {
        let Some(simulated) = self.parts.config.get().simulated.clone() else { return };
        for slot in self.parts.hands.engines.all().iter().filter(|slot| slot.config.simulated) {
            let Some(client) = slot.client() else { continue };
            if let Err(error) = client.set_simulated_speed(simulated.speed, PACE).await {
                let (engine, speed) = (&slot.config.name, simulated.speed);
                tracing::warn!(
                    engine,
                    speed,
                    error = chain(&error),
                    "it keeps the pace that it was started with"
                );
            }
        }
    }

    async fn record(&self, records: Vec<Record>) {
        let events = records.into_iter().map(Into::into).collect();
        // A journal that fails has said so itself.
        drop(self.parts.hands.recorder.record(&self.context, events).await);
    }

    fn started(&self) -> Record {
        let config = self.parts.config.get();
        let all = self.parts.hands.engines.all();
        let slots: Vec<_> = config.configured().filter_map(|(at, _)| all.get(at)).collect();
        let version = slots.iter().find_map(|s| s.facts().version).unwrap_or_else(|| "unknown".to_owned());
        let info = (0..config.devices.len())
            .filter_map(|d| self.parts.hands.sampler.info(DeviceId(u16::try_from(d).unwrap_or(u16::MAX))));
        let info: Vec<_> = info.collect();
        let cuda = info.iter().find_map(|i| i.cuda.clone()).map_or(String::new(), |c| format!(" / CUDA {c}"));
        let gpu = info.first().map_or("unknown".to_owned(), |i| format!("{} × {}", info.len(), i.model));
        let kv: Vec<Option<u64>> = config.configured().map(|(_, e)| e.kv_cache_bytes).collect();
        let same = kv.first().copied().flatten().filter(|first| kv.iter().all(|k| *k == Some(*first)));
        #[expect(clippy::cast_precision_loss, reason = "GiB for people")]
        let kv_gib = same.map(|bytes| bytes as f64 / crate::config::checked::GIB as f64);
        let engines = slots.iter().map(|slot| RunEngine {
            engine: slot.config.name.clone(),
            model: slot.config.model.clone(),
            context_tokens: slot.facts().context_tokens,
            kv_bytes: slot.config.kv_cache_bytes,
        });
        let source = config.devices.first().map(|d| match d.source {
            Source::Nvml(_) => "nvml",
            Source::Simulated { .. } => "simulated",
            Source::None => "none",
        });
        Record::RunStarted {
            plan: self.plan.name.clone(),
            steps: self.steps.iter().map(|s| s.step.clone()).collect(),
            engines: engines.collect(),
            runtime: format!("vLLM {version}{cuda}"),
            gpu,
            kv_gib,
            simulated: config.simulated.as_ref().map(|s| SimulatedRun {
                profile: s.profile.clone(),
                speed: s.speed,
                host_scale: s.host_scale,
                start_speed: slots
                    .iter()
                    .find_map(|slot| start_speed(&slot.config))
                    .filter(|at| *at != s.speed),
            }),
            device_source: source.map(str::to_owned),
        }
    }

    async fn close_window(&self, window: Option<(String, f64)>) {
        let Some((name, begin)) = window else { return };
        let margin = self.plan.margin.as_secs_f64() / self.speed;
        self.record(vec![Record::Window { name, start: begin - margin, end: clock::epoch() + margin }]).await;
    }

    async fn step(&self, index: usize, planned: &PlannedStep) -> Result<(), Stop> {
        let place = u32::try_from(index).unwrap_or(u32::MAX);
        self.record(vec![Record::CycleStepBegan { index: place }]).await;
        self.shown.step_began(index);
        let began = clock::now();
        let mut operations = Vec::new();
        let result = self.perform(place, planned, &mut operations).await;
        let outcome = match &result {
            Ok(()) => Outcome::Ok,
            Err(Stop::Cancelled) => Outcome::Cancelled,
            Err(Stop::Failed(code, message)) => {
                Outcome::Failed { code: code.clone(), message: message.clone() }
            }
        };
        let ids: Vec<String> = operations
            .iter()
            .map(|n| self.parts.switcher.board().by_number(*n).map_or(format!("op-{}", n.0), |o| o.id))
            .collect();
        self.record(vec![Record::CycleStepEnded { index: place, operations, outcome }]).await;
        let error = match &result {
            Err(Stop::Failed(code, message)) => {
                Some(ApiError::new(ErrorCode::from_word(code), message.clone()))
            }
            Err(Stop::Cancelled) => Some(ApiError::new(ErrorCode::Cancelled, "the run was cancelled")),
            Ok(()) => None,
        };
        let ok = error.is_none();
        self.shown.step_ended(index, clock::now().since(began).as_secs_f64(), ids, error);
        let counts_a_probe = !matches!(planned.step, CycleStep::Load { .. } | CycleStep::Sleep { .. });
        if ok && counts_a_probe {
            self.shown.change(|run| run.requests_ok += 1);
        }
        match result {
            Err(Stop::Failed(code, message)) => Err(Stop::Failed(
                code,
                format!("step {}, {}: {message}", index + 1, shown::sentence(planned)),
            )),
            other => other,
        }
    }

    async fn perform(
        &self,
        index: u32,
        planned: &PlannedStep,
        operations: &mut Vec<OperationId>,
    ) -> Result<(), Stop> {
        let drain = Drain::default();
        match &planned.step {
            CycleStep::Start { engine, .. } => {
                let engine = self.engine(engine)?;
                let rehearse = Some(planned.rehearse);
                self.make_way(engine, operations).await?;
                let node = self.parts.switcher.node();
                let e = node.engine(engine);
                if e.process && e.tier == Tier::Awake {
                    let request = Request::Restart { engine, rehearse, drain };
                    return self.operate(request, operations).await;
                }
                // A restart would bring one that sleeps back to sleep; the cycle goes on with it awake.
                if e.process {
                    self.operate(Request::Stop { engine, drain }, operations).await?;
                }
                self.operate(Request::Start { engine, rehearse, awake: true }, operations).await
            }
            CycleStep::Sleep { engine, tier } => {
                let request = Request::Sleep { engine: self.engine(engine)?, tier: Some(*tier), drain };
                self.operate(request, operations).await
            }
            CycleStep::SleepCycle { engine, tier } => {
                let engine = self.engine(engine)?;
                self.operate(Request::Sleep { engine, tier: Some(*tier), drain }, operations).await?;
                // What the host holds asleep tells a level-1 sleep from a level-2 one.
                self.parts.hands.host.sample_now().await;
                self.pause(planned.hold).await?;
                self.operate(Request::Wake(engine), operations).await
            }
            CycleStep::Activate { engine, .. } => {
                self.operate(Request::Wake(self.engine(engine)?), operations).await
            }
            CycleStep::Handoff { to, .. } => {
                let request = Request::Switch {
                    to: self.engine(to)?,
                    strategy: planned.strategy.map(spec::strategy),
                    leave: planned.leave,
                    drain,
                };
                self.operate(request, operations).await
            }
            CycleStep::Load { engine, concurrency, rounds, requests, output_tokens, .. } => {
                let spec = RoundSpec {
                    api: Api::Completions,
                    requests: *requests,
                    concurrency: *concurrency,
                    output_tokens: *output_tokens,
                    prompt: PROMPT.to_owned(),
                    ignore_eos: true,
                    deadline: REQUEST,
                };
                self.load(index, self.engine(engine)?, &spec, *rounds).await
            }
        }
    }

    /// On a node that serves, others are awake: as many as are too many go to rest.
    async fn make_way(&self, engine: EngineId, operations: &mut Vec<OperationId>) -> Result<(), Stop> {
        let node = self.parts.switcher.node();
        let devices = &node.engine(engine).spec.devices;
        let most = devices.iter().map(|d| node.device(*d).spec.max_awake).min().unwrap_or(1).max(1);
        let mut others: Vec<EngineId> = node
            .ids()
            .filter(|id| *id != engine && node.engine(*id).tier == Tier::Awake)
            .filter(|id| node.engine(*id).spec.devices.iter().any(|d| devices.contains(d)))
            .collect();
        others.sort_by_key(|id| node.engine(*id).awake_since);
        let surplus = (others.len() + 1).saturating_sub(usize::from(most));
        for other in others.into_iter().take(surplus) {
            let request = Request::Sleep { engine: other, tier: None, drain: Drain::default() };
            self.operate(request, operations).await?;
        }
        Ok(())
    }

    fn engine(&self, name: &str) -> Result<EngineId, Stop> {
        self.parts
            .switcher
            .node()
            .by_name(name)
            .ok_or_else(|| Stop::Failed("unknown_engine".into(), format!("there is no engine `{name}`")))
    }

    /// One command, to its end. Cancelling waits for it: an operation is never left half-way.
    async fn operate(&self, request: Request, operations: &mut Vec<OperationId>) -> Result<(), Stop> {
        if *self.cancelled.borrow() {
            return Err(Stop::Cancelled);
        }
        let order = Order { request, by: By::Cycle, run: Some(self.id.clone()), client: None };
        let id = match self.parts.switcher.submit(order).await {
            Admission::Begun(id) | Admission::Queued(id) | Admission::Joined(id) => id,
            Admission::Nothing(because) => return Err(Stop::Failed("refused".into(), because)),
            Admission::Refused(Refusal::Closing) => return Err(Stop::Cancelled),
            Admission::Refused(refusal) => {
                return Err(Stop::Failed(refusal.code().into(), refusal.to_string()));
            }
        };
        operations.push(id);
        match self.parts.switcher.wait(id).await {
            Some(ended) => match ended.failure {
                None => Ok(()),
                // Whoever gave the run up may have ended what it was about as well.
                Some(_) if *self.cancelled.borrow() => Err(Stop::Cancelled),
                Some(why) => Err(Stop::Failed(why.code.into(), why.message)),
            },
            None => Err(Stop::Failed("unavailable".into(), "the agent is shutting down".into())),
        }
    }

    async fn load(&self, index: u32, engine: EngineId, spec: &RoundSpec, rounds: u32) -> Result<(), Stop> {
        let slot = self.parts.hands.slot(engine);
        let Some(client) = slot.client() else {
            return Err(Stop::Failed("wrong_state".into(), format!("{} has no process", slot.config.name)));
        };
        let mut failed = None;
        for round in 0..rounds {
            let mut cancelled = self.cancelled.clone();
            let done = tokio::select! {
                done = run_round(client.target(), spec) => done,
                _ = cancelled.wait_for(|c| *c) => return Err(Stop::Cancelled),
            };
            let done = done.map_err(|error| Stop::Failed("load_failed".into(), chain(&error)))?;
            let mut records: Vec<Record> = done
                .results
                .iter()
                .map(|r| Record::LoadRequest {
                    index,
                    round,
                    ok: r.ok,
                    error: r.error.as_ref().map(|e| chain(e)),
                    began: Moment(r.began),
                    first_token: r.first_token.map(Moment),
                    ended: Moment(r.ended),
                    output_tokens: r.output_tokens,
                    prompt_tokens: r.prompt_tokens,
                })
                .collect();
            records.push(Record::LoadRound {
                index,
                round,
                began: Moment(done.began),
                ended: Moment(done.ended),
            });
            self.record(records).await;
            let ok = done.results.iter().filter(|r| r.ok).count();
            self.shown.change(|run| run.requests_ok += u64::try_from(ok).unwrap_or(0));
            if let Some(error) = done.results.iter().find_map(|r| r.error.as_ref()) {
                let some = done.results.len() - ok;
                failed.get_or_insert(format!(
                    "{some} of {} requests failed: {}",
                    done.results.len(),
                    chain(error)
                ));
            }
        }
        failed.map_or(Ok(()), |message| Err(Stop::Failed("load_failed".into(), message)))
    }

    async fn pause(&self, wall: Duration) -> Result<(), Stop> {
        let mut cancelled = self.cancelled.clone();
        tokio::select! {
            () = tokio::time::sleep(wall.div_f64(self.speed)) => Ok(()),
            _ = cancelled.wait_for(|c| *c) => Err(Stop::Cancelled),
        }
    }

    /// Every engine back in the tier that it was found in.
    async fn restore(&self, found: &Node) {
        let drain = Drain::default();
        let tier = |engine: EngineId, node: &Node| node.engine(engine).tier;
        let mut wanted: Vec<Request> = Vec::new();
        for engine in found.ids().filter(|e| tier(*e, found) != Tier::Awake) {
            wanted.push(match tier(engine, found) {
                Tier::Stopped => Request::Stop { engine, drain },
                asleep => Request::Sleep { engine, tier: Some(asleep), drain },
            });
        }
        for to in found.ids().filter(|e| found.engine(*e).is_serving()) {
            wanted.push(Request::Switch { to, strategy: None, leave: None, drain });
        }
        for request in wanted {
            let Some(engine) = request.engine() else { continue };
            let now = self.parts.switcher.node();
            let before = tier(engine, found);
            if tier(engine, &now) == before {
                continue;
            }
            // Only an awake engine can be put to sleep: wake it first where it is at another level.
            if matches!(request, Request::Sleep { .. }) && tier(engine, &now) != Tier::Awake {
                let to = Request::Switch { to: engine, strategy: None, leave: None, drain };
                self.restored(to).await;
            }
            self.restored(request).await;
        }
    }

    async fn restored(&self, request: Request) {
        let order = Order { request, by: By::Cycle, run: Some(self.id.clone()), client: None };
        let refused = match self.parts.switcher.submit(order).await {
            Admission::Begun(id) | Admission::Queued(id) | Admission::Joined(id) => {
                self.parts.switcher.wait(id).await.and_then(|e| e.failure).map(|why| why.message)
            }
            Admission::Nothing(_) => None,
            // Every engine is being stopped: there is nothing to go back to.
            Admission::Refused(Refusal::Closing) => None,
            Admission::Refused(refusal) => Some(refusal.to_string()),
        };
        if let Some(why) = refused {
            tracing::warn!(run = self.id, why, "the cancelled cycle could not leave everything as it was");
        }
    }
}

/// What a simulated engine is started with, by its own command.
fn start_speed(engine: &crate::config::Engine) -> Option<f64> {
    let words = engine.simulated.then_some(&engine.command)?;
    let at = words.iter().position(|word| word == "--speed")?;
    words.get(at + 1)?.parse().ok()
}
