//! Answers of the gateway's own: errors in the client's API's form, and small JSON documents.
//!
//! An error says what was wrong and what to do. Whether to try again is told twice: by `Retry-After`, which is there
//! only where trying again may help, and by `x-should-retry: false` where it cannot, which OpenAI's clients obey (by
//! themselves they repeat every 409, 429 and 5xx).

use super::head::{self, REQUEST_ID};
use super::route::Face;
use super::{body, form, peek};
use crate::gateway::{Eta, Refusal};
use bytes::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Why a request has no answer of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// Status, where it can still be sent.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: &'static str,
    /// OpenAI's `param`.
    pub param: Option<&'static str>,
    /// What was wrong, and what to do.
    pub message: String,
    /// Seconds after which to try again, where that may help.
    pub retry_after: Option<u64>,
    /// Methods that the path has.
    pub allow: Option<&'static str>,
}

impl Failure {
    /// A fault of the request.
    pub(super) fn bad(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Failure {
            status,
            kind: "invalid_request_error",
            code,
            param: None,
            message: message.into(),
            retry_after: None,
            allow: None,
        }
    }

    /// No fault of the request.
    pub(super) fn ours(code: &'static str, message: impl Into<String>, retry_after: u64) -> Self {
        Failure {
            kind: "server_error",
            retry_after: Some(retry_after),
            ..Failure::bad(StatusCode::SERVICE_UNAVAILABLE, code, message)
        }
    }

    /// In the words of an API.
    pub(super) fn json(&self, face: Face) -> Value {
        let error =
            json!({ "message": self.message, "type": self.kind, "param": self.param, "code": self.code });
        match face {
            Face::OpenAi | Face::Responses => json!({ "error": error }),
            // Anthropic's envelope; what it wraps is both APIs' at once.
            Face::Messages => json!({ "type": "error", "error": error }),
        }
    }

    /// As an answer.
    pub(super) fn answer(&self, face: Face, id: &HeaderValue) -> Response<Bytes> {
        let mut response = json_answer(self.status, &self.json(face), id);
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        } else if self.status.is_server_error() || self.status == StatusCode::CONFLICT {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        response
    }

    /// As the last events of a stream that has begun. After it vLLM says `[DONE]` where the API has it, and so do we:
    /// clients that read errors raise it, those that do not still find the end that they wait for.
    pub(super) fn events(&self, face: Face) -> Bytes {
        let error = self.json(face);
        Bytes::from(match face {
            Face::OpenAi => format!("data: {error}\n\ndata: [DONE]\n\n"),
            Face::Responses => {
                let event = json!({
                    "type": "error", "code": self.code, "message": self.message, "param": self.param,
                    "sequence_number": 0, "error": error["error"],
                });
                format!("event: error\ndata: {event}\n\n")
            }
            Face::Messages => format!("event: error\ndata: {error}\n\n"),
        })
    }

    /// An engine's own error, as what it said.
    pub(super) fn of_engine(status: StatusCode, said: &[u8]) -> Self {
        let said_json: Value = serde_json::from_slice(said).unwrap_or(Value::Null);
        let message = said_json.pointer("/error/message").and_then(Value::as_str);
        let text = message.map_or_else(|| String::from_utf8_lossy(said).trim().to_owned(), str::to_owned);
        let message = if text.is_empty() { format!("the engine answered {status}") } else { text };
        if status.is_client_error() {
            return Failure::bad(status, "engine_refused", message);
        }
        Failure { status, retry_after: None, ..Failure::ours("engine_error", message, 1) }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure {
            status: refusal.status(),
            kind: refusal.kind(),
            code: refusal.code(),
            param: None,
            message: refusal.to_string(),
            retry_after: refusal.retry_after_seconds(),
            allow: None,
        }
    }
}

impl From<peek::Error> for Failure {
    fn from(error: peek::Error) -> Self {
        let (code, param) = match &error {
            peek::Error::Malformed(_) | peek::Error::NotAnObject(_) => ("invalid_json", None),
            peek::Error::NoModel => ("model_required", Some("model")),
            peek::Error::ModelNotText(_) => ("invalid_model", Some("model")),
        };
        Failure { param, ..Failure::bad(StatusCode::BAD_REQUEST, code, error.to_string()) }
    }
}

impl From<form::Error> for Failure {
    fn from(error: form::Error) -> Self {
        let (code, param) = match &error {
            form::Error::NoBoundary | form::Error::Malformed(_) => ("invalid_form", None),
            form::Error::NoModel => ("model_required", Some("model")),
        };
        Failure { param, ..Failure::bad(StatusCode::BAD_REQUEST, code, error.to_string()) }
    }
}

impl From<body::Error> for Failure {
    fn from(error: body::Error) -> Self {
        let (status, code) = match error {
            body::Error::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            body::Error::TooSlow => (StatusCode::REQUEST_TIMEOUT, "body_too_slow"),
            body::Error::Broken => (StatusCode::BAD_REQUEST, "body_incomplete"),
        };
        Failure::bad(status, code, error.to_string())
    }
}

/// A JSON document.
pub(super) fn json_answer(status: StatusCode, document: &Value, id: &HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(document.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REQUEST_ID, id.clone());
    response
}

/// Where a request stands in its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    /// Its place, 1 is next.
    pub position: Option<usize>,
    /// When its model should serve.
    pub eta: Eta,
}

impl Standing {
    /// As headers.
    pub(super) fn write(&self, headers: &mut hyper::HeaderMap) {
        if let Some(position) = self.position {
            headers.insert(head::QUEUE_POSITION, HeaderValue::from(position));
        }
        if let Eta::In(time) = self.eta
            && let Ok(value) = HeaderValue::try_from(format!("{:.1}", time.as_secs_f64()))
        {
            headers.insert(head::ETA, value);
        }
    }

    /// As a comment in a stream.
    pub(super) fn comment(&self) -> Bytes {
        let place = self.position.map_or_else(String::new, |p| format!(" position={p}"));
        let eta = match self.eta {
            Eta::In(time) => format!(" eta_s={:.1}", time.as_secs_f64()),
            Eta::Serving | Eta::Unknown => String::new(),
        };
        Bytes::from(format!(": hotbunk waiting{place}{eta}\n\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn id() -> HeaderValue {
        HeaderValue::from_static("x")
    }

    #[test]
    fn an_error_says_whether_to_try_again() {
        let refusal = Refusal::Paused { retry_after: Duration::from_millis(1500) };
        let response = Failure::from(refusal).answer(Face::OpenAi, &id());
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &HeaderValue::from(2))
        );
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["error"]["code"], "paused");
        assert_eq!(body["error"]["type"], "server_error");
        let response =
            Failure::from(Refusal::WouldSwitch { state: "parked".into() }).answer(Face::OpenAi, &id());
        assert_eq!(
            (response.status().as_u16(), response.headers()["x-should-retry"].to_str().unwrap()),
            (409, "false")
        );
        let response = Failure::bad(StatusCode::BAD_REQUEST, "c", "m").answer(Face::Messages, &id());
        let body: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!((&body["type"], &body["error"]["message"]), (&json!("error"), &json!("m")));
        assert!(!response.headers().contains_key("x-should-retry"));
    }

    #[test]
    fn the_last_events_are_well_formed() {
        let failure = Failure::ours("aborted", "a \"quoted\"\nline", 1);
        for face in [Face::OpenAi, Face::Responses, Face::Messages] {
            let events = failure.events(face);
            let text = std::str::from_utf8(&events).unwrap();
            assert!(text.ends_with("\n\n"));
            let data = text.lines().find_map(|l| l.strip_prefix("data: ")).unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["error"]["message"], "a \"quoted\"\nline", "{face:?}");
            assert_eq!(text.contains("[DONE]"), face == Face::OpenAi);
        }
    }

    #[test]
    fn an_engines_error_keeps_its_words() {
        let said = br#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
        let failure = Failure::of_engine(StatusCode::BAD_REQUEST, said);
        assert_eq!((failure.status.as_u16(), &*failure.message), (400, "too long"));
        assert_eq!(Failure::of_engine(StatusCode::BAD_GATEWAY, b" oops ").message, "oops");
        assert!(Failure::of_engine(StatusCode::INTERNAL_SERVER_ERROR, b"").message.contains("500"));
    }
}
