//! One engine, spoken to behind the agent's back: requests as clients send them, faults as only tests do. The same as
//! clients see it, through the gateway: then its port is the gateway's.

use crate::wait::{PATIENCE, until};
use reqwest::{Client, Response};
use serde_json::{Value, json};

/// A prompt that every test uses: equal prompts have equal answers.
const PROMPT: &str = "the tide turns";

/// An engine's HTTP face.
#[derive(Debug, Clone)]
pub struct Engine {
    name: String,
    port: u16,
    model: String,
    http: Client,
}

impl Engine {
    /// The one that serves this model on this port of the loopback address.
    ///
    /// # Panics
    /// There is no client.
    pub fn new(name: &str, port: u16, model: &str) -> Self {
        let http = Client::builder().pool_max_idle_per_host(0).no_proxy().build().expect("a client");
        Engine { name: name.to_owned(), port, model: model.to_owned(), http }
    }

    /// Its short name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its model.
    pub fn model(&self) -> &str {
        &self.model
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What `/v1/models` answers; `None` where nobody does.
    pub async fn try_models(&self) -> Option<Value> {
        let sent = self.http.get(self.url("/v1/models")).timeout(PATIENCE).send().await;
        sent.ok()?.error_for_status().ok()?.json().await.ok()
    }

    /// POST without a body; the status.
    ///
    /// # Panics
    /// There is no answer.
    pub async fn post(&self, path: &str) -> u16 {
        let sent = self.http.post(self.url(path)).timeout(PATIENCE).send().await;
        sent.expect("an answer").status().as_u16()
    }

    /// The same of an engine that may be gone; `None` where there is no answer.
    pub async fn try_post(&self, path: &str) -> Option<u16> {
        let sent = self.http.post(self.url(path)).timeout(PATIENCE).send().await;
        Some(sent.ok()?.status().as_u16())
    }

    /// Arms a fault of an engine that may be gone, or not be there yet; whether it did.
    pub async fn try_fault(&self, kind: &str, arg: Option<f64>) -> bool {
        let mut body = json!({ "kind": kind });
        if let Some(arg) = arg {
            body["arg"] = json!(arg);
        }
        let sent = self.http.post(self.url("/sim/fault")).json(&body).timeout(PATIENCE).send().await;
        sent.is_ok_and(|answer| answer.status() == 200)
    }

    /// Whether a fault is armed that has not struck for the last time; not of an engine that is gone.
    pub async fn is_armed(&self, kind: &str) -> bool {
        let Ok(answer) = self.http.get(self.url("/sim/fault")).timeout(PATIENCE).send().await else {
            return false;
        };
        answer.text().await.is_ok_and(|text| text.contains(&format!("\"{kind}\"")))
    }

    /// Arms a fault.
    ///
    /// # Panics
    /// The engine does not take it.
    pub async fn fault(&self, kind: &str, arg: Option<f64>, count: Option<u32>) {
        let mut body = json!({ "kind": kind });
        if let Some(arg) = arg {
            body["arg"] = json!(arg);
        }
        if let Some(count) = count {
            body["count"] = json!(count);
        }
        let sent = self.http.post(self.url("/sim/fault")).json(&body).timeout(PATIENCE).send().await;
        let answer = sent.expect("an answer");
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap_or_default());
    }

    /// Sets its pace: how many times faster than real time.
    ///
    /// # Panics
    /// The engine does not take it.
    pub async fn pace(&self, speed: f64) {
        let body = json!({ "speed": speed });
        let sent = self.http.post(self.url("/sim/speed")).json(&body).timeout(PATIENCE).send().await;
        assert_eq!(sent.expect("an answer").status(), 200);
    }

    /// Clears all faults of an engine that runs.
    pub async fn clear_faults(&self) {
        // One that does not run has none.
        drop(self.http.delete(self.url("/sim/fault")).timeout(PATIENCE).send().await);
    }

    /// One value of its `/metrics`, summed over its labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let text =
            self.http.get(self.url("/metrics")).timeout(PATIENCE).send().await.ok()?.text().await.ok()?;
        let values = text.lines().filter(|l| l.strip_prefix(name).is_some_and(|l| l.starts_with(['{', ' '])));
        values.filter_map(|l| l.rsplit(' ').next()?.parse().ok()).reduce(|a: f64, b| a + b)
    }

    /// Waits until so many requests run in it.
    pub async fn until_running(&self, count: u32) {
        let wanted = f64::from(count);
        until("requests to run", async || self.metric("vllm:num_requests_running").await == Some(wanted))
            .await;
    }

    fn body(&self, tokens: u32, stream: bool) -> Value {
        json!({ "model": self.model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
                "stream": stream })
    }

    /// A completion's text, or what went wrong.
    ///
    /// # Errors
    /// The status and the body, or no answer.
    pub async fn complete(&self, tokens: u32) -> Result<String, String> {
        let request = self.http.post(self.url("/v1/completions")).json(&self.body(tokens, false));
        let answer = request.timeout(PATIENCE).send().await.map_err(|e| format!("{e:?}"))?;
        let status = answer.status();
        let body = answer.text().await.map_err(|e| format!("{e:?}"))?;
        let json: Value = serde_json::from_str(&body).map_err(|e| format!("{status}: {e}: {body}"))?;
        json["choices"][0]["text"].as_str().map(str::to_owned).ok_or(format!("{status}: {body}"))
    }

    /// Asserts that it serves.
    ///
    /// # Panics
    /// It does not.
    pub async fn serves(&self) {
        if let Err(why) = self.complete(3).await {
            panic!("{} does not serve: {why}", self.name);
        }
    }

    /// Opens a stream of the same completion.
    ///
    /// # Panics
    /// It does not begin.
    pub async fn stream(&self, tokens: u32) -> Stream {
        let request = self.http.post(self.url("/v1/completions")).json(&self.body(tokens, true));
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        Stream { response, buffer: String::new(), text: String::new(), events: 0 }
    }
}

/// A streamed completion.
#[derive(Debug)]
pub struct Stream {
    response: Response,
    buffer: String,
    text: String,
    events: usize,
}

impl Stream {
    /// Reads until so many tokens have come.
    ///
    /// # Panics
    /// It ends before.
    pub async fn until(&mut self, tokens: usize) {
        while self.events < tokens {
            let end = self.next().await;
            assert!(end.is_none(), "the stream ended after {} tokens: {end:?}", self.events);
        }
    }

    /// Reads to the end: the whole text and how it ended (`length`, `abort`, `error: …`, `broken: …`).
    pub async fn end(mut self) -> (String, String) {
        loop {
            if let Some(end) = self.next().await {
                return (self.text, end);
            }
        }
    }

    async fn next(&mut self) -> Option<String> {
        let chunk = match tokio::time::timeout(PATIENCE, self.response.chunk()).await {
            Err(_) => return Some("broken: nothing came any more".to_owned()),
            Ok(Err(error)) => return Some(format!("broken: {error:?}")),
            Ok(Ok(None)) => return Some("broken: no end".to_owned()),
            Ok(Ok(Some(chunk))) => chunk,
        };
        self.buffer.push_str(&String::from_utf8_lossy(&chunk));
        let mut end = None;
        while let Some(at) = self.buffer.find("\n\n") {
            let event: String = self.buffer.drain(..at + 2).collect();
            let Some(data) = event.trim().strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
                continue;
            };
            let event: Value = serde_json::from_str(data).expect("an event is JSON");
            if let Some(error) = event.get("error") {
                end.get_or_insert(format!("error: {error}"));
            }
            let choice = &event["choices"][0];
            let text = choice["text"].as_str().unwrap_or_default();
            self.events += usize::from(!text.is_empty());
            self.text.push_str(text);
            if let Some(finish) = choice["finish_reason"].as_str() {
                end.get_or_insert(finish.to_owned());
            }
        }
        end
    }
}
