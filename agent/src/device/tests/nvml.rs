//! Through the real NVML wrapper, against the fake library.

use super::*;

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
    let fails = fake_nvml::Device { memory_fails: Some(Code::Unknown), ..card("GPU-a", 5) };
    let bench = Bench::one(card("GPU-a", 5));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
    bench.set(fails.clone());
    let passing = |h: &Health| matches!(h, Health::Degraded { cause: Cause::ReadsFail { .. }, .. });
    let health = until_health(&bench.sampler, CARD, passing).await;
    assert!(matches!(health.evidence(), Evidence::Missing { .. }));
    bench.set(card("GPU-a", 5));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;

    let bench = Bench::new(vec![card("GPU-a", 5)], &[Selector::Index(0)], impatient());
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
    bench.set(fails);
    until_health(&bench.sampler, CARD, |h| matches!(h, Health::Lost { .. })).await;
    bench.set(card("GPU-a", 5));
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
}

#[tokio::test]
async fn a_slow_driver_is_reported_and_blocks_no_reader() {
    let bench = Bench::new(vec![card("GPU-a", 5)], &[Selector::Index(0)], impatient());
    until_health(&bench.sampler, CARD, |h| *h == Health::Ok).await;
    bench.set(fake_nvml::Device { slow_ms: 60_000, ..card("GPU-a", 4) });
    let slow = |h: &Health| matches!(h, Health::Degraded { cause: Cause::Slow, .. });
    let health = until_health(&bench.sampler, CARD, slow).await;
    assert!(matches!(health.evidence(), Evidence::Missing { .. }));
    assert!(health.to_string().contains("the driver is slow"), "{health}");
    // The newest reading is still to be had, with its age; a fresh one is refused.
    let latest = bench.sampler.latest(CARD).unwrap();
    assert_eq!(latest.used, 5);
    assert!(latest.age(clock::now()) >= Duration::from_millis(100));
    assert!(matches!(bench.sampler.read_now(CARD).await, Err(Unavailable::Missing(_))));
    // Silence is not "not reached".
    let soon = within(Duration::from_millis(30));
    let outcome = bench.sampler.await_used(CARD, Threshold::AtMost(0), soon).await;
    assert!(matches!(outcome, AwaitOutcome::NoEvidence { .. }), "{outcome:?}");
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
async fn a_wait_is_reached_by_a_later_reading_or_times_out_with_the_last() {
    let bench = Bench::one(card("GPU-a", 10 * GIB));
    assert_eq!(until_timed_out(&bench.sampler, Threshold::AtMost(GIB)).await.used, 10 * GIB);
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

#[tokio::test]
async fn no_samples_is_an_empty_list_and_proves_nothing_about_engines() {
    let bench = Bench::one(fake_nvml::Device { processes_fail: Some(Code::NotFound), ..card("GPU-a", 5) });
    bench.sampler.set_owners(HashMap::from([(7, "A".to_owned())]));
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!(reading.processes.as_deref(), Some(&[][..]));
    assert_eq!(bench.sampler.engine_bytes(&reading, "A"), None);
    assert_eq!(bench.sampler.health(CARD), Health::Ok);
}

/// As an agent is started in end-to-end tests: the shared library itself, its scenario named by the environment. The
/// environment of a running process cannot be changed safely, so the test runs itself again with it.
#[test]
fn the_environment_names_the_scenario() {
    let variable = fake_nvml::locate::SCENARIO_VARIABLE;
    if std::env::var_os(variable).is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scenario.json");
        scenario(vec![card("GPU-a", 77)]).save(&path).unwrap();
        let name = "device::tests::nvml::the_environment_names_the_scenario";
        let again = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(variable, path)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let sampler = on_library(fake_nvml::library().unwrap(), &[Selector::Index(0)], timing());
        assert_eq!(sampler.read_now(CARD).await.unwrap().used, 77);
    });
}
