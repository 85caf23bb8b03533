//! One event, and what is left of it in the journal, the metrics, the log and the stream.

use super::*;
use crate::journal::examples::one_of_each;
use crate::journal::record::{Bytes, EngineWork, OperationKind, Outcome, Phase};
use crate::journal::{Options, Query};
use hotbunk_core::ids::Incarnation;
use hotbunk_core::tier::Tier;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

fn recorder(dir: &Path) -> Recorder {
    let options = Options { rest_after: Duration::from_secs(3600), ..Options::default() };
    let (journal, _) = Journal::open_with(dir.join("journal.db"), options).expect("opens");
    Recorder::new(journal, Metrics::new())
}

fn place() -> (TempDir, Recorder) {
    let dir = tempfile::tempdir().expect("temporary folder");
    let recorder = recorder(dir.path());
    (dir, recorder)
}

/// The log of this thread, from debug on.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn begin() -> Log {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .with_writer(move || Sink(Arc::clone(&sink)))
            .finish();
        Log { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    fn lines(&self) -> Vec<String> {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).lines().map(|line| line.trim().to_owned()).collect()
    }
}

fn page(recorder: &Recorder) -> String {
    recorder.metrics().render(clock::now())
}

fn has(recorder: &Recorder, line: &str) -> bool {
    page(recorder).lines().any(|each| each == line)
}

fn crashed() -> Incident {
    Incident::Crashed {
        engine: "A".into(),
        pid: 17,
        how: "killed by signal 9".into(),
        last_line: Some("CUDA error".into()),
    }
}

/// One of each.
fn incidents() -> Vec<Incident> {
    let engine = || "A".to_owned();
    let device = || "gpu0".to_owned();
    let gib = 1 << 30;
    let second = Duration::from_secs(1);
    vec![
        crashed(),
        Incident::StartFailed { engine: engine(), reason: "exit status 1".into(), last_line: None },
        Incident::Failed { engine: engine(), restarts: 5, within: Duration::from_secs(600) },
        Incident::RehearsalFailed { engine: engine(), reason: "the sleep freed half".into() },
        Incident::ProbeFailed { engine: engine(), reason: "no token within 5 s".into() },
        Incident::CanaryMismatch {
            engine: engine(),
            tier: Tier::Level2,
            detail: "expected [1, 2], got [1, 3]".into(),
        },
        Incident::Drifted { engine: engine(), expected: "awake".into(), found: "asleep".into() },
        Incident::Stalled { engine: engine(), in_flight: 3, silent_for: second * 30 },
        Incident::CallUnanswered { engine: engine(), call: "POST /sleep".into(), waited: second * 60 },
        Incident::SleepFailed { engine: engine(), tier: Tier::Level1, message: "500".into() },
        Incident::SleepIgnored { engine: engine(), tier: Tier::Level1 },
        Incident::SleepIncomplete {
            engine: engine(),
            tier: Tier::Level1,
            held_bytes: 16 * gib,
            allowed_bytes: gib,
        },
        Incident::WakeFailed { engine: engine(), message: "500".into() },
        Incident::WakeOom { engine: engine(), message: "CUDA out of memory".into() },
        Incident::ResidualGrown {
            engine: engine(),
            tier: Tier::Level1,
            before_bytes: 597 << 20,
            now_bytes: gib,
        },
        Incident::NoRoom { engine: engine(), device: device(), needed_bytes: 32 * gib, free_bytes: 20 * gib },
        Incident::NoHostMemory { engine: engine(), needed_bytes: 51 * gib, available_bytes: 20 * gib },
        Incident::ForeignMemory { device: device(), bytes: 2 * gib, pids: vec![77, 78] },
        Incident::NoEvidence { device: device(), reason: "GPU is lost".into() },
        Incident::DeviceRestored { device: device(), lost_for: second * 90 },
        Incident::PredecessorStopped { engine: engine(), pid: 12 },
        Incident::OrphansKilled { engine: engine(), pids: vec![18] },
        Incident::StopForced { engine: engine(), grace: second * 10 },
        Incident::WrongIdentity { engine: engine(), detail: "port 8001 belongs to pid 5".into() },
        Incident::LogFlooded { engine: engine(), lost_bytes: 5000 },
        Incident::CycleSkipped { plan: "nightly".into(), reason: "A is serving".into() },
        Incident::JournalSetAside { aside: "journal.db.damaged-x".into(), reason: "malformed".into() },
        Incident::JournalFailed { reason: "disk full".into() },
    ]
}

#[test]
fn every_incident_has_its_code_and_names_whom_it_concerns() {
    let incidents = incidents();
    let codes: Vec<_> = incidents.iter().map(Incident::code).collect();
    assert_eq!(codes, Incident::CODES, "one example each, in the order of the list");
    for incident in &incidents {
        let (code, sentence) = (incident.code(), incident.to_string());
        assert!(code.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{code}");
        for concerned in incident.engine().into_iter().chain(incident.device()) {
            assert!(sentence.contains(concerned), "{code}: {sentence}");
        }
        let record = Record::from(incident);
        assert_eq!((record.kind(), record.engine()), ("incident", incident.engine()));
    }
}

#[test]
fn sentences() {
    let facts = one_of_each().into_iter().filter(|record| record.kind() != "incident");
    let incidents = incidents();
    let records = facts.chain(incidents.iter().map(Record::from));
    let text: String =
        records.map(|record| format!("{:<5} {}\n", level_word(level(&record)), Sentence(&record))).collect();
    insta::assert_snapshot!("sentences", text);
}

#[tokio::test]
async fn row_metric_line_and_stream_say_the_same() {
    let (_dir, recorder) = place();
    let log = Log::begin();
    let mut stream = recorder.subscribe();
    let context = Context::operation(OperationId(7)).in_run("cycle-1");
    let ready = Record::Ready { engine: "A".into(), version: "0.31.0".into(), context_tokens: None };
    let last =
        recorder.record(&context, vec![ready.clone().into(), crashed().into()]).await.expect("records");
    assert_eq!(last, 2);

    let page_of_journal =
        recorder.journal().read(|reader| reader.entries(&Query::all())).await.expect("reads");
    let entries = page_of_journal.entries;
    assert_eq!((&entries[0].record, &entries[1].record), (&ready, &Record::from(&crashed())));
    assert!(entries.iter().all(|entry| entry.run.as_deref() == Some("cycle-1")));

    assert!(has(&recorder, "hotbunk_incidents_total{code=\"crashed\",engine=\"A\"} 1"));
    assert!(has(&recorder, "hotbunk_up{engine=\"A\"} 0"), "up when ready, down when crashed");
    assert!(has(&recorder, "hotbunk_journal_commit_seconds_count 1"));

    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("INFO engine A is ready"), "{}", lines[0]);
    let told = format!(
        "ERROR {} kind=\"incident\" engine=\"A\" operation=7 run=\"cycle-1\" code=\"crashed\"",
        crashed()
    );
    assert_eq!(lines[1], told);

    for entry in &entries {
        let published = stream.try_recv().expect("published");
        assert_eq!(published.seq, Some(entry.seq));
        let json: serde_json::Value = serde_json::from_str(&published.json).expect("is JSON");
        assert_eq!(json["record"], serde_json::to_value(&entry.record).expect("encodes"));
        assert_eq!(json["kind"], entry.record.kind());
        assert_eq!(json["message"], Sentence(&entry.record).to_string());
        // A listener that reads it from the journal instead sees the same.
        assert_eq!(Published::from_entry(entry).as_ref(), Some(published.as_ref()));
    }
}

#[tokio::test]
async fn without_the_journal_the_rest_still_happens_and_the_failure_is_said_once() {
    let (_dir, recorder) = place();
    recorder.journal().clone().close().await;
    let log = Log::begin();
    let mut stream = recorder.subscribe();
    for _ in 0..3 {
        let answer = recorder.record_one(&Context::none(), crashed()).await;
        assert!(matches!(answer, Err(Error::Closed { .. })));
    }
    assert!(has(&recorder, "hotbunk_incidents_total{code=\"crashed\",engine=\"A\"} 3"));
    assert!(has(&recorder, "hotbunk_incidents_total{code=\"journal_failed\",engine=\"\"} 1"));
    let lines = log.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("crashed")).count(), 3);
    assert_eq!(lines.iter().filter(|line| line.contains("journal_failed")).count(), 1);
    let first = stream.try_recv().expect("published");
    assert_eq!((first.seq, first.kind), (None, "incident"));
}

#[tokio::test]
async fn the_stream_has_the_order_of_the_journal() {
    let (_dir, recorder) = place();
    let mut stream = recorder.subscribe();
    let tasks: Vec<_> = (0..50u32)
        .map(|index| {
            let recorder = recorder.clone();
            tokio::spawn(async move {
                recorder
                    .record_one(&Context::none(), Record::CycleStepBegan { index })
                    .await
                    .expect("records")
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("ends");
    }
    let mut seqs = Vec::new();
    while let Ok(published) = stream.try_recv() {
        seqs.extend(published.seq);
    }
    assert_eq!(seqs, (1..=50).collect::<Vec<_>>());
}

fn at(milliseconds: u64) -> Moment {
    Moment(milliseconds * 1_000_000)
}

/// A handoff from A to B: 200 ms of drain, 70 ms of engine work, 100 ms to the first token besides the drain.
fn handoff() -> Vec<Record> {
    let step = |index, phase, engine: &str, began, ended| Record::StepEnded {
        index,
        phase,
        engine: engine.into(),
        began: at(began),
        ended: at(ended),
        outcome: Outcome::Ok,
        before: Bytes::default(),
        after: Bytes::default(),
    };
    let work = |began, ended| EngineWork {
        engine: "B".into(),
        work: "wake".into(),
        began: at(began),
        ended: at(ended),
    };
    vec![
        Record::OperationAccepted {
            operation: OperationKind::Handoff,
            engine: "B".into(),
            from: Some("A".into()),
            strategy: Some("auto".into()),
            order: None,
            leave: Some(Tier::Parked),
            drain: None,
            by: "operator".into(),
            plan: Vec::new(),
        },
        step(0, Phase::Drain, "A", 1010, 1210),
        step(1, Phase::WakeKv, "B", 1211, 1290),
        Record::EngineWork { work: Some(vec![work(1215, 1265), work(1270, 1290), work(1400, 1500)]) },
        Record::OperationEnded {
            outcome: Outcome::Ok,
            accepted: at(1000),
            first_token: Some(at(1300)),
            ended: at(1550),
        },
    ]
}

#[tokio::test]
async fn a_handoff_is_timed_without_its_drain_and_its_overhead_without_the_engines_work() {
    // Whether the engines' clock is read before the end or after it.
    for late in [false, true] {
        let (_dir, recorder) = place();
        let mut records = handoff();
        if late {
            records.swap(3, 4);
        }
        let events = records.into_iter().map(Event::from).collect();
        recorder.record(&Context::operation(OperationId(1)), events).await.expect("records");
        let labels = "{from=\"A\",to=\"B\",strategy=\"auto\"}";
        assert!(has(&recorder, &format!("hotbunk_handoff_seconds_sum{labels} 0.1")));
        assert!(has(&recorder, &format!("hotbunk_handoff_overhead_seconds_sum{labels} 0.03")));
        assert!(has(&recorder, &format!("hotbunk_handoff_overhead_seconds_count{labels} 1")));
        let phase = "{phase=\"drain\",from=\"A\",to=\"B\",strategy=\"auto\"}";
        assert!(has(&recorder, &format!("hotbunk_handoff_phase_seconds_sum{phase} 0.2")));
        assert!(has(&recorder, "hotbunk_operations_total{operation=\"handoff\",outcome=\"ok\"} 1"));
    }
}

#[tokio::test]
async fn a_failed_handoff_and_engines_without_a_clock_give_no_time() {
    let (_dir, recorder) = place();
    let mut failed = handoff();
    let outcome = Outcome::Failed { code: "wake_failed".into(), message: "…".into() };
    failed[4] = Record::OperationEnded { outcome, accepted: at(1000), first_token: None, ended: at(1550) };
    let mut silent = handoff();
    silent[3] = Record::EngineWork { work: None };
    for (operation, records) in [(1, failed), (2, silent)] {
        let events = records.into_iter().map(Event::from).collect();
        recorder.record(&Context::operation(OperationId(operation)), events).await.expect("records");
    }
    let page = page(&recorder);
    assert!(page.contains("hotbunk_handoff_seconds_count{from=\"A\",to=\"B\",strategy=\"auto\"} 1"));
    assert!(!page.contains("hotbunk_handoff_overhead_seconds"));
    assert!(page.contains("hotbunk_operations_total{operation=\"handoff\",outcome=\"failed\"} 1"));
}

fn transition(to: &str, generation: u64) -> Record {
    Record::Transition {
        engine: "A".into(),
        from: "x".into(),
        to: to.into(),
        generation,
        reason: "test".into(),
    }
}

#[tokio::test]
async fn tiers_restarts_and_generations() {
    let (_dir, recorder) = place();
    let spawned = || Record::Spawned {
        engine: "A".into(),
        incarnation: Incarnation { pid: 1, start_ticks: 1, boot_id: "b".into() },
    };
    let none = Context::none();
    recorder.record(&none, vec![spawned().into(), transition("awake", 1).into()]).await.expect("records");
    assert!(has(&recorder, "hotbunk_engine_restarts_total{engine=\"A\"} 0"));
    assert!(has(&recorder, "hotbunk_engine_tier{engine=\"A\",tier=\"awake\"} 1"));
    assert!(has(&recorder, "hotbunk_up{engine=\"A\"} 1"));
    recorder.record_one(&none, transition("level1", 1)).await.expect("records");
    assert!(has(&recorder, "hotbunk_engine_tier{engine=\"A\",tier=\"awake\"} 0"));
    assert!(has(&recorder, "hotbunk_engine_tier{engine=\"A\",tier=\"level1\"} 1"));
    recorder.record(&none, vec![transition("backoff", 1).into(), spawned().into()]).await.expect("records");
    assert!(has(&recorder, "hotbunk_engine_tier{engine=\"A\",tier=\"level1\"} 0"));
    assert!(has(&recorder, "hotbunk_up{engine=\"A\"} 0"));
    assert!(has(&recorder, "hotbunk_engine_restarts_total{engine=\"A\"} 1"));
    recorder.record_one(&none, transition("awake", 2)).await.expect("records");
    assert!(has(&recorder, "hotbunk_engine_generation{engine=\"A\"} 2"));
}

#[tokio::test]
async fn footprints_and_samples_set_the_bytes_of_a_tier_and_new_settings_forget_them() {
    let (_dir, recorder) = place();
    let none = Context::none();
    let configured = |print: &str| Record::Configured { engine: "A".into(), fingerprint: print.into() };
    let footprint = Record::Footprint {
        engine: "A".into(),
        tier: Tier::Level1,
        device_bytes: Some(600),
        host_bytes: None,
        pss_bytes: None,
    };
    let events = vec![configured("f1").into(), footprint.into(), transition("awake", 1).into()];
    recorder.record(&none, events).await.expect("records");
    let sample = |bytes: Option<u64>| Sample {
        at: clock::now(),
        wall: 1.0,
        device: "gpu0".into(),
        used: bytes,
        engines: vec![("A".into(), bytes), ("stranger".into(), Some(1))],
    };
    recorder.samples(vec![sample(Some(9000)), sample(None)]);
    assert!(has(&recorder, "hotbunk_engine_device_bytes{engine=\"A\",tier=\"awake\"} 9000"));
    assert!(has(&recorder, "hotbunk_engine_device_bytes{engine=\"A\",tier=\"level1\"} 600"));
    assert!(has(&recorder, "hotbunk_engine_residual_bytes{engine=\"A\"} 600"));
    assert!(has(&recorder, "hotbunk_samples_missed_total{device=\"gpu0\"} 1"));
    assert!(!page(&recorder).contains("hotbunk_device_used_bytes"), "the last sample is a missed one");
    assert!(!page(&recorder).contains("stranger"));
    recorder.record_one(&none, configured("f1")).await.expect("records");
    assert!(page(&recorder).contains("hotbunk_engine_residual_bytes"));
    recorder.record_one(&none, configured("f2")).await.expect("records");
    assert!(!page(&recorder).contains("hotbunk_engine_device_bytes"));
    recorder.host_samples(vec![HostSample {
        at: clock::now(),
        wall: 1.0,
        engine: "A".into(),
        rss: Some(5),
        pss: None,
    }]);
    assert!(has(&recorder, "hotbunk_engine_host_bytes{engine=\"A\"} 5"));
    recorder.record_one(&none, transition("stopped", 1)).await.expect("records");
    assert!(!page(&recorder).contains("hotbunk_engine_host_bytes"));
}

#[tokio::test]
async fn a_code_that_nobody_knows_is_counted_as_other() {
    let (_dir, recorder) = place();
    let strange = Record::Incident {
        code: "teleported".into(),
        engine: Some("A".into()),
        device: None,
        message: "…".into(),
    };
    recorder.record_one(&Context::none(), strange).await.expect("records");
    assert!(has(&recorder, "hotbunk_incidents_total{code=\"other\",engine=\"A\"} 1"));
}
