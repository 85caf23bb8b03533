//! Options of vLLM that do not go with sleeping: the table.
//!
//! A row says what is seen on the command line (or in the environment, or in the model's name), in which releases it
//! does harm, to what, why, and what to do; and it cites its line of the contract. `check` reads it with no engine
//! running: a row counts unless a release is known that it does not concern. `doctor` reads it with the detected
//! release, so it says only what is true of this engine.
//!
//! What only a model's name suggests (that its weights are quantised, that it is a hybrid) is a guess: such a row is
//! told only where the release is known and within its range.

use super::command::{Command, Value};
use hotbunk_core::capability::Version;
use hotbunk_core::tier::Tier;

/// The releases that a row concerns: from the first (inclusive) to below the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Releases {
    /// `None`: from the beginning.
    pub from: Option<Version>,
    /// `None`: still so in the newest release that was read.
    pub below: Option<Version>,
}

impl Releases {
    /// Whether a release is among them.
    pub fn contain(self, version: Version) -> bool {
        self.from.is_none_or(|from| version >= from) && self.below.is_none_or(|below| version < below)
    }
}

impl std::fmt::Display for Releases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |v: Version| match v.patch {
            0 => format!("{}.{}", v.major, v.minor),
            patch => format!("{}.{}.{patch}", v.major, v.minor),
        };
        match (self.from, self.below) {
            (None, None) => f.write_str("all releases"),
            (Some(from), None) => write!(f, "from {} on", short(from)),
            (None, Some(below)) => write!(f, "below {}", short(below)),
            (Some(from), Some(below)) => write!(f, "from {}, below {}", short(from), short(below)),
        }
    }
}

/// What a row spoils.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spoils {
    /// Sleeping at any level.
    Sleep,
    /// Level 2 alone.
    Level2,
    /// The start.
    Start,
    /// The end of the process.
    Stop,
}

impl Spoils {
    /// For the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Spoils::Sleep => "sleeping",
            Spoils::Level2 => "level 2",
            Spoils::Start => "starting",
            Spoils::Stop => "stopping",
        }
    }
}

/// One row.
#[derive(Debug)]
pub struct Row {
    /// Stable word for machines.
    pub code: &'static str,
    /// What is seen.
    pub when: &'static str,
    /// Where.
    pub releases: Releases,
    /// What is spoilt.
    pub spoils: Spoils,
    /// Why: a sentence without its end.
    pub why: &'static str,
    /// What to do.
    pub help: &'static str,
    /// The contract's section, and its row where the section is a table.
    pub cites: &'static str,
    seen: fn(&Line<'_>) -> Option<Seen>,
}

/// Where a row's condition was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    /// At a word of the command, by its place in the file.
    Word(std::ops::Range<usize>),
    /// In a variable of the environment, by its name.
    Env(&'static str),
    /// The model's name suggests it.
    Guess,
}

impl Row {
    /// Where its condition holds on this command line, if it does.
    pub(super) fn seen(&self, line: &Line<'_>) -> Option<Seen> {
        (self.seen)(line)
    }

    /// Whether it matters for an engine that may be put to these tiers.
    pub fn concerns(&self, sleep_tiers: &[Tier]) -> bool {
        match self.spoils {
            Spoils::Level2 => sleep_tiers.contains(&Tier::Level2),
            Spoils::Sleep | Spoils::Start | Spoils::Stop => !sleep_tiers.is_empty(),
        }
    }
}

/// A command line with its environment.
pub(super) struct Line<'a> {
    pub(super) command: Command<'a>,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// The id that clients use.
    pub(super) model: &'a str,
}

impl<'a> Line<'a> {
    fn flag(&self, names: &[&str], is_bad: impl Fn(Option<&str>) -> bool) -> Option<Seen> {
        let flag = self.command.flag(names)?;
        let value = self.value(names).map(|value| value.text);
        is_bad(value).then(|| Seen::Word(flag.span.clone()))
    }

    fn value(&self, names: &[&str]) -> Option<Value<'a>> {
        self.command.value(names)
    }

    fn env(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// Whether the model's name has one of these words in it.
    fn is_named(&self, words: &[&str]) -> bool {
        let told = self.command.model().map_or("", |model| model.text);
        let names = format!("{} {told}", self.model).to_lowercase();
        words.iter().any(|word| names.contains(word))
    }
}

const fn v(minor: u16, patch: u16) -> Option<Version> {
    Some(Version::new(0, minor, patch))
}

const ALL: Releases = Releases { from: None, below: None };

const fn below(minor: u16) -> Releases {
    Releases { from: None, below: v(minor, 0) }
}

const fn between(from: Option<Version>, minor: u16) -> Releases {
    Releases { from, below: v(minor, 0) }
}

const NO_LEVEL2: &str = "use `levels = [\"level1\"]`, or leave the flag out";
const LEVEL1: &str = "use `levels = [\"level1\"]`, or a newer release";

const QUANTIZED: &[&str] =
    &["fp8", "awq", "gptq", "int4", "int8", "w4a16", "w8a8", "nvfp4", "bnb-4bit", "quantized"];
const HYBRID: &[&str] = &[
    "mamba",
    "jamba",
    "qwen3-next",
    "qwen3.5",
    "qwen3.6",
    "qwen3.7",
    "qwen3.8",
    "nemotron-h",
    "granite-4",
    "bamba",
    "falcon-h1",
    "zamba",
    "kimi-linear",
    "lfm2",
];
const MULTIMODAL: &[&str] =
    &["-vl", "vision", "omni", "llava", "pixtral", "internvl", "gemma-3", "gemma-4", "minicpm-v", "phi-4-mm"];

fn fp8_kv(line: &Line<'_>) -> Option<Seen> {
    line.flag(&["--kv-cache-dtype"], |value| value.is_some_and(|value| value.starts_with("fp8")))
}

fn more_than_one(value: Option<&str>) -> bool {
    value.and_then(|value| value.parse::<u32>().ok()).is_some_and(|n| n > 1)
}

/// Loaders that cannot iterate over full weights.
const NO_RELOAD: &[&str] =
    &["bitsandbytes", "gguf", "tensorizer", "sharded_state", "runai_streamer_sharded", "dummy"];

/// The table.
pub(super) static ROWS: &[Row] = &[
    Row {
        code: "expandable_segments",
        when: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        releases: below(24),
        spoils: Spoils::Sleep,
        why: "with expandable segments a sleeping engine keeps its memory",
        help: "remove expandable_segments: vLLM before 0.21 stops at it, later ones switch it off by themselves",
        cites: "4 row 31",
        seen: |line| {
            ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"].into_iter().find_map(|name| {
                let value = line.env(name)?.to_lowercase().replace(' ', "");
                value.contains("expandable_segments:true").then_some(Seen::Env(name))
            })
        },
    },
    Row {
        code: "kv_offloading",
        when: "--kv-offloading-backend, --kv-offloading-size",
        releases: ALL,
        spoils: Spoils::Sleep,
        why: "KV offloading does not survive sleeping: the first request after a wake can kill the engine (vLLM #45268)",
        help: "leave KV offloading out, or use `levels = []`",
        cites: "4 row 19",
        seen: |line| line.flag(&["--kv-offloading-backend", "--kv-offloading-size"], |_| true),
    },
    Row {
        code: "kv_transfer_offload",
        when: "--kv-transfer-config with an offloading connector",
        releases: ALL,
        spoils: Spoils::Level2,
        why: "a KV offload tier keeps blocks of the old weights across level 2 (vLLM #57727)",
        help: NO_LEVEL2,
        cites: "4 row 18",
        seen: |line| {
            line.flag(&["--kv-transfer-config"], |value| {
                value.is_some_and(|value| value.to_lowercase().contains("offload"))
            })
        },
    },
    Row {
        code: "fp8_kv_cache",
        when: "--kv-cache-dtype fp8…",
        releases: below(12),
        spoils: Spoils::Level2,
        why: "an fp8 KV cache loses its scales at level 2 before vLLM 0.12 (vLLM #25800)",
        help: NO_LEVEL2,
        cites: "4 row 10",
        seen: fp8_kv,
    },
    Row {
        code: "fp8_kv_cache_hybrid",
        when: "--kv-cache-dtype fp8… and a hybrid (Mamba, DeltaNet) model",
        releases: between(v(12, 0), 29),
        spoils: Spoils::Sleep,
        why: "a hybrid model with an fp8 KV cache answers a wake with 500 and hangs (vLLM #41564, #49237)",
        help: "leave --kv-cache-dtype out, use `levels = []`, or vLLM 0.29",
        cites: "4 row 11",
        seen: |line| fp8_kv(line).filter(|_| line.is_named(HYBRID)),
    },
    Row {
        code: "lora_level2",
        when: "--enable-lora",
        releases: between(v(17, 0), 28),
        spoils: Spoils::Level2,
        why: "level 2 loses LoRA adapters before vLLM 0.28 (vLLM #39934)",
        help: NO_LEVEL2,
        cites: "4 row 13",
        seen: |line| line.flag(&["--enable-lora"], |_| true),
    },
    Row {
        code: "draft_model_level2",
        when: "--speculative-config without --sleep-preserve-parameter-names",
        releases: ALL,
        spoils: Spoils::Level2,
        why: "a wake from level 2 does not reload the draft model, and decoding becomes slow (vLLM #52479)",
        help: "add \"--sleep-preserve-parameter-names\", \"draft.*\" (vLLM 0.31), or use `levels = [\"level1\"]`",
        cites: "4 row 15",
        seen: |line| {
            let drafts = ["--speculative-config", "-sc", "--speculative-model", "--spec-model"];
            let preserved = line.command.flag(&["--sleep-preserve-parameter-names"]).is_some();
            line.flag(&drafts, |_| !preserved)
        },
    },
    Row {
        code: "quantized_level2",
        when: "--quantization",
        releases: below(16),
        spoils: Spoils::Level2,
        why: "before vLLM 0.16 reloading quantised weights fails or gives garbage (vLLM #28606)",
        help: LEVEL1,
        cites: "4 row 9",
        seen: |line| {
            line.flag(&["--quantization", "-q"], |value| value != Some("None"))
                .or_else(|| line.is_named(QUANTIZED).then_some(Seen::Guess))
        },
    },
    Row {
        code: "load_format_level2",
        when: "--load-format gguf, bitsandbytes, tensorizer, sharded_state, dummy",
        releases: ALL,
        spoils: Spoils::Level2,
        why: "this load format cannot reload weights, which a wake from level 2 needs",
        help: NO_LEVEL2,
        cites: "1.3",
        seen: |line| {
            line.flag(&["--load-format"], |value| value.is_some_and(|value| NO_RELOAD.contains(&value)))
        },
    },
    Row {
        code: "v2_runner_level2",
        when: "VLLM_USE_V2_MODEL_RUNNER=1",
        releases: between(v(17, 0), 22),
        spoils: Spoils::Level2,
        why: "the second model runner cannot reload weights before vLLM 0.22",
        help: "unset VLLM_USE_V2_MODEL_RUNNER, or use `levels = [\"level1\"]`",
        cites: "1.3",
        seen: |line| {
            let on = line.env("VLLM_USE_V2_MODEL_RUNNER").is_some_and(|value| value.trim() == "1");
            on.then_some(Seen::Env("VLLM_USE_V2_MODEL_RUNNER"))
        },
    },
    Row {
        code: "model_level2",
        when: "a model of the Gemma-3n, Gemma-4 class",
        releases: ALL,
        spoils: Spoils::Level2,
        why: "models of this class keep tensors that level 2 loses even with the right calls (vLLM #53344)",
        help: "use `levels = [\"level1\"]`; else the canary decides at the first wake",
        cites: "4 row 22",
        seen: |line| line.is_named(&["gemma-3n", "gemma-4"]).then_some(Seen::Guess),
    },
    Row {
        code: "multimodal_cache",
        when: "a multimodal model",
        releases: below(23),
        spoils: Spoils::Sleep,
        why: "after a sleep a repeated image meets caches that are out of step (vLLM #42995)",
        help: "use vLLM 0.23 or later, or switch the multimodal processor's cache off",
        cites: "4 row 20",
        seen: |line| line.is_named(MULTIMODAL).then_some(Seen::Guess),
    },
    Row {
        code: "mm_encoder_data",
        when: "--mm-encoder-tp-mode data",
        releases: below(23),
        spoils: Spoils::Sleep,
        why: "with the encoder split by data a sleep can leave most of its memory behind (vLLM #47654)",
        help: "leave the flag out, or watch the residual",
        cites: "4 row 27",
        seen: |line| line.flag(&["--mm-encoder-tp-mode"], |value| value == Some("data")),
    },
    Row {
        code: "nvfp4_start",
        when: "an NVFP4 model with sleep mode",
        releases: Releases { from: v(21, 0), below: None },
        spoils: Spoils::Start,
        why: "with sleep mode the start of an NVFP4 model can run out of memory while weights are loaded (vLLM #43951)",
        help: "leave more of the card free at its start, or use `levels = []` without --enable-sleep-mode",
        cites: "4 row 30",
        seen: |line| line.is_named(&["nvfp4"]).then_some(Seen::Guess),
    },
    Row {
        code: "several_api_servers",
        when: "--api-server-count above 1",
        releases: between(v(12, 0), 17),
        spoils: Spoils::Sleep,
        why: "with several API servers pausing works in part of the modes only",
        help: "use one API server",
        cites: "1.2",
        seen: |line| line.flag(&["--api-server-count", "-asc"], more_than_one),
    },
    Row {
        code: "data_parallel",
        when: "--data-parallel-size above 1",
        releases: below(29),
        spoils: Spoils::Sleep,
        why: "data-parallel engines deadlock or work late around a sleep before vLLM 0.29 (vLLM #39366, #51476)",
        help: "use one engine for each replica",
        cites: "4 row 36",
        seen: |line| line.flag(&["--data-parallel-size", "-dp"], more_than_one),
    },
    Row {
        code: "shutdown_timeout",
        when: "--shutdown-timeout above 0",
        releases: Releases { from: v(18, 0), below: None },
        spoils: Spoils::Stop,
        why: "a sleeping engine cannot drain, so its stop takes the whole shutdown timeout",
        help: "leave the flag out",
        cites: "5",
        seen: |line| {
            line.flag(&["--shutdown-timeout"], |value| {
                value.and_then(|value| value.parse::<f64>().ok()).is_some_and(|n| n > 0.0)
            })
        },
    },
    Row {
        code: "keep_alive_on_death",
        when: "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1",
        releases: Releases { from: v(11, 2), below: None },
        spoils: Spoils::Stop,
        why: "with it the API server outlives its engine core, so a crash is found by failing calls and not by an exit",
        help: "unset VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
        cites: "1.4",
        seen: |line| {
            let on = line.env("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH").is_some_and(|value| value.trim() == "1");
            on.then_some(Seen::Env("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"))
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::reader::Located;
    use std::collections::{BTreeMap, BTreeSet};

    fn seen(words: &[&str], env: &[(&str, &str)], model: &str) -> Vec<&'static str> {
        let words: Vec<Located<String>> =
            words.iter().map(|word| Located { value: (*word).to_owned(), span: 0..1 }).collect();
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        let look = |name: &str| env.get(name).map(|value| (*value).to_owned());
        let line = Line { command: Command::new(&words), env: &look, model };
        ROWS.iter().filter(|row| row.seen(&line).is_some()).map(|row| row.code).collect()
    }

    /// Flags, environment, model, and the row's code.
    type Case =
        (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str, &'static str);

    /// Each row by what it is for, and by the same with another value.
    #[test]
    fn every_row_is_seen_where_it_should_be_and_nowhere_else() {
        let serve = ["vllm", "serve", "m"];
        let bad: &[Case] = &[
            (
                &[],
                &[("PYTORCH_CUDA_ALLOC_CONF", "a:1, expandable_segments: True")],
                "m",
                "expandable_segments",
            ),
            (&["--kv-offloading-backend", "native"], &[], "m", "kv_offloading"),
            (
                &["--kv-transfer-config", "{\"kv_connector\":\"OffloadingConnector\"}"],
                &[],
                "m",
                "kv_transfer_offload",
            ),
            (&["--kv-cache-dtype=fp8_e4m3"], &[], "m", "fp8_kv_cache"),
            (&["--kv-cache-dtype", "fp8"], &[], "Qwen3-Next-80B", "fp8_kv_cache_hybrid"),
            (&["--enable-lora"], &[], "m", "lora_level2"),
            (&["--speculative-config", "{}"], &[], "m", "draft_model_level2"),
            (&["-q", "awq"], &[], "m", "quantized_level2"),
            (&[], &[], "Qwen3-27B-FP8", "quantized_level2"),
            (&["--load-format", "gguf"], &[], "m", "load_format_level2"),
            (&[], &[("VLLM_USE_V2_MODEL_RUNNER", "1")], "m", "v2_runner_level2"),
            (&[], &[], "google/gemma-3n-E4B", "model_level2"),
            (&[], &[], "Qwen2.5-VL-7B", "multimodal_cache"),
            (&["--mm-encoder-tp-mode", "data"], &[], "m", "mm_encoder_data"),
            (&[], &[], "x-NVFP4", "nvfp4_start"),
            (&["-asc", "2"], &[], "m", "several_api_servers"),
            (&["-dp=2"], &[], "m", "data_parallel"),
            (&["--shutdown_timeout", "15"], &[], "m", "shutdown_timeout"),
            (&[], &[("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1")], "m", "keep_alive_on_death"),
        ];
        let mut met = BTreeSet::new();
        for (flags, env, model, code) in bad {
            let words: Vec<&str> = serve.iter().chain(*flags).copied().collect();
            let found = seen(&words, env, model);
            assert!(found.contains(code), "{flags:?} {env:?} {model}: {found:?}");
            met.extend(found);
        }
        assert_eq!(met.len(), ROWS.len(), "a row without a case: {met:?}");
        let good: &[&[&str]] = &[
            &["--kv-cache-dtype", "auto", "--load-format", "runai_streamer", "-dp", "1", "-asc", "1"],
            &["--shutdown-timeout", "0", "--mm-encoder-tp-mode", "weights"],
            &["--speculative-config", "{}", "--sleep-preserve-parameter-names", "draft.*"],
        ];
        for flags in good {
            let words: Vec<&str> = serve.iter().chain(*flags).copied().collect();
            let env = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")];
            assert_eq!(seen(&words, &env, "Qwen3-1.7B"), Vec::<&str>::new(), "{flags:?}");
        }
    }

    #[test]
    fn every_row_cites_the_contract_and_says_what_to_do() {
        let mut codes = BTreeSet::new();
        for row in ROWS {
            assert!(codes.insert(row.code), "{} stands twice", row.code);
            assert!(row.cites.starts_with(|c: char| c.is_ascii_digit()), "{}", row.code);
            assert!(!row.help.is_empty() && row.why.len() > 20, "{}", row.code);
        }
    }

    #[test]
    fn ranges_hold_their_first_release_and_not_their_end() {
        let range = between(v(17, 0), 28);
        let at = |minor, patch| range.contain(Version::new(0, minor, patch));
        assert_eq!([at(16, 9), at(17, 0), at(27, 1), at(28, 0)], [false, true, true, false]);
        assert_eq!(range.to_string(), "from 0.17, below 0.28");
        assert_eq!(below(16).to_string(), "below 0.16");
        assert_eq!(Releases { from: v(11, 2), below: None }.to_string(), "from 0.11.2 on");
        assert_eq!(ALL.to_string(), "all releases");
    }
}
