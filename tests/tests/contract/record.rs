//! The result as a table, and as a file that the repository keeps.

use crate::check::{Done, Outcome};
use crate::target::{Kind, Target};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// How many ran, passed, failed and were skipped.
fn sums(results: &[Done]) -> (usize, usize, usize) {
    let count = |f: fn(&Outcome) -> bool| results.iter().filter(|r| f(&r.outcome)).count();
    (
        count(|o| matches!(o, Outcome::Passed)),
        count(|o| matches!(o, Outcome::Failed(_))),
        count(|o| matches!(o, Outcome::Skipped(_))),
    )
}

/// One line for people, and what did not pass.
pub(crate) fn table(target: &Target, results: &[Done]) -> String {
    let (passed, failed, skipped) = sums(results);
    let mut text = format!(
        "contract suite against {}: {} checks ran, {passed} passed, {failed} failed; {skipped} were skipped",
        target.title(),
        passed + failed,
    );
    for result in results {
        // Writing to a string cannot fail.
        let _ = match &result.outcome {
            Outcome::Passed => Ok(()),
            Outcome::Failed(why) => write!(text, "\n  FAILED  {}: {why}", result.name),
            Outcome::Skipped(why) => write!(text, "\n  skipped {}: {why}", result.name),
        };
    }
    text
}

/// Appends a check's line to `simulated.jsonl` or `real.jsonl` in the folder that HOTBUNK_CONTRACT_RECORD names;
/// `tests/contract/record` makes the repository's `RESULT.md` of them.
pub(crate) fn write(target: &Target, result: &Done) -> std::io::Result<()> {
    let Some(folder) = std::env::var_os("HOTBUNK_CONTRACT_RECORD").map(PathBuf::from) else { return Ok(()) };
    std::fs::create_dir_all(&folder)?;
    let name = match target.kind() {
        Kind::Simulated => "simulated.jsonl",
        Kind::Real => "real.jsonl",
    };
    let (outcome, why) = match &result.outcome {
        Outcome::Passed => ("passed", ""),
        Outcome::Failed(why) => ("failed", why.lines().next().unwrap_or_default()),
        Outcome::Skipped(why) => ("skipped", *why),
    };
    let line = json!({
        "name": result.name, "follows": result.follows, "outcome": outcome, "why": why,
        "took_s": result.took.as_secs_f64(),
    });
    writeln!(File::options().create(true).append(true).open(folder.join(name))?, "{line}")
}
