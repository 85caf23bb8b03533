//! The link to the engine core: calls out, replies and tokens back.
//!
//! A call that has been sent runs whether or not its caller still listens (CONTRACT 1.2 [run]). When the core's pipe
//! ends the engine is dead: every waiting call and stream is told.

use super::metrics::Metrics;
use super::state::lock;
use crate::ipc::{Call, Finish, FromCore, NewRequest, Output, ToCore};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};

/// Why a call brought no value.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The engine core's words.
    Failed(String),
    /// There is no engine core any more.
    EngineDead,
}

/// Where the engine core stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CoreState {
    Starting,
    Ready,
    Failed(String),
    Dead,
}

/// One token, or the end, of a request. The channel ends without an end when the engine dies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) token: Option<(u32, f64)>,
    pub(crate) finish: Option<Finish>,
}

#[derive(Debug)]
struct Tracked {
    sender: mpsc::UnboundedSender<Event>,
    external_id: String,
    prompt_tokens: u32,
    arrived: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    produced: u32,
}

/// Tables that handlers and the reader thread share.
#[derive(Debug, Default)]
struct Tables {
    calls: Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>,
    requests: Mutex<HashMap<u64, Tracked>>,
}

/// The link.
#[derive(Debug)]
pub(crate) struct Link {
    stdin: Arc<Mutex<Option<ChildStdin>>>,
    next_id: AtomicU64,
    tables: Arc<Tables>,
    state: watch::Receiver<CoreState>,
}

impl Link {
    /// Takes over the core's pipes and starts the reader thread.
    pub(crate) fn new(stdin: ChildStdin, stdout: ChildStdout, metrics: Arc<Mutex<Metrics>>) -> Self {
        let (sender, state) = watch::channel(CoreState::Starting);
        let tables = Arc::new(Tables::default());
        let stdin = Arc::new(Mutex::new(Some(stdin)));
        let (reader_tables, reader_stdin) = (Arc::clone(&tables), Arc::clone(&stdin));
        std::thread::spawn(move || {
            read_core(stdout, &reader_tables, &metrics, &sender);
            // No more calls and requests: those that wait are told by the end of their channel.
            lock(&reader_stdin).take();
            if !matches!(*sender.borrow(), CoreState::Failed(_)) {
                sender.send_replace(CoreState::Dead);
            }
            lock(&reader_tables.calls).clear();
            lock(&reader_tables.requests).clear();
        });
        Link { stdin, next_id: AtomicU64::new(1), tables, state }
    }

    pub(crate) fn state(&self) -> watch::Receiver<CoreState> {
        self.state.clone()
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(*self.state.borrow(), CoreState::Dead | CoreState::Failed(_))
    }

    pub(crate) fn send(&self, message: &ToCore) -> bool {
        let Ok(mut line) = serde_json::to_vec(message) else { return false };
        line.push(b'\n');
        lock(&self.stdin).as_mut().is_some_and(|stdin| stdin.write_all(&line).is_ok())
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Value, CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.tables.calls).insert(id, sender);
        if !self.send(&ToCore::Call { id, call }) {
            lock(&self.tables.calls).remove(&id);
            return Err(CallError::EngineDead);
        }
        match receiver.await {
            Ok(result) => result.map_err(CallError::Failed),
            Err(_) => Err(CallError::EngineDead),
        }
    }

    /// Hands a request to the engine core; `None` when there is none.
    pub(crate) fn add(&self, build: impl FnOnce(u64) -> NewRequest, external_id: &str) -> Option<Generation> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let request = build(id);
        let (sender, events) = mpsc::unbounded_channel();
        let tracked = Tracked {
            sender,
            external_id: external_id.to_owned(),
            prompt_tokens: request.prompt_tokens,
            arrived: Instant::now(),
            first: None,
            last: None,
            produced: 0,
        };
        lock(&self.tables.requests).insert(id, tracked);
        let generation =
            Generation { id, events, stdin: Arc::clone(&self.stdin), tables: Arc::clone(&self.tables) };
        self.send(&ToCore::Add(request)).then_some(generation)
    }

    /// Aborts by the ids that clients know, or all; how many were named or found.
    pub(crate) fn abort(&self, external: Option<&[String]>) -> usize {
        let ids: Vec<u64> = lock(&self.tables.requests)
            .iter()
            .filter(|(_, t)| external.is_none_or(|e| e.contains(&t.external_id)))
            .map(|(id, _)| *id)
            .collect();
        let count = external.map_or(ids.len(), <[String]>::len);
        self.send(&ToCore::Abort { ids });
        count
    }
}

/// A request in the engine; dropped before its end it is aborted, as vLLM aborts when the client has gone.
#[derive(Debug)]
pub(crate) struct Generation {
    id: u64,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    stdin: Arc<Mutex<Option<ChildStdin>>>,
    tables: Arc<Tables>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if lock(&self.tables.requests).remove(&self.id).is_none() {
            return;
        }
        if let Ok(mut line) = serde_json::to_vec(&ToCore::Abort { ids: vec![self.id] }) {
            line.push(b'\n');
            if let Some(stdin) = lock(&self.stdin).as_mut() {
                // A broken pipe: the core has gone, and the request with it.
                drop(stdin.write_all(&line));
            }
        }
    }
}

fn read_core(
    stdout: ChildStdout,
    tables: &Tables,
    metrics: &Mutex<Metrics>,
    state: &watch::Sender<CoreState>,
) {
    let mut lines = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match serde_json::from_slice(&line) {
            Ok(FromCore::Ready { kv_tokens }) => {
                super::log(&format!("INFO kv_cache_utils: GPU KV cache size: {kv_tokens} tokens"));
                state.send_replace(CoreState::Ready);
            }
            Ok(FromCore::StartFailed { message }) => {
                state.send_replace(CoreState::Failed(message));
            }
            Ok(FromCore::Reply { id, result }) => {
                if let Some(sender) = lock(&tables.calls).remove(&id) {
                    // The caller may have gone; the call was done all the same.
                    drop(sender.send(result));
                }
            }
            Ok(FromCore::Step { outputs, stats }) => {
                let mut metrics = lock(metrics);
                metrics.step(stats);
                hand_out(outputs, tables, &mut metrics);
            }
            Err(error) => super::log(&format!("WARNING link: a line that is no message: {error}")),
        }
    }
}

fn hand_out(outputs: Vec<Output>, tables: &Tables, metrics: &mut Metrics) {
    let now = Instant::now();
    let mut requests = lock(&tables.requests);
    for Output { request, token, finish } in outputs {
        let Some(tracked) = requests.get_mut(&request) else { continue };
        if token.is_some() {
            tracked.produced += 1;
            match tracked.last {
                None => metrics.first_token(now - tracked.arrived, tracked.prompt_tokens),
                Some(last) => metrics.next_token(now - last),
            }
            tracked.first.get_or_insert(now);
            tracked.last = Some(now);
        }
        // The client may have gone; its guard aborts the request.
        let _ = tracked.sender.send(Event { token, finish });
        if let Some(finish) = finish {
            let decode = tracked.first.map(|first| now - first);
            metrics.finished(finish, now - tracked.arrived, decode, tracked.produced);
            requests.remove(&request);
        }
    }
}
