//! Cycles: a scripted run of starts, sleeps, wakes, load and handoffs, from which a switch report is made.
//!
//! ```text
//!   plan ──expand──► steps ──► run: each step is one or two commands to the switcher, or a load round
//!                               │
//!                               └──► journal: run started, step began/ended, requests, windows, run ended ──► report
//! ```
//!
//! One cycle at a time. A cycle has no rights of its own: its commands go the way of everybody's, and an operator's
//! command in between makes its step fail, not the operator's. Cancelled, it leaves every engine in the tier that it
//! found it in.

mod run;
mod shown;

use crate::config::cycle_plan::{CyclePlan, PlannedStep};
use crate::config::{Current, cycle_plan};
use crate::control::EventLog;
use crate::effects::Hands;
use crate::events::Recorder;
use crate::switcher::Handle;
use hotbunk_api::cycle::{CycleRun, PlanSource, PlanSummary};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_core::tier::Tier;
use run::Run;
pub use shown::Shown;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for an engine's counts.
const QUESTION: Duration = Duration::from_secs(5);
/// Runs that are remembered beside the journal.
const REMEMBERED: usize = 32;

/// Who began a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// A person or a program.
    Operator,
    /// The schedule.
    Schedule,
    /// The demo.
    Demo,
}

impl By {
    /// The word in status.
    pub fn as_str(self) -> &'static str {
        match self {
            By::Operator => "operator",
            By::Schedule => "schedule",
            By::Demo => "demo",
        }
    }
}

/// What a run is made with.
#[derive(Debug)]
pub struct Parts {
    /// Commands and state.
    pub switcher: Handle,
    /// Load, samples, journal.
    pub hands: Arc<Hands>,
    /// Engines and devices.
    pub config: Current,
    /// Who follows.
    pub events: Arc<EventLog>,
}

/// All cycles of the node. Clones are the same.
#[derive(Debug, Clone)]
pub struct Cycles {
    parts: Arc<Parts>,
    runs: Arc<Mutex<Vec<Known>>>,
}

#[derive(Debug)]
struct Known {
    shown: Shown,
    cancel: watch::Sender<bool>,
}

impl Cycles {
    /// None yet.
    pub fn new(parts: Parts) -> Self {
        Cycles { parts: Arc::new(parts), runs: Arc::default() }
    }

    fn runs(&self) -> MutexGuard<'_, Vec<Known>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plans that have a name.
    pub fn plans(&self) -> Vec<PlanSummary> {
        let engines = self.engine_names();
        cycle_plan::BUILT_IN
            .iter()
            .filter_map(|(name, text)| {
                let (plan, _) = CyclePlan::parse(text, Path::new(name)).ok()?;
                let steps = plan.expand(&engines, &cycle_plan::Options::default()).map_or(0, |s| s.len());
                let steps = u32::try_from(steps).unwrap_or(u32::MAX);
                Some(PlanSummary { name: plan.name, about: plan.description, steps })
            })
            .collect()
    }

    fn engine_names(&self) -> Vec<String> {
        self.parts.config.get().configured().map(|(_, e)| e.name.clone()).collect()
    }

    /// Reads a plan that came over the API or from the configuration, and expands it for this node.
    ///
    /// # Errors
    /// No such plan, or everything that is wrong with it.
    pub fn read(
        &self,
        source: &PlanSource,
        options: &cycle_plan::Options,
    ) -> Result<(CyclePlan, Vec<PlannedStep>), ApiError> {
        let plan = match source {
            PlanSource::Named { name } => {
                let Some((name, text)) = cycle_plan::BUILT_IN.iter().find(|(known, _)| known == name) else {
                    let known: Vec<&str> = cycle_plan::BUILT_IN.iter().map(|(name, _)| *name).collect();
                    return Err(ApiError::new(
                        ErrorCode::UnknownPlan,
                        format!("there is no cycle plan `{name}`"),
                    )
                    .help(format!("plans: {}; or give the path of a plan file", known.join(", "))));
                };
                CyclePlan::parse(text, Path::new(&format!("{name}.toml")))
            }
            PlanSource::Inline { origin, text } => CyclePlan::parse(text, Path::new(origin)),
        };
        let (plan, _) = plan.map_err(invalid)?;
        self.expand(plan, options)
    }

    /// Expands a plan for this node.
    ///
    /// # Errors
    /// Everything that keeps it from working here.
    pub fn expand(
        &self,
        plan: CyclePlan,
        options: &cycle_plan::Options,
    ) -> Result<(CyclePlan, Vec<PlannedStep>), ApiError> {
        let steps = plan.expand(&self.engine_names(), options).map_err(invalid)?;
        Ok((plan, steps))
    }

    /// Journal and metrics.
    pub fn recorder(&self) -> &Recorder {
        &self.parts.hands.recorder
    }

    /// Whether nothing is being served.
    ///
    /// # Errors
    /// What is, or that it cannot be told.
    pub async fn in_flight(&self, switcher: &Handle) -> Result<(), String> {
        let node = switcher.node();
        for id in node.ids().filter(|id| node.engine(*id).tier == Tier::Awake) {
            let slot = self.parts.hands.slot(id);
            let Some(client) = slot.client() else { continue };
            let name = &slot.config.name;
            match client.in_flight(QUESTION).await.map(|n| n.is_idle()) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Err(format!("{name} is serving requests")),
                Ok(None) | Err(_) => {
                    return Err(format!("{name} does not tell whether it is serving requests"));
                }
            }
        }
        Ok(())
    }

    /// Begins a run.
    ///
    /// # Errors
    /// Another one is under way.
    pub fn begin(
        &self,
        id: String,
        plan: CyclePlan,
        steps: Vec<PlannedStep>,
        by: By,
    ) -> Result<Shown, ApiError> {
        let mut runs = self.runs();
        if let Some(other) = runs.iter().map(|k| k.shown.get()).find(|r| !r.state.is_over()) {
            return Err(ApiError::new(ErrorCode::Busy, format!("cycle run {} is under way", other.id))
                .help("wait for it, or give it up with `ctl cycle cancel`"));
        }
        let (cancel, cancelled) = watch::channel(false);
        let shown = Shown::new(id.clone(), &plan, &steps, by, Arc::clone(&self.parts.events));
        let run = Run::new(Arc::clone(&self.parts), id, plan, steps, shown.clone(), cancelled);
        tokio::spawn(run.work());
        if runs.len() >= REMEMBERED {
            runs.remove(0);
        }
        runs.push(Known { shown: shown.clone(), cancel });
        Ok(shown)
    }

    /// Does something while no run is under way and none can begin; the id of the run that is under way otherwise.
    ///
    /// # Errors
    /// One is.
    pub fn between<T>(&self, work: impl FnOnce() -> T) -> Result<T, String> {
        let runs = self.runs();
        match runs.iter().map(|k| k.shown.get()).find(|r| !r.state.is_over()) {
            Some(run) => Err(run.id),
            None => Ok(work()),
        }
    }

    /// The run that is under way.
    pub fn current(&self) -> Option<CycleRun> {
        self.runs().iter().map(|k| k.shown.get()).find(|r| !r.state.is_over())
    }

    /// Runs since the agent began, newest first.
    pub fn recent(&self) -> Vec<CycleRun> {
        self.runs().iter().rev().map(|k| k.shown.get()).collect()
    }

    /// One of them.
    pub fn find(&self, id: &str) -> Option<Shown> {
        self.runs().iter().find(|k| k.shown.get().id == id).map(|k| k.shown.clone())
    }

    /// Gives up the run that is under way, and says which.
    pub fn give_up(&self) -> Option<Shown> {
        let runs = self.runs();
        let known = runs.iter().find(|k| !k.shown.get().state.is_over())?;
        known.cancel.send_replace(true);
        Some(known.shown.clone())
    }

    /// Gives a run up; it restores what it found and then ends as cancelled.
    pub fn cancel(&self, id: &str) -> Option<CycleRun> {
        let runs = self.runs();
        let known = runs.iter().find(|k| k.shown.get().id == id)?;
        known.cancel.send_replace(true);
        Some(known.shown.get())
    }
}

fn invalid(diagnostics: crate::config::Diagnostics) -> ApiError {
    let text = diagnostics.render(false);
    ApiError::new(ErrorCode::PlanInvalid, format!("the cycle plan has errors\n{text}"))
}
