//! Starting engines on a ledger of their own, talking to them, and leaving nothing behind.

use hotbunk_sim::clock::now_ns;
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader, Owner};
use hotbunk_sim::oplog::{OpLogReader, OpRecord};
use reqwest::{Client, Method, Response};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
pub(crate) const MIB: u64 = 1 << 20;
/// Stands among the flags for the absence of `--enable-sleep-mode`.
pub(crate) const NO_SLEEP_MODE: &str = "";
/// Begins a flag that is an environment variable.
const ENV: &str = "env:";
/// B's figures of the profile.
pub(crate) const B_RESIDUAL: u64 = 455 * MIB;
pub(crate) const B_WEIGHTS: u64 = 3354 * MIB;
pub(crate) const B_KV: u64 = 4096 * MIB;
pub(crate) const B_GROWTH: u64 = 8 * MIB;
pub(crate) const B_FRESH: u64 = B_RESIDUAL + B_WEIGHTS + B_KV;
pub(crate) const B_AWAKE: u64 = B_FRESH + B_GROWTH;

/// A device in a directory of its own.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    pub(crate) ledger: DeviceLedger,
}

impl Node {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = DeviceLedger::create(&dir.path().join("gpu0.json"), LedgerHeader::l20(0)).unwrap();
        Node { dir, ledger }
    }

    pub(crate) fn used(&self) -> u64 {
        self.ledger.used().unwrap()
    }

    pub(crate) fn oplog(&self) -> PathBuf {
        self.dir.path().join("ops.jsonl")
    }

    pub(crate) fn operations(&self) -> Vec<OpRecord> {
        OpLogReader::open(&self.oplog()).read_new().unwrap()
    }

    /// Starts an engine without waiting for it.
    pub(crate) fn launch(&self, name: &str, flags: &[&str]) -> Engine {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        self.launch_with(name, port, &self.ledger.path().display().to_string(), flags)
    }

    /// Starts an engine on a port that is perhaps taken.
    pub(crate) fn launch_on_port(&self, name: &str, port: u16) -> Engine {
        self.launch_with(name, port, &self.ledger.path().display().to_string(), &[])
    }

    fn launch_with(&self, name: &str, port: u16, ledgers: &str, flags: &[&str]) -> Engine {
        let stderr = self.dir.path().join(format!("{name}-{port}.log"));
        let has = |flag: &str| flags.contains(&flag);
        let child = Command::new(env!("CARGO_BIN_EXE_sim-engine"))
            .args(["--name", name, "--port", &port.to_string(), "--device-ledger", ledgers, "--op-log"])
            .arg(self.oplog())
            .args(if has("--host-scale") { &[][..] } else { &["--host-scale", "4096"] })
            .args(if has(NO_SLEEP_MODE) { &[][..] } else { &["--enable-sleep-mode"] })
            .args(if has("--speed") { &[][..] } else { &["--speed", "200"] })
            .args(flags.iter().filter(|f| **f != NO_SLEEP_MODE && !f.starts_with(ENV)))
            .env("VLLM_SERVER_DEV_MODE", "1")
            .envs(flags.iter().filter_map(|f| f.strip_prefix(ENV)?.split_once('=')))
            .stderr(Stdio::from(std::fs::File::create(&stderr).unwrap()))
            .spawn()
            .unwrap();
        Engine { child, port, stderr, family: Vec::new(), client: client() }
    }

    /// A second device.
    pub(crate) fn second_device(&self) -> DeviceLedger {
        DeviceLedger::create(&self.dir.path().join("gpu1.json"), LedgerHeader::l20(1)).unwrap()
    }

    /// Starts an engine on several devices.
    pub(crate) async fn start_on(&self, ledgers: &str, name: &str, flags: &[&str]) -> Engine {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut engine = self.launch_with(name, port, ledgers, flags);
        engine.ready().await;
        engine
    }

    /// Starts an engine and waits until it is healthy.
    pub(crate) async fn start(&self, name: &str, flags: &[&str]) -> Engine {
        let mut engine = self.launch(name, flags);
        engine.ready().await;
        engine
    }

    /// Starts an engine fast and slows it down once it is healthy.
    pub(crate) async fn start_slow(&self, name: &str, speed: f64, flags: &[&str]) -> Engine {
        let engine = self.start(name, flags).await;
        assert_eq!(
            engine.post_json("/sim/speed", &json!({ "speed": speed })).await,
            (200, json!({ "speed": speed }))
        );
        engine
    }
}

fn client() -> Client {
    Client::builder().pool_max_idle_per_host(0).build().unwrap()
}

/// A running engine; dropped, its whole family is killed.
pub(crate) struct Engine {
    child: Child,
    port: u16,
    stderr: PathBuf,
    family: Vec<Owner>,
    pub(crate) client: Client,
}

impl Engine {
    async fn ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the engine ended while starting: {status}\n{}", self.log());
            }
            if self.client.get(self.url("/health")).send().await.is_ok_and(|r| r.status() == 200) {
                break;
            }
            assert!(Instant::now() < deadline, "not ready in time\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.note_family();
    }

    /// Remembers the children, so that orphans can be found after their parent.
    pub(crate) fn note_family(&mut self) {
        let pid = self.child.id();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        self.family = children.split_ascii_whitespace().filter_map(|p| Owner::of(p.parse().ok()?)).collect();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The engine core, known by its memory.
    pub(crate) fn core(&self) -> u32 {
        let comm = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.family.iter().map(|o| o.pid).find(|p| comm(*p) == "VLLM::EngineCor\n").expect("an engine core")
    }

    /// Children that still run.
    pub(crate) fn living_family(&self) -> usize {
        self.family.iter().filter(|o| o.is_alive()).count()
    }

    pub(crate) fn signal(pid: u32, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    /// Waits for the API server's end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the API server did not end\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    /// POST without a body; the status.
    pub(crate) async fn post(&self, path: &str) -> u16 {
        let request = self.client.request(Method::POST, self.url(path)).send();
        tokio::time::timeout(PATIENCE, request).await.expect("answered in time").unwrap().status().as_u16()
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.client.post(self.url(path)).json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or(Value::Null))
    }

    pub(crate) async fn rpc(&self, method: &str, kwargs: Value) -> u16 {
        self.post_json("/collective_rpc", &json!({ "method": method, "kwargs": kwargs })).await.0
    }

    pub(crate) async fn fault(&self, kind: &str, arg: Option<f64>) {
        assert_eq!(self.post_json("/sim/fault", &json!({ "kind": kind, "arg": arg })).await.0, 200);
    }

    pub(crate) async fn clear_faults(&self) {
        self.client.delete(self.url("/sim/fault")).send().await.unwrap();
    }

    pub(crate) async fn is_sleeping(&self) -> bool {
        let body: Value = self.get("/is_sleeping").await.json().await.unwrap();
        body["is_sleeping"].as_bool().unwrap()
    }

    /// A plain completion at temperature 0: status and body.
    pub(crate) async fn complete(&self, tokens: u32) -> (u16, Value) {
        let body = json!({ "prompt": "the tide turns", "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
                           "logprobs": 1 });
        let answer = self.post_json("/v1/completions", &body);
        tokio::time::timeout(PATIENCE, answer).await.expect("answered in time")
    }

    pub(crate) async fn text(&self, tokens: u32) -> String {
        let (status, body) = self.complete(tokens).await;
        assert_eq!(status, 200, "{body}\n{}", self.log());
        body["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    /// Opens a stream of the same completion.
    pub(crate) async fn stream(&self, tokens: u32) -> Stream {
        let body = json!({ "prompt": "the tide turns", "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
                           "stream": true });
        let response = self.client.post(self.url("/v1/completions")).json(&body).send().await.unwrap();
        assert_eq!(response.status(), 200);
        Stream { response, buffer: String::new(), text: String::new(), tokens: 0, id: String::new() }
    }

    /// One value of `/metrics`, found by the start of its line.
    pub(crate) async fn metric(&self, start: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text().await.unwrap();
        let line = text.lines().find(|l| l.starts_with(start))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Waits until a request with this prompt waits or runs in the engine, told by the tracked load.
    pub(crate) async fn until_load(&self, load: u64) {
        until("the load", async || {
            let body: Value = self.get("/load").await.json().await.unwrap();
            body["server_load"] == load
        })
        .await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.family.is_empty() {
            self.note_family();
        }
        drop(self.child.kill());
        drop(self.child.wait());
        for owner in self.family.iter().filter(|o| o.is_alive()) {
            if let Some(pid) = i32::try_from(owner.pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while self.living_family() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A streamed completion.
pub(crate) struct Stream {
    response: Response,
    buffer: String,
    pub(crate) text: String,
    pub(crate) tokens: usize,
    /// The request's id, once a token has come.
    pub(crate) id: String,
}

/// How a stream ended.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Finish(String),
    Error,
}

impl Stream {
    /// Reads until so many tokens have come.
    pub(crate) async fn until(&mut self, tokens: usize) {
        while self.tokens < tokens {
            assert!(self.next().await.is_none(), "the stream ended after {} tokens", self.tokens);
        }
    }

    /// Reads to the end.
    pub(crate) async fn end(&mut self) -> End {
        loop {
            if let Some(end) = self.next().await {
                return end;
            }
        }
    }

    async fn next(&mut self) -> Option<End> {
        let chunk =
            tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("a chunk in time").unwrap();
        let chunk = chunk.expect("the stream does not break off");
        self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        let mut end = None;
        while let Some(at) = self.buffer.find("\n\n") {
            let event: String = self.buffer.drain(..at + 2).collect();
            let data = event.trim().strip_prefix("data: ").unwrap();
            if data == "[DONE]" {
                break;
            }
            let event: Value = serde_json::from_str(data).unwrap();
            if event.get("error").is_some() {
                return Some(End::Error);
            }
            self.id = event["id"].as_str().unwrap_or_default().to_owned();
            let choice = &event["choices"][0];
            let text = choice["text"].as_str().unwrap_or_default();
            self.tokens += usize::from(!text.is_empty());
            self.text.push_str(text);
            if let Some(finish) = choice["finish_reason"].as_str() {
                end = Some(End::Finish(finish.to_owned()));
            }
        }
        end
    }
}

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Now, on the operation log's clock.
pub(crate) fn now() -> u64 {
    now_ns()
}
