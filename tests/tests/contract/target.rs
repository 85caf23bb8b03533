//! The two targets: starting a server of each.

use crate::check::{Outcome, Start};
use crate::server::{Figures, Memory, Server};
use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader};
use hotbunk_sim::profile::Profile;
use hotbunk_tests::{agent_binary, free_port};
use std::fs::File;
use std::io::{Write, stderr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The model's name at every server.
pub(crate) const MODEL: &str = "A";
/// The key that the servers demand of inference requests.
pub(crate) const API_KEY: &str = "sesame";
const MIB: u64 = 1 << 20;
/// How fast simulated engines run, and how fast where a check acts within an operation.
const SPEED: f64 = 6.0;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Simulated,
    Real,
}

/// A target.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// The simulated engine.
    Simulated,
    /// Real vLLM, installed in this folder.
    Real(PathBuf),
}

impl Target {
    pub(crate) fn simulated() -> Self {
        Target::Simulated
    }

    /// Where the environment names an installation.
    pub(crate) fn real() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("HOTBUNK_REAL_VLLM")?);
        for needed in ["venv/bin/vllm", "model-a/config.json"] {
            let path = folder.join(needed);
            assert!(
                path.exists(),
                "{} is not there; tests/real-vllm/README.md says how to make it",
                path.display()
            );
        }
        Some(Target::Real(folder))
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Target::Simulated => Kind::Simulated,
            Target::Real(_) => Kind::Real,
        }
    }

    /// One line a check while they run: on the real target that takes a while.
    pub(crate) fn progress(&self, name: &str, outcome: &Outcome, took: Duration) {
        let word = match outcome {
            Outcome::Passed => "ok",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        };
        if self.kind() == Kind::Real || matches!(outcome, Outcome::Failed(_)) {
            let took = took.as_secs_f64();
            writeln!(stderr(), "{:?} {name}: {word} ({took:.1} s)", self.kind())
                .expect("stderr can be written");
        }
    }

    /// Starts a server and waits until it is healthy, has served and has slept once.
    pub(crate) fn start(&self, start: Start) -> impl Future<Output = Server> + 'static {
        let this = self.clone();
        async move {
            let dir = tempfile::Builder::new().prefix("hotbunk-contract.").tempdir().expect("a folder");
            let ledger = DeviceLedger::create(&dir.path().join("gpu0.json"), LedgerHeader::l20(0));
            let ledger = ledger.expect("a ledger");
            let profile = Profile::load("l20").expect("the profile");
            let of_b = profile.engine("B").expect("its engine B");
            let figures = Figures {
                residual: of_b.residual_mib * MIB,
                weights: of_b.weights_mib * MIB,
                kv: of_b.kv_mib * MIB,
                growth: of_b.growth_mib * MIB,
            };
            let port = free_port();
            let (mut command, memory) = match &this {
                Target::Simulated => simulated(dir.path()),
                Target::Real(folder) => real(folder, dir.path(), &figures),
            };
            // Idle connections are closed soon enough to be seen.
            command.env("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "1");
            if start != Start::NoDevMode {
                command.env("VLLM_SERVER_DEV_MODE", "1");
            }
            if start == Start::AwakeForEver {
                command.env("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1");
            } else {
                command.arg("--enable-sleep-mode");
            }
            let log = dir.path().join("server.log");
            let file = File::create(&log).expect("the log");
            let child = command
                .args(["--served-model-name", MODEL, "--api-key", API_KEY, "--host", "127.0.0.1"])
                .args(["--port", &port.to_string()])
                .stdin(Stdio::null())
                .stdout(file.try_clone().expect("the log again"))
                .stderr(file)
                .process_group(0)
                .spawn()
                .expect("the server can be run");
            let server = Server::new(this.kind(), child, port, dir, log, ledger, figures, memory);
            server.ready().await;
            if start == Start::Usual {
                server.warm_up().await;
            }
            server
        }
    }

    /// What the result is of.
    pub(crate) fn title(&self) -> String {
        match self {
            Target::Simulated => "the simulated engine, as vLLM 0.32.0".to_owned(),
            Target::Real(_) => "real vLLM".to_owned(),
        }
    }
}

/// The simulated engine as vLLM's CPU build is: with a worker process of its own.
fn simulated(dir: &Path) -> (Command, Memory) {
    let mut command = Command::new(agent_binary());
    command
        .args(["sim-engine", "--name", "B", "--version", "0.32", "--host-scale", "4096", "--device-ledger"])
        .arg(dir.join("gpu0.json"))
        .arg("--op-log")
        .arg(dir.join("ops.jsonl"))
        .args(["--max-model-len", "2048", "--distributed-executor-backend", "mp"])
        // Starting is not what is checked.
        .args(["--speed", "200"]);
    (command, Memory::Simulated { speed: SPEED })
}

fn real(folder: &Path, dir: &Path, figures: &Figures) -> (Command, Memory) {
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("real-vllm/hook");
    let memory = Memory::Hook { folder: dir.to_owned(), figures: *figures };
    memory.set_pace(false);
    std::fs::create_dir_all(dir.join("faults")).expect("the folder of faults");
    let mut command = Command::new("nice");
    command
        .args(["-n", "5"])
        .arg(folder.join("venv/bin/vllm"))
        .arg("serve")
        .arg(folder.join("model-a"))
        .args(["--max-model-len", "2048", "--enforce-eager"])
        .args(["--worker-cls", "hotbunk_worker.LedgerWorker"])
        .env("PYTHONPATH", hook)
        .env("HOTBUNK_HOOK", dir)
        .envs([("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1")])
        .envs([("DO_NOT_TRACK", "1"), ("OMP_NUM_THREADS", "1")]);
    (command, memory)
}
