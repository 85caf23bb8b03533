//! A stand-in for a container runtime: what `docker` does with processes, and nothing else.
//!
//! The daemon is a thread of the test. Its client (the program `fake-runtime`) asks it over a socket, stays attached to
//! the container's output, ends with its exit code, and may be killed alone. A container is a process in a session of its
//! own, with the daemon for a parent and not the client; in a cgroup of its own where the machine lets us make one. When
//! its first process ends, the others are killed, as the kernel does with a pid namespace.

use crate::processes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where cgroup 2 is, alone or beside the old hierarchies.
const CGROUPS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// How long a container may take to end when asked to.
const STOP: Duration = Duration::from_secs(10);
/// Begins the last line that a client is told.
pub const EXIT: &str = "\u{1}exit ";

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Runs a container.
    Run {
        /// Its name.
        name: String,
        /// Program and arguments.
        words: Vec<String>,
        /// Its whole environment, but for the path.
        env: BTreeMap<String, String>,
        /// Where its id goes.
        id_file: Option<PathBuf>,
    },
    /// Asks it to end, and kills it after a while.
    Stop {
        /// Its name.
        name: String,
    },
    /// Kills it.
    Kill {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Clone)]
struct Container {
    pid: u32,
    cgroup: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<String, Container>,
    asked: Vec<String>,
    made: u32,
}

/// A running daemon. Dropped, it ends its containers.
#[derive(Debug)]
pub struct Runtime {
    dir: tempfile::TempDir,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// Starts the daemon. `client` is the program `fake-runtime`; `with_cgroups`: containers get one where that can be.
    ///
    /// # Panics
    /// There is no directory or no socket to be had.
    pub fn start(client: &str, with_cgroups: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("rt").tempdir().expect("a directory");
        let cgroups = with_cgroups.then(|| cgroups(dir.path())).flatten();
        let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
        // Under the name of the program that it stands for, and knowing where its daemon is.
        let script = format!("#!/bin/sh\nexec {client} {} \"$@\"\n", dir.path().join("socket").display());
        fs::write(dir.path().join("docker"), script).expect("the client");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.path().join("docker"), mode).expect("the client");
        let state: Arc<Mutex<State>> = Arc::default();
        let (shared, init) = (Arc::clone(&state), client.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, init, cgroups) = (Arc::clone(&shared), init.clone(), cgroups.clone());
                std::thread::spawn(move || serve(stream, &shared, &init, cgroups.as_deref()));
            }
        });
        Runtime { dir, state }
    }

    /// The client's path: what `docker` would be.
    pub fn client(&self) -> String {
        self.dir.path().join("docker").display().to_string()
    }

    /// A place for files of the runtime's.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// First process of a container.
    pub fn pid(&self, name: &str) -> Option<u32> {
        lock(&self.state).running.get(name).map(|container| container.pid)
    }

    /// Whether its containers have cgroups of their own.
    pub fn has_cgroups(&self) -> bool {
        lock(&self.state).running.values().any(|container| container.cgroup.is_some())
    }

    /// What was asked so far: `run A`, `stop A`, `kill A`.
    pub fn asked(&self) -> Vec<String> {
        lock(&self.state).asked.clone()
    }

    /// Kills a container behind everybody's back.
    pub fn destroy(&self, name: &str) {
        let container = lock(&self.state).running.get(name).cloned();
        if let Some(container) = container {
            kill_all(&container);
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let left: Vec<Container> = lock(&self.state).running.values().cloned().collect();
        left.iter().for_each(kill_all);
        let deadline = Instant::now() + STOP;
        while !lock(&self.state).running.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(parent) = cgroups(self.dir.path()) {
            drop(fs::remove_dir(parent));
        }
    }
}

/// The daemon's own part of the cgroup hierarchy, made where it may be.
fn cgroups(dir: &Path) -> Option<PathBuf> {
    let name = format!("fake-runtime-{}", dir.file_name()?.to_str()?);
    let root = CGROUPS.iter().map(Path::new).find(|root| root.join("cgroup.procs").is_file())?;
    let parent = root.join(name);
    (parent.is_dir() || fs::create_dir(&parent).is_ok()).then_some(parent)
}

fn serve(mut stream: UnixStream, state: &Mutex<State>, init: &str, cgroups: Option<&Path>) {
    let mut line = String::new();
    let Ok(reading) = stream.try_clone() else { return };
    if BufReader::new(reading).read_line(&mut line).is_err() {
        return;
    }
    let code = match serde_json::from_str(&line) {
        Ok(Request::Run { name, words, env, id_file }) => {
            lock(state).asked.push(format!("run {name}"));
            run(&mut stream, state, init, cgroups, (name, words, env, id_file))
        }
        Ok(Request::Stop { name }) => {
            lock(state).asked.push(format!("stop {name}"));
            stop(state, &name, false)
        }
        Ok(Request::Kill { name }) => {
            lock(state).asked.push(format!("kill {name}"));
            stop(state, &name, true)
        }
        Err(_) => 125,
    };
    // A client that has gone hears nothing.
    drop(writeln!(stream, "{EXIT}{code}"));
}

type Wanted = (String, Vec<String>, BTreeMap<String, String>, Option<PathBuf>);

fn run(
    stream: &mut UnixStream,
    state: &Mutex<State>,
    init: &str,
    cgroups: Option<&Path>,
    (name, words, env, id_file): Wanted,
) -> i32 {
    let (mut child, container) = {
        let mut state = lock(state);
        if state.running.contains_key(&name) {
            return 125;
        }
        state.made += 1;
        let id = format!("{:064x}", u64::from(std::process::id()) << 32 | u64::from(state.made));
        let cgroup = cgroups.map(|parent| parent.join(&id)).filter(|path| fs::create_dir(path).is_ok());
        let mut command = Command::new(init);
        command.arg("init").arg(cgroup.as_deref().unwrap_or(Path::new("-"))).args(&words);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(&env);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Ok(child) = command.spawn() else { return 127 };
        let container = Container { pid: child.id(), cgroup };
        if let Some(path) = id_file {
            drop(fs::write(path, &id));
        }
        state.running.insert(name.clone(), container.clone());
        (child, container)
    };
    let errors = child.stderr.take().map(|pipe| copy(pipe, stream));
    let output = child.stdout.take().map(|pipe| copy(pipe, stream));
    let code = wait(&mut child);
    kill_all(&container);
    for copied in [errors, output].into_iter().flatten() {
        drop(copied.join());
    }
    if let Some(cgroup) = &container.cgroup {
        // The last one leaves it a moment after its end.
        let deadline = Instant::now() + STOP;
        while fs::remove_dir(cgroup).is_err() && cgroup.is_dir() && Instant::now() < deadline {
            kill_all(&container);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    lock(state).running.remove(&name);
    code
}

fn wait(child: &mut Child) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    match child.wait() {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(_) => 125,
    }
}

/// Output to the client, and to nobody once that has gone.
fn copy(mut pipe: impl Read + Send + 'static, stream: &UnixStream) -> std::thread::JoinHandle<()> {
    let client = stream.try_clone().ok();
    std::thread::spawn(move || {
        let mut client = client;
        let mut chunk = [0; 4096];
        while let Ok(count) = pipe.read(&mut chunk) {
            if count == 0 {
                return;
            }
            if client.as_mut().is_some_and(|client| client.write_all(&chunk[..count]).is_err()) {
                client = None;
            }
        }
    })
}

fn stop(state: &Mutex<State>, name: &str, at_once: bool) -> i32 {
    let Some(container) = lock(state).running.get(name).cloned() else { return 1 };
    if !at_once {
        processes::signal(container.pid, rustix::process::Signal::TERM);
    }
    let deadline = Instant::now() + STOP;
    loop {
        if lock(state).running.get(name).is_none_or(|now| now.pid != container.pid) {
            return 0;
        }
        if at_once || Instant::now() >= deadline {
            kill_all(&container);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill_all(container: &Container) {
    if let Some(cgroup) = &container.cgroup {
        drop(fs::write(cgroup.join("cgroup.kill"), "1"));
    }
    for pid in processes::in_session(container.pid) {
        processes::kill(pid);
    }
}
