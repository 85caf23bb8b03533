//! `ctl doctor`: what is wrong with the node, as the agent sees it.

use crate::context::Context;
use crate::failure::Failure;
use hotbunk_api::doctor::{DoctorCheck, DoctorVerdict};

pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let report = context.client()?.doctor().await?;
    if context.json {
        context.out.json(&report)?;
    } else {
        report.checks.iter().try_for_each(|check| context.out.line(render(check)))?;
    }
    let errors = report.checks.iter().filter(|c| c.verdict == DoctorVerdict::Error).count();
    match errors {
        0 => Ok(()),
        n => Err(Failure::of_resource(&format!("{n} of {} checks failed", report.checks.len()), None, None)),
    }
}

fn render(check: &DoctorCheck) -> String {
    let verdict = match check.verdict {
        DoctorVerdict::Ok => "ok",
        DoctorVerdict::Skipped => "skipped",
        DoctorVerdict::Warning => "warning",
        DoctorVerdict::Error => "ERROR",
    };
    let help = check.help.as_ref().map_or_else(String::new, |help| format!("\n         → {help}"));
    format!("{verdict:<8} {}: {}{help}", check.name, check.found)
}
