//! The journal against a real file: order, restarts, retention, bad files, old files.

use super::examples::one_of_each;
use super::record::{HostSample, Outcome, Record, Sample};
use super::*;
use hotbunk_core::tier::Tier;
use rusqlite::Connection;
use std::fs;
use tempfile::TempDir;

pub(super) fn options() -> Options {
    // No work at rest by itself: tests say when.
    Options { rest_after: Duration::from_secs(3600), ..Options::default() }
}

pub(super) fn open(path: &Path) -> (Journal, OpenReport) {
    Journal::open_with(path, options()).expect("journal opens")
}

pub(super) fn note(run: Option<&str>, operation: Option<u64>, record: Record) -> NewRecord {
    NewRecord::new(run.map(str::to_owned), operation.map(OperationId), record)
}

pub(super) fn step(index: u32) -> Record {
    Record::CycleStepBegan { index }
}

fn sample(wall: f64, used: Option<u64>) -> Sample {
    let engines = vec![("A".to_owned(), Some(5)), ("B".to_owned(), None)];
    Sample { at: Moment(wall.abs() as u64 * 1000), wall, device: "gpu0".into(), used, engines }
}

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("journal.db");
    (dir, path)
}

#[test]
fn the_kind_of_every_record_is_its_word_in_json() {
    for record in one_of_each() {
        let json = serde_json::to_value(&record).expect("encodes");
        assert_eq!(json["kind"], record.kind());
        let engine = json.get("engine").and_then(|engine| engine.as_str());
        assert_eq!(engine, record.engine(), "{}", record.kind());
        assert_eq!(serde_json::from_value::<Record>(json).expect("decodes"), record);
    }
}

#[tokio::test]
async fn every_kind_comes_back_as_it_was_written() {
    let (_dir, path) = place();
    let (journal, report) = open(&path);
    assert!(report.created && report.last_seq == 0 && report.next_operation == OperationId(1));
    let records = one_of_each();
    let news: Vec<_> = records.iter().map(|record| note(Some("r1"), Some(9), record.clone())).collect();
    let count = records.len() as u64;
    assert_eq!(journal.commit(news.clone()).await.expect("commits"), count);
    let page = journal.read(|reader| reader.entries(&Query::all())).await.expect("reads");
    assert_eq!((page.skipped, page.last_seq), (0, count));
    for ((entry, new), seq) in page.entries.iter().zip(&news).zip(1..) {
        assert_eq!((entry.seq, entry.at, entry.wall), (seq, new.at, new.wall));
        assert_eq!((&entry.run, entry.operation, &entry.record), (&new.run, new.operation, &new.record));
    }
    journal.close().await;
}

#[tokio::test]
async fn queries_combine() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    for index in 0..10u32 {
        let run = if index % 2 == 0 { Some("even") } else { None };
        let ready = Record::Ready {
            engine: format!("E{}", index % 3),
            version: "0.31.0".into(),
            context_tokens: None,
        };
        journal
            .commit(vec![note(run, Some(u64::from(index / 4)), step(index)), note(run, None, ready)])
            .await
            .expect("commits");
    }
    let seqs = |query: Query| {
        let page = journal.reader().and_then(|reader| reader.entries(&query)).expect("reads");
        page.entries.iter().map(|entry| entry.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(Query::all().last(3)), [18, 19, 20]);
    assert_eq!(seqs(Query::all().since(4).first(2)), [5, 6]);
    assert_eq!(seqs(Query::all().operation(OperationId(2))), [17, 19]);
    assert_eq!(seqs(Query::all().run("even").kind("ready").engine("E0")), [2, 14]);
    assert_eq!(seqs(Query::all().kind("ready").kind("cycle_step_began").last(2)), [19, 20]);
    assert_eq!(seqs(Query::all().run("odd")), [0u64; 0]);
}

#[tokio::test]
async fn numbers_go_on_over_restarts() {
    let (_dir, path) = place();
    let (journal, report) = open(&path);
    assert_eq!(report.stopped_in_order, None);
    let started = Record::AgentStarted { version: "0.1.0".into(), pid: 1, boot_id: report.boot_id.clone() };
    journal.commit(vec![note(None, Some(41), started.clone())]).await.expect("commits");
    journal.close().await;

    let (journal, report) = open(&path);
    assert!(!report.created);
    assert_eq!((report.last_seq, report.next_operation), (1, OperationId(42)));
    assert_eq!(report.stopped_in_order, Some(false));
    assert_eq!(report.last_boot_id.as_ref(), Some(&report.boot_id));
    let stopped = Record::AgentStopped { reason: "SIGTERM".into() };
    assert_eq!(journal.commit(vec![note(None, None, stopped)]).await.expect("commits"), 2);
    drop(journal);

    let (journal, report) = open(&path);
    assert_eq!((report.last_seq, report.stopped_in_order), (2, Some(true)));
    assert_eq!(journal.reader().and_then(|reader| reader.next_operation()).expect("reads"), OperationId(42));
}

#[tokio::test]
async fn concurrent_commits_are_whole_and_each_learns_its_own_position() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    let tasks: Vec<_> = (0..40u64)
        .map(|task| {
            let journal = journal.clone();
            tokio::spawn(async move {
                let news = (0..3).map(|index| note(None, Some(task), step(index))).collect();
                (task, journal.commit(news).await.expect("commits"))
            })
        })
        .collect();
    for task in tasks {
        let (task, last) = task.await.expect("task ends");
        let page =
            journal.read(move |reader| reader.entries(&Query::all().operation(OperationId(task)))).await;
        let seqs: Vec<_> = page.expect("reads").entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [last - 2, last - 1, last]);
    }
}

#[tokio::test]
async fn runs_and_footprints_are_kept_in_step() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    let run_started =
        one_of_each().into_iter().find(|record| record.kind() == "run_started").expect("exists");
    let footprint = |bytes| Record::Footprint {
        engine: "A".into(),
        tier: Tier::Level1,
        device_bytes: Some(bytes),
        host_bytes: None,
        pss_bytes: None,
    };
    let configured = |print: &str| Record::Configured { engine: "A".into(), fingerprint: print.into() };
    journal.commit(vec![note(None, None, footprint(1))]).await.expect("commits");
    journal
        .commit(vec![note(Some("r1"), None, run_started), note(None, None, configured("f1"))])
        .await
        .expect("commits");
    journal
        .commit(vec![note(None, None, footprint(2)), note(None, None, footprint(3))])
        .await
        .expect("commits");
    let failed = Outcome::Failed { code: "wake_failed".into(), message: "…".into() };
    let ended = Record::RunEnded { outcome: failed };
    journal
        .commit(vec![
            note(Some("r1"), None, ended),
            note(None, None, configured("f2")),
            note(None, None, footprint(4)),
        ])
        .await
        .expect("commits");

    let reader = journal.reader().expect("opens");
    let runs = reader.runs().expect("reads");
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].run.as_str(), runs[0].plan.as_str(), runs[0].first_seq), ("r1", "reference", 2));
    assert_eq!(runs[0].outcome.as_deref(), Some("wake_failed"));
    assert!(runs[0].ended.is_some_and(|ended| ended >= runs[0].started));
    let prints: Vec<_> = reader
        .footprints()
        .expect("reads")
        .into_iter()
        .map(|row| (row.fingerprint, row.device_bytes, row.host_bytes))
        .collect();
    let print = |text: &str| Some(text.to_owned());
    assert_eq!(prints, [(None, Some(1), None), (print("f1"), Some(3), None), (print("f2"), Some(4), None)]);
}

#[tokio::test]
async fn an_operation_without_an_end_is_found() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    let of = |kind: &str| one_of_each().into_iter().find(|record| record.kind() == kind).expect("exists");
    for operation in 1..=3 {
        journal.commit(vec![note(None, Some(operation), of("operation_accepted"))]).await.expect("commits");
    }
    journal.commit(vec![note(None, Some(2), of("operation_ended"))]).await.expect("commits");
    let page = journal.read(Reader::unfinished_operations).await.expect("reads");
    let operations: Vec<_> = page.entries.iter().filter_map(|entry| entry.operation).collect();
    assert_eq!(operations, [OperationId(1), OperationId(3)]);
}

#[tokio::test]
async fn samples_come_back_by_time_and_unknown_stays_unknown() {
    let (_dir, path) = place();
    let (journal, report) = open(&path);
    journal.samples((0..200).map(|n| sample(f64::from(n), (n % 10 != 0).then_some(7))));
    journal.host_samples([HostSample {
        at: Moment(9),
        wall: 3.0,
        engine: "A".into(),
        rss: Some(11),
        pss: None,
    }]);
    journal.flush().await.expect("flushes");
    let reader = journal.reader().expect("opens");
    let found = reader.samples(&Span::Wall { from: 9.5, to: 12.0 }, Some("gpu0")).expect("reads");
    assert_eq!(found, [sample(10.0, None), sample(11.0, Some(7)), sample(12.0, Some(7))]);
    assert!(reader.samples(&Span::Wall { from: 0.0, to: 1e9 }, Some("gpu1")).expect("reads").is_empty());
    let span = |boot_id: &str| Span::Monotonic {
        boot_id: boot_id.to_owned(),
        from: Moment(198_000),
        to: Moment(400_000),
    };
    assert_eq!(reader.samples(&span(&report.boot_id), None).expect("reads").len(), 2);
    assert!(reader.samples(&span("another boot"), None).expect("reads").is_empty());
    let host = reader.host_samples(&Span::Wall { from: 3.0, to: 3.0 }, None).expect("reads");
    assert_eq!((host.len(), host[0].rss, host[0].pss), (1, Some(11), None));
    assert_eq!(journal.stats(), Stats { dropped_samples: 0 });
}

#[tokio::test]
async fn samples_beyond_the_lane_are_dropped_and_counted() {
    let (_dir, path) = place();
    let settings = Options { sample_lane: 50, ..options() };
    let (journal, _) = Journal::open_with(&path, settings).expect("opens");
    // In one call, so that the writer cannot take any in between.
    journal.samples((0..80).map(|n| sample(f64::from(n), Some(1))));
    journal.flush().await.expect("flushes");
    assert_eq!(journal.stats(), Stats { dropped_samples: 30 });
    let found = journal.reader().expect("opens").samples(&Span::Wall { from: 0.0, to: 99.0 }, None);
    assert_eq!(found.expect("reads").len(), 50);
}

#[tokio::test]
async fn what_was_handed_over_before_the_close_is_written_and_later_calls_are_refused() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    let other = journal.clone();
    journal.samples([sample(1.0, Some(1))]);
    journal.close().await;
    assert!(matches!(other.commit(vec![note(None, None, step(0))]).await, Err(Error::Closed { .. })));
    assert!(matches!(other.flush().await, Err(Error::Closed { .. })));
    other.samples([sample(2.0, Some(1))]);
    assert_eq!(other.stats().dropped_samples, 1);
    let reader = Reader::open(&path).expect("opens");
    assert_eq!(reader.samples(&Span::Wall { from: 0.0, to: 9.0 }, None).expect("reads").len(), 1);
}

#[tokio::test]
async fn kinds_of_the_future_are_skipped_and_counted() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    journal.commit(vec![note(None, None, step(1)), note(None, None, step(2))]).await.expect("commits");
    journal.close().await;
    let raw = Connection::open(&path).expect("opens");
    let add =
        "INSERT INTO entries (seq, at_ns, wall, boot, kind, body) VALUES (?1, 1, 1.0, 1, 'teleported', ?2)";
    raw.execute(add, (3, r#"{"kind":"teleported","engine":"A"}"#)).expect("inserts");
    raw.execute(add, (4, "not json")).expect("inserts");
    drop(raw);
    let (journal, report) = open(&path);
    assert_eq!(report.last_seq, 4);
    journal.commit(vec![note(None, None, step(5))]).await.expect("commits");
    let page = journal.read(|reader| reader.entries(&Query::all())).await.expect("reads");
    let seqs: Vec<_> = page.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!((seqs.as_slice(), page.skipped, page.last_seq), ([1, 2, 5].as_slice(), 2, 5));
}

#[tokio::test]
async fn retention_deletes_by_age_whole_runs_and_never_a_number_twice() {
    let (_dir, path) = place();
    let settings = Options {
        keep_samples: Duration::from_secs(100),
        keep_entries: Duration::from_secs(1000),
        ..options()
    };
    let (connection, report) = schema::open(&path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer =
        writer::Writer::new(connection, path.clone(), Arc::clone(&lanes), settings, &report).expect("starts");
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
    let (connection, report) = schema::open(&path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer = writer::Writer::new(connection, path.clone(), lanes, settings, &report).expect("starts");
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
async fn a_damaged_file_is_set_aside_and_said() {
    let (dir, path) = place();
    let (journal, _) = open(&path);
    journal.commit((0..500).map(|index| note(None, None, step(index))).collect()).await.expect("commits");
    journal.close().await;
    let mut bytes = fs::read(&path).expect("reads");
    for byte in &mut bytes[8192..16_384] {
        *byte = 0xa5;
    }
    for damaged in [bytes, b"this was never a database, but it is long enough to look at".to_vec()] {
        fs::write(&path, &damaged).expect("writes");
        let (journal, report) = open(&path);
        let (aside, reason) = report.set_aside.expect("set aside");
        assert!(report.created && !reason.is_empty());
        assert!(
            aside.file_name().is_some_and(|name| name.to_string_lossy().starts_with("journal.db.damaged-"))
        );
        assert_eq!(fs::read(&aside).expect("kept"), damaged);
        assert_eq!(journal.commit(vec![note(None, None, step(0))]).await.expect("commits"), 1);
        journal.close().await;
    }
    let asides = fs::read_dir(dir.path()).expect("lists").filter_map(Result::ok);
    let count = asides.filter(|file| file.file_name().to_string_lossy().contains(".damaged-")).count();
    assert!(count >= 2, "the second does not overwrite the first");
}

#[test]
fn a_newer_file_and_a_foreign_one_are_refused_untouched() {
    let (_dir, path) = place();
    drop(schema::open(&path).expect("opens"));
    let raw = Connection::open(&path).expect("opens");
    raw.pragma_update(None, "user_version", 99).expect("updates");
    drop(raw);
    let error = Journal::open(&path).expect_err("refused");
    assert!(matches!(error, Error::Newer { found: 99, supported: 1, .. }));
    assert!(error.to_string().contains("newer Hotbunk"), "{error}");

    let foreign = path.with_file_name("other.db");
    let raw = Connection::open(&foreign).expect("opens");
    raw.execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1);").expect("writes");
    drop(raw);
    let before = fs::read(&foreign).expect("reads");
    assert!(matches!(Journal::open(&foreign), Err(Error::Foreign { .. })));
    assert_eq!(fs::read(&foreign).expect("reads"), before);
}

#[test]
fn a_folder_that_is_not_there_is_said() {
    let (dir, _) = place();
    let error = Journal::open(dir.path().join("no/such/journal.db")).expect_err("refused");
    assert!(matches!(error, Error::Lock { .. }), "{error:?}");
    assert!(error.to_string().contains("no/such/journal.db.lock"), "{error}");
}

#[tokio::test]
async fn a_second_agent_is_kept_away_until_the_first_has_closed() {
    let (_dir, path) = place();
    let (first, _) = open(&path);
    let refused = Journal::open_with(&path, options()).expect_err("in use");
    assert!(matches!(refused, Error::InUse { .. }), "{refused:?}");
    let clone = first.clone();
    first.close().await;
    open(&path).0.commit(vec![note(None, None, step(0))]).await.expect("commits");
    drop(clone);
}

#[test]
fn migrations_run_once_each_and_a_failing_one_leaves_the_file_as_it_was() {
    let (_dir, path) = place();
    let first = schema::MIGRATIONS[0];
    let second = "ALTER TABLE entries ADD COLUMN device TEXT;";
    let (raw, from) = schema::try_open(&path, &[first]).expect("opens");
    assert_eq!(from, 0);
    raw.execute_batch(
        "INSERT INTO boots VALUES (1, 'b');
         INSERT INTO entries (seq, at_ns, wall, boot, kind, body) VALUES (1, 1, 1.0, 1, 'x', '{}')",
    )
    .expect("writes");
    drop(raw);
    let broken = schema::try_open(&path, &[first, "ALTER TABLE entries ADD COLUMN device TEXT; NONSENSE;"]);
    assert!(matches!(broken, Err(Error::Migrate { from: 1, to: 2, .. })), "{:?}", broken.err());
    let (raw, from) = schema::try_open(&path, &[first, second]).expect("opens");
    assert_eq!(from, 1);
    let kept: (i64, Option<String>) = raw
        .query_row("SELECT seq, device FROM entries", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("reads");
    assert_eq!(kept, (1, None));
    drop(raw);
    let (_, from) = schema::try_open(&path, &[first, second]).expect("opens");
    assert_eq!(from, 2);
}

#[tokio::test]
async fn a_disk_without_room_is_an_error_and_not_the_end() {
    let (_dir, path) = place();
    let (connection, report) = schema::open(&path).expect("opens");
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("reads");
    connection.pragma_update_and_check(None, "max_page_count", pages + 4, |_| Ok(())).expect("sets");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer =
        writer::Writer::new(connection, path.clone(), lanes, options(), &report).expect("starts");
    let many = |from: u32, count: u32| (from..from + count).map(|n| note(None, None, step(n))).collect();
    let full = writer.write_now(many(0, 2000)).expect_err("no room");
    assert!(matches!(full, Error::DiskFull { .. }), "{full:?}");
    assert!(full.to_string().contains("no room left"), "{full}");
    // Nothing of the batch is there, and the numbers have no hole.
    assert_eq!(writer.write_now(many(0, 1)).expect("fits"), 1);
}

#[tokio::test]
async fn a_read_only_file_is_an_error_of_its_own() {
    let (_dir, path) = place();
    let (connection, report) = schema::open(&path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer =
        writer::Writer::new(connection, path.clone(), lanes, options(), &report).expect("starts");
    writer.connection.pragma_update(None, "query_only", true).expect("sets");
    let refused = writer.write_now(vec![note(None, None, step(0))]).expect_err("read-only");
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused:?}");
}

#[tokio::test]
async fn work_at_rest_shrinks_the_wal_and_loses_nothing() {
    let (_dir, path) = place();
    let (connection, report) = schema::open(&path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer =
        writer::Writer::new(connection, path.clone(), lanes, options(), &report).expect("starts");
    writer.write_now((0..3000).map(|n| note(None, None, step(n))).collect()).expect("writes");
    let before = fs::metadata(&path).expect("exists").len();
    writer.rest();
    let after = fs::metadata(&path).expect("exists").len();
    assert!(after > before, "the main file has taken over what was in the WAL: {before} → {after}");
    let reader = Reader::open(&path).expect("opens");
    assert_eq!(reader.entries(&Query::all()).expect("reads").entries.len(), 3000);
}

#[test]
fn a_journal_of_the_first_schema_still_loads() {
    let (_dir, path) = place();
    let dump = include_str!("../../../tests/compat/journal-v1.sql");
    let raw = Connection::open(&path).expect("opens");
    raw.execute_batch(dump).expect("loads");
    drop(raw);
    let (journal, report) = open(&path);
    assert_eq!((report.set_aside, report.next_operation), (None, OperationId(10)));
    let reader = journal.reader().expect("opens");
    let page = reader.entries(&Query::all()).expect("reads");
    let records: Vec<_> = page.entries.into_iter().map(|entry| entry.record).collect();
    assert_eq!(page.skipped, 1, "the kind of the future that the dump holds");
    let known = one_of_each();
    assert_eq!(records.len(), 21);
    for record in records {
        assert!(known.contains(&record), "{record:?} has changed its meaning");
    }
    assert_eq!(reader.runs().expect("reads").len(), 1);
    assert_eq!(reader.footprints().expect("reads").len(), 1);
    assert_eq!(reader.samples(&Span::Wall { from: 0.0, to: 1e12 }, None).expect("reads").len(), 1);
    assert_eq!(reader.host_samples(&Span::Wall { from: 0.0, to: 1e12 }, None).expect("reads").len(), 1);
}
