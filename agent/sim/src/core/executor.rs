//! The executor: what the engine *believes* about its worker.
//!
//! Belief and memory part ways when a worker's call fails: the worker has done half of it or more, the belief is only
//! changed by success. That is the wreck of CONTRACT 3.4, and it needs no code of its own here.

use super::worker::Worker;
use crate::faults::{FaultKind, Faults};
use crate::version::Version;

/// Beliefs about sleeping, and the way to the worker.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) worker: Worker,
    version: Version,
    workers: usize,
    /// Up to 0.30 a flag of its own; from 0.31 simply "some tag sleeps" (CONTRACT 1.2 [src]).
    flag: bool,
    weights_sleep: bool,
    kv_sleeps: bool,
    /// A rank failed: with more than one worker the other ranks' replies are read by the next call (fact 8 [iss]).
    is_out_of_step: bool,
}

impl Executor {
    pub(crate) fn new(worker: Worker, version: Version, workers: usize) -> Self {
        Executor {
            worker,
            version,
            workers,
            flag: false,
            weights_sleep: false,
            kv_sleeps: false,
            is_out_of_step: false,
        }
    }

    pub(crate) fn is_sleeping(&self) -> bool {
        if self.version.sleeps_from_partial() { self.weights_sleep || self.kv_sleeps } else { self.flag }
    }

    /// A collective call. `what` names it in the error, as vLLM's worker loop does.
    fn call(&mut self, work: impl FnOnce(&mut Worker) -> Result<(), String>) -> Result<(), String> {
        if self.is_out_of_step {
            return Err("Worker failed with error 'stale reply of an earlier call'".into());
        }
        work(&mut self.worker).map_err(|message| {
            self.is_out_of_step = self.workers > 1;
            format!(
                "Worker failed with error '{message}', please check the stack trace above for the root cause"
            )
        })
    }

    /// `executor.sleep(level)`: a no-op where it believes itself asleep (CONTRACT 1.2 [src][run]).
    pub(crate) fn sleep(&mut self, level: u8, faults: &mut Faults) -> Result<(), String> {
        let is_noop = if self.version.sleeps_from_partial() { self.weights_sleep } else { self.flag };
        if is_noop {
            super::log("WARNING executor: Executor is already sleeping.");
            return Ok(());
        }
        if faults.strike(FaultKind::Sleep500).is_some() {
            return Err("Worker failed with error 'fault sleep_500'".into());
        }
        self.call(|worker| worker.sleep(level, faults))?;
        self.flag = true;
        self.weights_sleep = true;
        self.kv_sleeps = true;
        Ok(())
    }

    /// `executor.wake_up(tags)`: a no-op where it believes itself awake, or where any tag is unknown or awake already
    /// (CONTRACT 1.2 [src][run]).
    pub(crate) fn wake_up(&mut self, tags: Option<&[String]>, faults: &mut Faults) -> Result<(), String> {
        if !self.is_sleeping() {
            super::log("WARNING executor: Executor is not sleeping.");
            return Ok(());
        }
        for tag in tags.unwrap_or_default() {
            let sleeps = match tag.as_str() {
                "weights" => self.weights_sleep,
                "kv_cache" => self.kv_sleeps,
                _ => false,
            };
            if !sleeps {
                super::log(&format!("WARNING executor: Tag {tag} is not in sleeping tags"));
                return Ok(());
            }
        }
        if faults.strike(FaultKind::Wake500).is_some() {
            return Err("Worker failed with error 'fault wake_500'".into());
        }
        self.call(|worker| worker.wake_up(tags, faults))?;
        match tags {
            None => (self.weights_sleep, self.kv_sleeps) = (false, false),
            Some(tags) => {
                self.weights_sleep &= !tags.iter().any(|t| t == "weights");
                self.kv_sleeps &= !tags.iter().any(|t| t == "kv_cache");
            }
        }
        self.flag = self.weights_sleep || self.kv_sleeps;
        Ok(())
    }

    /// `executor.discard(("kv_cache",))`: the belief changes even when the worker fails [src].
    pub(crate) fn discard_kv(&mut self) -> Result<(), String> {
        let result = self.call(Worker::discard_kv);
        self.kv_sleeps = true;
        result
    }

    /// `collective_rpc`: straight to the worker, past all beliefs (CONTRACT 3.4 [run for state]).
    pub(crate) fn rpc(&mut self, call: RpcCall<'_>, faults: &mut Faults) -> Result<(), String> {
        self.call(|worker| match call {
            RpcCall::Sleep { level } => worker.sleep(level, faults),
            RpcCall::WakeUp { tags } => worker.wake_up(tags, faults),
            RpcCall::ReloadWeights => worker.reload_weights(),
            RpcCall::ResetWeights => worker.reset_weights(),
            RpcCall::CheckHealth => Ok(()),
            // Or, for one that there is, that takes no such arguments.
            RpcCall::Unknown { method } => Err(format!("'Worker' object has no attribute '{method}'")),
        })
    }
}

/// A worker method called by name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RpcCall<'a> {
    Sleep { level: u8 },
    WakeUp { tags: Option<&'a [String]> },
    ReloadWeights,
    ResetWeights,
    CheckHealth,
    Unknown { method: &'a str },
}
