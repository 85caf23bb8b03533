//! Asking a server.

use crate::stream::Stream;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::time::Duration;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    pub(crate) text: String,
    /// Null where the body is no JSON.
    pub(crate) json: Value,
}

impl Reply {
    /// Asserts vLLM's form of an error, and returns its message and parameter.
    #[track_caller]
    pub(crate) fn error(&self, status: u16) -> (&str, &Value) {
        let error = &self.json["error"];
        assert!(self.status == status && error["code"] == status, "{} {}", self.status, self.text);
        let fields: Vec<&str> = error.as_object().into_iter().flatten().map(|(k, _)| k.as_str()).collect();
        assert_eq!(fields.len(), 4, "{fields:?}");
        assert!(["message", "type", "param", "code"].iter().all(|f| fields.contains(f)), "{fields:?}");
        let kind = if status == 500 { "InternalServerError" } else { "" };
        assert!(kind.is_empty() || error["type"] == kind, "{}", self.text);
        (error["message"].as_str().unwrap_or_else(|| panic!("{}", self.text)), &error["param"])
    }
}

/// A server's HTTP face; each request has a connection of its own.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    port: u16,
    key: &'static str,
    client: Client,
}

impl Http {
    pub(crate) fn new(port: u16, key: &'static str) -> Self {
        let client = Client::builder().pool_max_idle_per_host(0).no_proxy().build().expect("a client");
        Http { port, key, client }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// A request that may be given up.
    pub(crate) async fn attempt(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        has_key: bool,
        patience: Duration,
    ) -> Result<Reply, reqwest::Error> {
        let mut request = self.client.request(method, self.url(path)).timeout(patience);
        if let Some(body) = body {
            request = request.json(body);
        }
        if has_key {
            request = request.header("authorization", format!("Bearer {}", self.key));
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let content_type = kind.to_owned();
        let text = response.text().await?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Reply { status, content_type, text, json })
    }

    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        has_key: bool,
    ) -> Reply {
        let reply = self.attempt(method, path, body, has_key, PATIENCE).await;
        reply.unwrap_or_else(|e| panic!("{path}: {e:?}"))
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.request(Method::GET, path, None, true).await
    }

    /// The status, if there is an answer.
    pub(crate) async fn try_get(&self, path: &str) -> Option<u16> {
        let reply = self.attempt(Method::GET, path, None, true, Duration::from_secs(20)).await;
        reply.ok().map(|r| r.status)
    }

    /// Without a body.
    pub(crate) async fn post(&self, path: &str) -> Reply {
        self.request(Method::POST, path, None, true).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Reply {
        self.request(Method::POST, path, Some(body), true).await
    }

    /// With this body, whatever it is.
    pub(crate) async fn post_text(&self, path: &str, kind: &str, body: &str) -> Reply {
        let request = self.client.post(self.url(path)).timeout(PATIENCE).header("content-type", kind);
        let request = request.header("authorization", format!("Bearer {}", self.key));
        let response = request.body(body.to_owned()).send().await.expect("an answer");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status, content_type: String::new(), text, json }
    }

    /// Opens a streamed completion.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let request = self.client.post(self.url(path)).json(&body);
        let request = request.header("authorization", format!("Bearer {}", self.key));
        Stream::new(request.send().await.expect("an answer"))
    }
}
