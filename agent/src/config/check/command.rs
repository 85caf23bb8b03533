//! What an engine's command line says, as far as it can be read from outside.
//!
//! vLLM's parser takes `--flag value`, `--flag=value`, and `_` for `-` in a flag's name. Only what is spelled out is
//! read; a wrapper script hides its flags, and then nothing is claimed about them.

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
    args: &'a [Located<String>],
}

impl<'a> Command<'a> {
    pub(super) fn new(args: &'a [Located<String>]) -> Self {
        Command { args }
    }

    /// What it starts.
    pub(super) fn program(self) -> Program {
        let base = |arg: &'a Located<String>| arg.value.rsplit('/').next().unwrap_or("");
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
        positional.or_else(|| self.value(&["--model"]))
    }
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
