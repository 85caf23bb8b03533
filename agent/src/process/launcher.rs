//! Starting an engine under a shim.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::Error;
use super::container::ContainerSpec;
use super::handle::EngineProcess;
use super::log::LogPolicy;
use super::protocol::Greeting;
use super::shim::{AdoptOrder, SERVICE_VARIABLES, ShimSpec};
use super::state::{SHIMS, SPEC_FILE, STATE_FILE, STDERR_FILE, private_dir, remove_record, write_json};
use super::tree::Member;
use crate::clock;

/// How long a shim may take to start its engine's process (not: the engine to be ready).
const GREETING: Duration = Duration::from_secs(20);
/// Longest path of a unix socket, without the terminating zero.
const SOCKET_PATH_BYTES: usize = 107;
/// Longest engine name.
const NAME_BYTES: usize = 48;

/// How to start one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Engine's name; part of file names.
    pub engine: String,
    /// Program and arguments; the program is looked up in the agent's `PATH`.
    pub command: Vec<String>,
    /// Added to the agent's environment.
    pub env: BTreeMap<String, String>,
    /// Taken from the agent's environment, before `env` is added.
    pub unset_env: Vec<String>,
    /// Working directory; the agent's where it is `None`.
    pub cwd: Option<PathBuf>,
    /// How much output is kept.
    pub log: LogPolicy,
    /// Time between SIGTERM to the leader and SIGKILL to the tree, where a stop names none.
    pub grace: Duration,
    /// Where the command is a container runtime's: how the container is found and ended.
    pub container: Option<ContainerSpec>,
}

/// A server to take hold of that somebody else has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Engine's name; part of file names.
    pub engine: String,
    /// Its leader.
    pub leader: Member,
    /// Where its output goes, as far as that is known: said in the engine's log, which has none of it.
    pub output: Option<PathBuf>,
    /// How much of the log is kept.
    pub log: LogPolicy,
    /// Time between SIGTERM to the leader and SIGKILL to the tree, where a stop names none.
    pub grace: Duration,
}

/// Starts engines, each under a shim of its own.
#[derive(Debug, Clone)]
pub struct Shims {
    /// Where records and logs go.
    pub state_dir: PathBuf,
    /// Where sockets go.
    pub runtime_dir: PathBuf,
    /// The program that has the `shim` subcommand: this one (`/proc/self/exe` names it even after an upgrade).
    pub shim_exe: PathBuf,
    /// Whether engines get cgroups, where the host allows it.
    pub use_cgroup: bool,
}

/// The files of one incarnation.
#[derive(Debug)]
struct Places {
    dir: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

impl Shims {
    /// Starts an engine's process under a new shim. Returns as soon as the process runs; whether it will ever serve is
    /// for others to find out.
    ///
    /// Do not drop the future half-way: the shim would run with nobody holding it, until the next agent finds it.
    ///
    /// # Errors
    /// See [`Error`]. Nothing runs and no file is left after an error, but for the log.
    pub async fn spawn(&self, launch: Launch) -> Result<EngineProcess, Error> {
        let token = uuid::Uuid::now_v7().simple().to_string();
        check(&launch)?;
        let places = self.prepare(&launch.engine, &token)?;
        let spec = ShimSpec {
            engine: launch.engine.clone(),
            token,
            command: launch.command,
            env: launch.env,
            unset_env: launch.unset_env,
            cwd: launch.cwd,
            log: places.log.clone(),
            log_policy: launch.log,
            grace_ms: u64::try_from(launch.grace.as_millis()).unwrap_or(u64::MAX),
            use_cgroup: self.use_cgroup,
            container: launch.container,
            adopt: None,
            socket: places.socket.clone(),
        };
        self.run(launch.engine, &places, &spec).await
    }

    /// Has a new shim take hold of a server that runs already. Nothing is done to it, and nothing of it is ours, until
    /// [`EngineProcess::keep`].
    ///
    /// # Errors
    /// See [`Error`]. Nothing is held and no file is left after an error, but for the log.
    pub async fn hold(&self, hold: Hold) -> Result<EngineProcess, Error> {
        let token = uuid::Uuid::now_v7().simple().to_string();
        check_name(&hold.engine)?;
        let places = self.prepare(&hold.engine, &token)?;
        let spec = ShimSpec {
            engine: hold.engine.clone(),
            token,
            command: Vec::new(),
            env: BTreeMap::new(),
            unset_env: Vec::new(),
            cwd: None,
            log: places.log.clone(),
            log_policy: hold.log,
            grace_ms: u64::try_from(hold.grace.as_millis()).unwrap_or(u64::MAX),
            use_cgroup: false,
            container: None,
            adopt: Some(AdoptOrder { leader: hold.leader, output: hold.output }),
            socket: places.socket.clone(),
        };
        self.run(hold.engine, &places, &spec).await
    }

    /// Starts a shim and hears how it went.
    async fn run(&self, engine: String, places: &Places, spec: &ShimSpec) -> Result<EngineProcess, Error> {
        let remove = || remove_record(&places.dir.join(STATE_FILE), &places.socket);
        let mut child = self.start_shim(&places.dir, spec).inspect_err(|_| remove())?;
        match greeting(&mut child).await {
            Ok(Some(Greeting::Ready(state))) => {
                Ok(EngineProcess::attach(*state, places.dir.join(STATE_FILE), Some(child)))
            }
            failed => {
                // Either it is gone or it is not going to do anything useful.
                let _ = child.kill();
                let _ = child.wait();
                let error = match failed {
                    Ok(Some(Greeting::Failed { why })) => Error::Start { engine, why },
                    Ok(_) => Error::Start { engine, why: died(&places.dir.join(STDERR_FILE)) },
                    Err(_) => Error::StartTimeout { engine, waited: GREETING },
                };
                // A shim that was slow rather than dead may have started its engine meanwhile.
                super::predecessor::sweep_record(&places.dir).await;
                remove();
                Err(error)
            }
        }
    }

    /// Makes the directories and names the files of a new incarnation.
    fn prepare(&self, engine: &str, token: &str) -> Result<Places, Error> {
        let absolute = |path: &Path| {
            std::path::absolute(path).map_err(|source| Error::File {
                what: "finding",
                path: path.to_owned(),
                source,
            })
        };
        let (state_dir, runtime_dir) = (absolute(&self.state_dir)?, absolute(&self.runtime_dir)?);
        // The head of such a token is the time, the tail is random.
        let short = token.get(token.len().saturating_sub(8)..).unwrap_or(token);
        let name = format!("{engine}-{short}");
        let sockets = runtime_dir.join(SHIMS);
        let socket = sockets.join(format!("{name}.sock"));
        if socket.as_os_str().len() > SOCKET_PATH_BYTES {
            return Err(Error::SocketPath(socket));
        }
        let logs = state_dir.join("logs").join(engine);
        let dir = state_dir.join(SHIMS).join(&name);
        for path in [&sockets, &logs, &dir] {
            private_dir(path).map_err(|source| Error::File {
                what: "creating",
                path: path.clone(),
                source,
            })?;
        }
        let stamp = clock::wall().strftime("%Y%m%dT%H%M%S.%3fZ");
        Ok(Places { dir, socket, log: logs.join(format!("{stamp}-{short}.log")) })
    }

    fn start_shim(&self, dir: &Path, spec: &ShimSpec) -> Result<Child, Error> {
        let orders = dir.join(SPEC_FILE);
        write_json(&orders, spec).map_err(|source| Error::File {
            what: "writing",
            path: orders.clone(),
            source,
        })?;
        let complaints = dir.join(STDERR_FILE);
        let stderr = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&complaints)
            .map_err(|source| Error::File { what: "creating", path: complaints, source })?;
        let mut command = Command::new(&self.shim_exe);
        command.arg("shim").arg("--spec").arg(&orders);
        for name in SERVICE_VARIABLES {
            command.env_remove(name);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|source| Error::Shim { exe: self.shim_exe.clone(), source })
    }
}

fn check(launch: &Launch) -> Result<(), Error> {
    check_name(&launch.engine)?;
    if launch.command.first().is_none_or(String::is_empty) {
        return Err(Error::NoCommand(launch.engine.clone()));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES || name.starts_with('.') || !name.chars().all(fits) {
        return Err(Error::Name(name.to_owned()));
    }
    Ok(())
}

/// The shim's one line; `None` where it ended without one.
///
/// # Errors
/// When it takes too long.
async fn greeting(child: &mut Child) -> Result<Option<Greeting>, tokio::time::error::Elapsed> {
    let Some(stdout) = child.stdout.take() else { return Ok(None) };
    let Ok(receiver) = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout)) else { return Ok(None) };
    let mut lines = BufReader::new(receiver).lines();
    let line = timeout(GREETING, lines.next_line()).await?;
    Ok(line.ok().flatten().and_then(|text| serde_json::from_str(&text).ok()))
}

/// What a shim that died without a greeting had to say.
fn died(complaints: &Path) -> String {
    let mut text = String::new();
    let read = fs::File::open(complaints).and_then(|file| file.take(4096).read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), said) if !said.is_empty() => format!("its shim ended at once and said: {said}"),
        (Err(error), _) if error.kind() != io::ErrorKind::NotFound => {
            format!("its shim ended at once; what it said cannot be read: {error}")
        }
        _ => "its shim ended at once without a word".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(engine: &str, command: &[&str]) -> Launch {
        Launch {
            engine: engine.to_owned(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            env: BTreeMap::new(),
            unset_env: Vec::new(),
            cwd: None,
            log: LogPolicy::default(),
            grace: Duration::from_secs(1),
            container: None,
        }
    }

    #[test]
    fn names_that_would_leave_their_directory_are_refused() {
        for name in ["", ".", "..", "../x", "a/b", "a b", "a\0", "ä", ".hidden", &"x".repeat(49)] {
            assert!(matches!(check(&launch(name, &["x"])), Err(Error::Name(_))), "{name:?}");
        }
        for name in ["A", "llama-3.1_8b"] {
            assert!(check(&launch(name, &["x"])).is_ok(), "{name:?}");
        }
        assert!(matches!(check(&launch("A", &[])), Err(Error::NoCommand(_))));
        assert!(matches!(check(&launch("A", &[""])), Err(Error::NoCommand(_))));
    }

    #[test]
    fn a_socket_path_that_is_too_long_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().expect("temp dir");
        let shims = Shims {
            state_dir: dir.path().join("state"),
            runtime_dir: dir.path().join("r".repeat(100)),
            shim_exe: "/bin/false".into(),
            use_cgroup: false,
        };
        let refused = shims.prepare("A", "0123456789abcdef").expect_err("is refused");
        assert!(refused.to_string().contains("shorter runtime directory"), "{refused}");
        assert!(!shims.state_dir.exists());
    }
}
