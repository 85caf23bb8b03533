//! The result as a table, and as a file that the repository keeps.

use crate::check::{Done, Outcome};
use crate::target::{Kind, Target};
use std::fmt::Write;
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

/// Writes `simulated.md` or `real.md` into the folder that HOTBUNK_CONTRACT_RECORD names; `tests/contract/record` puts
/// the two into the repository's `RESULT.md`.
pub(crate) fn write(target: &Target, results: &[Done]) -> std::io::Result<()> {
    let Some(folder) = std::env::var_os("HOTBUNK_CONTRACT_RECORD").map(PathBuf::from) else { return Ok(()) };
    std::fs::create_dir_all(&folder)?;
    let name = match target.kind() {
        Kind::Simulated => "simulated.md",
        Kind::Real => "real.md",
    };
    let (passed, failed, skipped) = sums(results);
    let took: f64 = results.iter().map(|r| r.took.as_secs_f64()).sum();
    let mut text = format!(
        "{} ran, {passed} passed, {failed} failed, {skipped} skipped; {took:.0} s without the starts.\n\n\
         | check | result | follows |\n|---|---|---|\n",
        passed + failed,
    );
    for result in results {
        let outcome = match &result.outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(why) => format!("**failed**: {}", why.lines().next().unwrap_or_default()),
            Outcome::Skipped(why) => format!("skipped: {why}"),
        };
        // A bar would end the cell.
        let cell = |text: &str| text.replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {} | {} |", result.name, cell(&outcome), cell(result.follows));
    }
    std::fs::write(folder.join(name), text)
}
