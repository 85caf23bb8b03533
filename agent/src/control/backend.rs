//! What the control API needs of the agent.

use super::events::Subscription;
use super::peer::Peer;
use futures_util::Stream;
use hotbunk_api::check::{CheckReport, CheckRequest};
use hotbunk_api::cycle::{CycleList, CycleRun, PlanSource};
use hotbunk_api::doctor::DoctorReport;
use hotbunk_api::error::ApiError;
use hotbunk_api::explain::{ExplainRequest, Explanation};
use hotbunk_api::journal::{JournalPage, JournalQuery};
use hotbunk_api::logs::{LogLine, LogTail};
use hotbunk_api::operation::{Operation, OperationRequest};
use hotbunk_api::reload::{ReloadReport, ReloadRequest};
use hotbunk_api::status::Status;
use hotbunk_api::version::VersionInfo;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Lines of a log as they are written.
pub type LogStream = Pin<Box<dyn Stream<Item = LogLine> + Send>>;

/// The agent, as the control API sees it.
///
/// Methods may be called at any time and from many tasks. Dropping a returned future (a client that hangs up) cancels
/// nothing that was accepted.
pub trait Backend: Send + Sync + 'static {
    /// Who answers.
    fn version(&self) -> VersionInfo;

    /// The node at this instant.
    fn status(&self) -> impl Future<Output = Result<Status, ApiError>> + Send;

    /// Accepts or refuses an operation, at once: submissions are handed over one at a time, and the next waits for
    /// this answer. `id` is fresh, or the client's own and not seen before.
    ///
    /// A request that asks for what a running operation does already may *join* it: then that operation is returned,
    /// under its own id. A request with nothing to do is an operation that has succeeded, with a note.
    fn submit(
        &self,
        id: String,
        request: OperationRequest,
        peer: Peer,
    ) -> impl Future<Output = Result<Operation, ApiError>> + Send;

    /// The operations that are remembered, newest first.
    fn operations(&self) -> impl Future<Output = Result<Vec<Operation>, ApiError>> + Send;

    /// One operation as it stands; [`UnknownOperation`](hotbunk_api::error::ErrorCode::UnknownOperation) otherwise.
    fn operation(&self, id: &str) -> impl Future<Output = Result<Operation, ApiError>> + Send;

    /// The operation when it is over, or as it stands after `at_most`.
    fn wait(&self, id: &str, at_most: Duration) -> impl Future<Output = Result<Operation, ApiError>> + Send;

    /// Gives an operation up: it answers as it stands then, perhaps still rolling back.
    fn cancel(&self, id: &str, peer: Peer) -> impl Future<Output = Result<Operation, ApiError>> + Send;

    /// What a switch would do.
    fn explain(&self, request: ExplainRequest) -> impl Future<Output = Result<Explanation, ApiError>> + Send;

    /// Runs in the journal, newest first and without their steps, and the plans that have a name.
    fn cycles(&self) -> impl Future<Output = Result<CycleList, ApiError>> + Send;

    /// Begins a run, or refuses it, at once; see [`Backend::submit`].
    fn run_cycle(
        &self,
        id: String,
        plan: PlanSource,
        peer: Peer,
    ) -> impl Future<Output = Result<CycleRun, ApiError>> + Send;

    /// One run; [`UnknownRun`](hotbunk_api::error::ErrorCode::UnknownRun) otherwise.
    fn cycle(&self, id: &str) -> impl Future<Output = Result<CycleRun, ApiError>> + Send;

    /// The run when it is over, or as it stands after `at_most`.
    fn wait_cycle(
        &self,
        id: &str,
        at_most: Duration,
    ) -> impl Future<Output = Result<CycleRun, ApiError>> + Send;

    /// Gives a run up; the node is left as it was found.
    fn cancel_cycle(&self, id: &str, peer: Peer) -> impl Future<Output = Result<CycleRun, ApiError>> + Send;

    /// Switch report of a run.
    fn report(&self, run: &str) -> impl Future<Output = Result<serde_json::Value, ApiError>> + Send;

    /// The same as a readable table.
    fn report_table(&self, run: &str) -> impl Future<Output = Result<String, ApiError>> + Send;

    /// Entries of the journal. The query's limit is already within bounds.
    fn journal(&self, query: JournalQuery) -> impl Future<Output = Result<JournalPage, ApiError>> + Send;

    /// The last `lines` lines of an engine's log.
    fn logs(&self, engine: &str, lines: u32) -> impl Future<Output = Result<LogTail, ApiError>> + Send;

    /// The same, and every line that follows. The stream goes on over restarts of the engine.
    fn follow_logs(
        &self,
        engine: &str,
        lines: u32,
    ) -> impl Future<Output = Result<LogStream, ApiError>> + Send;

    /// What changes, after event number `since`, or from now on: see [`EventLog`](super::EventLog).
    fn events(&self, since: Option<u64>) -> Subscription;

    /// What the agent finds around it.
    fn doctor(&self) -> impl Future<Output = Result<DoctorReport, ApiError>> + Send;

    /// Checks a configuration's text.
    fn check(&self, request: CheckRequest) -> impl Future<Output = Result<CheckReport, ApiError>> + Send;

    /// Applies the configuration file as it is now, all of it or nothing, or says what that would do.
    fn reload(
        &self,
        request: ReloadRequest,
        peer: Peer,
    ) -> impl Future<Output = Result<ReloadReport, ApiError>> + Send;
}
