//! Workers as processes of their own (`--distributed-executor-backend mp`, more than one worker, and the CPU build).
//!
//! They hold the device's memory, so that it outlives an engine core that is killed: a worker notices by the end of a
//! pipe and leaves some seconds later (CONTRACT 5 [run]). What they do, the engine core does for them, in step.

use crate::args::Settings;
use crate::clock::scaled_ns;
use crate::ledger::Owner;
use crate::process::{set_title, spawn_worker};
use std::io::{BufRead, Write};
use std::process::{ChildStdin, ExitCode};
use std::time::Duration;

/// An engine core was killed, and its worker left 9.3 s after, 6.5 s after the API server (CONTRACT 5 [run]).
const AFTER_CORE_S: f64 = 9.3;

/// The worker processes of an engine, or none: then the engine core is the worker.
#[derive(Debug)]
pub(crate) struct Workers {
    /// By each pipe one is told the speed, and by its end that all is over.
    pipes: Vec<ChildStdin>,
    /// Who owns the memory of each device.
    pub(crate) owners: Vec<Owner>,
}

impl Workers {
    /// Starts them where there are to be any.
    pub(crate) fn start(settings: &Settings) -> Result<Self, String> {
        let count = settings.args.tensor_parallel_size;
        if !settings.has_worker_processes {
            let me = Owner::current().ok_or("cannot read /proc/self/stat")?;
            return Ok(Workers { pipes: Vec::new(), owners: vec![me; count] });
        }
        let (mut pipes, mut owners) = (Vec::new(), Vec::new());
        for rank in 0..count {
            let mut child = spawn_worker(rank, count).map_err(|e| format!("cannot start a worker: {e}"))?;
            owners.push(Owner::of(child.id()).ok_or("a worker ended at once")?);
            pipes.extend(child.stdin.take());
            std::thread::spawn(move || {
                let status = child.wait();
                // vLLM's monitor of its workers: one that ends ends the engine.
                super::die(&format!("Worker proc VLLM::Worker-{rank} died unexpectedly ({status:?})"));
            });
        }
        Ok(Workers { pipes, owners })
    }

    /// From now on their times are divided by this.
    pub(crate) fn set_speed(&mut self, speed: f64) {
        for pipe in &mut self.pipes {
            // One that has ended is told nothing more.
            drop(writeln!(pipe, "{speed}"));
        }
    }
}

/// Runs a worker process.
pub(crate) fn run(settings: &Settings) -> ExitCode {
    let title = std::env::args_os().next().unwrap_or_default();
    set_title(&title.to_string_lossy());
    let mut speed = settings.args.speed;
    // Ends with the engine core.
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        speed = line.parse().unwrap_or(speed);
    }
    std::thread::sleep(Duration::from_nanos(scaled_ns(AFTER_CORE_S, speed)));
    ExitCode::SUCCESS
}
