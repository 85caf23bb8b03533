//! With which settings does a server run that somebody else has started, and in what do the configured ones differ?
//!
//! Command lines are compared by what vLLM's parser makes of them: flags by name, in any order, `--a=b` as `--a b`, `_` as
//! `-`; whatever stands before `serve` (an interpreter, a wrapper that has replaced itself) is no setting. Of the environment
//! the configured variables are compared, by name: their values are nobody's to read in a message.

use super::Engine;
use super::checked::fnv1a;
use std::collections::BTreeMap;

/// How a server was started, as `/proc` tells it; empty where that cannot be read.
#[derive(Debug, Clone, Copy)]
pub struct Running<'a> {
    /// Its leader's command line.
    pub command: &'a [String],
    /// Its leader's environment, `NAME=value`.
    pub environment: &'a [String],
}

/// Flags whose values are secrets.
const SECRETS: [&str; 5] = ["key", "token", "secret", "password", "credential"];

/// In what a running server differs from its configuration, a phrase each; none where it runs as configured.
pub fn differences(engine: &Engine, running: &Running<'_>) -> Vec<String> {
    if running.command.is_empty() {
        return vec!["its command line cannot be read".to_owned()];
    }
    let (wanted, has) = (Words::of(&engine.command), Words::of(running.command));
    let mut differ = Vec::new();
    if wanted.positional != has.positional {
        differ.push(format!("`{}` instead of `{}`", has.positional.join(" "), wanted.positional.join(" ")));
    }
    for (flag, values) in &wanted.flags {
        match has.flags.get(flag) {
            Some(other) if other == values => {}
            Some(_) if is_secret(flag) => differ.push(format!("another {flag}")),
            Some(other) => differ.push(format!("{flag} {} instead of {}", shown(other), shown(values))),
            None => differ.push(format!("no {flag}")),
        }
    }
    for (flag, values) in has.flags.iter().filter(|(flag, _)| !wanted.flags.contains_key(*flag)) {
        let values =
            if is_secret(flag) || values.is_empty() { String::new() } else { format!(" {}", shown(values)) };
        differ.push(format!("{flag}{values}, which is not configured"));
    }
    // Without any environment it cannot be read, or has been written over.
    let environment: BTreeMap<&str, &str> =
        running.environment.iter().filter_map(|entry| entry.split_once('=')).collect();
    if !environment.is_empty() {
        for (name, value) in &engine.env {
            match environment.get(name.as_str()) {
                Some(other) if other == value => {}
                Some(_) => differ.push(format!("another value of {name} in its environment")),
                None => differ.push(format!("no {name} in its environment")),
            }
        }
        let unwanted = engine.unset_env.iter().filter(|name| environment.contains_key(name.as_str()));
        differ.extend(unwanted.map(|name| format!("{name} in its environment")));
    }
    differ
}

/// A fingerprint of settings that are not the configured ones, of which that is `configured`.
pub fn fingerprint_of_running(command: &[String], configured: &str) -> String {
    format!("running-{:016x}", fnv1a(format!("{configured} {}", command.join("\0")).as_bytes()))
}

fn is_secret(flag: &str) -> bool {
    SECRETS.iter().any(|word| flag.contains(word))
}

fn shown(values: &[String]) -> String {
    if values.is_empty() { "(alone)".to_owned() } else { values.join(" ") }
}

/// A command line as settings.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    positional: Vec<String>,
    flags: BTreeMap<String, Vec<String>>,
}

impl Words {
    fn of(command: &[String]) -> Words {
        let verb = command.iter().position(|word| word == "serve" || word == "sim-engine");
        let module = command.iter().position(|word| word.starts_with("vllm.entrypoints"));
        // Without either, what is a setting and what the program cannot be told: from the first flag on.
        let from = verb.or(module).map_or_else(
            || command.iter().position(|word| word.starts_with('-')).unwrap_or(command.len()),
            |at| at + 1,
        );
        let mut words = Words { positional: Vec::new(), flags: BTreeMap::new() };
        let mut current: Option<String> = None;
        for word in command.get(from..).unwrap_or_default() {
            let is_flag = word.starts_with('-') && word.parse::<f64>().is_err();
            match (&current, is_flag) {
                (_, true) => {
                    let (name, value) = match word.split_once('=') {
                        Some((name, value)) => (name, Some(value.to_owned())),
                        None => (word.as_str(), None),
                    };
                    let name = long_name(&name.replace('_', "-")).to_owned();
                    // The last one counts.
                    words.flags.insert(name.clone(), value.clone().into_iter().collect());
                    current = value.is_none().then_some(name);
                }
                (Some(flag), false) => words.flags.entry(flag.clone()).or_default().push(word.clone()),
                (None, false) => words.positional.push(word.clone()),
            }
        }
        words
    }
}

/// vLLM's short names of the flags that matter most.
fn long_name(flag: &str) -> &str {
    match flag {
        "-tp" => "--tensor-parallel-size",
        "-pp" => "--pipeline-parallel-size",
        "-dp" => "--data-parallel-size",
        "-q" => "--quantization",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, parse};
    use std::path::Path;

    fn engine(command: &[&str], env: &str) -> Engine {
        let text = format!(
            "[[engine]]\nname = \"A\"\ndevice = \"none\"\nmodel = \"m\"\nport = 8101\ncommand = {}\nenv = {env}\n",
            serde_json::to_string(command).unwrap()
        );
        let parsed = parse(&text, Path::new("hotbunk.toml"), &Facts::default());
        let (config, _) = parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false)));
        config.engines[0].clone()
    }

    const CONFIGURED: [&str; 12] = [
        "vllm",
        "serve",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        "8101",
        "--enable-sleep-mode",
        "--max-model-len",
        "8192",
        "-tp",
        "1",
    ];
    const ENV: &str = r#"{ VLLM_SERVER_DEV_MODE = "1" }"#;

    fn differ(command: &str, environment: &[&str]) -> Vec<String> {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let environment: Vec<String> = environment.iter().map(|entry| (*entry).to_owned()).collect();
        differences(&engine(&CONFIGURED, ENV), &Running { command: &command, environment: &environment })
    }

    #[test]
    fn the_same_settings_in_another_spelling_are_the_same() {
        let spelt = "/usr/bin/python3 /opt/venv/bin/vllm serve m --tensor-parallel-size=1 --max_model_len 8192 \
                     --enable-sleep-mode --port 8101 --host=127.0.0.1";
        assert_eq!(differ(spelt, &["HOME=/root", "VLLM_SERVER_DEV_MODE=1"]), [] as [String; 0]);
        // What cannot be read proves nothing.
        assert_eq!(differ(spelt, &[]), [] as [String; 0]);
    }

    #[test]
    fn every_difference_is_named_and_no_secret_is() {
        let other = "vllm serve other --host 127.0.0.1 --port 8101 --max-model-len 4096 -tp 1 --api-key hush --seed -1";
        let said = differ(other, &["VLLM_SERVER_DEV_MODE=0"]);
        let expected = [
            "`other` instead of `m`",
            "no --enable-sleep-mode",
            "--max-model-len 4096 instead of 8192",
            "--api-key, which is not configured",
            "--seed -1, which is not configured",
            "another value of VLLM_SERVER_DEV_MODE in its environment",
        ];
        assert_eq!(said, expected);
        assert_eq!(
            differ(other, &["HOME=/root"]).last().unwrap(),
            "no VLLM_SERVER_DEV_MODE in its environment"
        );
    }

    #[test]
    fn a_command_line_that_cannot_be_read_is_not_taken_for_the_configured_one() {
        let none = Running { command: &[], environment: &[] };
        assert_eq!(differences(&engine(&CONFIGURED, ENV), &none), ["its command line cannot be read"]);
    }

    #[test]
    fn fingerprints_differ_by_command_and_by_configuration() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let one = fingerprint_of_running(&words("a b"), "f1");
        assert_ne!(one, fingerprint_of_running(&words("a c"), "f1"));
        assert_ne!(one, fingerprint_of_running(&words("a b"), "f2"));
        assert_eq!(one, fingerprint_of_running(&words("a b"), "f1"));
    }
}
