//! What an engine's flags and environment must say, and must not, as far as the command line shows them.
//!
//! Errors are what cannot work: a server open to all, a model that nobody serves. Options that do not go with sleeping
//! are warnings, from the table in [`super::known_bad`]: whether a pair is bad depends on vLLM's release, and the
//! rehearsal at start finds out.

use std::ops::Range;

use super::Checking;
use super::command::{Command, Program, Runtime, Value};
use super::known_bad::{Line, ROWS, Seen};
use crate::config::checked::Engine;
use crate::config::raw::RawEngine;
use crate::config::reader::list;

/// One engine, as written and as checked.
pub(super) struct Subject<'a> {
    pub(super) path: &'a str,
    pub(super) raw: &'a RawEngine,
    pub(super) table: &'a Range<usize>,
    pub(super) engine: &'a Engine,
    pub(super) command: Command<'a>,
    /// Whether its device's memory can be read. Without, it is taken to be a build without sleep mode.
    pub(super) has_evidence: bool,
    /// Whether there are GPUs that it is not meant to use.
    pub(super) is_one_of_several: bool,
}

impl<'a> Subject<'a> {
    fn key(&self) -> String {
        format!("{}.command", self.path)
    }

    fn sleeps(&self) -> bool {
        !self.engine.sleep_tiers.is_empty()
    }

    /// A variable that the engine is given: by its own environment, or by the container runtime's flags.
    fn env(&self, name: &str) -> Option<Value<'a>> {
        let outside = || {
            let value = self.raw.env.get()?.get(name)?;
            Some(Value { text: &value.value, span: &value.span })
        };
        match self.command.runtime() {
            None => outside(),
            Some(runtime) => runtime.env(name).or_else(|| outside().filter(|_| runtime.passes_env(name))),
        }
    }
}

/// Checks one engine's flags and environment.
pub(super) fn check(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    if subject.command.program() != Program::Vllm {
        // A wrapper hides its flags; the environment is in sight all the same, and a simulated engine has none of it.
        if subject.sleeps() && subject.command.program() != Program::Simulated {
            known_bad(checking, subject);
        }
        return;
    }
    listens_inside(checking, subject);
    which_gpu(checking, subject);
    served_names(checking, subject);
    if subject.sleeps() {
        sleep_mode(checking, subject);
        known_bad(checking, subject);
    }
}

/// vLLM listens on every address unless told otherwise, and its control routes ask nobody for a key (CONTRACT 1.1).
fn listens_inside(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    if let Some(uds) = subject.command.flag(&["--uds"]) {
        checking
            .problems
            .error(
                "unsupported_flag",
                &uds.span,
                subject.key(),
                "with --uds vLLM does not listen on its port",
            )
            .help("drop --uds: the engine is reached at `host` and `port`");
    } else if let Some(runtime) = subject.command.runtime().filter(|r| !r.shares_network()) {
        published(checking, subject, runtime);
        return;
    } else if subject.command.flag(&["--host"]).is_none() {
        let span = command_span(subject);
        checking
            .problems
            .error(
                "not_loopback",
                span,
                subject.key(),
                "without --host vLLM listens on every address, its control routes open to all",
            )
            .help(format!("add \"--host\", \"{}\" to the command", subject.engine.host));
    }
    if subject.command.flag(&["--port"]).is_none() && subject.engine.port != 8000 {
        let span = command_span(subject);
        let message =
            format!("the command has no --port, so vLLM listens on 8000 and not on {}", subject.engine.port);
        checking
            .problems
            .error("conflict", span, subject.key(), message)
            .help(format!("add \"--port\", \"{}\" to the command", subject.engine.port));
    }
}

/// A container with a network of its own must publish its port on loopback, and nowhere else.
fn published(checking: &mut Checking<'_>, subject: &Subject<'_>, runtime: Runtime<'_>) {
    let (host, port) = (subject.engine.host, subject.engine.port);
    let all = runtime.values(&["-p", "--publish"]);
    let inner = subject.command.value(&["--port"]).map_or("8000", |port| port.text);
    if let Some(inside) = subject.command.value(&["--host"]).filter(|host| host.text != "0.0.0.0") {
        let message = format!("{} is the container's own: nothing that is published reaches it", inside.text);
        checking
            .problems
            .error("conflict", inside.span, subject.key(), message)
            .help("drop --host: what is published decides who reaches it");
    }
    let here = |value: &&Value<'_>| {
        let parts: Vec<&str> = value.text.rsplitn(3, ':').collect();
        parts.get(1).is_some_and(|outer| *outer == port.to_string())
    };
    let help = format!(
        "use \"--network\", \"host\" with \"--host\", \"{host}\", or publish with \"-p\", \"{host}:{port}:{inner}\""
    );
    match all.iter().find(here) {
        None => {
            let message = format!("the container does not publish port {port}");
            let span = command_span(subject);
            checking.problems.error("conflict", span, subject.key(), message).help(help);
        }
        Some(value) if !value.text.starts_with(&format!("{host}:")) => {
            let message =
                "this port is published on every address, and vLLM's control routes are open to all";
            checking.problems.error("not_loopback", value.span, subject.key(), message).help(help);
        }
        Some(value) if !value.text.ends_with(&format!(":{inner}")) => {
            let message = format!("inside the container vLLM listens on port {inner}");
            checking.problems.error("conflict", value.span, subject.key(), message).help(help);
        }
        Some(_) => {}
    }
}

/// vLLM takes the first GPU that it sees, whatever the agent believes.
fn which_gpu(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    let is_said = subject.command.runtime().is_some()
        || ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"].iter().any(|name| subject.env(name).is_some());
    if subject.is_one_of_several && !is_said {
        checking
            .problems
            .warning(
                "unsaid_gpu",
                command_span(subject),
                subject.key(),
                "nothing tells vLLM which GPU is meant: it takes the first ones that it sees",
            )
            .help("set env.CUDA_VISIBLE_DEVICES to the UUIDs of its devices");
    }
}

/// The agent identifies an engine by the model that it lists.
fn served_names(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    let named = subject.command.values(&["--served-model-name"]);
    let mut served: Vec<Value<'_>> =
        if named.is_empty() { subject.command.model().into_iter().collect() } else { named };
    // Adapters are served under names of their own: `NAME=PATH`, or as JSON.
    for module in subject.command.values(&["--lora-modules"]) {
        let name = match module.text.split_once("\"name\"") {
            Some((_, rest)) => rest.split('"').nth(1),
            None => module.text.split('=').next(),
        };
        served.extend(name.map(|text| Value { text, span: module.span }));
    }
    let (Some(first), Some(model)) = (served.first(), subject.raw.model.located()) else { return };
    let ids = std::iter::once(("model".to_owned(), model)).chain(
        subject
            .raw
            .aliases
            .get()
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(k, alias)| (format!("aliases[{k}]"), alias)),
    );
    for (key, id) in ids {
        if !served.iter().any(|name| name.text == id.value) && !id.value.is_empty() {
            let names = list(served.iter().map(|name| name.text));
            let message = format!("vLLM will answer to {names}, not to \"{}\"", id.value);
            checking
                .problems
                .error("model_not_served", &id.span, format!("{}.{key}", subject.path), message)
                .related(first.span, "here")
                .help(format!("add \"--served-model-name\" with \"{}\" to the command", id.value));
        }
    }
}

/// Without both settings `/sleep` does not exist, or answers 200 and frees nothing (CONTRACT 1.1).
fn sleep_mode(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    let dev_mode = subject.env("VLLM_SERVER_DEV_MODE").is_some_and(|value| value.text == "1");
    let enabled = subject
        .command
        .flag(&["--enable-sleep-mode"])
        .is_some_and(|flag| !flag.value.to_lowercase().ends_with("=false"));
    // Builds without sleep mode refuse the flag (CPU), and are run without memory readings.
    let needs_flag = subject.has_evidence && !enabled;
    if dev_mode && !needs_flag {
        return;
    }
    let missing = match (needs_flag, dev_mode) {
        (true, false) => "--enable-sleep-mode in the command and VLLM_SERVER_DEV_MODE=1 in its environment",
        (true, true) => "--enable-sleep-mode in the command",
        _ => "VLLM_SERVER_DEV_MODE=1 in its environment",
    };
    let message = format!("this engine cannot sleep: it has not {missing}");
    let help = "set both --enable-sleep-mode and env.VLLM_SERVER_DEV_MODE = \"1\", or `levels = []` to restart it instead";
    let span = command_span(subject);
    let demanded = subject.raw.levels.get().is_some_and(|levels| !levels.is_empty());
    let problem = if demanded {
        checking.problems.error("no_sleep_mode", span, subject.key(), message)
    } else {
        checking.problems.warning("no_sleep_mode", span, subject.key(), message)
    };
    problem.help(help);
    if let Some(levels) = subject.raw.levels.located().filter(|_| demanded) {
        problem.related(&levels.span, "demanded here");
    }
}

/// What the table says of this command line.
fn known_bad(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    let env = |name: &str| subject.env(name).map(|value| value.text.to_owned());
    let line = Line { command: subject.command, env: &env, model: &subject.engine.model };
    for row in ROWS.iter().filter(|row| row.concerns(&subject.engine.sleep_tiers)) {
        let Some(seen) = row.seen(&line) else { continue };
        let release = checking.facts.vllm;
        if release.map_or(seen == Seen::Guess, |release| !row.releases.contain(release)) {
            continue;
        }
        let (span, key) = match &seen {
            Seen::Word(span) => (span.clone(), subject.key()),
            Seen::Env(name) => {
                let span =
                    subject.env(name).map_or_else(|| command_span(subject).clone(), |v| v.span.clone());
                (span, format!("{}.env.{name}", subject.path))
            }
            Seen::Guess => {
                let model = subject.raw.model.located().map_or(subject.table, |model| &model.span);
                (model.clone(), format!("{}.model", subject.path))
            }
        };
        let code = if row.code == "expandable_segments" { row.code } else { "known_bad_flag" };
        checking.problems.warning(code, &span, key, row.why).help(row.help);
    }
}

fn command_span<'a>(subject: &Subject<'a>) -> &'a Range<usize> {
    subject.raw.command.located().map_or(subject.table, |command| &command.span)
}
