//! The engines: each by itself, and what two of them cannot share.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use super::command::{Command, Program};
use super::device::device_of;
use super::{Checking, NO_DEVICE, check_short_name, duplicates, flags, missing, required};
use crate::config::checked::{Device, Engine, GIB, Source};
use crate::config::raw::{RawConfig, RawDevice, RawEngine};
use crate::config::reader::{Field, Located, Size, list, nearest};

mod container;
mod said_twice;
mod settings;
mod turn;

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
            let free = (engine.port..=u16::MAX).find(|port| engines.iter().all(|e| e.port != *port));
            let message = format!("port {} is the engine {name}'s already", engine.port);
            checking
                .problems
                .error("duplicate_port", &span, format!("engine[{i}].port"), message)
                .related(before, "first here")
                .help(format!("use another, as {}", free.unwrap_or(8101)));
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
        let recycle = self.recycle(&device_indices, devices);
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
            turn: self.turn(),
            idle: self.idle(&sleep_tiers),
            max_in_flight: self.count(&raw.max_in_flight, "max_in_flight"),
            restart: self.restart(),
            recycle,
            log: self.log(),
            op_log: {
                let key = self.key("op_log");
                self.checking.path(&raw.op_log, &key)
            },
            container: self.container(command, &name),
            timeouts: self.timeouts(),
            simulated: command.program() == Program::Simulated,
            retired: false,
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
                is_one_of_several: devices.iter().enumerate().any(|(at, device)| {
                    matches!(device.source, Source::Nvml(_)) && !engine.devices.contains(&at)
                }),
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
}

fn size(field: &Field<Size>) -> Option<u64> {
    field.get().map(|size| size.0)
}

fn texts(field: &Field<Vec<Located<String>>>) -> Vec<String> {
    field.get().into_iter().flatten().map(|text| text.value.clone()).collect()
}
