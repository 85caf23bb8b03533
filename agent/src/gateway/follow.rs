//! Following the state: what each step of the switcher means for gates and for those who wait.

use super::hub::Hub;
use super::lease::Aborted;
use super::line::{Line, Standing};
use super::refusal::Refusal;
use super::tenant::Tenant;
use crate::clock;
use crate::metrics::Metrics;
use crate::status;
use hotbunk_core::effect::{Effect, Note};
use hotbunk_core::event::{By, Request, Use};
use hotbunk_core::ids::{DeviceId, EngineId, OperationId};
use hotbunk_core::program::{Cause, Failure, Step};
use hotbunk_core::state::{Condition, Node};
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Operations under way that clients wait for, and the time that such took.
#[derive(Debug, Default)]
pub(super) struct Moves {
    under_way: BTreeMap<OperationId, Move>,
    /// Time spent switching, by device.
    spent: BTreeMap<DeviceId, Duration>,
}

#[derive(Debug)]
struct Move {
    engine: EngineId,
    /// Whose request waited longest as it began.
    cause: Option<Tenant>,
    switches: bool,
    /// Time in which it waited for running requests.
    drained: Duration,
}

impl Hub {
    /// Makes gates and queues what the state says. The switcher calls it after each of its steps, before any action
    /// that the step wants: a gate is closed before its drain begins.
    pub fn follow(self: &Arc<Self>, node: &Node, effects: &[Effect], now: Moment) {
        let notes =
            || effects.iter().filter_map(|e| if let Effect::Note(note) = e { Some(note) } else { None });
        // What went wrong is known before whoever waits is told of it.
        for note in notes() {
            if let Note::Incident { engine: Some(engine), detail, .. } = note {
                self.line(*engine).trouble(detail);
            }
        }
        self.apply(node);
        for note in notes() {
            self.noted(node, note, now);
        }
    }

    /// The part of [`Hub::follow`] that needs no effects: gates, and what those who wait are told.
    pub fn apply(self: &Arc<Self>, node: &Node) {
        for (line, engine) in self.lines().zip(&node.engines) {
            // What is being frozen is not yet: the engine may still be given back to it.
            let is_frozen = engine.frozen && engine.tier != Tier::Awake && !engine.dead;
            line.freeze(self, is_frozen, clock::now());
            if engine.admission {
                line.stand(self, Standing::May);
                line.open(self, engine.life, engine.generation);
                continue;
            }
            line.close(self, engine.condition_word());
            if (!engine.process || engine.dead) && line.gate.in_flight() > 0 {
                line.abort(Aborted::Died);
            }
            let standing = match &engine.condition {
                _ if node.closing => Standing::Closing,
                _ if engine.retired => Standing::Retired,
                Condition::Failed(reason) => Standing::Failed(reason.clone()),
                _ if node.is_paused() => Standing::Paused,
                Condition::Backoff(_) => Standing::Down,
                _ => Standing::May,
            };
            line.stand(self, standing);
        }
    }

    fn noted(self: &Arc<Self>, node: &Node, note: &Note, now: Moment) {
        match note {
            Note::Accepted { id, request, by, .. } => {
                let rises = matches!(
                    request,
                    Request::Switch { .. }
                        | Request::Wake(_)
                        | Request::Start { .. }
                        | Request::Restart { .. }
                );
                let Some(engine) = request.engine().filter(|_| rises) else { return };
                let cause = if *by == By::Gateway { self.line(engine).first_tenant() } else { None };
                let switches = matches!(request, Request::Switch { .. });
                let begun = Move { engine, cause, switches, drained: Duration::ZERO };
                self.moves(|moves| moves.under_way.insert(*id, begun));
            }
            Note::StepEnded { id, step: Step::Drain(_), began, .. } => self.moves(|moves| {
                if let Some(op) = moves.under_way.get_mut(id) {
                    op.drained += now.since(*began);
                }
            }),
            Note::Ended { id, failure, accepted, .. } => {
                let Some(op) = self.moves(|moves| moves.under_way.remove(id)) else { return };
                let took = now.since(*accepted).saturating_sub(op.drained);
                if op.switches {
                    self.moves(|moves| {
                        for device in &node.engine(op.engine).spec.devices {
                            *moves.spent.entry(*device).or_default() += took;
                        }
                    });
                    if let Some(tenant) = &op.cause {
                        tenant.switched(took);
                    }
                }
                if let Some(failure) = failure {
                    self.failed(op.engine, failure);
                }
            }
            _ => {}
        }
    }

    fn moves<T>(&self, with: impl FnOnce(&mut Moves) -> T) -> T {
        with(&mut self.moves.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whoever waited for a switch that failed is told so, rather than left to wait for the next attempt. One that was
    /// given up for another command, or for a neighbour's repair, is no failure: they go on waiting for their turn.
    fn failed(self: &Arc<Self>, engine: EngineId, failure: &Failure) {
        let line = self.line(engine);
        let goes_on = matches!(failure.cause, Cause::Cancelled | Cause::Drifted);
        if goes_on || line.gate.is_open() || line.held() == 0 {
            return;
        }
        let refusal =
            Refusal::SwitchFailed { reason: failure.detail.clone(), retry_after: self.retry_after(engine) };
        line.refuse_all(self, &refusal);
    }

    /// How the engines are used, as far as the state does not know it yet.
    pub fn uses(&self, node: &Node) -> Vec<Use> {
        let told =
            |line: &Line| Use { engine: line.id, in_flight: line.gate.in_flight(), at: line.used_at() };
        // One that was added a moment ago is not the node's yet.
        let known = node.engines.len();
        let is_new = |told: &Use| {
            let engine = node.engine(told.engine);
            told.in_flight != engine.in_flight || told.at > engine.used_at
        };
        self.lines().take(known).map(told).filter(is_new).collect()
    }

    /// Brings the gateway's series up to date.
    pub(super) fn measure(&self, metrics: &Metrics) {
        for line in self.lines() {
            metrics.gateway_load(&line.name, line.gate.in_flight(), line.held());
        }
        for tenant in self.face().tenants.shown() {
            metrics.tenant_switching(tenant.name(), tenant.switch_time());
        }
        let Some(node) = self.node() else { return };
        let gone = node.engines.iter().filter(|e| !status::is_shown(e)).map(|e| e.spec.name.clone());
        metrics.hide(gone.collect());
        let spent = self.moves(|moves| moves.spent.clone());
        for (at, device) in node.devices.iter().enumerate() {
            let id = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
            metrics.switching(&device.spec.name, spent.get(&id).copied().unwrap_or_default());
        }
    }
}
