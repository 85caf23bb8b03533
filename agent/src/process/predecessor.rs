//! What an earlier agent left behind.
//!
//! Every living shim has a directory with its record. An agent that starts reads them all and asks of each: is this of
//! this boot, does the shim live, and if not, is anything of its tree left that is provably ours? ([`super::scope`] has
//! the proofs.) What is provably ours can be stopped with [`stop_tree`]; records of what is gone are removed; the rest is
//! left alone and reported.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbunk_core::ids::Incarnation;
use rustix::process::Signal;
use tokio::time::timeout;

use super::Error;
use super::handle::{EngineProcess, StopReport};
use super::monitor::ends_within;
use super::protocol::{Answer, Ask, Event, Exit, FromShim, Link, Request};
use super::scope::{Scope, SessionHeld};
use super::signal;
use super::state::{SHIMS, STATE_FILE, ShimState, read_json, remove_record, remove_shim_dir};
use super::sweep::{SWEEP_DEADLINE, SweepEnd, sweep_orphans};
use super::tree::{Member, ProcStat, boot_id, command_line};
use crate::clock;

/// The id of the last word to a shim.
const FORGET: u64 = 2;
/// What a shim is given beyond grace and sweep.
const SLACK: Duration = Duration::from_secs(5);

/// An engine that an earlier agent started and that is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Predecessor {
    /// Its record.
    pub state: ShimState,
    /// Whether its shim lives (and can be talked to); else what is left of the tree has no supervisor.
    pub shim_alive: bool,
    /// Running processes that are provably its own, without the shim.
    pub pids: Vec<u32>,
    /// Processes in its session that cannot be proven its own; they are never signalled.
    pub doubtful: Vec<u32>,
    state_file: PathBuf,
}

impl Predecessor {
    /// Engine's name.
    pub fn engine(&self) -> &str {
        &self.state.engine
    }

    /// Its incarnation, where its leader was started.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.state.incarnation()
    }

    /// Whether it is a server that somebody else had started, which was only held and not ours when its agent ended.
    pub fn is_only_held(&self) -> bool {
        self.state.is_only_held()
    }

    /// Whether somebody else had started it.
    pub fn is_adopted(&self) -> bool {
        self.state.adopted.is_some()
    }

    /// Whether its leader still runs: this very process, by pid and start time.
    pub fn leader_runs(&self) -> bool {
        let stat = self.state.leader.and_then(ProcStat::read_member);
        stat.is_some_and(|stat| stat.is_running())
    }

    /// Takes hold of it: log, exit status, questions and stops go on as if this agent had started it. What has happened
    /// to it since is told as events. Its shim must live.
    pub fn adopt(&self) -> EngineProcess {
        EngineProcess::attach(self.state.clone(), self.state_file.clone(), None)
    }
}

/// A record that proves nothing, and what it points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftAlone {
    /// The record.
    pub path: PathBuf,
    /// Processes that may or may not be ours; none where the record cannot be read.
    pub pids: Vec<u32>,
    /// Why they were left alone, and what to do.
    pub why: String,
}

/// What was found in a state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    /// Provably ours and running, by engine.
    pub predecessors: Vec<Predecessor>,
    /// Neither provably ours nor provably gone.
    pub left_alone: Vec<LeftAlone>,
    /// Records of what is gone; removed.
    pub removed: Vec<PathBuf>,
}

/// Finds the engines of an earlier agent with this state directory, and removes the records of those that are gone.
///
/// Call it before the first [`super::Shims::spawn`], and with the certainty that no other agent uses the directory.
///
/// # Errors
/// Where the directory (a missing one is empty) or the boot id cannot be read.
pub fn find_predecessors(state_dir: &Path) -> Result<Scan, Error> {
    let file_error = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { what, path, source }
    };
    let boot = boot_id().map_err(file_error("reading", Path::new("/proc/sys/kernel/random/boot_id")))?;
    let shims = state_dir.join(SHIMS);
    let entries = match fs::read_dir(&shims) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Scan::default()),
        entries => entries.map_err(file_error("reading", &shims))?,
    };
    let mut dirs: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    dirs.sort();
    let mut scan = Scan::default();
    for dir in dirs {
        examine(&dir, &boot, &mut scan);
    }
    Ok(scan)
}

fn examine(dir: &Path, boot: &str, scan: &mut Scan) {
    let state_file = dir.join(STATE_FILE);
    let state: ShimState = match read_json(&state_file) {
        Ok(state) => state,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // No record, so no engine: a shim writes it first. One that is just starting fails without its directory.
            remove_shim_dir(dir);
            scan.removed.push(dir.to_owned());
            return;
        }
        Err(error) => {
            let why = format!(
                "the record cannot be read ({error}): look for its processes by hand, then remove it"
            );
            scan.left_alone.push(LeftAlone { path: state_file, pids: Vec::new(), why });
            return;
        }
    };
    let gone = |scan: &mut Scan| {
        if let Some(cgroup) = Scope::of(&state).cgroup() {
            cgroup.remove();
        }
        remove_record(&state_file, &state.socket);
        scan.removed.push(dir.to_owned());
    };
    if state.boot_id != boot {
        return gone(scan);
    }
    let shim_alive = is_shim(state.shim, dir);
    if state.is_only_held() && !shim_alive {
        // Nobody holds it, and it never was ours.
        return gone(scan);
    }
    let found = Scope::of(&state).look_hard(SessionHeld::No);
    let pids = |stats: &[ProcStat]| stats.iter().map(|stat| stat.pid).collect::<Vec<_>>();
    let ours: Vec<ProcStat> = found.proven.into_iter().chain(found.contained).collect();
    if shim_alive || !ours.is_empty() {
        scan.predecessors.push(Predecessor {
            shim_alive,
            pids: pids(&ours),
            doubtful: pids(&found.doubtful),
            state_file,
            state,
        });
    } else if found.doubtful.is_empty() {
        gone(scan);
    } else {
        let why = format!(
            "shim {} and leader of engine {} are gone; these processes are in session {} but nothing proves that it is \
             still the engine's: if they are, kill them by hand",
            state.shim.pid, state.engine, state.session
        );
        scan.left_alone.push(LeftAlone { path: state_file, pids: pids(&found.doubtful), why });
    }
}

/// Whether this very process runs, and is the shim of this directory.
fn is_shim(member: Member, dir: &Path) -> bool {
    let runs = ProcStat::read_member(member).is_some_and(|stat| stat.is_running());
    let words = command_line(member.pid);
    runs && words.get(1).is_some_and(|word| word == "shim")
        && words.iter().skip(2).any(|word| Path::new(word).parent() == Some(dir))
}

/// Ends a predecessor's whole tree, and its shim: SIGTERM to the leader, `grace`, SIGKILL to what is left.
///
/// # Errors
/// [`Error::Unconfirmed`] where its shim neither answers nor dies.
pub async fn stop_tree(predecessor: &Predecessor, grace: Duration) -> Result<StopReport, Error> {
    let began = clock::now();
    let state = &predecessor.state;
    let patience = grace.saturating_add(SWEEP_DEADLINE + SLACK);
    let mut exit = None;
    if predecessor.shim_alive {
        if let Ok(Some(end)) = timeout(patience, ask_to_stop(state, grace, &mut exit)).await
            && (!end.left.is_empty() || ends_within(state.shim, SLACK).await)
        {
            return Ok(StopReport {
                exit,
                killed: end.killed,
                left: end.left,
                took: clock::now().since(began),
            });
        }
        // It cannot be talked to (its socket is gone) or hangs: without it, the tree is ours to end.
        let _ = signal::send(state.shim, Signal::KILL);
        if !ends_within(state.shim, SLACK).await {
            return Err(Error::Unconfirmed {
                engine: state.engine.clone(),
                shim_pid: state.shim.pid,
                waited: clock::now().since(began),
            });
        }
    }
    let end = end_orphans(state, &predecessor.state_file, grace).await;
    Ok(StopReport { exit, killed: end.killed, left: end.left, took: clock::now().since(began) })
}

/// Leaves a server that somebody else had started as it is, and ends its shim.
pub async fn let_go(predecessor: &Predecessor) {
    let state = &predecessor.state;
    let told = async {
        let mut link = Link::connect(&state.socket, state.shim).await.ok()?;
        link.send(&Request { id: 1, ask: Ask::LetGo }).await.ok()?;
        loop {
            if let FromShim::Answer { id: 1, answer } = link.next().await.ok()?? {
                return (answer == Answer::Accepted).then_some(());
            }
        }
    };
    let told = timeout(SLACK, told).await.ok().flatten().is_some();
    if !told {
        // Without a shim nobody holds it.
        let _ = signal::send(state.shim, Signal::KILL);
    }
    ends_within(state.shim, SLACK).await;
    remove_record(&predecessor.state_file, &state.socket);
}

/// Lets a living shim do it; `None` where the connection fails.
async fn ask_to_stop(state: &ShimState, grace: Duration, exit: &mut Option<Exit>) -> Option<SweepEnd> {
    let mut link = Link::connect(&state.socket, state.shim).await.ok()?;
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    link.send(&Request { id: 1, ask: Ask::Stop { grace_ms } }).await.ok()?;
    loop {
        // The shim tells all it has told before, so this works on one whose engine has ended already.
        match link.next().await.ok()?? {
            FromShim::Event { event: Event::Exited(how), .. } => *exit = Some(how),
            FromShim::Event { event: Event::Swept(end), .. } => {
                // Until it has answered: a question that is still on its way when the line is cut may not be read. Where
                // it cannot be told any more, it is going already: another one has dismissed it.
                if end.left.is_empty() && link.send(&Request { id: FORGET, ask: Ask::Forget }).await.is_ok() {
                    while let Ok(Some(line)) = link.next().await {
                        if matches!(line, FromShim::Answer { id: FORGET, .. }) {
                            break;
                        }
                    }
                }
                return Some(end);
            }
            FromShim::Event { .. } | FromShim::Answer { .. } => {}
        }
    }
}

/// Ends what a dead shim has left, and removes its record once nothing is left.
async fn end_orphans(state: &ShimState, state_file: &Path, grace: Duration) -> SweepEnd {
    let scope = Scope::of(state);
    let is_proven =
        |leader: &Member| scope.look_hard(SessionHeld::No).proven.iter().any(|stat| stat.member() == *leader);
    if let Some(leader) = state.leader.filter(is_proven)
        && let Ok(signal::Sent::Delivered) = signal::send(leader, Signal::TERM)
    {
        ends_within(leader, grace).await;
    }
    let end = sweep_orphans(&scope, SessionHeld::No).await;
    if end.left.is_empty() {
        if let Some(cgroup) = scope.cgroup() {
            cgroup.remove();
        }
        remove_record(state_file, &state.socket);
    }
    end
}

/// Kills whatever the record in `dir` proves ours: for a start that was given up while its shim was under way.
pub(super) async fn sweep_record(dir: &Path) {
    if let Ok(state) = read_json::<ShimState>(&dir.join(STATE_FILE))
        && state.adopted.is_none()
    {
        end_orphans(&state, &dir.join(STATE_FILE), Duration::ZERO).await;
    }
}
