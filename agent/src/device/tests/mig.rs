//! Cards that are cut into instances, and one card under two names.

use super::*;

fn instance(uuid: &str, used: u64) -> fake_nvml::Device {
    fake_nvml::Device {
        name: "NVIDIA A100-SXM4-80GB MIG 3g.40gb".into(),
        total: 40 * GIB,
        reserved: 0,
        ..card(uuid, used)
    }
}

fn cut() -> fake_nvml::Device {
    let instances = vec![instance("MIG-1", 11), instance("MIG-2", 22)];
    fake_nvml::Device { name: "NVIDIA A100-SXM4-80GB".into(), instances, ..card("GPU-a", 33) }
}

#[tokio::test]
async fn an_instance_is_a_device_of_its_own() {
    let mut card = cut();
    card.instances[1].processes = vec![fake_nvml::Process { pid: 7, bytes: Some(22) }];
    let selectors = [Selector::Uuid("MIG-2".into()), Selector::Uuid("MIG-1".into())];
    let bench = Bench::new(vec![card], &selectors, timing());
    let reading = bench.sampler.read_now(CARD).await.unwrap();
    assert_eq!((reading.used, reading.total), (22, 40 * GIB));
    assert_eq!(reading.processes.unwrap().len(), 1);
    assert_eq!(bench.sampler.read_now(DeviceId(1)).await.unwrap().used, 11);
    let info = bench.sampler.info(CARD).unwrap();
    assert_eq!((info.uuid.as_str(), info.model.as_str()), ("MIG-2", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"));
}

#[tokio::test]
async fn a_card_in_mig_mode_is_refused_with_its_instances() {
    for selector in [Selector::Index(0), Selector::Uuid("GPU-a".into())] {
        let bench = Bench::new(vec![cut()], std::slice::from_ref(&selector), timing());
        let error = bench.sampler.opened(LONG).await.remove(0).1.unwrap_err();
        assert!(error.is_configuration());
        assert_eq!(
            error.sentence(),
            format!(
                "device `gpu0`: the GPU {selector} is in MIG mode, and engines run in its instances: write `uuid = \
                 \"MIG-…\"`, one of MIG-1 (NVIDIA A100-SXM4-80GB MIG 3g.40gb), MIG-2 (NVIDIA A100-SXM4-80GB MIG 3g.40gb)"
            )
        );
    }
}

#[tokio::test]
async fn one_card_under_two_names_is_refused() {
    let selectors = [Selector::Index(0), Selector::Uuid("GPU-a".into()), Selector::Index(1)];
    let bench = Bench::new(vec![card("GPU-a", 1), card("GPU-b", 2)], &selectors, timing());
    let mut opened = bench.sampler.opened(LONG).await;
    assert!(opened[0].1.is_ok() && opened[2].1.is_ok());
    let error = opened.remove(1).1.unwrap_err();
    assert!(error.is_configuration());
    assert_eq!(
        error.sentence(),
        "device `gpu1` is the same GPU as `gpu0` (GPU-a): one GPU has one ledger; remove one of the two"
    );
}

/// MIG is asked of by symbols that older drivers lack: there is no MIG then.
#[tokio::test]
async fn a_driver_that_does_not_know_mig_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let library = Library::install(dir.path(), &scenario(vec![card("GPU-a", 5)])).unwrap();
    library.remove_symbol("nvmlDeviceGetMigMode").unwrap();
    let sampler = on_library(library.path().into(), &[Selector::Index(0)], timing());
    assert_eq!(sampler.read_now(CARD).await.unwrap().used, 5);
}
