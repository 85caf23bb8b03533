//! Which processes are one engine's, and how that is proven.
//!
//! Five things prove a process ours, each by itself:
//!
//! - it descends from the shim (orphans too: the shim is their subreaper) or from another process proven ours;
//! - it is the recorded leader: same pid, same start time, same boot;
//! - it is in the engine's cgroup;
//! - it was started with the engine's token in its environment (`HOTBUNK_TREE=…`);
//! - it is in the shim's session, *and* that session number is still ours: because the shim lives, or is our child
//!   and not yet reaped, or because a process proven otherwise is in that session. (A session is entered only by being
//!   born in it, and its number is not given out again while a member lives.)
//!
//! The processes of a container ([`super::container`]) are ours by proofs of their own, and stand apart: they are
//! counted, and never signalled. Those of a server that somebody else had started ([`super::adopted`]) stand there as long as
//! it is only held.
//!
//! With the shim alive the first is complete. The others matter after `kill -9` of the shim. A member of the session
//! while nothing holds the proof is *doubtful*: it is reported and never signalled.

use std::collections::BTreeSet;

use super::adopted::AdoptedState;
use super::cgroup::Cgroup;
use super::container::{Contained, ContainerState};
use super::state::ShimState;
use super::tree::{Member, ProcStat, Snapshot, has_environment};

/// Name of the environment variable that every process of an engine inherits; its value is the incarnation's token.
pub(super) const TOKEN_VARIABLE: &str = "HOTBUNK_TREE";

/// How sure the caller is, from elsewhere, that the recorded session number is still ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionHeld {
    /// The shim is a child of the caller that has not been reaped: its pid cannot have been given out again.
    Yes,
    /// It has to be proven.
    No,
}

/// What one look at `/proc` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Ours, running, without the shim itself.
    pub(super) proven: Vec<ProcStat>,
    /// In the recorded session, but nothing proves that the session is still ours.
    pub(super) doubtful: Vec<ProcStat>,
    /// Those of the engine's container, which only its runtime ends, and of a server that is only held: none of the others.
    pub(super) contained: Vec<ProcStat>,
}

/// One engine's processes.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    shim: Member,
    session: u32,
    leader: Option<Member>,
    token: String,
    cgroup: Option<Cgroup>,
    container: Option<ContainerState>,
    adopted: Option<AdoptedState>,
}

impl Scope {
    /// The scope that a state file of *this boot* describes.
    pub(super) fn of(state: &ShimState) -> Scope {
        Scope {
            shim: state.shim,
            session: state.session,
            // A container's leader is no process of ours to signal; its client is. An adopted one has proofs of its own.
            leader: match (&state.container, &state.adopted) {
                (Some(container), _) => container.client,
                (None, Some(_)) => None,
                (None, None) => state.leader,
            },
            adopted: state.adopted.clone(),
            container: state.container.clone(),
            token: format!("{TOKEN_VARIABLE}={}", state.token),
            cgroup: state
                .cgroup
                .as_deref()
                .and_then(|path| Cgroup::recorded(path, &state.engine, state.shim.pid)),
        }
    }

    /// The engine's cgroup, where it has one.
    pub(super) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// The engine's container, where it runs in one.
    pub(super) fn container(&self) -> Option<&ContainerState> {
        self.container.as_ref()
    }

    /// What is known of a server that somebody else had started.
    pub(super) fn adopted_mut(&mut self) -> Option<&mut AdoptedState> {
        self.adopted.as_mut()
    }

    /// Whether its processes are only held.
    pub(super) fn is_only_held(&self) -> bool {
        self.adopted.as_ref().is_some_and(|adopted| !adopted.kept)
    }

    /// Its container was found.
    pub(super) fn found(&mut self, contained: &Contained) {
        if let Some(container) = &mut self.container {
            container.found = Some(contained.clone());
        }
    }

    /// Looks without reading environments: complete while the shim lives, and cheap. A container's processes are in it.
    pub(super) fn look(&self) -> Vec<ProcStat> {
        let mut found = self.look_apart();
        found.proven.append(&mut found.contained);
        found.proven.sort_by_key(|stat| stat.pid);
        found.proven
    }

    /// The same, those of a container apart.
    pub(super) fn look_apart(&self) -> Found {
        let grouped = self.cgroup.as_ref().map(Cgroup::pids).unwrap_or_default();
        self.find(&Snapshot::read(), &grouped, SessionHeld::No, |_| false)
    }

    /// Looks with every proof there is: for when the shim is gone.
    pub(super) fn look_hard(&self, held: SessionHeld) -> Found {
        let grouped = self.cgroup.as_ref().map(Cgroup::pids).unwrap_or_default();
        self.find(&Snapshot::read(), &grouped, held, |pid| has_environment(pid, &self.token))
    }

    /// The decision itself. `grouped` are the pids in the cgroup, `bears_token` reads a process's environment.
    fn find(
        &self,
        snapshot: &Snapshot,
        grouped: &[u32],
        held: SessionHeld,
        bears_token: impl Fn(u32) -> bool,
    ) -> Found {
        let me = std::process::id();
        let is = |member: Member| snapshot.get(member.pid).is_some_and(|stat| stat.member() == member);
        let shim_alive = is(self.shim);

        let mut ours: BTreeSet<u32> = grouped.iter().copied().collect();
        ours.extend(self.leader.filter(|leader| is(*leader)).map(|leader| leader.pid));
        if shim_alive {
            ours.insert(self.shim.pid);
        }
        // Nothing older than the shim can be of its tree.
        let young = |stat: &&ProcStat| stat.start_ticks >= self.shim.start_ticks;
        ours.extend(snapshot.iter().filter(young).filter(|stat| bears_token(stat.pid)).map(|stat| stat.pid));

        let in_session = || snapshot.session(self.session).filter(young);
        let session_ours =
            held == SessionHeld::Yes || shim_alive || in_session().any(|stat| ours.contains(&stat.pid));
        if session_ours {
            ours.extend(in_session().map(|stat| stat.pid));
        }
        // The asking process is never its own prey, nor is what it has started, unless it is the shim.
        if me != self.shim.pid {
            ours.remove(&me);
        }
        let below: Vec<u32> =
            ours.iter().flat_map(|pid| snapshot.descendants(*pid)).map(|stat| stat.pid).collect();
        ours.extend(below);
        let adopted = self.adopted.as_ref().map(|adopted| adopted.running(snapshot)).unwrap_or_default();
        let (held, kept) = if self.is_only_held() { (adopted, Vec::new()) } else { (Vec::new(), adopted) };
        ours.extend(kept.iter().map(|stat| stat.pid));
        ours.remove(&me);
        ours.remove(&self.shim.pid);

        // A living process with the session's number that is not the shim: the number was given out again, and so
        // nobody of the old session lives.
        let reused = snapshot.get(self.session).is_some_and(|stat| stat.member() != self.shim);
        let doubtful = in_session()
            .filter(|stat| !session_ours && !reused && stat.is_running() && !ours.contains(&stat.pid))
            .cloned()
            .collect();
        let mut contained = self.container.as_ref().map(|c| c.members(snapshot)).unwrap_or_default();
        contained.extend(held);
        let apart: BTreeSet<u32> = contained.iter().map(|stat| stat.pid).collect();
        let proven = ours
            .iter()
            .filter(|pid| !apart.contains(pid))
            .filter_map(|pid| snapshot.get(*pid))
            .filter(|stat| stat.is_running())
            .cloned()
            .collect();
        Found { proven, doubtful, contained }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: u32 = 100;
    const SHIM_TICKS: u64 = 1_000;

    fn stat(pid: u32, ppid: u32, session: u32) -> ProcStat {
        let start_ticks = SHIM_TICKS + u64::from(pid) - u64::from(SHIM);
        ProcStat { pid, comm: "x".into(), state: 'S', ppid, session, threads: 1, start_ticks }
    }

    fn scope() -> Scope {
        Scope {
            shim: Member { pid: SHIM, start_ticks: SHIM_TICKS },
            session: SHIM,
            leader: Some(stat(101, SHIM, SHIM).member()),
            token: String::new(),
            cgroup: None,
            container: None,
            adopted: None,
        }
    }

    fn pids(stats: &[ProcStat]) -> Vec<u32> {
        stats.iter().map(|stat| stat.pid).collect()
    }

    fn find(stats: &[ProcStat], held: SessionHeld, token: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let snapshot = Snapshot::from_stats(stats.iter().cloned());
        let found = scope().find(&snapshot, &[], held, |pid| token.contains(&pid));
        (pids(&found.proven), pids(&found.doubtful))
    }

    #[test]
    fn a_living_shim_proves_its_descendants_and_is_not_one_of_them() {
        let stats = [
            stat(SHIM, 1, SHIM),
            stat(101, SHIM, SHIM),
            stat(102, 101, 102),
            stat(103, SHIM, SHIM),
            stat(104, 1, 7),
        ];
        assert_eq!(find(&stats, SessionHeld::No, &[]), (vec![101, 102, 103], vec![]));
    }

    #[test]
    fn the_shim_itself_sees_all_its_descendants() {
        let me = std::process::id();
        let scope = Scope { shim: Member { pid: me, start_ticks: SHIM_TICKS }, session: me, ..scope() };
        let orphan = stat(500_000_001, me, 77);
        let shim = ProcStat { pid: me, session: me, ..stat(SHIM, 1, SHIM) };
        let snapshot = Snapshot::from_stats([shim, orphan]);
        assert_eq!(pids(&scope.find(&snapshot, &[], SessionHeld::No, |_| false).proven), [500_000_001]);
    }

    #[test]
    fn zombies_are_gone() {
        let stats = [stat(SHIM, 1, SHIM), ProcStat { state: 'Z', ..stat(101, SHIM, SHIM) }];
        assert_eq!(find(&stats, SessionHeld::No, &[]), (vec![], vec![]));
    }

    #[test]
    fn a_living_leader_proves_the_session_of_a_dead_shim() {
        let stats = [stat(101, 1, SHIM), stat(103, 1, SHIM), stat(105, 103, 105), stat(104, 1, 7)];
        assert_eq!(find(&stats, SessionHeld::No, &[]), (vec![101, 103, 105], vec![]));
    }

    #[test]
    fn a_session_without_proof_is_doubtful() {
        let stats = [stat(103, 1, SHIM), stat(104, 1, 7)];
        assert_eq!(find(&stats, SessionHeld::No, &[]), (vec![], vec![103]));
        assert_eq!(find(&stats, SessionHeld::Yes, &[]), (vec![103], vec![]));
    }

    #[test]
    fn a_token_proves_its_bearer_and_the_bearers_session() {
        let stats = [stat(103, 1, SHIM), stat(105, 1, 105), stat(106, 1, SHIM), stat(104, 1, 7)];
        assert_eq!(find(&stats, SessionHeld::No, &[105]), (vec![105], vec![103, 106]));
        assert_eq!(find(&stats, SessionHeld::No, &[103]), (vec![103, 106], vec![]));
    }

    #[test]
    fn a_reused_pid_is_a_stranger() {
        // The leader's pid belongs to a process started later, the shim's pid leads a stranger's session.
        let late = |stat: ProcStat| ProcStat { start_ticks: stat.start_ticks + 500, ..stat };
        let stats = [late(stat(SHIM, 1, SHIM)), late(stat(101, 1, 9)), late(stat(110, SHIM, SHIM))];
        assert_eq!(find(&stats, SessionHeld::No, &[]), (vec![], vec![]));
    }

    #[test]
    fn what_is_older_than_the_shim_is_a_stranger() {
        let old = ProcStat { start_ticks: SHIM_TICKS - 1, ..stat(103, 1, SHIM) };
        assert_eq!(find(&[old], SessionHeld::Yes, &[103]), (vec![], vec![]));
    }

    #[test]
    fn what_is_only_held_is_counted_apart_until_it_is_kept() {
        let stats = [stat(SHIM, 1, SHIM), stat(90, 1, 90), stat(91, 90, 90), stat(104, 1, 7)];
        let snapshot = Snapshot::from_stats(stats);
        let leader = snapshot.get(90).expect("is there");
        let held = AdoptedState::hold(leader, &snapshot);
        let mut scope = Scope { leader: None, adopted: Some(held), ..scope() };
        let look = |scope: &Scope| scope.find(&snapshot, &[], SessionHeld::No, |_| false);
        let found = look(&scope);
        assert_eq!((pids(&found.proven), pids(&found.contained)), (vec![], vec![90, 91]));
        scope.adopted_mut().expect("adopted").kept = true;
        // It is older than its shim, and ours all the same.
        let found = look(&scope);
        assert_eq!((pids(&found.proven), pids(&found.contained)), (vec![90, 91], vec![]));
    }

    #[test]
    fn a_cgroup_proves_its_members() {
        let snapshot = Snapshot::from_stats([stat(120, 1, 120), stat(121, 1, 121)]);
        let found = scope().find(&snapshot, &[120], SessionHeld::No, |_| false);
        assert_eq!(pids(&found.proven), [120]);
    }
}
