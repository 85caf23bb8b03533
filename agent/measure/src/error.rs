//! The ways in which a measured request can fail, and how an engine's own words are carried.

use std::time::Duration;

/// The longest message of an engine that is kept, in characters.
const LONGEST_MESSAGE: usize = 300;

/// Why a request was not a success.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The client itself could not be built.
    #[error("no HTTP client: {reason}")]
    Client {
        /// What the library said.
        reason: String,
    },
    /// No connection, or the connection closed before a status came.
    #[error("no answer from {url}: {reason}")]
    Connect {
        /// Where to.
        url: String,
        /// What the socket said.
        reason: String,
    },
    /// A status other than 200.
    #[error("{url} answered {status}: {message}")]
    Http {
        /// Where to.
        url: String,
        /// HTTP status.
        status: u16,
        /// The server's own words, shortened.
        message: String,
    },
    /// The stream ended before it was complete.
    #[error("the stream broke off after {chunks} chunks: {missing}")]
    Truncated {
        /// Chunks with output that had come.
        chunks: u64,
        /// What had not come, or what the socket said.
        missing: String,
    },
    /// The deadline passed.
    #[error("not complete after {:.1} s{}", after.as_secs_f64(), if *.first_token { "" } else { " (not even a first token)" })]
    Timeout {
        /// The deadline that was given.
        after: Duration,
        /// Whether a first token had come.
        first_token: bool,
    },
    /// An error inside a 200 response, or a stream that is not one.
    #[error("error inside the stream: {message}")]
    Stream {
        /// The server's own words, shortened.
        message: String,
    },
    /// The engine ended the request: `finish_reason: "abort"`. To be sent again, not a success.
    #[error("the engine aborted the request (finish_reason \"abort\")")]
    Aborted,
}

impl Error {
    /// A stable word for counting errors by kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Client { .. } => "client",
            Error::Connect { .. } => "connect",
            Error::Http { status: 429, .. } => "rejected_429",
            Error::Http { .. } => "http",
            Error::Truncated { .. } => "truncated",
            Error::Timeout { .. } => "timeout",
            Error::Stream { .. } => "stream_error",
            Error::Aborted => "aborted",
        }
    }

    /// The HTTP status, where one came: a stream that breaks after its header has 200.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Http { status, .. } => Some(*status),
            Error::Truncated { .. } | Error::Stream { .. } | Error::Aborted => Some(200),
            Error::Timeout { first_token, .. } => first_token.then_some(200),
            Error::Client { .. } | Error::Connect { .. } => None,
        }
    }
}

/// The engine's own words out of an error body, on one line and at most 300 characters long.
///
/// Seen bodies: `{"error":{"message":…}}` (vLLM ≥ 0.10 or so, every route), `{"error":"…"}` (`/pause`),
/// `{"detail":"…"}` or `{"detail":[{"msg":…}]}` (FastAPI's own), `{"message":…}` (old vLLM), plain text, nothing.
pub fn words(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(value) => spoken(&value).unwrap_or_else(|| value.to_string()),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let text = shorten(&text);
    if text.is_empty() { "(empty body)".to_owned() } else { text }
}

fn spoken(value: &serde_json::Value) -> Option<String> {
    use serde_json::Value;
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Array(items) => items.first().and_then(spoken),
        Value::Object(map) => {
            ["error", "detail", "message", "msg"].iter().find_map(|key| map.get(*key)).and_then(spoken)
        }
        _ => None,
    }
}

/// A text on one line, cut at 300 characters (`…` marks the cut).
pub fn shorten(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.chars().count() > LONGEST_MESSAGE {
        line = line.chars().take(LONGEST_MESSAGE - 1).collect();
        line.push('…');
    }
    line
}

/// The innermost cause of a transport error: the outer layers of HTTP libraries only repeat the URL.
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(next) = innermost.source() {
        innermost = next;
    }
    shorten(&innermost.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seen_body_yields_the_engines_words() {
        let cases: [(&str, &str); 9] = [
            (
                r#"{"error":{"message":"Call to sleep method failed: Worker failed with error 'Memory usage increased after sleeping.'","type":"InternalServerError","param":null,"code":500}}"#,
                "Call to sleep method failed: Worker failed with error 'Memory usage increased after sleeping.'",
            ),
            (r#"{"error":"Failed to pause generation: boom"}"#, "Failed to pause generation: boom"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"{"detail":[{"type":"missing","loc":["query"],"msg":"Field required"}]}"#, "Field required"),
            (
                r#"{"object":"error","message":"The model does not exist.","code":404}"#,
                "The model does not exist.",
            ),
            ("Internal Server Error", "Internal Server Error"),
            ("a\n  traceback\twith lines", "a traceback with lines"),
            ("", "(empty body)"),
            (r#"{"code":7}"#, r#"{"code":7}"#),
        ];
        for (body, expected) in cases {
            assert_eq!(words(body.as_bytes()), expected, "{body}");
        }
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        let cut = shorten(&"ü".repeat(1000));
        assert_eq!(cut.chars().count(), LONGEST_MESSAGE);
        assert!(cut.ends_with('…'));
    }

    #[test]
    fn kinds_are_those_of_the_load_report() {
        let http = |status| Error::Http { url: String::new(), status, message: String::new() };
        assert_eq!(http(429).kind(), "rejected_429");
        assert_eq!(http(503).kind(), "http");
        assert_eq!(Error::Aborted.status(), Some(200));
    }
}
