//! The engines: names, models, devices, addresses, tiers, and what each says about itself twice.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;

use hotbunk_core::tier::Tier;

use super::command::{Command, Program, Value, parse_vllm_bytes};
use super::{Checking, NO_DEVICE, check_short_name, device_of, duplicates, flags, missing, required};
use crate::config::checked::{Device, Engine, GIB, LogFiles, MIB, Restart, Secret, Source, Timeouts};
use crate::config::raw::{RawConfig, RawDevice, RawEngine, RawLog, RawRestart, RawTimeouts};
use crate::config::reader::{Field, Located, Size, list, nearest};
use crate::config::units::{format_size, parse_size};

/// Checks all engines. Gives them with the devices, to which `none` is added where an engine asks for it.
pub(super) fn engines(
    checking: &mut Checking<'_>,
    raw: &RawConfig,
    mut devices: Vec<Device>,
) -> (Vec<Engine>, Vec<Device>) {
    let list = raw.engine.get().map_or(&[][..], Vec::as_slice);
    if raw.engine.is_absent() || raw.engine.get().is_some_and(Vec::is_empty) {
        checking
            .problems
            .error("missing_key", &(0..0), "engine", "the configuration has no engine")
            .help("add an [[engine]] table with `name`, `model`, `port` and `command`");
    }
    let names = list
        .iter()
        .enumerate()
        .filter_map(|(i, e)| Some((e.value.name.located()?, format!("engine[{i}].name"))));
    duplicates(checking.problems, names, ("duplicate_name", "the engine name"));
    let asks_for_none = |e: &Located<RawEngine>| named_devices(&e.value).any(|name| name.value == NO_DEVICE);
    if list.iter().any(asks_for_none) && !devices.iter().any(|d| d.name == NO_DEVICE) {
        let none = device_of(NO_DEVICE.to_owned(), Source::None, &RawDevice::default());
        // Without any [[device]] the implied GPU goes, unless somebody relies on it.
        if raw.device.is_absent() && list.iter().all(|e| named_devices(&e.value).next().is_some()) {
            devices.clear();
        }
        devices.push(none);
    }
    let engines: Vec<Engine> = list
        .iter()
        .enumerate()
        .map(|(i, raw)| {
            OneEngine { checking, path: format!("engine[{i}]"), raw: &raw.value, table: &raw.span }
                .check(&devices)
        })
        .collect();
    ports(checking, list, &engines);
    models(checking, list, &engines);
    (engines, devices)
}

fn named_devices(raw: &RawEngine) -> impl Iterator<Item = &Located<String>> {
    raw.device.located().into_iter().chain(raw.devices.get().into_iter().flatten())
}

/// Two engines cannot listen on one port.
fn ports(checking: &mut Checking<'_>, list: &[Located<RawEngine>], engines: &[Engine]) {
    let mut seen: HashMap<u16, (Range<usize>, &str)> = HashMap::new();
    for (i, (raw, engine)) in list.iter().zip(engines).enumerate().filter(|(_, (_, engine))| engine.port != 0)
    {
        let span = raw.value.port.located().map_or_else(|| raw.span.clone(), |port| port.span.clone());
        if let Some((before, name)) = seen.get(&engine.port) {
            let free = (engine.port..).find(|port| engines.iter().all(|e| e.port != *port)).unwrap_or(8000);
            let message = format!("port {} is the engine {name}'s already", engine.port);
            checking
                .problems
                .error("duplicate_port", &span, format!("engine[{i}].port"), message)
                .related(before, "first here")
                .help(format!("use another, as {free}"));
        } else {
            seen.insert(engine.port, (span, &engine.name));
        }
    }
}

/// One id names one model on a device. (On different devices it names replicas.)
fn models(checking: &mut Checking<'_>, list: &[Located<RawEngine>], engines: &[Engine]) {
    let mut seen: HashMap<&str, Vec<(usize, &Range<usize>)>> = HashMap::new();
    for (i, raw) in list.iter().enumerate() {
        let model = raw.value.model.located().map(|model| ("model".to_owned(), model));
        let aliases = raw.value.aliases.get().into_iter().flatten().enumerate();
        let ids = model.into_iter().chain(aliases.map(|(k, alias)| (format!("aliases[{k}]"), alias)));
        for (key, id) in ids {
            let before = seen.entry(id.value.as_str()).or_default();
            let clash = before.iter().find(|(other, _)| {
                *other == i || engines[*other].devices.iter().any(|d| engines[i].devices.contains(d))
            });
            if let Some((other, span)) = clash {
                let whose = if *other == i {
                    "this engine".to_owned()
                } else {
                    format!("the engine {}", engines[*other].name)
                };
                checking
                    .problems
                    .error(
                        "duplicate_model",
                        &id.span,
                        format!("engine[{i}].{key}"),
                        format!("\"{}\" already names {whose}'s model", id.value),
                    )
                    .related(span, "first here")
                    .help("requests are routed by this id: on one device it can name one engine only");
            }
            before.push((i, &id.span));
        }
    }
}

struct OneEngine<'c, 'a, 'r> {
    checking: &'c mut Checking<'a>,
    path: String,
    raw: &'r RawEngine,
    table: &'r Range<usize>,
}

impl OneEngine<'_, '_, '_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn check(mut self, devices: &[Device]) -> Engine {
        let raw = self.raw;
        let args = raw.command.get().map_or(&[][..], Vec::as_slice);
        let command = Command::new(args);
        let name = self.required(&raw.name, "name", "`name = \"A\"`");
        if let Some(name) = &name {
            check_short_name(self.checking.problems, name, &self.path);
        }
        let model = self.required(&raw.model, "model", "`model = \"…\"`, the id that clients ask for");
        let device_indices = self.devices(devices);
        self.command(args);
        self.environment();
        let host = self.host(command);
        let port = self.port(command);
        let api_key = self.api_key(command);
        let sleep_tiers = self.sleep_tiers();
        let rest_tier = self.rest_tier(&sleep_tiers);
        let has_evidence = device_indices.iter().all(|&d| devices[d].source != Source::None);
        let name = name.map_or_else(|| self.path.clone(), |name| name.value);
        let engine = Engine {
            model: model.map(|model| model.value).unwrap_or_default(),
            aliases: texts(&raw.aliases),
            devices: device_indices,
            command: args.iter().map(|arg| arg.value.clone()).collect(),
            env: raw.env.get().into_iter().flatten().map(|(k, v)| (k.clone(), v.value.clone())).collect(),
            unset_env: texts(&raw.unset_env),
            cwd: {
                let key = self.key("cwd");
                self.checking.path(&raw.cwd, &key)
            },
            host,
            port,
            api_key,
            autostart: raw.autostart.or(true),
            start_order: raw.start_order.or(0),
            rest_tier,
            rehearse: raw.rehearse.or(true) && !sleep_tiers.is_empty(),
            start_timeout: self.duration(&raw.start_timeout, "start_timeout", Duration::from_secs(600)),
            stop_grace: raw.stop_grace.get().map_or(Duration::from_secs(10), |span| span.0),
            ready_interval: self.duration(&raw.ready_interval, "ready_interval", Duration::from_millis(250)),
            gpu_memory_utilization: self.utilization(command),
            kv_cache_bytes: self.kv_cache(command),
            weights_bytes: size(&raw.weights),
            start_peak_bytes: size(&raw.start_peak),
            host_bytes: size(&raw.host_memory),
            residual_bytes: size(&raw.residual).unwrap_or(GIB),
            workers: self.workers(command),
            restart: self.restart(),
            log: self.log(),
            op_log: {
                let key = self.key("op_log");
                self.checking.path(&raw.op_log, &key)
            },
            timeouts: self.timeouts(),
            simulated: command.program() == Program::Simulated,
            sleep_tiers,
            name,
        };
        flags::check(
            self.checking,
            &flags::Subject {
                path: &self.path,
                raw,
                table: self.table,
                engine: &engine,
                command,
                has_evidence,
            },
        );
        engine
    }

    fn required(&mut self, field: &Field<String>, key: &str, example: &str) -> Option<Located<String>> {
        required(self.checking.problems, field, self.table, (&self.path, key), example)
    }

    fn devices(&mut self, devices: &[Device]) -> Vec<usize> {
        let raw = self.raw;
        if let (Some(one), Some(many)) = (raw.device.located(), raw.devices.located()) {
            let message = format!("`{}` has both `device` and `devices`", self.path);
            let key = self.key("devices");
            self.checking
                .problems
                .error("conflict", &many.span, key, message)
                .related(&one.span, "and this")
                .help("keep one");
        }
        let names: Vec<&Located<String>> = named_devices(raw).collect();
        if names.is_empty() && raw.device.is_absent() && !matches!(raw.devices, Field::Bad) {
            if let Some(empty) = raw.devices.located() {
                let key = self.key("devices");
                self.checking
                    .problems
                    .error("empty", &empty.span, key, "an engine runs on at least one device")
                    .help("name one, or write `device = \"none\"`");
            } else if devices.len() > 1 {
                let names = list(devices.iter().map(|d| d.name.as_str()));
                missing(
                    self.checking.problems,
                    self.table,
                    &self.path,
                    "device",
                    &format!("`device = …`: the devices are {names}"),
                );
            }
        }
        let mut indices: Vec<usize> = Vec::new();
        for name in names {
            match devices.iter().position(|device| device.name == name.value) {
                Some(index) if indices.contains(&index) => {
                    let key = self.key("devices");
                    let message = format!("the device \"{}\" stands twice", name.value);
                    self.checking
                        .problems
                        .error("duplicate_device", &name.span, key, message)
                        .help("name it once");
                }
                Some(index) => indices.push(index),
                None => self.unknown_device(name, devices),
            }
        }
        if indices.is_empty() {
            indices.push(0);
        }
        if indices.len() > 1 && indices.iter().any(|&d| devices[d].source == Source::None) {
            let key = self.key("devices");
            let span = raw.devices.located().map_or(self.table, |list| &list.span);
            self.checking
                .problems
                .error("conflict", span, key, "\"none\" cannot be combined with a device")
                .help("name real devices only");
        }
        indices
    }

    fn unknown_device(&mut self, name: &Located<String>, devices: &[Device]) {
        let names = || devices.iter().map(|d| d.name.as_str());
        let help = match nearest(&name.value, names()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("the devices are {}; \"none\" is one without memory readings", list(names())),
        };
        let key = self.key("device");
        let message = format!("there is no device \"{}\"", name.value);
        self.checking.problems.error("unknown_device", &name.span, key, message).help(help);
    }

    fn command(&mut self, args: &[Located<String>]) {
        let raw = self.raw;
        if raw.command.is_absent() {
            missing(
                self.checking.problems,
                self.table,
                &self.path,
                "command",
                "`command = [\"vllm\", \"serve\", …]`",
            );
        } else if let Some(command) = raw
            .command
            .located()
            .filter(|command| command.value.first().is_none_or(|p| p.value.trim().is_empty()))
        {
            let key = self.key("command");
            self.checking
                .problems
                .error("empty", &command.span, key, "the command names no program")
                .help("write `command = [\"vllm\", \"serve\", …]`");
        }
        for (k, arg) in args.iter().enumerate().filter(|(_, arg)| arg.value.contains('\0')) {
            let key = self.key(&format!("command[{k}]"));
            self.checking
                .problems
                .error("bad_text", &arg.span, key, "an argument cannot contain a zero byte")
                .help("remove it");
        }
        if Command::new(args).program() == Program::Shell {
            let key = self.key("command");
            let span = raw.command.located().map_or(self.table, |command| &command.span);
            self.checking
                .problems
                .warning(
                    "shell_command",
                    span,
                    key,
                    "a shell hides the engine's flags, and signals reach the shell instead of vLLM",
                )
                .help("write program and arguments one by one, and variables under `env`");
        }
    }

    fn environment(&mut self) {
        for (name, value) in self.raw.env.get().into_iter().flatten() {
            let bad_name = name.is_empty() || name.contains(['=', '\0']);
            if bad_name || value.value.contains('\0') {
                let key = self.key(&format!("env.{name}"));
                self.checking
                    .problems
                    .error("bad_text", &value.span, key, "this cannot be an environment variable")
                    .help("names have no `=`, and neither has a zero byte");
            }
        }
        for (k, name) in self.raw.unset_env.get().into_iter().flatten().enumerate() {
            let key = self.key(&format!("unset_env[{k}]"));
            if name.value.is_empty() || name.value.contains(['=', '\0']) {
                self.checking
                    .problems
                    .error("bad_text", &name.span, key, "this is no name of an environment variable")
                    .help("write the name alone");
            } else if let Some(set) = self.raw.env.get().and_then(|env| env.get(&name.value)) {
                self.checking
                    .problems
                    .error("conflict", &name.span, key, format!("`{}` is set and unset", name.value))
                    .related(&set.span, "set here")
                    .help("keep one");
            }
        }
    }

    /// Engines listen on loopback: vLLM's control routes ask nobody for a key (CONTRACT 1.1).
    fn host(&mut self, command: Command<'_>) -> IpAddr {
        let default = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let said = command.is_readable().then(|| command.value(&["--host"])).flatten();
        let mut host = None;
        if let Some(given) = self.raw.host.located() {
            host = self.loopback(&given.value, &given.span.clone(), "host");
        }
        if let Some(said) = said {
            let read = self.loopback(said.text, said.span, "command");
            if let (Some(written), Some(read)) = (host, read)
                && written != read
            {
                let message = format!("the command listens on {read}, `host` says {written}");
                let key = self.key("command");
                self.checking
                    .problems
                    .error("conflict", said.span, key, message)
                    .help("make them equal, or drop `host`");
            }
            host = host.or(read);
        }
        host.unwrap_or(default)
    }

    fn loopback(&mut self, text: &str, span: &Range<usize>, key: &str) -> Option<IpAddr> {
        let parsed =
            if text == "localhost" { Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)) } else { text.parse::<IpAddr>() };
        match parsed {
            Ok(address) if address.is_loopback() => Some(address),
            other => {
                let key = self.key(key);
                let message = match other {
                    Ok(_) => format!(
                        "{text} is reachable from outside, and vLLM's control routes ask nobody for a key"
                    ),
                    Err(_) => format!("\"{text}\" is no address"),
                };
                self.checking
                    .problems
                    .error("not_loopback", span, key, message)
                    .help("engines listen on loopback: write \"127.0.0.1\"");
                None
            }
        }
    }

    fn port(&mut self, command: Command<'_>) -> u16 {
        let raw = self.raw;
        let said = command.is_readable().then(|| command.value(&["--port"])).flatten();
        let read = said.and_then(|said| said.text.parse::<u16>().ok().filter(|port| *port != 0));
        if let (Some(said), None) = (said, read) {
            let key = self.key("command");
            self.checking
                .problems
                .error("bad_port", said.span, key, format!("\"{}\" is no port", said.text))
                .help("write a number from 1 to 65535");
        }
        if let Some(zero) = raw.port.located().filter(|port| port.value == 0) {
            let key = self.key("port");
            self.checking
                .problems
                .error("bad_port", &zero.span, key, "port 0 would be another at each start")
                .help("write a number from 1 to 65535");
        }
        let mut port = raw.port.get().copied().filter(|port| *port != 0);
        if let (Some(given), Some(read), Some(said)) = (raw.port.located(), read, said) {
            if given.value != read && given.value != 0 {
                let key = self.key("command");
                let message = format!("the command listens on port {read}, `port` says {}", given.value);
                self.checking
                    .problems
                    .error("conflict", said.span, key, message)
                    .related(&given.span, "and here")
                    .help("make them equal, or drop `port`");
            }
        } else if raw.port.is_absent() && said.is_none() {
            missing(
                self.checking.problems,
                self.table,
                &self.path,
                "port",
                "`port = 8101`, and `--port` with the same number to the command",
            );
        }
        if port.is_none() {
            port = read;
        }
        port.unwrap_or(0)
    }

    fn api_key(&mut self, command: Command<'_>) -> Option<Secret> {
        let said = command.is_readable().then(|| command.value(&["--api-key"])).flatten();
        let from_env = self.raw.env.get().and_then(|env| env.get("VLLM_API_KEY"));
        let said = said.or_else(|| from_env.map(|value| Value { text: &value.value, span: &value.span }));
        let given = self.raw.api_key.located();
        if let (Some(given), Some(said)) = (given, said)
            && given.value != said.text
        {
            let key = self.key("api_key");
            self.checking
                .problems
                .error("conflict", &given.span, key, "the command demands another key")
                .related(said.span, "here")
                .help("make them equal, or drop `api_key`");
        }
        given
            .map(|given| given.value.clone())
            .or_else(|| said.map(|said| said.text.to_owned()))
            .map(Secret::new)
    }

    fn sleep_tiers(&mut self) -> Vec<Tier> {
        let mut tiers = Vec::new();
        match self.raw.levels.get() {
            None => tiers.extend([Tier::Level1, Tier::Level2]),
            Some(levels) => {
                for (k, level) in levels.iter().enumerate() {
                    let key = self.key(&format!("levels[{k}]"));
                    match level.value {
                        Tier::Level1 | Tier::Level2 if tiers.contains(&level.value) => {}
                        Tier::Level1 | Tier::Level2 => tiers.push(level.value),
                        other => {
                            let help = match other {
                                Tier::Parked => "parking is allowed by `park = true`, which is the default",
                                _ => "use level1, level2, or neither",
                            };
                            self.checking
                                .problems
                                .error("bad_level", &level.span, key, format!("{other} is no sleep level"))
                                .help(help);
                        }
                    }
                }
            }
        }
        let may_park = self.raw.park.or(true);
        if let Some(park) = self.raw.park.located().filter(|park| park.value && tiers.is_empty()) {
            let key = self.key("park");
            self.checking
                .problems
                .error("conflict", &park.span, key, "an engine without sleep levels cannot be parked")
                .help("drop `park`, or allow a level");
        }
        if may_park && !tiers.is_empty() {
            tiers.push(Tier::Parked);
        }
        tiers.sort();
        tiers
    }

    fn rest_tier(&mut self, sleep_tiers: &[Tier]) -> Tier {
        let default = [Tier::Level1, Tier::Level2]
            .into_iter()
            .find(|tier| sleep_tiers.contains(tier))
            .unwrap_or(Tier::Stopped);
        let Some(given) = self.raw.rest_tier.located() else { return default };
        if given.value != Tier::Stopped && !sleep_tiers.contains(&given.value) {
            let key = self.key("rest_tier");
            let (message, help) = match given.value {
                Tier::Awake => (
                    "an engine rests in a sleeping tier".to_owned(),
                    "name it in `awake_at_start` of [policy] instead",
                ),
                tier => (
                    format!("this engine may not be put to {tier}"),
                    "allow it in `levels`, or rest elsewhere",
                ),
            };
            self.checking.problems.error("bad_level", &given.span, key, message).help(help);
        }
        given.value
    }

    fn utilization(&mut self, command: Command<'_>) -> Option<f64> {
        let said = command.is_readable().then(|| command.value(&["--gpu-memory-utilization"])).flatten();
        let read = said.and_then(|said| said.text.parse::<f64>().ok());
        let given = self.raw.gpu_memory_utilization.located();
        let key = self.key("gpu_memory_utilization");
        let in_range = |value: f64| value > 0.0 && value <= 1.0;
        if let Some(wrong) = given.filter(|given| !in_range(given.value)) {
            self.checking
                .problems
                .error("out_of_range", &wrong.span, key.clone(), "utilisation is a share of the device")
                .help("write a number above 0 and up to 1, as 0.9");
        }
        if let Some(wrong) = said.filter(|_| read.is_none_or(|read| !in_range(read))) {
            let key = self.key("command");
            self.checking
                .problems
                .error(
                    "out_of_range",
                    wrong.span,
                    key,
                    format!("\"{}\" is no share of the device", wrong.text),
                )
                .help("write a number above 0 and up to 1, as 0.9");
        }
        if let (Some(given), Some(said), Some(read)) = (given, said, read)
            && (given.value - read).abs() > 1e-9
        {
            self.differ(&given.span, said, key, "gpu_memory_utilization");
        }
        given.map(|given| given.value).or(read)
    }

    fn kv_cache(&mut self, command: Command<'_>) -> Option<u64> {
        let said = command
            .is_readable()
            .then(|| command.value(&["--kv-cache-memory-bytes", "--kv-cache-memory"]))
            .flatten();
        let read = said.and_then(|said| parse_vllm_bytes(said.text));
        if let (Some(said), None) = (said, read) {
            let key = self.key("command");
            let help = match parse_size(said.text) {
                Ok(bytes) => format!("vLLM reads a number of bytes: write \"{bytes}\""),
                Err(_) => "vLLM reads a number of bytes, or one with K, M or G, as in \"4G\"".to_owned(),
            };
            self.checking
                .problems
                .error("bad_unit", said.span, key, format!("vLLM does not read the size \"{}\"", said.text))
                .help(help);
        }
        let given = self.raw.kv_cache.located();
        if let (Some(given), Some(said), Some(read)) = (given, said, read)
            && given.value.0 != read
        {
            let key = self.key("kv_cache");
            let what = format!("kv_cache (the command says {})", format_size(read));
            self.differ(&given.span, said, key, &what);
        }
        given.map(|given| given.value.0).or(read)
    }

    fn differ(&mut self, given: &Range<usize>, said: Value<'_>, key: String, what: &str) {
        self.checking
            .problems
            .error("conflict", given, key, format!("the command says otherwise about {what}"))
            .related(said.span, "here")
            .help("make them equal, or drop the key: the command's value is used then");
    }

    fn workers(&mut self, command: Command<'_>) -> u16 {
        let factor = |names: &[&str]| {
            let said = command.is_readable().then(|| command.value(names)).flatten();
            said.and_then(|said| said.text.parse::<u16>().ok()).filter(|n| *n > 0).unwrap_or(1)
        };
        let read = factor(&["--tensor-parallel-size", "-tp"])
            .saturating_mul(factor(&["--pipeline-parallel-size", "-pp"]))
            .saturating_mul(factor(&["--data-parallel-size", "-dp"]));
        let Some(given) = self.raw.workers.located() else { return read };
        let key = self.key("workers");
        if given.value == 0 {
            self.checking
                .problems
                .error("out_of_range", &given.span, key, "an engine has at least one worker")
                .help("leave it out");
        } else if command.is_readable() && given.value != read {
            let message = format!("the command says {read}, `workers` says {}", given.value);
            self.checking
                .problems
                .error("conflict", &given.span, key, message)
                .help("drop `workers`: the command's flags are read");
        }
        given.value.max(1)
    }

    fn duration(
        &mut self,
        field: &Field<crate::config::reader::Span>,
        key: &str,
        default: Duration,
    ) -> Duration {
        let key = self.key(key);
        self.checking.duration(field, &key, default, Duration::from_millis(10))
    }

    fn restart(&mut self) -> Restart {
        let none = RawRestart::default();
        let raw = self.raw.restart.get().unwrap_or(&none);
        let restart = Restart {
            budget: raw.budget.or(5),
            window: self.duration(&raw.window, "restart.window", Duration::from_secs(600)),
            initial: self.duration(&raw.initial, "restart.initial", Duration::from_secs(1)),
            max: self.duration(&raw.max, "restart.max", Duration::from_secs(60)),
        };
        if restart.initial > restart.max {
            let span = raw.initial.located().or(raw.max.located()).map_or(self.table, |given| &given.span);
            let key = self.key("restart.initial");
            self.checking
                .problems
                .error("conflict", span, key, "the first delay is longer than the longest")
                .help("raise `max` or lower `initial`");
        }
        restart
    }

    fn log(&mut self) -> LogFiles {
        let none = RawLog::default();
        let raw = self.raw.log.get().unwrap_or(&none);
        if let Some(small) = raw.max_size.located().filter(|size| size.value.0 < 64 << 10) {
            let key = self.key("log.max_size");
            self.checking
                .problems
                .error("out_of_range", &small.span, key, "a log file needs at least 64KiB")
                .help("leave it out for 16MiB");
        }
        if let Some(none) = raw.keep.located().filter(|keep| keep.value == 0) {
            let key = self.key("log.keep");
            self.checking
                .problems
                .error("out_of_range", &none.span, key, "at least one log file is kept")
                .help("leave it out for 5");
        }
        LogFiles { max_bytes: size(&raw.max_size).unwrap_or(16 * MIB), keep: raw.keep.or(5) }
    }

    fn timeouts(&mut self) -> Timeouts {
        let none = RawTimeouts::default();
        let raw = self.raw.timeouts.get().unwrap_or(&none);
        let mut read = |field: &Field<crate::config::reader::Span>, key: &str| {
            let given = field.located()?;
            let key = self.key(&format!("timeouts.{key}"));
            self.checking.at_least(given, &key, Duration::from_millis(10));
            Some(given.value.0)
        };
        Timeouts {
            sleep: read(&raw.sleep, "sleep"),
            wake: read(&raw.wake, "wake"),
            reload: read(&raw.reload, "reload"),
            probe: read(&raw.probe, "probe"),
            is_sleeping: read(&raw.is_sleeping, "is_sleeping"),
            control: read(&raw.control, "control"),
            memory: read(&raw.memory, "memory"),
        }
    }
}

fn size(field: &Field<Size>) -> Option<u64> {
    field.get().map(|size| size.0)
}

fn texts(field: &Field<Vec<Located<String>>>) -> Vec<String> {
    field.get().into_iter().flatten().map(|text| text.value.clone()).collect()
}
