//! The sampler against the fake NVML through the real wrapper ([`nvml`], [`mig`]) and against ledgers ([`ledger`]).

mod ledger;
mod mig;
mod nvml;

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

/// Quick in everything but in losing patience: a loaded machine stalls.
fn timing() -> Timing {
    let ms = Duration::from_millis;
    Timing {
        rest: ms(20),
        fast: ms(5),
        processes: ms(20),
        slow_after: LONG,
        retry_first: ms(30),
        retry_most: ms(60),
        batch: ms(20),
    }
}

/// The same, soon out of patience. Nothing may rely on a reading in time.
fn impatient() -> Timing {
    Timing { slow_after: Duration::from_millis(200), ..timing() }
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

/// A wait that ends without the condition; with more patience where the machine gave no reading in time.
async fn until_timed_out(sampler: &Sampler, threshold: Threshold) -> Reading {
    for ms in [30, 300, 3_000] {
        match sampler.await_used(CARD, threshold, within(Duration::from_millis(ms))).await {
            AwaitOutcome::TimedOut { last } => return last,
            AwaitOutcome::NoEvidence { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no reading in 3 s");
}
