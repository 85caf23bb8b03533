//! What two configurations differ in, setting by setting, by the names that the file has for them.
//!
//! Every field of the configuration is named here once, so that whoever adds one decides what becomes of a change of it
//! in a living agent: whether it is applied, or has to wait for the next agent.

use super::checked::{
    Config, Device, Engine, Journal, Node, Policy, Sampling, Schedule, Secret, Selector, Simulated, Source,
};
use super::gateway::{Gateway, Tenant};
use super::units::{format_duration, format_size};
use std::fmt::{Debug, Display};
use std::time::Duration;

/// A setting that is another one now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Its name: `policy.strategy`, `device gpu0: reserve`.
    pub key: String,
    /// What it was; `None` where there was none.
    pub from: Option<String>,
    /// What it is; `None` where there is none any more.
    pub to: Option<String>,
    /// A living agent cannot apply it.
    pub needs_restart: bool,
}

/// What is different between two configurations, engines apart. The order of the file means nothing.
pub fn changes(former: &Config, now: &Config) -> Vec<Changed> {
    let mut changed = differences(&of_node(former), &of_node(now));
    // With an engine or a tenant its limits come and go: that is said of those.
    changed.retain(|c| !c.key.contains(LIMITS) || (c.from.is_some() && c.to.is_some()));
    changed
}

/// Between a tenant and an engine.
const LIMITS: &str = ": limits on ";

/// The names of an engine's settings that are different. Devices go by index: both are of one order
/// ([`Config::arranged`]).
pub fn of_engine(former: &Engine, now: &Engine) -> Vec<String> {
    let changed = differences(&engine(former), &engine(now));
    changed.into_iter().map(|changed| changed.key).collect()
}

/// One setting.
#[derive(Debug)]
struct Setting {
    key: String,
    /// For people; secrets are not in it.
    told: String,
    /// For comparison.
    exact: String,
    needs_restart: bool,
}

#[derive(Debug, Default)]
struct List {
    prefix: String,
    all: Vec<Setting>,
}

impl List {
    fn add(&mut self, key: &str, told: String, exact: String, needs_restart: bool) {
        self.all.push(Setting { key: format!("{}{key}", self.prefix), told, exact, needs_restart });
    }

    /// Applied in a living agent.
    fn live(&mut self, key: &str, told: impl Display) {
        let told = told.to_string();
        self.add(key, told.clone(), told, false);
    }

    /// Not applied in a living agent.
    fn fixed(&mut self, key: &str, told: impl Display) {
        let told = told.to_string();
        self.add(key, told.clone(), told, true);
    }

    /// Applied; what it is does not fit into a line, or is nobody's business.
    fn opaque(&mut self, key: &str, exact: impl Debug) {
        self.add(key, "set".to_owned(), format!("{exact:?}"), false);
    }
}

fn differences(former: &[Setting], now: &[Setting]) -> Vec<Changed> {
    let find = |list: &'_ [Setting], key: &str| list.iter().position(|s| s.key == key);
    let mut changed: Vec<Changed> = Vec::new();
    for was in former {
        match find(now, &was.key).map(|at| &now[at]) {
            Some(is) if is.exact == was.exact => {}
            is => changed.push(Changed {
                key: was.key.clone(),
                from: Some(was.told.clone()),
                to: is.map(|is| is.told.clone()),
                needs_restart: was.needs_restart,
            }),
        }
    }
    let new = now.iter().filter(|is| find(former, &is.key).is_none());
    changed.extend(new.map(|is| Changed {
        key: is.key.clone(),
        from: None,
        to: Some(is.told.clone()),
        needs_restart: is.needs_restart,
    }));
    changed
}

fn maybe<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

fn time(value: Duration) -> String {
    format_duration(value)
}

fn maybe_time(value: Option<Duration>) -> String {
    maybe(value.map(time))
}

fn maybe_size(value: Option<u64>) -> String {
    maybe(value.map(format_size))
}

/// Everything but the engines.
fn of_node(config: &Config) -> Vec<Setting> {
    // The file's own name is no setting of it; engines are compared one by one.
    let Config { file: _, engines, node, devices, policy, gateway, journal, schedules, simulated } = config;
    let mut list = List::default();
    let names = |at: &[usize]| {
        let names: Vec<&str> = at.iter().filter_map(|at| engines.get(*at)).map(|e| e.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    node_settings(&mut list, node);
    for device in devices {
        device_settings(&mut list, device);
    }
    let Policy { strategy, leave, drain, drain_deadline, awake_at_start } = policy;
    list.prefix = "policy.".to_owned();
    list.live("strategy", strategy.as_str());
    list.live("leave", maybe(*leave));
    list.live("drain", drain.as_str());
    list.live("drain_deadline", time(*drain_deadline));
    list.live("awake_at_start", names(awake_at_start));
    gateway_settings(&mut list, gateway, engines);
    let Journal { retention, sample_retention, max_bytes, on_failure } = journal;
    list.prefix = "journal.".to_owned();
    list.fixed("retention", time(*retention));
    list.fixed("sample_retention", time(*sample_retention));
    list.fixed("max_size", format_size(*max_bytes));
    list.live("on_failure", on_failure.as_str());
    list.prefix.clear();
    for Schedule { name, cron, plan, unless_serving } in schedules {
        let plan = match plan {
            super::PlanRef::BuiltIn(name) => name.clone(),
            super::PlanRef::File(path) => path.display().to_string(),
        };
        let unless = if *unless_serving { "" } else { ", even while serving" };
        list.live(&format!("schedule {name}"), format!("{plan} at {cron}{unless}"));
    }
    if let Some(Simulated { profile, speed, host_scale }) = simulated {
        list.fixed("simulated", format!("profile {profile}, speed {speed}, host_scale {host_scale}"));
    }
    list.all
}

fn node_settings(list: &mut List, node: &Node) {
    let Node {
        state_dir,
        runtime_dir,
        metrics_listen,
        log_filter,
        log_format,
        nvml_library,
        sampling: Sampling { device, handoff, host },
        reconcile_interval,
        stall_after,
        host_memory_reserve,
        shutdown_grace,
        on_stop,
    } = node;
    list.prefix = "node.".to_owned();
    // The journal, the shims' records and every socket lie there.
    list.fixed("state_dir", state_dir.display());
    list.fixed("runtime_dir", runtime_dir.display());
    list.fixed("metrics_listen", maybe(*metrics_listen));
    list.live("log_filter", log_filter);
    list.fixed("log_format", format!("{log_format:?}").to_lowercase());
    list.fixed("nvml_library", maybe(nvml_library.as_ref().map(|path| path.display())));
    list.live("sample_interval", time(*device));
    list.live("handoff_sample_interval", time(*handoff));
    list.live("host_sample_interval", time(*host));
    list.live("reconcile_interval", time(*reconcile_interval));
    list.live("stall_after", time(*stall_after));
    list.live("host_memory_reserve", format_size(*host_memory_reserve));
    list.live("shutdown_grace", time(*shutdown_grace));
    list.live("on_stop", format!("{on_stop:?}").to_lowercase());
}

fn device_settings(list: &mut List, device: &Device) {
    let Device { name, source, capacity_bytes, reserve_bytes, max_awake, slack_bytes } = device;
    let source = match source {
        Source::Nvml(Selector::Uuid(uuid)) => format!("uuid {uuid}"),
        Source::Nvml(Selector::Index(index)) => format!("index {index}"),
        Source::Simulated { ledger } => format!("ledger {}", ledger.display()),
        Source::None => "without memory readings".to_owned(),
    };
    list.prefix = format!("device {name}");
    list.fixed("", source);
    list.prefix.push_str(": ");
    list.fixed("capacity", maybe_size(*capacity_bytes));
    list.live("reserve", format_size(*reserve_bytes));
    list.live("max_awake", max_awake);
    list.live("slack", format_size(*slack_bytes));
}

fn gateway_settings(list: &mut List, gateway: &Gateway, engines: &[Engine]) {
    let Gateway {
        listen,
        max_body,
        max_header,
        header_timeout,
        hold_requests,
        hold_bytes,
        hold_deadline,
        hold_stream_deadline,
        keep_alive,
        upgrade_drain,
        threads,
        tenant_header,
        require_key,
        tenants,
    } = gateway;
    list.prefix = "gateway.".to_owned();
    list.fixed("listen", maybe(*listen));
    list.fixed("threads", maybe(*threads));
    list.live("max_body", format_size(*max_body));
    list.live("max_header", format_size(u64::from(*max_header)));
    list.live("header_timeout", time(*header_timeout));
    list.live("hold_requests", hold_requests);
    list.live("hold_bytes", format_size(*hold_bytes));
    list.live("hold_deadline", time(*hold_deadline));
    list.live("hold_stream_deadline", time(*hold_stream_deadline));
    list.live("keep_alive", time(*keep_alive));
    list.live("upgrade_drain", time(*upgrade_drain));
    list.live("tenant_header", maybe(tenant_header.as_ref()));
    list.live("require_key", require_key);
    list.prefix.clear();
    for tenant in tenants {
        let Tenant { name, keys, header, weight, limits } = tenant;
        let limits: Vec<_> = engines.iter().zip(limits).filter(|(e, _)| !e.retired).collect();
        list.opaque(&format!("tenant {name}"), (keys, header, weight));
        for (engine, limits) in limits {
            list.opaque(&format!("tenant {name}{LIMITS}{}", engine.name), limits);
        }
    }
}

fn engine(engine: &Engine) -> Vec<Setting> {
    let Engine {
        name: _,
        model,
        aliases,
        devices,
        command,
        env,
        unset_env,
        cwd,
        host,
        port,
        api_key,
        autostart,
        start_order,
        rest_tier,
        sleep_tiers,
        rehearse,
        start_timeout,
        stop_grace,
        ready_interval,
        gpu_memory_utilization,
        kv_cache_bytes,
        weights_bytes,
        start_peak_bytes,
        host_bytes,
        residual_bytes,
        workers,
        turn,
        idle,
        max_in_flight,
        restart,
        recycle,
        log,
        op_log,
        container,
        timeouts,
        // Follows from the command.
        simulated: _,
        retired: _,
    } = engine;
    let mut list = List::default();
    list.live("model", model);
    list.opaque("aliases", aliases);
    list.opaque("devices", devices);
    list.opaque("command", command);
    list.opaque("env", env);
    list.opaque("unset_env", unset_env);
    list.opaque("cwd", cwd);
    list.live("host", host);
    list.live("port", port);
    list.opaque("api_key", api_key.as_ref().map(Secret::reveal));
    list.live("autostart", autostart);
    list.live("start_order", start_order);
    list.live("rest_tier", rest_tier);
    list.opaque("levels", sleep_tiers);
    list.live("rehearse", rehearse);
    list.live("start_timeout", time(*start_timeout));
    list.live("stop_grace", time(*stop_grace));
    list.live("ready_interval", time(*ready_interval));
    list.live("gpu_memory_utilization", maybe(*gpu_memory_utilization));
    list.live("kv_cache", maybe_size(*kv_cache_bytes));
    list.live("weights", maybe_size(*weights_bytes));
    list.live("start_peak", maybe_size(*start_peak_bytes));
    list.live("host_memory", maybe_size(*host_bytes));
    list.live("residual", format_size(*residual_bytes));
    list.live("workers", workers);
    list.live("max_wait", time(turn.max_wait));
    list.live("min_residency", time(turn.min_residency));
    list.live("weight", turn.weight);
    list.live("pinned", turn.pinned);
    list.opaque("idle", idle);
    list.live("max_in_flight", maybe(*max_in_flight));
    list.opaque("restart", restart);
    list.opaque("recycle", recycle);
    list.opaque("log", log);
    list.opaque("op_log", op_log);
    list.opaque("container", container);
    list.prefix = "timeouts.".to_owned();
    let super::Timeouts { sleep, wake, reload, probe, is_sleeping, control, memory } = *timeouts;
    let timeouts = [
        ("sleep", sleep),
        ("wake", wake),
        ("reload", reload),
        ("probe", probe),
        ("is_sleeping", is_sleeping),
        ("control", control),
        ("memory", memory),
    ];
    for (key, timeout) in timeouts {
        list.live(key, maybe_time(timeout));
    }
    list.all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, parse};
    use std::path::Path;

    const SOUND: &str = r#"
        [node]
        metrics_listen = "127.0.0.1:9464"
        [policy]
        drain = "wait"
        [[device]]
        name = "gpu0"
        index = 0
        reserve = "1GiB"
        [[tenant]]
        name = "red"
        key_sha256 = "abababababababababababababababababababababababababababababababab"
        max_in_flight = 3
        [[engine]]
        name = "A"
        model = "a"
        port = 8101
        command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"]
        env = { VLLM_SERVER_DEV_MODE = "1", HF_TOKEN = "hidden" }
        api_key = "hidden"
    "#;

    fn config(text: &str) -> Config {
        let parsed = parse(text, Path::new("/etc/hotbunk/hotbunk.toml"), &Facts::default());
        parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false))).0
    }

    /// What a replacement changes, one line each.
    fn told(from: &str, to: &str) -> Vec<String> {
        assert!(SOUND.contains(from), "{from}");
        let now = config(&SOUND.replace(from, to));
        let line = |c: Changed| {
            let restart = if c.needs_restart { " (restart)" } else { "" };
            format!("{}: {} → {}{restart}", c.key, maybe(c.from), maybe(c.to))
        };
        changes(&config(SOUND), &now).into_iter().map(line).collect()
    }

    #[test]
    fn a_change_is_told_by_the_name_that_the_file_has_for_it() {
        assert_eq!(told("\"wait\"", "\"wait\""), Vec::<String>::new());
        assert_eq!(told("\"wait\"", "\"freeze\""), ["policy.drain: wait → freeze"]);
        assert_eq!(told("\"1GiB\"", "\"2GiB\""), ["device gpu0: reserve: 1GiB → 2GiB"]);
        assert_eq!(told("index = 0", "index = 1"), ["device gpu0: index 0 → index 1 (restart)"]);
        assert_eq!(
            told("127.0.0.1:9464", "127.0.0.1:9465"),
            ["node.metrics_listen: 127.0.0.1:9464 → 127.0.0.1:9465 (restart)"]
        );
        assert_eq!(told("max_in_flight = 3", "max_in_flight = 4"), ["tenant red: limits on A: set → set"]);
        assert_eq!(told("\"red\"", "\"blue\""), ["tenant red: set → none", "tenant blue: none → set"]);
    }

    #[test]
    fn another_device_needs_another_agent() {
        let more = config(&format!("{SOUND}\ndevice = \"gpu0\"\n[[device]]\nname = \"gpu1\"\nindex = 1\n"));
        let both = |from: &Config, to: &Config| {
            let all = changes(from, to).into_iter().filter(|c| c.needs_restart);
            all.map(|c| (c.key, c.from.is_some(), c.to.is_some())).collect::<Vec<_>>()
        };
        let sound = config(SOUND);
        let of =
            |was, is| [("device gpu1".to_owned(), was, is), ("device gpu1: capacity".to_owned(), was, is)];
        assert_eq!(both(&sound, &more), of(false, true));
        assert_eq!(both(&more, &sound), of(true, false));
        // The order of the file means nothing.
        let mut turned = more.clone();
        turned.devices.reverse();
        assert_eq!(changes(&more, &turned), []);
    }

    #[test]
    fn of_an_engine_the_keys_are_told_and_no_secret() {
        let keys = |from: &str, to: &str| {
            assert!(SOUND.contains(from), "{from}");
            of_engine(&config(SOUND).engines[0], &config(&SOUND.replace(from, to)).engines[0])
        };
        assert_eq!(keys("HF_TOKEN = \"hidden\"", "HF_TOKEN = \"other\""), ["env"]);
        assert_eq!(keys("api_key = \"hidden\"", "api_key = \"other\""), ["api_key"]);
        assert_eq!(
            keys("model = \"a\"", "model = \"a\"\nmax_wait = \"9s\"\ntimeouts = { wake = \"7s\" }"),
            ["max_wait", "timeouts.wake"]
        );
        assert_eq!(
            keys("\"--enable-sleep-mode\"", "\"--enable-sleep-mode\", \"--tensor-parallel-size\", \"1\""),
            ["command"]
        );
    }
}
