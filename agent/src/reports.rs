//! Reports from the journal: read the records of a run, compute, nothing else.

use crate::effects::chain;
use crate::journal::{Journal, Query, Span};
use crate::report::{self, switch_report};
use hotbunk_api::error::{ApiError, ErrorCode};
use hotbunk_api::report::SwitchReport;

/// The switch report of a run, however long ago it was.
///
/// # Errors
/// No such run, or the journal cannot be read.
pub async fn of_run(journal: &Journal, run: &str) -> Result<SwitchReport, ApiError> {
    let id = run.to_owned();
    let read = move |reader: &crate::journal::Reader| {
        let page = reader.entries(&Query::all().run(id))?;
        let (Some(first), Some(last)) = (page.entries.first(), page.entries.last()) else { return Ok(None) };
        // Not beyond the last record: what is sampled later would change the report of a run that is over.
        let span = Span::Wall { from: first.wall - MARGIN, to: last.wall };
        let samples = reader.samples(&span, None)?;
        let host = reader.host_samples(&span, None)?;
        Ok(Some((page.entries, samples, host)))
    };
    let internal = |message: String| ApiError::new(ErrorCode::Internal, message);
    let Some((entries, samples, host)) = journal.read(read).await.map_err(|e| internal(chain(&e)))? else {
        return Err(ApiError::new(ErrorCode::UnknownRun, format!("there is no run `{run}` in the journal"))
            .help("`ctl cycle list` shows the runs"));
    };
    // A pure computation over some thousand rows, on a thread where it delays nobody.
    tokio::task::spawn_blocking(move || switch_report(&entries, &samples, &host))
        .await
        .map_err(|e| internal(e.to_string()))?
        .map_err(|e| ApiError::new(ErrorCode::ReportUnavailable, chain(&e)))
}

/// The same as a readable table.
///
/// # Errors
/// As [`of_run`].
pub async fn table_of_run(journal: &Journal, run: &str) -> Result<String, ApiError> {
    Ok(report::table(&of_run(journal, run).await?))
}

/// Windows of a report reach back beyond the run's first record, seconds.
const MARGIN: f64 = 5.0;
