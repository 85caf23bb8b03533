//! The node: places, addresses, intervals, the journal.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::Checking;
use crate::config::checked::{
    Config, Engine, GIB, Journal, LogFormat, MIB, Node, OnFailure, OnStop, Sampling,
};
use crate::config::raw::{RawConfig, RawJournal, RawNode};
use crate::config::reader::Field;
use crate::config::units;

impl Checking<'_> {
    pub(super) fn node(&mut self, raw: &RawConfig) -> Node {
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
            stall_after: self.duration(&raw.stall_after, "node.stall_after", ms(60_000), ms(500)),
            host_memory_reserve: raw.host_memory_reserve.get().map_or(4 * GIB, |size| size.0),
            shutdown_grace: self.duration(&raw.shutdown_grace, "node.shutdown_grace", ms(60_000), ms(1000)),
            on_stop: raw.on_stop.or(OnStop::Stop),
        }
    }

    pub(super) fn metrics_listen(&mut self, field: &Field<String>) -> Option<SocketAddr> {
        self.listen(field, "node.metrics_listen", SocketAddr::from(([127, 0, 0, 1], 9464)))
    }

    /// An address to listen on, or `none`.
    pub(super) fn listen(
        &mut self,
        field: &Field<String>,
        key: &str,
        default: SocketAddr,
    ) -> Option<SocketAddr> {
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
            None => format!("write an address and a port, as in \"{default}\", or \"none\""),
        };
        let message = format!("\"{}\" is no address to listen on", given.value);
        self.problems.error("bad_address", &given.span, key, message).help(help);
        Some(default)
    }

    pub(super) fn log_filter(&mut self, field: &Field<String>) -> String {
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

    /// An engine's grace beyond the agent's own is never used up, and neither is that of the requests.
    pub(super) fn graces(&mut self, raw: &RawConfig, config: &Config) {
        let drain = raw.gateway.get().and_then(|gateway| gateway.upgrade_drain.located());
        if let Some(given) = drain.filter(|_| config.gateway.upgrade_drain > config.node.shutdown_grace) {
            let all = units::format_duration(config.node.shutdown_grace);
            let message = format!(
                "this is longer than `shutdown_grace` of [node], {all}, by which everything has ended"
            );
            self.problems
                .warning("grace", &given.span, "gateway.upgrade_drain", message)
                .help("raise `shutdown_grace`, and TimeoutStopSec of the unit above it");
        }
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

    pub(super) fn ports_and_sockets(&mut self, raw: &RawConfig, node: &Node, engines: &[Engine]) {
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
        let needed = node.runtime_dir.as_os_str().len() + 1 + longest + ".control.sock".len();
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

    /// Ports of servers that any client on the machine may be given while the server is down.
    pub(super) fn ports_of_clients(&mut self, raw: &RawConfig, config: &Config) {
        let of_engines = raw.engine.get().into_iter().flatten().zip(&config.engines).enumerate();
        let mut written: Vec<(u16, Range<usize>, String)> = of_engines
            .filter_map(|(i, (raw, engine))| {
                let given = raw.value.port.located()?;
                Some((engine.port, given.span.clone(), format!("engine[{i}].port")))
            })
            .collect();
        let gateway = raw.gateway.get().and_then(|gateway| gateway.listen.located());
        written.extend(gateway.and_then(|given| {
            Some((config.gateway.listen?.port(), given.span.clone(), "gateway.listen".to_owned()))
        }));
        let metrics = raw.node.get().and_then(|node| node.metrics_listen.located());
        written.extend(metrics.and_then(|given| {
            Some((config.node.metrics_listen?.port(), given.span.clone(), "node.metrics_listen".to_owned()))
        }));
        for (port, span, key) in written {
            let Some(range) = self.facts.client_ports.with(port) else { continue };
            let (first, last) = (range.start(), range.end());
            let message = format!(
                "port {port} is one of those that the kernel gives to outgoing connections ({first} to {last}): one may \
                 sit on it while nobody listens"
            );
            self.problems.warning("port_given_to_clients", &span, key, message).help(format!(
                "take one below {first}, or keep it free: sysctl -w net.ipv4.ip_local_reserved_ports={port}"
            ));
        }
    }

    pub(super) fn journal(&mut self, raw: &RawConfig) -> Journal {
        let default = RawJournal::default();
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
            on_failure: raw.on_failure.or(OnFailure::GoOn),
        }
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
