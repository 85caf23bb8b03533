//! What a new configuration makes of each engine.
//!
//! Each is held against what its process *runs with* (its fingerprint in the slot), not against what was configured last: a
//! change that is taken back before it came into force restarts nobody. The same judgement serves the dry run, which
//! acts on nothing, and the owner of the state, which acts on it in the same breath ([`Plan::apply`]).

use crate::config::{Config, OnFailure, changes};
use crate::effects::{EngineSlot, Hands, Settings};
use crate::journal::FootprintRow;
use crate::status;
use crate::switcher::spec;
use hotbunk_api::reload::{EngineChange, EngineReload};
use hotbunk_core::ids::{DeviceId, EngineId};
use hotbunk_core::revise::{Change, DeviceSettings, Revised, Revision};
use hotbunk_core::spec::EngineSpec;
use hotbunk_core::state::{Engine, Footprint, Node};
use std::sync::Arc;
use std::time::Duration;

/// A configuration that is to be applied, with what is known of it.
#[derive(Debug)]
pub struct Plan {
    config: Arc<Config>,
    measured: Vec<FootprintRow>,
    /// The machine's memory.
    host_total: Option<u64>,
}

/// What is made of one engine.
#[derive(Debug)]
struct Judged {
    change: EngineChange,
    keys: Vec<String>,
    /// Fingerprint of what it runs with.
    from: String,
    /// Fingerprint of what is configured.
    to: Option<String>,
}

impl Plan {
    /// A configuration in the order of the one before, and what was ever measured.
    pub fn new(config: Arc<Config>, measured: Vec<FootprintRow>, host_total: Option<u64>) -> Self {
        Plan { config, measured, host_total }
    }

    /// What it would do.
    pub fn look(&self, node: &Node, hands: &Hands) -> Vec<EngineReload> {
        let mut all = Vec::new();
        for (at, slot) in hands.engines.all().iter().enumerate() {
            if let Some(engine) = node.engines.get(at).filter(|e| self.concerns(at, e)) {
                all.push(told(slot, self.judge(at, engine, slot)));
            }
        }
        for (at, engine) in self.config.configured().skip_while(|(at, _)| *at < node.engines.len()) {
            all.push(EngineReload {
                engine: engine.name.clone(),
                change: EngineChange::Added,
                keys: Vec::new(),
                from: None,
                to: self.config.fingerprint(at),
            });
        }
        all
    }

    /// Whether anybody wants to know of it.
    fn concerns(&self, at: usize, engine: &Engine) -> bool {
        status::is_shown(engine) || self.config.engines.get(at).is_some_and(|e| !e.retired)
    }

    fn judge(&self, at: usize, engine: &Engine, slot: &EngineSlot) -> Judged {
        let from = slot.running_fingerprint();
        let Some(wanted) = self.config.engines.get(at).filter(|e| !e.retired) else {
            return Judged { change: EngineChange::Removed, keys: Vec::new(), from, to: None };
        };
        let to = self.config.fingerprint(at).unwrap_or_default();
        let keys = changes::of_engine(&slot.config, wanted);
        let same = to == from && to == slot.fingerprint && *wanted == slot.config;
        let change = if engine.retired && !engine.process {
            EngineChange::Added
        } else if same {
            EngineChange::Unchanged
        } else if to != from && engine.process {
            EngineChange::Restart
        } else {
            EngineChange::Settings
        };
        Judged { change, keys, from, to: Some(to) }
    }

    /// Prepares slots and lines for it, and says what the core has to be told. To be called by the owner of the state, whose
    /// next step must be this revision's; then comes [`Plan::configure`].
    pub fn apply(&self, node: &Node, hands: &Hands) -> (Revision, Vec<EngineReload>) {
        let report = self.look(node, hands);
        let memory = |name: &str| {
            let at = self.config.devices.iter().position(|d| d.name == name)?;
            let id = DeviceId(u16::try_from(at).ok()?);
            hands.sampler.info(id).map(|info| info.usable_bytes())
        };
        let specs = spec::engines(&self.config, memory);
        let settings = |at: usize| Settings {
            config: self.config.engines[at].clone(),
            fingerprint: self.config.fingerprint(at).unwrap_or_default(),
        };
        let mut engines = Vec::new();
        let known = node.engines.len();
        for (at, slot) in hands.engines.all().iter().enumerate().take(known) {
            let Some(spec) = specs.get(at) else { continue };
            let (change, expected) = if self.config.engines[at].retired {
                (Change::Retired, None)
            } else {
                let next = settings(at);
                let process = next.fingerprint != slot.running_fingerprint();
                if !process && next.fingerprint == slot.fingerprint && next.config == slot.config {
                    (Change::Same, None)
                } else {
                    let revised = self.revised(&next, spec, process);
                    (Change::Settings(Box::new(revised)), Some(next))
                }
            };
            slot.expect(expected);
            engines.push(change);
        }
        let mut added = Vec::new();
        for (at, spec) in specs.iter().enumerate().skip(known) {
            let new = settings(at);
            added.push(self.revised(&new, spec, true));
            hands.recorder.metrics().engine(&new.config.name);
            hands.hub.grow(&new.config);
            hands.engines.push(EngineSlot::new(new.config, new.fingerprint));
        }
        let devices = spec::devices(&self.config, memory).into_iter().map(|d| DeviceSettings {
            reserve: d.reserve,
            slack: d.slack,
            max_awake: d.max_awake,
        });
        let revision = Revision {
            engines,
            added,
            devices: devices.collect(),
            policy: spec::policy(&self.config, self.host_total),
        };
        (revision, report)
    }

    fn revised(&self, settings: &Settings, spec: &EngineSpec, process: bool) -> Revised {
        let footprints = footprints(&self.measured, &settings.config.name, &settings.fingerprint);
        Revised { spec: spec.clone(), process, footprints }
    }

    /// Whether nothing is switched while the journal cannot be written, and how often the switcher looks around.
    pub fn of_the_switcher(&self) -> (bool, Duration) {
        let needs_journal = self.config.journal.on_failure == OnFailure::RefuseSwitching;
        (needs_journal, self.config.node.reconcile_interval)
    }

    /// Shows clients what there is now, once the node knows it, and samples as often as is configured.
    pub fn configure(&self, hands: &Hands) {
        let sampling = self.config.node.sampling;
        hands.sampler.pace(sampling.device, sampling.handoff);
        hands.host.pace(sampling.host);
        let slots = hands.engines.all();
        let in_force = |id: EngineId| {
            slots.get(usize::from(id.0)).filter(|slot| slot.waits_for_its_next_process()).cloned()
        };
        hands.hub.configure(&self.config, in_force);
    }
}

fn told(slot: &EngineSlot, judged: Judged) -> EngineReload {
    let Judged { change, keys, from, to } = judged;
    EngineReload { engine: slot.config.name.clone(), change, keys, from: Some(from), to }
}

/// What was measured of an engine that was started with these settings, by tier.
pub fn footprints(rows: &[FootprintRow], engine: &str, fingerprint: &str) -> [Option<Footprint>; 5] {
    let mut all = [None; 5];
    for row in rows.iter().filter(|r| r.engine == engine && r.fingerprint.as_deref() == Some(fingerprint)) {
        all[row.tier as usize] = Some(Footprint { device: row.device_bytes, host: row.host_bytes });
    }
    all
}
