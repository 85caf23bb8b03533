//! Where things live when nothing says otherwise, and what else the machine tells the checks.
//!
//! The checks themselves touch neither environment nor files: what they need of the machine comes in as [`Facts`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::client_ports::ClientPorts;
use hotbunk_core::capability::Version;

/// The configuration file that is read where none is named.
pub const DEFAULT_CONFIG: &str = "/etc/hotbunk/hotbunk.toml";

/// What the machine tells the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The machine's memory in bytes; `None` leaves host memory unchecked.
    pub host_memory_total: Option<u64>,
    /// Memory of devices in bytes, by the configuration's name, where it was read already.
    pub device_memory_total: BTreeMap<String, u64>,
    /// State directory where the configuration names none.
    pub state_dir: PathBuf,
    /// Directory of sockets where the configuration names none.
    pub runtime_dir: PathBuf,
    /// The vLLM release that is going to run, where somebody says; `None` judges for every release.
    pub vllm: Option<Version>,
    /// Ports that the kernel gives to outgoing connections.
    pub client_ports: ClientPorts,
}

impl Default for Facts {
    /// A service of root's, on a machine of which nothing is known.
    fn default() -> Self {
        Facts {
            host_memory_total: None,
            device_memory_total: BTreeMap::new(),
            state_dir: PathBuf::from("/var/lib/hotbunk"),
            runtime_dir: PathBuf::from("/run/hotbunk"),
            vllm: None,
            client_ports: ClientPorts::default(),
        }
    }
}

impl Facts {
    /// This process's places, and the memory and ports of this machine.
    pub fn of_this_machine() -> Self {
        let env = |name: &str| std::env::var_os(name);
        let is_root = rustix::process::geteuid().is_root();
        let state_dir = state_dir(env, is_root);
        let runtime_dir = runtime_dir(env, is_root, &state_dir);
        Facts {
            host_memory_total: host_memory_total(),
            device_memory_total: BTreeMap::new(),
            state_dir,
            runtime_dir,
            vllm: None,
            client_ports: ClientPorts::of_this_machine(),
        }
    }
}

/// `MemTotal` of `/proc/meminfo` in bytes; `None` where it cannot be read.
fn host_memory_total() -> Option<u64> {
    parse_mem_total(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `$STATE_DIRECTORY`, for root `/var/lib/hotbunk`, else `~/.local/state/hotbunk`.
pub fn state_dir(env: impl Fn(&str) -> Option<OsString>, is_root: bool) -> PathBuf {
    if let Some(dir) = first_of(env("STATE_DIRECTORY")) {
        return dir;
    }
    if is_root {
        return PathBuf::from("/var/lib/hotbunk");
    }
    match absolute(env("XDG_STATE_HOME")) {
        Some(dir) => dir.join("hotbunk"),
        None => absolute(env("HOME")).unwrap_or_else(|| PathBuf::from("/")).join(".local/state/hotbunk"),
    }
}

/// `$RUNTIME_DIRECTORY`, for root `/run/hotbunk`, else `$XDG_RUNTIME_DIR/hotbunk`, else `run` in the state directory.
pub fn runtime_dir(env: impl Fn(&str) -> Option<OsString>, is_root: bool, state_dir: &Path) -> PathBuf {
    if let Some(dir) = first_of(env("RUNTIME_DIRECTORY")) {
        return dir;
    }
    if is_root {
        return PathBuf::from("/run/hotbunk");
    }
    absolute(env("XDG_RUNTIME_DIR")).map_or_else(|| state_dir.join("run"), |dir| dir.join("hotbunk"))
}

/// systemd joins several directories by colons; ours is the first.
fn first_of(value: Option<OsString>) -> Option<PathBuf> {
    let value = value?;
    let text = value.to_str()?;
    absolute(Some(OsString::from(text.split(':').next()?)))
}

fn absolute(value: Option<OsString>) -> Option<PathBuf> {
    value.map(PathBuf::from).filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn a_unit_s_directories_win() {
        let vars = [
            ("STATE_DIRECTORY", "/s/hotbunk:/other"),
            ("RUNTIME_DIRECTORY", "/r/hotbunk"),
            ("HOME", "/home/me"),
        ];
        assert_eq!(state_dir(env(&vars), true), Path::new("/s/hotbunk"));
        assert_eq!(runtime_dir(env(&vars), true, Path::new("/s")), Path::new("/r/hotbunk"));
    }

    #[test]
    fn root_and_users_have_their_own_places() {
        let vars = [("HOME", "/home/me"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(state_dir(env(&vars), true), Path::new("/var/lib/hotbunk"));
        assert_eq!(runtime_dir(env(&vars), true, Path::new("/s")), Path::new("/run/hotbunk"));
        assert_eq!(state_dir(env(&vars), false), Path::new("/home/me/.local/state/hotbunk"));
        assert_eq!(runtime_dir(env(&vars), false, Path::new("/s")), Path::new("/run/user/1000/hotbunk"));
    }

    #[test]
    fn relative_and_empty_directories_are_not_taken() {
        let vars = [("STATE_DIRECTORY", ""), ("XDG_RUNTIME_DIR", "relative"), ("HOME", "/home/me")];
        assert_eq!(state_dir(env(&vars), false), Path::new("/home/me/.local/state/hotbunk"));
        assert_eq!(runtime_dir(env(&vars), false, Path::new("/s")), Path::new("/s/run"));
    }

    #[test]
    fn the_machine_s_memory_is_read_in_bytes() {
        assert_eq!(parse_mem_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert_eq!(parse_mem_total("MemFree: 1 kB\n"), None);
        assert!(Facts::of_this_machine().host_memory_total.is_some());
    }
}
