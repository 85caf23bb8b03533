//! Talking to one engine: vLLM's HTTP contract, as a supervisor outside it must read it.
//!
//! ```text
//!  http       one request, one deadline → an answer, or Unknown, or Gone
//!    ├── call       the core's control calls (sleep, wake, release, reload, …) → CallOutcome
//!    ├── state      /is_sleeping, /health, /v1/models: what it says of itself
//!    ├── detect     which release, which routes, how many workers → Capabilities
//!    ├── metrics    /metrics, /load → who is running, does it make progress, what its own clock says
//!    ├── drain      waiting until nothing runs
//!    ├── simulated  the pace of a simulated engine
//!    └── probe      a token proves that it answers; canary: and that it is still the same model
//! ```
//!
//! Three rules hold everywhere.
//!
//! 1. **A deadline that passed is not a failure.** vLLM goes on with a call whose caller has left, so such a call ends
//!    as *unknown*, a value of its own that no caller can take for an error message.
//! 2. **Not there is not the same as no.** A refused, reset or closed connection is *gone*; a status is *refused*, with
//!    the engine's own words.
//! 3. **Nothing here decides.** Which call comes when is the core's; this module turns one question into HTTP and one
//!    answer into a value.
//!
//! A [`Client`] belongs to one incarnation of an engine: a new process gets a new client, so that no pooled connection
//! of the old one can answer for the new.

mod call;
pub mod canary;
mod detect;
mod drain;
mod http;
mod metrics;
mod probe;
mod simulated;
mod state;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;

pub use call::described;
pub use canary::{Canary, Depth, Mismatch};
pub use detect::{Detected, RoutesFrom, WorkersFrom};
pub use drain::{Drain, DrainPolicy};
pub use metrics::{InFlight, Operation, Operations, Progress, SleepState};
pub use probe::{ProbeEnd, ProbeKind, ProbeResult, RecordError};
pub use state::{Health, Identity};

use hotbunk_measure::Target;

/// Where an engine listens and what it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `http://127.0.0.1:PORT`.
    pub base: String,
    /// The id that requests name.
    pub model: String,
    /// vLLM's `--api-key`, where it has one. It is sent to `/v1/…` alone, the only routes that it protects.
    pub api_key: Option<String>,
    /// The engine was started with `--enable-server-load-tracking`, so that `/load` counts. (Without the flag `/load`
    /// answers 0 whatever runs.)
    pub load_tracking: bool,
}

/// Why a question to an engine has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The deadline passed: it may be busy with an operation, or hang.
    #[error("{route} did not answer in time")]
    Unknown {
        /// Method and path.
        route: String,
    },
    /// A status that is not the expected one.
    #[error("{route} answered {status}: {message}")]
    Refused {
        /// Method and path.
        route: String,
        /// HTTP status.
        status: u16,
        /// The engine's own words, shortened.
        message: String,
    },
    /// The connection was refused, reset or closed.
    #[error("{route}: nobody answers there: {message}")]
    Gone {
        /// Method and path.
        route: String,
        /// What the socket said.
        message: String,
    },
    /// A 200 whose body is not what vLLM sends.
    #[error("{route} answered something that is not vLLM's: {message}")]
    Foreign {
        /// Method and path.
        route: String,
        /// What was missing, and the body's beginning.
        message: String,
    },
    /// No HTTP client can be built.
    #[error("{0}")]
    Client(String),
}

/// One incarnation of an engine. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    target: Target,
}

impl Client {
    /// A client with connections of its own.
    ///
    /// # Errors
    /// [`Error::Client`] where no HTTP client can be built.
    pub fn new(endpoint: Endpoint) -> Result<Self, Error> {
        let http = hotbunk_measure::target::client().map_err(|e| Error::Client(e.to_string()))?;
        let target =
            Target::with_client(http.clone(), &endpoint.base, &endpoint.model, endpoint.api_key.clone());
        Ok(Client { http, endpoint, target })
    }

    /// Where it talks to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The same place for probes and load, on the same connections.
    pub fn target(&self) -> &Target {
        &self.target
    }
}
