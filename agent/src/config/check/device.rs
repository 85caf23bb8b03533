//! The devices: which GPU each is, and that each is declared once.

use std::collections::HashMap;
use std::ops::Range;

use super::{Checking, NO_DEVICE, check_short_name, duplicates, required};
use crate::config::checked::{Config, Device, GIB, MIB, Selector, Source};
use crate::config::raw::{RawConfig, RawDevice};
use crate::config::reader::Located;

impl Checking<'_> {
    pub(super) fn devices(&mut self, raw: &RawConfig) -> Vec<Device> {
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

    pub(super) fn device(&mut self, i: usize, raw: &Located<RawDevice>) -> Device {
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

    pub(super) fn source(&mut self, path: &str, name: &str, raw: &RawDevice, table: &Range<usize>) -> Source {
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

    pub(super) fn same_card_twice(&mut self, devices: &[Located<RawDevice>]) {
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

    pub(super) fn unused_devices(&mut self, raw: &RawConfig, config: &Config) {
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
}

/// A device with every default filled in.
pub(super) fn device_of(name: String, source: Source, raw: &RawDevice) -> Device {
    Device {
        name,
        source,
        capacity_bytes: raw.capacity.get().map(|size| size.0),
        reserve_bytes: raw.reserve.get().map_or(GIB, |size| size.0),
        max_awake: raw.max_awake.or(1),
        slack_bytes: raw.slack.get().map_or(256 * MIB, |size| size.0),
    }
}
