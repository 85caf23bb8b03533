//! A streamed answer, read in the background: a server is never held up by a check that looks elsewhere.

use reqwest::Response;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Longer than any stream of the suite, sleeps included.
const PATIENCE: Duration = Duration::from_secs(180);

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// A last chunk with this reason, then `[DONE]`.
    Finish(String),
    /// An error event inside the answer of 200.
    Error,
    /// The connection broke off, or ended without `[DONE]`.
    Broken,
}

/// What has come so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Chunks with a choice.
    pub(crate) chunks: usize,
    pub(crate) text: String,
    /// The request's id, of its first chunk.
    pub(crate) id: String,
    /// All events, in order.
    pub(crate) events: Vec<Value>,
    pub(crate) end: Option<End>,
    finish: Option<String>,
    has_failed: bool,
}

/// A stream that is being read.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) status: u16,
    pub(crate) content_type: String,
    seen: Arc<Mutex<Seen>>,
    changed: watch::Receiver<()>,
    reader: JoinHandle<()>,
}

impl Drop for Stream {
    /// The client hangs up.
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream {
    pub(crate) fn new(response: Response) -> Self {
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let content_type = kind.to_owned();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (sender, changed) = watch::channel(());
        let reader = tokio::spawn(read(response, Arc::clone(&seen), sender));
        Stream { status, content_type, seen, changed, reader }
    }

    /// What has come so far. Not to be held.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chunks(&self) -> usize {
        self.seen().chunks
    }

    pub(crate) fn is_over(&self) -> bool {
        self.seen().end.is_some()
    }

    /// Waits until so many chunks have come, or the end.
    pub(crate) async fn until(&mut self, chunks: usize) {
        self.wait(|seen| seen.chunks >= chunks || seen.end.is_some()).await;
    }

    /// Waits for the end: how, and the whole text.
    pub(crate) async fn end(&mut self) -> (End, String) {
        self.wait(|seen| seen.end.is_some()).await;
        let seen = self.seen();
        (seen.end.clone().unwrap_or(End::Broken), seen.text.clone())
    }

    async fn wait(&mut self, condition: impl Fn(&Seen) -> bool) {
        let waiting = async {
            while !condition(&self.seen()) {
                // An error means that the reader has gone, and it tells the end before it goes.
                if self.changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the stream goes on");
    }
}

async fn read(mut response: Response, seen: Arc<Mutex<Seen>>, changed: watch::Sender<()>) {
    let mut buffer = Vec::new();
    let mut is_open = true;
    while is_open {
        let chunk = response.chunk().await;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(Some(chunk)) = chunk {
            buffer.extend_from_slice(&chunk);
            while let Some(at) = buffer.windows(2).position(|w| w == b"\n\n") {
                let event: Vec<u8> = buffer.drain(..at + 2).collect();
                seen.take(&String::from_utf8_lossy(&event));
            }
        } else {
            seen.end.get_or_insert(End::Broken);
        }
        is_open = seen.end.is_none();
        drop(seen);
        changed.send_replace(());
    }
}

impl Seen {
    fn take(&mut self, event: &str) {
        let Some(data) = event.lines().find_map(|l| l.strip_prefix("data: ")) else { return };
        if data == "[DONE]" {
            let finish = self.finish.take().map_or(End::Broken, End::Finish);
            self.end.get_or_insert(if self.has_failed { End::Error } else { finish });
            return;
        }
        let Ok(event) = serde_json::from_str::<Value>(data) else { return };
        if event.get("error").is_some() {
            self.has_failed = true;
        }
        let choice = &event["choices"][0];
        if choice.is_object() {
            self.chunks += 1;
            self.text.push_str(choice["text"].as_str().unwrap_or_default());
            if let Some(finish) = choice["finish_reason"].as_str() {
                self.finish = Some(finish.to_owned());
            }
        }
        if self.id.is_empty() {
            event["id"].as_str().unwrap_or_default().clone_into(&mut self.id);
        }
        self.events.push(event);
    }
}
