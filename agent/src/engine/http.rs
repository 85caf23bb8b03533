//! One request with one deadline, on a connection of its own.
//!
//! Of its own, because vLLM's HTTP server closes the connection after every answer that an unhandled error became (seen
//! on 0.32: a refused `/release_kv_cache_memory`, then a `/resume` on the same connection, which was reset). The answer
//! does not say so, and a call written into such a connection looks exactly like one to a server that has died. A new
//! loopback connection costs a tenth of a millisecond; the wrong answer costs the engine.

use super::{Client, Error};
use hotbunk_measure::error::{cause, words};
use reqwest::{Method, header};
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// The largest body that is read, in bytes; `/openapi.json` of 0.32 has 286 kB.
const LARGEST_BODY: usize = 8 << 20;

/// How a request ended.
#[derive(Debug)]
pub(super) enum Reply {
    /// A status and a whole body.
    Answer { status: u16, body: Vec<u8> },
    /// The deadline passed.
    Unknown,
    /// No connection, or it broke.
    Gone { message: String },
}

impl Reply {
    /// The body of a 200.
    pub(super) fn ok(self, route: &str) -> Result<Vec<u8>, Error> {
        let route = route.to_owned();
        match self {
            Reply::Answer { status: 200, body } => Ok(body),
            Reply::Answer { status, body } => Err(Error::Refused { route, status, message: words(&body) }),
            Reply::Unknown => Err(Error::Unknown { route }),
            Reply::Gone { message } => Err(Error::Gone { route, message }),
        }
    }
}

/// What is left of a deadline that several requests share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget(Instant);

impl Budget {
    pub(super) fn new(deadline: Duration) -> Self {
        // A deadline too far to be an instant is one that never comes; a year is as good.
        let now = Instant::now();
        Budget(now.checked_add(deadline).unwrap_or(now + Duration::from_secs(31_536_000)))
    }

    pub(super) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

impl Client {
    pub(super) async fn get(&self, path: &str, deadline: Duration) -> Reply {
        self.send(Method::GET, path, None, deadline).await
    }

    pub(super) async fn post(&self, path: &str, body: Option<&Value>, deadline: Duration) -> Reply {
        self.send(Method::POST, path, body, deadline).await
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>, deadline: Duration) -> Reply {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.endpoint.base.trim_end_matches('/')))
            .header(header::CONNECTION, "close");
        if let Some(body) = body {
            request = request.json(body);
        }
        if path.starts_with("/v1/")
            && let Some(key) = &self.endpoint.api_key
        {
            request = request.bearer_auth(key);
        }
        let exchange = async {
            let mut response = send_when_possible(request).await?;
            let status = response.status().as_u16();
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                body.extend_from_slice(&chunk);
                if body.len() > LARGEST_BODY {
                    break;
                }
            }
            Ok::<_, reqwest::Error>(Reply::Answer { status, body })
        };
        match tokio::time::timeout(deadline, exchange).await {
            Ok(Ok(reply)) => reply,
            Err(_) => Reply::Unknown,
            // A connection that did not come up in time: the backlog is full, the process is there.
            Ok(Err(e)) if e.is_timeout() => Reply::Unknown,
            Ok(Err(e)) if is_our_own(&e) => Reply::Unknown,
            Ok(Err(e)) => Reply::Gone { message: cause(&e) },
        }
    }
}

/// How long to wait before a connection is tried again that this process had no means for.
const AGAIN: Duration = Duration::from_millis(50);

/// Sends, and while this process cannot even make a socket, tries again: nothing has been sent then, and that says
/// nothing of the engine. The caller's deadline ends it.
async fn send_when_possible(request: reqwest::RequestBuilder) -> reqwest::Result<reqwest::Response> {
    loop {
        let Some(attempt) = request.try_clone() else { return request.send().await };
        match attempt.send().await {
            Err(e) if e.is_connect() && is_our_own(&e) => tokio::time::sleep(AGAIN).await,
            other => return other,
        }
    }
}

/// Whether a failure is this process's own want of descriptors or memory. An engine is never judged by it: one that is
/// taken for dead is killed.
fn is_our_own(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustix::io::Errno;
    const OURS: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    let mut cause = Some(error);
    while let Some(error) = cause {
        let errno = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if errno.is_some_and(|code| OURS.iter().any(|ours| ours.raw_os_error() == code)) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_want_of_descriptors_is_ours_and_a_refused_connection_is_the_engine_s() {
        let of = |code: i32| is_our_own(&Outer(std::io::Error::from_raw_os_error(code)));
        assert!(of(24) && of(23), "EMFILE, ENFILE");
        assert!(!of(111) && !of(104), "ECONNREFUSED, ECONNRESET");
        assert!(!is_our_own(&Outer(std::io::Error::other("no number"))));
    }
}
