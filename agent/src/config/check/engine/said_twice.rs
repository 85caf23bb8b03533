//! What both the keys and the command line say: they must agree, and either is enough.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::OneEngine;
use crate::config::check::command::{Command, Value, parse_vllm_bytes};
use crate::config::check::missing;
use crate::config::checked::Secret;
use crate::config::units::{format_size, parse_size};

/// Whether the command says where on this machine the engine listens: flags of a container with a network of its own
/// are about that network.
fn own_network(command: Command<'_>) -> bool {
    command.is_readable() && command.runtime().is_none_or(|runtime| runtime.shares_network())
}

impl OneEngine<'_, '_, '_> {
    /// Engines listen on loopback: vLLM's control routes ask nobody for a key (CONTRACT 1.1).
    pub(super) fn host(&mut self, command: Command<'_>) -> IpAddr {
        let default = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let said = own_network(command).then(|| command.value(&["--host"])).flatten();
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

    pub(super) fn loopback(&mut self, text: &str, span: &Range<usize>, key: &str) -> Option<IpAddr> {
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

    pub(super) fn port(&mut self, command: Command<'_>) -> u16 {
        let raw = self.raw;
        let said = own_network(command).then(|| command.value(&["--port"])).flatten();
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

    pub(super) fn api_key(&mut self, command: Command<'_>) -> Option<Secret> {
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

    pub(super) fn utilization(&mut self, command: Command<'_>) -> Option<f64> {
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

    pub(super) fn kv_cache(&mut self, command: Command<'_>) -> Option<u64> {
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

    pub(super) fn differ(&mut self, given: &Range<usize>, said: Value<'_>, key: String, what: &str) {
        self.checking
            .problems
            .error("conflict", given, key, format!("the command says otherwise about {what}"))
            .related(said.span, "here")
            .help("make them equal, or drop the key: the command's value is used then");
    }

    pub(super) fn workers(&mut self, command: Command<'_>) -> u16 {
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
}
