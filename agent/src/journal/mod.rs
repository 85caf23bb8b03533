//! The durable record of everything that was done, in one SQLite file that operators can open.
//!
//! A step's record is committed before the step acts, so this module lies on every handoff's critical path. How it is
//! kept short:
//!
//! ```text
//!   commit(records) ──► commit lane ──┐                       ┌──► entries, runs, footprints, kept
//!                                     ├──► one writer thread ─┤
//!   samples(..)     ──► sample lane ──┘   (commits first)     └──► samples, host_samples
//!                        bounded; what does not fit is dropped and counted
//!   read(..)        ──► read-only connections, never in the writer's way (WAL)
//! ```
//!
//! - **Durable against a killed agent, not against a power cut.** WAL with `synchronous=NORMAL`: a commit is a write to
//!   the page cache. `kill -9` of the agent loses nothing that was committed; a power cut ends the engines too, which
//!   the boot id shows. So no fsync belongs on the path.
//! - **Checkpoints only at rest.** `wal_autocheckpoint` is off; the writer checkpoints once no commit has come for a
//!   while, and then writes one small row of its own: the first write after a checkpoint makes SQLite sync the WAL's
//!   header, and that, too, is paid at rest.
//! - **Commits overtake samples**, and samples go in small transactions so that a commit waits for at most one of them.
//! - **Numbers go on.** `seq` and operation ids continue over restarts and over what retention has deleted.
//! - **One writer.** The numbers are counted in memory, so a lock beside the file keeps a second agent away. (Beside it:
//!   closing any other handle of the file itself would drop SQLite's own locks.)
//! - **A bad file never stops the agent**, but a file that we must not touch does: a damaged one is set aside under
//!   another name and said in the [`OpenReport`]; one by a newer Hotbunk, or by another program, is refused.

#[cfg(debug_assertions)]
mod die;
mod error;
mod lanes;
mod read;
pub mod record;
mod retention;
mod schema;
mod writer;

#[cfg(test)]
pub(crate) mod examples;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod rest_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wal_tests;

pub use error::Error;
pub use read::{FootprintRow, Page, Query, Reader, RunRow, Span};

use crate::clock;
use hotbunk_core::ids::OperationId;
use hotbunk_core::time::Moment;
pub(crate) use lanes::Row;
use lanes::{Commit, Lanes, Sampled};
use record::{HostSample, Record, Sample};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// How the journal behaves. The defaults are the agent's.
#[derive(Debug, Clone)]
pub struct Options {
    /// Samples older than this are deleted.
    pub keep_samples: Duration,
    /// Entries and runs older than this are deleted; a run goes whole.
    pub keep_entries: Duration,
    /// When the file holds more than this, the oldest samples, then the oldest entries go. In bytes.
    pub max_bytes: u64,
    /// Time without a commit after which checkpoints and retention may run.
    pub rest_after: Duration,
    /// Time between two rounds of retention.
    pub retain_every: Duration,
    /// The longest that a sample waits in memory.
    pub sample_delay: Duration,
    /// Samples that may wait in memory; more are dropped and counted.
    pub sample_lane: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            keep_samples: Duration::from_secs(7 * 24 * 3600),
            keep_entries: Duration::from_secs(180 * 24 * 3600),
            max_bytes: 1 << 30,
            rest_after: Duration::from_secs(2),
            retain_every: Duration::from_secs(3600),
            sample_delay: Duration::from_millis(500),
            sample_lane: 16_384,
        }
    }
}

/// What was found when the journal was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// The journal.
    pub path: PathBuf,
    /// Whether there was no journal before.
    pub created: bool,
    /// The schema that the file had, where it was an older one and has been brought up to date.
    pub migrated_from: Option<u32>,
    /// Where a damaged file was moved to, and why.
    pub set_aside: Option<(PathBuf, String)>,
    /// Position of the last entry, 0 in an empty journal.
    pub last_seq: u64,
    /// The id that the next operation gets.
    pub next_operation: OperationId,
    /// Whether the last agent said that it stopped; `None` where no agent has written before.
    pub stopped_in_order: Option<bool>,
    /// The boot that the last agent ran in.
    pub last_boot_id: Option<String>,
    /// This boot.
    pub boot_id: String,
}

/// A fact on its way into the journal. The clocks are read when it is made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRecord {
    /// When it was made, monotonic.
    pub at: Moment,
    /// When it was made, epoch seconds.
    pub wall: f64,
    /// The cycle run that it belongs to.
    pub run: Option<String>,
    /// The operation that it belongs to.
    pub operation: Option<OperationId>,
    /// The fact.
    pub record: Record,
}

impl NewRecord {
    /// A fact of now.
    pub fn new(run: Option<String>, operation: Option<OperationId>, record: Record) -> Self {
        NewRecord { at: clock::now(), wall: wall_seconds(), run, operation, record }
    }
}

/// Epoch seconds of now.
pub(crate) fn wall_seconds() -> f64 {
    clock::wall().as_duration().as_secs_f64()
}

/// Something of which only the newest is kept: it replaces what was kept under its key, in the same transaction as the
/// records that it is handed over with. It is no history, so it does not grow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Under which name.
    pub key: String,
    /// As JSON; `None` forgets it.
    pub body: Option<String>,
}

/// What the journal has done since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Samples that were dropped: the lane was full, or the write failed.
    pub dropped_samples: u64,
}

/// Commits that may wait at once; further ones wait for a place.
const COMMIT_LANE: usize = 1024;
/// Idle reading connections that are kept.
const READERS: usize = 4;

struct Shared {
    path: PathBuf,
    lanes: Arc<Lanes>,
    places: Semaphore,
    last_seq: AtomicU64,
    readers: Mutex<Vec<Reader>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held while the writer lives.
    lock: Mutex<Option<std::fs::File>>,
}

/// A handle to the journal; clones share one writer. The file is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens the journal, creating or migrating it as needed, and starts its writer.
    pub fn open(path: impl AsRef<Path>) -> Result<(Journal, OpenReport), Error> {
        Journal::open_with(path, Options::default())
    }

    /// Whether no agent uses this journal now, for whoever is about to write beside it.
    ///
    /// # Errors
    /// One does, or it cannot be told.
    pub fn is_unused(path: &Path) -> Result<(), Error> {
        schema::is_unused(path)
    }

    /// The same with settings. Blocks while the file is checked: call it before serving.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<(Journal, OpenReport), Error> {
        let path = path.as_ref().to_owned();
        let lock = schema::lock(&path)?;
        let lanes = Arc::new(Lanes::new(options.sample_lane, options.sample_delay));
        let begin = |(connection, report): (rusqlite::Connection, OpenReport)| {
            let (path, lanes, options) = (path.clone(), Arc::clone(&lanes), options.clone());
            writer::Writer::new(connection, path, lanes, options, &report).map(|writer| (writer, report))
        };
        let (writer, report) = match schema::open(&path).and_then(begin) {
            // Damage that no check has seen, and the first read or write of ours has.
            Err(Error::Damaged { source, .. }) => begin(schema::begin_anew(&path, &source)?)?,
            other => other?,
        };
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| Error::Thread { source: Arc::new(source) })?;
        let shared = Shared {
            path,
            lanes,
            places: Semaphore::new(COMMIT_LANE),
            last_seq: AtomicU64::new(report.last_seq),
            readers: Mutex::new(Vec::new()),
            thread: Mutex::new(Some(thread)),
            lock: Mutex::new(Some(lock)),
        };
        Ok((Journal { shared: Arc::new(shared) }, report))
    }

    /// Writes records in one transaction and answers with the position of the last one, once they would survive the
    /// agent's death. Dropping the future does not take back what has been handed over.
    pub async fn commit(&self, records: Vec<NewRecord>) -> Result<u64, Error> {
        if records.is_empty() {
            return Ok(self.shared.last_seq.load(Ordering::Acquire));
        }
        let rows = records.into_iter().map(Row::encode).collect::<Result<Arc<[Row]>, _>>()?;
        self.commit_rows(rows, Vec::new()).await
    }

    /// The same with rows that the caller keeps, and with what is to be kept beside them.
    pub(crate) async fn commit_rows(&self, rows: Arc<[Row]>, keep: Vec<Keep>) -> Result<u64, Error> {
        let closed = || Error::Closed { path: self.shared.path.clone() };
        let _place = self.shared.places.acquire().await.map_err(|_| closed())?;
        let (done, answer) = oneshot::channel();
        if !self.shared.lanes.commit(Commit { rows, keep, done }) {
            return Err(closed());
        }
        let seq = answer.await.map_err(|_| closed())??;
        self.shared.last_seq.fetch_max(seq, Ordering::AcqRel);
        Ok(seq)
    }

    /// Hands device samples over; they are written within [`Options::sample_delay`].
    pub fn samples(&self, samples: impl IntoIterator<Item = Sample>) {
        self.shared.lanes.samples(samples.into_iter().map(Sampled::Device));
    }

    /// Hands host samples over, likewise.
    pub fn host_samples(&self, samples: impl IntoIterator<Item = HostSample>) {
        self.shared.lanes.samples(samples.into_iter().map(Sampled::Host));
    }

    /// Waits until every sample handed over before this call has been written (or dropped, and counted).
    pub async fn flush(&self) -> Result<(), Error> {
        let (done, answer) = oneshot::channel();
        let closed = || Error::Closed { path: self.shared.path.clone() };
        if !self.shared.lanes.flush(done) {
            return Err(closed());
        }
        answer.await.map_err(|_| closed())
    }

    /// Runs `work` on a read-only connection, on a thread that may block.
    pub async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Reader) -> Result<T, Error> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let answer = tokio::task::spawn_blocking(move || {
            let kept = shared.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = match kept {
                Some(reader) => reader,
                None => Reader::open(&shared.path)?,
            };
            let answer = work(&reader)?;
            let mut readers = shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS {
                readers.push(reader);
            }
            Ok(answer)
        })
        .await;
        match answer {
            Ok(answer) => answer,
            Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            // The runtime is shutting down.
            Err(_) => Err(Error::Closed { path: self.shared.path.clone() }),
        }
    }

    /// A read-only connection of the caller's own.
    pub fn reader(&self) -> Result<Reader, Error> {
        Reader::open(&self.shared.path)
    }

    /// Counters since the journal was opened.
    pub fn stats(&self) -> Stats {
        Stats { dropped_samples: self.shared.lanes.dropped() }
    }

    /// What went wrong with the last write, of records or of samples; `None` where it went well.
    pub fn failing(&self) -> Option<Error> {
        self.shared.lanes.failing()
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Writes what waits, checkpoints and closes the file; later commits of any clone answer [`Error::Closed`].
    pub async fn close(self) {
        let shared = Arc::clone(&self.shared);
        drop(self);
        // A cancelled or refused blocking task leaves the thread to finish by itself; nothing is lost by that.
        drop(tokio::task::spawn_blocking(move || shared.close()).await);
    }
}

impl Shared {
    fn close(&self) {
        self.lanes.close();
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A writer that panicked has said so on stderr; its waiters have been answered with `Closed`.
            drop(thread.join());
        }
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}
