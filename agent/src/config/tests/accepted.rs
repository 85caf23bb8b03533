//! What is taken, and what it becomes.

use std::net::SocketAddr;
use std::time::Duration;

use hotbunk_core::capability::Version;
use hotbunk_core::tier::Tier;

use super::*;
use crate::config::checked::{GIB, MIB};
use crate::config::client_ports::ClientPorts;

/// A machine that the L20 example fits on.
fn facts() -> Facts {
    Facts { host_memory_total: Some(128 * GIB), ..Facts::default() }
}

#[test]
fn the_examples_load_without_warnings() {
    let dir = root().join("systemd");
    let mut seen = 0;
    let examples = ["containers", "lora", "quantized", "two-gpus", "without-gpu"];
    let examples = examples.map(|name| dir.join(format!("examples/{name}.toml")));
    for path in std::iter::once(dir.join("hotbunk.toml")).chain(examples) {
        // Whatever runs, and by the releases that they are written for.
        for minor in [None, Some(31), Some(32)] {
            let vllm = minor.map(|minor| Version::new(0, minor, 0));
            let loaded = load(&path, &Facts { vllm, ..facts() });
            let (config, warnings) = loaded.unwrap_or_else(|refused| panic!("{refused}"));
            assert!(warnings.is_empty(), "{warnings}");
            assert!(config.engines.len() >= 2);
        }
        seen += 1;
    }
    let written = std::fs::read_dir(dir.join("examples")).unwrap().count() + 1;
    assert_eq!(seen, written, "an example is not tested");
}

#[test]
fn the_l20_example_says_what_it_means() {
    let (config, _) = load(&root().join("systemd/hotbunk.toml"), &facts()).unwrap();
    let device = &config.devices[0];
    assert_eq!(device.capacity_bytes, Some(46068 * MIB));
    assert_eq!((device.reserve_bytes, device.slack_bytes, device.max_awake), (GIB, 256 * MIB, 1));
    let a = &config.engines[0];
    assert_eq!(a.kv_cache_bytes, Some(4 * GIB), "read from the command");
    assert_eq!(a.gpu_memory_utilization, Some(0.75));
    assert_eq!(a.base_url(), "http://127.0.0.1:8101");
    assert_eq!(a.sleep_tiers, [Tier::Parked, Tier::Level1, Tier::Level2]);
    assert_eq!((a.rest_tier, a.rehearse, a.autostart, a.workers), (Tier::Level1, true, true, 1));
    assert_eq!(config.policy.awake_at_start, [0]);
    assert_eq!(config.node.metrics_listen, Some(SocketAddr::from(([127, 0, 0, 1], 9464))));
    assert_eq!(config.node.reconcile_interval, Duration::from_secs(5));
    assert_eq!(config.journal.retention, Duration::from_secs(30 * 86_400));
    assert_eq!(config.node.control_socket(), Path::new("/run/hotbunk/control.sock"));
}

#[test]
fn without_any_device_there_is_nvml_s_first() {
    let (config, _) = check(&with("[[device]]\nname = \"gpu0\"\nindex = 0\n", "")).unwrap();
    assert_eq!(config.devices.len(), 1);
    assert_eq!(config.devices[0].source, Source::Nvml(Selector::Index(0)));
    assert_eq!(config.engines[1].devices, [0]);
}

#[test]
fn the_device_none_needs_no_declaration() {
    let (config, warnings) = load(&root().join("systemd/examples/without-gpu.toml"), &facts()).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(config.devices.len(), 1, "no GPU is implied");
    assert_eq!(config.devices[0].source, Source::None);
    assert!(!config.has_device_evidence(0));
    assert_eq!(config.node.metrics_listen, None);
    assert_eq!(config.node.state_dir, root().join("systemd/examples/state"), "from the file's own folder");
}

#[test]
fn an_engine_may_span_devices_and_a_model_have_replicas() {
    let (config, _) = load(&root().join("systemd/examples/two-gpus.toml"), &facts()).unwrap();
    assert_eq!(config.engines[0].devices, [0, 1]);
    assert_eq!(config.engines[0].workers, 2, "read from the command");
    assert_eq!(
        config.engines[0].model_ids().collect::<Vec<_>>(),
        ["meta-llama/Llama-3.3-70B-Instruct", "large"]
    );
    assert_eq!(config.engines[1].model, config.engines[2].model);
    assert_eq!(config.start_sequence(), [0, 1], "the third does not start by itself");
    assert_eq!(config.engines[2].restart.window, Duration::from_secs(1800));
}

#[test]
fn an_engine_without_levels_is_only_stopped() {
    let (config, warnings) = check(&with("port = 8101\n", "port = 8101\nlevels = []\n")).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let a = &config.engines[0];
    assert!(a.sleep_tiers.is_empty() && !a.rehearse && a.rest_tier == Tier::Stopped);
    assert!(a.allows(Tier::Stopped) && a.allows(Tier::Awake) && !a.allows(Tier::Parked));
}

#[test]
fn a_port_that_clients_may_be_given_is_warned_of() {
    let text = SOUND.replace("8101", "40101");
    let told = |facts: &Facts| parse(&text, Path::new("/h.toml"), facts).unwrap().1;
    assert!(told(&facts()).is_empty(), "nothing is known of the machine");
    let client_ports = ClientPorts::parse("32768 60999", "");
    let warnings = told(&Facts { client_ports, ..facts() });
    let [warning] = warnings.problems() else { panic!("{warnings}") };
    assert_eq!((warning.code, warning.key.as_str()), ("port_given_to_clients", "engine[0].port"));
    assert!(warning.help.as_ref().unwrap().contains("ip_local_reserved_ports=40101"), "{warnings}");
    let client_ports = ClientPorts::parse("32768 60999", "40100-40102");
    assert!(told(&Facts { client_ports, ..facts() }).is_empty(), "kept free");
}

#[test]
fn a_simulated_engine_is_not_judged_by_vllm_s_flags() {
    let command = r#"command = ["hotbunk-agent", "sim-engine", "--port", "8101"]"#;
    let (config, warnings) = check(&with(
        r#"command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"]"#,
        command,
    ))
    .unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    assert!(config.engines[0].simulated && !config.engines[1].simulated);
}

#[test]
fn the_port_may_stand_in_the_command_alone() {
    let (config, _) = check(&with("port = 8101\n", "")).unwrap();
    assert_eq!(config.engines[0].port, 8101);
}

#[test]
fn a_key_is_taken_from_the_command_and_never_printed() {
    let (config, _) =
        check(&with(r#""--enable-sleep-mode"]"#, r#""--enable-sleep-mode", "--api-key", "hush"]"#)).unwrap();
    let key = config.engines[0].api_key.as_ref().unwrap();
    assert_eq!(key.reveal(), "hush");
    assert!(!format!("{key:?}").contains("hush"));
}

#[test]
fn a_fingerprint_changes_with_what_needs_a_restart_and_with_nothing_else() {
    let fingerprints = |text: &str| {
        let (config, _) = check(text).unwrap();
        (config.fingerprint(0).unwrap(), config.fingerprint(1).unwrap())
    };
    let before = fingerprints(SOUND);
    // A literal: releases of the agent must agree, or an upgrade would restart every engine.
    assert_eq!(before.0, "70dad3877c8818da");
    for unimportant in [
        "start_timeout = \"5m\"\n",
        "rest_tier = \"level2\"\n",
        "weights = \"1GiB\"\n",
        "autostart = false\n",
    ] {
        assert_eq!(
            fingerprints(&with("port = 8101\n", &format!("port = 8101\n{unimportant}"))),
            before,
            "{unimportant}"
        );
    }
    for important in [
        with("--enable-sleep-mode\"]", "--enable-sleep-mode\", \"--enforce-eager\"]"),
        with("VLLM_SERVER_DEV_MODE = \"1\" }", "VLLM_SERVER_DEV_MODE = \"1\", X = \"1\" }"),
        SOUND.replacen("8101", "8103", 2),
        with("port = 8101\n", "port = 8101\ncwd = \"/tmp\"\n"),
    ] {
        let after = fingerprints(&important);
        assert_ne!(after.0, before.0, "{important}");
        assert_eq!(after.1, before.1, "the neighbour is untouched");
    }
    assert_ne!(fingerprints(&SOUND.replace("index = 0", "index = 1")).0, before.0);
    let (config, _) = check(SOUND).unwrap();
    assert_eq!(config.fingerprint(2), None);
}

#[test]
fn what_an_engine_may_lose_follows_from_the_slack_and_stays_below_it() {
    let recycle =
        |text: &str| check(&with("port = 8101\n", text)).map(|(config, _)| config.engines[0].recycle);
    let default = Recycle { creep_bytes: Some(128 * MIB), sleeps: None };
    assert_eq!(recycle("port = 8101\n").unwrap(), default);
    let never = recycle("port = 8101\nrecycle = { creep = \"0B\", sleeps = 2000 }\n").unwrap();
    assert_eq!(never, Recycle { creep_bytes: None, sleeps: Some(2000) });
    let refused = recycle("port = 8101\nrecycle = { creep = \"1GiB\", sleeps = 1 }\n").unwrap_err();
    let said: Vec<&str> = refused.problems().iter().map(|p| p.message.as_str()).collect();
    assert!(
        said[0].contains("the device's slack is 256.0 MiB") && said[1].contains("after every start"),
        "{said:?}"
    );
}

#[test]
fn the_schema_is_the_one_checked_in() {
    let built = serde_json::to_string_pretty(&crate::config::schema::config_schema()).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/hotbunk.schema.json");
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    if built != checked_in {
        let fresh = std::env::temp_dir().join("hotbunk.schema.json");
        std::fs::write(&fresh, &built).unwrap();
        panic!("{} is not what the raw types say; the fresh one is {}", path.display(), fresh.display());
    }
}

#[test]
fn the_schema_judges_as_the_reader_does() {
    let schema = serde_json::to_value(crate::config::schema::config_schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let valid =
        |text: &str| validator.is_valid(&serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap());
    let dir = root().join("systemd");
    for path in ["hotbunk.toml", "examples/two-gpus.toml", "examples/without-gpu.toml"] {
        assert!(valid(&std::fs::read_to_string(dir.join(path)).unwrap()), "{path}");
    }
    for (part, by) in [
        ("port = 8101\n", "prt = 8101\n"),
        ("port = 8101\n", "port = 70000\n"),
        ("port = 8101\n", "weights = 4\n"),
        ("port = 8101\n", "weights = \"4 GB\"\n"),
        ("port = 8101\n", "rest_tier = \"level3\"\n"),
        ("port = 8101\n", "start_timeout = \"5\"\n"),
        ("name = \"A\"\n", ""),
    ] {
        let text = with(part, by);
        assert!(!valid(&text), "{by}");
        assert!(check(&text).is_err(), "{by}");
    }
}

#[test]
fn a_container_is_read_from_both_of_its_command_lines() {
    let (config, _) = load(&root().join("systemd/examples/containers.toml"), &facts()).unwrap();
    let a = &config.engines[0];
    let container = a.container.as_ref().unwrap();
    assert_eq!(container.stop, ["docker", "stop", "--time", "20", "hotbunk-A"]);
    assert_eq!(container.kill, ["docker", "kill", "hotbunk-A"]);
    assert_eq!((a.kv_cache_bytes, a.gpu_memory_utilization), (Some(4 * GIB), Some(0.75)));
    assert_eq!(a.base_url(), "http://127.0.0.1:8101");
    // The inner port is the container's own business.
    let b = &config.engines[1];
    assert_eq!((b.port, b.host.to_string().as_str()), (8102, "127.0.0.1"));
    let id_file = b.container.as_ref().unwrap().id_file.as_deref();
    assert_eq!(id_file, Some(Path::new("/run/hotbunk/B.cid")));
}

/// What the release is known to do decides: by it a row counts or does not, and without it what only a name suggests is
/// not told.
#[test]
fn known_bad_options_are_judged_by_the_release_where_it_is_known() {
    let warned = |text: &str, minor: Option<u16>| {
        let vllm = minor.map(|minor| Version::new(0, minor, 0));
        let (_, warnings) = parse(text, Path::new("/h.toml"), &Facts { vllm, ..facts() }).unwrap();
        warnings.problems().iter().map(|p| (p.code, p.message.clone())).collect::<Vec<_>>()
    };
    let lora = with("\"--enable-sleep-mode\"]", "\"--enable-sleep-mode\", \"--enable-lora\"]");
    assert_eq!(warned(&lora, None).len(), 1);
    assert_eq!(warned(&lora, Some(27)).len(), 1);
    assert_eq!(warned(&lora, Some(28)), []);
    let named = with("\"serve\", \"a\"", "\"serve\", \"org/a-AWQ\", \"--served-model-name\", \"a\"");
    assert_eq!(warned(&named, None), []);
    assert!(warned(&named, Some(15))[0].1.contains("quantised"));
    assert_eq!(warned(&named, Some(16)), []);
}

#[test]
fn a_gateway_needs_no_word_and_takes_many() {
    let (config, _) = check(SOUND).unwrap();
    assert_eq!(config.gateway, crate::config::Gateway::default());
    let text = format!(
        r#"{SOUND}
[gateway]
listen = "[::1]:0"
hold_deadline = "5s"
tenant_header = "X-Team"

[[tenant]]
name = "red"
key_sha256 = "{}"
max_in_flight = 4
requests_per_second = 2.5
burst = 10
model = [{{ name = "b", requests_per_second = 1 }}]

[[tenant]]
name = "default"
max_queued = 0
"#,
        "Ab".repeat(32)
    );
    let (config, warnings) = check(&text).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let gateway = &config.gateway;
    assert!(gateway.require_key, "somebody has a key");
    assert_eq!(gateway.listen, Some("[::1]:0".parse().unwrap()));
    assert_eq!(gateway.tenants[0].keys, [[0xab; 32]]);
    assert_eq!((gateway.tenants[0].header.as_str(), gateway.tenants[0].weight), ("red", 1));
    let limits = &gateway.tenants[0].limits;
    assert_eq!((limits[0].burst, limits[0].requests_per_second), (Some(10), Some(2.5)));
    assert_eq!((limits[1].burst, limits[1].requests_per_second), (None, Some(1.0)), "a rate of its own");
    assert_eq!(limits[1].max_in_flight, Some(4), "what is not said is as elsewhere");
    assert_eq!(gateway.tenants[1].limits[0].max_queued, Some(0));
}

#[test]
fn turns_and_ladders_reach_the_core() {
    let (config, warnings) = check(&with(
        "port = 8101\n",
        "port = 8101\nmin_residency = \"5s\"\nmax_wait = \"2m\"\nweight = 3\nmax_in_flight = 16\n\
         idle = [{ after = \"30s\", tier = \"parked\" }, { after = \"1d\", tier = \"stopped\" }]\n",
    ))
    .unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let spec = &crate::switcher::spec::engines(&config, |_| None)[0];
    let turn = spec.turn;
    assert_eq!((turn.min_residency, turn.max_wait), (Duration::from_secs(5), Duration::from_secs(120)));
    assert_eq!((turn.weight, turn.pinned, config.engines[0].max_in_flight), (3, false, Some(16)));
    let rungs: Vec<(u64, Tier)> = spec.ladder.iter().map(|rung| (rung.after.as_secs(), rung.tier)).collect();
    assert_eq!(rungs, [(30, Tier::Parked), (86_400, Tier::Stopped)]);
}
