//! The sampler against the fake NVML through the real wrapper, and against a stand-in for the simulated ledger.

use super::*;
use crate::clock;
use fake_nvml::{Code, Library, Scenario};
use hotbunk_core::ids::DeviceId;
use hotbunk_core::time::Moment;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const GIB: u64 = 1 << 30;
const CARD: DeviceId = DeviceId(0);
/// Far more than anything here takes, on a loaded machine too.
const LONG: Duration = Duration::from_secs(20);

fn timing() -> Timing {
    let ms = Duration::from_millis;
    Timing {
        rest: ms(20),
        fast: ms(5),
        processes: ms(20),
        slow_after: ms(300),
        retry_first: ms(30),
        retry_most: ms(60),
        batch: ms(20),
    }
}

/// A card with an odd number of bytes in use, so that rounding would show.
fn card(uuid: &str, used: u64) -> fake_nvml::Device {
    fake_nvml::Device {
        name: "NVIDIA L20".into(),
        uuid: uuid.into(),
        total: 48 * GIB,
        reserved: 3 * GIB + 7,
        used,
        ..fake_nvml::Device::default()
    }
}

fn scenario(devices: Vec<fake_nvml::Device>) -> Scenario {
    Scenario { devices, ..Scenario::default() }
}

/// A fake library of this test's own, with the sampler on it.
struct Bench {
    _dir: tempfile::TempDir,
    library: Library,
    sampler: Sampler,
}

impl Bench {
    fn new(devices: Vec<fake_nvml::Device>, selectors: &[Selector], timing: Timing) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::install(dir.path(), &scenario(devices)).unwrap();
        let sampler = on_library(library.path().into(), selectors, timing);
        Bench { _dir: dir, library, sampler }
    }

    fn one(device: fake_nvml::Device) -> Self {
        Bench::new(vec![device], &[Selector::Index(0)], timing())
    }

    fn set(&self, device: fake_nvml::Device) {
        self.library.set(&scenario(vec![device])).unwrap();
    }
}

fn on_library(library: PathBuf, selectors: &[Selector], timing: Timing) -> Sampler {
    let spec = |(i, selector): (usize, &Selector)| DeviceSpec {
        name: format!("gpu{i}"),
        source: Source::Nvml(selector.clone()),
    };
    Sampler::spawn(selectors.iter().enumerate().map(spec).collect(), Some(library), timing).unwrap()
}

async fn until_health(sampler: &Sampler, device: DeviceId, what: impl Fn(&Health) -> bool) -> Health {
    let mut changes = sampler.health_changes(device).unwrap();
    let health = tokio::time::timeout(LONG, changes.wait_for(what)).await;
    health.unwrap_or_else(|_| panic!("health is still {:?}", sampler.health(device))).unwrap().clone()
}

fn within(limit: Duration) -> Moment {
    clock::now() + limit
}

#[tokio::test]
async fn bytes_agree_to_the_byte_and_the_device_says_what_it_is() {
    let mut device = card("GPU-a", 12_345_678_901);
    device.processes = vec![
        fake_nvml::Process { pid: 11, bytes: Some(1_000_000_001) },
        fake_nvml::Process { pid: 12, bytes: None },
    ];
    let bench = Bench::one(device);
    let before = clock::now();
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert!(reading.at >= before);
    assert_eq!((reading.used, reading.total), (12_345_678_901, 48 * GIB));
    // What the driver reserves is neither used nor free.
    assert_eq!(reading.free, 45 * GIB - 7 - 12_345_678_901);
    assert!(reading.has_own_processes());
    assert_eq!(
        reading.processes.as_deref(),
        Some(&[Process { pid: 11, bytes: Some(1_000_000_001) }, Process { pid: 12, bytes: None }][..])
    );
    let info = bench.sampler.info(CARD).unwrap();
    assert_eq!((info.uuid.as_str(), info.model.as_str()), ("GPU-a", "NVIDIA L20"));
    assert_eq!(info.usable_bytes(), 45 * GIB - 7);
    assert_eq!(info.runtime().as_deref(), Some("driver 550.54.15, CUDA 12.4"));
    assert!(!info.simulated);
    assert_eq!(bench.sampler.evidence(CARD), Evidence::Available);
}

#[tokio::test]
async fn devices_are_chosen_by_uuid_and_by_index() {
    let devices = vec![card("GPU-a", 1), card("GPU-b", 2), card("MIG-c", 3)];
    let selectors = [Selector::Uuid("MIG-c".into()), Selector::Index(0), "1".parse().unwrap()];
    let bench = Bench::new(devices, &selectors, timing());
    for (id, used) in [(0, 3), (1, 1), (2, 2)] {
        assert_eq!(bench.sampler.read_now(DeviceId(id)).await.unwrap().used, used);
    }
}

#[tokio::test]
async fn a_wrong_uuid_is_the_configurations_fault_and_the_error_lists_what_exists() {
    let devices = vec![card("GPU-a", 1), card("GPU-b", 2)];
    let bench = Bench::new(devices, &[Selector::Uuid("GPU-x".into()), Selector::Index(7)], timing());
    let opened = bench.sampler.opened(LONG).await;
    let messages: Vec<String> = opened
        .iter()
        .map(|(_, outcome)| {
            let error = outcome.as_ref().unwrap_err();
            assert!(error.is_configuration());
            error.sentence()
        })
        .collect();
    let exist = "it has 0: GPU-a (NVIDIA L20), 1: GPU-b (NVIDIA L20)";
    assert_eq!(
        messages,
        [
            format!("device `gpu0`: this machine has no GPU GPU-x; {exist}"),
            format!("device `gpu1`: this machine has no GPU index 7; {exist}"),
        ]
    );
}

#[tokio::test]
async fn a_missing_library_degrades_and_says_what_to_do() {
    let sampler = on_library("/nonexistent/libnvidia-ml.so.1".into(), &[Selector::Index(0)], timing());
    let (name, outcome) = sampler.opened(LONG).await.remove(0);
    let error = outcome.unwrap_err();
    assert_eq!(name, "gpu0");
    assert!(!error.is_configuration());
    let sentence = error.sentence();
    assert!(sentence.contains("`/nonexistent/libnvidia-ml.so.1` cannot be used"), "{sentence}");
    assert!(sentence.contains("`device = \"none\"`"), "{sentence}");
    assert!(matches!(sampler.evidence(CARD), Evidence::Missing { .. }));
    let outcome = sampler.await_used(CARD, Threshold::AtMost(0), within(LONG)).await;
    assert!(matches!(outcome, AwaitOutcome::NoEvidence { .. }), "{outcome:?}");
    assert!(matches!(sampler.read_now(CARD).await, Err(Unavailable::Missing(_))));
    assert_eq!(sampler.latest(CARD), None);
}

#[tokio::test]
async fn a_library_that_is_no_nvml_and_one_that_refuses_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let library = Library::install(dir.path(), &Scenario::default()).unwrap();
    library.remove_symbol("nvmlInit_v2").unwrap();
    let sampler = on_library(library.path().into(), &[Selector::Index(0)], timing());
    let outcome = sampler.opened(LONG).await.remove(0).1;
    assert!(matches!(*outcome.unwrap_err(), Error::Library { .. }));

    let dir = tempfile::tempdir().unwrap();
    let refuses = Scenario { init_fails: Some(Code::VersionMismatch), ..scenario(vec![card("GPU-a", 9)]) };
    let library = Library::install(dir.path(), &refuses).unwrap();
    let sampler = on_library(library.path().into(), &[Selector::Index(0)], timing());
    let error = sampler.opened(LONG).await.remove(0).1.unwrap_err();
    assert!(matches!(*error, Error::Init { .. }));
    assert!(error.sentence().contains("version mismatch"), "{}", error.sentence());
    // The driver's upgrade is completed: no restart of the agent is needed.
    library.set(&scenario(vec![card("GPU-a", 9)])).unwrap();
    until_health(&sampler, CARD, |h| *h == Health::Ok).await;
    assert_eq!(sampler.read_now(CARD).await.unwrap().used, 9);
}

#[tokio::test]
async fn a_lost_gpu_ends_waits_at_once_and_comes_back() {
    let bench = Bench::one(card("GPU-a", 5));
    bench.sampler.read_now(CARD).await.unwrap();
    let waiting = {
        let sampler = bench.sampler.clone();
        tokio::spawn(async move { sampler.await_used(CARD, Threshold::AtMost(0), within(LONG)).await })
    };
    bench.set(fake_nvml::Device { gpu_lost: true, ..card("GPU-a", 5) });
    let outcome = tokio::time::timeout(LONG / 2, waiting).await.unwrap().unwrap();
    assert!(
        matches!(&outcome, AwaitOutcome::NoEvidence { reason } if reason.contains("fell off the bus")),
        "{outcome:?}"
    );
    assert!(matches!(bench.sampler.evidence(CARD), Evidence::Missing { .. }));
    // What it said before is not taken for news.
    assert!(matches!(bench.sampler.read_now(CARD).await, Err(Unavailable::Missing(_))));
    // The fake, like NVML, keeps saying "lost" until it has been begun again.
    bench.set(card("GPU-a", 6));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
    assert_eq!(bench.sampler.read_now(CARD).await.unwrap().used, 6);
}

#[tokio::test]
async fn a_device_that_comes_back_at_another_index_is_still_itself() {
    let bench = Bench::new(vec![card("GPU-a", 1), card("GPU-b", 2)], &[Selector::Index(0)], timing());
    assert_eq!(bench.sampler.read_now(CARD).await.unwrap().used, 1);
    let lost = fake_nvml::Device { gpu_lost: true, ..card("GPU-a", 1) };
    bench.library.set(&scenario(vec![lost, card("GPU-b", 2)])).unwrap();
    until_health(&bench.sampler, CARD, |h| matches!(h, Health::Lost { .. })).await;
    bench.library.set(&scenario(vec![card("GPU-b", 2), card("GPU-a", 3)])).unwrap();
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
    assert_eq!(bench.sampler.read_now(CARD).await.unwrap().used, 3);
}

#[tokio::test]
async fn passing_errors_degrade_and_lasting_ones_are_a_loss() {
    let bench = Bench::one(card("GPU-a", 5));
    bench.sampler.read_now(CARD).await.unwrap();
    bench.set(fake_nvml::Device { memory_fails: Some(Code::Unknown), ..card("GPU-a", 5) });
    let fails = |h: &Health| matches!(h, Health::Degraded { cause: Cause::ReadsFail { .. }, .. });
    let health = until_health(&bench.sampler, CARD, fails).await;
    assert!(matches!(health.evidence(), Evidence::Missing { .. }));
    until_health(&bench.sampler, CARD, |h| matches!(h, Health::Lost { .. })).await;
    bench.set(card("GPU-a", 5));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
}

#[tokio::test]
async fn a_slow_driver_is_reported_and_blocks_no_reader() {
    let bench = Bench::one(card("GPU-a", 5));
    bench.sampler.read_now(CARD).await.unwrap();
    bench.set(fake_nvml::Device { slow_ms: 60_000, ..card("GPU-a", 4) });
    let slow = |h: &Health| matches!(h, Health::Degraded { cause: Cause::Slow, .. });
    let health = until_health(&bench.sampler, CARD, slow).await;
    assert!(matches!(health.evidence(), Evidence::Missing { .. }));
    // The newest reading is still to be had, with its age; a fresh one is refused at once.
    let latest = bench.sampler.latest(CARD).unwrap();
    assert_eq!(latest.used, 5);
    assert!(latest.age(clock::now()) > timing().slow_after / 2);
    assert!(matches!(bench.sampler.read_now(CARD).await, Err(Unavailable::Missing(_))));
    // Silence is not "not reached".
    let soon = within(Duration::from_millis(30));
    let outcome = bench.sampler.await_used(CARD, Threshold::AtMost(0), soon).await;
    assert!(
        matches!(&outcome, AwaitOutcome::NoEvidence { reason } if reason.contains("slow")),
        "{outcome:?}"
    );
    bench.set(card("GPU-a", 3));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
}

#[tokio::test]
async fn without_process_lists_engines_are_unknown_and_the_device_is_known() {
    let mut device = card("GPU-a", 100);
    device.processes = vec![fake_nvml::Process { pid: 7, bytes: Some(60) }];
    let bench = Bench::one(device.clone());
    bench.sampler.set_owners(HashMap::from([(7, "A".to_owned()), (8, "B".to_owned())]));
    let mut rows = bench.sampler.subscribe(64);
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!(bench.sampler.engine_bytes(&reading, "A"), Some(60));
    assert_eq!(bench.sampler.engine_bytes(&reading, "B"), Some(0));

    device.processes_fail = Some(Code::NotSupported);
    bench.set(device);
    let degraded = |h: &Health| matches!(h, Health::Degraded { cause: Cause::NoProcesses { .. }, .. });
    let health = until_health(&bench.sampler, CARD, degraded).await;
    assert_eq!(health.evidence(), Evidence::Available);
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!((reading.used, reading.processes.clone()), (100, None));
    assert_eq!(bench.sampler.engine_bytes(&reading, "A"), None);
    bench.sampler.flush().await;
    let mut all = Vec::new();
    while let Ok(batch) = rows.try_recv() {
        all.extend(batch);
    }
    let engines = |a: Option<u64>, b: Option<u64>| vec![("A".to_owned(), a), ("B".to_owned(), b)];
    assert!(all.iter().any(|row| row.engines == engines(Some(60), Some(0))), "{all:?}");
    assert!(all.iter().any(|row| row.used == Some(100) && row.engines == engines(None, None)), "{all:?}");
}

#[tokio::test]
async fn a_process_list_that_grows_between_the_two_calls() {
    let mut device = card("GPU-a", 100);
    device.processes = vec![fake_nvml::Process { pid: 7, bytes: Some(60) }];
    // Within the headroom of one call: listed.
    device.grow_process_list = 4;
    let bench = Bench::one(device.clone());
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!(reading.processes.map(|list| list.len()), Some(5));
    // Beyond it, each time: unknown, and the device's bytes are there all the same.
    device.grow_process_list = 40;
    bench.set(device);
    let degraded = |h: &Health| matches!(h, Health::Degraded { cause: Cause::NoProcesses { .. }, .. });
    until_health(&bench.sampler, CARD, degraded).await;
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!((reading.used, reading.processes), (100, None));
}

#[tokio::test]
async fn an_older_driver_without_process_lists_still_gives_the_devices_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let library = Library::install(dir.path(), &scenario(vec![card("GPU-a", 5)])).unwrap();
    library.remove_symbol("nvmlDeviceGetComputeRunningProcesses_v3").unwrap();
    let sampler = on_library(library.path().into(), &[Selector::Index(0)], timing());
    let degraded = |h: &Health| matches!(h, Health::Degraded { cause: Cause::NoProcesses { .. }, .. });
    let health = until_health(&sampler, CARD, degraded).await;
    assert!(health.to_string().contains("nvmlDeviceGetComputeRunningProcesses_v3"), "{health}");
    assert_eq!(sampler.read_now(CARD).await.unwrap().used, 5);
}

#[tokio::test]
async fn one_lost_device_does_not_take_the_others_evidence() {
    let selectors = [Selector::Index(0), Selector::Index(1)];
    let bench = Bench::new(vec![card("GPU-a", 1), card("GPU-b", 2)], &selectors, timing());
    let lost = fake_nvml::Device { gpu_lost: true, ..card("GPU-a", 1) };
    bench.library.set(&scenario(vec![lost, card("GPU-b", 3)])).unwrap();
    until_health(&bench.sampler, CARD, |h| matches!(h, Health::Lost { .. })).await;
    let outcome = bench.sampler.await_used(DeviceId(1), Threshold::Between(3, 3), within(LONG)).await;
    assert!(matches!(outcome, AwaitOutcome::Reached { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_wait_is_reached_by_a_later_reading_or_times_out_with_the_last() {
    let bench = Bench::one(card("GPU-a", 10 * GIB));
    let soon = within(Duration::from_millis(100));
    let outcome = bench.sampler.await_used(CARD, Threshold::AtMost(GIB), soon).await;
    assert!(matches!(&outcome, AwaitOutcome::TimedOut { last } if last.used == 10 * GIB), "{outcome:?}");
    let began = clock::now();
    let waiting = {
        let sampler = bench.sampler.clone();
        tokio::spawn(async move { sampler.await_used(CARD, Threshold::AtMost(GIB), within(LONG)).await })
    };
    bench.set(card("GPU-a", GIB));
    let outcome = waiting.await.unwrap();
    assert!(
        matches!(&outcome, AwaitOutcome::Reached { reading } if reading.used == GIB && reading.at >= began),
        "{outcome:?}"
    );
}

/// Used bytes, and bytes by process.
type Contents = (u64, Vec<(u32, u64)>);

/// A ledger of this process: what the simulated engines' file is, without the file.
#[derive(Debug, Clone)]
struct Stand(Arc<Mutex<Option<Contents>>>);

impl Stand {
    fn set(&self, used: u64, processes: &[(u32, u64)]) {
        *self.0.lock().unwrap() = Some((used, processes.to_vec()));
    }

    fn spec(&self) -> DeviceSpec {
        let stand = self.clone();
        let look: Look = Arc::new(move || {
            let contents = stand.0.lock().unwrap().clone().ok_or("no such file")?;
            Ok(LedgerLook {
                model: "simulated L20".into(),
                uuid: "SIM-0".into(),
                total_bytes: 44 * GIB,
                used_bytes: contents.0,
                processes: contents.1,
            })
        });
        DeviceSpec { name: "sim".into(), source: Source::Ledger { path: "/run/sim/ledger".into(), look } }
    }
}

#[tokio::test]
async fn a_ledger_is_read_like_a_device_and_a_condition_that_holds_is_seen_at_once() {
    let stand = Stand(Arc::default());
    stand.set(3 * GIB, &[(5, 2 * GIB), (6, GIB)]);
    // Slow ticks: only reading on demand can be quick.
    let timing = Timing { rest: LONG, fast: LONG, ..Timing::default() };
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing).unwrap();
    sampler.set_owners(HashMap::from([(5, "A".to_owned())]));
    let info = sampler.opened(LONG).await.remove(0).1.unwrap();
    assert!(info.simulated);
    assert_eq!(info.usable_bytes(), 44 * GIB);
    assert_eq!(info.runtime(), None);
    let reading = sampler.read_now(CARD).await.unwrap();
    assert_eq!((reading.used, reading.free), (3 * GIB, 41 * GIB));
    assert_eq!(sampler.engine_bytes(&reading, "A"), Some(2 * GIB));
    for _ in 0..20 {
        let outcome = sampler.await_used(CARD, Threshold::AtLeast(3 * GIB), within(LONG)).await;
        assert!(matches!(outcome, AwaitOutcome::Reached { .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_ledger_that_vanishes_is_lost_and_found_again() {
    let stand = Stand(Arc::default());
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing()).unwrap();
    let error = sampler.opened(LONG).await.remove(0).1.unwrap_err();
    assert_eq!(error.sentence(), "device `sim`: the ledger /run/sim/ledger cannot be read: no such file");
    stand.set(1, &[]);
    until_health(&sampler, CARD, |h| *h == Health::Ok).await;
    *stand.0.lock().unwrap() = None;
    until_health(&sampler, CARD, |h| matches!(h, Health::Lost { .. })).await;
    stand.set(2, &[]);
    until_health(&sampler, CARD, |h| *h == Health::Ok).await;
}

#[tokio::test]
async fn without_a_device_nothing_is_watched_and_nothing_is_claimed() {
    let spec = DeviceSpec { name: "none".into(), source: Source::None };
    let sampler = Sampler::spawn(vec![spec], None, timing()).unwrap();
    assert!(sampler.opened(LONG).await.is_empty());
    assert_eq!(sampler.evidence(CARD), Evidence::NotWatched);
    let outcome = sampler.await_used(CARD, Threshold::AtMost(u64::MAX), within(LONG)).await;
    assert_eq!(outcome, AwaitOutcome::NotWatched);
    assert_eq!(sampler.read_now(CARD).await, Err(Unavailable::NotWatched));
    // A device that the configuration does not have.
    assert_eq!(sampler.health(DeviceId(9)), Health::NotWatched);
}

#[tokio::test]
async fn the_rate_follows_the_guards() {
    let stand = Stand(Arc::default());
    stand.set(1, &[]);
    let timing = Timing { rest: LONG, fast: Duration::from_millis(2), ..timing() };
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing).unwrap();
    let mut readings = sampler.readings(CARD).unwrap();
    let mut next = async || tokio::time::timeout(LONG / 4, readings.changed()).await;
    // The first reading comes of itself; then, at rest, none.
    next().await.unwrap().unwrap();
    let (one, two) = (sampler.fast(), sampler.fast());
    for _ in 0..10 {
        next().await.unwrap().unwrap();
    }
    drop(one);
    for _ in 0..10 {
        next().await.unwrap().unwrap();
    }
    drop(two);
    // At most one tick is still under way after the change; a read on demand proves that the rest has set in.
    let reading = sampler.read_now(CARD).await.unwrap();
    assert_eq!(reading.used, 1);
    tokio::time::sleep(Duration::from_millis(60)).await;
    let newest = sampler.latest(CARD).unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(sampler.latest(CARD).unwrap(), newest);
}

#[tokio::test]
async fn missed_samples_are_rows_without_bytes() {
    let bench = Bench::one(card("GPU-a", 5));
    bench.sampler.set_owners(HashMap::from([(7, "A".to_owned())]));
    bench.sampler.read_now(CARD).await.unwrap();
    let mut rows = bench.sampler.subscribe(64);
    bench.set(fake_nvml::Device { slow_ms: 200, ..card("GPU-a", 5) });
    let mut seen = Vec::new();
    let has_missed_and_read = |rows: &[crate::journal::record::Sample]| {
        rows.iter().any(|r| r.used.is_none()) && rows.iter().any(|r| r.used.is_some())
    };
    while !has_missed_and_read(&seen) {
        seen.extend(tokio::time::timeout(LONG, rows.recv()).await.unwrap().unwrap());
    }
    assert!(seen.iter().all(|row| row.device == "gpu0" && row.used != Some(0)));
    let missed = seen.iter().find(|row| row.used.is_none()).unwrap();
    assert_eq!(missed.engines, [("A".to_owned(), None)]);
    let wall = clock::wall().as_second() as f64;
    assert!((missed.wall - wall).abs() < 60.0);
}

#[tokio::test]
async fn the_task_ends_with_the_last_handle() {
    let stand = Stand(Arc::default());
    stand.set(1, &[]);
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing()).unwrap();
    let mut rows = sampler.subscribe(64);
    let guard = sampler.fast();
    drop(sampler);
    drop(guard);
    let ended = async { while rows.recv().await.is_some() {} };
    tokio::time::timeout(LONG, ended).await.unwrap();
}
