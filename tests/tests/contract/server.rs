//! A server of either kind: its memory, its processes, its end.

use crate::http::Http;
use crate::target::{API_KEY, Kind, MODEL};
use hotbunk_sim::ledger::{DeviceLedger, Owner};
use hotbunk_sim::oplog::{OpLogReader, OpRecord};
use hotbunk_tests::{living_in_group, signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::OnceCell;

const LOOK: Duration = Duration::from_millis(10);
/// Label of what a check takes of the device beside the server.
const CROWD: &str = "crowd";
pub(crate) const MIB: u64 = 1 << 20;

/// What the server holds of the device, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    /// Asleep.
    pub(crate) residual: u64,
    pub(crate) weights: u64,
    pub(crate) kv: u64,
    /// At most so much more once it has been woken.
    pub(crate) growth: u64,
}

/// How the time that memory operations take is set, and faults armed.
#[derive(Debug)]
pub(crate) enum Memory {
    /// By the simulated engine's own routes.
    Simulated {
        /// The usual speed.
        speed: f64,
    },
    /// By the worker hook's folder.
    Hook { folder: PathBuf, figures: Figures },
}

impl Memory {
    /// For the hook: operations of a second and more, or as good as none.
    pub(crate) fn set_pace(&self, slow: bool) {
        let Memory::Hook { folder, figures } = self else { return };
        let seconds = |long: f64| if slow { long } else { 0.02 };
        let settings = json!({
            "ledger": folder.join("gpu0.json"), "engine": "B", "op_log": folder.join("ops.jsonl"),
            "residual_mib": figures.residual / MIB, "weights_mib": figures.weights / MIB, "kv_mib": figures.kv / MIB,
            "sleep_s": seconds(1.3), "wake_s": seconds(1.3), "discard_s": seconds(0.8), "release_s": seconds(0.5),
        });
        let new = folder.join("hook.json.new");
        std::fs::write(&new, settings.to_string()).expect("the hook's settings");
        std::fs::rename(new, folder.join("hook.json")).expect("the hook's settings");
    }
}

/// A process of the server's group.
pub(crate) use hotbunk_tests::Process;

/// A running server. Dropped, its whole group is killed.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) kind: Kind,
    child: Mutex<Child>,
    pid: u32,
    log: PathBuf,
    dir: TempDir,
    memory: Memory,
    pub(crate) ledger: DeviceLedger,
    pub(crate) figures: Figures,
    /// Its HTTP face.
    pub(crate) http: Http,
    whole: OnceCell<String>,
}

impl Server {
    #[expect(clippy::too_many_arguments, reason = "one caller, which has them all at hand")]
    pub(crate) fn new(
        kind: Kind,
        child: Child,
        port: u16,
        dir: TempDir,
        log: PathBuf,
        ledger: DeviceLedger,
        figures: Figures,
        memory: Memory,
    ) -> Self {
        let pid = child.id();
        let http = Http::new(port, API_KEY);
        Server {
            kind,
            child: Mutex::new(child),
            pid,
            log,
            dir,
            memory,
            ledger,
            figures,
            http,
            whole: OnceCell::new(),
        }
    }

    /// How long anything may take: only a broken server takes that long.
    pub(crate) fn patience(&self) -> Duration {
        match self.kind {
            Kind::Simulated => Duration::from_secs(60),
            Kind::Real => Duration::from_secs(180),
        }
    }

    /// Time for what has been sent to have reached the engine. Nothing that can be asked tells of a request that is
    /// queued in a sleeping engine, nor of tokens that are on their way.
    pub(crate) async fn settle(&self) {
        let time = match self.kind {
            Kind::Simulated => Duration::from_millis(200),
            Kind::Real => Duration::from_millis(700),
        };
        tokio::time::sleep(time).await;
    }

    /// Waits until it is healthy.
    pub(crate) async fn ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(900);
        while self.http.try_get("/health").await != Some(200) {
            if let Some(status) = self.exited() {
                panic!("the server ended while starting: {status}\n{}", self.log_tail());
            }
            assert!(Instant::now() < deadline, "not ready in time\n{}", self.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.fast().await;
    }

    /// The first request and the first sleep of a server take longer than all later ones.
    pub(crate) async fn warm_up(&self) {
        self.text(3).await;
        self.ok("/sleep?level=1").await;
        self.ok("/wake_up").await;
        self.text(3).await;
    }

    /// Makes it awake, idle and whole again after a check.
    pub(crate) async fn mend(&self) {
        self.fast().await;
        self.disarm().await;
        self.uncrowd();
        self.http.post_json("/abort_requests", &json!({})).await;
        self.ok("/wake_up").await;
        self.ok("/resume").await;
        self.until("an idle engine", async || {
            !self.is_sleeping().await && self.metric("vllm:num_requests_running", &[]).await == Some(0.0)
        })
        .await;
        assert!(self.is_all_awake(), "{} MiB of the device are in use", self.used() / MIB);
        self.text(1).await;
    }

    // Time and faults.

    /// Memory operations take a second and more, so that a check can act within one.
    pub(crate) async fn slow(&self) {
        self.set_pace(true).await;
    }

    /// Memory operations take next to no time.
    pub(crate) async fn fast(&self) {
        self.set_pace(false).await;
    }

    async fn set_pace(&self, slow: bool) {
        match &self.memory {
            Memory::Simulated { speed } => {
                let speed = if slow { 0.15 } else { *speed };
                assert_eq!(self.http.post_json("/sim/speed", &json!({ "speed": speed })).await.status, 200);
            }
            hook => hook.set_pace(slow),
        }
    }

    /// Arms a fault that strikes once.
    pub(crate) async fn arm(&self, kind: &str) {
        match &self.memory {
            Memory::Simulated { .. } => {
                let fault = json!({ "kind": kind, "count": 1 });
                assert_eq!(self.http.post_json("/sim/fault", &fault).await.status, 200);
            }
            Memory::Hook { folder, .. } => {
                std::fs::write(folder.join("faults").join(kind), "").expect("a fault");
            }
        }
    }

    async fn disarm(&self) {
        match &self.memory {
            Memory::Simulated { .. } => {
                self.http.request(reqwest::Method::DELETE, "/sim/fault", None, true).await;
            }
            Memory::Hook { folder, .. } => {
                for fault in std::fs::read_dir(folder.join("faults")).into_iter().flatten().flatten() {
                    // It may strike this instant.
                    drop(std::fs::remove_file(fault.path()));
                }
            }
        }
    }

    // Memory.

    /// Bytes in use on the device.
    pub(crate) fn used(&self) -> u64 {
        self.ledger.used().expect("the ledger")
    }

    /// Whether it holds all that it holds awake, and nobody else holds anything.
    pub(crate) fn is_all_awake(&self) -> bool {
        let all = self.figures.residual + self.figures.weights + self.figures.kv;
        (all..=all + self.figures.growth).contains(&self.used())
    }

    /// Asserts that it holds its weights and no KV cache.
    #[track_caller]
    pub(crate) fn holds_weights_alone(&self) {
        let bare = self.figures.residual + self.figures.weights;
        let used = self.used();
        assert!((bare..=bare + self.figures.growth).contains(&used), "{} MiB", used / MIB);
    }

    /// Takes bytes of the device beside it; `false` where they do not fit.
    pub(crate) fn crowd(&self, bytes: u64) -> bool {
        let me = Owner::current().expect("this process");
        self.ledger.allocate(me, CROWD, bytes).is_ok()
    }

    /// Takes all but so many bytes.
    pub(crate) fn crowd_to(&self, free: u64) {
        let now = self.ledger.usage().expect("the ledger").free();
        assert!(self.crowd(now - free));
    }

    /// Gives them back.
    pub(crate) fn uncrowd(&self) {
        let me = Owner::current().expect("this process");
        self.ledger.free(me, CROWD, u64::MAX).expect("the ledger");
    }

    /// What its worker has done so far, by its own clock.
    pub(crate) fn operations(&self) -> Vec<OpRecord> {
        OpLogReader::open(&self.dir.path().join("ops.jsonl")).read_new().expect("the operation log")
    }

    // Calls that every check makes.

    /// POST that must be answered by 200; the body.
    #[track_caller]
    pub(crate) fn ok<'a>(&'a self, path: &'a str) -> impl Future<Output = Value> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let reply = self.http.post(path).await;
            assert_eq!(reply.status, 200, "{place}: {path}: {}\n{}", reply.text, self.log_tail());
            reply.json
        }
    }

    /// `collective_rpc` that must be answered by 200.
    pub(crate) async fn rpc(&self, method: &str, kwargs: Value) {
        let reply =
            self.http.post_json("/collective_rpc", &json!({ "method": method, "kwargs": kwargs })).await;
        assert_eq!(reply.status, 200, "{method}: {}", reply.text);
    }

    pub(crate) async fn is_sleeping(&self) -> bool {
        let reply = self.http.get("/is_sleeping").await;
        reply.json["is_sleeping"].as_bool().unwrap_or_else(|| panic!("{}", reply.text))
    }

    pub(crate) async fn is_paused(&self) -> bool {
        let reply = self.http.get("/is_paused").await;
        reply.json["is_paused"].as_bool().unwrap_or_else(|| panic!("{}", reply.text))
    }

    /// A metric's value where all these labels are, summed over the others.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let page = self.http.get("/metrics").await.text;
        value(&page, name, labels)
    }

    /// The sleep gauge: awake, weights_offloaded, discard_all.
    pub(crate) async fn sleep_state(&self) -> [f64; 3] {
        let page = self.http.get("/metrics").await.text;
        ["awake", "weights_offloaded", "discard_all"].map(|state| {
            value(&page, "vllm:engine_sleep_state", &[("sleep_state", state)]).unwrap_or(f64::NAN)
        })
    }

    /// A plain completion at temperature 0.
    pub(crate) fn body(tokens: u32) -> Value {
        json!({ "model": MODEL, "prompt": "The sea at night", "max_tokens": tokens, "temperature": 0,
                "ignore_eos": true })
    }

    /// Its text.
    pub(crate) async fn text(&self, tokens: u32) -> String {
        let reply = self.http.post_json("/v1/completions", &Server::body(tokens)).await;
        assert_eq!(reply.status, 200, "{}\n{}", reply.text, self.log_tail());
        reply.json["choices"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// The undisturbed text of so many tokens as all long streams have; made once.
    pub(crate) async fn whole(&self, tokens: u32) -> &str {
        self.whole.get_or_init(|| self.text(tokens)).await
    }

    /// Waits for a condition.
    #[track_caller]
    pub(crate) fn until<'a>(
        &'a self,
        what: &'a str,
        mut condition: impl AsyncFnMut() -> bool + 'a,
    ) -> impl Future<Output = ()> + 'a {
        let place = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + self.patience();
            while !condition().await {
                assert!(Instant::now() < deadline, "{place}: waited in vain for {what}\n{}", self.log_tail());
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    // Processes.

    /// The API server.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Living processes of its group.
    pub(crate) fn processes(&self) -> Vec<Process> {
        living_in_group(self.pid)
    }

    /// The one that the kernel calls so; names are cut at 15 characters.
    pub(crate) fn process(&self, comm: &str) -> Process {
        let all = self.processes();
        let found = all.iter().find(|p| p.comm == comm).cloned();
        found.unwrap_or_else(|| panic!("no {comm} among {all:?}"))
    }

    pub(crate) fn signal(&self, pid: u32, which: Signal) {
        signal(pid, which);
    }

    fn exited(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().expect("a child")
    }

    /// Waits for the API server's end.
    pub(crate) async fn ended(&self) -> ExitStatus {
        let deadline = Instant::now() + self.patience();
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(Instant::now() < deadline, "the API server did not end\n{}", self.log_tail());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until nothing of it is left.
    pub(crate) async fn until_gone(&self) {
        self.ended().await;
        self.until("the tree to go", async || self.processes().is_empty()).await;
        assert_eq!(self.used(), 0, "its memory goes with it");
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// A value on a metrics page.
pub(crate) fn value(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |line: &str| labels.iter().all(|(k, v)| line.contains(&format!("{k}=\"{v}\"")));
    let lines = page.lines().filter(|l| l.strip_prefix(name).is_some_and(|l| l.starts_with(['{', ' '])));
    lines.filter(|l| has(l)).filter_map(|l| l.rsplit(' ').next()?.parse().ok()).reduce(|a: f64, b| a + b)
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            for process in self.processes() {
                signal(process.pid, Signal::KILL);
            }
            // Fails where it has been waited for.
            drop(child.try_wait());
            if self.processes().is_empty() || Instant::now() > deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
