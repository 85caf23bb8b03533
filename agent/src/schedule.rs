//! Cycles that run by themselves, by the clock on the wall.

use crate::config::cycle_plan::{CyclePlan, Options};
use crate::config::{Config, PlanRef, Schedule};
use crate::cycle::{By, Cycles};
use crate::events::{Context, Incident};
use crate::switcher::Handle;
use hotbunk_api::cycle::PlanSource;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// One task for each schedule.
pub fn tasks(config: &Arc<Config>, cycles: &Cycles, switcher: &Handle) -> Vec<JoinHandle<()>> {
    let task = |schedule: &Schedule| tokio::spawn(keep(schedule.clone(), cycles.clone(), switcher.clone()));
    config.schedules.iter().map(task).collect()
}

async fn keep(schedule: Schedule, cycles: Cycles, switcher: Handle) {
    let mut last = jiff::ZonedDateTime::now();
    loop {
        let now = jiff::ZonedDateTime::now();
        // Timers may fire a moment early: no time of day comes twice.
        let Some(next) = schedule.next_after(if now > last { &now } else { &last }) else {
            tracing::warn!(schedule = schedule.name, "its cron expression never comes true again");
            return;
        };
        let wait = next.timestamp().duration_since(now.timestamp());
        // A clock that is set meanwhile is noticed within a minute.
        let wait = std::time::Duration::try_from(wait).unwrap_or_default();
        let longest = std::time::Duration::from_secs(60);
        if wait > longest {
            tokio::time::sleep(longest).await;
            continue;
        }
        tokio::time::sleep(wait).await;
        last = next;
        if let Err(reason) = begin(&schedule, &cycles, &switcher).await {
            let incident = Incident::CycleSkipped { plan: schedule.name.clone(), reason };
            drop(cycles.recorder().record_one(&Context::none(), incident).await);
        }
    }
}

async fn begin(schedule: &Schedule, cycles: &Cycles, switcher: &Handle) -> Result<(), String> {
    if schedule.unless_serving {
        cycles.in_flight(switcher).await?;
    }
    let options = Options::default();
    let (plan, steps) = match &schedule.plan {
        PlanRef::BuiltIn(name) => {
            let source = PlanSource::Named { name: name.clone() };
            cycles.read(&source, &options).map_err(|e| e.message)?
        }
        PlanRef::File(path) => {
            let path = path.display().to_string();
            let (plan, _) = CyclePlan::open(&path).map_err(|d| d.to_string())?;
            cycles.expand(plan, &options).map_err(|e| e.message)?
        }
    };
    let id = format!("{}-{}", schedule.name, uuid::Uuid::now_v7().simple());
    cycles.begin(id, plan, steps, By::Schedule).map(drop).map_err(|e| e.message)
}
