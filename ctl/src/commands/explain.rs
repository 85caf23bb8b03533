//! `ctl explain`: what a switch would do, what else could be done, and what would make it faster.

use crate::context::Context;
use crate::failure::Failure;
use crate::human;
use crate::words;
use hotbunk_api::explain::{Alternative, ExplainRequest, Explanation, Peak, Plan, Verdict};
use hotbunk_api::words::{Drain, Strategy, Tier};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Engine's name
    engine: String,
    /// Plan by name [default: from the configuration]
    #[arg(long, value_parser = words::strategy())]
    strategy: Option<Strategy>,
    /// Tier that the outgoing engine is left in [default: by strategy]
    #[arg(long, value_name = "TIER", value_parser = words::leave())]
    leave: Option<Tier>,
    /// What happens to running requests
    #[arg(long, value_parser = words::drain())]
    drain: Option<Drain>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { engine, strategy, leave, drain } = args;
    show(context, ExplainRequest { engine, strategy, leave, drain }).await
}

/// Asks and shows; what the agent would refuse ends with the refusal's exit code.
pub(crate) async fn show(context: &Context, request: ExplainRequest) -> Result<(), Failure> {
    let explained = context.client()?.explain(&request).await;
    let explanation = explained.map_err(|e| Failure::from(e).asked_for(&request.engine))?;
    if context.json {
        context.out.json(&explanation)?;
    } else {
        context.out.bytes(render(&explanation).as_bytes())?;
    }
    match &explanation.refused {
        Some(refused) => Err(Failure::of_resource(
            &format!("a switch to {} would be refused", request.engine),
            Some(refused),
            None,
        )),
        None => Ok(()),
    }
}

/// The explanation for people.
fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    if let Some(why) = &explanation.nothing_to_do {
        push(&mut text, format_args!("{}: {why}", explanation.engine));
    }
    if let Some(plan) = &explanation.chosen {
        render_plan(&mut text, explanation, plan);
    }
    if !explanation.alternatives.is_empty() {
        push(&mut text, format_args!("\nAlternatives"));
        let header = ["ORDER", "LEAVE", "FIRST TOKEN", "WAY BACK", "PEAK", "VERDICT"];
        let rows = explanation.alternatives.iter().map(alternative_row);
        push(&mut text, format_args!("{}", human::table(&header, &[2, 3], rows)));
    }
    if !explanation.faster.is_empty() {
        push(&mut text, format_args!("\nWhat would make it faster"));
        for faster in &explanation.faster {
            let saves =
                faster.saves_s.map_or_else(String::new, |s| format!(" (saves {})", human::seconds(s)));
            push(&mut text, format_args!("  - {}{saves}", faster.sentence));
        }
    }
    text
}

fn render_plan(text: &mut String, explanation: &Explanation, plan: &Plan) {
    let from = explanation.from.as_ref().map_or_else(String::new, |from| format!("{from} → "));
    let mut how = Vec::new();
    how.extend(plan.order.map(|order| order.to_string()));
    if let (Some(from), Some(leave)) = (&explanation.from, plan.leave) {
        how.push(format!("leaves {from} {}", human::tier(leave)));
    }
    how.extend(plan.strategy.map(|strategy| format!("strategy {strategy}")));
    push(text, format_args!("{from}{}: {}", explanation.engine, how.join(", ")));
    let rows = plan.steps.iter().enumerate().map(|(i, step)| {
        vec![format!("  {}.", i + 1), step.sentence.clone(), human::maybe_seconds(step.eta_s)]
    });
    push(text, format_args!("{}", human::table(&["", "STEP", "ETA"], &[2], rows)));
    push(
        text,
        format_args!(
            "First token after {}, done after {}; peak {}",
            human::maybe_seconds(plan.first_token_s),
            human::maybe_seconds(plan.total_s),
            peaks(&plan.peaks),
        ),
    );
}

fn alternative_row(alternative: &Alternative) -> Vec<String> {
    let verdict = match &alternative.verdict {
        Verdict::Fits => "fits".to_owned(),
        Verdict::Refused { because } => format!("refused: {because}"),
    };
    vec![
        alternative.order.to_string(),
        alternative.leave.to_string(),
        human::maybe_seconds(alternative.first_token_s),
        human::maybe_seconds(alternative.return_s),
        peaks(&alternative.peaks),
        verdict,
    ]
}

fn peaks(peaks: &[Peak]) -> String {
    if peaks.is_empty() {
        return human::UNKNOWN.to_owned();
    }
    let one = |p: &Peak| {
        format!("{} {} of {}", p.device, human::maybe_bytes(p.peak_bytes), human::maybe_bytes(p.limit_bytes))
    };
    peaks.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.push_str(&line.to_string());
    text.push('\n');
}
