//! Processes as `/proc` shows them.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// A living process (a zombie is none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// What the kernel calls it.
    pub comm: String,
    /// Its command line, words joined by spaces.
    pub command: String,
}

/// Living processes whose command line names a directory: every engine and every shim of a node names its node's.
pub fn living(dir: &Path) -> Vec<Process> {
    let dir = dir.display().to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).filter(|process| process.command.contains(&dir)).collect()
}

/// Living processes of a process group.
pub fn living_in_group(group: u32) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read).filter(|process| process.group == group).collect()
}

/// Whether a process is there, and no zombie. Its first thread may be one while others still end, and its files are open
/// until they have.
pub(crate) fn lives(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    threads > 1 || read(pid).is_some()
}

fn read(pid: u32) -> Option<Process> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(')')?;
    let mut fields = tail.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let comm = head.split_once('(')?.1.to_owned();
    Some(Process { pid, parent, group, comm, command })
}

/// Sends a signal; a process that is gone gets none.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended this instant.
        let _ = kill_process(pid, signal);
    }
}

/// `kill -9`.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Living processes of a session, by pid.
pub(crate) fn in_session(session: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // STATE PPID PGRP SESSION …
        stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(3)?.parse::<u32>().ok()
    };
    pids.filter(|pid| of(pid) == Some(session)).collect()
}
