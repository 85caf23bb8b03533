//! A typed client of the control API, over the agent's unix socket.
//!
//! Each call is one request. Streams end when the agent ends them; the caller decides whether to go on with
//! [`Client::events`] and the last number seen.

mod sse;

use crate::check::{CheckReport, CheckRequest};
use crate::cycle::{CycleList, CycleRun, RunCycle};
use crate::doctor::DoctorReport;
use crate::error::{ApiError, ErrorBody};
use crate::event::{Event, EventsQuery};
use crate::explain::{ExplainRequest, Explanation};
use crate::journal::{JournalPage, JournalQuery};
use crate::logs::{LogLine, LogTail, LogsQuery};
use crate::operation::{MAX_WAIT_S, Operation, OperationList, Submit, WaitQuery};
use crate::reload::{ReloadReport, ReloadRequest};
use crate::route::{Method, Route};
use crate::status::Status;
use crate::version::VersionInfo;
use futures_util::{Stream, stream};
use reqwest::{RequestBuilder, Response};
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens on the socket, or it may not be opened.
    #[error("no agent answers on {}", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The agent refused, or failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The agent accepted the connection but did not answer in time.
    #[error("the agent on {} did not answer within {} s", socket.display(), within.as_secs_f64())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// How long was waited.
        within: Duration,
    },
    /// The connection broke before the answer was complete.
    #[error("the agent on {} closed the connection before it had answered", socket.display())]
    Lost {
        /// The socket.
        socket: PathBuf,
        /// What the connection said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer is not what this API promises: another version, or another program.
    #[error("the answer on {} is not one of Hotbunk's control API", socket.display())]
    BadAnswer {
        /// The socket.
        socket: PathBuf,
        /// What cannot be read.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// How long an ordinary call may take. Looking at the surroundings (`doctor`) and reports read files and ask drivers.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Speaks to one agent.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    http: reqwest::Client,
}

impl Client {
    /// A client for the agent on this socket. Connects with the first call.
    ///
    /// # Errors
    /// [`Error::BadAnswer`] where the HTTP client cannot be made (it has no TLS, so nothing of the system can fail).
    pub fn new(socket: impl Into<PathBuf>) -> Result<Self, Error> {
        let socket = socket.into();
        let http = reqwest::Client::builder()
            .unix_socket(socket.as_path())
            .no_proxy()
            .build()
            .map_err(|e| Error::BadAnswer { socket: socket.clone(), source: e.into() })?;
        Ok(Client { socket, http })
    }

    /// The socket that it speaks to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Who answers.
    ///
    /// # Errors
    /// [`Error`], as every call.
    pub async fn version(&self) -> Result<VersionInfo, Error> {
        self.read(self.request(Route::Version, None)).await
    }

    /// The node at this instant.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn status(&self) -> Result<Status, Error> {
        self.read(self.request(Route::Status, None)).await
    }

    /// Asks for an operation.
    ///
    /// # Errors
    /// [`Error`]; refusals are [`Error::Api`].
    pub async fn submit(&self, submit: &Submit) -> Result<Operation, Error> {
        self.read(self.request(Route::Submit, None).json(submit)).await
    }

    /// Operations that the agent remembers, newest first.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn operations(&self) -> Result<OperationList, Error> {
        self.read(self.request(Route::Operations, None)).await
    }

    /// One operation as it stands.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn operation(&self, id: &str) -> Result<Operation, Error> {
        self.read(self.request(Route::Operation, Some(id))).await
    }

    /// One operation when it is over, or as it stands after `at_most` (the agent waits 60 s at most).
    ///
    /// # Errors
    /// [`Error`].
    pub async fn wait_operation(&self, id: &str, at_most: Duration) -> Result<Operation, Error> {
        self.wait(Route::Operation, id, at_most).await
    }

    /// Gives an operation up.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn cancel_operation(&self, id: &str) -> Result<Operation, Error> {
        self.read(self.request(Route::CancelOperation, Some(id))).await
    }

    /// What a switch would do.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn explain(&self, request: &ExplainRequest) -> Result<Explanation, Error> {
        self.read(self.request(Route::Explain, None).json(request)).await
    }

    /// Cycle runs and plans.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn cycles(&self) -> Result<CycleList, Error> {
        self.read(self.request(Route::Cycles, None)).await
    }

    /// Begins a cycle run.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn run_cycle(&self, run: &RunCycle) -> Result<CycleRun, Error> {
        self.read(self.request(Route::RunCycle, None).json(run)).await
    }

    /// One run; `latest` is the newest.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn cycle(&self, id: &str) -> Result<CycleRun, Error> {
        self.read(self.request(Route::Cycle, Some(id))).await
    }

    /// One run when it is over, or as it stands after `at_most` (the agent waits 60 s at most).
    ///
    /// # Errors
    /// [`Error`].
    pub async fn wait_cycle(&self, id: &str, at_most: Duration) -> Result<CycleRun, Error> {
        self.wait(Route::Cycle, id, at_most).await
    }

    /// Gives a run up.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn cancel_cycle(&self, id: &str) -> Result<CycleRun, Error> {
        self.read(self.request(Route::CancelCycle, Some(id))).await
    }

    /// A run's switch report.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn report(&self, run: &str) -> Result<serde_json::Value, Error> {
        self.read(self.request(Route::Report, Some(run))).await
    }

    /// The same as a readable table.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn report_table(&self, run: &str) -> Result<String, Error> {
        let response = self.send(self.request(Route::ReportTable, Some(run)), Some(CALL_TIMEOUT)).await?;
        response.text().await.map_err(|e| self.broken(e, CALL_TIMEOUT))
    }

    /// Entries of the journal.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn journal(&self, query: &JournalQuery) -> Result<JournalPage, Error> {
        self.read(self.request(Route::Journal, None).query(query)).await
    }

    /// Last lines of an engine's log.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn logs(&self, engine: &str, query: LogsQuery) -> Result<LogTail, Error> {
        self.read(self.request(Route::Logs, Some(engine)).query(&query)).await
    }

    /// An engine's log as it is written, after its last lines.
    ///
    /// # Errors
    /// [`Error`], at once or as the stream's last item.
    pub async fn follow_logs(
        &self,
        engine: &str,
        query: LogsQuery,
    ) -> Result<impl Stream<Item = Result<LogLine, Error>> + Send + use<>, Error> {
        self.stream(self.request(Route::FollowLogs, Some(engine)).query(&query)).await
    }

    /// What changes, after event number `since`, or from now on.
    ///
    /// # Errors
    /// [`Error`], at once or as the stream's last item.
    pub async fn events(
        &self,
        since: Option<u64>,
    ) -> Result<impl Stream<Item = Result<Event, Error>> + Send + use<>, Error> {
        self.stream(self.request(Route::Events, None).query(&EventsQuery { since })).await
    }

    /// What the agent finds around it.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn doctor(&self) -> Result<DoctorReport, Error> {
        self.read(self.request(Route::Doctor, None)).await
    }

    /// Checks a configuration's text.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn check(&self, request: &CheckRequest) -> Result<CheckReport, Error> {
        self.read(self.request(Route::Check, None).json(request)).await
    }

    /// Applies the configuration file as it is now, or says what that would do.
    ///
    /// # Errors
    /// [`Error`]; that the file cannot be applied is no error of the call, but in the report.
    pub async fn reload(&self, request: &ReloadRequest) -> Result<ReloadReport, Error> {
        self.read(self.request(Route::Reload, None).json(request)).await
    }

    fn request(&self, route: Route, parameter: Option<&str>) -> RequestBuilder {
        let path = parameter.map_or_else(|| route.path().to_owned(), |p| route.path_with(p));
        let url = format!("http://localhost{path}");
        match route.method() {
            Method::Get => self.http.get(url),
            Method::Post => self.http.post(url),
        }
    }

    async fn wait<T: DeserializeOwned>(&self, route: Route, id: &str, at_most: Duration) -> Result<T, Error> {
        let wait = at_most.min(Duration::from_secs_f64(MAX_WAIT_S));
        let query = WaitQuery { wait_s: Some(wait.as_secs_f64()) };
        self.read_within(self.request(route, Some(id)).query(&query), wait + CALL_TIMEOUT).await
    }

    async fn read<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        self.read_within(request, CALL_TIMEOUT).await
    }

    async fn read_within<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        within: Duration,
    ) -> Result<T, Error> {
        let response = self.send(request, Some(within)).await?;
        let bytes = response.bytes().await.map_err(|e| self.broken(e, within))?;
        serde_json::from_slice(&bytes).map_err(|e| self.bad_answer(e))
    }

    /// Sends; turns every status but 2xx into the error that its body holds.
    async fn send(&self, request: RequestBuilder, within: Option<Duration>) -> Result<Response, Error> {
        let request = if let Some(within) = within { request.timeout(within) } else { request };
        let within = within.unwrap_or(CALL_TIMEOUT);
        let response = request.send().await.map_err(|e| self.broken(e, within))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let bytes = response.bytes().await.map_err(|e| self.broken(e, within))?;
        match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => Err(Error::Api(body.error)),
            Err(e) => Err(self.bad_answer(e)),
        }
    }

    /// A stream has no deadline: the agent sends keep-alives, and ends it when it stops.
    async fn stream<T: DeserializeOwned + Send>(
        &self,
        request: RequestBuilder,
    ) -> Result<impl Stream<Item = Result<T, Error>> + Send + use<T>, Error> {
        let response = self.send(request.header("accept", "text/event-stream"), None).await?;
        let state = Reading {
            client: self.clone(),
            response,
            parser: sse::Parser::default(),
            ready: VecDeque::new(),
            over: false,
        };
        Ok(stream::unfold(state, async |mut state| state.next().await.map(|item| (item, state))))
    }

    fn broken(&self, error: reqwest::Error, within: Duration) -> Error {
        let socket = self.socket.clone();
        if error.is_timeout() {
            return Error::Timeout { socket, within };
        }
        if error.is_connect() {
            return Error::Unreachable { socket, source: io_cause(&error) };
        }
        Error::Lost { socket, source: error.into() }
    }

    fn bad_answer(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::BadAnswer { socket: self.socket.clone(), source: source.into() }
    }
}

/// The I/O error at the bottom of the HTTP client's error: its kind tells a dead agent from a forbidden socket.
fn io_cause(error: &reqwest::Error) -> std::io::Error {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return io.raw_os_error().map_or_else(
                || std::io::Error::new(io.kind(), io.to_string()),
                std::io::Error::from_raw_os_error,
            );
        }
        cause = inner.source();
    }
    std::io::Error::other(error.to_string())
}

/// A stream being read.
struct Reading<T> {
    client: Client,
    response: Response,
    parser: sse::Parser,
    ready: VecDeque<Result<T, Error>>,
    over: bool,
}

impl<T: DeserializeOwned> Reading<T> {
    async fn next(&mut self) -> Option<Result<T, Error>> {
        while self.ready.is_empty() && !self.over {
            match self.response.chunk().await {
                Ok(Some(chunk)) => match self.parser.push(&chunk) {
                    Ok(events) => self.ready.extend(
                        events
                            .iter()
                            .map(|data| serde_json::from_str(data).map_err(|e| self.client.bad_answer(e))),
                    ),
                    Err(e) => self.end_with(self.client.bad_answer(e)),
                },
                Ok(None) => self.over = true,
                Err(e) => self.end_with(self.client.broken(e, CALL_TIMEOUT)),
            }
        }
        self.ready.pop_front()
    }

    fn end_with(&mut self, error: Error) {
        self.over = true;
        self.ready.push_back(Err(error));
    }
}
