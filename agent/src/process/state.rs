//! What a shim writes down about its engine: `shim.json`, the proof by which a later agent knows its own.
//!
//! The file is replaced by rename, so a reader sees the old one or the new one. It is written once before the engine
//! is started (without leader) and once after, so no instant exists at which an engine runs unrecorded.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hotbunk_core::ids::Incarnation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::adopted::AdoptedState;
use super::container::ContainerState;
use super::tree::Member;

/// Name of the directory, below the agent's state directory, that holds one directory per living shim.
pub(super) const SHIMS: &str = "shims";
/// The record's name in a shim's directory.
pub(super) const STATE_FILE: &str = "shim.json";
/// The shim's orders, removed by the shim once read (they may hold secrets in `env`).
pub(super) const SPEC_FILE: &str = "spec.json";
/// The shim's own complaints.
pub(super) const STDERR_FILE: &str = "shim.err";

/// The record of one shim and its engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimState {
    /// Engine's name.
    pub engine: String,
    /// Random name of this incarnation; in the environment of every process of the engine.
    pub token: String,
    /// The boot all pids belong to.
    pub boot_id: String,
    /// The shim.
    pub shim: Member,
    /// Session of the shim and, unless they left it, of all its descendants.
    pub session: u32,
    /// The engine's leader; `None` until it has been started.
    pub leader: Option<Member>,
    /// The engine's cgroup.
    pub cgroup: Option<PathBuf>,
    /// Why there is none.
    pub cgroup_refused: Option<String>,
    /// Where the shim listens.
    pub socket: PathBuf,
    /// The incarnation's log.
    pub log: PathBuf,
    /// Grace at a stop that names none, milliseconds.
    pub grace_ms: u64,
    /// When the shim began, wall clock, for people.
    pub started: jiff::Timestamp,
    /// Of an engine in a container: how it is found and ended, and what was found. Once it was found, its oldest process
    /// is `leader`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerState>,
    /// Of a server that somebody else had started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<AdoptedState>,
}

impl ShimState {
    /// Whether its processes are only held: not ours, and never signalled.
    pub fn is_only_held(&self) -> bool {
        self.adopted.as_ref().is_some_and(|adopted| !adopted.kept)
    }

    /// The engine's incarnation; `None` until it has been started.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.leader.map(|leader| Incarnation {
            pid: leader.pid,
            start_ticks: leader.start_ticks,
            boot_id: self.boot_id.clone(),
        })
    }
}

/// Writes a private file so that readers see it whole or not at all.
///
/// # Errors
/// The file system's.
pub(super) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    drop(file);
    fs::rename(&next, path)
}

/// Reads what [`write_json`] wrote.
///
/// # Errors
/// The file system's; `InvalidData` where the text is not of the form.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Makes a directory, and those above it, for this user only.
///
/// # Errors
/// The file system's.
pub(super) fn private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes a shim's directory and socket. What cannot be removed is found by the next agent, and removed then.
pub(super) fn remove_record(state_file: &Path, socket: &Path) {
    let _ = fs::remove_file(socket);
    if let Some(dir) = state_file.parent() {
        remove_shim_dir(dir);
    }
}

/// Removes one shim's directory: only files that a shim or its agent writes there.
pub(super) fn remove_shim_dir(dir: &Path) {
    for name in [STATE_FILE, SPEC_FILE, STDERR_FILE] {
        let path = dir.join(name);
        let _ = fs::remove_file(path.with_extension("next"));
        let _ = fs::remove_file(path);
    }
    let _ = fs::remove_dir(dir);
}
