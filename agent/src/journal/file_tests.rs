//! Bad files, old files, and files that cannot be written.

use super::examples::one_of_each;
use super::tests::{note, open, options, place, sample, step};
use super::writer::Writer;
use super::*;
use rusqlite::Connection;
use std::fs;

/// A writer without its thread: the test says when it does what.
fn writer(path: &Path, options: Options) -> Writer {
    let (connection, report) = schema::open(path).expect("opens");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    Writer::new(connection, path.to_owned(), lanes, options, &report).expect("starts")
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
    assert!(matches!(error, Error::Newer { found: 99, supported: 2, .. }));
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

#[tokio::test]
async fn a_disk_without_room_is_an_error_and_not_the_end() {
    let (_dir, path) = place();
    let mut writer = writer(&path, options());
    let limit = |writer: &Writer, pages: i64| {
        writer.connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).expect("sets");
    };
    let pages: i64 =
        writer.connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("reads");
    limit(&writer, pages + 4);
    let many = |count: u32| (0..count).map(|n| note(None, None, step(n))).collect();
    let full = writer.write_now(many(2000)).expect_err("no room");
    assert!(matches!(full, Error::DiskFull { .. }), "{full:?}");
    assert!(full.to_string().contains("no room left"), "{full}");
    writer.sample_now((0..3000).map(|n| sample(f64::from(n), Some(1))).collect());
    assert_eq!(writer.lanes.dropped(), 3000, "samples that cannot be written are counted");
    // Nothing of the batch is there, and the numbers have no hole.
    assert_eq!(writer.write_now(many(1)).expect("fits"), 1);
    limit(&writer, 1_000_000);
    assert_eq!(writer.write_now(many(2000)).expect("fits"), 2001);
}

#[tokio::test]
async fn a_read_only_file_is_an_error_of_its_own() {
    let (_dir, path) = place();
    let mut writer = writer(&path, options());
    writer.connection.pragma_update(None, "query_only", true).expect("sets");
    let refused = writer.write_now(vec![note(None, None, step(0))]).expect_err("read-only");
    assert!(matches!(refused, Error::ReadOnly { .. }), "{refused:?}");
}

#[tokio::test]
async fn how_the_last_write_went_is_known() {
    let (_dir, path) = place();
    let mut writer = writer(&path, options());
    let fails = |writer: &Writer| writer.lanes.failing().map(|error| matches!(error, Error::ReadOnly { .. }));
    assert_eq!(fails(&writer), None);
    let read_only = |writer: &Writer, on: bool| {
        writer.connection.pragma_update(None, "query_only", on).expect("sets");
    };
    read_only(&writer, true);
    drop(writer.write_now(vec![note(None, None, step(0))]));
    assert_eq!(fails(&writer), Some(true));
    read_only(&writer, false);
    writer.sample_now(vec![sample(1.0, Some(1))]);
    assert_eq!(fails(&writer), None, "samples tell as well");
    read_only(&writer, true);
    writer.sample_now(vec![sample(2.0, Some(1))]);
    assert_eq!(fails(&writer), Some(true));
}

/// Engines may be serving: their agent comes up, and writes as soon as it can.
#[tokio::test]
async fn a_journal_that_cannot_be_written_yet_is_opened_all_the_same() {
    let (_dir, path) = place();
    open(&path).0.close().await;
    let (connection, report) = schema::open(&path).expect("opens");
    connection.pragma_update(None, "query_only", true).expect("sets");
    let lanes = Arc::new(Lanes::new(100, Duration::ZERO));
    let mut writer = Writer::new(connection, path, lanes, options(), &report).expect("opens");
    assert!(matches!(writer.lanes.failing(), Some(Error::ReadOnly { .. })));
    writer.connection.pragma_update(None, "query_only", false).expect("sets");
    assert_eq!(writer.write_now(vec![note(None, None, step(0))]).expect("writes"), report.last_seq + 1);
    assert!(writer.lanes.failing().is_none());
}
