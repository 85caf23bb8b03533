//! One engine at the edge: its process, its client, its canary; and how it is started, made ready and stopped.

use super::Seen;
use crate::adopt::Life;
use crate::config;
use crate::engine::{Canary, Client, Detected, Endpoint, Health, Identity};
use crate::events::Incident;
use crate::process::{
    self, ContainerSpec, EngineProcess, Launch, LogPolicy, Ownership, Shims, StopReport, port_belongs_to,
};
use hotbunk_core::capability::Capabilities;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// One question while an engine gets ready; those that hang are asked again.
const QUESTION: Duration = Duration::from_secs(5);

/// An engine, as the edge holds it. Newer settings come into force with another slot of the same engine, which shares
/// everything that lives ([`super::Slots`]).
#[derive(Debug)]
pub struct EngineSlot {
    /// The settings in force: those that its process was started with, as far as they are about that.
    pub config: config::Engine,
    /// Hash of what a running engine would have to be restarted for.
    pub fingerprint: String,
    live: Arc<Mutex<Live>>,
    seen: Arc<Mutex<Seen>>,
    next: Arc<Mutex<Option<Settings>>>,
}

/// Settings of an engine, with their fingerprint.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// From the configuration.
    pub config: config::Engine,
    /// Hash of what a running engine would have to be restarted for.
    pub fingerprint: String,
}

/// What changes with each incarnation.
#[derive(Debug, Default)]
struct Live {
    process: Option<EngineProcess>,
    client: Option<Client>,
    canary: Option<Canary>,
    action: Option<AbortHandle>,
    last_log: Option<PathBuf>,
    facts: Facts,
    /// Settings that it was started with, where those may be others than the configured ones.
    fingerprint: Option<String>,
}

/// What an engine said of itself when it became ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// `/version`.
    pub version: Option<String>,
    /// `max_model_len`.
    pub context_tokens: Option<u32>,
    /// What it can do, and how that was learned.
    pub detected: Option<Detected>,
}

impl EngineSlot {
    /// An engine without a process.
    pub fn new(config: config::Engine, fingerprint: String) -> Self {
        EngineSlot { config, fingerprint, live: Arc::default(), seen: Arc::default(), next: Arc::default() }
    }

    /// What its process was started with; without one, what it would be started with.
    pub fn running_fingerprint(&self) -> String {
        let started = self.live(|l| l.process.as_ref().and(l.fingerprint.clone()));
        started.unwrap_or_else(|| self.fingerprint.clone())
    }

    /// The settings that wait until the core puts them into force, or that none do any more.
    pub fn expect(&self, next: Option<Settings>) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }

    /// Whether settings wait that its process has to be started anew for.
    pub fn waits_for_its_next_process(&self) -> bool {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.as_ref().is_some_and(|next| next.fingerprint != self.fingerprint)
    }

    /// The same engine with the settings that were waiting; `None` where none were.
    pub(super) fn revised(&self) -> Option<EngineSlot> {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let revised = EngineSlot {
            config: next.config,
            fingerprint: next.fingerprint,
            live: Arc::clone(&self.live),
            seen: Arc::clone(&self.seen),
            next: Arc::clone(&self.next),
        };
        if revised.fingerprint != self.fingerprint {
            // A process that was taken over, and turns out to have been started with these.
            let client = Client::new(revised.endpoint());
            revised.live(|l| {
                if l.client.is_some() {
                    l.client = client.ok();
                }
            });
        }
        Some(revised)
    }

    /// What is remembered of it.
    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Remembers.
    pub fn see(&self, with: impl FnOnce(&mut Seen)) {
        with(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// Makes an action the engine's current one: an earlier one that still runs has been given up.
    pub fn begin_action(&self, action: AbortHandle) {
        if let Some(earlier) = self.live(|l| l.action.replace(action)) {
            earlier.abort();
        }
    }

    /// Takes hold of its process, which a former agent has started.
    ///
    /// # Errors
    /// A sentence: there is no client to be had.
    pub fn take(&self, process: EngineProcess, life: Option<&Life>) -> Result<Client, String> {
        let client = Client::new(self.endpoint()).map_err(|e| chain(&e));
        self.live(|l| {
            l.last_log = Some(process.log_path().to_owned());
            l.process = Some(process);
            l.client = client.as_ref().ok().cloned();
            l.canary = life.and_then(|life| life.canary.clone());
            l.facts = life.map_or_else(Facts::default, |life| Facts {
                version: life.version.clone(),
                context_tokens: life.context_tokens,
                detected: None,
            });
            l.fingerprint = life.map(|life| life.fingerprint.clone());
        });
        self.see(Seen::spawned);
        client
    }

    /// What it can do was asked anew.
    pub fn detected(&self, detected: Detected) {
        self.live(|l| {
            l.facts.version = Some(detected.capabilities.version.to_string());
            l.facts.detected = Some(detected);
        });
    }

    /// What a later agent needs to know of this life; `None` where there is no process.
    pub fn life(&self) -> Option<Life> {
        self.live(|l| {
            Some(Life {
                incarnation: l.process.as_ref()?.incarnation(),
                fingerprint: l.fingerprint.clone().unwrap_or_else(|| self.fingerprint.clone()),
                canary: l.canary.clone(),
                version: l.facts.version.clone(),
                context_tokens: l.facts.context_tokens,
            })
        })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        let c = &self.config;
        Endpoint {
            base: c.base_url(),
            model: c.model.clone(),
            api_key: c.api_key.as_ref().map(|key| key.reveal().to_owned()),
            load_tracking: c.command.iter().any(|arg| arg == "--enable-server-load-tracking"),
        }
    }

    /// Takes hold of a server that somebody else has started, and that is not ours yet.
    pub(super) fn hold(&self, process: EngineProcess, client: Client, detected: Detected) {
        self.live(|l| {
            l.last_log = Some(process.log_path().to_owned());
            (l.process, l.client) = (Some(process), Some(client));
            (l.canary, l.fingerprint) = (None, None);
            l.facts = Facts::default();
        });
        self.detected(detected);
    }

    /// What was held is ours. Whatever it runs with, it stands for the settings that are configured now: it is not started
    /// anew before those change.
    pub(super) fn kept(&self, detected: Detected, context_tokens: Option<u32>) {
        self.detected(detected);
        self.live(|l| l.facts.context_tokens = context_tokens);
        self.see(Seen::spawned);
    }

    /// Leaves a server that is held as it is.
    pub(super) async fn let_go(&self) {
        let Some(process) = self.process() else { return };
        process.let_go().await;
        self.live(|l| {
            (l.process, l.client, l.canary, l.fingerprint) = (None, None, None, None);
            l.facts = Facts::default();
        });
    }

    /// That somebody else listens on its port, and what to do.
    pub(super) fn taken_by(&self, pid: Option<u32>) -> String {
        let c = &self.config;
        let holder = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
        format!(
            "port {} is taken by {holder}; if that serves {}, `ctl adopt {}` takes it over as it runs; else end it, or give \
             the engine another port",
            c.port, c.model, c.name
        )
    }

    /// Starts its process under a shim.
    ///
    /// # Errors
    /// The port is taken, or the shim or the program could not be started.
    pub async fn spawn(&self, shims: &Shims) -> Result<EngineProcess, NotSpawned> {
        let c = &self.config;
        if let Ownership::Foreign { pid } = port_belongs_to(c.port, &[]) {
            return Err(NotSpawned::PortTaken(self.taken_by(pid)));
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
            container: c.container.as_ref().map(|container| ContainerSpec {
                port: c.port,
                stop: container.stop.clone(),
                kill: container.kill.clone(),
                id_file: container.id_file.clone(),
            }),
        };
        // First what can fail without leaving anything behind.
        let client = Client::new(self.endpoint()).map_err(|e| NotSpawned::Failed(chain(&e)))?;
        let process = spawn_once_there_is_room(shims, launch, c.start_timeout)
            .await
            .map_err(|e| NotSpawned::Failed(chain(&e)))?;
        self.live(|l| {
            l.last_log = Some(process.log_path().to_owned());
            l.process = Some(process.clone());
            l.client = Some(client);
            l.canary = None;
            l.facts = Facts::default();
            l.fingerprint = None;
        });
        self.see(Seen::spawned);
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
        if let Some(why) = process.not_contained() {
            return Asked::NotYet(format!("its container was not found: {why}"));
        }
        // The kernel knows whose socket it is; where it cannot be read, the model's id has to do.
        match process.owns_port(self.config.port) {
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
                self.live(|l| l.facts = Facts { version, context_tokens, detected: Some(detected) });
                Asked::Ready(detected.capabilities)
            }
            Err(why) => Asked::NotYet(why.to_string()),
        }
    }

    /// Ends its whole tree.
    pub async fn stop(&self, grace: Duration) -> Ended {
        let Some(process) = self.process() else { return Ended::default() };
        let ended = match process.stop(grace).await {
            Ok(report) => Ended {
                left: u32::try_from(report.left.len()).unwrap_or(u32::MAX),
                incident: unruly(&self.config.name, grace, &report),
            },
            Err(error) => {
                tracing::error!(
                    engine = self.config.name,
                    error = chain(&error),
                    "its processes cannot be ended"
                );
                Ended { left: u32::try_from(process.pids().len()).unwrap_or(u32::MAX), incident: None }
            }
        };
        if ended.left == 0 {
            self.live(|l| (l.process, l.client, l.canary) = (None, None, None));
        }
        ended
    }
}

/// Why a process was not started; a sentence each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSpawned {
    /// Somebody else listens on its port.
    PortTaken(String),
    /// The shim or the program could not be started.
    Failed(String),
}

/// How a stop ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Processes that could not be ended.
    pub left: u32,
    /// What was wrong with an end that succeeded.
    pub incident: Option<Incident>,
}

/// The incident of an engine that was given time to end and had to be killed all the same. One that ended by itself has
/// been reported as crashed, one that cannot be killed will be reported as left over: one fault, one incident.
fn unruly(engine: &str, grace: Duration, report: &StopReport) -> Option<Incident> {
    const SIGKILL: i32 = 9;
    let exit = report.exit.as_ref()?;
    if grace.is_zero() || !exit.asked || report.killed == 0 || !report.left.is_empty() {
        return None;
    }
    let engine = engine.to_owned();
    Some(match exit.signal {
        Some(SIGKILL) => Incident::StopForced { engine, grace },
        _ => Incident::OrphansKilled { engine, processes: report.killed },
    })
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

/// How often the state directory is tried again.
const ROOM: Duration = Duration::from_millis(500);

/// Spawns. While the disk has no room for what the shim needs there, that is waited for: it is no crash of the engine,
/// and a budget of crashes that it used up in seconds would keep the engine away after there is room.
async fn spawn_once_there_is_room(
    shims: &Shims,
    launch: Launch,
    at_most: Duration,
) -> Result<EngineProcess, process::Error> {
    let until = Instant::now() + at_most;
    let mut said = false;
    loop {
        match shims.spawn(launch.clone()).await {
            Err(error) if error.is_no_room() && Instant::now() < until => {
                if !std::mem::replace(&mut said, true) {
                    tracing::error!(
                        engine = launch.engine,
                        error = chain(&error),
                        "waits for room on the disk"
                    );
                }
                tokio::time::sleep(ROOM).await;
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Exit, Leftover};

    fn report(asked: bool, signal: Option<i32>, killed: u32) -> StopReport {
        let code = if signal.is_none() { Some(0) } else { None };
        let exit = Exit { asked, code, signal, tail: Vec::new() };
        StopReport { exit: Some(exit), killed, left: Vec::new(), took: Duration::from_secs(1) }
    }

    #[test]
    fn an_end_that_needed_force_is_one_incident() {
        let grace = Duration::from_secs(10);
        let of = |grace, report: &StopReport| unruly("A", grace, report).map(|incident| incident.code());
        assert_eq!(of(grace, &report(true, Some(9), 3)), Some("stop_forced"));
        assert_eq!(of(grace, &report(true, None, 1)), Some("orphans_killed"));
        assert_eq!(of(grace, &report(true, Some(15), 0)), None, "a graceful end");
        assert_eq!(of(Duration::ZERO, &report(true, Some(9), 3)), None, "no time was given");
        assert_eq!(of(grace, &report(false, Some(9), 2)), None, "it had crashed before");
        let stuck = Leftover { pid: 7, comm: "VLLM".into(), state: 'D' };
        let stuck = StopReport { left: vec![stuck], ..report(true, Some(9), 3) };
        assert_eq!(of(grace, &stuck), None, "the core reports leftovers");
        assert_eq!(
            of(grace, &StopReport { exit: None, ..report(true, Some(9), 3) }),
            None,
            "its shim was lost"
        );
    }
}
