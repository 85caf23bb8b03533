//! The journal against a real file: order, restarts, queries, samples.

use super::examples::one_of_each;
use super::record::{Entry, HostSample, Outcome, Record, Sample};
use super::*;
use hotbunk_core::tier::Tier;
use proptest::prelude::*;
use rusqlite::Connection;
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

pub(super) fn sample(wall: f64, used: Option<u64>) -> Sample {
    let engines = vec![("A".to_owned(), Some(5)), ("B".to_owned(), None)];
    Sample { at: Moment(wall.abs() as u64 * 1000), wall, device: "gpu0".into(), used, engines }
}

pub(super) fn place() -> (TempDir, PathBuf) {
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
    // A known kind with a field of the future is read.
    raw.execute(add, (5, r#"{"kind":"cycle_step_began","index":7,"colour":"blue"}"#)).expect("inserts");
    drop(raw);
    let (journal, report) = open(&path);
    assert_eq!(report.last_seq, 5);
    journal.commit(vec![note(None, None, step(5))]).await.expect("commits");
    let page = journal.read(|reader| reader.entries(&Query::all())).await.expect("reads");
    let seqs: Vec<_> = page.entries.iter().map(|entry| entry.seq).collect();
    assert_eq!((seqs.as_slice(), page.skipped, page.last_seq), ([1, 2, 5, 6].as_slice(), 2, 6));
}

/// A query finds what a plain filter finds.
#[tokio::test]
async fn queries_against_brute_force() {
    let (_dir, path) = place();
    let (journal, _) = open(&path);
    let kinds = one_of_each();
    let news: Vec<_> = (0..200usize)
        .map(|n| {
            let run = [None, Some("x"), Some("y")][n % 3];
            let operation = (n % 4 != 0).then_some((n % 7) as u64);
            note(run, operation, kinds[n * 5 % kinds.len()].clone())
        })
        .collect();
    let entries = news.iter().cloned().zip(1..).map(|(new, seq)| {
        let NewRecord { at, wall, run, operation, record } = new;
        Entry { seq, at, wall, run, operation, record }
    });
    let entries: Vec<_> = entries.collect();
    journal.commit(news).await.expect("commits");
    let reader = journal.reader().expect("opens");
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(
        run in prop::option::of(prop::sample::select(vec!["x", "y", "z"])),
        operation in prop::option::of(0..8u64),
        since in prop::option::of(0..220u64),
        engine in prop::option::of(prop::sample::select(vec!["A", "B", "C"])),
        kinds in prop::collection::vec(prop::sample::select(vec!["probe", "incident", "transition", "none"]), 0..3),
        limit in prop::option::of((any::<bool>(), 0..30usize)),
    )| {
        let mut query = Query::all();
        let mut expected: Vec<_> = entries.iter().collect();
        if let Some(run) = run {
            query = query.run(run);
            expected.retain(|entry| entry.run.as_deref() == Some(run));
        }
        if let Some(operation) = operation {
            query = query.operation(OperationId(operation));
            expected.retain(|entry| entry.operation == Some(OperationId(operation)));
        }
        if let Some(seq) = since {
            query = query.since(seq);
            expected.retain(|entry| entry.seq > seq);
        }
        if let Some(engine) = engine {
            query = query.engine(engine);
            expected.retain(|entry| entry.record.engine() == Some(engine));
        }
        if !kinds.is_empty() {
            query = kinds.iter().fold(query, |query, kind| query.kind(*kind));
            expected.retain(|entry| kinds.contains(&entry.record.kind()));
        }
        match limit {
            Some((true, count)) => {
                query = query.first(count);
                expected.truncate(count);
            }
            Some((false, count)) => {
                query = query.last(count);
                expected = expected.split_off(expected.len().saturating_sub(count));
            }
            None => {}
        }
        let found = reader.entries(&query).expect("reads");
        prop_assert_eq!(found.entries.iter().collect::<Vec<_>>(), expected);
    });
}
