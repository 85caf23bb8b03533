//! The gateway, its tenants, and what several engines' turns mean together.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use hotbunk_core::fairness::{self, Contender};
use hotbunk_core::plan;
use hotbunk_core::spec::EngineSpec;
use hotbunk_core::state as core;
use hyper::header::HeaderName;

use super::{Checking, check_short_name, duplicates, required};
use crate::config::checked::{Config, Engine, MIB};
use crate::config::gateway::{DEFAULT_TENANT, Gateway, Limits, Tenant};
use crate::config::raw::{RawConfig, RawEngine, RawGateway, RawTenant};
use crate::config::reader::{Field, Located, Size, list as words, nearest};
use crate::config::units;
use crate::switcher::spec;

/// Rates beyond this are no limits.
const FASTEST: f64 = 1_000_000.0;

/// Limits as they are written, for a tenant or for one of its models.
struct Written<'r> {
    path: String,
    max_in_flight: &'r Field<u32>,
    max_queued: &'r Field<u32>,
    requests_per_second: &'r Field<f64>,
    burst: &'r Field<u32>,
    tokens_per_minute: &'r Field<u32>,
}

impl Checking<'_> {
    pub(super) fn gateway(&mut self, raw: &RawConfig, engines: &[Engine]) -> Gateway {
        let default = Gateway::default();
        let none = RawGateway::default();
        let written = raw.gateway.get().unwrap_or(&none);
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        let listen = self.listen(
            &written.listen,
            "gateway.listen",
            default.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8000))),
        );
        let tenant_header = self.tenant_header(&written.tenant_header);
        let tenants = self.tenants(raw, engines, tenant_header.is_some());
        let keys = tenants.iter().any(|tenant| !tenant.keys.is_empty());
        let max_header =
            self.size(&written.max_header, "gateway.max_header", default.max_header.into(), 4096);
        let gateway = Gateway {
            listen,
            max_body: self.size(&written.max_body, "gateway.max_body", default.max_body, 1024),
            max_header: u32::try_from(max_header).unwrap_or(u32::MAX),
            header_timeout: self.duration(
                &written.header_timeout,
                "gateway.header_timeout",
                default.header_timeout,
                ms(100),
            ),
            hold_requests: written.hold_requests.or(default.hold_requests),
            hold_bytes: self.size(&written.hold_bytes, "gateway.hold_bytes", default.hold_bytes, MIB),
            hold_deadline: self.duration(
                &written.hold_deadline,
                "gateway.hold_deadline",
                default.hold_deadline,
                ms(1),
            ),
            hold_stream_deadline: self.duration(
                &written.hold_stream_deadline,
                "gateway.hold_stream_deadline",
                default.hold_stream_deadline,
                ms(1),
            ),
            keep_alive: self.duration(&written.keep_alive, "gateway.keep_alive", default.keep_alive, s(1)),
            upgrade_drain: self.duration(
                &written.upgrade_drain,
                "gateway.upgrade_drain",
                default.upgrade_drain,
                ms(0),
            ),
            threads: self.threads(&written.threads),
            tenant_header,
            require_key: written.require_key.or(keys),
            tenants,
        };
        self.gateway_as_a_whole(raw, written, engines, &gateway);
        gateway
    }

    fn gateway_as_a_whole(
        &mut self,
        raw: &RawConfig,
        written: &RawGateway,
        engines: &[Engine],
        gateway: &Gateway,
    ) {
        if let Some(required) = written.require_key.located().filter(|required| required.value)
            && gateway.tenants.is_empty()
        {
            self.problems
                .error(
                    "conflict",
                    &required.span,
                    "gateway.require_key",
                    "a key is required, and no tenant has one",
                )
                .help("add a [[tenant]] with `key_sha256`, or drop `require_key`");
        }
        if let (Some(header), Some(listen)) = (written.tenant_header.located(), gateway.listen)
            && !listen.ip().is_loopback()
        {
            let message = format!("whoever reaches {listen} can be any tenant by this header");
            self.problems.warning("trusted_header", &header.span, "gateway.tenant_header", message).help(
                "listen on loopback behind the proxy that sets it, and let the proxy drop the client's own",
            );
        }
        let body = gateway.max_body;
        if let Some(hold) = written.hold_bytes.located().filter(|hold| hold.value.0 < body) {
            self.problems
                .error(
                    "conflict",
                    &hold.span,
                    "gateway.hold_bytes",
                    "one body of `max_body` bytes could not wait",
                )
                .help("raise it to several times `max_body`, or lower `max_body`");
        }
        let Some(listen) = gateway.listen.filter(|listen| listen.port() != 0) else { return };
        let port = listen.port();
        let here = written.listen.located().map(|given| given.span.clone());
        if let Some(at) = engines.iter().position(|engine| engine.port == port) {
            let theirs = raw.engine.get().and_then(|list| list.get(at)).map(|raw| {
                raw.value.port.located().map_or_else(|| raw.span.clone(), |port| port.span.clone())
            });
            let message = format!("port {port} is the engine {}'s and the gateway's", engines[at].name);
            let span = here.clone().or(theirs).unwrap_or(0..0);
            self.problems
                .error("duplicate_port", &span, "gateway.listen", message)
                .help("set `listen` in [gateway] to another port, or give the engine one");
        }
        let metrics = raw.node.get().and_then(|node| node.metrics_listen.located());
        let metrics_port =
            metrics.map_or(Some(9464), |m| m.value.parse::<SocketAddr>().ok().map(|a| a.port()));
        if metrics_port == Some(port) {
            let span = here.or(metrics.map(|m| m.span.clone())).unwrap_or(0..0);
            self.problems
                .error("duplicate_port", &span, "gateway.listen", format!("port {port} is that of /metrics"))
                .help("listen on another port");
        }
    }

    fn size(&mut self, field: &Field<Size>, key: &str, default: u64, least: u64) -> u64 {
        let Some(given) = field.located() else { return default };
        if given.value.0 < least {
            self.problems
                .error("out_of_range", &given.span, key, format!("`{key}` is less than {least} bytes"))
                .help("leave it out for the default");
        }
        given.value.0.max(least)
    }

    fn threads(&mut self, field: &Field<u16>) -> Option<u16> {
        let given = field.located()?;
        if !(1..=256).contains(&given.value) {
            self.problems
                .error("out_of_range", &given.span, "gateway.threads", "`gateway.threads` is from 1 to 256")
                .help("leave it out for as many as there are cores, 4 at the most");
        }
        Some(given.value.clamp(1, 256))
    }

    fn tenant_header(&mut self, field: &Field<String>) -> Option<String> {
        let given = field.located()?;
        if given.value.parse::<HeaderName>().is_err() {
            let message = format!("\"{}\" is no name of a header", given.value);
            self.problems
                .error("bad_header", &given.span, "gateway.tenant_header", message)
                .help("write it as in \"X-Tenant\"");
        }
        Some(given.value.clone())
    }

    fn tenants(&mut self, raw: &RawConfig, engines: &[Engine], by_header: bool) -> Vec<Tenant> {
        let list = raw.tenant.get().map_or(&[][..], Vec::as_slice);
        let names = list
            .iter()
            .enumerate()
            .filter_map(|(i, t)| Some((t.value.name.located()?, format!("tenant[{i}].name"))));
        duplicates(self.problems, names, ("duplicate_name", "the tenant name"));
        let headers = list
            .iter()
            .enumerate()
            .filter_map(|(i, t)| Some((t.value.header.located()?, format!("tenant[{i}].header"))));
        duplicates(self.problems, headers, ("duplicate_header", "the header's value"));
        let mut keys = HashMap::new();
        let one = |(i, raw): (usize, &Located<RawTenant>)| self.tenant(i, raw, engines, by_header, &mut keys);
        list.iter().enumerate().map(one).collect()
    }

    fn tenant(
        &mut self,
        i: usize,
        raw: &Located<RawTenant>,
        engines: &[Engine],
        by_header: bool,
        seen: &mut HashMap<[u8; 32], Range<usize>>,
    ) -> Tenant {
        let path = format!("tenant[{i}]");
        let (raw, table) = (&raw.value, &raw.span);
        let name = required(self.problems, &raw.name, table, (&path, "name"), "`name = \"research\"`");
        if let Some(name) = &name {
            check_short_name(self.problems, name, &path);
        }
        let name = name.map(|name| name.value).unwrap_or_default();
        let is_default = name == DEFAULT_TENANT;
        if let Some(header) = raw.header.located().filter(|_| !by_header) {
            self.problems
                .error("conflict", &header.span, format!("{path}.header"), "no header is looked at")
                .help("set `tenant_header` in [gateway], or drop this");
        }
        for (key, span) in [
            ("header", raw.header.located().map(|h| &h.span)),
            ("key_sha256", raw.key_sha256.located().map(|k| &k.span)),
        ] {
            if let Some(span) = span.filter(|_| is_default) {
                let message = format!("\"{DEFAULT_TENANT}\" is whoever is not known: it has no `{key}`");
                self.problems
                    .error("conflict", span, format!("{path}.{key}"), message)
                    .help("drop it, or give the tenant another name");
            }
        }
        let keys = self.keys(raw, &path, seen);
        if raw.key_sha256.is_absent() && !by_header && !is_default && !name.is_empty() {
            self.problems
                .warning(
                    "unreachable",
                    table,
                    path.clone(),
                    format!("no request can be {name}'s: it has no key"),
                )
                .help("add `key_sha256`, or set `tenant_header` in [gateway]");
        }
        let limits = self.limits(raw, engines, &path);
        let key = format!("{path}.weight");
        Tenant {
            header: raw.header.get().cloned().unwrap_or_else(|| name.clone()),
            weight: self.weight(&raw.weight, &key),
            name,
            keys,
            limits,
        }
    }

    fn keys(
        &mut self,
        raw: &RawTenant,
        path: &str,
        seen: &mut HashMap<[u8; 32], Range<usize>>,
    ) -> Vec<[u8; 32]> {
        let mut keys = Vec::new();
        for written in raw.key_sha256.get().map_or(&[][..], |keys| keys.0.as_slice()) {
            let Some(key) = digest(&written.value) else {
                self.problems
                    .error(
                        "bad_key",
                        &written.span,
                        format!("{path}.key_sha256"),
                        "this is no SHA-256 digest",
                    )
                    .help(
                        "write the 64 digits that `printf %s KEY | sha256sum` prints, never the key itself",
                    );
                continue;
            };
            if let Some(before) = seen.get(&key) {
                self.problems
                    .error(
                        "duplicate_key",
                        &written.span,
                        format!("{path}.key_sha256"),
                        "this key stands twice",
                    )
                    .related(before, "first here")
                    .help("give each tenant keys of its own");
                continue;
            }
            seen.insert(key, written.span.clone());
            keys.push(key);
        }
        keys
    }

    fn limits(&mut self, raw: &RawTenant, engines: &[Engine], path: &str) -> Vec<Limits> {
        let general = self.limit(
            &Written {
                path: path.to_owned(),
                max_in_flight: &raw.max_in_flight,
                max_queued: &raw.max_queued,
                requests_per_second: &raw.requests_per_second,
                burst: &raw.burst,
                tokens_per_minute: &raw.tokens_per_minute,
            },
            Limits::default(),
        );
        let mut limits = vec![general; engines.len()];
        for (k, one) in raw.model.get().into_iter().flatten().enumerate() {
            let path = format!("{path}.model[{k}]");
            let example = "`name = \"…\"`, a model of an engine";
            let name = required(self.problems, &one.value.name, &one.span, (&path, "name"), example);
            let special = self.limit(
                &Written {
                    path: path.clone(),
                    max_in_flight: &one.value.max_in_flight,
                    max_queued: &one.value.max_queued,
                    requests_per_second: &one.value.requests_per_second,
                    burst: &one.value.burst,
                    tokens_per_minute: &one.value.tokens_per_minute,
                },
                general,
            );
            let Some(name) = name else { continue };
            let mut known = false;
            for (limit, _) in limits
                .iter_mut()
                .zip(engines)
                .filter(|(_, engine)| engine.model_ids().any(|id| id == name.value))
            {
                (*limit, known) = (special, true);
            }
            if !known {
                let ids = || engines.iter().flat_map(Engine::model_ids);
                let help = match nearest(&name.value, ids()) {
                    Some(meant) => format!("did you mean \"{meant}\"?"),
                    None => format!("the models are {}", words(ids())),
                };
                let message = format!("no engine serves the model \"{}\"", name.value);
                self.problems.error("unknown_model", &name.span, format!("{path}.name"), message).help(help);
            }
        }
        limits
    }

    fn limit(&mut self, written: &Written<'_>, general: Limits) -> Limits {
        let key = |name: &str| format!("{}.{name}", written.path);
        let mut rate = general.requests_per_second;
        if let Some(given) = written.requests_per_second.located() {
            if !(0.001..=FASTEST).contains(&given.value) {
                let message = "`requests_per_second` is from 0.001 to 1000000";
                self.problems
                    .error("out_of_range", &given.span, key("requests_per_second"), message)
                    .help("leave it out for no limit");
            }
            rate = Some(given.value.clamp(0.001, FASTEST));
        }
        if let Some(burst) = written.burst.located().filter(|_| rate.is_none()) {
            self.problems
                .error("conflict", &burst.span, key("burst"), "a burst of what? there is no rate")
                .help("add `requests_per_second`, or drop it");
        }
        // A rate of its own has a burst of its own.
        let own_rate = !written.requests_per_second.is_absent();
        let burst = self.count(written.burst, &key("burst"));
        Limits {
            max_in_flight: self.count(written.max_in_flight, &key("max_in_flight")).or(general.max_in_flight),
            max_queued: written.max_queued.get().copied().or(general.max_queued),
            requests_per_second: rate,
            burst: burst.or(if own_rate { None } else { general.burst }),
            tokens_per_minute: self
                .count(written.tokens_per_minute, &key("tokens_per_minute"))
                .or(general.tokens_per_minute),
        }
    }

    /// What several engines' turns and ladders mean together.
    pub(super) fn turns(&mut self, raw: &RawConfig, config: &Config) {
        let spans = |at: usize| raw.engine.get().and_then(|list| list.get(at)).map(|raw| &raw.value);
        for (at, engine) in config.engines.iter().enumerate() {
            let Some(written) = spans(at) else { continue };
            if let Some(idle) = written.idle.located().filter(|idle| !idle.value.is_empty())
                && config.gateway.listen.is_none()
            {
                self.problems
                    .error(
                        "conflict",
                        &idle.span,
                        format!("engine[{at}].idle"),
                        "without the gateway nobody knows whether the engine is used",
                    )
                    .help("drop `idle`, or let [gateway] listen");
            }
            if let Some(pinned) = written.pinned.located().filter(|pinned| pinned.value) {
                self.pinned(config, at, &engine.name, pinned);
            }
        }
    }

    /// Bounds that somebody has written and that cannot all be met, whatever happens: by the planner's estimates, since
    /// nothing has been measured yet. (What is taken by default is no promise.)
    pub(super) fn bounds(&mut self, raw: &RawConfig, config: &Config) {
        let list = || raw.engine.get().into_iter().flatten().map(|raw| &raw.value);
        let residency = list().find_map(|raw| raw.min_residency.located());
        let speed = config.simulated.as_ref().map_or(1.0, |s| s.speed).max(f64::MIN_POSITIVE);
        let specs = spec::engines(config, |_| None);
        let contender = |(spec, raw): (EngineSpec, &RawEngine)| {
            let mut turn = spec.turn;
            if raw.max_wait.is_absent() && residency.is_none() {
                turn.max_wait = Duration::MAX;
            }
            let engine = core::Engine::new(spec);
            let switch = plan::leave_cost(&engine, engine.spec.rest).div_f64(speed);
            Contender { name: engine.spec.name, devices: engine.spec.devices, turn, switch }
        };
        let contenders: Vec<Contender> = specs.into_iter().zip(list()).map(contender).collect();
        let max_awake: Vec<u16> = config.devices.iter().map(|device| device.max_awake).collect();
        let Err(infeasible) = fairness::feasible(&contenders, &max_awake) else { return };
        let Some(at) = config.engine_index(&infeasible.engine) else { return };
        let own = list().nth(at).and_then(|raw| raw.max_wait.located());
        let Some(span) = own.or(residency).map(|written| written.span.clone()) else { return };
        let short = |d: Duration| {
            units::format_duration(Duration::from_millis(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
        };
        let message = format!(
            "{}'s requests cannot all be served within {}: {} may go first, which takes {}, and then its own switch {}",
            infeasible.engine,
            short(infeasible.max_wait),
            words(infeasible.others.iter().map(String::as_str)),
            short(infeasible.theirs),
            short(infeasible.own),
        );
        let least = short(Duration::from_secs(infeasible.least.as_secs() + 1));
        self.problems
            .error("infeasible", &span, format!("engine[{at}].max_wait"), message)
            .help(format!("set `max_wait` to at least \"{least}\", or shorten the others' `min_residency`"));
    }

    /// Pinned engines must have room beside each other, and whoever has none beside them is never served.
    fn pinned(&mut self, config: &Config, at: usize, name: &str, written: &Located<bool>) {
        for &index in &config.engines[at].devices {
            let device = &config.devices[index];
            let here = |other: usize| config.engines[other].devices.contains(&index);
            let all: Vec<usize> = (0..config.engines.len()).filter(|&other| here(other)).collect();
            let pinned = all.iter().filter(|&&other| config.engines[other].turn.pinned).count();
            let most = usize::from(device.max_awake);
            if pinned > most {
                let message =
                    format!("{pinned} engines are pinned on {}, and its `max_awake` is {most}", device.name);
                self.problems
                    .error("too_many_awake", &written.span, format!("engine[{at}].pinned"), message)
                    .help("pin fewer, or raise the device's `max_awake`");
            } else if pinned == most && all.len() > pinned {
                let others: Vec<&str> = all
                    .iter()
                    .filter(|&&other| !config.engines[other].turn.pinned)
                    .map(|&other| config.engines[other].name.as_str())
                    .collect();
                let message = format!(
                    "while {name} is awake no request can wake {} on {}",
                    words(others.into_iter()),
                    device.name
                );
                self.problems
                    .warning("pinned", &written.span, format!("engine[{at}].pinned"), message)
                    .help("raise the device's `max_awake`, or leave the switching to the operator");
            }
        }
    }
}

/// 64 hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
    let text = text.trim().as_bytes();
    let mut out = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).and_then(|d| u8::try_from(d).ok());
        *byte = digit(0)? << 4 | digit(1)?;
    }
    Some(out)
}
