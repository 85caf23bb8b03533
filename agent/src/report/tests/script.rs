//! The steps of a synthetic run: starts, sleep cycles, activations, handoffs.

use super::journal::{GAP, GIB, Journal, MS, S};
use crate::journal::record::{CycleStep, OperationKind, Outcome, Phase, Record};
use hotbunk_core::tier::Tier;

/// What a handoff is told to do, ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handoff {
    pub(super) drain: u64,
    pub(super) sleep: u64,
    pub(super) wake: u64,
    pub(super) first_token: u64,
    /// Outgoing engine's new tier.
    pub(super) leave: Tier,
    /// The wake answers 500 and the outgoing engine is woken again.
    pub(super) wake_fails: bool,
}

impl Journal {
    /// A planned step: what `body` does is its work.
    pub(super) fn step(&mut self, step: CycleStep, body: impl FnOnce(&mut Journal) -> Outcome) {
        let index = self.plan(step);
        self.record(Record::CycleStepBegan { index });
        self.in_step.clear();
        let outcome = body(self);
        let operations = std::mem::take(&mut self.in_step);
        self.record(Record::CycleStepEnded { index, operations, outcome });
    }

    /// Plans a step that is left to the caller to begin.
    pub(super) fn plan(&mut self, step: CycleStep) -> u32 {
        self.steps.push(step);
        self.next_step += 1;
        self.next_step - 1
    }

    pub(super) fn start(&mut self, name: &'static str, initial: bool, ready: u64, first_token: u64) {
        self.step(CycleStep::Start { engine: name.to_owned(), initial }, |j| {
            let kind = if initial { OperationKind::Start } else { OperationKind::Restart };
            j.operation(kind, name, None, None, |j| {
                j.advance(GAP);
                if !initial {
                    j.phase(Phase::Stop, name, 300 * MS, |e| (e.device, e.rss, e.pinned) = (0, 0, false));
                }
                let spawned = j.now;
                j.phase(Phase::Spawn, name, 5 * MS, |e| e.rss = GIB);
                j.phase(Phase::Ready, name, ready, |e| {
                    (e.device, e.rss) = (e.weights + e.kv + e.residual, 2 * GIB);
                });
                let path = if initial { "restart_initial" } else { "restart_warm" };
                j.choose(&format!("models.{name}.restart_ready.{}", &path[8..]), j.now - GAP - spawned);
                for _ in 0..3 {
                    j.probe(name, "warm_up", 10 * MS, true);
                }
                let token = j.probe(name, "probe", first_token, true);
                j.choose(&format!("models.{name}.{path}"), token - spawned);
                (Outcome::Ok, Some(token))
            });
            Outcome::Ok
        });
    }

    pub(super) fn cycle(&mut self, name: &'static str, tier: Tier, sleep: u64, wake: u64, first_token: u64) {
        let step = CycleStep::SleepCycle { engine: name.to_owned(), tier };
        let key = match tier {
            Tier::Level1 => "1",
            Tier::Level2 => "2",
            other => other.as_str(),
        };
        let at = format!("models.{name}.sleep.{key}");
        self.step(step, |j| {
            let slept = j.sleep_operation(name, tier, sleep);
            j.choose(&format!("{at}.sleep_s"), slept);
            j.advance(3 * S);
            let (api, token) = j.wake_operation(name, tier, wake, first_token);
            j.choose(&format!("{at}.wake_api_s"), api);
            j.choose(&format!("{at}.to_first_token_s"), token);
            Outcome::Ok
        });
    }

    /// Puts an engine to sleep in an operation of its own; how long by the definition.
    pub(super) fn sleep_operation(&mut self, name: &'static str, tier: Tier, sleep: u64) -> u64 {
        let mut slept = 0;
        self.operation(OperationKind::Sleep, name, None, Some(tier), |j| {
            j.advance(GAP);
            j.phase(Phase::Drain, name, 20 * MS, |_| {});
            slept = j.asleep(name, tier, sleep);
            (Outcome::Ok, None)
        });
        slept
    }

    /// Wakes an engine in an operation of its own; how long the calls took, and until the first token.
    pub(super) fn wake_operation(
        &mut self,
        name: &'static str,
        tier: Tier,
        wake: u64,
        token: u64,
    ) -> (u64, u64) {
        let mut figures = (0, 0);
        self.operation(OperationKind::Activation, name, None, None, |j| {
            j.advance(GAP);
            let began = j.now;
            let api = j.awake(name, tier, wake);
            let token = j.probe(name, "probe", token, true);
            figures = (api, token - began);
            (Outcome::Ok, Some(token))
        });
        figures
    }

    pub(super) fn sleep_step(&mut self, name: &'static str, tier: Tier, sleep: u64) {
        self.step(CycleStep::Sleep { engine: name.to_owned(), tier }, |j| {
            j.sleep_operation(name, tier, sleep);
            Outcome::Ok
        });
    }

    pub(super) fn activate(&mut self, name: &'static str, auto: bool, wake: u64, token: u64) {
        self.step(CycleStep::Activate { engine: name.to_owned(), auto }, |j| {
            j.wake_operation(name, Tier::Level1, wake, token);
            Outcome::Ok
        });
    }

    pub(super) fn handoff(&mut self, from: &'static str, to: &'static str, auto: bool, times: Handoff) {
        let step = CycleStep::Handoff { from: from.to_owned(), to: to.to_owned(), auto };
        self.step(step, |j| j.handoff_operation(from, to, auto, times));
    }

    /// Sleep first: drain, sleep, wake, probe.
    pub(super) fn handoff_operation(
        &mut self,
        from: &'static str,
        to: &'static str,
        auto: bool,
        times: Handoff,
    ) -> Outcome {
        let at = format!("{}directions.{from}→{to}", if auto { "switch_auto." } else { "switch." });
        let mut ended = Outcome::Ok;
        self.operation(OperationKind::Handoff, to, Some(from), Some(times.leave), |j| {
            let accepted = j.now;
            j.advance(GAP);
            if times.drain > 0 {
                j.phase(Phase::Drain, from, times.drain, |_| {});
            }
            let slept = j.asleep(from, times.leave, times.sleep);
            if times.wake_fails {
                ended = Outcome::Failed { code: "wake_failed".to_owned(), message: "500".to_owned() };
                let outcome = ended.clone();
                j.phase_ended(Phase::Wake, to, times.wake, outcome, |_| {});
                j.awake(from, times.leave, 500 * MS);
                j.probe(from, "probe", 20 * MS, true);
                return (ended.clone(), None);
            }
            let waked = j.awake(to, times.leave, times.wake);
            let token = j.probe(to, "probe", times.first_token, true);
            let own: u64 = j.work.iter().map(|w| w.ended.0 - w.began.0).sum();
            let path = token - accepted - times.drain;
            j.choose(&format!("{at}.to_first_token_s"), path);
            j.choose(&format!("{at}.sleep_s"), slept);
            j.choose(&format!("{at}.wake_s"), waked);
            j.choose(&format!("{at}.engine_s"), own);
            j.choose(&format!("{at}.overhead_s"), path - own);
            (Outcome::Ok, Some(token))
        });
        ended
    }
}
