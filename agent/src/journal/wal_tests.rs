//! A crash cuts the WAL anywhere: what is left is a prefix of what was committed, and at least what was checkpointed.

use super::tests::{note, open, options, step};
use super::*;
use proptest::prelude::*;
use std::fs;
use std::sync::OnceLock;

const CHECKPOINTED: usize = 8;
const COMMITS: usize = 24;

/// A main file with the first commits checkpointed into it, and a WAL with the rest.
struct Crashed {
    main: Vec<u8>,
    wal: Vec<u8>,
}

fn crashed() -> &'static Crashed {
    static CRASHED: OnceLock<Crashed> = OnceLock::new();
    CRASHED.get_or_init(|| {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("journal.db");
        let (connection, report) = schema::open(&path).expect("opens");
        let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
        let mut writer =
            writer::Writer::new(connection, path.clone(), lanes, options(), &report).expect("starts");
        let mut commit = |from: usize, to: usize| {
            for n in from..to {
                // Two records each: a commit is there whole or not at all.
                let news = (0..2).map(|_| note(None, Some(n as u64), step(n as u32))).collect();
                writer.write_now(news).expect("writes");
            }
            writer
                .connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
                .expect("checkpoints");
        };
        commit(0, CHECKPOINTED);
        // The next write starts the WAL anew; it is copied before anything more is checkpointed.
        for n in CHECKPOINTED..COMMITS {
            let news = (0..2).map(|_| note(None, Some(n as u64), step(n as u32))).collect();
            writer.write_now(news).expect("writes");
        }
        let main = fs::read(&path).expect("reads");
        let wal = fs::read(path.with_file_name("journal.db-wal")).expect("reads");
        Crashed { main, wal }
    })
}

/// Opens what is left and returns how many commits are there, having checked that they are a prefix.
fn recovered(main: &[u8], wal: &[u8]) -> usize {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("journal.db");
    fs::write(&path, main).expect("writes");
    fs::write(path.with_file_name("journal.db-wal"), wal).expect("writes");
    let (journal, report) = open(&path);
    assert_eq!(report.set_aside, None, "a torn WAL is not a damaged file");
    let page = journal.reader().and_then(|reader| reader.entries(&Query::all())).expect("reads");
    assert_eq!(page.skipped, 0);
    for (entry, n) in page.entries.iter().zip(0u64..) {
        assert_eq!((entry.seq, entry.operation), (n + 1, Some(OperationId(n / 2))), "no hole");
    }
    assert_eq!(page.entries.len() % 2, 0, "a commit is whole");
    assert_eq!(report.last_seq, page.entries.len() as u64);
    page.entries.len() / 2
}

#[test]
fn every_frame_boundary_and_its_neighbours() {
    let Crashed { main, wal } = crashed();
    assert_eq!(recovered(main, wal), COMMITS, "uncut, everything is there");
    assert!(recovered(main, &[]) >= CHECKPOINTED);
    let frame = 24 + 4096;
    let mut before = CHECKPOINTED;
    let cuts = (0..).map(|n| 32 + n * frame).take_while(|cut| *cut <= wal.len());
    for cut in cuts.flat_map(|cut| [cut - 1, cut, cut + 1, cut + 24]).filter(|cut| *cut <= wal.len()) {
        let count = recovered(main, &wal[..cut]);
        assert!((before..=COMMITS).contains(&count), "{count} after {before} at {cut}");
        before = count;
    }
}

/// Cuts at so many bytes from each other, which is no part of a frame's length; `HOTBUNK_EVERY_BYTE=1` cuts at each.
fn stride() -> usize {
    if std::env::var_os("HOTBUNK_EVERY_BYTE").is_some() { 1 } else { 509 }
}

/// Not only where frames begin: anywhere in the WAL, its header included.
#[test]
fn every_byte() {
    let Crashed { main, wal } = crashed();
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("journal.db");
    let mut before = CHECKPOINTED;
    for cut in (0..=wal.len()).step_by(stride()) {
        fs::write(&path, main).expect("writes");
        fs::write(path.with_file_name("journal.db-wal"), &wal[..cut]).expect("writes");
        let (connection, report) = schema::open(&path).expect("opens");
        assert_eq!(report.set_aside, None, "cut at {cut}: a torn WAL is not a damaged file");
        let count: i64 =
            connection.query_row("SELECT count(*) FROM entries", [], |row| row.get(0)).expect("reads");
        let count = usize::try_from(count).expect("a count");
        assert!(count.is_multiple_of(2) && (before..=COMMITS).contains(&(count / 2)), "{count} at {cut}");
        assert_eq!(report.last_seq, count as u64, "no hole");
        before = count / 2;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anywhere(place in 0.0..1.0f64) {
        let Crashed { main, wal } = crashed();
        let cut = (place * wal.len() as f64) as usize;
        let count = recovered(main, &wal[..cut]);
        prop_assert!((CHECKPOINTED..=COMMITS).contains(&count));
    }

    #[test]
    fn with_garbage_after_the_cut(place in 0.0..1.0f64, garbage in any::<u8>()) {
        let Crashed { main, wal } = crashed();
        let cut = (place * wal.len() as f64) as usize;
        let mut torn = wal.clone();
        torn[cut..].iter_mut().for_each(|byte| *byte ^= garbage | 1);
        let count = recovered(main, &torn);
        prop_assert!((CHECKPOINTED..=COMMITS).contains(&count));
    }
}
