//! Servers that somebody starts by hand, behind the agent's back.

use crate::node::Node;
use crate::processes;
use crate::wait::{PATIENCE, until};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A server that nobody but the test has started. Dropped, it is killed.
#[derive(Debug)]
pub struct ByHand {
    child: Child,
    /// Where its output goes.
    pub output: PathBuf,
}

impl ByHand {
    /// Its leader's pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its leader has ended, as the shell that started it would.
    ///
    /// # Panics
    /// It does not.
    pub async fn ended(&mut self) {
        until("the server to end", async || self.child.try_wait().expect("its status").is_some()).await;
    }

    /// Whether its leader runs.
    ///
    /// # Panics
    /// Its status cannot be had.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_none()
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // What it leaves is found by the node's directory.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Node {
    /// The words by which the configuration starts an engine.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn command(&self, engine: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.config()).expect("the configuration");
        let named = format!("name = \"{engine}\"\n");
        let table = text.split("[[engine]]").find(|table| table.contains(&named)).expect("its table");
        let line = table.lines().find_map(|line| line.strip_prefix("command = ")).expect("its command");
        serde_json::from_str(line).expect("words")
    }

    /// Starts an engine's server by hand, with further flags, and waits until it is ready.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn by_hand(&self, engine: &str, more: &[&str]) -> ByHand {
        let words = self.command(engine);
        self.run_by_hand(engine, &words, more).await
    }

    /// The same with another command.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn run_by_hand(&self, engine: &str, words: &[String], more: &[&str]) -> ByHand {
        let output = self.dir().join(format!("{engine}.by-hand.log"));
        let log = File::options().create(true).append(true).open(&output).expect("its output");
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(more)
            .env("VLLM_SERVER_DEV_MODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().expect("its output")))
            .stderr(Stdio::from(log))
            .spawn()
            .expect("it can be run");
        let mut server = ByHand { child, output };
        let deadline = Instant::now() + PATIENCE;
        while self.engine(engine).try_models().await.is_none() {
            assert!(server.runs() && Instant::now() < deadline, "{engine} by hand does not become ready");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        server
    }

    /// Living agents: more than one only while one succeeds the other.
    pub fn agents(&self) -> Vec<processes::Process> {
        self.living().into_iter().filter(|p| p.command.contains(" run --config ")).collect()
    }

    /// Living shims.
    pub fn shims(&self) -> Vec<processes::Process> {
        self.living().into_iter().filter(|p| p.command.contains(" shim ")).collect()
    }
}
