//! The simulated vLLM server as a program of its own.

use clap::Parser;
use hotbunk_sim::SimArgs;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "sim-engine", about = "A simulated vLLM server")]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

fn main() -> ExitCode {
    hotbunk_sim::run(Cli::parse().sim)
}
