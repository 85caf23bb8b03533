//! Who is who in `/proc`: process identities and the trees they form.
//!
//! A pid alone names nothing: the kernel reuses it. A pid with its start time names one process of this boot, and
//! with the boot id one process for ever. Everything in this module therefore hands out [`ProcStat`]s, which carry the
//! start time, and every signal is sent to a [`Member`] (see [`super::signal`]).
//!
//! Parsing is separate from reading, so that odd names (`a) S 1 (b`) are tested without a process of that name.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

use serde::{Deserialize, Serialize};

/// One process of this boot: its pid and the time it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// The fields of `/proc/PID/stat` that matter to a supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Process id.
    pub pid: u32,
    /// The name, at most 15 bytes; may hold spaces and parentheses.
    pub comm: String,
    /// State letter: `R`, `S`, `D` (uninterruptible), `Z` (zombie), `T`, …
    pub state: char,
    /// Parent's pid; 0 where it is outside the pid namespace.
    pub ppid: u32,
    /// Session id.
    pub session: u32,
    /// Threads that have not ended.
    pub threads: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcStat {
    /// The process's identity.
    pub fn member(&self) -> Member {
        Member { pid: self.pid, start_ticks: self.start_ticks }
    }

    /// Whether it still runs: a zombie or a dying process holds nothing any more. (A process whose first thread has
    /// ended reads as a zombie while its other threads go on.)
    pub fn is_running(&self) -> bool {
        !matches!(self.state, 'Z' | 'X' | 'x') || self.threads > 1
    }

    /// Parses one `/proc/PID/stat`; `None` where the text is not of that form.
    ///
    /// The name stands in parentheses and may hold any byte, so it ends at the *last* `)`.
    pub fn parse(text: &str) -> Option<ProcStat> {
        let open = text.find('(')?;
        let close = text.rfind(')')?;
        let pid = text.get(..open)?.trim().parse().ok()?;
        let comm = text.get(open + 1..close)?.to_owned();
        // From here on: state (3) ppid (4) pgrp (5) session (6) … num_threads (20) … starttime (22).
        let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(ProcStat {
            pid,
            comm,
            state: fields.first()?.chars().next()?,
            ppid: u32::try_from(number(4)?).ok()?,
            // A session outside the pid namespace reads as 0, never negative.
            session: u32::try_from(number(6)?).ok()?,
            threads: u32::try_from(number(20)?).ok()?,
            start_ticks: number(22)?,
        })
    }

    /// Reads the process with this pid now; `None` where there is none.
    pub fn read(pid: u32) -> Option<ProcStat> {
        let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
        ProcStat::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Reads the process only where it is still the one meant.
    pub fn read_member(member: Member) -> Option<ProcStat> {
        ProcStat::read(member.pid).filter(|stat| stat.start_ticks == member.start_ticks)
    }
}

/// All processes at (nearly) one instant.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    processes: BTreeMap<u32, ProcStat>,
}

impl Snapshot {
    /// Reads `/proc` once: one small file a process, some 10 µs each.
    pub fn read() -> Snapshot {
        let Ok(entries) = fs::read_dir("/proc") else { return Snapshot::default() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Snapshot::from_stats(pids.filter_map(ProcStat::read))
    }

    /// A snapshot of given processes.
    pub fn from_stats(stats: impl IntoIterator<Item = ProcStat>) -> Snapshot {
        Snapshot { processes: stats.into_iter().map(|stat| (stat.pid, stat)).collect() }
    }

    /// One process.
    pub fn get(&self, pid: u32) -> Option<&ProcStat> {
        self.processes.get(&pid)
    }

    /// Every process, by pid.
    pub fn iter(&self) -> impl Iterator<Item = &ProcStat> {
        self.processes.values()
    }

    /// Every process below `root`, without `root` itself, parents before children.
    ///
    /// A scan is not atomic: a process forked while it ran may be missing, which is why whoever kills a tree repeats
    /// scan and signals until a scan finds none.
    pub fn descendants(&self, root: u32) -> Vec<&ProcStat> {
        let mut children: BTreeMap<u32, Vec<&ProcStat>> = BTreeMap::new();
        for stat in self.processes.values() {
            children.entry(stat.ppid).or_default().push(stat);
        }
        let mut seen = BTreeSet::from([root]);
        let mut found = Vec::new();
        let mut queue = std::collections::VecDeque::from([root]);
        while let Some(pid) = queue.pop_front() {
            for child in children.get(&pid).into_iter().flatten() {
                // Pids reused within one scan could close a ring.
                if seen.insert(child.pid) {
                    found.push(*child);
                    queue.push_back(child.pid);
                }
            }
        }
        found
    }

    /// Every process of one session.
    pub fn session(&self, session: u32) -> impl Iterator<Item = &ProcStat> {
        self.processes.values().filter(move |stat| stat.session == session)
    }
}

/// This boot's id; pids and start times mean something only within it.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A process's arguments; empty for kernel threads, zombies and where it cannot be read.
pub(super) fn command_line(pid: u32) -> Vec<String> {
    nul_separated(&format!("/proc/{pid}/cmdline"))
}

/// Whether a process was started with this environment entry (`NAME=value`).
///
/// `false` proves nothing: programs that rename themselves (`VLLM::EngineCore`) write over their environment.
pub(super) fn has_environment(pid: u32, entry: &str) -> bool {
    nul_separated(&format!("/proc/{pid}/environ")).iter().any(|found| found == entry)
}

/// The environment that a process was started with; empty where it cannot be read.
pub(super) fn environ(pid: u32) -> Vec<String> {
    nul_separated(&format!("/proc/{pid}/environ"))
}

/// The value of an entry of a process's environment, as far as it can be read.
pub(super) fn environment(pid: u32, name: &str) -> Option<String> {
    let entries = nul_separated(&format!("/proc/{pid}/environ"));
    entries.iter().find_map(|entry| entry.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

fn nul_separated(path: &str) -> Vec<String> {
    let bytes = fs::read(path).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32, ppid: u32) -> ProcStat {
        ProcStat {
            pid,
            comm: "x".into(),
            state: 'S',
            ppid,
            session: 1,
            threads: 1,
            start_ticks: u64::from(pid) * 10,
        }
    }

    fn line(pid: u32, comm: &str) -> String {
        format!(
            "{pid} ({comm}) D 41 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 200 18446744073709551615"
        )
    }

    #[test]
    fn names_may_hold_spaces_and_parentheses() {
        for comm in ["sh", "VLLM::EngineCor", "a b", "a) S 1 (b", "((", ")", ""] {
            let parsed = ProcStat::parse(&line(77, comm)).expect("parses");
            assert_eq!(parsed.comm, comm);
            assert_eq!(
                (parsed.pid, parsed.ppid, parsed.session, parsed.state, parsed.start_ticks),
                (77, 41, 43, 'D', 987_654)
            );
        }
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let whole = line(77, "sh");
        let enough = whole.find(" 1000 ").expect("starttime ends there");
        for end in 0..enough - "987654".len() {
            assert_eq!(ProcStat::parse(&whole[..end]), None, "{:?}", &whole[..end]);
        }
        assert_eq!(ProcStat::parse("x (sh) S 1 2 3"), None);
    }

    #[test]
    fn descendants_are_found_breadth_first_without_the_root() {
        let snapshot =
            Snapshot::from_stats([stat(1, 0), stat(5, 1), stat(6, 5), stat(7, 6), stat(8, 5), stat(9, 1)]);
        let pids: Vec<u32> = snapshot.descendants(5).iter().map(|stat| stat.pid).collect();
        assert_eq!(pids, [6, 8, 7]);
        assert!(snapshot.descendants(7).is_empty());
        assert!(snapshot.descendants(4242).is_empty());
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let snapshot = Snapshot::from_stats([stat(5, 6), stat(6, 5)]);
        assert_eq!(snapshot.descendants(5).len(), 1);
    }

    #[test]
    fn a_dead_first_thread_is_not_a_dead_process() {
        let zombie = ProcStat { state: 'Z', ..stat(5, 1) };
        assert!(!zombie.is_running());
        assert!(ProcStat { threads: 3, ..zombie }.is_running());
    }

    #[test]
    fn this_process_is_found() {
        let me = std::process::id();
        let mine = ProcStat::read(me).expect("own stat");
        assert!(mine.is_running());
        assert_eq!(ProcStat::read_member(mine.member()), ProcStat::read(me));
        assert_eq!(
            ProcStat::read_member(Member { start_ticks: mine.start_ticks + 1, ..mine.member() }),
            None
        );
        assert!(Snapshot::read().descendants(mine.ppid).iter().any(|stat| stat.pid == me));
        assert!(!command_line(me).is_empty());
        assert_eq!(boot_id().expect("boot id").len(), 36);
    }
}
