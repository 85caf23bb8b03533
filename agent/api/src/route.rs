//! Every route of the control API, once.

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Asks for something to be done.
    Post,
}

/// A route. The agent's router matches on it exhaustively, so a route cannot be documented but not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Route {
    /// Who answers.
    Version,
    /// This API's OpenAPI document.
    OpenApi,
    /// The node at this instant.
    Status,
    /// Operations, newest first.
    Operations,
    /// Ask for an operation.
    Submit,
    /// One operation; can wait for its end.
    Operation,
    /// Give one up.
    CancelOperation,
    /// What a switch would do.
    Explain,
    /// Cycle runs and plans.
    Cycles,
    /// Begin a cycle run.
    RunCycle,
    /// One cycle run; can wait for its end.
    Cycle,
    /// Give one up.
    CancelCycle,
    /// Switch report of a run.
    Report,
    /// The same as a readable table.
    ReportTable,
    /// The journal.
    Journal,
    /// Last lines of an engine's log.
    Logs,
    /// An engine's log as it is written (SSE).
    FollowLogs,
    /// What changes, as it changes (SSE).
    Events,
    /// What the agent finds around it.
    Doctor,
    /// Check a configuration's text.
    Check,
    /// Apply the configuration file as it is now.
    Reload,
}

impl Route {
    /// Every route.
    pub const ALL: &'static [Route] = &[
        Route::Version,
        Route::OpenApi,
        Route::Status,
        Route::Operations,
        Route::Submit,
        Route::Operation,
        Route::CancelOperation,
        Route::Explain,
        Route::Cycles,
        Route::RunCycle,
        Route::Cycle,
        Route::CancelCycle,
        Route::Report,
        Route::ReportTable,
        Route::Journal,
        Route::Logs,
        Route::FollowLogs,
        Route::Events,
        Route::Doctor,
        Route::Check,
        Route::Reload,
    ];

    /// Its method.
    pub fn method(self) -> Method {
        match self {
            Route::Submit
            | Route::CancelOperation
            | Route::Explain
            | Route::RunCycle
            | Route::CancelCycle
            | Route::Check
            | Route::Reload => Method::Post,
            _ => Method::Get,
        }
    }

    /// Its path, with `{parameters}`.
    pub fn path(self) -> &'static str {
        match self {
            Route::Version => "/v1/version",
            Route::OpenApi => "/v1/openapi.json",
            Route::Status => "/v1/status",
            Route::Operations | Route::Submit => "/v1/operations",
            Route::Operation => "/v1/operations/{id}",
            Route::CancelOperation => "/v1/operations/{id}/cancel",
            Route::Explain => "/v1/explain",
            Route::Cycles | Route::RunCycle => "/v1/cycles",
            Route::Cycle => "/v1/cycles/{id}",
            Route::CancelCycle => "/v1/cycles/{id}/cancel",
            Route::Report => "/v1/cycles/{id}/report",
            Route::ReportTable => "/v1/cycles/{id}/report.txt",
            Route::Journal => "/v1/journal",
            Route::Logs => "/v1/engines/{engine}/logs",
            Route::FollowLogs => "/v1/engines/{engine}/logs/follow",
            Route::Events => "/v1/events",
            Route::Doctor => "/v1/doctor",
            Route::Check => "/v1/check",
            Route::Reload => "/v1/reload",
        }
    }

    /// Its path with the parameter filled in (percent-encoded).
    pub fn path_with(self, parameter: &str) -> String {
        let path = self.path();
        match (path.find('{'), path.find('}')) {
            (Some(open), Some(close)) => {
                format!("{}{}{}", &path[..open], encode(parameter), &path[close + 1..])
            }
            _ => path.to_owned(),
        }
    }
}

/// Percent-encodes one path segment.
fn encode(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b'.') {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(b"0123456789ABCDEF"[usize::from(byte >> 4)]));
            out.push(char::from(b"0123456789ABCDEF"[usize::from(byte & 15)]));
        }
    }
    // A segment of dots alone would be resolved away by the client's URL parser.
    if out.chars().all(|c| c == '.') { out.replace('.', "%252E") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_listed_once() {
        let routes: BTreeSet<_> = Route::ALL.iter().map(|r| (r.method(), r.path())).collect();
        assert_eq!(routes.len(), Route::ALL.len());
        assert!(Route::ALL.is_sorted(), "ALL follows the declaration, so a missing one shows");
        assert_eq!(Route::ALL.last(), Some(&Route::Reload));
    }

    #[test]
    fn parameters_cannot_leave_their_segment() {
        assert_eq!(Route::Operation.path_with("a/../b?c"), "/v1/operations/a%2F..%2Fb%3Fc");
        assert_eq!(Route::Report.path_with("ä"), "/v1/cycles/%C3%A4/report");
        assert_eq!(Route::Logs.path_with(".."), "/v1/engines/%252E%252E/logs");
    }
}
