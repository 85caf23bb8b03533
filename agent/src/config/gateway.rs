//! The gateway's part of the configuration, checked.

use super::checked::MIB;
use std::net::SocketAddr;
use std::time::Duration;

/// Name of whoever is not known.
pub const DEFAULT_TENANT: &str = "default";

/// The endpoint for clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Gateway {
    /// Where it listens; `None` where it is switched off. Default `127.0.0.1:8000`. Port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    /// Largest body, bytes. Default 128 MiB.
    pub max_body: u64,
    /// Largest head of a request (request line and headers), bytes. Default 64 KiB.
    pub max_header: u32,
    /// How long a client may take to send the head of a request. Default 10 s.
    pub header_timeout: Duration,
    /// Most requests that may wait for one engine. Default 1024.
    pub hold_requests: u32,
    /// Most bytes of bodies that may wait, all engines together. Default 1 GiB.
    pub hold_bytes: u64,
    /// How long a plain request may wait. Default 60 s.
    pub hold_deadline: Duration,
    /// How long a streamed request may wait. Default 10 min.
    pub hold_stream_deadline: Duration,
    /// How long a stream may be silent before the client gets an SSE comment. Default 5 s.
    pub keep_alive: Duration,
    /// How long answers may still take when the agent goes and leaves the engines to the next one. Default 30 s.
    pub upgrade_drain: Duration,
    /// Threads, each with a listener of its own; `None`: as many as cores, 4 at the most.
    pub threads: Option<u16>,
    /// Header by which a trusted proxy in front says whose a request is.
    pub tenant_header: Option<String>,
    /// Whether a request that names no tenant is refused. Default: whether any tenant has a key.
    pub require_key: bool,
    /// Tenants, in the file's order.
    pub tenants: Vec<Tenant>,
}

impl Default for Gateway {
    fn default() -> Self {
        Gateway {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 8000))),
            max_body: 128 * MIB,
            max_header: 64 << 10,
            header_timeout: Duration::from_secs(10),
            hold_requests: 1024,
            hold_bytes: 1024 * MIB,
            hold_deadline: Duration::from_secs(60),
            hold_stream_deadline: Duration::from_secs(600),
            keep_alive: Duration::from_secs(5),
            upgrade_drain: Duration::from_secs(30),
            threads: None,
            tenant_header: None,
            require_key: false,
            tenants: Vec::new(),
        }
    }
}

/// Somebody who sends requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Unique.
    pub name: String,
    /// SHA-256 of each of its API keys.
    pub keys: Vec<[u8; 32]>,
    /// Value of the trusted header that means it. Default its name.
    pub header: String,
    /// Its share of a busy model against others'. Default 1, never 0.
    pub weight: u32,
    /// What it may do on each model; by index of the engine.
    pub limits: Vec<Limits>,
}

/// What a tenant may do on one model. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Requests running at once.
    pub max_in_flight: Option<u32>,
    /// Requests waiting at once.
    pub max_queued: Option<u32>,
    /// Requests per second on the long run.
    pub requests_per_second: Option<f64>,
    /// Requests at once, after a rest. Default: one second's, at least 1.
    pub burst: Option<u32>,
    /// Tokens per minute on the long run, those of the prompt and those of the answer.
    pub tokens_per_minute: Option<u32>,
}
