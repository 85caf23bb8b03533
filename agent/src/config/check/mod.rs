//! From the file as written to the configuration as used.
//!
//! Every check runs, whatever the others found; a value that is wrong is replaced by something harmless for the rest
//! of the checks, and the configuration is given out only if nothing was wrong. A check looks at values that are
//! there and readable: what was reported once is not reported again as missing.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::checked::{
    Config, Device, Drain, GIB, Journal, LogFormat, MIB, Node, PlanRef, Policy, Sampling, Schedule, Selector,
    Simulated, Source, Strategy,
};
use super::cron;
use super::cycle_plan::{self, CyclePlan};
use super::diagnostics::Problems;
use super::places::Facts;
use super::raw::{RawConfig, RawDevice, RawNode, RawSchedule};
use super::reader::{Field, Located, Span, list, nearest};
use super::{read_text, resolve, units};

mod command;
mod engine;
mod flags;
mod memory;

/// The name of the device without memory readings.
pub(super) const NO_DEVICE: &str = "none";

/// What every check needs.
pub(super) struct Checking<'a> {
    file: &'a Path,
    facts: &'a Facts,
    problems: &'a mut Problems,
}

/// Checks everything. `None` where there is nothing to build on; the caller looks at the problems as well.
pub(super) fn check(raw: &RawConfig, file: &Path, facts: &Facts, problems: &mut Problems) -> Option<Config> {
    let mut checking = Checking { file, facts, problems };
    let devices = checking.devices(raw);
    let (engines, devices) = engine::engines(&mut checking, raw, devices);
    let node = checking.node(raw);
    checking.ports_and_sockets(raw, &node, &engines);
    let names: Vec<String> = engines.iter().map(|e| e.name.clone()).collect();
    let policy = checking.policy(raw, &names);
    let config = Config {
        file: file.to_owned(),
        node,
        devices,
        engines,
        policy,
        journal: checking.journal(raw),
        schedules: checking.schedules(raw),
        simulated: checking.simulated(raw),
    };
    checking.unused_devices(raw, &config);
    checking.graces(raw, &config);
    checking.awake_at_start(raw, &config);
    memory::check(&mut checking, raw, &config);
    (!config.engines.is_empty()).then_some(config)
}

/// Reads and expands the plan files that schedules name.
pub(super) fn plan_files(raw: &RawConfig, config: &Config, problems: &mut Problems) {
    let Some(schedules) = raw.schedule.get() else { return };
    let engines: Vec<String> = config.engines.iter().map(|e| e.name.clone()).collect();
    for (i, (raw, schedule)) in schedules.iter().zip(&config.schedules).enumerate() {
        let (Some(written), PlanRef::File(path)) = (raw.value.plan.located(), &schedule.plan) else {
            continue;
        };
        let checked = read_text(path, "cycle plan")
            .and_then(|text| CyclePlan::parse(&text, path))
            .and_then(|(plan, _)| plan.expand(&engines, &cycle_plan::Options::default()));
        if let Err(diagnostics) = checked {
            let first = diagnostics.problems().first();
            let reason = first.map_or_else(String::new, |problem| {
                let line = problem.position.map_or_else(String::new, |at| format!("line {}: ", at.line));
                format!("{line}{}", problem.message)
            });
            let message = format!("the cycle plan {} cannot be used: {reason}", path.display());
            let more = match diagnostics.problems().len() {
                0 | 1 => String::new(),
                n => format!("; there are {} more problems in it", n - 1),
            };
            let help = first.and_then(|problem| problem.help.as_deref()).unwrap_or("correct the plan file");
            problems
                .error("bad_plan", &written.span, format!("schedule[{i}].plan"), message)
                .help(format!("{help}{more}"));
        }
    }
}

/// A name that must be given and not empty; otherwise a report, and a stand-in.
fn required(
    problems: &mut Problems,
    field: &Field<String>,
    table: &Range<usize>,
    (path, key): (&str, &str),
    example: &str,
) -> Option<Located<String>> {
    match field {
        Field::Given(text) if text.value.trim().is_empty() => {
            problems
                .error("empty", &text.span, format!("{path}.{key}"), format!("`{path}.{key}` is empty"))
                .help(format!("write {example}"));
            None
        }
        Field::Given(text) => Some(text.clone()),
        Field::Bad => None,
        Field::Absent => {
            missing(problems, table, path, key, example);
            None
        }
    }
}

/// Reports a key that is not there.
fn missing(problems: &mut Problems, table: &Range<usize>, path: &str, key: &str, example: &str) {
    problems
        .error("missing_key", table, format!("{path}.{key}"), format!("`{path}` has no `{key}`"))
        .help(format!("add {example}"));
}

/// Whether a short name is one: 1 to 32 letters, digits, `_` and `-`.
fn is_short_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn check_short_name(problems: &mut Problems, name: &Located<String>, path: &str) {
    if !is_short_name(&name.value) {
        problems
            .error("bad_name", &name.span, format!("{path}.name"), format!("\"{}\" is no name", name.value))
            .help(
                "use 1 to 32 letters, digits, `_` and `-`: names become labels, file names and socket names",
            );
    }
}

/// Reports names that stand twice.
fn duplicates<'n>(
    problems: &mut Problems,
    names: impl IntoIterator<Item = (&'n Located<String>, String)>,
    (code, what): (&'static str, &str),
) {
    let mut first: HashMap<&str, &Range<usize>> = HashMap::new();
    for (name, key) in names {
        match first.get(name.value.as_str()) {
            None => {
                first.insert(&name.value, &name.span);
            }
            Some(before) => {
                problems
                    .error(code, &name.span, key, format!("{what} \"{}\" stands twice", name.value))
                    .related(before, "first here")
                    .help("give each its own");
            }
        }
    }
}

fn path_text(path: &Path) -> usize {
    path.as_os_str().len()
}

impl Checking<'_> {
    fn resolve(&self, written: &str) -> PathBuf {
        resolve(self.file, written)
    }

    /// A path that is not empty, from the file's folder.
    fn path(&mut self, field: &Field<String>, key: &str) -> Option<PathBuf> {
        let written = field.located()?;
        if written.value.is_empty() || written.value.contains('\0') {
            self.problems
                .error("bad_path", &written.span, key, format!("`{key}` is no path"))
                .help("write a path, relative to the folder of this file or absolute");
            return None;
        }
        if written.value.starts_with("~/") {
            self.problems
                .error("bad_path", &written.span, key, "`~` is not expanded here")
                .help("write the whole path");
        }
        Some(self.resolve(&written.value))
    }

    /// A duration of at least `least`, or the default.
    fn duration(&mut self, field: &Field<Span>, key: &str, default: Duration, least: Duration) -> Duration {
        let Some(given) = field.located() else { return default };
        self.at_least(given, key, least);
        given.value.0
    }

    fn at_least(&mut self, given: &Located<Span>, key: &str, least: Duration) {
        if given.value.0 < least {
            let least = units::format_duration(least);
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` is shorter than {least}"))
                .help(format!("write at least \"{least}\""));
        }
    }

    fn node(&mut self, raw: &RawConfig) -> Node {
        let default = RawNode::default();
        let raw = raw.node.get().unwrap_or(&default);
        let ms = Duration::from_millis;
        Node {
            state_dir: self
                .path(&raw.state_dir, "node.state_dir")
                .unwrap_or_else(|| self.facts.state_dir.clone()),
            runtime_dir: self
                .path(&raw.runtime_dir, "node.runtime_dir")
                .unwrap_or_else(|| self.facts.runtime_dir.clone()),
            metrics_listen: self.metrics_listen(&raw.metrics_listen),
            log_filter: self.log_filter(&raw.log_filter),
            log_format: raw.log_format.or(LogFormat::Text),
            nvml_library: self.path(&raw.nvml_library, "node.nvml_library"),
            sampling: Sampling {
                device: self.duration(&raw.sample_interval, "node.sample_interval", ms(100), ms(10)),
                handoff: self.duration(
                    &raw.handoff_sample_interval,
                    "node.handoff_sample_interval",
                    ms(10),
                    ms(1),
                ),
                host: self.duration(
                    &raw.host_sample_interval,
                    "node.host_sample_interval",
                    ms(1000),
                    ms(100),
                ),
            },
            reconcile_interval: self.duration(
                &raw.reconcile_interval,
                "node.reconcile_interval",
                ms(5000),
                ms(100),
            ),
            host_memory_reserve: raw.host_memory_reserve.get().map_or(4 * GIB, |size| size.0),
            shutdown_grace: self.duration(&raw.shutdown_grace, "node.shutdown_grace", ms(60_000), ms(1000)),
        }
    }

    fn metrics_listen(&mut self, field: &Field<String>) -> Option<SocketAddr> {
        let default = SocketAddr::from(([127, 0, 0, 1], 9464));
        let Some(given) = field.located() else { return Some(default) };
        if given.value == "none" {
            return None;
        }
        if let Ok(address) = given.value.parse::<SocketAddr>() {
            return Some(address);
        }
        let port = given.value.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        let help = match port {
            Some(port) => format!("write \"127.0.0.1:{port}\", \"[::1]:{port}\" or \"none\""),
            None => "write an address and a port, as in \"127.0.0.1:9464\", or \"none\"".to_owned(),
        };
        let message = format!("\"{}\" is no address to listen on", given.value);
        self.problems.error("bad_address", &given.span, "node.metrics_listen", message).help(help);
        Some(default)
    }

    fn log_filter(&mut self, field: &Field<String>) -> String {
        let Some(given) = field.located() else { return "info".to_owned() };
        if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&given.value) {
            self.problems
                .error(
                    "bad_filter",
                    &given.span,
                    "node.log_filter",
                    format!("this log filter does not parse: {error}"),
                )
                .help("write a level, or levels by target, as in \"info,hotbunk_agent=debug\"");
        }
        given.value.clone()
    }

    fn devices(&mut self, raw: &RawConfig) -> Vec<Device> {
        let Some(list) = raw.device.get().filter(|list| !list.is_empty()) else {
            // One card is the usual node; whether it is there, the driver will say.
            let source = Source::Nvml(Selector::Index(0));
            return vec![device_of("gpu0".to_owned(), source, &RawDevice::default())];
        };
        let names = list
            .iter()
            .enumerate()
            .filter_map(|(i, d)| Some((d.value.name.located()?, format!("device[{i}].name"))));
        duplicates(self.problems, names, ("duplicate_name", "the device name"));
        self.same_card_twice(list);
        list.iter().enumerate().map(|(i, raw)| self.device(i, raw)).collect()
    }

    fn device(&mut self, i: usize, raw: &Located<RawDevice>) -> Device {
        let path = format!("device[{i}]");
        let (raw, table) = (&raw.value, &raw.span);
        let name = required(self.problems, &raw.name, table, (&path, "name"), "`name = \"gpu0\"`");
        if let Some(name) = &name {
            check_short_name(self.problems, name, &path);
        }
        let name = name.map_or_else(|| path.clone(), |name| name.value);
        let source = self.source(&path, &name, raw, table);
        if let Some(awake) = raw.max_awake.located().filter(|awake| awake.value == 0) {
            let key = format!("{path}.max_awake");
            self.problems
                .error("out_of_range", &awake.span, key, "with `max_awake = 0` no engine could ever serve")
                .help("leave it out for 1");
        }
        if let (Some(capacity), Some(reserve)) = (raw.capacity.get(), raw.reserve.located())
            && reserve.value.0 >= capacity.0
        {
            self.problems
                .error(
                    "out_of_range",
                    &reserve.span,
                    format!("{path}.reserve"),
                    "the reserve is the whole device",
                )
                .help("leave it out for 1GiB");
        }
        device_of(name, source, raw)
    }

    fn source(&mut self, path: &str, name: &str, raw: &RawDevice, table: &Range<usize>) -> Source {
        let given: Vec<(&str, &Range<usize>)> = [
            raw.uuid.located().map(|x| ("uuid", &x.span)),
            raw.index.located().map(|x| ("index", &x.span)),
            raw.ledger.located().map(|x| ("ledger", &x.span)),
        ]
        .into_iter()
        .flatten()
        .collect();
        if let [(first, before), (second, span), ..] = given.as_slice() {
            let message = format!("`{path}` has both `{first}` and `{second}`");
            self.problems
                .error("conflict", span, format!("{path}.{second}"), message)
                .related(before, "and this")
                .help("keep one: `uuid` or `index` for a GPU, `ledger` for a simulated one");
        }
        if name == NO_DEVICE {
            if let Some((key, span)) = given.first() {
                let message = "the device \"none\" is the one without memory readings";
                self.problems
                    .error("conflict", span, format!("{path}.{key}"), message)
                    .help(format!("drop `{key}`, or give the device another name"));
            }
            return Source::None;
        }
        if let Some(uuid) = raw.uuid.located() {
            if !uuid.value.starts_with("GPU-") && !uuid.value.starts_with("MIG-") {
                self.problems
                    .error("bad_uuid", &uuid.span, format!("{path}.uuid"), "this is no UUID of NVML's")
                    .help("write it as `nvidia-smi -L` prints it: \"GPU-…\"");
            }
            return Source::Nvml(Selector::Uuid(uuid.value.clone()));
        }
        if let Some(index) = raw.index.get() {
            return Source::Nvml(Selector::Index(*index));
        }
        if let Some(ledger) = self.path(&raw.ledger, &format!("{path}.ledger")) {
            return Source::Simulated { ledger };
        }
        if raw.uuid.is_absent() && raw.index.is_absent() && raw.ledger.is_absent() {
            let message = format!("`{path}` does not say which GPU it is");
            self.problems
                .error("missing_key", table, format!("{path}.uuid"), message)
                .help("add `uuid = \"GPU-…\"` (see `nvidia-smi -L`) or `index = 0`, or `ledger` for a simulated one");
        }
        Source::None
    }

    fn same_card_twice(&mut self, devices: &[Located<RawDevice>]) {
        let mut seen: HashMap<String, &Range<usize>> = HashMap::new();
        for (i, device) in devices.iter().enumerate() {
            let raw = &device.value;
            let uuid = raw.uuid.located().map(|x| ("uuid", x.value.clone(), &x.span));
            let index = raw.index.located().map(|x| ("index", x.value.to_string(), &x.span));
            let ledger = raw.ledger.located().map(|x| ("ledger", x.value.clone(), &x.span));
            for (key, value, span) in [uuid, index, ledger].into_iter().flatten() {
                if let Some(before) = seen.insert(format!("{key} {value}"), span) {
                    let message = format!("two devices have the {key} {value}");
                    self.problems
                        .error("duplicate_device", span, format!("device[{i}].{key}"), message)
                        .related(before, "first here")
                        .help("declare each GPU once, and let engines name it");
                }
            }
        }
    }

    fn unused_devices(&mut self, raw: &RawConfig, config: &Config) {
        for (i, device) in raw.device.get().into_iter().flatten().enumerate() {
            let used = config.engines.iter().any(|engine| engine.devices.contains(&i));
            if let (false, Some(name)) = (used, device.value.name.located()) {
                let message = format!("no engine uses the device \"{}\"", name.value);
                self.problems
                    .warning("unused_device", &name.span, format!("device[{i}].name"), message)
                    .help("drop it, or name it in an engine's `device`");
            }
        }
    }

    /// An engine's grace beyond the agent's own is never used up.
    fn graces(&mut self, raw: &RawConfig, config: &Config) {
        for (i, (raw, engine)) in raw.engine.get().into_iter().flatten().zip(&config.engines).enumerate() {
            let Some(given) = raw.value.stop_grace.located() else { continue };
            if engine.stop_grace > config.node.shutdown_grace {
                let all = units::format_duration(config.node.shutdown_grace);
                let message = format!(
                    "this is longer than `shutdown_grace` of [node], {all}: a shutdown ends it early"
                );
                self.problems
                    .warning("grace", &given.span, format!("engine[{i}].stop_grace"), message)
                    .help("raise `shutdown_grace`, and TimeoutStopSec of the unit above it");
            }
        }
    }

    fn ports_and_sockets(&mut self, raw: &RawConfig, node: &Node, engines: &[super::checked::Engine]) {
        if let (Some(metrics), Some(span)) = (node.metrics_listen, metrics_span(raw))
            && let Some(engine) =
                engines.iter().find(|engine| engine.port == metrics.port() && engine.port != 0)
        {
            let message = format!("port {} is the engine {}'s", metrics.port(), engine.name);
            self.problems
                .error("duplicate_port", &span, "node.metrics_listen", message)
                .help("listen on another port");
        }
        // 108 bytes with the terminator; shims and the control API name their sockets `NAME.WORD.sock`.
        let longest = engines.iter().map(|engine| engine.name.len()).max().unwrap_or(0).max("control".len());
        let needed = path_text(&node.runtime_dir) + 1 + longest + ".control.sock".len();
        if needed > 107 {
            let message = format!(
                "sockets in {} would have paths of {needed} bytes, and 107 is the most",
                node.runtime_dir.display()
            );
            let written = raw.node.get().and_then(|node| node.runtime_dir.located());
            let span = written.map_or(0..0, |written| written.span.clone());
            self.problems
                .error("socket_path", &span, "node.runtime_dir", message)
                .help("set `runtime_dir` in [node] to a shorter path, as /run/hotbunk");
        }
    }

    fn policy(&mut self, raw: &RawConfig, engines: &[String]) -> Policy {
        let default = super::raw::RawPolicy::default();
        let raw = raw.policy.get().unwrap_or(&default);
        if let Some(leave) = raw.leave.located().filter(|leave| leave.value == Tier::Awake) {
            self.problems
                .error("conflict", &leave.span, "policy.leave", "a handoff cannot leave the outgoing engine awake")
                .help("use parked, level1, level2 or stopped; `max_awake` of the device allows two awake engines");
        }
        let mut awake = Vec::new();
        for name in raw.awake_at_start.get().map_or(&[][..], |names| names.0.as_slice()) {
            match engines.iter().position(|engine| *engine == name.value) {
                Some(index) if awake.contains(&index) => {}
                Some(index) => awake.push(index),
                None => {
                    let known = list(engines.iter().map(String::as_str));
                    let help = match nearest(&name.value, engines.iter().map(String::as_str)) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("the engines are {known}"),
                    };
                    let message = format!("there is no engine \"{}\"", name.value);
                    self.problems
                        .error("unknown_engine", &name.span, "policy.awake_at_start", message)
                        .help(help);
                }
            }
        }
        Policy {
            strategy: raw.strategy.or(Strategy::Auto),
            leave: raw.leave.get().copied(),
            drain: raw.drain.or(Drain::Wait),
            drain_deadline: raw.drain_deadline.get().map_or(Duration::from_secs(30), |span| span.0),
            awake_at_start: awake,
        }
    }

    fn awake_at_start(&mut self, raw: &RawConfig, config: &Config) {
        let Some(written) = raw.policy.get().and_then(|policy| policy.awake_at_start.located()) else {
            return;
        };
        for (index, device) in config.devices.iter().enumerate() {
            let on_it = |engine: &&usize| config.engines[**engine].devices.contains(&index);
            let count = config.policy.awake_at_start.iter().filter(on_it).count();
            if count > usize::from(device.max_awake) {
                let message = format!(
                    "{count} engines are to be awake on {}, and its `max_awake` is {}",
                    device.name, device.max_awake
                );
                self.problems
                    .error("too_many_awake", &written.span, "policy.awake_at_start", message)
                    .help("name fewer, or raise the device's `max_awake`");
            }
        }
        for &index in &config.policy.awake_at_start {
            let engine = &config.engines[index];
            if !engine.autostart {
                let message =
                    format!("{} is to be awake at start, and its `autostart` is false", engine.name);
                self.problems
                    .error("conflict", &written.span, "policy.awake_at_start", message)
                    .help("drop one of the two");
            }
        }
    }

    fn journal(&mut self, raw: &RawConfig) -> Journal {
        let default = super::raw::RawJournal::default();
        let raw = raw.journal.get().unwrap_or(&default);
        let day = Duration::from_secs(86_400);
        let minute = Duration::from_secs(60);
        let max_bytes = raw.max_size.get().map_or(GIB, |size| size.0);
        if let Some(size) = raw.max_size.located().filter(|size| size.value.0 < MIB) {
            self.problems
                .error("out_of_range", &size.span, "journal.max_size", "a journal needs at least 1MiB")
                .help("leave it out for 1GiB");
        }
        Journal {
            retention: self.duration(&raw.retention, "journal.retention", 30 * day, minute),
            sample_retention: self.duration(
                &raw.sample_retention,
                "journal.sample_retention",
                7 * day,
                minute,
            ),
            max_bytes,
        }
    }

    fn schedules(&mut self, raw: &RawConfig) -> Vec<Schedule> {
        let list = raw.schedule.get().map_or(&[][..], Vec::as_slice);
        let names = list
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((s.value.name.located()?, format!("schedule[{i}].name"))));
        duplicates(self.problems, names, ("duplicate_name", "the schedule name"));
        list.iter().enumerate().map(|(i, raw)| self.schedule(i, raw)).collect()
    }

    fn schedule(&mut self, i: usize, raw: &Located<RawSchedule>) -> Schedule {
        let path = format!("schedule[{i}]");
        let (raw, table) = (&raw.value, &raw.span);
        let name = required(self.problems, &raw.name, table, (&path, "name"), "`name = \"nightly\"`");
        if let Some(name) = &name {
            check_short_name(self.problems, name, &path);
        }
        let cron = required(self.problems, &raw.cron, table, (&path, "cron"), "`cron = \"30 3 * * *\"`");
        if let Some(cron) = &cron
            && let Err(error) = cron::check(&cron.value)
        {
            self.problems
                .error("bad_cron", &cron.span, format!("{path}.cron"), error.to_string())
                .help("write minute, hour, day, month, weekday, as in \"30 3 * * *\" (daily at 03:30)");
        }
        let plan = required(self.problems, &raw.plan, table, (&path, "plan"), "`plan = \"reference\"`");
        let text = |value: Option<Located<String>>| value.map(|value| value.value).unwrap_or_default();
        Schedule {
            plan: plan
                .map_or_else(|| PlanRef::BuiltIn("reference".to_owned()), |plan| self.plan(&plan, &path)),
            name: text(name),
            cron: text(cron),
            unless_serving: raw.unless_serving.or(true),
        }
    }

    fn plan(&mut self, plan: &Located<String>, path: &str) -> PlanRef {
        let built_in = cycle_plan::BUILT_IN.iter().map(|(name, _)| *name);
        if built_in.clone().any(|name| name == plan.value) {
            return PlanRef::BuiltIn(plan.value.clone());
        }
        if plan.value.contains('/') || plan.value.ends_with(".toml") {
            return PlanRef::File(self.resolve(&plan.value));
        }
        let help = match nearest(&plan.value, built_in.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"? A file is named with its .toml"),
            None => format!("the built-in plans are {}; a file is named with its .toml", list(built_in)),
        };
        let message = format!("there is no cycle plan \"{}\"", plan.value);
        self.problems.error("unknown_plan", &plan.span, format!("{path}.plan"), message).help(help);
        PlanRef::BuiltIn(plan.value.clone())
    }

    fn simulated(&mut self, raw: &RawConfig) -> Option<Simulated> {
        let table = raw.simulated.located()?;
        let raw = &table.value;
        let profile = required(
            self.problems,
            &raw.profile,
            &table.span,
            ("simulated", "profile"),
            "`profile = \"l20\"`",
        );
        for (key, field) in [("speed", &raw.speed), ("host_scale", &raw.host_scale)] {
            if let Some(value) = field.located().filter(|value| value.value <= 0.0) {
                let key = format!("simulated.{key}");
                let message = format!("`{key}` must be greater than 0");
                self.problems.error("out_of_range", &value.span, key, message).help("leave it out for 1");
            }
        }
        let profile = profile.map(|profile| profile.value).unwrap_or_default();
        Some(Simulated { profile, speed: raw.speed.or(1.0), host_scale: raw.host_scale.or(1.0) })
    }
}

fn metrics_span(raw: &RawConfig) -> Option<Range<usize>> {
    let written =
        raw.node.get().and_then(|node| node.metrics_listen.located()).map(|given| given.span.clone());
    // The default port can be an engine's as well; then the engine's own line is the one to show.
    written.or_else(|| {
        raw.engine.get().into_iter().flatten().find_map(|e| {
            e.value.port.located().filter(|port| port.value == 9464).map(|port| port.span.clone())
        })
    })
}

fn device_of(name: String, source: Source, raw: &RawDevice) -> Device {
    Device {
        name,
        source,
        capacity_bytes: raw.capacity.get().map(|size| size.0),
        reserve_bytes: raw.reserve.get().map_or(GIB, |size| size.0),
        max_awake: raw.max_awake.or(1),
        slack_bytes: raw.slack.get().map_or(256 * MIB, |size| size.0),
    }
}
