//! An engine in a container: not a descendant of whoever asked for it.
//!
//! `docker run …` is a client. The daemon starts the container, so its processes have another parent, another session
//! and another cgroup than the client, which may be killed without the container noticing. Three ideas follow.
//!
//! **Found, then proven.** The container is the cgroup of the process that listens on the engine's port; or, where the
//! runtime writes the container's id into a file (`--cidfile`), the cgroup that bears the id. It is taken for ours only if
//! every process in it is younger than the client that we have started: a server that was there before, or a runtime's
//! own daemon, is not. (The agent asks for the served model on top.) Where the runtime makes no cgroup, the listener's
//! session is taken in its place, by the same rule. The oldest process of the container is its leader: when it goes, the
//! kernel ends the others.
//!
//! **Stopped by its runtime.** A configured command ends it, and a harder one where that has not helped. No process of a
//! container is ever sent a signal: what its commands cannot end is reported.
//!
//! **Named like any other.** The leader's pid, start time and boot are the engine's incarnation; they stand in the shim's
//! record, so that a later agent finds the container by the same proofs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::port::listening_owner;
use super::tree::{Member, ProcStat, Snapshot, environment};

/// Programs that listen on a published port on the container's behalf.
const FORWARDERS: [&str; 7] =
    ["docker-proxy", "rootlessport", "rootlesskit", "pasta", "passt", "slirp4netns", "conmon"];
/// Digits of a container's id that have to be there for it to name anything.
const ID_DIGITS: usize = 12;

/// How a container is found and ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The engine's port on this machine.
    pub port: u16,
    /// Ends it in order.
    pub stop: Vec<String>,
    /// Ends it at once; `stop` again where it is empty.
    pub kill: Vec<String>,
    /// Where the runtime writes its id.
    pub id_file: Option<PathBuf>,
}

/// What a container's processes have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// They are in this cgroup or below it (a path of `/proc/PID/cgroup`).
    Cgroup(String),
    /// They are in this session, or descend from a process that is.
    Session(u32),
}

/// A container that was found and is ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contained {
    /// Its oldest process.
    pub leader: Member,
    /// What names its processes.
    pub group: Group,
}

/// What a shim knows of its engine's container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// From the configuration.
    pub spec: ContainerSpec,
    /// The runtime's client.
    pub client: Option<Member>,
    /// The container, once it was found.
    pub found: Option<Contained>,
}

impl ContainerState {
    /// Its running processes in a snapshot; none until it was found.
    pub(super) fn members(&self, snapshot: &Snapshot) -> Vec<ProcStat> {
        self.found.as_ref().map(|found| found.members(snapshot, cgroup_of)).unwrap_or_default()
    }
}

impl Contained {
    /// Nothing older than its leader is one of its processes.
    fn members(&self, snapshot: &Snapshot, cgroup_of: impl Fn(u32) -> Option<String>) -> Vec<ProcStat> {
        let young = |stat: &&ProcStat| stat.start_ticks >= self.leader.start_ticks && stat.is_running();
        in_group(&self.group, snapshot, cgroup_of).into_iter().filter(|stat| young(&stat)).collect()
    }
}

fn in_group(group: &Group, snapshot: &Snapshot, cgroup_of: impl Fn(u32) -> Option<String>) -> Vec<ProcStat> {
    match group {
        Group::Cgroup(path) => {
            let below = format!("{path}/");
            let inside = |stat: &&ProcStat| {
                cgroup_of(stat.pid).is_some_and(|of| of == *path || of.starts_with(&below))
            };
            snapshot.iter().filter(inside).cloned().collect()
        }
        Group::Session(session) => {
            let mut pids: BTreeSet<u32> = snapshot.session(*session).map(|stat| stat.pid).collect();
            let below: Vec<u32> =
                pids.iter().flat_map(|pid| snapshot.descendants(*pid)).map(|stat| stat.pid).collect();
            pids.extend(below);
            pids.iter().filter_map(|pid| snapshot.get(*pid)).cloned().collect()
        }
    }
}

/// What a look for a container needs to know of the machine; a test makes its own.
pub(super) struct Machine<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) cgroup_of: &'a dyn Fn(u32) -> Option<String>,
    /// The token of an engine in a process's environment, where it has one that can be read.
    pub(super) token_of: &'a dyn Fn(u32) -> Option<String>,
    /// `None`: nobody listens. Empty: somebody who cannot be seen.
    pub(super) listeners: Option<Vec<u32>>,
    /// The container's id, where a file was named and has it.
    pub(super) id: Option<String>,
}

/// Who looks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seeker<'a> {
    pub(super) client: Member,
    pub(super) shim: Member,
    pub(super) session: u32,
    pub(super) token: &'a str,
    pub(super) spec: &'a ContainerSpec,
}

impl Seeker<'_> {
    /// Looks on this machine.
    ///
    /// # Errors
    /// A sentence: what is not there yet, or why what is there cannot be ours.
    pub(super) fn look(&self) -> Result<Contained, String> {
        let id = match &self.spec.id_file {
            None => None,
            Some(path) => Some(read_id(path)?),
        };
        let listeners = listening_owner(self.spec.port)
            .map_err(|error| format!("/proc/net/tcp cannot be read: {error}"))?;
        let snapshot = Snapshot::read();
        let token_of = |pid: u32| environment(pid, super::scope::TOKEN_VARIABLE);
        self.find(&Machine { snapshot: &snapshot, cgroup_of: &cgroup_of, token_of: &token_of, listeners, id })
    }

    /// The decision itself.
    pub(super) fn find(&self, machine: &Machine<'_>) -> Result<Contained, String> {
        let group = match &machine.id {
            Some(id) => by_id(machine, id)?,
            None => self.by_listener(machine)?,
        };
        let members: Vec<ProcStat> = in_group(&group, machine.snapshot, machine.cgroup_of);
        let running = || members.iter().filter(|stat| stat.is_running());
        if let Some(old) = running().find(|stat| stat.start_ticks < self.client.start_ticks) {
            return Err(format!(
                "process {} ({}) was there before this start: what listens on port {} is not this container. Use \
                 --network host, or --cidfile and `id_file` where the port is published",
                old.pid, old.comm, self.spec.port
            ));
        }
        let stranger =
            |stat: &&ProcStat| (machine.token_of)(stat.pid).is_some_and(|token| token != self.token);
        if let Some(stat) = running().find(stranger) {
            return Err(format!("process {} bears the name of another engine's start", stat.pid));
        }
        let leader = running().min_by_key(|stat| (stat.start_ticks, stat.pid));
        let leader = leader.ok_or("its processes have gone again")?;
        Ok(Contained { leader: leader.member(), group })
    }

    fn by_listener(&self, machine: &Machine<'_>) -> Result<Group, String> {
        let port = self.spec.port;
        let Some(listeners) = &machine.listeners else {
            return Err(format!("nobody listens on port {port} yet"));
        };
        let Some(holder) = listeners.iter().find_map(|pid| machine.snapshot.get(*pid)) else {
            return Err(format!(
                "who listens on port {port} cannot be seen from here: run the agent as root or as the container's \
                 user, or use --cidfile and `id_file`"
            ));
        };
        let home = (machine.cgroup_of)(self.shim.pid);
        let of_client = (machine.cgroup_of)(self.client.pid);
        match (machine.cgroup_of)(holder.pid) {
            Some(path) if Some(&path) != home.as_ref() && Some(&path) != of_client.as_ref() => {
                Ok(Group::Cgroup(path))
            }
            _ if holder.session != self.session => Ok(Group::Session(holder.session)),
            _ => Err(format!(
                "process {} listens on port {port} and is no container: it is in the session of its client",
                holder.pid
            )),
        }
    }
}

fn by_id(machine: &Machine<'_>, id: &str) -> Result<Group, String> {
    let named = |stat: &ProcStat| group_with_id(&(machine.cgroup_of)(stat.pid)?, id);
    let found = machine.snapshot.iter().find_map(named);
    found.map(Group::Cgroup).ok_or_else(|| format!("no process is in a cgroup that bears the id {id}"))
}

/// The part of a cgroup's path up to the component that has the id in it.
fn group_with_id(path: &str, id: &str) -> Option<String> {
    let mut end = 0;
    for part in path.split_inclusive('/') {
        end += part.len();
        if part.contains(id) {
            return Some(path[..end].trim_end_matches('/').to_owned());
        }
    }
    None
}

fn read_id(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the container's id is not in {} yet: {error}", path.display()))?;
    let id = text.trim();
    if id.len() >= ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(id.to_owned())
    } else {
        Err(format!("{} holds no container's id", path.display()))
    }
}

/// A process's cgroup: in the unified hierarchy, or, where that shows none, the longest path of the old ones.
pub(super) fn cgroup_of(pid: u32) -> Option<String> {
    own_cgroup(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn own_cgroup(text: &str) -> Option<String> {
    let path = |line: &str| line.splitn(3, ':').nth(2).map(str::to_owned);
    let unified = text.lines().find(|line| line.starts_with("0::")).and_then(path);
    let old = text.lines().filter(|line| !line.starts_with("0::")).filter_map(path);
    let longest = old.max_by_key(String::len);
    unified.into_iter().chain(longest).find(|path| path != "/" && !path.is_empty())
}

/// Whether a process that listens on the engine's port does so for a container: a runtime's port forwarder that was
/// started after the container's client.
pub(super) fn forwards(pid: u32, client: Member) -> bool {
    ProcStat::read(pid).is_some_and(|stat| {
        stat.start_ticks >= client.start_ticks && FORWARDERS.iter().any(|name| stat.comm.starts_with(name))
    })
}

/// A command of the runtime's, its output thrown away but for what it complains of.
pub(super) fn runtime_command(words: &[String]) -> Option<Command> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Member = Member { pid: 100, start_ticks: 1_000 };
    const SHIM: Member = Member { pid: 99, start_ticks: 990 };
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn stat(pid: u32, ppid: u32, session: u32, start_ticks: u64) -> ProcStat {
        ProcStat { pid, comm: "vllm".into(), state: 'S', ppid, session, threads: 1, start_ticks }
    }

    /// Shim and client in a group of ours, a daemon, a container of three, one of whose processes leads a session.
    fn machine() -> Vec<(ProcStat, &'static str)> {
        vec![
            (stat(50, 1, 50, 10), "/system.slice/docker.service"),
            (stat(99, 1, 99, 990), "/hotbunk.service"),
            (stat(100, 99, 99, 1_000), "/hotbunk.service/hotbunk/A-99"),
            (stat(200, 50, 200, 1_010), "/docker/C"),
            (stat(201, 200, 200, 1_011), "/docker/C"),
            (stat(202, 201, 202, 1_012), "/docker/C/inner"),
            (stat(300, 50, 300, 1_020), "/docker/other"),
        ]
    }

    fn spec(id_file: bool) -> ContainerSpec {
        let id_file = id_file.then(|| PathBuf::from("/run/a.cid"));
        ContainerSpec { port: 8101, stop: vec!["true".into()], kill: Vec::new(), id_file }
    }

    fn look(
        stats: &[(ProcStat, &str)],
        listeners: Option<Vec<u32>>,
        id: Option<&str>,
        token: Option<(u32, &str)>,
    ) -> Result<Contained, String> {
        let snapshot = Snapshot::from_stats(stats.iter().map(|(stat, _)| stat.clone()));
        let cgroup_of = |pid: u32| {
            let (_, path) = stats.iter().find(|(stat, _)| stat.pid == pid)?;
            Some(path.replace("/C", &format!("/{ID}"))).filter(|path| !path.is_empty())
        };
        let token_of = |pid: u32| token.filter(|(of, _)| *of == pid).map(|(_, token)| token.to_owned());
        let spec = spec(id.is_some());
        let seeker = Seeker { client: CLIENT, shim: SHIM, session: 99, token: "mine", spec: &spec };
        seeker.find(&Machine {
            snapshot: &snapshot,
            cgroup_of: &cgroup_of,
            token_of: &token_of,
            listeners,
            id: id.map(str::to_owned),
        })
    }

    #[test]
    fn the_listener_s_cgroup_is_the_container() {
        let found = look(&machine(), Some(vec![201]), None, None).unwrap();
        assert_eq!(found.leader, Member { pid: 200, start_ticks: 1_010 });
        assert_eq!(found.group, Group::Cgroup(format!("/docker/{ID}")));
        let snapshot = Snapshot::from_stats(machine().into_iter().map(|(stat, _)| stat));
        let cgroup_of = |pid: u32| {
            machine().into_iter().find(|(s, _)| s.pid == pid).map(|(_, p)| p.replace("/C", &format!("/{ID}")))
        };
        let pids: Vec<u32> = found.members(&snapshot, cgroup_of).iter().map(|stat| stat.pid).collect();
        assert_eq!(pids, [200, 201, 202]);
    }

    #[test]
    fn an_id_finds_it_before_anybody_listens_and_behind_a_forwarder() {
        for listeners in [None, Some(vec![50]), Some(Vec::new())] {
            let found = look(&machine(), listeners, Some(ID), None).unwrap();
            assert_eq!(found.leader.pid, 200);
        }
        let missing = look(&machine(), None, Some("ffffffffffff"), None).unwrap_err();
        assert!(missing.contains("bears the id ffffffffffff"), "{missing}");
    }

    #[test]
    fn without_a_cgroup_its_session_is_the_container() {
        let flat: Vec<(ProcStat, &str)> = machine().into_iter().map(|(stat, _)| (stat, "")).collect();
        let found = look(&flat, Some(vec![201]), None, None).unwrap();
        assert_eq!((found.leader.pid, &found.group), (200, &Group::Session(200)));
        let snapshot = Snapshot::from_stats(flat.into_iter().map(|(stat, _)| stat));
        let pids: Vec<u32> = found.members(&snapshot, |_| None).iter().map(|stat| stat.pid).collect();
        assert_eq!(pids, [200, 201, 202], "its descendant in a session of its own is one of them");
    }

    #[test]
    fn what_was_there_before_is_a_stranger() {
        // docker-proxy is in the daemon's cgroup, and the daemon is older than we are.
        let mut stats = machine();
        stats.push((stat(250, 50, 50, 1_015), "/system.slice/docker.service"));
        let refused = look(&stats, Some(vec![250]), None, None).unwrap_err();
        assert!(refused.contains("process 50") && refused.contains("--cidfile"), "{refused}");
        // A server that had the port all along.
        let old = [(stat(60, 1, 60, 20), "/other.service"), (stat(99, 1, 99, 990), "/h")];
        assert!(look(&old, Some(vec![60]), None, None).is_err());
    }

    #[test]
    fn who_is_not_there_or_cannot_be_seen_is_said() {
        assert!(look(&machine(), None, None, None).unwrap_err().contains("nobody listens"));
        assert!(look(&machine(), Some(Vec::new()), None, None).unwrap_err().contains("cannot be seen"));
        // The client itself listens: no container at all.
        assert!(look(&machine(), Some(vec![100]), None, None).unwrap_err().contains("no container"));
    }

    #[test]
    fn another_engine_s_token_is_another_engine() {
        assert!(look(&machine(), Some(vec![201]), None, Some((201, "other"))).is_err());
        assert!(look(&machine(), Some(vec![201]), None, Some((201, "mine"))).is_ok());
    }

    #[test]
    fn a_leader_s_successor_in_the_same_place_is_not_it() {
        let found = look(&machine(), Some(vec![201]), None, None).unwrap();
        // Some earlier process, and all the container's own gone.
        let stats = [(stat(40, 1, 40, 900), "/docker/C")];
        let snapshot = Snapshot::from_stats(stats.iter().map(|(stat, _)| stat.clone()));
        assert_eq!(found.members(&snapshot, |_| Some(format!("/docker/{ID}"))), []);
    }

    #[test]
    fn cgroups_are_read_in_every_spelling() {
        assert_eq!(own_cgroup("0::/system.slice/x\n").as_deref(), Some("/system.slice/x"));
        let hybrid = "12:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n";
        assert_eq!(own_cgroup(hybrid).as_deref(), Some("/docker/abc"));
        assert_eq!(own_cgroup("0::/\n4:cpu:/\n"), None);
        let scope = format!("/system.slice/docker-{ID}.scope/init");
        assert_eq!(group_with_id(&scope, ID), Some(format!("/system.slice/docker-{ID}.scope")));
        assert_eq!(group_with_id("/a/b", ID), None);
    }

    #[test]
    fn an_id_file_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.cid");
        assert!(read_id(&path).unwrap_err().contains("not in"));
        std::fs::write(&path, format!("{ID}\n")).unwrap();
        assert_eq!(read_id(&path).as_deref(), Ok(ID));
        for bad in ["", "abc", "not-hexadecimal-at-all"] {
            std::fs::write(&path, bad).unwrap();
            assert!(read_id(&path).is_err(), "{bad}");
        }
    }
}
