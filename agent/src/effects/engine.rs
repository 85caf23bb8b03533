//! One engine at the edge: its process, its client, its canary; and how it is started, made ready and stopped.

use super::flood;
use crate::config;
use crate::engine::{Canary, Client, Endpoint, Health, Identity};
use crate::process::{EngineProcess, Launch, LogPolicy, Ownership, Shims, port_belongs_to};
use hotbunk_core::capability::Capabilities;
use rustix::process::Signal;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// One question while an engine gets ready; those that hang are asked again.
const QUESTION: Duration = Duration::from_secs(5);

/// An engine, as the edge holds it.
#[derive(Debug)]
pub struct EngineSlot {
    /// From the configuration.
    pub config: config::Engine,
    /// Hash of what a running engine would have to be restarted for.
    pub fingerprint: String,
    live: Mutex<Live>,
}

/// What changes with each incarnation.
#[derive(Debug, Default)]
struct Live {
    process: Option<EngineProcess>,
    client: Option<Client>,
    canary: Option<Canary>,
    action: Option<AbortHandle>,
    last_log: Option<PathBuf>,
    flood_told: bool,
    facts: Facts,
}

/// What an engine said of itself when it became ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// `/version`.
    pub version: Option<String>,
    /// `max_model_len`.
    pub context_tokens: Option<u32>,
}

impl EngineSlot {
    /// An engine without a process.
    pub fn new(config: config::Engine, fingerprint: String) -> Self {
        EngineSlot { config, fingerprint, live: Mutex::default() }
    }

    fn live<T>(&self, with: impl FnOnce(&mut Live) -> T) -> T {
        with(&mut self.live.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its process, where it has one.
    pub fn process(&self) -> Option<EngineProcess> {
        self.live(|l| l.process.clone())
    }

    /// Its client, where it has a process.
    pub fn client(&self) -> Option<Client> {
        self.live(|l| l.client.clone())
    }

    /// Its canary, once recorded.
    pub fn canary(&self) -> Option<Canary> {
        self.live(|l| l.canary.clone())
    }

    /// Keeps a recorded canary for this incarnation.
    pub fn set_canary(&self, canary: Canary) {
        self.live(|l| l.canary = Some(canary));
    }

    /// What it said of itself.
    pub fn facts(&self) -> Facts {
        self.live(|l| l.facts.clone())
    }

    /// The log of this incarnation, or of the last.
    pub fn log_path(&self) -> Option<PathBuf> {
        self.live(|l| l.last_log.clone())
    }

    /// Bytes that a flood of output has pushed out of the log of this incarnation; told once.
    pub fn flooded(&self) -> Option<u64> {
        let path = self.live(|l| if l.flood_told { None } else { l.last_log.clone() })?;
        let log = &self.config.log;
        let lost = flood::lost_bytes(&path, log.max_bytes, u64::from(log.keep))?;
        self.live(|l| l.flood_told = true);
        Some(lost)
    }

    /// Makes an action the engine's current one: an earlier one that still runs has been given up.
    pub fn begin_action(&self, action: AbortHandle) {
        if let Some(earlier) = self.live(|l| l.action.replace(action)) {
            earlier.abort();
        }
    }

    /// Starts its process under a shim.
    ///
    /// # Errors
    /// A sentence: the port is taken, or the shim or the program could not be started.
    pub async fn spawn(&self, shims: &Shims) -> Result<EngineProcess, String> {
        let c = &self.config;
        if let Ownership::Foreign { pid } = port_belongs_to(c.port, &[]) {
            let holder = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
            return Err(format!(
                "port {} is taken by {holder}; end it, or give the engine another port",
                c.port
            ));
        }
        let launch = Launch {
            engine: c.name.clone(),
            command: c.command.clone(),
            env: c.env.clone(),
            unset_env: c.unset_env.clone(),
            cwd: c.cwd.clone(),
            log: LogPolicy {
                max_bytes: c.log.max_bytes,
                keep: usize::try_from(c.log.keep).unwrap_or(usize::MAX),
            },
            grace: c.stop_grace,
        };
        let process = shims.spawn(launch).await.map_err(|e| chain(&e))?;
        let endpoint = Endpoint {
            base: c.base_url(),
            model: c.model.clone(),
            api_key: c.api_key.as_ref().map(|key| key.reveal().to_owned()),
            load_tracking: c.command.iter().any(|arg| arg == "--enable-server-load-tracking"),
        };
        let client = Client::new(endpoint).map_err(|e| chain(&e))?;
        self.live(|l| {
            l.last_log = Some(process.log_path().to_owned());
            l.process = Some(process.clone());
            l.client = Some(client);
            l.canary = None;
            l.flood_told = false;
            l.facts = Facts::default();
        });
        Ok(process)
    }

    /// Until it is healthy, provably ours, and its capabilities are known.
    ///
    /// vLLM tells nobody when it is ready, so it is asked at the configured interval; that its process has ended comes
    /// as an event of its own.
    ///
    /// # Errors
    /// A sentence: the deadline passed, or somebody else answers on its port.
    pub async fn ready(&self, deadline: Duration) -> Result<Capabilities, String> {
        let (Some(process), Some(client)) = (self.process(), self.client()) else {
            return Err("it has no process".to_owned());
        };
        let end = Instant::now() + deadline;
        let mut last;
        loop {
            match self.ask_ready(&process, &client).await {
                Asked::Ready(capabilities) => return Ok(capabilities),
                Asked::Never(why) => return Err(why),
                Asked::NotYet(why) => last = why,
            }
            let next = Instant::now() + self.config.ready_interval;
            if next > end {
                return Err(format!("not ready within {} s: {last}", deadline.as_secs()));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn ask_ready(&self, process: &EngineProcess, client: &Client) -> Asked {
        match client.health(QUESTION).await {
            Health::Ok => {}
            Health::Gone { message } => return Asked::NotYet(message),
            Health::Unknown => return Asked::NotYet("/health does not answer".to_owned()),
            Health::Dead => return Asked::NotYet("/health says that the engine core is dead".to_owned()),
            Health::Refused { status, message } => {
                return Asked::NotYet(format!("/health answered {status}: {message}"));
            }
        }
        // The kernel knows whose socket it is; where it cannot be read, the model's id has to do.
        match port_belongs_to(self.config.port, &process.pids()) {
            Ownership::Ours | Ownership::Unknown { .. } => {}
            Ownership::NobodyListens => return Asked::NotYet("nobody listens on its port".to_owned()),
            Ownership::Foreign { pid } => {
                let holder = pid.map_or("a process".to_owned(), |pid| format!("process {pid}"));
                return Asked::Never(format!(
                    "{holder} that is not ours answers on its port {}",
                    self.config.port
                ));
            }
        }
        let context_tokens = match client.identify(&self.config.model, QUESTION).await {
            Identity::Ours { max_model_len } => max_model_len,
            Identity::NotReady { message } => return Asked::NotYet(message),
            Identity::Foreign { models } => {
                let serves = if models.is_empty() { "other models".to_owned() } else { models.join(", ") };
                let wanted = &self.config.model;
                return Asked::Never(format!(
                    "it serves {serves}, not `{wanted}`: make the configuration's `model` and --served-model-name agree"
                ));
            }
        };
        match client.detect(Some(self.config.workers), QUESTION).await {
            Ok(detected) => {
                let version = Some(detected.capabilities.version.to_string());
                self.live(|l| l.facts = Facts { version, context_tokens });
                Asked::Ready(detected.capabilities)
            }
            Err(why) => Asked::NotYet(why.to_string()),
        }
    }

    /// Ends its whole tree.
    pub async fn stop(&self, grace: Duration) -> Stopped {
        let Some(process) = self.process() else { return Stopped::default() };
        let mut forced = false;
        let left = match process.stop(grace).await {
            Ok(report) => {
                let kill = Some(Signal::KILL.as_raw());
                forced = !grace.is_zero() && report.exit.is_some_and(|exit| exit.signal == kill);
                u32::try_from(report.left.len()).unwrap_or(u32::MAX)
            }
            Err(error) => {
                tracing::error!(
                    engine = self.config.name,
                    error = chain(&error),
                    "its processes cannot be ended"
                );
                u32::try_from(process.pids().len()).unwrap_or(u32::MAX)
            }
        };
        if left == 0 {
            self.live(|l| (l.process, l.client, l.canary) = (None, None, None));
        }
        Stopped { left, forced }
    }
}

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Processes that could not be ended.
    pub left: u32,
    /// Its leader did not end within its grace and was killed.
    pub forced: bool,
}

enum Asked {
    Ready(Capabilities),
    NotYet(String),
    Never(String),
}

/// An error with its causes, one sentence.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
