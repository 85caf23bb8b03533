//! The life of an engine's process tree, as a pure state machine.
//!
//! ```text
//!            StopAsked: SIGTERM to the leader
//!  Running ────────────────────────────────► Stopping
//!     │  │                                    │    │
//!     │  │ KillAsked                LeaderExited  grace over, KillAsked
//!     │  └───────────────┐                    │    │
//!     │ LeaderExited     │                    ▼    ▼
//!     └───────────► Lingering ────────────► Sweeping ──── deadline ───► Swept (something left)
//!                        │   a moment over,    │                           │   every while: again
//!                        │   KillAsked         │ nothing runs              │ nothing runs
//!                        └──── nothing runs ───┴───────────────────────────┴──────► Swept (clean)
//! ```
//!
//! - `Stopping`: only the leader is asked to end; it knows how to end its children. A second stop can only shorten
//!   the grace.
//! - `Lingering`: the leader is gone. What it leaves behind gets a moment (multiprocessing's resource tracker removes
//!   shared memory then), not more: an orphaned `VLLM::EngineCore` would hold its GPU memory for ever (CONTRACT 5).
//! - `Sweeping`: SIGKILL to everything, round after round.
//! - `Swept (something left)`: processes that SIGKILL does not end. They are reported, and tried again.

use std::time::Duration;

use hotbunk_core::time::Moment;

use crate::process::sweep::{ROUND, SWEEP_DEADLINE};

/// How long the rest of a tree may outlive its leader.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// How often leftovers are tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Where an engine's tree is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The leader runs and nobody has asked it to end.
    Running,
    /// The leader has been sent SIGTERM.
    Stopping {
        /// When its grace is over.
        kill_at: Moment,
    },
    /// The leader is gone, others may run.
    Lingering {
        /// When they are killed.
        sweep_at: Moment,
    },
    /// Everything is being killed.
    Sweeping {
        /// When that is reported as failed.
        give_up_at: Moment,
    },
    /// It is over.
    Swept {
        /// When leftovers are tried again; `None` where there are none.
        retry_at: Option<Moment>,
    },
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// A stop was asked for.
    StopAsked {
        /// The leader's grace.
        grace: Duration,
    },
    /// A kill was asked for.
    KillAsked,
    /// The leader was reaped.
    LeaderExited,
    /// A look at the tree found nothing running.
    TreeEmpty,
    /// Time passed, and a look at the tree found something running (or there was no need to look).
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// SIGTERM to the leader.
    TermLeader,
    /// SIGKILL to everything.
    KillTree,
    /// Tell how the leader ended.
    ReportExit,
    /// Tell how the sweep ended.
    ReportSwept,
}

impl Stage {
    /// The next stage and what is to be done; total, any input may come at any time.
    pub(super) fn step(self, input: Input, now: Moment) -> (Stage, Vec<Action>) {
        let sweeping = Stage::Sweeping { give_up_at: now + SWEEP_DEADLINE };
        match (self, input) {
            (Stage::Running, Input::StopAsked { grace }) => {
                (Stage::Stopping { kill_at: now + grace }, vec![Action::TermLeader])
            }
            (Stage::Running, Input::LeaderExited) => {
                (Stage::Lingering { sweep_at: now + LINGER }, vec![Action::ReportExit])
            }
            (Stage::Stopping { kill_at }, Input::StopAsked { grace }) => {
                (Stage::Stopping { kill_at: kill_at.min(now + grace) }, vec![])
            }
            (Stage::Stopping { kill_at }, Input::LeaderExited) => {
                (Stage::Lingering { sweep_at: kill_at.min(now + LINGER) }, vec![Action::ReportExit])
            }
            (Stage::Running | Stage::Stopping { .. } | Stage::Lingering { .. }, Input::KillAsked) => {
                (sweeping, vec![Action::KillTree])
            }
            (Stage::Stopping { kill_at: due } | Stage::Lingering { sweep_at: due }, Input::Tick)
                if now >= due =>
            {
                (sweeping, vec![Action::KillTree])
            }
            (Stage::Lingering { .. } | Stage::Sweeping { .. }, Input::TreeEmpty) => {
                (Stage::Swept { retry_at: None }, vec![Action::ReportSwept])
            }
            (Stage::Sweeping { give_up_at }, Input::Tick) if now >= give_up_at => {
                (Stage::Swept { retry_at: Some(now + RETRY) }, vec![Action::ReportSwept])
            }
            (Stage::Sweeping { .. }, Input::Tick) => (self, vec![Action::KillTree]),
            (Stage::Swept { retry_at: Some(_) }, Input::TreeEmpty) => {
                (Stage::Swept { retry_at: None }, vec![Action::ReportSwept])
            }
            (Stage::Swept { retry_at: Some(due) }, Input::Tick) if now >= due => {
                (Stage::Swept { retry_at: Some(now + RETRY) }, vec![Action::KillTree])
            }
            // The leader fell to the sweep.
            (Stage::Sweeping { .. } | Stage::Swept { .. }, Input::LeaderExited) => {
                (self, vec![Action::ReportExit])
            }
            // A stop while the tree is ending anyway, a tick too early, an empty tree where the leader's end has not
            // been seen yet: nothing to do.
            (
                Stage::Running
                | Stage::Stopping { .. }
                | Stage::Lingering { .. }
                | Stage::Sweeping { .. }
                | Stage::Swept { .. },
                _,
            ) => (self, vec![]),
        }
    }

    /// Whether a look at the tree is needed before the next step.
    pub(super) fn wants_look(self) -> bool {
        matches!(self, Stage::Lingering { .. } | Stage::Sweeping { .. } | Stage::Swept { retry_at: Some(_) })
    }

    /// When the next step is due without any event.
    pub(super) fn due(self, now: Moment) -> Option<Moment> {
        match self {
            Stage::Running | Stage::Swept { retry_at: None } => None,
            Stage::Stopping { kill_at: due }
            | Stage::Lingering { sweep_at: due }
            | Stage::Swept { retry_at: Some(due) } => Some(due),
            Stage::Sweeping { give_up_at } => Some(give_up_at.min(now + ROUND)),
        }
    }

    /// Whether nothing of the engine is left.
    pub(super) fn is_clean(self) -> bool {
        self == Stage::Swept { retry_at: None }
    }

    /// Whether an end of the leader now would be one that was asked for.
    pub(super) fn is_asked(self) -> bool {
        matches!(self, Stage::Stopping { .. } | Stage::Sweeping { .. } | Stage::Swept { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T0: Moment = Moment(1_000_000_000);
    const GRACE: Duration = Duration::from_secs(5);

    #[test]
    fn a_graceful_stop_signals_the_leader_only() {
        let (stage, actions) = Stage::Running.step(Input::StopAsked { grace: GRACE }, T0);
        assert_eq!(actions, [Action::TermLeader]);
        let (stage, actions) = stage.step(Input::LeaderExited, T0 + Duration::from_secs(1));
        assert_eq!(actions, [Action::ReportExit]);
        let (stage, actions) = stage.step(Input::TreeEmpty, T0 + Duration::from_secs(1));
        assert_eq!(actions, [Action::ReportSwept]);
        assert!(stage.is_clean());
    }

    #[test]
    fn grace_over_kills_everything() {
        let (stage, _) = Stage::Running.step(Input::StopAsked { grace: GRACE }, T0);
        let (same, actions) = stage.step(Input::Tick, T0 + GRACE - Duration::from_nanos(1));
        assert_eq!((same, actions), (stage, vec![]));
        let (_, actions) = stage.step(Input::Tick, T0 + GRACE);
        assert_eq!(actions, [Action::KillTree]);
    }

    #[test]
    fn a_second_stop_only_shortens() {
        let (stage, _) = Stage::Running.step(Input::StopAsked { grace: GRACE }, T0);
        assert_eq!(stage.step(Input::StopAsked { grace: GRACE * 2 }, T0).0, stage);
        let (shorter, _) = stage.step(Input::StopAsked { grace: Duration::ZERO }, T0);
        assert_eq!(shorter, Stage::Stopping { kill_at: T0 });
    }

    #[test]
    fn a_crash_reports_first_and_sweeps_after_a_moment() {
        assert!(!Stage::Running.is_asked());
        let (stage, actions) = Stage::Running.step(Input::LeaderExited, T0);
        assert_eq!(actions, [Action::ReportExit]);
        let (stage, actions) = stage.step(Input::Tick, T0 + LINGER);
        assert_eq!(actions, [Action::KillTree]);
        assert_eq!(stage.step(Input::TreeEmpty, T0 + LINGER).1, [Action::ReportSwept]);
    }

    #[test]
    fn leftovers_are_reported_and_tried_again_until_they_go() {
        let (stage, _) = Stage::Running.step(Input::KillAsked, T0);
        let late = T0 + SWEEP_DEADLINE;
        let (stage, actions) = stage.step(Input::Tick, late);
        assert_eq!(actions, [Action::ReportSwept]);
        assert!(!stage.is_clean());
        let (stage, actions) = stage.step(Input::Tick, late + RETRY);
        assert_eq!(actions, [Action::KillTree]);
        let (stage, actions) = stage.step(Input::TreeEmpty, late + RETRY);
        assert_eq!(actions, [Action::ReportSwept]);
        assert!(stage.is_clean());
        assert_eq!(stage.due(late), None);
    }

    fn inputs() -> impl Strategy<Value = Input> {
        prop_oneof![
            (0_u64..20).prop_map(|seconds| Input::StopAsked { grace: Duration::from_secs(seconds) }),
            Just(Input::KillAsked),
            Just(Input::LeaderExited),
            Just(Input::TreeEmpty),
            Just(Input::Tick),
        ]
    }

    proptest! {
        /// Whatever happened before: once a kill is asked for, ticks kill, and an empty tree ends in a clean sweep.
        #[test]
        fn a_kill_always_ends(history in prop::collection::vec((inputs(), 0_u64..4_000), 0..30)) {
            let mut now = T0;
            let mut stage = Stage::Running;
            for (input, milliseconds) in history {
                now = now + Duration::from_millis(milliseconds);
                let before = stage;
                let actions;
                (stage, actions) = stage.step(input, now);
                // Nothing is signalled once all is gone, and what is over stays over.
                if before.is_clean() {
                    prop_assert!(stage.is_clean());
                    prop_assert!(!actions.contains(&Action::KillTree) && !actions.contains(&Action::TermLeader));
                }
                // Every stage that waits for something knows when to act next, and does not wait for ever.
                if !matches!(stage, Stage::Running) && !stage.is_clean() {
                    prop_assert!(stage.due(now).is_some());
                }
            }
            stage = stage.step(Input::KillAsked, now).0;
            stage = stage.step(Input::TreeEmpty, now).0;
            prop_assert!(stage.is_clean());
        }
    }
}
