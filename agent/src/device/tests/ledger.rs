//! Simulated devices, and the sampler itself.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Used bytes, and bytes by process.
type Contents = (u64, Vec<(u32, u64)>);

/// A ledger of this process: what the simulated engines' file is, without the file.
#[derive(Debug, Clone, Default)]
struct Stand {
    contents: Arc<Mutex<Option<Contents>>>,
    reads: Arc<AtomicUsize>,
}

impl Stand {
    fn set(&self, used: u64, processes: &[(u32, u64)]) {
        *self.contents.lock().unwrap() = Some((used, processes.to_vec()));
    }

    /// How often it has been read.
    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn spec(&self) -> DeviceSpec {
        let stand = self.clone();
        let look: Look = Arc::new(move || {
            stand.reads.fetch_add(1, Ordering::SeqCst);
            let contents = stand.contents.lock().unwrap().clone().ok_or("no such file")?;
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
    let stand = Stand::default();
    stand.set(3 * GIB, &[(5, 2 * GIB), (6, GIB)]);
    // Slow ticks: only reading on demand can be quick.
    let timing = Timing { rest: LONG, fast: LONG, ..timing() };
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
    // What the newest reading still says is no answer to a question asked later.
    for used in [4 * GIB, 5 * GIB, 6 * GIB] {
        let earlier = sampler.latest(CARD).unwrap();
        assert_ne!(earlier.used, used);
        stand.set(used, &[]);
        assert_eq!(sampler.read_now(CARD).await.unwrap().used, used);
        let next = used + GIB;
        stand.set(next, &[]);
        let last = until_timed_out(&sampler, Threshold::AtMost(used)).await;
        assert_eq!(last.used, next);
        stand.set(0, &[]);
        assert_eq!(sampler.read_now(CARD).await.unwrap().used, 0);
    }
}

#[tokio::test]
async fn a_ledger_that_vanishes_is_lost_and_found_again() {
    let stand = Stand::default();
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing()).unwrap();
    let error = sampler.opened(LONG).await.remove(0).1.unwrap_err();
    assert_eq!(error.sentence(), "device `sim`: its ledger cannot be read: no such file");
    stand.set(1, &[]);
    until_health(&sampler, CARD, |h| *h == Health::Ok).await;
    *stand.contents.lock().unwrap() = None;
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
    let stand = Stand::default();
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
    // The rest sets in: another one that goes on at the fast rate is the clock. A tick that was due may still come, and the
    // one with which the rest begins.
    let reads = stand.reads();
    let other = Stand::default();
    other.set(1, &[]);
    let clock = Sampler::spawn(vec![other.spec()], None, timing).unwrap();
    let _ticks = clock.fast();
    let mut ticks = clock.readings(CARD).unwrap();
    for _ in 0..20 {
        tokio::time::timeout(LONG / 4, ticks.changed()).await.unwrap().unwrap();
    }
    assert!(stand.reads() <= reads + 2, "{} in the time of 20", stand.reads() - reads);
    // Another rate counts at once, however long the last one would still have slept.
    let mut readings = sampler.readings(CARD).unwrap();
    sampler.pace(Duration::from_millis(2), Duration::from_millis(2));
    for _ in 0..10 {
        tokio::time::timeout(LONG / 4, readings.changed()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_task_ends_with_the_last_handle() {
    let stand = Stand::default();
    stand.set(1, &[]);
    let sampler = Sampler::spawn(vec![stand.spec()], None, timing()).unwrap();
    let mut rows = sampler.subscribe(64);
    let guard = sampler.fast();
    drop(sampler);
    drop(guard);
    let ended = async { while rows.recv().await.is_some() {} };
    tokio::time::timeout(LONG, ended).await.unwrap();
}

#[tokio::test]
async fn the_simulators_ledger_shows_the_same_through_nvml_as_by_itself() {
    use hotbunk_sim::ledger::{DeviceLedger, LedgerHeader, Owner};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpu0.json");
    let ledger = DeviceLedger::create(&path, LedgerHeader::l20(0)).unwrap();
    let me = Owner::current().unwrap();
    ledger.allocate(me, "A", 597 << 20).unwrap();
    ledger.allocate(me, "foreign", 1).unwrap();

    let device = fake_nvml::Device::of_ledger(&path).unwrap();
    let library = Library::install(dir.path(), &scenario(vec![device])).unwrap();
    let specs = vec![
        DeviceSpec { name: "direct".into(), source: Source::simulated(path) },
        DeviceSpec { name: "nvml".into(), source: Source::Nvml(Selector::Uuid(LedgerHeader::l20(0).uuid)) },
    ];
    let sampler = Sampler::spawn(specs, Some(library.path().into()), timing()).unwrap();
    sampler.set_owners(HashMap::from([(me.pid, "A".to_owned())]));
    for device in [DeviceId(0), DeviceId(1)] {
        let reading = sampler.read_now(device).await.unwrap();
        assert_eq!((reading.used, reading.total), ((597 << 20) + 1, 46068 << 20));
        assert_eq!(sampler.engine_bytes(&reading, "A"), Some((597 << 20) + 1));
    }
    let (of_ledger, of_nvml) = (sampler.info(DeviceId(0)).unwrap(), sampler.info(DeviceId(1)).unwrap());
    assert_eq!((&of_ledger.uuid, &of_ledger.model), (&of_nvml.uuid, &of_nvml.model));
    assert!(of_ledger.simulated && !of_nvml.simulated);

    let waiting = {
        let sampler = sampler.clone();
        tokio::spawn(async move { sampler.await_used(DeviceId(1), Threshold::AtMost(1), within(LONG)).await })
    };
    ledger.free(me, "A", 597 << 20).unwrap();
    assert!(matches!(waiting.await.unwrap(), AwaitOutcome::Reached { .. }));
}

#[tokio::test]
async fn a_reading_that_was_under_way_is_not_fresh() {
    let used = Arc::new(Mutex::new(1_u64));
    let (entered, mut looks) = tokio::sync::watch::channel(false);
    // While somebody holds the gate's sender, whoever has looked waits before telling.
    let gate = Arc::new(Mutex::new(None::<std::sync::mpsc::Receiver<()>>));
    let look: Look = {
        let (used, gate) = (Arc::clone(&used), Arc::clone(&gate));
        Arc::new(move || {
            let used_bytes = *used.lock().unwrap();
            if let Some(closed) = &*gate.lock().unwrap() {
                entered.send_replace(true);
                // An error is what is waited for: the sender is gone.
                let _ = closed.recv();
            }
            let (model, uuid) = (String::new(), String::new());
            Ok(LedgerLook { model, uuid, total_bytes: 10, used_bytes, processes: vec![(1, used_bytes)] })
        })
    };
    let spec = DeviceSpec { name: "sim".into(), source: Source::Ledger { path: PathBuf::new(), look } };
    let sampler = Sampler::spawn(vec![spec], None, Timing { rest: LONG, ..timing() }).unwrap();
    assert_eq!(sampler.read_now(CARD).await.unwrap().used, 1);

    let (holder, closed) = std::sync::mpsc::channel();
    *gate.lock().unwrap() = Some(closed);
    let under_way = {
        let sampler = sampler.clone();
        tokio::spawn(async move { sampler.read_now(CARD).await })
    };
    tokio::time::timeout(LONG, looks.wait_for(|entered| *entered)).await.unwrap().unwrap();
    *used.lock().unwrap() = 2;
    let open = async {
        // The second call reaches the sampler while the first one's look is under way.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        drop(holder);
    };
    let (fresh, ()) = tokio::join!(sampler.read_now(CARD), open);
    assert_eq!(fresh.unwrap().used, 2);
    under_way.await.unwrap().unwrap();
}
