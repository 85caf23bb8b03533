//! Where requests go: one endpoint, one model, one pool of connections.

use crate::Error;
use std::time::Duration;

/// How long an idle connection is kept. vLLM's server closes its own after 5 s, and a request written into a connection
/// that is just being closed would look as if the server had gone. The margin is wide because a busy machine may run a
/// thread seconds late; a new loopback connection costs a tenth of a millisecond.
pub const IDLE: Duration = Duration::from_secs(2);

/// How long a connection may take to come up. A loopback connection comes up at once or is refused; only a full
/// backlog (a server that accepts nothing) takes longer.
pub const CONNECT: Duration = Duration::from_secs(5);

/// Which of the two streaming routes is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Api {
    /// `POST /v1/completions`: needs no chat template, so every generating model has it.
    #[default]
    Completions,
    /// `POST /v1/chat/completions`.
    Chat,
}

impl Api {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }
}

/// An endpoint that serves one model. Clones share the connections.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) client: reqwest::Client,
    pub(crate) base: String,
    pub(crate) model: String,
    pub(crate) api_key: Option<String>,
}

/// A client as measurements need it: HTTP/1, `TCP_NODELAY`, no proxy from the environment, connections dropped before
/// the server drops them, no redirects, no timeout of its own (it would cut long streams).
///
/// # Errors
/// [`Error::Client`] where the library cannot build one.
pub fn client() -> Result<reqwest::Client, Error> {
    reqwest::Client::builder()
        .http1_only()
        .tcp_nodelay(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_idle_timeout(IDLE)
        .connect_timeout(CONNECT)
        .build()
        .map_err(|e| Error::Client { reason: crate::error::cause(&e) })
}

impl Target {
    /// A target with connections of its own. `base` is the address without a path, `http://127.0.0.1:8101`.
    ///
    /// # Errors
    /// [`Error::Client`] where no HTTP client can be built.
    pub fn new(base: &str, model: &str, api_key: Option<String>) -> Result<Self, Error> {
        Ok(Target::with_client(client()?, base, model, api_key))
    }

    /// A target on an existing pool of connections.
    pub fn with_client(client: reqwest::Client, base: &str, model: &str, api_key: Option<String>) -> Self {
        Target { client, base: base.trim_end_matches('/').to_owned(), model: model.to_owned(), api_key }
    }

    /// The model that requests name.
    pub fn model(&self) -> &str {
        &self.model
    }
}
