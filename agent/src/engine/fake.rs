//! A server for the tests of this module: it answers each route as told, and remembers what it was asked.

use super::{Client, Endpoint};
use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// What a route does.
#[derive(Debug, Clone)]
pub(super) enum Does {
    /// Status and body.
    Answers(u16, String),
    /// A stream of these events, then the end of the body.
    Streams(Vec<String>),
    /// Nothing, for ever.
    Hangs,
}

#[derive(Default)]
struct Inner {
    /// `GET /path?query` → what to do, one after the other; the last stays.
    script: HashMap<String, VecDeque<Does>>,
    asked: Vec<(String, String)>,
}

/// The server; it ends with the test's runtime.
#[derive(Clone)]
pub(super) struct Fake {
    inner: Arc<Mutex<Inner>>,
    base: String,
}

impl Fake {
    pub(super) async fn start() -> Self {
        let inner = Arc::new(Mutex::new(Inner::default()));
        let app = Router::new().fallback(answer).with_state(inner.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Fake { inner, base }
    }

    /// Adds a behaviour; several for one route follow each other.
    pub(super) fn on(&self, route: &str, does: Does) -> &Self {
        self.inner.lock().unwrap().script.entry(route.to_owned()).or_default().push_back(does);
        self
    }

    /// Adds an answer.
    pub(super) fn says(&self, route: &str, status: u16, body: &str) -> &Self {
        self.on(route, Does::Answers(status, body.to_owned()))
    }

    /// `METHOD /path?query` of every request so far.
    pub(super) fn asked(&self) -> Vec<String> {
        self.inner.lock().unwrap().asked.iter().map(|(route, _)| route.clone()).collect()
    }

    /// The body of the last request.
    pub(super) fn last_body(&self) -> String {
        self.inner.lock().unwrap().asked.last().map(|(_, body)| body.clone()).unwrap_or_default()
    }

    pub(super) fn client(&self) -> Client {
        self.client_with(|_| {})
    }

    pub(super) fn client_with(&self, change: impl FnOnce(&mut Endpoint)) -> Client {
        let mut endpoint =
            Endpoint { base: self.base.clone(), model: "A".into(), api_key: None, load_tracking: false };
        change(&mut endpoint);
        Client::new(endpoint).unwrap()
    }
}

async fn answer(State(inner): State<Arc<Mutex<Inner>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body: Bytes = to_bytes(body, 1 << 20).await.unwrap();
    let route = format!("{} {}", parts.method, parts.uri.path_and_query().unwrap());
    let key = parts.headers.get(header::AUTHORIZATION).map(|v| format!(" [{}]", v.to_str().unwrap()));
    let does = {
        let mut inner = inner.lock().unwrap();
        inner
            .asked
            .push((route.clone() + &key.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap()));
        match inner.script.get_mut(&route) {
            Some(queue) if queue.len() > 1 => queue.pop_front(),
            Some(queue) => queue.front().cloned(),
            None => None,
        }
    };
    match does {
        None => (StatusCode::NOT_FOUND, r#"{"detail":"Not Found"}"#).into_response(),
        Some(Does::Hangs) => std::future::pending().await,
        Some(Does::Answers(status, body)) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Some(Does::Streams(events)) => {
            let body: String = events.iter().map(|e| format!("data: {e}\n\n")).collect();
            ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
        }
    }
}
