//! Arguments of the simulated engine: what was typed ([`SimArgs`]) and what it means ([`Settings`]).

use crate::faults::{self, Fault};
use crate::model::{MIB, Model};
use crate::profile::{self, EngineProfile, Profile};
use crate::tokens;
use crate::version::Version;
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

/// Arguments of `sim-engine`: vLLM's where it has them, and the simulation's own.
#[derive(Debug, Clone, Args)]
pub struct SimArgs {
    /// The engine's short name, as in the agent's configuration
    #[arg(long, default_value = "A")]
    pub name: String,
    /// Which engine of the profile it is; default: the name
    #[arg(long)]
    pub role: Option<String>,
    /// Served model name; default: the profile's
    #[arg(long)]
    pub model: Option<String>,
    /// Names that requests use instead of the model's; metrics carry the first
    #[arg(long, num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Keys of which inference requests must carry one
    #[arg(long, num_args = 1..)]
    pub api_key: Vec<String>,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Unix socket to listen on, instead of address and port
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// `l20`, or a TOML file with a device's and engines' figures
    #[arg(long, default_value = "l20")]
    pub profile: String,
    /// All engine times are divided by this; `POST /sim/speed {"speed":…}` changes it
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// The vLLM release to behave as
    #[arg(long, default_value = "0.31", value_name = "X.Y[.Z]")]
    pub version: Version,
    /// Device ledger file, one per device, separated by commas
    #[arg(long, value_delimiter = ',', required = true, value_name = "PATH[,PATH…]")]
    pub device_ledger: Vec<PathBuf>,
    /// Append operations with their true times to this file
    #[arg(long, value_name = "PATH")]
    pub op_log: Option<PathBuf>,
    /// Append every HTTP request to this file, before it is handled
    #[arg(long, value_name = "PATH")]
    pub request_log: Option<PathBuf>,
    /// A model's first start with this directory is cold, later ones are warm; without it every start is warm
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Host memory really taken is the simulated divided by this
    #[arg(long, default_value_t = 64)]
    pub host_scale: u64,
    /// KV cache size; a suffix K, M, G (or KiB, MiB, GiB) is a power of 1024
    #[arg(long, value_parser = parse_bytes, value_name = "BYTES")]
    pub kv_cache_memory_bytes: Option<u64>,
    /// Share of the device to fill with KV cache; checked against free memory at start
    #[arg(long, value_name = "0..1")]
    pub gpu_memory_utilization: Option<f64>,
    /// Context length, tokens; default: the profile's
    #[arg(long)]
    pub max_model_len: Option<u32>,
    /// Let sleeping free memory; without it `/sleep` answers 200 and frees nothing
    #[arg(long)]
    pub enable_sleep_mode: bool,
    /// Count requests in `/load`
    #[arg(long)]
    pub enable_server_load_tracking: bool,
    /// Worker processes' worth of devices; as many ledgers are needed
    #[arg(long, default_value_t = 1)]
    pub tensor_parallel_size: usize,
    /// `mp`: workers are processes of their own; default: `uni` with one worker, `mp` with more
    #[arg(long, value_enum)]
    pub distributed_executor_backend: Option<Backend>,
    /// Arm a fault; may be repeated
    #[arg(long, value_name = "KIND[=ARG][*COUNT]", long_help = faults::help())]
    pub fault: Vec<Fault>,
}

/// Where the workers live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// In the engine core's process.
    Uni,
    /// In processes of their own.
    Mp,
}

/// Why the arguments cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The profile.
    #[error(transparent)]
    Profile(#[from] profile::Error),
    /// The speed.
    #[error("--speed {0} must be a number above 0; 1 is real time, 20 is twenty times faster")]
    Speed(f64),
    /// The scale.
    #[error("--host-scale must be at least 1")]
    HostScale,
    /// The utilisation.
    #[error("--gpu-memory-utilization {0} must lie above 0 and at most at 1")]
    Utilization(f64),
    /// Devices and workers.
    #[error("--tensor-parallel-size {workers} needs as many ledgers in --device-ledger; {ledgers} given")]
    Devices {
        /// Asked for.
        workers: usize,
        /// Given.
        ledgers: usize,
    },
}

/// The checked arguments.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) args: SimArgs,
    /// The first of [`Settings::served`].
    pub(crate) model_name: String,
    /// Names that requests may use; never empty.
    pub(crate) served: Vec<String>,
    /// Whether workers are processes of their own.
    pub(crate) has_worker_processes: bool,
    pub(crate) max_model_len: u32,
    pub(crate) profile: Profile,
    pub(crate) engine: EngineProfile,
    /// `VLLM_SERVER_DEV_MODE=1`: the gate of the control routes (CONTRACT 1.1 [src]).
    pub(crate) dev_mode: bool,
    /// `VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1` (CONTRACT 1.4 [src]).
    pub(crate) keep_alive: bool,
}

impl SimArgs {
    /// Checks them and loads the profile.
    pub(crate) fn check(self) -> Result<Settings, Error> {
        if !is_speed(self.speed) {
            return Err(Error::Speed(self.speed));
        }
        if self.host_scale == 0 {
            return Err(Error::HostScale);
        }
        if let Some(share) = self.gpu_memory_utilization
            && !(share > 0.0 && share <= 1.0)
        {
            return Err(Error::Utilization(share));
        }
        if self.tensor_parallel_size != self.device_ledger.len() {
            return Err(Error::Devices {
                workers: self.tensor_parallel_size,
                ledgers: self.device_ledger.len(),
            });
        }
        let profile = Profile::load(&self.profile)?;
        let engine = profile.engine(self.role.as_deref().unwrap_or(&self.name))?.clone();
        // As vLLM reads them: any number but 0 is yes.
        let on =
            |name: &str| std::env::var(name).is_ok_and(|v| v.trim().parse::<i64>().is_ok_and(|n| n != 0));
        let model = self.model.clone().unwrap_or_else(|| engine.model.clone());
        let served =
            if self.served_model_name.is_empty() { vec![model] } else { self.served_model_name.clone() };
        let backend = self.distributed_executor_backend;
        Ok(Settings {
            model_name: served.first().cloned().unwrap_or_default(),
            served,
            has_worker_processes: backend.map_or(self.tensor_parallel_size > 1, |b| b == Backend::Mp),
            max_model_len: self.max_model_len.unwrap_or(engine.max_model_len),
            profile,
            engine,
            dev_mode: on("VLLM_SERVER_DEV_MODE"),
            keep_alive: on("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"),
            args: self,
        })
    }
}

impl Settings {
    /// The model arithmetic for a KV cache of this size.
    pub(crate) fn model(&self, kv_bytes: u64) -> Model {
        Model::new(self.profile.device.clone(), self.engine.clone(), kv_bytes)
    }

    /// The KV cache where no utilisation asks for what is left, over all workers: vLLM's flag is each worker's own.
    pub(crate) fn fixed_kv_bytes(&self) -> u64 {
        let workers = u64::try_from(self.args.tensor_parallel_size).unwrap_or(1);
        let stated = self.args.kv_cache_memory_bytes.map(|bytes| bytes.saturating_mul(workers));
        stated.unwrap_or(self.engine.kv_mib * MIB)
    }

    /// What the weights are when all is well.
    pub(crate) fn weights_identity(&self) -> u64 {
        tokens::hash_text(&self.engine.model)
    }

    /// Whether requests may use this model name.
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.served.iter().any(|m| m == model)
    }
}

/// Whether engine times can be divided by it.
pub(crate) fn is_speed(speed: f64) -> bool {
    speed.is_finite() && speed > 0.0
}

/// `4294967296`, `4G`, `4GiB`, `4.5G`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1.0,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => 1_048_576.0,
        "G" | "GiB" => 1_073_741_824.0,
        other => return Err(format!("`{other}` is no unit; use K, M, G, KiB, MiB or GiB")),
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("`{digits}` is no number"))?;
    let bytes = number * unit;
    if bytes.is_finite() && bytes >= 1.0 { Ok(bytes as u64) } else { Err("must be above 0".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn parse(extra: &[&str]) -> Result<SimArgs, clap::Error> {
        let all = ["sim", "--device-ledger", "/nowhere/gpu0.json"].iter().chain(extra);
        Cli::try_parse_from(all).map(|c| c.sim)
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_flag_named() {
        for (flags, word) in [
            (&["--speed", "0"][..], "--speed"),
            (&["--gpu-memory-utilization", "1.2"], "--gpu-memory-utilization"),
            (&["--tensor-parallel-size", "2"], "--device-ledger"),
            (&["--role", "Z"], "A, B"),
            (&["--profile", "/nowhere/p.toml"], "l20"),
        ] {
            let error = parse(flags).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(parse(&["--frobnicate"]).unwrap_err().to_string().contains("--frobnicate"));
        assert!(parse(&["--version", "0.40"]).unwrap_err().to_string().contains("not simulated"));
        assert!(parse(&["--fault", "nothing"]).unwrap_err().to_string().contains("completions_hang"));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("4G"), Ok(4 << 30));
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("1048576"), Ok(1 << 20));
        assert!(parse_bytes("4 parsecs").is_err() && parse_bytes("0").is_err());
    }
}
