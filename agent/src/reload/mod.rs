//! Applying a changed configuration file without an end of anything: `ctl reload`, and SIGHUP.
//!
//! ```text
//!   file ──► checked as at start ──► arranged onto what there is ──► changes what cannot change? ──► owner of the state
//!              │ errors: refused                                      │ refused, all of it              │ one step
//!              ▼                                                      ▼                                 ▼
//!            the agent goes on with what it had ◄─────────────────────┘      engines by fingerprint ([`Plan`]), gateway,
//!                                                                            schedules, log filter
//! ```
//!
//! All or nothing: a file is refused whole or taken whole. What is taken comes into force as it may: the gateway's part
//! at once, the agent's own dealings with an engine when nothing is under way on its devices, and what a process has to
//! be started anew for at its next idle moment ([`hotbunk_core::revise`]). Nothing here waits for that: the file is the
//! agent's configuration from now on, and a later agent, should this one be killed, comes to the same by itself
//! ([`crate::adopt`]).

mod plan;

pub use plan::{Plan, footprints};

use crate::cli;
use crate::config::changes::{Changed, changes};
use crate::config::{self, Config, Current, Diagnostics, Facts};
use crate::cycle::Cycles;
use crate::effects::{Hands, chain};
use crate::events::{Context, Event, Incident};
use crate::host::HostMemory;
use crate::journal::record::{Record, ReloadedEngine};
use crate::schedule::Schedules;
use crate::switcher::Handle;
use crate::translate;
use hotbunk_api::check::CheckReport;
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::reload::{EngineChange, EngineReload, ReloadOutcome, ReloadReport, SettingChange};
use std::fmt;
use std::sync::Arc;

/// What applies what a living agent cannot change.
const BY_RESTART: &str = "`systemctl restart hotbunk-agent` applies all of it; with `on_stop = \"leave\"` in [node], or after \
                          SIGUSR1, engines go on meanwhile";

/// Who wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A person or a program, over the control API.
    Operator {
        /// Their user.
        uid: u32,
        /// Their process, where the kernel says which.
        pid: Option<i32>,
    },
    /// SIGHUP.
    Signal,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Operator { uid, pid: Some(pid) } => write!(f, "operator (uid {uid}, pid {pid})"),
            By::Operator { uid, pid: None } => write!(f, "operator (uid {uid})"),
            By::Signal => f.write_str("SIGHUP"),
        }
    }
}

/// What a new configuration has to reach.
#[derive(Debug)]
pub struct Parts {
    /// The one that the agent goes by.
    pub config: Current,
    /// The owner of the state.
    pub switcher: Handle,
    /// Engines, gateway, journal.
    pub hands: Arc<Hands>,
    /// Runs measure what is theirs alone.
    pub cycles: Cycles,
    /// Cycles that run by themselves.
    pub schedules: Schedules,
}

/// Reloads, one at a time. Clones are the same.
#[derive(Debug, Clone)]
pub struct Reloads {
    parts: Arc<Parts>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A file that can be applied.
#[derive(Debug)]
struct Sound {
    /// As the file orders it.
    written: Config,
    check: CheckReport,
}

impl Reloads {
    /// None yet.
    pub fn new(parts: Parts) -> Self {
        Reloads { parts: Arc::new(parts), turn: Arc::default() }
    }

    /// Reads the file again and applies it, or says what that would do. Let it run to its end.
    ///
    /// # Errors
    /// Another reload or a cycle run is under way, or the agent is stopping. That the file cannot be applied is the
    /// report's to say.
    pub async fn reload(&self, by: By, dry_run: bool) -> Result<ReloadReport, ApiError> {
        let Ok(_turn) = self.turn.try_lock() else {
            return Err(ApiError::new(ErrorCode::Busy, "another reload is being applied")
                .help("it takes a moment; ask again")
                .retry_after_s(1.0));
        };
        let report = self.attempt(dry_run).await?;
        if !dry_run {
            self.record(by, &report).await;
        }
        Ok(report)
    }

    /// The same for a signal, which waits for no answer: the outcome is logged and recorded.
    pub async fn on_signal(&self) {
        match self.reload(By::Signal, false).await {
            Ok(report) if !report.check.rendered.is_empty() => cli::say(report.check.rendered.trim_end()),
            Ok(_) => {}
            Err(error) => {
                let incident = Incident::ReloadRefused { reason: error.message };
                drop(self.parts.hands.recorder.record_one(&Context::none(), incident).await);
            }
        }
    }

    async fn attempt(&self, dry_run: bool) -> Result<ReloadReport, ApiError> {
        let former = self.parts.config.get();
        let path = former.file.display().to_string();
        let report = |outcome, check| ReloadReport {
            path: path.clone(),
            outcome,
            dry_run,
            check,
            engines: Vec::new(),
            settings: Vec::new(),
            needs_restart: Vec::new(),
        };
        let Sound { written, check } = match self.read(&former).await? {
            Ok(sound) => sound,
            Err(check) => return Ok(report(ReloadOutcome::Invalid, check)),
        };
        let (fixed, live): (Vec<Changed>, Vec<Changed>) =
            changes(&former, &written).into_iter().partition(|changed| changed.needs_restart);
        let fixed: Vec<SettingChange> = fixed.into_iter().map(setting).collect();
        let settings = live.into_iter().map(setting).collect();
        if !fixed.is_empty() {
            let refused = report(ReloadOutcome::NeedsRestart, check);
            return Ok(ReloadReport { settings, needs_restart: fixed, ..refused });
        }
        let arranged = Arc::new(written.arranged(&former));
        if u16::try_from(arranged.engines.len()).is_err() {
            return Err(
                ApiError::new(ErrorCode::Refused, "this agent has had too many engines").help(BY_RESTART)
            );
        }
        let plan = Plan::new(Arc::clone(&arranged), self.measured().await, host_total());
        let unchanged = *arranged == *former;
        if dry_run || unchanged {
            let outcome = if unchanged { ReloadOutcome::Unchanged } else { ReloadOutcome::Applied };
            let engines = plan.look(&self.parts.switcher.node(), &self.parts.hands);
            return Ok(ReloadReport { settings, engines, ..report(outcome, check) });
        }
        let engines = self.apply(arranged, plan).await?;
        Ok(ReloadReport { settings, engines, ..report(ReloadOutcome::Applied, check) })
    }

    /// The file as it is now; what is wrong with it otherwise.
    async fn read(&self, former: &Config) -> Result<Result<Sound, CheckReport>, ApiError> {
        let file = former.file.clone();
        let loaded =
            tokio::task::spawn_blocking(move || config::load(&file, &Facts::of_this_machine())).await;
        let loaded = loaded.map_err(|error| ApiError::new(ErrorCode::Internal, chain(&error)))?;
        let told = |ok, diagnostics: &Diagnostics| translate::diagnostics(ok, diagnostics);
        Ok(match loaded {
            Ok((written, warnings)) => Ok(Sound { written, check: told(true, &warnings) }),
            Err(problems) => Err(told(false, &problems)),
        })
    }

    async fn measured(&self) -> Vec<crate::journal::FootprintRow> {
        let rows = self.parts.hands.recorder.journal().read(|reader| reader.footprints()).await;
        rows.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "footprints measured before are not known");
            Vec::new()
        })
    }

    /// From here on the file is the configuration.
    async fn apply(&self, arranged: Arc<Config>, plan: Plan) -> Result<Vec<EngineReload>, ApiError> {
        let Parts { config, switcher, cycles, schedules, .. } = &*self.parts;
        let revised = cycles.between(|| switcher.revise(plan)).map_err(|run| {
            ApiError::new(
                ErrorCode::Busy,
                format!("cycle run {run} is under way, and measures the engines as they are"),
            )
            .operation(run)
            .help("wait for its end, or give it up with `ctl cycle cancel`, then reload again")
        })?;
        let engines =
            revised.await.map_err(|_| ApiError::new(ErrorCode::Unavailable, "the agent is stopping"))?;
        schedules.set(&arranged.schedules);
        cli::filter_log(&arranged.node.log_filter);
        config.set(arranged);
        Ok(engines)
    }

    async fn record(&self, by: By, report: &ReloadReport) {
        let problem = problem(report);
        let changed = report.engines.iter().filter(|e| e.change != EngineChange::Unchanged);
        let record = Record::Reloaded {
            by: by.to_string(),
            outcome: report.outcome.as_str().to_owned(),
            engines: changed
                .map(|e| ReloadedEngine {
                    engine: e.engine.clone(),
                    change: e.change.as_str().to_owned(),
                    from: e.from.clone(),
                    to: e.to.clone(),
                })
                .collect(),
            settings: report.settings.iter().map(|s| s.key.clone()).collect(),
            problem: problem.clone(),
        };
        let mut events = vec![Event::from(record)];
        if let Some(reason) = problem.filter(|_| by == By::Signal) {
            events.push(Incident::ReloadRefused { reason }.into());
        }
        drop(self.parts.hands.recorder.record(&Context::none(), events).await);
    }
}

/// Why a file was not applied, a sentence.
fn problem(report: &ReloadReport) -> Option<String> {
    match report.outcome {
        ReloadOutcome::Applied | ReloadOutcome::Unchanged => None,
        ReloadOutcome::Invalid => {
            let errors: Vec<_> = report.check.diagnostics.iter().filter(|d| d.error).collect();
            let first = errors.first().map_or_else(String::new, |d| {
                let line = d.line.map_or_else(String::new, |line| format!("line {line}: "));
                format!(", the first: {line}{}", d.message)
            });
            Some(format!(
                "{} has {} error(s){first}; `ctl check` shows all of them",
                report.path,
                errors.len()
            ))
        }
        ReloadOutcome::NeedsRestart => {
            let keys: Vec<&str> = report.needs_restart.iter().map(|s| s.key.as_str()).collect();
            Some(format!("a running agent cannot change {}; {BY_RESTART}", keys.join(", ")))
        }
    }
}

fn setting(changed: Changed) -> SettingChange {
    let Changed { key, from, to, .. } = changed;
    SettingChange { key, from, to }
}

fn host_total() -> Option<u64> {
    HostMemory::read().ok().map(|memory| memory.total)
}
