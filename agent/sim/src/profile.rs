//! Profiles: the figures of a device and of the engines on it.
//!
//! A profile is TOML; `l20` is built in and reproduces the reference report. Every figure is in simulated seconds or
//! MiB; which are measured and which are estimated, and how, its comments say.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const L20: &str = include_str!("profiles/l20.toml");

/// A device and its engines.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: DeviceProfile,
    /// Engines by role (`A`, `B`).
    pub engines: BTreeMap<String, EngineProfile>,
}

/// A device's figures.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Product name.
    pub name: String,
    /// Capacity, MiB.
    pub total_mib: u64,
    /// CUDA release that reports name.
    pub cuda: String,
    /// Fixed cost of unmapping, s.
    pub unmap_fixed_s: f64,
    /// Unmapping, s per GiB.
    pub unmap_s_per_gib: f64,
    /// Mapping, s per GiB.
    pub map_s_per_gib: f64,
}

/// One engine's figures: bytes in MiB, times in simulated seconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineProfile {
    /// Served model name.
    pub model: String,
    /// Quantised weights need post-processing after a reload.
    pub is_quantized: bool,
    /// Default context length, tokens.
    pub max_model_len: u32,
    /// Device MiB that no sleep gives back.
    pub residual_mib: u64,
    /// Device MiB of weights.
    pub weights_mib: u64,
    /// Device MiB of KV cache, where no flag says otherwise.
    pub kv_mib: u64,
    /// Device MiB taken with a wake and given back with a sleep, outside the pool.
    pub growth_mib: u64,
    /// Device MiB taken from the end of a wake to the end of the first prefill after it.
    pub wake_transient_mib: u64,
    /// Device MiB of the profiling run at start.
    pub profile_transient_mib: u64,
    /// KV bytes a token takes.
    pub kv_bytes_per_token: u64,
    /// Host MiB of the processes.
    pub host_base_mib: u64,
    /// Host MiB of pinned backups, once for the process's life.
    pub host_pinned_mib: u64,
    /// Start to ready with nothing cached.
    pub ready_cold_s: f64,
    /// Start to ready, later.
    pub ready_warm_s: f64,
    /// Copying all weights to the host.
    pub offload_s: f64,
    /// Pinned allocation of the first offload.
    pub pin_s: f64,
    /// Level-2 sleep apart from unmapping.
    pub discard_s: f64,
    /// Copying all weights back.
    pub restore_s: f64,
    /// `reload_weights`.
    pub reload_s: f64,
    /// Time to first token of the first request after a wake.
    pub first_after_wake_s: f64,
    /// How many times slower that is where no request was served before the first sleep.
    pub unwarmed_factor: f64,
    /// Time to first token at concurrency 1.
    pub ttft_1_s: f64,
    /// Time to first token at concurrency 4.
    pub ttft_4_s: f64,
    /// Time per token at concurrency 1.
    pub tpot_1_s: f64,
    /// Time per token at concurrency 4.
    pub tpot_4_s: f64,
    /// Prompt tokens of a request that the two TTFTs include.
    pub ttft_prompt_tokens: u32,
    /// Prefill beyond those, s per token.
    pub prefill_s_per_token: f64,
    /// Tokens of the chat template.
    pub chat_overhead_tokens: u32,
    /// Tokens added to a plain prompt.
    pub completion_overhead_tokens: u32,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("profile {path}: cannot read it; `l20` is built in, another one is a TOML file of the same form")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a profile.
    #[error("profile {path}: {message}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// The parser's words, with the line.
        message: String,
    },
    /// A figure that cannot be.
    #[error("profile {path}, engine {role}: {field} must be a finite number and not below 0")]
    Figure {
        /// Which file.
        path: PathBuf,
        /// Which engine.
        role: String,
        /// Which figure.
        field: &'static str,
    },
    /// No such engine.
    #[error("the profile has no engine `{role}`; it has {known}; choose one with --role")]
    NoRole {
        /// Asked for.
        role: String,
        /// Those it has.
        known: String,
    },
}

impl Profile {
    /// The built-in `l20`, or a file.
    pub fn load(name: &str) -> Result<Self, Error> {
        let path = PathBuf::from(name);
        if name == "l20" {
            return Profile::parse(L20, &path);
        }
        let text =
            std::fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        Profile::parse(&text, &path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let profile: Profile = toml::from_str(text)
            .map_err(|error| Error::Format { path: path.to_owned(), message: error.to_string() })?;
        for (role, engine) in &profile.engines {
            for (field, value) in engine.times() {
                if !value.is_finite() || value < 0.0 {
                    return Err(Error::Figure { path: path.to_owned(), role: role.clone(), field });
                }
            }
        }
        Ok(profile)
    }

    /// The engine of a role.
    pub fn engine(&self, role: &str) -> Result<&EngineProfile, Error> {
        self.engines.get(role).ok_or_else(|| Error::NoRole {
            role: role.to_owned(),
            known: self.engines.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }
}

impl EngineProfile {
    fn times(&self) -> [(&'static str, f64); 14] {
        [
            ("ready_cold_s", self.ready_cold_s),
            ("ready_warm_s", self.ready_warm_s),
            ("offload_s", self.offload_s),
            ("pin_s", self.pin_s),
            ("discard_s", self.discard_s),
            ("restore_s", self.restore_s),
            ("reload_s", self.reload_s),
            ("first_after_wake_s", self.first_after_wake_s),
            ("unwarmed_factor", self.unwarmed_factor),
            ("ttft_1_s", self.ttft_1_s),
            ("ttft_4_s", self.ttft_4_s),
            ("tpot_1_s", self.tpot_1_s),
            ("tpot_4_s", self.tpot_4_s),
            ("prefill_s_per_token", self.prefill_s_per_token),
        ]
    }
}
