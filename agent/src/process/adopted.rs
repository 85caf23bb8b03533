//! A server that somebody else has started: found by its port, proven, held, and only then ours.
//!
//! `vllm serve` in an operator's shell, or in a unit of its own, has another parent, another session and no token of ours.
//! Three ideas follow.
//!
//! **The kernel says which process it is.** Whoever holds the socket that listens on the engine's port; of several, the one
//! that all others descend from ([`find_server`]). Not a name, not a command line.
//!
//! **Held is not ours.** The shim that takes hold of it hears of its end by a pidfd, and writes down what it knows. As long
//! as its record does not say `kept`, its processes are counted and never signalled, by nobody: not by a stop, not by a
//! sweep, not by a later agent. Whoever does not want it any more tells the shim to let go, or the shim dies: either way the
//! server runs on and knows of nothing.
//!
//! **What belongs to it is written down while it can be seen.** Its descendants become nobody's once its leader has died, and
//! no subreaper of ours would get them. So the shim looks every second and records pid and start time of each; where the
//! leader leads a session of its own, that counts as well. What was never seen is not ours: it is left, and shows as foreign
//! memory.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::port::listening_owner;
use super::scope::TOKEN_VARIABLE;
use super::tree::{Member, ProcStat, Snapshot, command_line, environ, environment};

/// What a shim knows of a server that it has not started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedState {
    /// The process that all others of it descend from.
    pub leader: Member,
    /// It is ours: it may be ended. Until then it is only held.
    pub kept: bool,
    /// Its session is its own.
    pub leads_session: bool,
    /// Processes that have been seen to descend from it.
    pub members: Vec<Member>,
}

impl AdoptedState {
    /// A server that is held from now on.
    pub(super) fn hold(leader: &ProcStat, snapshot: &Snapshot) -> AdoptedState {
        let mut state = AdoptedState {
            leader: leader.member(),
            kept: false,
            leads_session: leader.session == leader.pid,
            members: Vec::new(),
        };
        state.see(snapshot);
        state
    }

    /// Its running processes in a snapshot.
    pub(super) fn running(&self, snapshot: &Snapshot) -> Vec<ProcStat> {
        let is = |member: &&Member| snapshot.get(member.pid).is_some_and(|stat| stat.member() == **member);
        let known = std::iter::once(&self.leader).chain(&self.members);
        let mut ours: BTreeSet<u32> = known.filter(is).map(|member| member.pid).collect();
        // A session is entered only by being born in it, and its number is not given out again while a member lives.
        let in_session = || snapshot.session(self.leader.pid).filter(|_| self.leads_session);
        if in_session().any(|stat| ours.contains(&stat.pid)) {
            ours.extend(in_session().map(|stat| stat.pid));
        }
        let below: Vec<u32> =
            ours.iter().flat_map(|pid| snapshot.descendants(*pid)).map(|stat| stat.pid).collect();
        ours.extend(below);
        // Whoever asks is never its own prey.
        ours.remove(&std::process::id());
        let young = |stat: &&ProcStat| stat.start_ticks >= self.leader.start_ticks && stat.is_running();
        ours.iter().filter_map(|pid| snapshot.get(*pid)).filter(young).cloned().collect()
    }

    /// Writes down who belongs to it; whether that is news.
    pub(super) fn see(&mut self, snapshot: &Snapshot) -> bool {
        let mut members: Vec<Member> = self.running(snapshot).iter().map(ProcStat::member).collect();
        members.retain(|member| *member != self.leader);
        let news = members != self.members;
        self.members = members;
        news
    }
}

/// A server that runs and could be taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its leader.
    pub leader: Member,
    /// All its processes.
    pub pids: Vec<u32>,
    /// The leader's command line; empty where it cannot be read.
    pub command: Vec<String>,
    /// The file that its output goes to, where that is one.
    pub output: Option<PathBuf>,
}

/// Why what listens on a port cannot be taken over, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Nobody listens.
    #[error("nobody listens on port {0}; `ctl start` starts it with the configured command")]
    NobodyListens(u16),
    /// The kernel does not tell.
    #[error("who listens on port {port} cannot be told: {why}")]
    Unreadable {
        /// Port.
        port: u16,
        /// What the system said.
        why: String,
    },
    /// Its process cannot be seen, or signalled.
    #[error(
        "{} of another user listens on port {port}, which this agent may not signal: run the agent as that user or as root, \
         or end it and `ctl start`", holder(*pid)
    )]
    OtherUser {
        /// Port.
        port: u16,
        /// Its process, where it can be seen.
        pid: Option<u32>,
    },
    /// Several that have nothing to do with each other.
    #[error("processes {} and {} listen on port {port} and neither descends from the other: end one of them", pids.0, pids.1)]
    Several {
        /// Port.
        port: u16,
        /// Two of them.
        pids: (u32, u32),
    },
    /// It is an engine of this agent.
    #[error(
        "process {pid}, which listens on port {port}, is engine {engine}'s: give each engine a port of its own"
    )]
    OtherEngine {
        /// Port.
        port: u16,
        /// Its process.
        pid: u32,
        /// Whose.
        engine: String,
    },
    /// It was started by an agent.
    #[error(
        "process {pid}, which listens on port {port}, was started by an agent, perhaps another one: stop it there, or end it \
         by hand"
    )]
    OfAnAgent {
        /// Port.
        port: u16,
        /// Its process.
        pid: u32,
    },
    /// It runs in a container.
    #[error(
        "process {pid}, which listens on port {port}, runs in a container; only plain processes can be taken over: stop the \
         container and `ctl start`"
    )]
    InContainer {
        /// Port.
        port: u16,
        /// Its process.
        pid: u32,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or("a process".to_owned(), |pid| format!("process {pid}"))
}

/// Finds the server that listens on a port of the loopback address, and proves what can be proven without asking it
/// anything. `engines` are the processes of this agent's engines, by name.
///
/// # Errors
/// See [`Unfit`].
pub fn find_server(port: u16, engines: &[(u32, String)]) -> Result<Server, Unfit> {
    let listeners = listening_owner(port)
        .map_err(|error| Unfit::Unreadable { port, why: format!("/proc/net/tcp: {error}") })?
        .ok_or(Unfit::NobodyListens(port))?;
    let snapshot = Snapshot::read();
    let machine = Machine {
        snapshot: &snapshot,
        engines,
        me: std::process::id(),
        may_signal: &may_signal,
        bears_token: &|pid| environment(pid, TOKEN_VARIABLE).is_some(),
        command: &command_line,
        namespace: &pid_namespace,
    };
    let (leader, processes) = machine.prove(port, &listeners)?;
    let pid = leader.pid;
    Ok(Server {
        leader: leader.member(),
        pids: processes.iter().map(|stat| stat.pid).collect(),
        command: command_line(pid),
        output: fs::read_link(format!("/proc/{pid}/fd/1")).ok().filter(|path| is_file(path)),
    })
}

fn may_signal(pid: u32) -> bool {
    i32::try_from(pid).ok().and_then(Pid::from_raw).is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn pid_namespace(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid"))
}

/// What has to be known of the machine; a test makes its own.
struct Machine<'a> {
    snapshot: &'a Snapshot,
    /// Processes of this agent's engines.
    engines: &'a [(u32, String)],
    /// The agent.
    me: u32,
    may_signal: &'a dyn Fn(u32) -> bool,
    /// Whether an agent's token is in its environment.
    bears_token: &'a dyn Fn(u32) -> bool,
    /// Its command line; empty where it cannot be read.
    command: &'a dyn Fn(u32) -> Vec<String>,
    /// The name of its pid namespace.
    namespace: &'a dyn Fn(u32) -> io::Result<PathBuf>,
}

impl<'a> Machine<'a> {
    /// The decision itself: the leader of those that listen on a port, and all its processes.
    fn prove(&self, port: u16, listeners: &[u32]) -> Result<(&'a ProcStat, Vec<ProcStat>), Unfit> {
        let leader = leader_of(port, listeners, self.snapshot)?;
        let pid = leader.pid;
        if !(self.may_signal)(pid) {
            return Err(Unfit::OtherUser { port, pid: Some(pid) });
        }
        let processes = AdoptedState::hold(leader, self.snapshot).running(self.snapshot);
        let theirs = |stat: &ProcStat| self.engines.iter().find(|(of, _)| *of == stat.pid);
        if let Some((pid, engine)) = std::iter::once(leader).chain(&processes).find_map(theirs) {
            return Err(Unfit::OtherEngine { port, pid: *pid, engine: engine.clone() });
        }
        let under_a_shim = || ancestors(leader, self.snapshot).any(|stat| is_shim(&(self.command)(stat.pid)));
        if pid == self.me || (self.bears_token)(pid) || under_a_shim() {
            return Err(Unfit::OfAnAgent { port, pid });
        }
        let namespace = |of: u32| {
            let unreadable = |error| Unfit::Unreadable { port, why: format!("/proc/{of}/ns/pid: {error}") };
            (self.namespace)(of).map_err(unreadable)
        };
        if namespace(pid)? == namespace(self.me)? {
            Ok((leader, processes))
        } else {
            Err(Unfit::InContainer { port, pid })
        }
    }
}

/// How a process was started: its command line and its environment; empty where they cannot be read.
pub fn running_command(pid: u32) -> (Vec<String>, Vec<String>) {
    (command_line(pid), environ(pid))
}

/// Of those that listen, the one that all others descend from.
fn leader_of<'a>(port: u16, listeners: &[u32], snapshot: &'a Snapshot) -> Result<&'a ProcStat, Unfit> {
    let mut seen = listeners.iter().filter_map(|pid| snapshot.get(*pid)).filter(|stat| stat.is_running());
    let mut leader = seen.next().ok_or(Unfit::OtherUser { port, pid: None })?;
    for other in seen {
        if ancestors(leader, snapshot).any(|stat| stat.pid == other.pid) {
            leader = other;
        } else if !ancestors(other, snapshot).any(|stat| stat.pid == leader.pid) {
            return Err(Unfit::Several { port, pids: (leader.pid, other.pid) });
        }
    }
    Ok(leader)
}

fn ancestors<'a>(stat: &'a ProcStat, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a ProcStat> {
    let up = |stat: &&'a ProcStat| snapshot.get(stat.ppid).filter(|parent| parent.pid != stat.pid);
    // Pids reused within one scan could close a ring.
    std::iter::successors(Some(stat), up).skip(1).take(64)
}

fn is_shim(words: &[String]) -> bool {
    words.get(1).is_some_and(|word| word == "shim") && words.iter().any(|word| word == "--spec")
}

fn is_file(path: &Path) -> bool {
    path.is_absolute() && fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(pid: u32, ppid: u32, session: u32) -> ProcStat {
        let start_ticks = u64::from(pid);
        ProcStat { pid, comm: "vllm".into(), state: 'S', ppid, session, threads: 1, start_ticks }
    }

    fn pids(stats: &[ProcStat]) -> Vec<u32> {
        stats.iter().map(|stat| stat.pid).collect()
    }

    /// A shell, what it has started besides, and a server of three.
    fn shell() -> Vec<ProcStat> {
        vec![stat(10, 1, 10), stat(11, 10, 10), stat(20, 10, 10), stat(21, 20, 10), stat(22, 21, 22)]
    }

    #[test]
    fn its_descendants_are_its_own_and_what_its_shell_runs_besides_is_not() {
        let snapshot = Snapshot::from_stats(shell());
        let state = AdoptedState::hold(&stat(20, 10, 10), &snapshot);
        assert_eq!(pids(&state.running(&snapshot)), [20, 21, 22]);
        assert!(!state.kept && !state.leads_session);
    }

    #[test]
    fn its_orphans_are_known_by_what_was_seen_of_them() {
        let snapshot = Snapshot::from_stats(shell());
        let state = AdoptedState::hold(&stat(20, 10, 10), &snapshot);
        // Its leader is gone, its children are init's, one of them has a new child, and its pid is somebody else's.
        let late = ProcStat { start_ticks: 900, ..stat(20, 1, 20) };
        let after =
            [stat(10, 1, 10), stat(11, 10, 10), late, stat(21, 1, 10), stat(22, 1, 22), stat(30, 21, 10)];
        assert_eq!(pids(&state.running(&Snapshot::from_stats(after))), [21, 22, 30]);
        // And one whose pid was given out again is a stranger.
        let reused = ProcStat { start_ticks: 900, ..stat(21, 1, 10) };
        assert_eq!(pids(&state.running(&Snapshot::from_stats([stat(11, 10, 10), reused]))), [] as [u32; 0]);
    }

    #[test]
    fn a_session_of_its_own_counts_as_long_as_somebody_proven_is_in_it() {
        let snapshot = Snapshot::from_stats([stat(20, 1, 20), stat(21, 20, 20)]);
        let state = AdoptedState::hold(&stat(20, 1, 20), &snapshot);
        // One that was never seen below it.
        let after = Snapshot::from_stats([stat(21, 1, 20), stat(25, 1, 20)]);
        assert_eq!(pids(&state.running(&after)), [21, 25]);
        assert_eq!(pids(&state.running(&Snapshot::from_stats([stat(25, 1, 20)]))), [] as [u32; 0]);
    }

    #[test]
    fn news_are_written_down_once() {
        let mut state = AdoptedState::hold(&stat(20, 10, 10), &Snapshot::from_stats(shell()));
        assert!(!state.see(&Snapshot::from_stats(shell())));
        let more = Snapshot::from_stats(shell().into_iter().chain([stat(40, 20, 10)]));
        assert!(state.see(&more) && !state.see(&more));
        assert_eq!(state.members.len(), 3);
    }

    #[test]
    fn of_several_listeners_the_oldest_of_the_family_leads() {
        let snapshot = Snapshot::from_stats(shell());
        let leader = |pids: &[u32]| leader_of(8101, pids, &snapshot).map(|stat| stat.pid);
        assert_eq!(leader(&[22, 20, 21]), Ok(20));
        assert_eq!(leader(&[21]), Ok(21));
        assert_eq!(leader(&[11, 21]), Err(Unfit::Several { port: 8101, pids: (11, 21) }));
        assert_eq!(leader(&[]), Err(Unfit::OtherUser { port: 8101, pid: None }));
    }

    /// What is refused of a server on port 8101 (20, 21, 22, started from a shell), where one thing is not as it should be.
    fn refused(
        may_signal: impl Fn(u32) -> bool,
        bears_token: impl Fn(u32) -> bool,
        command: impl Fn(u32) -> Vec<String>,
        namespace: impl Fn(u32) -> io::Result<PathBuf>,
    ) -> Result<Vec<u32>, Unfit> {
        let snapshot = Snapshot::from_stats(shell());
        let machine = Machine {
            snapshot: &snapshot,
            engines: &[(30, "B".to_owned())],
            me: 5,
            may_signal: &may_signal,
            bears_token: &bears_token,
            command: &command,
            namespace: &namespace,
        };
        machine.prove(8101, &[20, 22]).map(|(leader, processes)| {
            assert_eq!(leader.pid, 20);
            pids(&processes)
        })
    }

    fn plain(_: u32) -> io::Result<PathBuf> {
        Ok("pid:[4026531836]".into())
    }

    #[test]
    fn each_proof_that_fails_is_a_refusal_of_its_own() {
        let none = |_| Vec::new();
        assert_eq!(refused(|_| true, |_| false, none, plain), Ok(vec![20, 21, 22]));

        let other_user = refused(|pid| pid != 20, |_| false, none, plain).unwrap_err();
        assert_eq!(other_user, Unfit::OtherUser { port: 8101, pid: Some(20) });
        let said = other_user.to_string();
        assert!(said.contains("process 20 of another user") && said.contains("may not signal"), "{said}");

        let of_an_agent = Unfit::OfAnAgent { port: 8101, pid: 20 };
        assert_eq!(refused(|_| true, |pid| pid == 20, none, plain), Err(of_an_agent.clone()));
        let shim = |pid| {
            let words: &[&str] = if pid == 10 { &["hotbunk-agent", "shim", "--spec", "x"] } else { &["sh"] };
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        assert_eq!(refused(|_| true, |_| false, shim, plain), Err(of_an_agent));

        // Another pid namespace: the agent's own user, and signals would reach it.
        let apart = |pid| if pid == 20 { Ok("pid:[4026532201]".into()) } else { plain(pid) };
        let contained = refused(|_| true, |_| false, none, apart).unwrap_err();
        assert_eq!(contained, Unfit::InContainer { port: 8101, pid: 20 });
        assert!(contained.to_string().contains("runs in a container; only plain processes"), "{contained}");
        // What cannot be told is no proof.
        let hidden = |pid| if pid == 20 { Err(io::ErrorKind::PermissionDenied.into()) } else { plain(pid) };
        let unread = refused(|_| true, |_| false, none, hidden).unwrap_err();
        assert!(
            matches!(&unread, Unfit::Unreadable { why, .. } if why.contains("/proc/20/ns/pid")),
            "{unread}"
        );
    }

    #[test]
    fn an_engine_s_process_is_not_taken_for_another_engine() {
        let snapshot = Snapshot::from_stats(shell());
        let machine = Machine {
            snapshot: &snapshot,
            engines: &[(21, "B".to_owned())],
            me: 5,
            may_signal: &|_| true,
            bears_token: &|_| false,
            command: &|_| Vec::new(),
            namespace: &plain,
        };
        let refused = machine.prove(8101, &[20]).map(|(leader, _)| leader.pid);
        assert_eq!(refused, Err(Unfit::OtherEngine { port: 8101, pid: 21, engine: "B".to_owned() }));
    }

    #[test]
    fn who_listens_is_found_and_a_free_port_is_nobody_s() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("address").port();
        // A child that another test has just forked may hold it as well, until its exec.
        let me = std::process::id();
        let engines = [(me, "A".to_owned())];
        let refused = find_server(port, &engines).expect_err("it is an engine's");
        assert!(matches!(&refused, Unfit::OtherEngine { engine, .. } if engine == "A"), "{refused}");
        drop(listener);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while find_server(port, &[]) != Err(Unfit::NobodyListens(port)) {
            assert!(std::time::Instant::now() < deadline, "somebody still listens on {port}");
            std::thread::yield_now();
        }
    }
}
