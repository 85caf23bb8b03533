//! A switch of the tests: the agent is killed right after a record of their choice was committed.
//!
//! `HOTBUNK_DIE_AFTER_RECORD` names a file. As long as there is none, nothing happens. It holds two numbers: how many
//! further records are committed before the end, and the milliseconds after that. It is removed when it is read. There
//! is no such switch in a release build.

use super::lanes::Commit;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
/// Records until the end; negative where none is due.
static LEFT: AtomicI64 = AtomicI64::new(-1);
static DELAY: AtomicI64 = AtomicI64::new(0);

/// These have been committed.
pub(super) fn counted(commits: &[Commit]) {
    let file = FILE.get_or_init(|| std::env::var_os("HOTBUNK_DIE_AFTER_RECORD").map(PathBuf::from));
    let Some(file) = file else { return };
    if LEFT.load(Ordering::Relaxed) < 0 {
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let mut numbers = text.split_whitespace().map_while(|word| word.parse::<i64>().ok());
        let (Some(left), Some(delay)) = (numbers.next(), numbers.next()) else { return };
        // A file that cannot be removed is one to be read again by the next agent.
        let _ = std::fs::remove_file(file);
        LEFT.store(left, Ordering::Relaxed);
        DELAY.store(delay, Ordering::Relaxed);
    }
    let rows = commits.iter().map(|commit| i64::try_from(commit.rows.len()).unwrap_or(0)).sum::<i64>();
    if rows == 0 {
        return;
    }
    let left = LEFT.fetch_sub(rows, Ordering::Relaxed) - rows;
    if left > 0 {
        return;
    }
    LEFT.store(-1, Ordering::Relaxed);
    let delay = Duration::from_millis(u64::try_from(DELAY.load(Ordering::Relaxed)).unwrap_or(0));
    let kill = move || {
        std::thread::park_timeout(delay);
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    };
    if delay.is_zero() {
        kill();
    } else {
        std::thread::spawn(kill);
    }
}
