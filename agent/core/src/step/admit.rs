//! Commands: accepted, asked for already, queued behind the agent's own work, or refused.

use super::Cx;
use crate::call::Call;
use crate::effect::Note;
use crate::event::{By, Drain, Request};
use crate::ids::{EngineId, OperationId};
use crate::ledger;
use crate::plan::{self, Ask};
use crate::program::{Cause, Step};
use crate::queue::Refusal;
use crate::revise;
use crate::sequence;
use crate::spec::{DrainPolicy, Order, Strategy};
use crate::state::{Condition, Drift, Operation, Queued, Stage};
use crate::tier::Tier;
use std::collections::VecDeque;

/// What a command turns into.
pub(super) struct Work {
    pub(super) steps: Vec<Step>,
    pub(super) incoming: Option<EngineId>,
    pub(super) outgoing: Vec<EngineId>,
    pub(super) strategy: Option<Strategy>,
    pub(super) order: Option<Order>,
    pub(super) leave: Option<Tier>,
    pub(super) drain: DrainPolicy,
}

/// A command that needs no work, or must not be done.
pub(super) enum No {
    Nothing(String),
    Refused(Refusal),
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        No::Refused(refusal)
    }
}

impl Cx<'_> {
    /// Queues the starts of an agent that comes up.
    pub(super) fn boot(&mut self, awake: &[EngineId]) {
        let due = |id: &EngineId| self.node.engine(*id).spec.autostart && self.node.engine(*id).to_boot;
        let due: Vec<EngineId> = self.node.ids().filter(due).collect();
        self.node.engines.iter_mut().for_each(|e| e.to_boot = false);
        let (last, first): (Vec<_>, Vec<_>) = due.into_iter().partition(|id| awake.contains(id));
        for engine in first.into_iter().chain(last) {
            let awake = awake.contains(&engine);
            self.node.engine_mut(engine).wanted_awake = awake;
            let id = self.node.number();
            let request = Request::Start { engine, rehearse: None, awake };
            self.node.queue.push_back(Queued { id, request, by: By::Agent, at: self.now });
        }
    }

    /// No more work but stopping.
    pub(super) fn close(&mut self) {
        self.node.closing = true;
        for queued in std::mem::take(&mut self.node.queue) {
            self.note(Note::Refused { id: queued.id, refusal: Refusal::Closing });
        }
    }

    /// Takes a command.
    pub(super) fn admit(&mut self, id: OperationId, request: Request, by: By) {
        let closing = self.node.closing && !matches!(request, Request::Stop { .. });
        if closing {
            return self.note(Note::Refused { id, refusal: Refusal::Closing });
        }
        let devices = self.node.devices_of(&request);
        self.make_way(&devices, &request, by);
        if let Some(op) = self.node.operation_on(&devices) {
            let (other, theirs) = (op.id, op.by);
            let same = op.request == request && theirs != By::Agent;
            let refusal =
                Refusal::Busy { id: other, verb: op.request.verb(), engine: self.node.subject(&op.request) };
            let waiting = self.node.queue.iter().filter(|q| q.by != By::Agent).count();
            let own = matches!(theirs, By::Agent | By::Gateway);
            let note = if same {
                // Whoever asked for it as well wants it even if no request is held for it any more.
                if let (Some(op), true) = (self.op(other), theirs == By::Gateway) {
                    op.by = by;
                }
                Note::Joined { id, to: other }
            } else if by == By::Agent || (own && by != By::Gateway && waiting == 0) {
                let at = self.node.queue.iter().take_while(|q| q.by != By::Agent).count();
                let at = if by == By::Agent { self.node.queue.len() } else { at };
                self.node.queue.insert(at, Queued { id, request, by, at: self.now });
                Note::Queued { id, behind: other }
            } else {
                Note::Refused { id, refusal }
            };
            return self.note(note);
        }
        self.begin(id, request, by);
    }

    /// Begins a command whose devices are free.
    pub(super) fn begin(&mut self, id: OperationId, request: Request, by: By) {
        let mends = matches!(request, Request::Bury(_) | Request::Repair(_) | Request::Stop { .. });
        if self.node.is_paused() && by != By::Operator && !mends {
            return self.note(Note::Refused { id, refusal: Refusal::Paused });
        }
        if let Some(reason) =
            self.node.journal_lost.clone().filter(|_| by != By::Agent && moves_memory(&request))
        {
            return self.note(Note::Refused { id, refusal: Refusal::NoJournal { reason } });
        }
        match self.work(&request, by) {
            Err(No::Nothing(because)) => self.note(Note::NothingToDo { id, request, by, because }),
            Err(No::Refused(refusal)) => self.refuse(id, &request, by, refusal),
            Ok(work) => {
                let deadline = drain_of(&request).deadline.unwrap_or(self.node.policy.drain_deadline);
                let mut devices = self.node.devices_of(&request);
                let involved = work.steps.iter().filter_map(Step::engine);
                devices.extend(involved.flat_map(|e| revise::devices(self.node.engine(e))));
                devices.sort_unstable();
                devices.dedup();
                if let Some(other) = self.node.operation_on(&devices) {
                    let (other, verb) = (other.id, other.request.verb());
                    let engine = self.node.subject(&request);
                    return self
                        .note(Note::Refused { id, refusal: Refusal::Busy { id: other, verb, engine } });
                }
                self.note(Note::Accepted {
                    id,
                    request: request.clone(),
                    by,
                    outgoing: work.outgoing.clone(),
                    strategy: work.strategy,
                    order: work.order,
                    leave: work.leave,
                    drain: work.drain,
                    steps: work.steps.clone(),
                });
                let on_devices =
                    |e: &EngineId| self.node.engine(*e).spec.devices.iter().any(|d| devices.contains(d));
                let serving_before = self
                    .node
                    .ids()
                    .filter(on_devices)
                    .filter(|e| self.node.engine(*e).is_serving())
                    .collect();
                let involved: Vec<EngineId> = work.steps.iter().filter_map(Step::engine).collect();
                for engine in involved {
                    self.node.engine_mut(engine).to_boot = false;
                }
                let operation = Operation {
                    id,
                    request,
                    by,
                    accepted: self.now,
                    devices,
                    incoming: work.incoming,
                    outgoing: work.outgoing,
                    serving_before,
                    tiers_before: self.node.engines.iter().map(|e| e.tier).collect(),
                    drain: work.drain,
                    drain_deadline: deadline,
                    program: VecDeque::from(work.steps),
                    current: None,
                    steps: 0,
                    reported: Vec::new(),
                    repaired: Vec::new(),
                    relaunched: Vec::new(),
                    asked: Vec::new(),
                    attempts: 0,
                    moved: false,
                    stage: Stage::Forward,
                    failure: None,
                    first_token: None,
                    leg_began: self.now,
                };
                self.maintenance_begins(&operation);
                self.node.operations.push(operation);
                self.advance(id);
            }
        }
    }

    fn refuse(&mut self, id: OperationId, request: &Request, by: By, refusal: Refusal) {
        let waits = matches!(refusal, Refusal::NoRoom { .. } | Refusal::NoEvidence { .. });
        if let (Request::Start { engine, .. }, By::Agent, true) = (request, by, waits) {
            let was = self.node.engine(*engine).condition.clone();
            let detail = refusal.to_string();
            // Without evidence there is no room that could be proven; it starts when there is.
            self.transit(*engine, "no room", |e| e.condition = Condition::NoRoom);
            // That the device is lost has been reported.
            if was != Condition::NoRoom && matches!(refusal, Refusal::NoRoom { .. }) {
                self.incident(crate::effect::Incident::NoRoom, Some(*engine), detail);
            }
        }
        self.note(Note::Refused { id, refusal });
    }

    /// Gives an operation up that still drains, or has not begun.
    pub(super) fn cancel(&mut self, id: OperationId) {
        if let Some(at) = self.node.queue.iter().position(|q| q.id == id) {
            let queued = self.node.queue.remove(at);
            let failure = queued.map(|q| crate::program::Failure {
                cause: Cause::Cancelled,
                engine: q.request.engine().unwrap_or(EngineId(0)),
                detail: "cancelled before it began".into(),
            });
            let now = self.now;
            return self.note(Note::Ended { id, failure, accepted: now, first_token: None });
        }
        let Some(op) = self.op(id) else {
            return self.note(Note::NotCancelled { id, refusal: Refusal::NotUnderWay(id) });
        };
        let forward = op.stage == Stage::Forward;
        match op.current.take() {
            Some(current) if forward && matches!(current.step, Step::Drain(_)) => {
                self.step_failed(id, current, Cause::Cancelled, "cancelled while draining".into());
                self.advance(id);
            }
            current => {
                op.current = current;
                self.note(Note::NotCancelled { id, refusal: Refusal::TooLate(id) });
            }
        }
    }

    fn work(&mut self, request: &Request, by: By) -> Result<Work, No> {
        let drain = self.drain_policy(request)?;
        let id = match (request, request.engine()) {
            (_, Some(id)) => id,
            (Request::Pause { tier, .. }, None) => return self.pause(*tier, drain),
            (_, None) => return Ok(self.resume(drain)),
        };
        let e = self.node.engine(id);
        let can_be_had = match request {
            Request::Stop { .. }
            | Request::Sleep { .. }
            | Request::Bury(_)
            | Request::Repair(_)
            | Request::Reset(_) => true,
            Request::Switch { .. } | Request::Wake(_) => !e.is_done_with(),
            _ => !e.retired,
        };
        if !can_be_had {
            return Err(self.not_configured(id).into());
        }
        let plain = |steps: Vec<Step>, incoming: Option<EngineId>| Work {
            steps,
            incoming,
            outgoing: Vec::new(),
            strategy: None,
            order: None,
            leave: None,
            drain,
        };
        match request {
            Request::Switch { .. } => self.switch(request, by),
            Request::Wake(_) => {
                self.not_awake_already(id)?;
                self.one_more_may_be_awake(id)?;
                let ask = Ask { to: id, strategy: Strategy::Auto, leave: None, drain, spare_pinned: false };
                let plan = plan::choose(self.node, &ask)?;
                if !plan.outgoing.is_empty() {
                    return Err(self.no_room_beside(id).into());
                }
                Ok(Work { order: Some(plan.order), ..plain(plan.steps, Some(id)) })
            }
            Request::Sleep { tier, .. } => {
                let e = self.node.engine(id);
                let tier = tier.unwrap_or(e.spec.rest);
                if e.tier == tier && e.condition == Condition::Settled {
                    return Err(No::Nothing(format!("{} is at {tier} already", e.spec.name)));
                }
                if e.spec.turn.pinned && matches!(by, By::Agent | By::Gateway) {
                    return Err(plan::pinned(self.node, id, id).into());
                }
                self.settled(id, "wait for its repair, or `stop` it")?;
                plan::may_fall(self.node, id, tier, drain)?;
                plan::evidence(self.node, &self.node.engine(id).spec.devices)?;
                let outgoing = vec![id];
                Ok(Work { outgoing, leave: Some(tier), ..plain(vec![Step::Fall { engine: id, tier }], None) })
            }
            Request::Start { rehearse, awake, .. } => {
                let steps = self.start(id, *rehearse, *awake, by)?;
                Ok(plain(steps, Some(id)))
            }
            Request::Stop { .. } => {
                let e = self.node.engine(id);
                if !e.process {
                    let because = format!("{} is not running", e.spec.name);
                    self.node.engine_mut(id).to_boot = false;
                    let e = self.node.engine(id);
                    if !matches!(e.condition, Condition::Failed(_)) {
                        self.transit(id, "stopped by command", |e| {
                            e.condition = Condition::Settled;
                            e.wanted_awake = false;
                        });
                    }
                    return Err(No::Nothing(because));
                }
                self.node.engine_mut(id).wanted_awake = false;
                let steps = vec![Step::Fall { engine: id, tier: Tier::Stopped }];
                Ok(Work { outgoing: vec![id], leave: Some(Tier::Stopped), ..plain(steps, None) })
            }
            Request::Restart { rehearse, .. } => {
                self.restart(id, *rehearse).map(|steps| plain(steps, Some(id)))
            }
            Request::Reset(_) => {
                let e = self.node.engine(id);
                let leftovers = e.process && matches!(e.condition, Condition::Failed(_));
                let now = self.now;
                self.transit(id, "reset by command", |e| {
                    e.crashes.reset();
                    e.retry = crate::demand::Retry::default();
                    e.fall_retry = crate::demand::Retry::default();
                    (e.restart_only, e.level2_unsafe, e.cannot_park) = (false, false, false);
                    match e.condition {
                        Condition::Failed(_) if !leftovers => e.condition = Condition::Settled,
                        // Nothing is held against it any more: it need not wait.
                        Condition::Backoff(_) => e.condition = Condition::Backoff(now),
                        _ => {}
                    }
                });
                let sweep = vec![Step::Fall { engine: id, tier: Tier::Stopped }];
                Ok(plain(if leftovers { sweep } else { Vec::new() }, None))
            }
            Request::Bury(_) => Ok(plain(vec![Step::Kill(id)], None)),
            Request::Repair(_) => Ok(plain(self.repair(id), Some(id))),
            Request::Adopt(_) => Ok(plain(self.adopt(id)?, Some(id))),
            Request::Pause { .. } | Request::Resume => Ok(plain(Vec::new(), None)),
        }
    }

    /// The policy in force: what the agent does of its own accord never freezes, and what ends a process cannot.
    fn drain_policy(&self, request: &Request) -> Result<DrainPolicy, Refusal> {
        let asked = drain_of(request).policy;
        let policy = asked.unwrap_or(self.node.policy.drain);
        match request {
            Request::Switch { .. } | Request::Sleep { .. } | Request::Pause { .. } => Ok(policy),
            Request::Stop { engine, .. } | Request::Restart { engine, .. }
                if asked == Some(DrainPolicy::Freeze) =>
            {
                Err(Refusal::WrongState {
                    engine: self.node.engine(*engine).spec.name.clone(),
                    is: "to be stopped".into(),
                    hint: "frozen requests do not survive that; drain with wait or abort",
                })
            }
            _ if policy == DrainPolicy::Freeze => Ok(DrainPolicy::Wait),
            _ => Ok(policy),
        }
    }

    /// Why an engine cannot be woken without another going to sleep.
    fn no_room_beside(&self, id: EngineId) -> Refusal {
        let e = self.node.engine(id);
        let need =
            if e.tier == Tier::Stopped { ledger::start_need(e) } else { ledger::bytes_at(e, Tier::Awake) };
        let short = need.and_then(|bytes| ledger::shortfall(self.node, id, bytes));
        let device = short.map(|s| s.device).or(e.spec.devices.first().copied());
        Refusal::NoRoom {
            what: format!("{} beside what is awake", e.spec.name),
            device: device.map_or_else(String::new, |d| self.node.device(d).spec.name.clone()),
            missing: short.map_or(0, |s| s.missing),
        }
    }

    fn switch(&mut self, request: &Request, by: By) -> Result<Work, No> {
        let Some(ask) = Ask::of(self.node, request) else { return Err(No::Nothing("not a switch".into())) };
        let ask = Ask { spare_pinned: by == By::Gateway, ..ask };
        self.not_awake_already(ask.to)?;
        if by == By::Gateway && self.node.engine(ask.to).demand.held == 0 {
            return Err(No::Nothing("no request waits for it".into()));
        }
        let plan = plan::choose(self.node, &ask)?;
        Ok(Work {
            steps: plan.steps,
            incoming: Some(ask.to),
            outgoing: plan.outgoing,
            strategy: Some(ask.strategy),
            order: Some(plan.order),
            leave: Some(plan.leave),
            drain: ask.drain,
        })
    }

    fn not_awake_already(&self, id: EngineId) -> Result<(), No> {
        let e = self.node.engine(id);
        if e.is_serving() {
            return Err(No::Nothing(format!("{} is awake already", e.spec.name)));
        }
        Ok(())
    }

    fn one_more_may_be_awake(&self, id: EngineId) -> Result<(), Refusal> {
        match self.crowded(id, &[]) {
            Some((other, device)) => {
                let max = self.node.device(device).spec.max_awake.max(1);
                Err(Refusal::TooManyAwake { awake: self.node.engine(other).spec.name.clone(), max })
            }
            None => Ok(()),
        }
    }

    fn settled(&self, id: EngineId, hint: &'static str) -> Result<(), Refusal> {
        let e = self.node.engine(id);
        let is = match &e.condition {
            Condition::Settled if e.tier.has_process() => return Ok(()),
            Condition::Failed(reason) => format!("failed ({reason})"),
            _ => e.condition_word().to_owned(),
        };
        let hint = if e.tier == Tier::Stopped { "it has no process to be put to sleep" } else { hint };
        Err(Refusal::WrongState { engine: e.spec.name.clone(), is, hint })
    }

    fn start(&mut self, id: EngineId, rehearse: Option<bool>, awake: bool, by: By) -> Result<Vec<Step>, No> {
        let e = self.node.engine(id);
        if let Condition::Failed(reason) = &e.condition {
            let is = format!("failed ({reason})");
            let hint = "look at its log, then `reset` it";
            return Err(Refusal::WrongState { engine: e.spec.name.clone(), is, hint }.into());
        }
        if e.process {
            return Err(No::Nothing(format!("{} runs already ({})", e.spec.name, e.condition_word())));
        }
        let rehearse = rehearse.unwrap_or(e.spec.rehearse);
        let mut steps = Vec::new();
        if by == By::Agent {
            plan::evidence(self.node, &e.spec.devices)?;
            steps = plan::make_room_to_start(self.node, id)?;
        } else {
            revise::can_start(self.node, id)?;
        }
        let rest = self.node.engine(id).spec.rest;
        let awake = match self.one_more_may_be_awake(id) {
            Err(refusal) if awake && by != By::Agent => return Err(refusal.into()),
            Err(_) => false,
            Ok(()) => awake,
        };
        steps.push(Step::Launch { engine: id, rehearse });
        if !awake {
            steps.push(Step::Fall { engine: id, tier: rest });
        }
        Ok(steps)
    }

    fn restart(&mut self, id: EngineId, rehearse: Option<bool>) -> Result<Vec<Step>, No> {
        let e = self.node.engine(id);
        if !e.process {
            return self.start(id, rehearse, true, By::Operator);
        }
        if e.tier == Tier::Stopped {
            // What a stop has left: it comes back as a start would.
            self.one_more_may_be_awake(id)?;
        }
        revise::can_start(self.node, id)?;
        let mut steps = vec![
            Step::Fall { engine: id, tier: Tier::Stopped },
            Step::Launch { engine: id, rehearse: rehearse.unwrap_or(e.spec.rehearse) },
        ];
        if !matches!(e.tier, Tier::Awake | Tier::Stopped) {
            steps.push(Step::Fall { engine: id, tier: e.tier });
        }
        Ok(steps)
    }

    /// What brings an engine that is adrift back.
    fn repair(&mut self, id: EngineId) -> Vec<Step> {
        let e = self.node.engine(id);
        let Condition::Adrift(drift) = e.condition else { return Vec::new() };
        let caps = e.capabilities;
        match drift {
            // At an unknown level: weights are reloaded, whether or not they were lost. The prefix cache went with the
            // sleep (CONTRACT 1.3), and could not be reset: what was asked of it asleep holds blocks from its wake on.
            Drift::FoundAsleep if caps.is_some_and(|c| c.can_level2() && c.partial_wake_is_safe()) => {
                let calls =
                    sequence::full_reload().into_iter().filter(|call| *call != Call::ResetPrefixCache);
                let calls = calls.map(|call| Step::Call { engine: id, call });
                [Step::Take(id), Step::ReserveWake(id)]
                    .into_iter()
                    .chain(calls)
                    .chain([
                        Step::ConfirmAwake(id),
                        Step::AwaitResidence(id),
                        Step::Probe {
                            engine: id,
                            kind: crate::effect::ProbeKind::LongCanary,
                            counted: false,
                        },
                        Step::Settle { engine: id, tier: Tier::Awake },
                        Step::Open(id),
                    ])
                    .collect()
            }
            Drift::FoundAwake => {
                let tier = e.tier;
                let bytes = ledger::bytes_at(e, Tier::Awake);
                let e = self.node.engine_mut(id);
                // What it really holds now; a reservation is not asked for: the memory is taken already.
                e.held = bytes.unwrap_or(e.held);
                e.tier = Tier::Awake;
                e.condition = Condition::Settled;
                match plan::may_fall(self.node, id, tier, DrainPolicy::Wait) {
                    Ok(()) => vec![Step::Fall { engine: id, tier }],
                    Err(_) => vec![Step::Kill(id)],
                }
            }
            Drift::FoundAsleep | Drift::Stalled | Drift::Unresolved => vec![Step::Kill(id)],
        }
    }
}

/// Whether a command takes or gives memory while something may be served: what ends or forgives is none of them.
fn moves_memory(request: &Request) -> bool {
    matches!(
        request,
        Request::Switch { .. }
            | Request::Wake(_)
            | Request::Sleep { .. }
            | Request::Start { .. }
            | Request::Restart { .. }
            | Request::Pause { .. }
            | Request::Adopt(_)
    )
}

fn drain_of(request: &Request) -> Drain {
    match request {
        Request::Switch { drain, .. }
        | Request::Sleep { drain, .. }
        | Request::Stop { drain, .. }
        | Request::Restart { drain, .. }
        | Request::Pause { drain, .. } => *drain,
        _ => Drain::default(),
    }
}
