//! What the writer does at rest: retention and checkpoints.

use super::examples::one_of_each;
use super::record::{Outcome, Record};
use super::tests::{note, options, place, sample, step};
use super::writer::Writer;
use super::*;
use std::fs;

/// A writer without its thread: the test says when it does what.
fn writer(path: &Path, options: Options) -> Writer {
    let (connection, report) = schema::open(path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    Writer::new(connection, path.to_owned(), lanes, options, &report).expect("starts")
}

#[tokio::test]
async fn retention_deletes_by_age_whole_runs_and_never_a_number_twice() {
    let (_dir, path) = place();
    let settings = Options {
        keep_samples: Duration::from_secs(100),
        keep_entries: Duration::from_secs(1000),
        ..options()
    };
    let mut writer = writer(&path, settings);
    let run_started =
        one_of_each().into_iter().find(|record| record.kind() == "run_started").expect("exists");
    let at = |wall: f64, run: Option<&str>, record: Record| NewRecord { wall, ..note(run, Some(8), record) };
    writer
        .write_now(vec![
            at(1.0, None, step(0)),
            at(2.0, Some("old"), run_started.clone()),
            at(3.0, Some("old"), step(1)),
            at(4.0, Some("new"), run_started),
            at(2000.0, Some("new"), Record::RunEnded { outcome: Outcome::Ok }),
        ])
        .expect("writes");
    writer.sample_now(vec![sample(1850.0, Some(1)), sample(1950.0, Some(1))]);
    assert!(writer.retain(2000.0).expect("retains"));
    let reader = Reader::open(&path).expect("opens");
    let left: Vec<_> =
        reader.entries(&Query::all()).expect("reads").entries.iter().map(|entry| entry.seq).collect();
    assert_eq!(left, [4, 5], "the run that ended late stays whole");
    assert_eq!(reader.runs().expect("reads").len(), 1);
    assert_eq!(reader.samples(&Span::Wall { from: 0.0, to: 1e9 }, None).expect("reads").len(), 1);
    // Everything goes; the numbers stay.
    assert!(writer.retain(1e6).expect("retains"));
    assert!(reader.entries(&Query::all()).expect("reads").entries.is_empty());
    drop((reader, writer));
    let (_, report) = schema::open(&path).expect("opens");
    assert_eq!((report.last_seq, report.next_operation), (5, OperationId(9)));
}

#[tokio::test]
async fn retention_by_size_takes_samples_first_and_gives_pages_back() {
    let (_dir, path) = place();
    let settings = Options { max_bytes: 600 << 10, ..options() };
    let mut writer = writer(&path, settings);
    writer.write_now((0..1500).map(|index| note(None, None, step(index))).collect()).expect("writes");
    let now = wall_seconds();
    writer.sample_now((0..30_000).map(|n| sample(now - f64::from(n), Some(1))).collect());
    assert!(writer.retain(now).expect("retains"));
    let reader = Reader::open(&path).expect("opens");
    assert_eq!(reader.entries(&Query::all()).expect("reads").entries.len(), 1500);
    let samples = reader.samples(&Span::Wall { from: 0.0, to: now }, None).expect("reads");
    assert!((100..20_000).contains(&samples.len()), "{} samples left", samples.len());
    assert!(samples.last().is_some_and(|sample| sample.wall == now), "the latest stay");
    drop((reader, writer));
    let size = fs::metadata(&path).expect("exists").len();
    assert!(size < 2 << 20, "{size} bytes after the last connection's checkpoint");
}

#[tokio::test]
async fn after_a_checkpoint_the_wal_is_begun_anew_at_rest_and_not_by_the_next_commit() {
    let (_dir, path) = place();
    let mut writer = writer(&path, options());
    let wal = path.with_file_name("journal.db-wal");
    // The WAL's header counts its beginnings; SQLite syncs the disk at each.
    let beginnings = || {
        let bytes = fs::read(&wal).expect("reads");
        u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
    };
    writer.write_now((0..3000).map(|n| note(None, None, step(n))).collect()).expect("writes");
    let (size, begun) = (fs::metadata(&path).expect("exists").len(), beginnings());
    writer.rest();
    assert!(fs::metadata(&path).expect("exists").len() > size, "the main file has taken over the WAL");
    assert_eq!(beginnings(), begun + 1);
    writer.write_now(vec![note(None, None, step(0))]).expect("writes");
    assert_eq!(beginnings(), begun + 1, "the commit found it ready");
    // And there is nothing to do until there is something to copy.
    writer.rest();
    assert_eq!(beginnings(), begun + 1);
    let reader = Reader::open(&path).expect("opens");
    assert_eq!(reader.entries(&Query::all()).expect("reads").entries.len(), 3001);
}

#[test]
fn a_clock_set_forward_is_believed_after_a_day_and_one_set_back_at_once() {
    use super::retention::Believed;
    use std::time::Instant;
    const HOUR: u64 = 3600;
    let began = Instant::now();
    let at = |hours: u64| began + Duration::from_secs(hours * HOUR);
    let wall = |hours: u64| 1e9 + (hours * HOUR) as f64;
    let mut clock = Believed::new(wall(0), began);
    assert_eq!(clock.look(wall(1), at(1)), wall(1), "it goes as it should");
    // A year ahead, by mistake, and corrected five hours later.
    let year = 8766;
    assert_eq!(clock.look(wall(2 + year), at(2)), wall(2));
    assert_eq!(clock.look(wall(7 + year), at(7)), wall(7));
    assert_eq!(clock.look(wall(8), at(8)), wall(8));
    // A year ahead because it had been wrong until then: it stays so.
    assert_eq!(clock.look(wall(9 + year), at(9)), wall(9));
    assert_eq!(clock.look(wall(32 + year), at(32)), wall(32));
    assert_eq!(clock.look(wall(33 + year), at(33)), wall(33 + year));
    assert_eq!(clock.look(wall(34), at(34)), wall(34), "back: later is always safe");
}
