//! The gateway at one instant: who runs, who waits, whose turn is next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Part of `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GatewayStatus {
    /// Where it listens; `null` where it is switched off.
    pub listen: Option<String>,
    /// Bytes of bodies that wait.
    pub held_bytes: u64,
    /// Most bytes of bodies that may wait.
    pub held_bytes_limit: u64,
    /// What it has for each engine, in the configuration's order.
    pub lines: Vec<LineStatus>,
    /// Engines whose requests wait for a switch, the one whose turn comes first in front.
    pub turns: Vec<Turn>,
    /// Tenants, `default` (whoever is not known) first.
    pub tenants: Vec<TenantStatus>,
}

/// One engine, as clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineStatus {
    /// Engine's name.
    pub engine: String,
    /// Whether requests are let through to it.
    pub open: bool,
    /// Requests that are with it, frozen ones included.
    pub in_flight: u32,
    /// Most requests that may be with it at once.
    pub max_in_flight: Option<u32>,
    /// Requests that wait for it.
    pub held: u32,
    /// How long the oldest of them has waited, seconds; `null` where none waits.
    pub oldest_s: Option<f64>,
    /// When it should serve.
    pub eta: Eta,
    /// When an inference of it last ended well, epoch seconds; `null` before the first.
    pub used_at: Option<f64>,
}

/// When an engine should serve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "eta", rename_all = "snake_case")]
pub enum Eta {
    /// It does.
    Serving,
    /// If nothing else is asked for meanwhile.
    In {
        /// From now, seconds.
        s: f64,
    },
    /// Not before something changes that nobody waits for.
    Never {
        /// What.
        reason: String,
    },
}

/// An engine whose requests wait for a switch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Turn {
    /// Engine's name.
    pub engine: String,
    /// When its turn comes if nothing changes, from now, seconds; 0 where it has come.
    pub turn_s: f64,
    /// When its switch would have to begin so that its oldest request is served within its `max_wait`, from now,
    /// seconds; negative where it is late.
    pub latest_s: f64,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Its requests that are with an engine.
    pub in_flight: u32,
    /// Its requests that wait.
    pub held: u32,
    /// Time of switches that its requests caused since the agent began, seconds.
    pub switch_s: f64,
}

/// Maintenance: part of `GET /v1/status` while the node is paused.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Maintenance {
    /// How long it has lasted, seconds.
    pub for_s: f64,
    /// How far it has come.
    pub stage: MaintenanceStage,
    /// Engines that served before, and will serve again.
    pub served: Vec<String>,
}

/// How far maintenance has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaintenanceStage {
    /// Engines are being put out of the way.
    Begins,
    /// They are.
    Lasts,
    /// What served before is coming back.
    Ends,
}
