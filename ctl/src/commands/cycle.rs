//! `ctl cycle`: runs test cycles and shows them.

use crate::context::{AwaitedKind, Context};
use crate::failure::Failure;
use crate::human;
use crate::operate::await_run;
use crate::output::note;
use clap::Subcommand;
use hotbunk_api::cycle::{CycleRun, CycleStep, PlanSource, RunCycle};
use hotbunk_api::error::ExitCode;
use hotbunk_api::words::State;
use std::path::Path;

/// Arguments of `cycle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// What to do with cycles.
#[derive(Debug, Subcommand)]
enum Command {
    /// Run a plan and show its report
    Run {
        /// A plan's name, or a plan file (a path with `/` or ending in `.toml`)
        #[arg(default_value = "reference")]
        plan: String,
        /// Name the run; the same id again is the same run
        #[arg(long, value_name = "ID")]
        id: Option<String>,
        /// Write the run's id and do not wait for its end
        #[arg(long)]
        no_wait: bool,
    },
    /// List runs, and the plans that have a name
    List,
    /// Show a run's steps
    Show {
        /// The run's id
        #[arg(default_value = "latest")]
        run: String,
    },
    /// End a run; the node is left as it was found
    Cancel {
        /// The run's id
        #[arg(default_value = "latest")]
        run: String,
    },
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Run { plan, id, no_wait } => begin(context, plan, id, no_wait).await,
        Command::List => list(context).await,
        Command::Show { run } => {
            let run = context.client()?.cycle(&run).await?;
            if context.json { context.out.json(&run) } else { context.out.line(render(&run)) }
        }
        Command::Cancel { run } => {
            let run = context.client()?.cancel_cycle(&run).await?;
            if context.json {
                context.out.json(&run)
            } else if run.state.is_over() {
                context.out.line(format!("{}: {}", run.id, run.state))
            } else {
                context
                    .out
                    .line(format!("{}: is being cancelled, the node is put back as it was found", run.id))
            }
        }
    }
}

async fn begin(context: &Context, plan: String, id: Option<String>, no_wait: bool) -> Result<(), Failure> {
    let client = context.client()?;
    let id = id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
    let source = plan_source(&plan)?;
    context.ask_for(AwaitedKind::Run, &id);
    let begun = client.run_cycle(&RunCycle { id: Some(id.clone()), plan: source }).await;
    let run = begun.map_err(|e| Failure::from(e).asked_for(&plan).while_asking(&id))?;
    if no_wait {
        return if context.json { context.out.json(&run) } else { context.out.line(&run.id) };
    }
    if !context.json {
        note(format!("cycle run {} ({}, {} steps)", run.id, run.plan, run.steps_total));
    }
    let run = await_run(context, run).await?;
    if context.json {
        context.out.json(&run)?;
    } else {
        match client.report_table(&run.id).await {
            Ok(table) => context.out.bytes(table.as_bytes())?,
            Err(e) => {
                context.out.line(render(&run))?;
                note(format!("ctl: the report cannot be shown: {e}"));
            }
        }
    }
    match run.state {
        State::Succeeded => Ok(()),
        State::Cancelled => Err(Failure::of_resource(
            &format!("cycle run {} was cancelled", run.id),
            run.error.as_ref(),
            None,
        )),
        State::Queued | State::Running | State::Failed => {
            Err(Failure::of_resource(&format!("cycle run {} failed", run.id), run.error.as_ref(), None))
        }
    }
}

/// A plan by name, or the text of a file. Only what looks like a path is read, so that a file that happens to be
/// called `quick` does not hide the plan.
fn plan_source(plan: &str) -> Result<PlanSource, Failure> {
    let is_file = plan.contains('/') || Path::new(plan).extension().is_some_and(|e| e == "toml");
    if !is_file {
        return Ok(PlanSource::Named { name: plan.to_owned() });
    }
    let text = std::fs::read_to_string(plan).map_err(|e| {
        Failure::new(
            ExitCode::BadFile,
            "unreadable_file",
            format!("the plan file {plan} cannot be read: {e}"),
        )
    })?;
    Ok(PlanSource::Inline { origin: plan.to_owned(), text })
}

async fn list(context: &Context) -> Result<(), Failure> {
    let cycles = context.client()?.cycles().await?;
    if context.json {
        return context.out.json(&cycles);
    }
    if cycles.runs.is_empty() {
        context.out.line("no cycle has been run yet")?;
    } else {
        let rows = cycles.runs.iter().map(|run| {
            vec![
                run.id.clone(),
                run.plan.clone(),
                run.state.to_string(),
                human::date(run.started_at),
                human::seconds(run.elapsed_s),
                format!("{}/{}", run.steps_done, run.steps_total),
                format!("{}/{}", run.requests_ok, run.requests_total),
            ]
        });
        let header = ["RUN", "PLAN", "STATE", "STARTED", "TOOK", "STEPS", "REQUESTS"];
        context.out.line(human::table(&header, &[4, 5, 6], rows))?;
    }
    if cycles.plans.is_empty() {
        return Ok(());
    }
    let rows = cycles.plans.iter().map(|p| vec![p.name.clone(), p.steps.to_string(), p.about.clone()]);
    context.out.line(format!("\n{}", human::table(&["PLAN", "STEPS", "ABOUT"], &[1], rows)))
}

fn render(run: &CycleRun) -> String {
    let mut lines = vec![format!(
        "{}: {} ({}), started {}, {}/{} steps in {}, {}/{} requests",
        run.id,
        run.state,
        run.plan,
        human::date(run.started_at),
        run.steps_done,
        run.steps_total,
        human::seconds(run.elapsed_s),
        run.requests_ok,
        run.requests_total,
    )];
    if let Some(error) = &run.error {
        lines.push(format!("why: {}", error.message));
    }
    let row = |step: &CycleStep| {
        vec![
            // People count from 1, as the report's failures do.
            step.index.saturating_add(1).to_string(),
            step.sentence.clone(),
            step.state.to_string(),
            human::maybe_seconds(step.duration_s),
            step.error.as_ref().map_or_else(String::new, |e| e.message.clone()),
        ]
    };
    if !run.steps.is_empty() {
        lines.push(human::table(&["#", "STEP", "STATE", "TOOK", "WHY"], &[0, 3], run.steps.iter().map(row)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plan_and_a_path_a_file() {
        assert_eq!(plan_source("quick"), Ok(PlanSource::Named { name: "quick".into() }));
        let missing = plan_source("/nowhere/plan").unwrap_err();
        assert_eq!(missing.exit_code(), ExitCode::BadFile);
        assert!(plan_source("nowhere.toml").is_err());
    }
}
