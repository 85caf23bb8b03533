//! What a shim does before its loop: cut the ties to the agent, start the engine.

use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{getpid, getsid, set_child_subreaper, setsid};

use super::ShimSpec;
use crate::process::cgroup::{Cgroup, Inside};
use crate::process::scope::TOKEN_VARIABLE;
use crate::process::tree::{Member, ProcStat};

/// Variables by which systemd talks to the agent, and to nobody below it.
pub(in crate::process) const SERVICE_VARIABLES: [&str; 7] = [
    "NOTIFY_SOCKET",
    "FDSTORE",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// Makes this process independent of its parent: session leader, no terminal, reaper of all its descendants, and
/// holding none of the descriptors that the agent itself had been given without close-on-exec (a lock of the shell
/// that started it, a build tool's pipe): an engine must not keep them open for weeks.
///
/// # Errors
/// The kernel's answer.
pub(super) fn cut_loose() -> io::Result<()> {
    // Fails for the leader of a process group, unless it leads its session already.
    if let Err(error) = setsid()
        && getsid(None)? != getpid()
    {
        return Err(error.into());
    }
    set_child_subreaper(Some(getpid()))?;
    for fd in inherited_descriptors()? {
        // Nothing in this process uses it: what Rust opens is close-on-exec, and these are not.
        let _ = nix::unistd::close(fd);
    }
    Ok(())
}

/// Descriptors above standard error without the close-on-exec flag.
fn inherited_descriptors() -> io::Result<Vec<i32>> {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")?.flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        let stays =
            flags.and_then(|text| u32::from_str_radix(text, 8).ok()).is_some_and(|f| f & CLOSE_ON_EXEC == 0);
        if fd > 2 && stays {
            found.push(fd);
        }
    }
    Ok(found)
}

/// Starts the engine's leader, inside `cgroup` where there is one.
///
/// Its process group is its own, so that a `kill(0, …)` inside the engine does not reach the shim.
///
/// # Errors
/// A sentence that names the command and what is wrong with it.
pub(super) fn start_engine(
    spec: &ShimSpec,
    output: PipeWriter,
    cgroup: Option<&Cgroup>,
) -> Result<Member, String> {
    let (program, arguments) = spec.command.split_first().ok_or("the engine's command is empty")?;
    if let Some(cwd) = &spec.cwd
        && !cwd.is_dir()
    {
        return Err(format!("the engine's working directory {} is not a directory", cwd.display()));
    }
    let errors = output.try_clone().map_err(|error| format!("no pipe for the engine's output: {error}"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    for name in &spec.unset_env {
        command.env_remove(name);
    }
    command.envs(&spec.env).env(TOKEN_VARIABLE, &spec.token);
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }

    let spawned = match cgroup {
        None => command.spawn(),
        Some(cgroup) => match cgroup.inside(|| command.spawn()) {
            Ok(spawned) => spawned,
            Err(Inside::NotEntered(error)) => {
                return Err(format!(
                    "the engine's cgroup {} cannot be entered: {error}",
                    cgroup.path().display()
                ));
            }
            // A shim inside the group would kill itself with `cgroup.kill`.
            Err(Inside::NotLeft(error, spawned)) => {
                if let Ok(mut child) = spawned {
                    let _ = child.kill();
                }
                return Err(format!("the shim cannot leave the cgroup {}: {error}", cgroup.path().display()));
            }
        },
    };
    let child = spawned.map_err(|error| refusal(program, spec.cwd.as_deref(), &error))?;
    // Not reaped by anyone but the loop that starts after this, so its stat is there even if it has ended already.
    let stat =
        ProcStat::read(child.id()).ok_or("the engine's /proc entry cannot be read: is /proc mounted?")?;
    Ok(stat.member())
}

fn refusal(program: &str, cwd: Option<&Path>, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => match cwd {
            Some(cwd) => format!(" (relative paths are looked up from {})", cwd.display()),
            None => String::new(),
        },
        io::ErrorKind::NotFound => {
            format!(" (it was looked for in PATH={})", std::env::var("PATH").unwrap_or_default())
        }
        io::ErrorKind::PermissionDenied => " (is it executable for the agent's user?)".to_owned(),
        _ => String::new(),
    };
    format!("the command {program:?} cannot be started: {error}{hint}")
}
