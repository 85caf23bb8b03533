//! An engine's output: into files of bounded size, and the last lines into memory.
//!
//! Standard output and standard error share one pipe, so their lines keep their order. A thread of the shim empties
//! it as fast as the engine fills it, and never stops doing so: when the disk is full it drops bytes rather than block
//! the engine. One incarnation writes `STAMP-TOKEN.log`; at `max_bytes` that file becomes `STAMP-TOKEN.log.N` and a new
//! one is begun. Of all files of one engine the newest `keep` stay, so an engine's logs never exceed
//! `max_bytes × keep`, whatever it floods.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock;

/// Bytes taken from the pipe at a time, and so the least a log file can hold.
const CHUNK_BYTES: usize = 64 * 1024;
/// Lines kept in memory.
pub(super) const MEMORY_LINES: usize = 256;
/// Of a line kept in memory, this much.
const LINE_BYTES: usize = 1024;
/// How long the last output of an ended engine is waited for.
const SETTLE: Duration = Duration::from_millis(500);
/// An engine whose files do not hold this much of its own output floods them.
const FLOOD_WITHIN: Duration = Duration::from_secs(3600);

/// How much of an engine's output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPolicy {
    /// Size of one file, bytes; at least 64 KiB is taken.
    pub max_bytes: u64,
    /// Files kept of one engine, over all its incarnations; at least 1 is taken.
    pub keep: usize,
}

impl Default for LogPolicy {
    fn default() -> LogPolicy {
        LogPolicy { max_bytes: 64 << 20, keep: 8 }
    }
}

/// Why some of an engine's output is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// It writes so much that its files do not hold the last hour.
    Flood,
    /// It cannot be written down: the disk is full, the directory gone.
    Unwritable,
}

/// Output of an engine that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLoss {
    /// Why.
    pub cause: LossCause,
    /// How much, when it was noticed.
    pub bytes: u64,
}

/// Bytes of this incarnation's output that are not kept, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Losses {
    flood: u64,
    unwritable: u64,
}

impl Losses {
    /// Those that there are.
    pub(super) fn list(self) -> impl Iterator<Item = LogLoss> {
        let all = [(LossCause::Flood, self.flood), (LossCause::Unwritable, self.unwritable)];
        all.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(cause, bytes)| LogLoss { cause, bytes })
    }
}

/// A log file's place among those of its engine: by start of the incarnation, then by age within it.
fn log_order(name: &str) -> Option<(&str, u64)> {
    if let Some(stem) = name.strip_suffix(".log") {
        return Some((stem, u64::MAX));
    }
    let (stem, number) = name.rsplit_once(".log.")?;
    Some((stem, number.parse().ok()?))
}

/// Log files of one directory, oldest first.
fn log_files(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| log_order(name).is_some())
        .collect();
    names.sort_by(|a, b| log_order(a).cmp(&log_order(b)));
    names.into_iter().map(|name| dir.join(name)).collect()
}

/// The file that an incarnation writes to.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    policy: LogPolicy,
    file: Option<File>,
    written: u64,
    rotations: u64,
    /// Lost since the file could last be written, to be said in it.
    lost: u64,
    losses: Losses,
}

impl LogFile {
    fn new(path: PathBuf, policy: LogPolicy) -> LogFile {
        let policy =
            LogPolicy { max_bytes: policy.max_bytes.max(CHUNK_BYTES as u64), keep: policy.keep.max(1) };
        LogFile { path, policy, file: None, written: 0, rotations: 0, lost: 0, losses: Losses::default() }
    }

    /// Makes sure that a file is open, and that no more than `keep` are there.
    fn open(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            let file = File::options().create(true).append(true).mode(0o600).open(&self.path)?;
            self.written = file.metadata()?.len();
            self.file = Some(file);
            if let Some(dir) = self.path.parent() {
                let files = log_files(dir);
                let surplus = files.len().saturating_sub(self.policy.keep);
                for old in files.iter().take(surplus).filter(|old| **old != self.path) {
                    self.losses.flood += self.flooded_by(old);
                    // If it cannot be removed now, the next rotation tries again.
                    let _ = fs::remove_file(old);
                }
            }
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("no log file"))
    }

    /// Bytes of a file that is to go although its last line is this incarnation's and not old.
    fn flooded_by(&self, old: &Path) -> u64 {
        let is_own = old.file_stem() == self.path.file_name();
        let Ok(metadata) = old.metadata() else { return 0 };
        let is_young = metadata.modified().is_ok_and(|at| at.elapsed().unwrap_or_default() < FLOOD_WITHIN);
        if is_own && is_young { metadata.len() } else { 0 }
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        self.rotations += 1;
        let mut old = self.path.clone().into_os_string();
        old.push(format!(".{}", self.rotations));
        fs::rename(&self.path, old)
    }

    /// Appends; what cannot be written is counted and dropped.
    fn append(&mut self, bytes: &[u8]) {
        if self.try_append(bytes).is_err() {
            self.lost += bytes.len() as u64;
            self.losses.unwritable += bytes.len() as u64;
            // The disk may have room again, or the directory be back, at the next chunk.
            self.file = None;
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.open()?;
        if self.written > 0 && self.written + bytes.len() as u64 > self.policy.max_bytes {
            self.rotate()?;
            self.open()?;
        }
        if self.lost > 0 {
            let note = format!("\n[hotbunk: {} bytes of output could not be written here]\n", self.lost);
            self.open()?.write_all(note.as_bytes())?;
            self.lost = 0;
            self.written += note.len() as u64;
        }
        self.open()?.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// The last lines.
#[derive(Debug, Default)]
struct LastLines {
    lines: VecDeque<String>,
    partial: Vec<u8>,
    /// The partial line is longer than what is kept of it.
    overlong: bool,
}

impl LastLines {
    fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.extend(rest.get(..end).unwrap_or_default());
            let line = self.take_partial();
            if self.lines.len() == MEMORY_LINES {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        self.extend(rest);
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = LINE_BYTES.saturating_sub(self.partial.len());
        self.overlong |= bytes.len() > room;
        self.partial.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }

    fn take_partial(&mut self) -> String {
        let mut line = String::from_utf8_lossy(&self.partial).trim_end().to_owned();
        // A progress bar rewrites its line: what was seen last counts.
        if let Some(last) = line.rfind('\r') {
            line.drain(..=last);
        }
        if self.overlong {
            line.push('…');
        }
        self.partial.clear();
        self.overlong = false;
        line
    }

    fn last(&self, count: usize) -> Vec<String> {
        let partial = String::from_utf8_lossy(&self.partial).trim().to_owned();
        let unfinished = (!partial.is_empty()).then_some(partial);
        let total = self.lines.len() + usize::from(unfinished.is_some());
        self.lines.iter().cloned().chain(unfinished).skip(total.saturating_sub(count)).collect()
    }
}

#[derive(Debug, Default)]
struct Shared {
    last: Mutex<LastLines>,
    /// Set before the pipe is read, cleared once what was read is in file and memory.
    busy: AtomicBool,
    losses: watch::Sender<Losses>,
}

/// An engine's output being captured.
#[derive(Debug)]
pub(super) struct Capture {
    shared: Arc<Shared>,
    pipe: PipeReader,
}

impl Capture {
    /// Begins to empty `pipe` into the file at `path`, on a thread that ends with the last writer.
    ///
    /// # Errors
    /// Where the log file cannot be made now (later failures only drop output), or no thread can be had.
    pub(super) fn start(pipe: PipeReader, path: PathBuf, policy: LogPolicy) -> io::Result<Capture> {
        let mut file = LogFile::new(path, policy);
        file.open()?;
        let shared = Arc::new(Shared::default());
        let capture = Capture { shared: Arc::clone(&shared), pipe: pipe.try_clone()? };
        thread::Builder::new().name("log".into()).spawn(move || pump(pipe, &mut file, &shared))?;
        Ok(capture)
    }

    /// The last lines, oldest first.
    pub(super) fn last(&self, count: usize) -> Vec<String> {
        self.shared.last.lock().unwrap_or_else(PoisonError::into_inner).last(count)
    }

    /// Follows what is not kept.
    pub(super) fn losses(&self) -> watch::Receiver<Losses> {
        self.shared.losses.subscribe()
    }

    /// Waits until all that has been written to the pipe so far is captured, or a moment has passed (an orphan may
    /// go on writing).
    pub(super) async fn settle(&self) {
        let until = clock::now() + SETTLE;
        while !self.is_settled() && clock::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn is_settled(&self) -> bool {
        // In this order: what is no longer in the pipe was taken by a thread that had set `busy` before.
        let empty = rustix::io::ioctl_fionread(&self.pipe).is_ok_and(|bytes| bytes == 0);
        empty && !self.shared.busy.load(Ordering::SeqCst)
    }
}

fn pump(mut pipe: PipeReader, file: &mut LogFile, shared: &Shared) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        shared.busy.store(true, Ordering::SeqCst);
        let count = match pipe.read(&mut chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        let bytes = chunk.get(..count).unwrap_or_default();
        file.append(bytes);
        shared.losses.send_if_modified(|known| std::mem::replace(known, file.losses) != file.losses);
        shared.last.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        shared.busy.store(false, Ordering::SeqCst);
        if count == 0 {
            return;
        }
    }
}

/// The last lines of a log, oldest first, from the file and, where it is shorter, from the one it was rotated from.
/// At most 1 MiB of each is read.
///
/// # Errors
/// Where the file cannot be read.
pub(super) fn tail_of_file(path: &Path, count: usize) -> io::Result<Vec<String>> {
    let mut lines = last_lines(path, count)?;
    let stem = path.file_stem();
    let older = path.parent().map(log_files).unwrap_or_default().into_iter().rev().find(|other| {
        // `STAMP-TOKEN.log.7`'s stem is `STAMP-TOKEN.log`.
        other != path && other.file_stem().map(Path::new).and_then(Path::file_stem) == stem
    });
    if let Some(older) = older
        && lines.len() < count
    {
        let mut all = last_lines(&older, count - lines.len())?;
        all.append(&mut lines);
        lines = all;
    }
    Ok(lines)
}

fn last_lines(path: &Path, count: usize) -> io::Result<Vec<String>> {
    const WINDOW: u64 = 1 << 20;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines.iter().skip(lines.len().saturating_sub(count)).map(|line| (*line).to_owned()).collect())
}

/// The line of an engine's last output that says most about why it died.
///
/// A Python program names its exception in the last line of the traceback; vLLM's API server then adds one that only
/// refers to it (`Engine core initialization failed. See root cause above.`). So: the last line with an exception that
/// is not such a reference, else the last line that is not one of the HTTP server's about a request (the agent's own
/// questions are the last thing that most engines wrote), else the last line.
pub fn telling_line(lines: &[String]) -> Option<&str> {
    let refers = |line: &str| {
        line.contains("root cause above")
            || line.contains("Engine core initialization failed")
            || line.contains("EngineDeadError")
    };
    let names_error = |line: &str| {
        line.split(|c: char| c.is_whitespace() || c == '(' || c == ')').any(|word| {
            word.strip_suffix(':').is_some_and(|name| {
                name.len() > 5
                    && (name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Exit"))
            })
        })
    };
    let lines = || lines.iter().rev().map(|line| line.trim()).filter(|line| !line.is_empty());
    let about_a_request = |line: &str| line.contains(" HTTP/1.1\" ");
    lines()
        .find(|line| names_error(line) && !refers(line))
        .or_else(|| lines().find(|line| !about_a_request(line)))
        .or_else(|| lines().next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: LogPolicy = LogPolicy { max_bytes: CHUNK_BYTES as u64, keep: 3 };

    fn sizes(dir: &Path) -> Vec<u64> {
        log_files(dir).iter().map(|file| fs::metadata(file).expect("is there").len()).collect()
    }

    #[test]
    fn a_flood_stays_within_its_bounds_and_the_newest_is_kept() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("20260101T000000.000Z-a.log");
        let mut file = LogFile::new(path.clone(), POLICY);
        for number in 0..100_u32 {
            file.append(format!("{number:>9999}\n").as_bytes());
        }
        let sizes = sizes(dir.path());
        assert_eq!(sizes.len(), 3);
        let lost = 100 * 10_000 - sizes.iter().sum::<u64>();
        assert_eq!(
            file.losses.list().collect::<Vec<_>>(),
            [LogLoss { cause: LossCause::Flood, bytes: lost }]
        );
        assert!(sizes.iter().all(|size| *size <= POLICY.max_bytes), "{sizes:?}");
        assert_eq!(last_lines(&path, 1).expect("readable")[0].trim(), "99");
        let both: Vec<String> = tail_of_file(&path, 10).expect("readable");
        let numbers: Vec<u32> = both.iter().map(|line| line.trim().parse().expect("a number")).collect();
        assert_eq!(numbers, (90..100).collect::<Vec<u32>>());
    }

    #[tokio::test]
    async fn a_flood_through_the_pipe_is_told_while_it_lasts() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (output, mut input) = io::pipe().expect("pipe");
        let capture = Capture::start(output, dir.path().join("a.log"), POLICY).expect("starts");
        let mut losses = capture.losses();
        assert_eq!(losses.borrow_and_update().list().count(), 0);
        let writer = thread::spawn(move || {
            let line = [b'x'; 4096];
            // Ends when nobody reads any more.
            for _ in 0..256 {
                if input.write_all(&line).is_err() {
                    return;
                }
            }
        });
        let noticed = losses.wait_for(|losses| losses.flood > 0);
        let noticed = tokio::time::timeout(Duration::from_secs(60), noticed).await.expect("in time").is_ok();
        assert!(noticed, "1 MiB into 3 files of 64 KiB");
        writer.join().expect("writes");
    }

    #[test]
    fn a_log_that_holds_the_last_hour_is_not_flooded() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("20260101T000000.000Z-a.log");
        let old = dir.path().join("20260101T000000.000Z-a.log.1");
        let file = File::create(&old).expect("creates");
        let long_ago = std::time::SystemTime::now() - FLOOD_WITHIN * 2;
        file.set_modified(long_ago).expect("sets its time");
        fs::write(dir.path().join("20260101T000000.000Z-a.log.2"), "younger").expect("writes");
        let mut log = LogFile::new(path, LogPolicy { keep: 2, ..POLICY });
        log.open().expect("opens");
        assert!(!old.exists());
        assert_eq!(log.losses, Losses::default());
    }

    #[test]
    fn older_incarnations_go_first() {
        let dir = tempfile::tempdir().expect("temp dir");
        let names =
            ["2026-a.log.1", "2026-a.log.10", "2026-a.log.2", "2026-a.log", "2027-b.log.1", "note.txt"];
        for name in names {
            fs::write(dir.path().join(name), "x").expect("writes");
        }
        let mut file = LogFile::new(dir.path().join("2027-b.log"), POLICY);
        file.open().expect("opens");
        assert_eq!(file.losses, Losses::default(), "what others wrote is no flood of this one's");
        let left: Vec<String> = log_files(dir.path())
            .iter()
            .map(|file| file.file_name().expect("name").to_string_lossy().into_owned())
            .collect();
        assert_eq!(left, ["2026-a.log", "2027-b.log.1", "2027-b.log"]);
        assert!(dir.path().join("note.txt").exists());
    }

    #[test]
    fn output_that_cannot_be_written_is_counted_and_said() {
        let dir = tempfile::tempdir().expect("temp dir");
        let place = dir.path().join("logs");
        let mut file = LogFile::new(place.join("a.log"), POLICY);
        file.append(b"lost");
        assert_eq!(file.lost, 4);
        let loss = LogLoss { cause: LossCause::Unwritable, bytes: 4 };
        assert_eq!(file.losses.list().collect::<Vec<_>>(), [loss]);
        fs::create_dir(&place).expect("makes it");
        file.append(b"kept\n");
        let text = fs::read_to_string(place.join("a.log")).expect("readable");
        assert!(
            text.contains("4 bytes of output could not be written") && text.ends_with("kept\n"),
            "{text}"
        );
    }

    #[test]
    fn the_telling_line_is_the_root_cause() {
        let tail = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let vllm = tail(&[
            "(EngineCore pid=9) ERROR 11-30 [core.py:1] ValueError: Free memory on device is less than desired",
            "(APIServer pid=8) Traceback (most recent call last):",
            "(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above.",
            "",
        ]);
        assert!(telling_line(&vllm).expect("a line").contains("Free memory"));
        assert_eq!(telling_line(&tail(&["one", "two", " "])), Some("two"));
        let access = r#"INFO:     127.0.0.1:54188 - "GET /metrics HTTP/1.1" 200 OK"#;
        assert_eq!(telling_line(&tail(&["one", "two", access])), Some("two"));
        assert_eq!(telling_line(&tail(&[access])), Some(access));
        assert_eq!(telling_line(&tail(&["", "  "])), None);
        assert_eq!(telling_line(&[]), None);
    }

    #[test]
    fn a_progress_bar_is_its_last_state() {
        let mut last = LastLines::default();
        last.push(b"loading: 1%\rloading: 99%\nnext");
        assert_eq!(last.last(5), ["loading: 99%", "next"]);
    }

    proptest! {
        #[test]
        fn last_lines_do_not_depend_on_the_chunks(text in "[a-c\n]{0,400}", cut in 1_usize..20) {
            let mut last = LastLines::default();
            for chunk in text.as_bytes().chunks(cut) {
                last.push(chunk);
            }
            let expected: Vec<&str> = text.lines().collect();
            let skip = expected.len().saturating_sub(40);
            prop_assert_eq!(last.last(40), expected.get(skip..).unwrap_or_default());
        }

        #[test]
        fn memory_is_bounded(bytes in prop::collection::vec(any::<u8>(), 0..5000), times in 1_usize..50) {
            let mut last = LastLines::default();
            for _ in 0..times {
                last.push(&bytes);
            }
            prop_assert!(last.lines.len() <= MEMORY_LINES);
            prop_assert!(last.partial.len() <= LINE_BYTES);
        }
    }
}
