//! A new configuration, and when each part of it comes into force ([`crate::revise`]).

use super::Cx;
use crate::creep::IDLE_SURVEYS;
use crate::effect::Note;
use crate::event::{By, Request};
use crate::ids::{DeviceId, EngineId};
use crate::queue::Refusal;
use crate::revise::{self, Change, Revision};
use crate::state::{Condition, Engine, Queued};
use crate::tier::Tier;

impl Cx<'_> {
    /// Takes a new configuration; what is at rest has it before anything else is begun.
    pub(super) fn revised(&mut self, revision: Revision) {
        let Revision { engines, added, devices, policy } = revision;
        self.node.policy = policy;
        for (device, settings) in self.node.devices.iter_mut().zip(devices) {
            device.revised = Some(settings);
        }
        let ids: Vec<EngineId> = self.node.ids().collect();
        for (id, change) in ids.into_iter().zip(engines) {
            let retired = change == Change::Retired;
            let e = self.node.engine_mut(id);
            let comes_back = e.retired && !retired && !e.process;
            e.retired = retired;
            e.revised = match change {
                Change::Settings(mut revised) => {
                    // A process is where it was started.
                    revised.process |= revised.spec.devices != e.spec.devices;
                    Some(revised)
                }
                Change::Same | Change::Retired => None,
            };
            if retired {
                e.wanted_awake = false;
                self.no_more_starts(id);
            } else if comes_back {
                self.start_of_its_own(id);
            }
        }
        for revised in added {
            let id = EngineId(u16::try_from(self.node.engines.len()).unwrap_or(u16::MAX));
            let mut engine = Engine::new(revised.spec);
            engine.footprints = revised.footprints;
            engine.watch.progress_at = self.now;
            self.node.engines.push(engine);
            self.node.operations.iter_mut().for_each(|op| op.tiers_before.push(Tier::Stopped));
            self.start_of_its_own(id);
        }
    }

    /// An engine that is new here is started as at the agent's own start, if it is to be.
    fn start_of_its_own(&mut self, engine: EngineId) {
        let e = self.node.engine(engine);
        let autostart = e.revised.as_ref().map_or(e.spec.autostart, |revised| revised.spec.autostart);
        if autostart && !self.node.closing && !self.node.by_hand {
            self.node.engine_mut(engine).to_boot = false;
            let id = self.node.number();
            let request = Request::Start { engine, rehearse: None, awake: false };
            self.node.queue.push_back(Queued { id, request, by: By::Agent, at: self.now });
        }
    }

    /// What the agent itself wanted to start is not wanted any more.
    fn no_more_starts(&mut self, engine: EngineId) {
        let starts = |q: &Queued| {
            q.by == By::Agent && matches!(q.request, Request::Start { engine: e, .. } if e == engine)
        };
        while let Some(at) = self.node.queue.iter().position(starts) {
            if let Some(queued) = self.node.queue.remove(at) {
                let refusal = self.not_configured(engine);
                self.note(Note::Refused { id: queued.id, refusal });
            }
        }
    }

    /// Why nothing but its end is to be had of a retired engine.
    pub(super) fn not_configured(&self, engine: EngineId) -> Refusal {
        Refusal::WrongState {
            engine: self.node.engine(engine).spec.name.clone(),
            is: "not configured any more".into(),
            hint: "it is stopped at its next idle moment; `stop` does it now",
        }
    }

    /// What is at rest gets its newer settings.
    pub(super) fn revise_at_rest(&mut self) {
        for id in self.node.ids() {
            let e = self.node.engine(id);
            if e.revised.is_some() && self.node.is_free(&revise::devices(e)) {
                self.revise(id);
            }
            let e = self.node.engine(id);
            let waits =
                matches!(e.condition, Condition::Backoff(_) | Condition::NoRoom | Condition::PortTaken);
            if e.retired && !e.process && waits {
                self.transit(id, "not configured any more", |e| e.condition = Condition::Settled);
            }
        }
        for at in 0..self.node.devices.len() {
            let id = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
            if !self.node.is_free(&[id]) {
                continue;
            }
            let device = &mut self.node.devices[at];
            if let Some(settings) = device.revised.take() {
                device.spec.reserve = settings.reserve;
                device.spec.slack = settings.slack;
                device.spec.max_awake = settings.max_awake;
            }
        }
    }

    /// An engine's newer settings come into force, unless a process of the old ones lives.
    pub(super) fn revise(&mut self, id: EngineId) {
        let e = self.node.engine(id);
        let Some(process) = e.revised.as_ref().map(|revised| revised.process) else { return };
        if process && e.process {
            return;
        }
        let now = self.now;
        self.transit(id, "its settings have changed", |e| {
            revise::put_in_force(e);
            if !process {
                return;
            }
            // What failed with the old ones is tried with the new ones.
            e.condition = match &e.condition {
                Condition::Failed(_) if e.wanted_awake || e.spec.autostart => Condition::Backoff(now),
                Condition::Failed(_) => Condition::Settled,
                Condition::Backoff(_) => Condition::Backoff(now),
                condition => condition.clone(),
            };
        });
        self.note(Note::Revised { engine: id, process });
    }

    /// The retired engine that should be stopped now: nobody is being served by it.
    pub(super) fn retire_now(&self) -> Option<EngineId> {
        let spoken_for = self.node.spoken_for();
        self.node.ids().find(|id| {
            let e = self.node.engine(*id);
            e.is_done_with()
                && e.process
                && !e.dead
                && e.condition == Condition::Settled
                && self.node.is_free(&e.spec.devices)
                && !e.spec.devices.iter().any(|d| spoken_for.contains(d))
                && (e.tier != Tier::Awake && !e.is_busy() || idle_for_long(e))
        })
    }
}

fn idle_for_long(e: &Engine) -> bool {
    !e.is_busy() && e.watch.idle >= IDLE_SURVEYS
}
