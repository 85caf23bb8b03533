//! The journal's files, damaged: it opens, whatever lies there, or says why it will not.
//!
//! An input is a list of wounds that are inflicted on a sound pair of files (a main file with an entry of every kind,
//! and a WAL with some more), so that the fuzzer need not invent SQLite's format. The first byte chooses; see
//! [`Wound`].

use hotbunk_agent::journal::record::Record;
use hotbunk_agent::journal::{Error, Journal, NewRecord, Options, Query, Span};
use hotbunk_agent::report;
use rusqlite::Connection;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Small enough that a checkpoint or a round of retention never runs by itself.
const NEVER: Duration = Duration::from_secs(3600);

/// A sound journal.
struct Sound {
    main: Vec<u8>,
    wal: Vec<u8>,
}

/// What is done to it.
enum Wound<'a> {
    /// The main file is replaced, and there is no WAL.
    Main(&'a [u8]),
    /// The WAL is replaced.
    Wal(&'a [u8]),
    /// The WAL ends here.
    CutWal(usize),
    /// The main file ends here.
    CutMain(usize),
    /// Bytes of one of the files are overwritten, from a place on.
    Over { wal: bool, at: usize, bytes: &'a [u8] },
}

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
    })
}

fn options() -> Options {
    Options { rest_after: NEVER, retain_every: NEVER, ..Options::default() }
}

fn record(n: u32) -> NewRecord {
    NewRecord::new(None, None, Record::CycleStepBegan { index: n })
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("journal.db");
        let old = Connection::open(&path).expect("opens");
        old.execute_batch(include_str!("../../compat/journal-v1.sql")).expect("loads");
        drop(old);
        runtime().block_on(async {
            let (journal, _) = Journal::open_with(&path, options()).expect("opens");
            journal.close().await;
            let (journal, _) = Journal::open_with(&path, options()).expect("opens");
            for n in 0..8 {
                journal.commit(vec![record(n), record(n)]).await.expect("commits");
            }
            // Read while it is open: a journal that is closed has no WAL.
            let read = |name: &str| std::fs::read(dir.path().join(name)).expect("reads");
            let sound = Sound { main: read("journal.db"), wal: read("journal.db-wal") };
            journal.close().await;
            sound
        })
    })
}

/// Reads the wounds: a kind, a place in three bytes, a length, and so many bytes.
fn wounds(bytes: &[u8]) -> Vec<Wound<'_>> {
    let mut wounds = Vec::new();
    let mut rest = bytes;
    while let Some((&kind, tail)) = rest.split_first() {
        match kind % 8 {
            0 => return vec![Wound::Main(tail)],
            1 => return vec![Wound::Wal(tail)],
            kind => {
                let Some((place, tail)) = tail.split_first_chunk::<3>() else { break };
                let at = place.iter().fold(0, |at, byte| at << 8 | usize::from(*byte));
                if kind < 4 {
                    wounds.push(if kind == 2 { Wound::CutWal(at) } else { Wound::CutMain(at) });
                    rest = tail;
                    continue;
                }
                let Some((&length, tail)) = tail.split_first() else { break };
                let (bytes, tail) = tail.split_at(usize::from(length).min(tail.len()));
                wounds.push(Wound::Over { wal: kind % 2 == 0, at, bytes });
                rest = tail;
            }
        }
    }
    wounds
}

/// Inflicts the wounds, opens what is left, reads all of it, writes to it, and opens it once more.
pub(crate) fn run(bytes: &[u8]) {
    let sound = sound();
    let (mut main, mut wal) = (sound.main.clone(), Some(sound.wal.clone()));
    let torn_only = matches!(wounds(bytes).as_slice(), [Wound::CutWal(_)]);
    for wound in wounds(bytes) {
        match wound {
            Wound::Main(whole) => (main, wal) = (whole.to_vec(), None),
            Wound::Wal(whole) => wal = Some(whole.to_vec()),
            Wound::CutWal(at) => wal.iter_mut().for_each(|wal| wal.truncate(at % (sound.wal.len() + 1))),
            Wound::CutMain(at) => main.truncate(at % (sound.main.len() + 1)),
            Wound::Over { wal: true, at, bytes } => wal.iter_mut().for_each(|wal| overwrite(wal, at, bytes)),
            Wound::Over { wal: false, at, bytes } => overwrite(&mut main, at, bytes),
        }
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("journal.db");
    std::fs::write(&path, &main).expect("writes");
    if let Some(wal) = &wal {
        std::fs::write(dir.path().join("journal.db-wal"), wal).expect("writes");
    }
    runtime().block_on(opened(&path, torn_only));
}

fn overwrite(file: &mut [u8], at: usize, bytes: &[u8]) {
    if file.is_empty() {
        return;
    }
    let start = at % file.len();
    let end = (start + bytes.len()).min(file.len());
    file[start..end].copy_from_slice(&bytes[..end - start]);
}

async fn opened(path: &Path, torn_only: bool) {
    let (journal, report) = match Journal::open_with(path, options()) {
        Ok(opened) => opened,
        // Somebody else's file, or a later Hotbunk's: never touched. So is one that cannot be brought up to date.
        Err(Error::Foreign { .. } | Error::Newer { .. } | Error::Migrate { .. }) if !torn_only => return,
        Err(error) => panic!("the journal stops the agent: {error}"),
    };
    if torn_only {
        assert_eq!(report.set_aside, None, "a torn WAL is no damage");
    }
    if let Some((aside, reason)) = &report.set_aside {
        assert!(aside.exists() && !reason.is_empty());
    }
    let before = read(&journal).await;
    // Damage that opening could not see may show now: then the commit fails and says so, and the next start sets the
    // file aside. It never takes a record and loses it.
    let committed = journal.commit(vec![record(99)]).await;
    if let (Ok(seq), Some(before)) = (&committed, before) {
        assert_eq!(*seq, report.last_seq + 1);
        let after = read(&journal).await;
        assert!(after.is_none_or(|after| after > before), "a record that was taken is not there");
    }
    journal.close().await;
    let (journal, again) = Journal::open_with(path, options()).expect("opens after it was open");
    if let Ok(seq) = committed
        && again.set_aside.is_none()
    {
        assert!(again.last_seq >= seq, "numbers went back from {seq} to {}", again.last_seq);
    }
    journal.close().await;
}

/// Everything that can be read, as far as it can; how many entries there are.
async fn read(journal: &Journal) -> Option<usize> {
    let read = |reader: &hotbunk_agent::journal::Reader| {
        let page = reader.entries(&Query::all());
        drop(reader.unfinished_operations());
        drop(reader.footprints());
        let all = Span::Wall { from: f64::MIN, to: f64::MAX };
        let samples = reader.samples(&all, None).unwrap_or_default();
        let host = reader.host_samples(&all, None).unwrap_or_default();
        for run in reader.runs().unwrap_or_default() {
            if let Ok(page) = reader.entries(&Query::all().run(run.run)) {
                drop(report::switch_report(&page.entries, &samples, &host).map(|made| report::table(&made)));
            }
        }
        Ok(page.ok().map(|page| page.entries.len()))
    };
    journal.read(read).await.ok().flatten()
}
