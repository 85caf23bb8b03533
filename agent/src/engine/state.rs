//! What an engine says of itself: asleep or not, healthy or not, serving what.

use super::Client;
use super::http::Reply;
use hotbunk_core::call::SleepingAnswer;
use hotbunk_measure::error::{shorten, words};
use serde::Deserialize;
use std::time::Duration;

/// What `/health` said. `Ok` proves only that the HTTP server lives: it is 200 while asleep, while copying, while the
/// engine is wedged, and during a shutdown (CONTRACT fact 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// 200.
    Ok,
    /// 503: the engine core is dead, the server about to exit (≥ 0.11.2).
    Dead,
    /// Another status; 500 is how 0.9 and 0.10 say that the core is dead.
    Refused {
        /// HTTP status.
        status: u16,
        /// The engine's own words, shortened.
        message: String,
    },
    /// No answer before the deadline.
    Unknown,
    /// Nobody listens there.
    Gone {
        /// What the socket said.
        message: String,
    },
}

/// Who answers on the engine's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The expected model is among those listed.
    Ours {
        /// The longest sequence, in tokens, where it is told.
        max_model_len: Option<u32>,
    },
    /// Somebody else's server: nothing may be sent to it.
    Foreign {
        /// The ids that it lists, or none where the answer was no model list.
        models: Vec<String>,
    },
    /// It cannot be told yet.
    NotReady {
        /// Why not.
        message: String,
    },
}

#[derive(Deserialize)]
struct IsSleeping {
    is_sleeping: bool,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    max_model_len: Option<u32>,
}

impl Client {
    /// Asks `/is_sleeping`. Answered by the engine core, so it waits behind any running operation: give it the
    /// operation's deadline, and take `Unknown` for "still at it, or hung".
    pub async fn is_sleeping(&self, deadline: Duration) -> SleepingAnswer {
        match self.get("/is_sleeping", deadline).await {
            Reply::Answer { status: 200, body } => match serde_json::from_slice::<IsSleeping>(&body) {
                Ok(IsSleeping { is_sleeping }) => SleepingAnswer::Says { is_sleeping },
                Err(_) => SleepingAnswer::Refused { status: 200, message: words(&body) },
            },
            Reply::Answer { status, body } => SleepingAnswer::Refused { status, message: words(&body) },
            Reply::Unknown => SleepingAnswer::Unknown,
            Reply::Gone { message } => SleepingAnswer::Gone { message },
        }
    }

    /// Asks `/health`.
    pub async fn health(&self, deadline: Duration) -> Health {
        match self.get("/health", deadline).await {
            Reply::Answer { status: 200, .. } => Health::Ok,
            Reply::Answer { status: 503, .. } => Health::Dead,
            Reply::Answer { status, body } => Health::Refused { status, message: words(&body) },
            Reply::Unknown => Health::Unknown,
            Reply::Gone { message } => Health::Gone { message },
        }
    }

    /// Asks `/v1/models` whether `expected` is served here.
    ///
    /// A 401 or 403 means that another key is wanted than the configured one: a server, but not the one that was
    /// started with that key, so it is foreign. Other errors are taken for a server that is not ready.
    pub async fn identify(&self, expected: &str, deadline: Duration) -> Identity {
        match self.get("/v1/models", deadline).await {
            Reply::Answer { status: 200, body } => {
                let models = serde_json::from_slice::<Models>(&body).map(|m| m.data).unwrap_or_default();
                match models.iter().find(|m| m.id == expected) {
                    Some(model) => Identity::Ours { max_model_len: model.max_model_len },
                    None => {
                        Identity::Foreign { models: models.into_iter().map(|m| shorten(&m.id)).collect() }
                    }
                }
            }
            Reply::Answer { status: 401 | 403 | 404, .. } => Identity::Foreign { models: Vec::new() },
            Reply::Answer { status, body } => {
                Identity::NotReady { message: format!("/v1/models answered {status}: {}", words(&body)) }
            }
            Reply::Unknown => Identity::NotReady { message: "/v1/models did not answer in time".into() },
            Reply::Gone { message } => Identity::NotReady { message },
        }
    }
}
