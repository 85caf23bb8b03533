//! The control calls, as EngineCore answers them.

use super::executor::RpcCall;
use super::scheduler::Pause;
use super::worker::Tag;
use super::{Draining, EngineCore};
use crate::clock::now_ns;
use crate::ipc::{Call, FromCore, Mode};
use crate::oplog::Op;
use serde_json::{Value, json};

type Answer = Result<Value, String>;

impl EngineCore {
    pub(super) fn call(&mut self, id: u64, call: Call, began_ns: u64) {
        let answer = match call {
            Call::Sleep { level, mode } => {
                let had_running = self.scheduler.running() > 0;
                if self.settings.args.version.sleep_pauses() {
                    self.stop_requests(mode);
                    self.arrivals.look(false, began_ns);
                    if mode == Mode::Wait && self.scheduler.running() > 0 {
                        self.draining.push(Draining { id, call, began_ns });
                        return;
                    }
                }
                self.sleep(level, mode, began_ns, had_running)
            }
            Call::Pause { mode, clear_cache } => {
                if self.settings.args.version.sleep_pauses() {
                    self.stop_requests(mode);
                } else {
                    // 0.12–0.16: the API server holds new requests (CONTRACT 1.2 [src]).
                    self.front_paused = true;
                    match mode {
                        Mode::Abort => {
                            let outputs = self.scheduler.abort_all();
                            self.send_ended(outputs);
                        }
                        Mode::Keep => self.scheduler.pause = Pause::All,
                        Mode::Wait => {}
                    }
                }
                self.arrivals.look(false, began_ns);
                if mode == Mode::Wait && self.scheduler.has_work() {
                    self.draining.push(Draining { id, call, began_ns });
                    return;
                }
                self.pause(mode, clear_cache, began_ns)
            }
            Call::WakeUp { tags } => self.wake_up(tags, began_ns),
            Call::ReleaseKvCache => self.release_kv_cache(began_ns),
            Call::Resume => self.resume(began_ns),
            Call::Rpc { method, args, kwargs } => self.rpc(&method, &args, &kwargs, began_ns),
            Call::ResetPrefixCache { running } => {
                let done = self.scheduler.reset_prefix_cache(running);
                self.record(Op::ResetPrefixCache, "", began_ns, done);
                Ok(json!(done))
            }
            Call::IsSleeping => Ok(json!(self.is_sleeping())),
            Call::IsPaused => Ok(json!(self.is_paused())),
            Call::Nothing => Ok(Value::Null),
            Call::Arrivals => Ok(self.arrivals.report()),
            Call::WeightChecksums => Ok(self.weight_checksums()),
        };
        self.arrivals.look(!self.is_paused() && !self.executor.is_sleeping(), began_ns);
        self.reply(id, answer);
    }

    fn reply(&mut self, id: u64, result: Answer) {
        self.scheduler.break_chain();
        self.out.send(&FromCore::Reply { id, result });
    }

    /// From 0.17 paused or asleep, so true before memory is freed and after a failed sleep (fact 3 [run]); before the
    /// executor's belief alone.
    fn is_sleeping(&self) -> bool {
        let paused = self.settings.args.version.sleep_pauses() && self.scheduler.pause != Pause::No;
        paused || self.executor.is_sleeping()
    }

    fn is_paused(&self) -> bool {
        self.front_paused || self.scheduler.pause != Pause::No
    }

    /// Pausing the scheduler, from 0.17: `abort` ends all requests, those queued too (CONTRACT 1.2 [run]).
    fn stop_requests(&mut self, mode: Mode) {
        if mode == Mode::Abort {
            let outputs = self.scheduler.abort_all();
            self.send_ended(outputs);
        }
        self.set_pause(mode);
    }

    /// Calls with `mode=wait` whose requests have ended.
    pub(super) fn finish_drained(&mut self) {
        if self.draining.is_empty() || self.scheduler.has_work() {
            return;
        }
        for Draining { id, call, began_ns } in std::mem::take(&mut self.draining) {
            self.record(Op::Drain, "", began_ns, true);
            let began_ns = now_ns();
            let answer = match call {
                Call::Sleep { level, mode } => self.sleep(level, mode, began_ns, false),
                Call::Pause { mode, clear_cache } => self.pause(mode, clear_cache, began_ns),
                _ => Ok(Value::Null),
            };
            self.reply(id, answer);
        }
    }

    /// `/sleep` once requests have been dealt with; `had_running`: some ran until this call.
    fn sleep(&mut self, level: u8, mode: Mode, began_ns: u64, had_running: bool) -> Answer {
        let version = self.settings.args.version;
        let detail = format!("level={level} mode={}", mode.as_str());
        if version.sleep_pauses() && level == 0 {
            self.record(Op::Sleep, &detail, began_ns, true);
            return Ok(Value::Null);
        }
        if version.sleep_pauses() && !version.sleep_synchronises() && had_running {
            super::die("CUDA error: an illegal memory access was encountered (a step was in flight)");
        }
        if version.sleep_clears_prefix_cache() {
            // Frozen requests lose their blocks and are recomputed; before 0.17 the reset silently fails while any
            // block is held (CONTRACT 1.3 [src]).
            self.scheduler.reset_prefix_cache(version.sleep_pauses());
        }
        if self.served_before_sleep.is_none() {
            self.served_before_sleep = Some(self.served_any);
        }
        let result = self.executor.sleep(level, &mut self.faults);
        self.record(Op::Sleep, &detail, began_ns, result.is_ok());
        let took_s = now_ns().saturating_sub(began_ns) as f64 / 1e9;
        match result {
            Ok(()) => {
                super::log(&format!("INFO executor: It took {took_s:.6} seconds to fall asleep."));
                Ok(Value::Null)
            }
            Err(message) => Err(self.failed("sleep", &message)),
        }
    }

    fn pause(&mut self, mode: Mode, clear_cache: bool, began_ns: u64) -> Answer {
        if clear_cache {
            self.scheduler.reset_prefix_cache(true);
        }
        self.record(Op::Pause, &format!("mode={}", mode.as_str()), began_ns, true);
        Ok(Value::Null)
    }

    /// Answers whether all is awake.
    fn wake_up(&mut self, tags: Option<Vec<String>>, began_ns: u64) -> Answer {
        let version = self.settings.args.version;
        let detail = tags.as_ref().map_or_else(|| "all".to_owned(), |t| format!("tags={}", t.join(",")));
        let mut tags = tags;
        if version.sleep_pauses()
            && let Some(tags) = &mut tags
        {
            tags.retain(|t| t != "scheduling");
        }
        let slept = self.executor.is_sleeping();
        if tags.as_ref().is_none_or(|t| !t.is_empty()) {
            let result = self.executor.wake_up(tags.as_deref(), &mut self.faults);
            self.is_first_after_wake |= slept;
            if let Err(message) = result {
                self.record(Op::Wake, &detail, began_ns, false);
                return Err(self.failed("wake_up", &message));
            }
        }
        let awake = !self.executor.is_sleeping();
        if version.sleep_pauses() && (awake || !version.partial_wake_stays_paused()) {
            self.scheduler.pause = Pause::No;
        }
        self.record(Op::Wake, &detail, began_ns, true);
        let took_s = now_ns().saturating_sub(began_ns) as f64 / 1e9;
        super::log(&format!("INFO executor: It took {took_s:.6} seconds to wake up tags {detail}."));
        Ok(json!(awake))
    }

    /// `/release_kv_cache_memory`: 500 unless paused with nothing scheduled, frozen requests apart, and all memory
    /// resident (CONTRACT 1.1 [run]).
    fn release_kv_cache(&mut self, began_ns: u64) -> Answer {
        let refusal = match self.scheduler.pause {
            Pause::No => Some("a completed pause first"),
            Pause::New if self.scheduler.running() > 0 => Some("a completed pause first"),
            _ if self.executor.is_sleeping() => Some("all executor memory to be resident"),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.record(Op::ReleaseKvCache, refusal, began_ns, false);
            let message = format!("release_kv_cache_memory() requires {refusal}");
            return Err(self.failed("release_kv_cache_memory", &message));
        }
        self.scheduler.reset_prefix_cache(true);
        let result = self.executor.discard_kv();
        self.record(Op::ReleaseKvCache, "", began_ns, result.is_ok());
        match result {
            Ok(()) => Ok(Value::Null),
            Err(message) => Err(self.failed("release_kv_cache_memory", &message)),
        }
    }

    /// `/resume` un-pauses whatever the memory is (CONTRACT 1.2 [run for the state change]).
    fn resume(&mut self, began_ns: u64) -> Answer {
        self.scheduler.pause = Pause::No;
        self.front_paused = false;
        for (at_ns, request) in std::mem::take(&mut self.held_in_front) {
            self.scheduler.add(request, at_ns);
        }
        self.record(Op::Resume, "", began_ns, true);
        Ok(Value::Null)
    }

    fn rpc(&mut self, method: &str, args: &[Value], kwargs: &Value, began_ns: u64) -> Answer {
        let level = kwargs.get("level").or(args.first()).and_then(as_level);
        let tags: Option<Vec<String>> = kwargs
            .get("tags")
            .or(args.first())
            .and_then(|t| Some(t.as_array()?.iter().filter_map(|t| t.as_str().map(str::to_owned)).collect()));
        let (op, call) = match method {
            "sleep" => (Op::Sleep, RpcCall::Sleep { level: level.unwrap_or(1) }),
            "wake_up" => (Op::Wake, RpcCall::WakeUp { tags: tags.as_deref() }),
            "reload_weights" if self.settings.args.version.has_reload_weights() => {
                (Op::ReloadWeights, RpcCall::ReloadWeights)
            }
            "reset_weights" => (Op::Rpc, RpcCall::ResetWeights),
            "check_health" if args.is_empty() => (Op::Rpc, RpcCall::CheckHealth),
            _ => (Op::Rpc, RpcCall::Unknown { method }),
        };
        self.is_first_after_wake |= method == "wake_up";
        let result = self.executor.rpc(call, &mut self.faults);
        self.record(op, &format!("rpc {method}"), began_ns, result.is_ok());
        match result {
            Ok(()) => Ok(json!({ "results": vec![Value::Null; self.settings.args.tensor_parallel_size] })),
            Err(message) => Err(self.failed("collective_rpc", &message)),
        }
    }

    /// The text that 0.32 puts into the 500's body (CONTRACT 3.4 [run]).
    fn failed(&self, method: &str, message: &str) -> String {
        super::log(&format!("ERROR core: Invocation of {method} method failed: {message}"));
        format!("Call to {method} method failed: {message}")
    }

    fn weight_checksums(&self) -> Value {
        let worker = &self.executor.worker;
        let sum = if worker.is_mapped(Tag::Weights) { worker.identity() } else { 0 };
        json!({ "dp0:pp0:pcp0:tp0:weights": format!("{sum:016x}") })
    }
}

/// A level as a number or, since RPC arguments are strings, as text.
fn as_level(value: &Value) -> Option<u8> {
    match value {
        Value::Number(n) => u8::try_from(n.as_u64()?).ok(),
        Value::String(s) => s.parse().ok(),
        _ => None,
    }
}
