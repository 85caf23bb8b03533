//! `ctl journal`: every transition, phase and probe, a line each.

use crate::context::Context;
use crate::failure::Failure;
use crate::human;
use crate::output::note;
use hotbunk_api::journal::{JournalEntry, JournalQuery};
use serde_json::Value;

/// Arguments of `journal`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show so many entries, at most 10000
    #[arg(long, short = 'n', default_value_t = JournalQuery::DEFAULT_LIMIT)]
    limit: u32,
    /// Only entries after this place, oldest first
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,
    /// Only this kind of record: transition, step_ended, incident, …
    #[arg(long)]
    kind: Option<String>,
    /// Only records that concern this engine
    #[arg(long)]
    engine: Option<String>,
    /// Only records of this cycle run
    #[arg(long)]
    run: Option<String>,
    /// Only records of this operation
    #[arg(long, value_name = "ID")]
    operation: Option<String>,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { limit, after, kind, engine, run, operation } = args;
    let query = JournalQuery { after, limit: Some(limit), kind, engine, run, operation };
    let asked = query.engine.clone().unwrap_or_default();
    let page = context.client()?.journal(&query).await.map_err(|e| Failure::from(e).asked_for(&asked))?;
    if context.json {
        return context.out.json(&page);
    }
    for entry in &page.entries {
        context.out.line(render(entry))?;
    }
    if let (true, Some(last)) = (page.more, page.entries.last()) {
        note(format!("there is more: --after {}", last.seq));
    }
    Ok(())
}

/// `412 2026-11-30 12:00:00.123 op 7 step_ended engine=A phase=sleep …`: what is nested is written as JSON.
fn render(entry: &JournalEntry) -> String {
    let mut words = vec![format!("{:>6}", entry.seq), human::instant(entry.wall)];
    words.extend(entry.run.as_ref().map(|run| format!("run {run}")));
    words.extend(entry.operation.map(|number| format!("op {number}")));
    match &entry.record {
        Value::Object(fields) => {
            words.push(fields.get("kind").and_then(Value::as_str).unwrap_or(human::UNKNOWN).to_owned());
            for (name, value) in fields.iter().filter(|(name, _)| *name != "kind") {
                match value {
                    Value::Null => {}
                    Value::String(text) if is_plain(text) => words.push(format!("{name}={text}")),
                    other => words.push(format!("{name}={other}")),
                }
            }
        }
        other => words.push(other.to_string()),
    }
    words.join(" ")
}

/// Whether a text needs no quotes to stay one word.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=')
}
