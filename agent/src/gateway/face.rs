//! What clients find at the gateway: models, who they are themselves, and what they may do. It is replaced as a whole when
//! the configuration changes; whoever reads it holds one or the other, never half of each.

use super::hub::Model;
use super::tenant::Tenants;
use crate::config;
use hotbunk_core::ids::EngineId;
use std::collections::HashMap;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(super) struct Face {
    /// Every id that a request may name.
    pub names: HashMap<String, EngineId>,
    /// The same, in the order of the engines.
    pub models: Vec<Model>,
    pub tenants: Arc<Tenants>,
    pub settings: Arc<config::Gateway>,
    serves: Vec<Option<Serves>>,
}

/// What an engine serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Serves {
    engine: String,
    model: String,
    aliases: Vec<String>,
}

impl From<&config::Engine> for Serves {
    fn from(engine: &config::Engine) -> Self {
        Serves { engine: engine.name.clone(), model: engine.model.clone(), aliases: engine.aliases.clone() }
    }
}

impl Face {
    /// `serves` goes by the engines' ids; `None` is not configured any more.
    pub(super) fn new(
        serves: Vec<Option<Serves>>,
        tenants: Arc<Tenants>,
        settings: Arc<config::Gateway>,
    ) -> Self {
        let mut names = HashMap::new();
        let mut models = Vec::new();
        for (at, serves) in serves.iter().enumerate() {
            let Some(Serves { engine, model, aliases }) = serves else { continue };
            let id = EngineId(u16::try_from(at).unwrap_or(u16::MAX));
            for name in std::iter::once(model).chain(aliases) {
                // Of several engines that serve one model the first is meant.
                if names.contains_key(name) {
                    continue;
                }
                names.insert(name.clone(), id);
                models.push(Model {
                    id: name.clone(),
                    engine: id,
                    engine_name: engine.clone(),
                    alias_of: (name != model).then(|| model.clone()),
                    tier: "stopped",
                });
            }
        }
        Face { names, models, tenants, settings, serves }
    }

    /// The same with what one engine serves now. One that is not configured any more stays so.
    pub(super) fn serving(&self, id: EngineId, engine: &config::Engine) -> Self {
        let mut serves = self.serves.clone();
        if let Some(Some(serves)) = serves.get_mut(usize::from(id.0)) {
            *serves = engine.into();
        }
        Face::new(serves, Arc::clone(&self.tenants), Arc::clone(&self.settings))
    }
}
