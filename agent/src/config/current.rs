//! The configuration that the agent goes by now.

use super::Config;
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The newest configuration that was accepted. Clones are the same one.
///
/// It is what the file says; of an engine, parts of it may wait for its next start ([`crate::effects::EngineSlot`] holds
/// what its process was started with).
#[derive(Debug, Clone)]
pub struct Current(Arc<ArcSwap<Config>>);

impl Current {
    /// The first one.
    pub fn new(config: Config) -> Self {
        Current(Arc::new(ArcSwap::from_pointee(config)))
    }

    /// As it is now. Whoever does several things by one configuration keeps what this gives.
    pub fn get(&self) -> Arc<Config> {
        self.0.load_full()
    }

    /// Another one, [arranged](Config::arranged) onto the one before.
    pub fn set(&self, config: Arc<Config>) {
        self.0.store(config);
    }
}
