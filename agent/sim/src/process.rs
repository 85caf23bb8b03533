//! The process tree: roles, titles, and who outlives whom.
//!
//! Children are this program again, with the same arguments and the role in the environment. The resource tracker
//! leaves when the last holder of its pipe has left; the engine core inherits an end of it without knowing, so after
//! `kill -9` of the API server both stay, as vLLM's do (CONTRACT 5 [run]). Only workers watch their parent: by a pipe
//! that ends with the engine core, some time after which they leave too.

use rustix::fd::OwnedFd;
use rustix::io::FdFlags;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

const ROLE: &str = "HOTBUNK_SIM_ROLE";

/// What this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    ApiServer,
    EngineCore,
    ResourceTracker,
    Worker,
}

/// An unknown role: somebody set the variable by hand.
#[derive(Debug, thiserror::Error)]
#[error("{ROLE}={0} is no role; leave the variable unset")]
pub(crate) struct UnknownRole(String);

impl Role {
    pub(crate) fn from_env() -> Result<Self, UnknownRole> {
        match std::env::var(ROLE).as_deref() {
            Err(_) | Ok("") => Ok(Role::ApiServer),
            Ok("engine_core") => Ok(Role::EngineCore),
            Ok("resource_tracker") => Ok(Role::ResourceTracker),
            Ok("worker") => Ok(Role::Worker),
            Ok(other) => Err(UnknownRole(other.to_owned())),
        }
    }
}

/// What an API server keeps of its children.
#[derive(Debug)]
pub(crate) struct Children {
    pub(crate) core: Child,
    /// Kept so that the tracker stays as long as this process lives.
    pub(crate) tracker_pipe: OwnedFd,
}

/// Starts resource tracker and engine core.
pub(crate) fn spawn_children() -> std::io::Result<Children> {
    let (read_end, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // Nobody waits for it: it leaves by itself when everybody else has left.
    again("resource_tracker", "resource_tracker")?
        .stdin(Stdio::from(read_end))
        .stdout(Stdio::null())
        .spawn()?;
    // For the one spawn between these lines the write end may be inherited.
    rustix::io::fcntl_setfd(&write_end, FdFlags::empty())?;
    let core = again("engine_core", "VLLM::EngineCore")?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    rustix::io::fcntl_setfd(&write_end, FdFlags::CLOEXEC)?;
    Ok(Children { core: core?, tracker_pipe: write_end })
}

/// Starts a worker, which stays until its standard input ends.
pub(crate) fn spawn_worker(rank: usize, count: usize) -> std::io::Result<Child> {
    let title = if count > 1 { format!("VLLM::Worker_TP{rank}") } else { "VLLM::Worker".to_owned() };
    again("worker", &title)?.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

/// The children of a process, as the kernel lists them.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn again(role: &str, title: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(title).args(std::env::args_os().skip(1)).env(ROLE, role);
    Ok(command)
}

/// Names the process as vLLM does; the kernel keeps 15 characters (`VLLM::EngineCor`, CONTRACT 5 [run]).
pub(crate) fn set_title(title: &str) {
    // Cosmetic: a process that cannot be named works all the same.
    drop(std::fs::write("/proc/self/comm", title));
}

/// The resource tracker: waits for its pipe's end, and like Python's leaves SIGTERM and SIGINT alone.
pub(crate) fn run_tracker() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(_) => return ExitCode::FAILURE,
    };
    let _guard = runtime.enter();
    // A signal with a handler no longer ends the process.
    let handlers =
        [tokio::signal::unix::SignalKind::terminate(), tokio::signal::unix::SignalKind::interrupt()]
            .map(tokio::signal::unix::signal);
    let mut sink = Vec::new();
    let ended = std::io::stdin().lock().read_to_end(&mut sink);
    drop(handlers);
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Resident bytes of a process.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
