//! A running agent.

use crate::binaries::agent_binary;
use crate::body::Body;
use crate::node::Node;
use crate::processes;
use crate::wait::{PATIENCE, until, until_some};
use hotbunk_api::client::{Client, Error};
use hotbunk_api::error::ApiError;
use hotbunk_api::journal::{JournalEntry, JournalQuery};
use hotbunk_api::operation::{Operation, OperationRequest, Submit};
use hotbunk_api::status::{Condition, EngineStatus, Status};
use hotbunk_api::words::Tier;
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// An incident as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IncidentSeen {
    /// Stable code.
    pub code: String,
    /// Engine or device concerned.
    pub about: String,
    /// For people.
    pub message: String,
}

/// An agent process. Dropped, it is told to stop, and killed if it does not.
#[derive(Debug)]
pub struct Agent {
    body: Body,
    /// Its control API.
    pub api: Client,
    /// What it runs on.
    pub node: Node,
    quiet: bool,
}

impl Agent {
    /// Starts the daemon without waiting for anything.
    ///
    /// # Panics
    /// It cannot be run.
    pub fn spawn(node: &Node, args: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(node.dir().join("agent.log"));
        Command::new(agent_binary())
            .args(["run", "--config"])
            .arg(node.config())
            .args(args)
            .envs(node.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log.expect("the log")))
            .spawn()
            .expect("the agent can be run")
    }

    pub(crate) async fn start(node: Node) -> Agent {
        let child = Agent::spawn(&node, &[]);
        Agent::up(child, node).await
    }

    /// Waits until an agent that was started answers.
    ///
    /// # Panics
    /// It ends instead.
    pub async fn up(child: Child, node: Node) -> Agent {
        let api = Client::new(node.socket()).expect("a client");
        let mut agent = Agent { body: Body::Child(child), api, node, quiet: false };
        until("the agent to answer", async || {
            if let Ok(Some(status)) = agent.body.try_wait() {
                panic!("the agent ended: {status}");
            }
            agent.api.version().await.is_ok_and(|v| v.pid == agent.body.pid())
        })
        .await;
        agent
    }

    /// The agent that runs on a node and that nobody here has started, once it answers; `None` where there is none.
    ///
    /// # Panics
    /// It neither answers nor ends.
    pub async fn found(node: &Node) -> Option<Agent> {
        let api = Client::new(node.socket()).expect("a client");
        until_some("an agent to answer or to end", async || {
            let Some(pid) = node.agents().first().map(|p| p.pid) else { return Some(None) };
            let answers = api.version().await.is_ok_and(|v| v.pid == pid);
            answers.then(|| {
                Some(Agent { body: Body::Stranger(pid), api: api.clone(), node: node.clone(), quiet: false })
            })
        })
        .await
    }

    /// Has it start the next agent (SIGUSR2), and waits until that one answers and this one has ended. `None` where something
    /// began at the last moment: then there is no next one, and this one ends with an error, upon which an init system starts
    /// another.
    ///
    /// # Panics
    /// That does not come about.
    pub async fn succeeded(mut self) -> Option<Agent> {
        let old = self.pid();
        self.signal(Signal::USR2);
        let next = until_some("the next agent to answer", async || {
            let next = self.api.version().await.ok().map(|version| version.pid).filter(|pid| *pid != old);
            let ended = self.body.try_wait().expect("its status").is_some_and(|status| !status.success());
            if ended && next.is_none() { Some(None) } else { next.map(Some) }
        })
        .await;
        let pid = next?;
        let status = self.ended().await;
        assert!(status.success(), "{status}");
        Some(Agent {
            body: Body::Stranger(pid),
            api: self.api.clone(),
            node: self.node.clone(),
            quiet: false,
        })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.body.pid()
    }

    /// The node as it stands.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn status(&self) -> Status {
        self.api.status().await.expect("a status")
    }

    /// An engine as it stands.
    ///
    /// # Panics
    /// There is none of this name.
    pub async fn engine(&self, name: &str) -> EngineStatus {
        let status = self.status().await;
        status.engines.into_iter().find(|e| e.name == name).expect("an engine of the node")
    }

    /// Waits until an engine is verified in a tier.
    pub async fn until_at(&self, name: &str, tier: Tier) {
        let what = format!("{name} to be {tier}");
        until(&what, async || {
            let engine = self.engine(name).await;
            let settled = match engine.condition {
                Condition::Settled => true,
                Condition::Stopped { .. } => tier == Tier::Stopped,
                _ => false,
            };
            settled && engine.tier == Some(tier)
        })
        .await;
    }

    /// Waits until an engine is given up; the reason.
    pub async fn until_failed(&self, name: &str) -> String {
        until_some("the engine to be given up", async || match self.engine(name).await.condition {
            Condition::Failed { reason } => Some(reason),
            _ => None,
        })
        .await
    }

    /// Waits until nothing is under way and nothing is due.
    pub async fn until_idle(&self) {
        until("the node to be idle", async || {
            let status = self.status().await;
            let due = |c: &Condition| {
                matches!(
                    c,
                    Condition::Moving { .. }
                        | Condition::Starting { .. }
                        | Condition::Backoff { .. }
                        | Condition::Drifted { .. }
                        | Condition::Stalled { .. }
                )
            };
            status.operation.is_none()
                && status.queue.is_empty()
                && !status.engines.iter().any(|e| due(&e.condition))
        })
        .await;
    }

    /// Waits until the pair has come up: the first engine awake, every other one at its rest tier.
    pub async fn until_up(&self) {
        let names: Vec<&str> = self.node.engines().iter().map(|e| e.name()).collect();
        for (at, name) in names.iter().enumerate() {
            self.until_at(name, if at == 0 { Tier::Awake } else { Tier::Level1 }).await;
        }
        self.until_idle().await;
    }

    /// Asks for an operation; it has begun, waits, or is over already.
    ///
    /// # Errors
    /// It is refused.
    ///
    /// # Panics
    /// There is no answer.
    pub async fn submit(&self, request: impl Into<OperationRequest>) -> Result<Operation, ApiError> {
        match self.api.submit(&Submit { id: None, request: request.into() }).await {
            Ok(operation) => Ok(operation),
            Err(Error::Api(error)) => Err(error),
            Err(other) => panic!("no answer: {other}"),
        }
    }

    /// Waits for an operation's end.
    ///
    /// # Panics
    /// It does not end in time.
    pub async fn wait(&self, id: &str) -> Operation {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let operation =
                self.api.wait_operation(id, Duration::from_secs(10)).await.expect("the operation");
            if operation.state.is_over() {
                return operation;
            }
            assert!(Instant::now() < deadline, "it does not end: {operation:#?}");
        }
    }

    /// Asks for an operation and waits for its end. A refusal is a failed test.
    ///
    /// # Panics
    /// It is refused, or does not end.
    pub async fn run(&self, request: impl Into<OperationRequest>) -> Operation {
        let request = request.into();
        let begun = self.submit(request.clone()).await;
        let begun = begun.unwrap_or_else(|error| panic!("{request:?} is refused: {error:?}"));
        self.wait(&begun.id).await
    }

    /// The same, and it must succeed.
    ///
    /// # Panics
    /// It fails.
    pub async fn done(&self, request: impl Into<OperationRequest>) -> Operation {
        let operation = self.run(request).await;
        assert_eq!(operation.error, None, "{operation:#?}");
        operation
    }

    /// The journal's end, for later questions about what came after.
    ///
    /// # Panics
    /// The journal cannot be read.
    pub async fn mark(&self) -> u64 {
        let query = JournalQuery { limit: Some(1), ..JournalQuery::default() };
        self.api.journal(&query).await.expect("the journal").entries.last().map_or(0, |e| e.seq)
    }

    /// Entries of a kind after a mark.
    ///
    /// # Panics
    /// The journal cannot be read.
    pub async fn entries(&self, kind: &str, after: u64) -> Vec<JournalEntry> {
        let query = JournalQuery {
            after: Some(after),
            limit: Some(JournalQuery::MAX_LIMIT),
            kind: Some(kind.to_owned()),
            ..JournalQuery::default()
        };
        self.api.journal(&query).await.expect("the journal").entries
    }

    /// Incidents after a mark.
    pub async fn incidents(&self, after: u64) -> Vec<IncidentSeen> {
        let word =
            |entry: &JournalEntry, key: &str| entry.record[key].as_str().unwrap_or_default().to_owned();
        let entries = self.entries("incident", after).await;
        entries
            .iter()
            .map(|e| IncidentSeen {
                code: word(e, "code"),
                about: word(e, "engine") + &word(e, "device"),
                message: word(e, "message"),
            })
            .collect()
    }

    /// Incidents after a mark, as `code engine`.
    pub async fn incident_codes(&self, after: u64) -> Vec<String> {
        self.incidents(after).await.into_iter().map(|i| format!("{} {}", i.code, i.about)).collect()
    }

    /// What it wrote to stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.node.dir().join("agent.log")).unwrap_or_default()
    }

    /// Whether its process has not ended yet.
    ///
    /// # Panics
    /// Its status cannot be had.
    pub fn is_running(&mut self) -> bool {
        self.body.try_wait().expect("its status").is_none()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        processes::signal(self.body.pid(), signal);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// It does not come.
    pub async fn ended(&mut self) -> ExitStatus {
        until_some("the agent to end", async || self.body.try_wait().expect("its status")).await
    }

    /// `kill -9`: the agent alone; its engines live on.
    pub async fn kill(mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
        self.quiet = true;
    }

    /// Stops it as an init system would. Nothing of ours may be left then: no process, no byte on any device.
    ///
    /// # Panics
    /// Something is, or it did not end well.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}");
        // Engines are gone before the agent is; the shim of one that was ended a moment ago may still be on its way out.
        let (shims, left): (Vec<_>, Vec<_>) =
            self.node.living().into_iter().partition(|p| p.command.contains(" shim "));
        assert!(left.is_empty(), "left behind: {left:#?}");
        until(&format!("{} shims to end", shims.len()), async || self.node.living().is_empty()).await;
        for engine in self.node.engines() {
            assert_eq!(self.node.used_by(engine.name()), 0, "device bytes of {}", engine.name());
        }
    }
}

impl Drop for Agent {
    #[expect(clippy::print_stderr, reason = "what the test harness shows of a test that failed")]
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        self.signal(Signal::TERM);
        let gone = |body: &mut Body| body.try_wait().is_ok_and(|status| status.is_some());
        let hurry = std::thread::panicking();
        while !gone(&mut self.body) && !hurry && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.body.end();
        if hurry && !self.quiet {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(80)..].join("\n");
            eprintln!("--- the agent's log\n{tail}\n---");
            for (path, text) in engine_logs(self.node.dir()) {
                let lines: Vec<&str> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(20)..].join("\n");
                eprintln!("--- {}\n{tail}\n---", path.display());
            }
        }
    }
}

/// Logs of the engines' incarnations, oldest first.
fn engine_logs(dir: &Path) -> Vec<(PathBuf, String)> {
    let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let mut logs: Vec<PathBuf> = entries(dir.join("state/logs")).flat_map(entries).collect();
    logs.sort();
    logs.into_iter().filter_map(|path| Some((path.clone(), std::fs::read_to_string(path).ok()?))).collect()
}
