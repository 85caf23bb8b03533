//! Options of vLLM that do not go with sleeping, as far as the command line shows them.
//!
//! Most are warnings: whether a pair is bad depends on vLLM's version, and the rehearsal at start finds out. The
//! sentence names what was seen, so that it can be judged. Sources are rows of CONTRACT 4 unless said otherwise.

use std::ops::Range;

use hotbunk_core::tier::Tier;

use super::Checking;
use super::command::{Command, Program, Value};
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
}

impl<'a> Subject<'a> {
    fn key(&self) -> String {
        format!("{}.command", self.path)
    }

    fn sleeps(&self) -> bool {
        !self.engine.sleep_tiers.is_empty()
    }

    fn level2(&self) -> bool {
        self.engine.allows(Tier::Level2)
    }

    fn value(&self, names: &[&str]) -> Option<Value<'a>> {
        self.command.value(names)
    }
}

/// Checks one engine's flags and environment.
pub(super) fn check(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    allocator(checking, subject);
    if subject.command.program() != Program::Vllm {
        return;
    }
    listens_inside(checking, subject);
    served_names(checking, subject);
    if subject.sleeps() {
        sleep_mode(checking, subject);
        known_bad(checking, subject);
    }
}

/// Row 31: expandable segments make a sleep free nothing, or fail an assertion.
fn allocator(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
        let Some(value) = subject.raw.env.get().and_then(|env| env.get(name)) else { continue };
        if value.value.to_lowercase().replace(' ', "").contains("expandable_segments:true")
            && subject.sleeps()
        {
            let key = format!("{}.env.{name}", subject.path);
            checking
                .problems
                .warning("expandable_segments", &value.span, key, "with expandable segments a sleeping engine keeps its memory")
                .help("remove expandable_segments: vLLM before 0.21 stops at it, later ones switch it off by themselves");
        }
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

/// The agent identifies an engine by the model that it lists.
fn served_names(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    let named = subject.command.values(&["--served-model-name"]);
    let served: Vec<Value<'_>> =
        if named.is_empty() { subject.command.model().into_iter().collect() } else { named };
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
    let env = subject.raw.env.get().and_then(|env| env.get("VLLM_SERVER_DEV_MODE"));
    let dev_mode = env.is_some_and(|value| value.value == "1");
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

/// What is wrong with a pair: flag's names, whether it matters for this value, which levels it spoils, why, what to do.
struct Pair {
    names: &'static [&'static str],
    is_bad: fn(Option<&str>) -> bool,
    level2_only: bool,
    why: &'static str,
    help: &'static str,
}

fn always(_: Option<&str>) -> bool {
    true
}

fn more_than_one(value: Option<&str>) -> bool {
    value.and_then(|value| value.parse::<u32>().ok()).is_some_and(|n| n > 1)
}

fn above_zero(value: Option<&str>) -> bool {
    value.and_then(|value| value.parse::<f64>().ok()).is_some_and(|n| n > 0.0)
}

const NO_LEVEL2: &str = "use `levels = [\"level1\"]`, or leave the flag out";

const PAIRS: &[Pair] = &[
    Pair {
        names: &["--kv-offloading-backend", "--kv-offloading-size"],
        is_bad: always,
        level2_only: false,
        why: "KV offloading does not survive sleeping: the first request after a wake can kill the engine (vLLM #45268)",
        help: "leave KV offloading out, or use `levels = []`",
    },
    Pair {
        names: &["--kv-transfer-config"],
        is_bad: |value| value.is_some_and(|value| value.to_lowercase().contains("offload")),
        level2_only: true,
        why: "a KV offload tier keeps blocks of the old weights across level 2 (vLLM #57727)",
        help: NO_LEVEL2,
    },
    Pair {
        names: &["--kv-cache-dtype"],
        is_bad: |value| value.is_some_and(|value| value.starts_with("fp8")),
        level2_only: true,
        why: "an fp8 KV cache loses its scales at level 2 in several releases (vLLM #28783, #41602, #57163)",
        help: NO_LEVEL2,
    },
    Pair {
        names: &["--enable-lora"],
        is_bad: always,
        level2_only: true,
        why: "level 2 loses LoRA adapters before vLLM 0.28 (vLLM #39934)",
        help: NO_LEVEL2,
    },
    Pair {
        names: &["--load-format"],
        is_bad: |value| {
            value.is_some_and(|value| {
                ["bitsandbytes", "gguf", "tensorizer", "sharded_state", "runai_streamer_sharded", "dummy"]
                    .contains(&value)
            })
        },
        level2_only: true,
        why: "this load format cannot reload weights, which a wake from level 2 needs",
        help: NO_LEVEL2,
    },
    Pair {
        names: &["--mm-encoder-tp-mode"],
        is_bad: |value| value == Some("data"),
        level2_only: false,
        why: "with the encoder split by data a sleep can leave most of its memory behind (vLLM #47654)",
        help: "leave the flag out, or watch the residual",
    },
    Pair {
        names: &["--api-server-count", "-asc"],
        is_bad: more_than_one,
        level2_only: false,
        why: "with several API servers pausing works in part of the modes only",
        help: "use one API server",
    },
    Pair {
        names: &["--data-parallel-size", "-dp"],
        is_bad: more_than_one,
        level2_only: false,
        why: "data-parallel engines deadlock or work late around a sleep before vLLM 0.29 (vLLM #39366, #51476)",
        help: "use one engine for each replica",
    },
    Pair {
        names: &["--shutdown-timeout"],
        is_bad: above_zero,
        level2_only: false,
        why: "a sleeping engine cannot drain, so its stop takes the whole shutdown timeout",
        help: "leave the flag out",
    },
];

fn known_bad(checking: &mut Checking<'_>, subject: &Subject<'_>) {
    for pair in PAIRS {
        let Some(flag) = subject.command.flag(pair.names) else { continue };
        let value = subject.value(pair.names).map(|value| value.text);
        if (pair.level2_only && !subject.level2()) || !(pair.is_bad)(value) {
            continue;
        }
        checking.problems.warning("known_bad_flag", &flag.span, subject.key(), pair.why).help(pair.help);
    }
    let speculative = ["--speculative-config", "-sc", "--speculative-model", "--spec-model"];
    if let Some(flag) = subject.command.flag(&speculative).filter(|_| subject.level2())
        && subject.command.flag(&["--sleep-preserve-parameter-names"]).is_none()
    {
        checking
                .problems
                .warning("known_bad_flag", &flag.span, subject.key(), "a wake from level 2 does not reload the draft model, and decoding becomes slow (vLLM #52479)")
                .help("add \"--sleep-preserve-parameter-names\", \"draft.*\" (vLLM 0.31), or use `levels = [\"level1\"]`");
    }
}

fn command_span<'a>(subject: &Subject<'a>) -> &'a Range<usize> {
    subject.raw.command.located().map_or(subject.table, |command| &command.span)
}
