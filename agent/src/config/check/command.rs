//! What an engine's command line says, as far as it can be read from outside.
//!
//! vLLM's parser takes `--flag value`, `--flag=value`, and `_` for `-` in a flag's name. Only what is spelled out is
//! read; a wrapper script hides its flags, and then nothing is claimed about them.
//!
//! `docker run … IMAGE …` (and `podman`, `nerdctl`) is two command lines: the runtime's up to the image, vLLM's after
//! it. Every question about flags is about the second; [`Command::runtime`] is the first.

use std::ops::Range;

use crate::config::reader::Located;

/// What a command starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// vLLM itself, its flags in sight.
    Vllm,
    /// The project's simulated engine.
    Simulated,
    /// A shell with a script in one argument.
    Shell,
    /// Something else, whose flags may be anywhere: a wrapper script, or vLLM with a file of flags (`--config`).
    Other,
}

/// A command line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command<'a> {
    /// The engine's own words.
    args: &'a [Located<String>],
    runtime: Option<Runtime<'a>>,
}

impl<'a> Command<'a> {
    pub(super) fn new(args: &'a [Located<String>]) -> Self {
        match image_at(args) {
            Some(at) => Command {
                args: &args[at + 1..],
                runtime: Some(Runtime { args: &args[..at], image: &args[at] }),
            },
            None => Command { args, runtime: None },
        }
    }

    /// The container runtime's own command line, where there is one.
    pub(super) fn runtime(self) -> Option<Runtime<'a>> {
        self.runtime
    }

    /// What it starts.
    pub(super) fn program(self) -> Program {
        let base = |arg: &'a Located<String>| arg.value.rsplit('/').next().unwrap_or("");
        if let Some(runtime) = self.runtime {
            if self.args.iter().any(|arg| arg.value == "sim-engine") {
                return Program::Simulated;
            }
            let is_vllm = base(runtime.image).contains("vllm") || self.args.iter().any(|a| base(a) == "vllm");
            return match is_vllm && self.flag(&["--config"]).is_none() {
                true => Program::Vllm,
                false => Program::Other,
            };
        }
        let first = self.args.first().map(base).unwrap_or("");
        let starts_vllm = self.args.iter().enumerate().any(|(at, arg)| {
            let serves = self.args.get(at + 1).is_some_and(|next| next.value == "serve");
            (base(arg) == "vllm" && (at == 0 || serves)) || arg.value == "vllm.entrypoints.openai.api_server"
        });
        if self.args.iter().skip(1).any(|arg| arg.value == "sim-engine") {
            Program::Simulated
        } else if ["sh", "bash", "dash", "zsh"].contains(&first)
            && self.args.iter().any(|arg| arg.value == "-c")
        {
            Program::Shell
        } else if starts_vllm && self.flag(&["--config"]).is_none() {
            Program::Vllm
        } else {
            Program::Other
        }
    }

    /// Whether its flags are all in sight.
    pub(super) fn is_readable(self) -> bool {
        matches!(self.program(), Program::Vllm | Program::Simulated)
    }

    /// The last occurrence of a flag, by any of its names (`--like-this` or `-tp`).
    pub(super) fn flag(self, names: &[&str]) -> Option<&'a Located<String>> {
        self.args.iter().rev().find(|arg| names.contains(&flag_name(&arg.value).as_str()))
    }

    /// A flag's value and where it stands.
    pub(super) fn value(self, names: &[&str]) -> Option<Value<'a>> {
        let at = self.args.iter().rposition(|arg| names.contains(&flag_name(&arg.value).as_str()))?;
        let flag = &self.args[at];
        if let Some((_, value)) = flag.value.split_once('=') {
            return Some(Value { text: value, span: &flag.span });
        }
        self.args.get(at + 1).map(|arg| Value { text: &arg.value, span: &arg.span })
    }

    /// All values of a flag that takes several, up to the next flag.
    pub(super) fn values(self, names: &[&str]) -> Vec<Value<'a>> {
        let Some(at) = self.args.iter().rposition(|arg| names.contains(&flag_name(&arg.value).as_str()))
        else {
            return Vec::new();
        };
        if self.args[at].value.contains('=') {
            return self.value(names).into_iter().collect();
        }
        self.args[at + 1..]
            .iter()
            .take_while(|arg| !arg.value.starts_with('-'))
            .map(|arg| Value { text: &arg.value, span: &arg.span })
            .collect()
    }

    /// The model that vLLM is told to load: `vllm serve MODEL` or `--model MODEL`.
    pub(super) fn model(self) -> Option<Value<'a>> {
        let positional = self
            .args
            .iter()
            .position(|arg| arg.value == "serve")
            .and_then(|at| self.args.get(at + 1))
            .filter(|arg| !arg.value.starts_with('-'))
            .map(|arg| Value { text: &arg.value, span: &arg.span });
        // An image whose entry point is `vllm serve` takes the model as its first word.
        let first = || {
            let word = self.args.first().filter(|_| self.runtime.is_some())?;
            (!word.value.starts_with('-') && word.value != "vllm")
                .then_some(Value { text: &word.value, span: &word.span })
        };
        positional.or_else(|| self.value(&["--model"])).or_else(first)
    }
}

/// `docker run` and its like, up to the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runtime<'a> {
    args: &'a [Located<String>],
    image: &'a Located<String>,
}

impl<'a> Runtime<'a> {
    /// Every value of a flag, by any of its names.
    pub(super) fn values(self, names: &[&str]) -> Vec<Value<'a>> {
        let at = |i: usize| -> Option<Value<'a>> {
            let flag = &self.args[i];
            let (name, inline) = match flag.value.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag.value.as_str(), None),
            };
            if !names.contains(&name) {
                return None;
            }
            match inline {
                Some(text) => Some(Value { text, span: &flag.span }),
                None => self.args.get(i + 1).map(|arg| Value { text: &arg.value, span: &arg.span }),
            }
        };
        (0..self.args.len()).filter_map(at).collect()
    }

    /// Whether one of these flags is there, whatever its value.
    pub(super) fn has(self, names: &[&str]) -> bool {
        self.args.iter().any(|arg| names.contains(&arg.value.split('=').next().unwrap_or_default()))
    }

    /// Whether the container uses the machine's own network: its port is the machine's port.
    pub(super) fn shares_network(self) -> bool {
        self.values(&["--network", "--net"]).iter().any(|value| value.text == "host")
    }

    /// A variable that the container is given by its value.
    pub(super) fn env(self, name: &str) -> Option<Value<'a>> {
        let all = self.values(&["-e", "--env"]).into_iter().rev();
        all.filter_map(|value| {
            let (key, text) = value.text.split_once('=')?;
            (key == name).then_some(Value { text, span: value.span })
        })
        .next()
    }

    /// Whether the container is given a variable of the client's environment (`-e NAME`).
    pub(super) fn passes_env(self, name: &str) -> bool {
        self.values(&["-e", "--env"]).iter().any(|value| value.text == name)
    }
}

/// Flags of `docker run` and `podman run` that take no value.
const BARE_FLAGS: [&str; 20] = [
    "-d",
    "--detach",
    "-i",
    "--interactive",
    "-t",
    "--tty",
    "-it",
    "-ti",
    "--rm",
    "--init",
    "--privileged",
    "--read-only",
    "--replace",
    "-P",
    "--publish-all",
    "-q",
    "--quiet",
    "--no-healthcheck",
    "--oom-kill-disable",
    "--disable-content-trust",
];

/// Where the image stands in `docker run … IMAGE …`; `None` where the command is no such thing.
fn image_at(args: &[Located<String>]) -> Option<usize> {
    let base = |at: usize| args.get(at).map(|arg| arg.value.rsplit('/').next().unwrap_or(""));
    let first = args.iter().position(|arg| !arg.value.ends_with("sudo") && !arg.value.starts_with('-'))?;
    if !matches!(base(first), Some("docker" | "podman" | "nerdctl")) {
        return None;
    }
    let run = args.iter().skip(first).position(|arg| arg.value == "run" || arg.value == "create")? + first;
    let mut at = run + 1;
    while let Some(arg) = args.get(at) {
        if !arg.value.starts_with('-') {
            return Some(at);
        }
        let is_whole = arg.value.contains('=') || BARE_FLAGS.contains(&arg.value.as_str());
        at += if is_whole { 1 } else { 2 };
    }
    None
}

/// A flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value<'a> {
    pub(super) text: &'a str,
    pub(super) span: &'a Range<usize>,
}

fn flag_name(arg: &str) -> String {
    if !arg.starts_with('-') {
        return String::new();
    }
    let name = arg.split('=').next().unwrap_or(arg);
    name.replace('_', "-")
}

/// Reads a number of bytes as vLLM does: `4294967296`, `4G` (binary) or `1.5g` (decimal).
pub(super) fn parse_vllm_bytes(text: &str) -> Option<u64> {
    if let Ok(bytes) = text.parse::<u64>() {
        return Some(bytes);
    }
    let unit = text.chars().last()?;
    let number = &text[..text.len() - unit.len_utf8()];
    let power = match unit.to_ascii_lowercase() {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return None,
    };
    if unit.is_ascii_uppercase() {
        number.parse::<u64>().ok()?.checked_mul(1024_u64.pow(power))
    } else {
        let value = number.parse::<f64>().ok()? * 1000_f64.powi(i32::try_from(power).ok()?);
        // Below 2^53 the conversion is exact.
        (value.is_finite() && (0.0..9.0e15).contains(&value)).then_some(value as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Vec<Located<String>> {
        words.iter().map(|word| Located { value: (*word).to_owned(), span: 0..0 }).collect()
    }

    #[test]
    fn programs_are_told_apart() {
        let program = |words: &[&str]| Command::new(&args(words)).program();
        assert_eq!(program(&["/opt/venv/bin/vllm", "serve", "m"]), Program::Vllm);
        assert_eq!(program(&["python", "-m", "vllm.entrypoints.openai.api_server"]), Program::Vllm);
        assert_eq!(program(&["env", "A=1", "vllm", "serve"]), Program::Vllm);
        assert_eq!(program(&["hotbunk-agent", "sim-engine", "--name", "A"]), Program::Simulated);
        assert_eq!(program(&["/bin/sh", "-c", "vllm serve m"]), Program::Shell);
        assert_eq!(program(&["./serve", "A"]), Program::Other);
        assert_eq!(program(&["./serve", "/opt/vllm"]), Program::Other);
        assert_eq!(program(&["vllm", "serve", "m", "--config", "flags.yaml"]), Program::Other);
        assert_eq!(program(&["uv", "run", "vllm", "serve", "m"]), Program::Vllm);
        assert_eq!(program(&[]), Program::Other);
    }

    #[test]
    fn a_container_s_command_line_is_two() {
        let words = [
            "/usr/bin/docker",
            "run",
            "--rm",
            "--name",
            "A",
            "--gpus=all",
            "-v",
            "/opt/vllm:/x",
            "--network",
            "host",
            "-e",
            "VLLM_SERVER_DEV_MODE=1",
            "--env",
            "HOTBUNK_TREE",
            "vllm/vllm-openai:v0.31.0",
            "Qwen/Qwen3-1.7B",
            "--port",
            "8101",
        ];
        let args = args(&words);
        let command = Command::new(&args);
        assert_eq!(command.program(), Program::Vllm);
        assert_eq!(command.model().map(|m| m.text), Some("Qwen/Qwen3-1.7B"));
        assert_eq!(command.value(&["--port"]).map(|v| v.text), Some("8101"));
        assert_eq!(command.value(&["--name"]), None);
        let runtime = command.runtime().unwrap();
        assert!(runtime.shares_network() && runtime.passes_env("HOTBUNK_TREE"));
        assert_eq!(runtime.env("VLLM_SERVER_DEV_MODE").map(|v| v.text), Some("1"));
        assert_eq!(runtime.values(&["--name"])[0].text, "A");
    }

    #[test]
    fn what_is_no_container_is_not_split() {
        for words in [&["docker", "ps"][..], &["docker", "run", "--rm", "-e"], &["vllm", "run", "x"], &[]] {
            assert!(Command::new(&args(words)).runtime().is_none(), "{words:?}");
        }
        let other = args(&["podman", "run", "-d", "registry/other:1", "serve", "m"]);
        assert_eq!(Command::new(&other).program(), Program::Other);
    }

    #[test]
    fn flags_are_read_in_every_spelling() {
        for words in [
            &["vllm", "serve", "m", "--tensor-parallel-size", "2"][..],
            &["vllm", "serve", "m", "--tensor_parallel_size=2"],
            &["vllm", "serve", "m", "-tp", "2"],
            &["vllm", "serve", "m", "-tp=2"],
            &["vllm", "serve", "m", "-tp", "4", "-tp", "2"],
        ] {
            let args = args(words);
            let value = Command::new(&args).value(&["--tensor-parallel-size", "-tp"]);
            assert_eq!(value.map(|v| v.text), Some("2"), "{words:?}");
        }
        let args = args(&["vllm", "serve", "--served-model-name", "a", "b", "--port"]);
        let command = Command::new(&args);
        assert_eq!(command.values(&["--served-model-name"]).len(), 2);
        assert_eq!(command.value(&["--port"]), None);
        assert_eq!(command.model(), None);
    }

    #[test]
    fn bytes_are_read_as_vllm_reads_them() {
        assert_eq!(parse_vllm_bytes("4294967296"), Some(4 << 30));
        assert_eq!(parse_vllm_bytes("4G"), Some(4 << 30));
        assert_eq!(parse_vllm_bytes("1.5g"), Some(1_500_000_000));
        for wrong in ["4GiB", "", "G", "é", "-1G", "1.5G", "1e300g"] {
            assert_eq!(parse_vllm_bytes(wrong), None, "{wrong}");
        }
    }
}
