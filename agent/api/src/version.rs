//! Who answers on the socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Number of the API that these types describe.
pub const API_VERSION: u32 = 1;

/// Answer of `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionInfo {
    /// The agent's version.
    pub agent: String,
    /// [`API_VERSION`] of the agent.
    pub api: u32,
    /// The agent's pid.
    pub pid: u32,
}
