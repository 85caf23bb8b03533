//! One event, and what is left of it in the journal, the metrics, the log and the stream.

use super::*;
use crate::journal::examples::one_of_each;
use crate::journal::record::{Bytes, EngineWork, OperationKind, Outcome, Phase};
use crate::journal::{Options, Query};
use futures_util::{FutureExt as _, StreamExt as _};
use hotbunk_core::effect::Incident as Core;
use hotbunk_core::ids::Incarnation;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

fn recorder(dir: &Path) -> Recorder {
    let options = Options { rest_after: Duration::from_secs(3600), ..Options::default() };
    let (journal, _) = Journal::open_with(dir.join("journal.db"), options).expect("opens");
    Recorder::new(journal, Metrics::new(), Arc::new(EventLog::new(256)))
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

/// What a follower of the control API's stream has been sent so far.
fn streamed(recorder: &Recorder) -> Vec<Happening> {
    let mut stream = std::pin::pin!(recorder.events().subscribe(Some(0)).into_stream());
    let mut all = Vec::new();
    while let Some(Some(event)) = stream.next().now_or_never() {
        all.push(event.what.clone());
    }
    all
}

fn code_of(what: &Happening) -> String {
    match what {
        Happening::Incident { code, .. } => code.clone(),
        other => panic!("{other:?}"),
    }
}

/// As the switcher records it.
fn crashed() -> Record {
    Record::Incident {
        code: Core::Crashed.code().to_owned(),
        engine: Some("A".into()),
        device: None,
        message: "A: killed by SIGKILL; its output ends: CUDA error".into(),
    }
}

/// One of each of the shell's.
fn incidents() -> Vec<Incident> {
    let engine = || "A".to_owned();
    vec![
        Incident::PredecessorStopped { engine: engine(), pid: 12 },
        Incident::LeftAlone {
            record: "/state/shims/A-1/shim.json".into(),
            pids: vec![7, 8],
            why: "nothing proves that it is still the engine's".into(),
        },
        Incident::SettingsChanged { engine: engine(), was: "f1".into() },
        Incident::OrphansKilled { engine: engine(), processes: 2 },
        Incident::StopForced { engine: engine(), grace: Duration::from_secs(10) },
        Incident::LogFlooded { engine: engine(), lost_bytes: 5000 },
        Incident::LogUnwritable { engine: engine(), lost_bytes: 5000 },
        Incident::ContainerClientLost { engine: engine() },
        Incident::CycleSkipped { plan: "nightly".into(), reason: "A is serving".into() },
        Incident::JournalSetAside { aside: "journal.db.damaged-x".into(), reason: "malformed".into() },
        Incident::JournalFailed { reason: "disk full".into() },
        Incident::JournalRestored { lost: 7 },
        Incident::ReloadRefused { reason: "hotbunk.toml has 1 error(s)".into() },
    ]
}

#[test]
fn every_incident_has_its_code_and_names_whom_it_concerns() {
    let incidents = incidents();
    let own: Vec<_> = incidents.iter().map(Incident::code).collect();
    assert_eq!(own, Incident::CODES, "one example each, in the order of the list");
    for incident in &incidents {
        let (code, sentence) = (incident.code(), incident.to_string());
        assert!(incident.engine().is_none_or(|engine| sentence.contains(engine)), "{code}: {sentence}");
        let record = Record::from(incident);
        assert_eq!((record.kind(), record.engine()), ("incident", incident.engine()));
    }
}

#[test]
fn the_codes_of_core_and_shell_are_a_list_without_a_word_twice() {
    let all: Vec<_> = codes().collect();
    assert_eq!(all.len(), Core::ALL.len() + Incident::CODES.len());
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "the same fault in both lists: {all:?}");
    assert!(all.iter().all(|code| code.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{all:?}");
}

#[test]
fn sentences() {
    let facts = one_of_each().into_iter().filter(|record| record.kind() != "incident");
    let core = Core::ALL.into_iter().map(|incident| Record::Incident {
        code: incident.code().to_owned(),
        engine: None,
        device: None,
        message: format!("({})", incident.code()),
    });
    let shell = incidents();
    let records = facts.chain(core).chain(shell.iter().map(Record::from));
    let text: String = records
        .map(|record| format!("{:<5} {}\n", level(&record).as_str().to_lowercase(), Sentence(&record)))
        .collect();
    insta::assert_snapshot!("sentences", text);
}

#[tokio::test]
async fn row_metric_line_and_stream_say_the_same() {
    let (_dir, recorder) = place();
    let log = Log::begin();
    let context = Context::operation(OperationId(7)).in_run("cycle-1");
    let ready = Record::Ready { engine: "A".into(), version: "0.31.0".into(), context_tokens: None };
    let last =
        recorder.record(&context, vec![ready.clone().into(), crashed().into()]).await.expect("records");
    assert_eq!(last, 2);

    let page_of_journal =
        recorder.journal().read(|reader| reader.entries(&Query::all())).await.expect("reads");
    let entries = page_of_journal.entries;
    assert_eq!((&entries[0].record, &entries[1].record), (&ready, &crashed()));
    assert!(entries.iter().all(|entry| entry.run.as_deref() == Some("cycle-1")));

    assert!(has(&recorder, "hotbunk_incidents_total{code=\"crashed\",engine=\"A\"} 1"));
    assert!(has(&recorder, "hotbunk_up{engine=\"A\"} 0"), "up when ready, down when crashed");
    assert!(has(&recorder, "hotbunk_journal_commit_seconds_count 1"));

    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("INFO engine A is ready"), "{}", lines[0]);
    let told = format!(
        "ERROR {} kind=\"incident\" engine=\"A\" operation=7 run=\"cycle-1\" code=\"crashed\"",
        Sentence(&crashed())
    );
    assert_eq!(lines[1], told);

    let Record::Incident { code, engine, device, message } = crashed() else { panic!("an incident") };
    assert_eq!(streamed(&recorder), [Happening::Incident { code, engine, device, message }]);
}

#[tokio::test]
async fn without_the_journal_the_rest_still_happens_and_the_failure_is_said_once() {
    let (_dir, recorder) = place();
    recorder.journal().clone().close().await;
    let log = Log::begin();
    for _ in 0..3 {
        let answer = recorder.record_one(&Context::none(), crashed()).await;
        assert!(matches!(answer, Err(Error::Closed { .. })));
    }
    assert!(has(&recorder, "hotbunk_incidents_total{code=\"crashed\",engine=\"A\"} 3"));
    assert!(has(&recorder, "hotbunk_incidents_total{code=\"journal_failed\",engine=\"\"} 1"));
    let lines = log.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("crashed")).count(), 3);
    assert_eq!(lines.iter().filter(|line| line.contains("journal_failed")).count(), 1);
    let words: Vec<_> = streamed(&recorder).iter().map(code_of).collect();
    assert_eq!(words, ["journal_failed", "crashed", "crashed", "crashed"]);
}

#[tokio::test]
async fn the_stream_has_the_order_of_the_journal() {
    let (_dir, recorder) = place();
    let tasks: Vec<_> = (0..50u32)
        .map(|index| {
            let recorder = recorder.clone();
            let skipped = Incident::CycleSkipped { plan: index.to_string(), reason: "busy".into() };
            tokio::spawn(
                async move { recorder.record_one(&Context::none(), skipped).await.expect("records") },
            )
        })
        .collect();
    for task in tasks {
        task.await.expect("ends");
    }
    let page = recorder.journal().read(|reader| reader.entries(&Query::all())).await.expect("reads");
    let message = |record: Record| match record {
        Record::Incident { message, .. } => message,
        other => panic!("{other:?}"),
    };
    let journal: Vec<_> = page.entries.into_iter().map(|entry| message(entry.record)).collect();
    let stream: Vec<_> = streamed(&recorder)
        .into_iter()
        .map(|what| match what {
            Happening::Incident { message, .. } => message,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stream.len(), 50);
    assert_eq!(stream, journal);
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

fn spawned() -> Record {
    Record::Spawned {
        engine: "A".into(),
        incarnation: Incarnation { pid: 1, start_ticks: 1, boot_id: "b".into() },
    }
}

fn ready() -> Record {
    Record::Ready { engine: "A".into(), version: "0.31.0".into(), context_tokens: None }
}

/// Up, and the tiers whose gauge is 1.
fn where_it_is(recorder: &Recorder) -> (bool, Vec<&'static str>) {
    let words = Tier::ALL.into_iter().map(Tier::as_str);
    let shown =
        |tier: &&str| has(recorder, &format!("hotbunk_engine_tier{{engine=\"A\",tier=\"{tier}\"}} 1"));
    (has(recorder, "hotbunk_up{engine=\"A\"} 1"), words.filter(shown).collect())
}

#[tokio::test]
async fn up_and_tier_follow_the_words_of_the_core() {
    let (_dir, recorder) = place();
    recorder.metrics().engine("A");
    assert_eq!(where_it_is(&recorder), (false, vec!["stopped"]), "from the beginning");
    let cases = [
        (transition("moving", 0), (false, vec!["stopped"])),
        (spawned(), (false, vec!["stopped"])),
        (ready(), (true, vec!["stopped"])),
        (transition("awake", 1), (true, vec!["awake"])),
        (transition("moving", 1), (true, vec!["awake"])),
        (transition("parked", 1), (true, vec!["parked"])),
        (transition("adrift", 1), (true, vec![])),
        (transition("moving", 1), (true, vec![])),
        (transition("awake", 2), (true, vec!["awake"])),
        (crashed(), (false, vec!["awake"])),
        (transition("moving", 2), (false, vec!["awake"])),
        (transition("backoff", 2), (false, vec!["stopped"])),
        (transition("moving", 2), (false, vec!["stopped"])),
        (spawned(), (false, vec!["stopped"])),
        (ready(), (true, vec!["stopped"])),
        (transition("awake", 3), (true, vec!["awake"])),
        (transition("moving", 3), (true, vec!["awake"])),
        (transition("stopped", 3), (false, vec!["stopped"])),
        (transition("no_room", 3), (false, vec!["stopped"])),
        (transition("failed", 3), (false, vec!["stopped"])),
    ];
    for (index, (record, expected)) in cases.into_iter().enumerate() {
        let what = format!("{index}: {record:?}");
        recorder.record_one(&Context::none(), record).await.expect("records");
        assert_eq!(where_it_is(&recorder), expected, "{what}");
    }
    assert!(has(&recorder, "hotbunk_engine_restarts_total{engine=\"A\"} 1"));
    assert!(has(&recorder, "hotbunk_engine_generation{engine=\"A\"} 3"));
}

#[tokio::test]
async fn bytes_of_a_tier_are_those_that_were_read_in_it() {
    let (_dir, recorder) = place();
    let none = Context::none();
    let sample = |at, bytes| Sample {
        at,
        wall: 1.0,
        device: "gpu0".into(),
        used: Some(bytes),
        engines: vec![("A".into(), Some(bytes))],
    };
    let asleep = clock::now();
    recorder.record_one(&none, transition("awake", 1)).await.expect("records");
    // Rows come late: these were read before it had come to rest.
    recorder.samples(vec![sample(asleep, 500)]);
    assert!(!page(&recorder).contains("hotbunk_engine_device_bytes"));
    recorder.samples(vec![sample(clock::now(), 9000), sample(asleep, 600)]);
    assert!(has(&recorder, "hotbunk_engine_device_bytes{engine=\"A\",tier=\"awake\"} 9000"));
    recorder.record_one(&none, transition("moving", 1)).await.expect("records");
    recorder.samples(vec![sample(clock::now(), 4000)]);
    assert!(has(&recorder, "hotbunk_engine_device_bytes{engine=\"A\",tier=\"awake\"} 9000"), "it moves");
    recorder.record_one(&none, transition("stopped", 1)).await.expect("records");
    recorder.samples(vec![sample(clock::now(), 0)]);
    assert!(!page(&recorder).contains("hotbunk_engine_device_bytes{engine=\"A\",tier=\"stopped\"}"));
}

#[tokio::test]
async fn what_a_process_had_goes_with_it() {
    let (_dir, recorder) = place();
    let none = Context::none();
    let host =
        |rss| HostSample { at: clock::now(), wall: 1.0, engine: "A".into(), rss: Some(rss), pss: None };
    recorder.record(&none, vec![spawned().into(), transition("awake", 1).into()]).await.expect("records");
    recorder.host_samples(vec![host(5)]);
    recorder.metrics().in_flight("A", Some(2));
    assert!(has(&recorder, "hotbunk_engine_host_bytes{engine=\"A\"} 5"));
    recorder.record_one(&none, transition("moving", 1)).await.expect("records");
    assert!(!page(&recorder).contains("hotbunk_engine_in_flight"), "nobody is asked while it moves");
    assert!(has(&recorder, "hotbunk_engine_host_bytes{engine=\"A\"} 5"));
    for word in ["stopped", "backoff", "no_room", "port_taken", "failed"] {
        recorder.record(&none, vec![spawned().into(), transition("awake", 1).into()]).await.expect("records");
        recorder.host_samples(vec![host(6)]);
        recorder.record_one(&none, transition(word, 1)).await.expect("records");
        // A sample that was under way.
        recorder.host_samples(vec![host(7)]);
        assert!(!page(&recorder).contains("hotbunk_engine_host_bytes"), "{word}");
    }
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

#[tokio::test]
async fn a_journal_in_trouble_is_said_once_counted_and_says_itself_what_it_lacks() {
    let (dir, recorder) = place();
    let none = Context::none();
    let mut stream = std::pin::pin!(recorder.events().subscribe(None).into_stream());
    let other = rusqlite::Connection::open(dir.path().join("journal.db")).expect("opens");
    // Somebody writes to it and does not end.
    other.execute_batch("BEGIN IMMEDIATE").expect("locks");
    for _ in 0..2 {
        drop(recorder.record_one(&none, spawned()).await.expect_err("locked"));
    }
    let trouble = recorder.check_journal().await.expect("it is in trouble");
    assert!(trouble.reason.contains("locked") && trouble.lost == 2, "{trouble:?}");
    assert!(
        has(&recorder, "hotbunk_journal_failing 1") && has(&recorder, "hotbunk_journal_lost_events_total 2")
    );
    other.execute_batch("ROLLBACK").expect("unlocks");
    // Nothing happens; samples are written all the time.
    recorder.samples(vec![Sample {
        at: clock::now(),
        wall: 1.0,
        device: "gpu0".into(),
        used: Some(1),
        engines: Vec::new(),
    }]);
    recorder.journal().flush().await.expect("flushes");
    assert_eq!(recorder.check_journal().await, None);
    assert!(has(&recorder, "hotbunk_journal_failing 0"));
    let page = recorder.journal().reader().and_then(|r| r.entries(&Query::all())).expect("reads");
    let said = Record::from(&Incident::JournalRestored { lost: 2 });
    assert_eq!(page.entries.iter().map(|e| &e.record).collect::<Vec<_>>(), [&said]);
    let mut codes = Vec::new();
    while let Some(Some(event)) = stream.next().now_or_never() {
        if let Happening::Incident { code, .. } = &event.what {
            codes.push(code.clone());
        }
    }
    assert_eq!(codes, ["journal_failed", "journal_restored"]);
}
