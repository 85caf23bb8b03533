//! Bytes of a process tree.

use std::fs;
use std::path::Path;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Σ resident bytes of these processes. A process that has ended holds nothing; `None` where none of them can be read.
pub fn rss(pids: &[u32]) -> Option<u64> {
    let mut pids: Vec<Pid> = pids.iter().map(|pid| Pid::from_u32(*pid)).collect();
    pids.sort_unstable();
    pids.dedup();
    // A new table each time: an old one would still show the bytes of processes that have ended.
    let mut table = System::new().ok()?;
    let kind = ProcessRefreshKind::nothing().with_memory().without_tasks();
    table.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, kind);
    sum(pids.iter().map(|pid| table.process(*pid).map(sysinfo::Process::memory)))
}

/// Σ proportional bytes of these processes. Takes long where they hold much, so it runs on a thread for blocking work.
/// `None` where none of them can be read: all have ended, or they are another user's.
pub async fn pss(pids: Vec<u32>) -> Option<u64> {
    tokio::task::spawn_blocking(move || pss_in(Path::new("/proc"), &pids)).await.ok().flatten()
}

fn pss_in(proc: &Path, pids: &[u32]) -> Option<u64> {
    sum(pids.iter().map(|pid| {
        let text = fs::read_to_string(proc.join(pid.to_string()).join("smaps_rollup")).ok()?;
        field_bytes(&text, "Pss")
    }))
}

/// The value of `NAME:   123 kB`, in bytes.
pub(super) fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The sum of what is known; `None` where nothing is.
fn sum(parts: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    parts.flatten().reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::{Child, Command, Stdio};

    const MIB: u64 = 1 << 20;

    /// A child that holds 16 MiB of touched memory once it has said so, until its input ends.
    fn hoarder() -> Child {
        let script = "x=$(head -c 16777216 /dev/zero | tr '\\0' x); echo ready; read -r _";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        child
    }

    #[tokio::test]
    async fn what_a_child_allocates_is_seen_and_gone_with_it() {
        let mut child = hoarder();
        let pid = child.id();
        let resident = rss(&[pid]).unwrap();
        assert!((16 * MIB..256 * MIB).contains(&resident), "{resident}");
        // Private memory counts in full either way.
        let proportional = pss(vec![pid]).await.unwrap();
        assert!((16 * MIB..=resident + MIB).contains(&proportional), "{proportional} of {resident}");
        let both = rss(&[pid, std::process::id()]).unwrap();
        assert!(both > resident);
        assert!(rss(&[pid, pid]).unwrap() < 2 * resident, "a process counts once");
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert_eq!(rss(&[pid]), None);
        assert_eq!(pss(vec![pid]).await, None);
        // One that has ended does not make the others unknown.
        assert!(rss(&[pid, std::process::id()]).is_some());
        assert_eq!(rss(&[]), None);
    }

    #[test]
    fn fields_are_read_in_kib_and_nothing_else_is_taken_for_them() {
        let text = "Rss:  3 kB\nPss:               1024 kB\nPss_Dirty:  7 kB\n";
        assert_eq!(field_bytes(text, "Pss"), Some(MIB));
        assert_eq!(field_bytes(text, "Swap"), None);
        assert_eq!(field_bytes("Pss: many kB", "Pss"), None);
        assert_eq!(field_bytes("Pss: 12 MB", "Pss"), None);
    }
}
