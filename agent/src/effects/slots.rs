//! All engines at the edge, by their ids. An id is never another engine's, so the list only grows.

use super::engine::EngineSlot;
use arc_swap::ArcSwap;
use hotbunk_core::ids::EngineId;
use std::sync::Arc;

/// The engines. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Slots(Arc<ArcSwap<Vec<Arc<EngineSlot>>>>);

impl Slots {
    /// These, in the order of their ids.
    pub fn new(slots: Vec<Arc<EngineSlot>>) -> Self {
        Slots(Arc::new(ArcSwap::from_pointee(slots)))
    }

    /// All of them as they are now, in the order of their ids.
    pub fn all(&self) -> Arc<Vec<Arc<EngineSlot>>> {
        self.0.load_full()
    }

    /// One of them as it is now.
    pub fn get(&self, id: EngineId) -> Arc<EngineSlot> {
        Arc::clone(&self.0.load()[usize::from(id.0)])
    }

    /// A further one; it has the next id.
    pub fn push(&self, slot: EngineSlot) {
        let slot = Arc::new(slot);
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            all.push(Arc::clone(&slot));
            all
        });
    }

    /// Puts the settings into force that an engine was waiting for. True where there were any.
    pub fn put_in_force(&self, id: EngineId) -> bool {
        let Some(revised) = self.get(id).revised() else { return false };
        let revised = Arc::new(revised);
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            all[usize::from(id.0)] = Arc::clone(&revised);
            all
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Facts};
    use crate::effects::{Settings, Stopped};

    fn settings(port: u16) -> Settings {
        let text = format!(
            r#"
            [[engine]]
            name = "A"
            device = "none"
            model = "a"
            port = {port}
            command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "{port}", "--enable-sleep-mode"]
            env = {{ VLLM_SERVER_DEV_MODE = "1" }}
            "#
        );
        let parsed = config::parse(&text, std::path::Path::new("hotbunk.toml"), &Facts::default());
        let (config, _) = parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
        let fingerprint = config.fingerprint(0).unwrap();
        Settings { config: config.engines[0].clone(), fingerprint }
    }

    #[test]
    fn newer_settings_come_into_force_and_what_lives_stays() {
        let Settings { config, fingerprint } = settings(8101);
        let slots = Slots::default();
        slots.push(EngineSlot::new(config, fingerprint.clone()));
        let before = slots.get(EngineId(0));
        assert!(!slots.put_in_force(EngineId(0)), "nothing waits");
        before.expect(Some(settings(8102)));
        before.expect(None);
        assert!(!slots.put_in_force(EngineId(0)), "taken back in time");
        before.expect(Some(settings(8102)));
        assert_eq!((slots.get(EngineId(0)).config.port, before.running_fingerprint()), (8101, fingerprint));
        assert!(slots.put_in_force(EngineId(0)));
        let after = slots.get(EngineId(0));
        assert_eq!((after.config.port, before.config.port), (8102, 8101));
        assert_eq!(after.running_fingerprint(), settings(8102).fingerprint);
        // Whoever still holds the former one speaks of the same engine.
        before.see(|seen| seen.stopped = Some(Stopped::Idle));
        assert_eq!(after.seen().stopped, Some(Stopped::Idle));
    }
}
