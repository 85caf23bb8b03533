//! The engine core process: scheduler, worker, memory.
//!
//! One thread does everything, as in vLLM: while a copy runs no other control call and no generation is served
//! (CONTRACT 1.2 [run]). Calls that come during a decode step wait for its end. A reader thread stamps each message
//! with its arrival; a signal thread ends the process on SIGTERM. Nobody watches the parent: when the API server is
//! killed the core stays, with its memory (CONTRACT 5 [run]).

mod arrivals;
mod control;
mod devices;
mod executor;
mod host;
mod scheduler;
mod signals;
mod start;
mod worker;
mod workers;

use crate::args::Settings;
use crate::clock::{now_ns, sharpen_timers};
use crate::faults::{FaultKind, Faults};
use crate::ipc::{Call, FromCore, Mode, NewRequest, Output, ToCore};
use crate::oplog::{Op, OpLogWriter, OpRecord};
use arrivals::Arrivals;
use executor::Executor;
use scheduler::{Pause, Scheduler, StepContext};
use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use worker::Tag;
use workers::Workers;

pub(crate) use workers::run as run_worker;

/// Writes a log line as vLLM's engine core does.
pub(crate) fn log(message: &str) {
    // A closed stderr leaves nobody to tell.
    drop(writeln!(std::io::stderr(), "(EngineCore pid={}) {message}", std::process::id()));
}

/// The engine is dead: vLLM's engine core ends on any exception of a step.
pub(crate) fn die(message: &str) -> ! {
    log(&format!("ERROR core: EngineCore encountered a fatal error. {message}"));
    std::process::exit(1)
}

/// A message with its arrival.
type Stamped = (u64, ToCore);

/// Runs the process.
pub(crate) fn run(settings: Settings) -> ExitCode {
    crate::process::set_title("VLLM::EngineCore");
    sharpen_timers();
    let (sender, receiver) = channel();
    let orphan = settings.args.fault.iter().any(|f| f.kind == FaultKind::OrphanWorker);
    let signals = match signals::watch(settings.args.speed, orphan) {
        Ok(signals) => signals,
        Err(error) => die(&format!("cannot watch signals: {error}")),
    };
    std::thread::spawn(move || read_messages(&sender));
    let began_ns = now_ns();
    let mut faults = Faults::new(&settings.args.fault);
    let mut out = Outgoing { is_open: true };
    let mut workers = None;
    let started = Workers::start(&settings).and_then(|started| {
        let owners = started.owners.clone();
        workers = Some(started);
        start::start(&settings, owners, &mut faults)
    });
    let executor = match started {
        Ok(executor) => executor,
        Err(message) => {
            log(&format!("ERROR core: EngineCore failed to start. {message}"));
            out.send(&FromCore::StartFailed { message });
            return ExitCode::FAILURE;
        }
    };
    let oplog = match settings.args.op_log.as_deref().map(OpLogWriter::open).transpose() {
        Ok(oplog) => oplog,
        Err(error) => {
            out.send(&FromCore::StartFailed { message: error.to_string() });
            return ExitCode::FAILURE;
        }
    };
    let mut core = EngineCore {
        scheduler: Scheduler::new(),
        executor,
        faults,
        out,
        oplog,
        deferred: VecDeque::new(),
        draining: Vec::new(),
        front_paused: false,
        held_in_front: Vec::new(),
        is_first_after_wake: false,
        served_before_sleep: None,
        served_any: false,
        is_hung: false,
        signals,
        workers,
        arrivals: Arrivals::default(),
        settings,
    };
    core.record(Op::Start, "", began_ns, true);
    let kv_tokens = core.executor.worker.model().kv_tokens();
    core.out.send(&FromCore::Ready { kv_tokens });
    core.serve(&receiver)
}

fn read_messages(sender: &Sender<Stamped>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(message) => {
                if sender.send((now_ns(), message)).is_err() {
                    return;
                }
            }
            Err(error) => log(&format!("WARNING core: a message that is none: {error}")),
        }
    }
}

/// The way back to the API server; closed for good once that has gone.
#[derive(Debug)]
struct Outgoing {
    is_open: bool,
}

impl Outgoing {
    fn send(&mut self, message: &FromCore) {
        if !self.is_open {
            return;
        }
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        let mut stdout = std::io::stdout().lock();
        self.is_open = stdout.write_all(&line).and_then(|()| stdout.flush()).is_ok();
    }
}

/// A `/sleep` or `/pause` with `mode=wait` whose requests have not ended yet.
#[derive(Debug)]
struct Draining {
    id: u64,
    call: Call,
    began_ns: u64,
}

#[derive(Debug)]
struct EngineCore {
    settings: Settings,
    scheduler: Scheduler,
    executor: Executor,
    faults: Faults,
    out: Outgoing,
    oplog: Option<OpLogWriter>,
    deferred: VecDeque<Stamped>,
    draining: Vec<Draining>,
    /// 0.12–0.16: `/pause` holds new requests in the API server (CONTRACT 1.2 [src]).
    front_paused: bool,
    held_in_front: Vec<(u64, NewRequest)>,
    is_first_after_wake: bool,
    /// Whether a request had been served when the engine first slept.
    served_before_sleep: Option<bool>,
    served_any: bool,
    is_hung: bool,
    signals: signals::Signals,
    workers: Option<Workers>,
    arrivals: Arrivals,
}

impl EngineCore {
    fn serve(&mut self, receiver: &Receiver<Stamped>) -> ExitCode {
        loop {
            if let Some(deadline_ns) = self.scheduler.deadline_ns() {
                self.wait_for_step(receiver, deadline_ns);
                continue;
            }
            while let Ok(message) = receiver.try_recv() {
                self.deferred.push_back(message);
            }
            if let Some(message) = self.deferred.pop_front() {
                self.handle(message);
                continue;
            }
            self.finish_drained();
            if !self.is_hung && self.scheduler.can_step() {
                self.begin_step();
                continue;
            }
            self.scheduler.break_chain();
            match receiver.recv() {
                Ok(message) => self.deferred.push_back(message),
                // The API server has gone: the core stays, as an orphan that does nothing.
                Err(_) => loop {
                    std::thread::park();
                },
            }
        }
    }

    /// Waits for the step's end; requests may join it, everything else waits until it is over.
    fn wait_for_step(&mut self, receiver: &Receiver<Stamped>, deadline_ns: u64) {
        let now = now_ns();
        if now < deadline_ns {
            match receiver.recv_timeout(Duration::from_nanos(deadline_ns - now)) {
                Ok((at_ns, ToCore::Add(request))) if self.deferred.is_empty() => {
                    self.add(request, at_ns);
                    let context = Self::context(&self.executor, &self.settings, self.extra_prefill_s());
                    self.scheduler.join(at_ns, context);
                }
                Ok(message) => self.deferred.push_back(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => crate::clock::sleep_until(deadline_ns),
            }
            return;
        }
        let context = Self::context(&self.executor, &self.settings, 0.0);
        let result = self.scheduler.complete_step(context);
        if !result.outputs.is_empty() {
            self.served_any = true;
        }
        for (request, arrived_ns) in &result.first_tokens {
            self.record(Op::FirstToken, &format!("request {request}"), *arrived_ns, true);
        }
        let stats = self.scheduler.stats(Some(result.iteration_tokens), self.executor.worker.model());
        let has_served = !result.outputs.is_empty();
        self.out.send(&FromCore::Step { outputs: result.outputs, stats });
        if has_served && self.is_first_after_wake {
            self.is_first_after_wake = false;
            self.executor.worker.settle();
        }
    }

    fn begin_step(&mut self) {
        let worker = &self.executor.worker;
        if !worker.is_mapped(Tag::Weights) || !worker.is_mapped(Tag::Kv) {
            // Fact 4, 5, 3.4 [src][run for the control flow]: nothing stops a step on unmapped memory.
            die("CUDA error: an illegal memory access was encountered");
        }
        let context = Self::context(&self.executor, &self.settings, self.extra_prefill_s());
        self.scheduler.begin_step(now_ns(), context);
        if self.faults.strike(FaultKind::CompletionsHang).is_some() {
            self.scheduler.hold_step();
            self.is_hung = true;
            let stats = self.scheduler.stats(None, self.executor.worker.model());
            self.out.send(&FromCore::Step { outputs: Vec::new(), stats });
        }
    }

    fn extra_prefill_s(&self) -> f64 {
        if self.is_first_after_wake {
            self.executor.worker.model().first_after_wake_extra_s(self.served_before_sleep.unwrap_or(true))
        } else {
            0.0
        }
    }

    fn context<'a>(executor: &'a Executor, settings: &Settings, extra_prefill_s: f64) -> StepContext<'a> {
        StepContext {
            model: executor.worker.model(),
            speed: settings.args.speed,
            identity: executor.worker.identity(),
            kv_epoch: executor.worker.kv_epoch(),
            extra_prefill_s,
        }
    }

    fn add(&mut self, request: NewRequest, at_ns: u64) {
        self.arrivals.count(at_ns);
        if self.front_paused {
            self.held_in_front.push((at_ns, request));
        } else {
            self.scheduler.add(request, at_ns);
        }
    }

    fn handle(&mut self, (at_ns, message): Stamped) {
        match message {
            ToCore::Add(request) => self.add(request, at_ns),
            ToCore::Abort { ids } => {
                self.held_in_front.retain(|(_, r)| !ids.contains(&r.id));
                let outputs = self.scheduler.abort(&ids);
                self.send_ended(outputs);
            }
            ToCore::Call { id, call } => self.call(id, call, at_ns),
            ToCore::SetSpeed(speed) => {
                self.settings.args.speed = speed;
                self.executor.worker.set_speed(speed);
                self.signals.set_speed(speed);
                if let Some(workers) = &mut self.workers {
                    workers.set_speed(speed);
                }
            }
            ToCore::ArmFault(fault) => {
                self.faults.arm(fault);
                self.signals.set_orphan(self.faults.is_armed(FaultKind::OrphanWorker));
            }
            ToCore::ClearFault(kind) => {
                self.faults.clear(kind);
                self.is_hung &= self.faults.is_armed(FaultKind::CompletionsHang);
                self.signals.set_orphan(self.faults.is_armed(FaultKind::OrphanWorker));
                if kind.is_none_or(|k| k == FaultKind::NeighbourAllocInSleep) {
                    self.executor.worker.devices_mut().dismiss_neighbour();
                }
            }
        }
    }

    /// Requests that ended without a token. Unless everything stands still the engine steps once more to forget them,
    /// and so tells its counters [src].
    fn send_ended(&mut self, outputs: Vec<Output>) {
        if outputs.is_empty() {
            return;
        }
        let stats = self.scheduler.stats(None, self.executor.worker.model());
        self.out.send(&FromCore::Step { outputs, stats });
    }

    fn record(&mut self, op: Op, detail: &str, began_ns: u64, ok: bool) {
        let Some(oplog) = self.oplog.as_mut() else { return };
        let record = OpRecord {
            engine: self.settings.args.name.clone(),
            op,
            detail: detail.to_owned(),
            began_ns,
            ended_ns: now_ns(),
            ok,
        };
        if let Err(error) = oplog.write(&record) {
            log(&format!("WARNING core: operation log: {error}"));
            self.oplog = None;
        }
    }

    fn set_pause(&mut self, mode: Mode) {
        self.scheduler.pause = if mode == Mode::Keep { Pause::All } else { Pause::New };
    }
}
