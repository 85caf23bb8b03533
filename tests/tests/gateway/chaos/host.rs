//! What the host does to an agent: its disk, its journal's files, its descriptors, its clock.

use crate::draw::Draw;
use hotbunk_tests::Node;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Descriptors that an agent short of them still gets.
const LAST_FEW: u64 = 8;
/// Longest step of the clock, hours.
const HOURS: u64 = 72;
const PAGE: u64 = 4096;
/// Of SQLite's WAL format: bytes before the first frame, and before the page in each.
const WAL_HEADER: u64 = 32;
const WAL_FRAME_HEADER: u64 = 24;

/// A small file system for a node's state: it can be filled.
pub(super) struct Disk {
    at: PathBuf,
}

impl Disk {
    /// `None` where this user may not mount one.
    pub(super) fn mount(node: &Node) -> Option<Disk> {
        let at = node.dir().join("state");
        fs::create_dir_all(&at).expect("a directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "tmpfs"]).arg(&at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Disk { at })
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Fills it to the last byte.
    pub(super) fn fill(&self) {
        let Ok(mut file) = File::create(self.filler()) else { return };
        for size in [1 << 20, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Gives back what filled it.
    pub(super) fn relieve(&self) {
        // There is none where it is not full.
        drop(fs::remove_file(self.filler()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process of a test that failed may still be on it.
        drop(Command::new("umount").arg("--lazy").arg(&self.at).output());
    }
}

fn journal(node: &Node, name: &str) -> PathBuf {
    node.dir().join("state").join(name)
}

/// Cuts the journal's write-ahead log where the draw says, as a power loss might.
pub(super) fn cut_log(node: &Node, draw: &mut Draw) {
    let path = journal(node, "journal.db-wal");
    let Ok(file) = OpenOptions::new().write(true).open(path) else { return };
    let length = file.metadata().map_or(0, |m| m.len());
    let durable = durable(node).min(length);
    file.set_len(durable + draw.below(length - durable + 1)).expect("the log can be cut");
}

/// How much of the WAL no loss of power takes away: what has been copied into the main file was synced before that. A cut in
/// there would set older pages before newer ones. By SQLite's format of the WAL's index: `nBackfill` frames, at offset 96.
fn durable(node: &Node) -> u64 {
    let index = fs::read(journal(node, "journal.db-shm")).unwrap_or_default();
    let frames = index.get(96..100).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
    if frames == 0 { 0 } else { WAL_HEADER + u64::from(frames) * (WAL_FRAME_HEADER + PAGE) }
}

/// Overwrites a page or two of the journal, its first one left out: nobody would take the rest for a journal at all.
pub(super) fn damage_journal(node: &Node, draw: &mut Draw) {
    // What is in the log would be read instead of what was damaged.
    drop(fs::remove_file(journal(node, "journal.db-wal")));
    drop(fs::remove_file(journal(node, "journal.db-shm")));
    let Ok(file) = OpenOptions::new().write(true).open(journal(node, "journal.db")) else { return };
    let pages = file.metadata().map_or(0, |m| m.len()) / PAGE;
    for _ in 0..1 + draw.below(2) {
        let page = 1 + draw.below(pages.max(2) - 1);
        file.write_all_at(&[0xa5; PAGE as usize], page * PAGE).expect("the journal can be written");
    }
}

/// How many more descriptors a process may have.
pub(super) enum Descriptors {
    /// A few beyond those that it has.
    Few,
    /// As many as we may.
    Plenty,
}

pub(super) fn limit_descriptors(pid: u32, to: &Descriptors) {
    let own = getrlimit(Resource::Nofile);
    let open = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).map_or(0, Iterator::count);
    let current = match to {
        Descriptors::Few => Some(open as u64 + LAST_FEW),
        Descriptors::Plenty => own.current,
    };
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // One that has just ended has no need of any.
    let _ = prlimit(pid, Resource::Nofile, Rlimit { current, maximum: own.maximum });
}

/// The library that stands before the wall clock: cargo builds it beside this test.
pub(super) fn clock_library() -> PathBuf {
    let exe = std::env::current_exe().expect("this test");
    let library = exe.with_file_name("libfake_clock.so");
    assert!(library.is_file(), "{} was not built", library.display());
    library
}

/// The file by which the clock of a node's processes is off, seconds.
pub(super) const CLOCK: &str = "clock-offset";

/// Sets the clock of a node's processes by so many hours forward or back.
pub(super) fn step_clock(node: &Node, draw: &mut Draw) {
    let seconds = i64::try_from(3600 * (1 + draw.below(HOURS))).unwrap_or(0);
    set_clock(node, if draw.once_in(2) { seconds } else { -seconds });
}

pub(super) fn set_clock(node: &Node, seconds: i64) {
    let path = node.dir().join(CLOCK);
    let draft = path.with_extension("draft");
    // In one step: whoever reads it finds the old or the new.
    let written = fs::write(&draft, seconds.to_string()).and_then(|()| fs::rename(&draft, &path));
    written.expect("the clock's file");
}
