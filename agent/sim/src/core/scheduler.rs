//! The scheduler: continuous batching, pausing, freezing. No timer in here: the caller brings the time.
//!
//! ```text
//!            begin_step(now)              deadline               complete_step
//!   idle ───────────────────► stepping ──────────► every running request gets one token ──► idle
//!                                ▲ │
//!                     join(now)  └─┘  a request that comes while a prefill runs is taken into it
//! ```
//!
//! A step's deadline is reckoned from the deadline of the step before it, so that tokens keep their pace however late
//! the thread wakes up. `pause` says what a step may do: with [`Pause::New`] running requests go on and new ones wait,
//! with [`Pause::All`] nothing moves (CONTRACT 1.2 [src]).

use crate::ipc::{Finish, NewRequest, Output, Stats};
use crate::model::Model;
use crate::tokens::{draw, mix};
use std::collections::{HashMap, VecDeque};

const BLOCK_TOKENS: u32 = 16;
const MAX_SEQUENCES: usize = 256;
/// A prefill that runs takes in late comers up to this many requests.
const MAX_JOINED: u32 = 8;
/// A thread that was held up for longer does not catch up.
const MAX_CATCH_UP_NS: u64 = 250_000_000;

/// What the scheduler may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    No,
    /// Running requests go on, new ones wait.
    New,
    /// Nothing is stepped.
    All,
}

#[derive(Debug)]
struct Request {
    new: NewRequest,
    arrived_ns: u64,
    chain: u64,
    produced: u32,
    needs_prefill: bool,
}

impl Request {
    fn tokens(&self) -> u64 {
        u64::from(self.new.prompt_tokens) + u64::from(self.produced)
    }
}

#[derive(Debug)]
struct Step {
    began_ns: u64,
    deadline_ns: u64,
    prefills: u32,
    prefill_tokens: u64,
    joins_until_ns: u64,
}

/// What completing a step yields.
#[derive(Debug, Default)]
pub(crate) struct StepResult {
    pub(crate) outputs: Vec<Output>,
    /// `(request, arrival)` of those whose first token this was.
    pub(crate) first_tokens: Vec<(u64, u64)>,
    pub(crate) iteration_tokens: u64,
}

/// What a step needs to know besides the requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepContext<'a> {
    pub(crate) model: &'a Model,
    pub(crate) speed: f64,
    /// The weights' identity now.
    pub(crate) identity: u64,
    /// Which KV cache this is.
    pub(crate) kv_epoch: u64,
    /// Cost of the first prefill after a wake, simulated s.
    pub(crate) extra_prefill_s: f64,
}

/// Requests and the step in progress.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) pause: Pause,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    step: Option<Step>,
    /// Deadline of the step just completed, while nothing has come between.
    chained_ns: Option<u64>,
    /// Prompts whose blocks are cached: hash to the KV cache they lie in.
    prefix_cache: HashMap<u64, u64>,
    prefix_queries: u64,
    prefix_hits: u64,
    preemptions: u64,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        Scheduler {
            pause: Pause::No,
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            chained_ns: None,
            prefix_cache: HashMap::new(),
            prefix_queries: 0,
            prefix_hits: 0,
            preemptions: 0,
        }
    }

    pub(crate) fn add(&mut self, new: NewRequest, arrived_ns: u64) {
        let chain = new.chain;
        self.waiting.push_back(Request { new, arrived_ns, chain, produced: 0, needs_prefill: true });
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether requests remain that a pause has to wait for: those that run, and without a pause those that wait.
    pub(crate) fn has_work(&self) -> bool {
        !self.running.is_empty() || (self.pause == Pause::No && !self.waiting.is_empty())
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.step.as_ref().map(|s| s.deadline_ns)
    }

    /// Whether a step would do anything.
    pub(crate) fn can_step(&self) -> bool {
        match self.pause {
            Pause::All => false,
            Pause::New => !self.running.is_empty(),
            Pause::No => !self.running.is_empty() || !self.waiting.is_empty(),
        }
    }

    /// Something else than a step happened: the next step is reckoned from when it begins.
    pub(crate) fn break_chain(&mut self) {
        self.chained_ns = None;
    }

    /// Admits what may run and starts a step. The caller has checked [`Scheduler::can_step`] and the memory.
    pub(crate) fn begin_step(&mut self, now_ns: u64, context: StepContext<'_>) {
        self.admit(context);
        let began_ns = match self.chained_ns.take() {
            Some(at) if now_ns.saturating_sub(at) < MAX_CATCH_UP_NS => at,
            _ => now_ns,
        };
        let (prefills, prefill_tokens) = self.prefills();
        let wait_ns = |seconds: f64| crate::clock::scaled_ns(seconds, context.speed);
        let took_s = self.step_s(prefills, prefill_tokens, context);
        let deadline_ns = began_ns + wait_ns(took_s);
        self.step =
            Some(Step { began_ns, deadline_ns, prefills, prefill_tokens, joins_until_ns: deadline_ns });
    }

    /// The step that runs never ends (fault `completions_hang`).
    pub(crate) fn hold_step(&mut self) {
        self.step = None;
    }

    /// Takes waiting requests into the prefill that runs, if one does; its deadline moves.
    pub(crate) fn join(&mut self, now_ns: u64, context: StepContext<'_>) {
        let Some(step) = &self.step else { return };
        if self.pause != Pause::No
            || step.prefills == 0
            || step.prefills >= MAX_JOINED
            || now_ns >= step.joins_until_ns
        {
            return;
        }
        self.admit(context);
        let (prefills, prefill_tokens) = self.prefills();
        let took_s = self.step_s(prefills, prefill_tokens, context);
        if let Some(step) = &mut self.step {
            step.prefills = prefills;
            step.prefill_tokens = prefill_tokens;
            step.deadline_ns = step.began_ns + crate::clock::scaled_ns(took_s, context.speed);
        }
    }

    fn step_s(&self, prefills: u32, prefill_tokens: u64, context: StepContext<'_>) -> f64 {
        if prefills > 0 {
            context.model.prefill_s(prefills, prefill_tokens) + context.extra_prefill_s
        } else {
            context.model.tpot_s(u32::try_from(self.running.len()).unwrap_or(u32::MAX))
        }
    }

    fn prefills(&self) -> (u32, u64) {
        let prefilling = || self.running.iter().filter(|r| r.needs_prefill);
        (u32::try_from(prefilling().count()).unwrap_or(u32::MAX), prefilling().map(Request::tokens).sum())
    }

    fn admit(&mut self, context: StepContext<'_>) {
        while self.pause == Pause::No && self.running.len() < MAX_SEQUENCES {
            let Some(next) = self.waiting.front() else { return };
            let wanted = |r: &Request| u64::from(r.new.prompt_tokens) + u64::from(r.new.max_tokens);
            let held: u64 = self.running.iter().map(wanted).sum();
            if !self.running.is_empty() && held + wanted(next) > context.model.kv_tokens() {
                return;
            }
            let Some(mut request) = self.waiting.pop_front() else { return };
            if request.produced == 0 {
                self.look_up_prefix(&mut request, context.kv_epoch);
            }
            self.running.push(request);
        }
    }

    /// A hit in a KV cache that is no more is garbage: up to 0.9.2 sleep leaves the prefix cache standing
    /// (CONTRACT 1.2, #17103 [iss]).
    fn look_up_prefix(&mut self, request: &mut Request, kv_epoch: u64) {
        let whole_blocks = request.new.prompt_tokens.saturating_sub(1) / BLOCK_TOKENS * BLOCK_TOKENS;
        self.prefix_queries += u64::from(request.new.prompt_tokens);
        if whole_blocks == 0 {
            return;
        }
        if let Some(epoch) = self.prefix_cache.insert(request.new.prompt_hash, kv_epoch) {
            self.prefix_hits += u64::from(whole_blocks);
            if epoch != kv_epoch {
                request.chain = mix(request.chain, 0x57a1e);
                self.prefix_cache.insert(request.new.prompt_hash, epoch);
            }
        }
    }

    /// Ends the step: one token for every running request.
    pub(crate) fn complete_step(&mut self, context: StepContext<'_>) -> StepResult {
        let Some(step) = self.step.take() else { return StepResult::default() };
        self.chained_ns = Some(step.deadline_ns);
        let batch = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
        let mut result = StepResult {
            iteration_tokens: u64::from(batch.saturating_sub(step.prefills)) + step.prefill_tokens,
            ..StepResult::default()
        };
        self.running.retain_mut(|request| {
            request.needs_prefill = false;
            let drawn = draw(request.chain, context.identity, request.produced, batch);
            request.chain = drawn.state;
            request.produced += 1;
            if request.produced == 1 {
                result.first_tokens.push((request.new.id, request.arrived_ns));
            }
            let finish = if request.produced >= request.new.max_tokens {
                Some(Finish::Length)
            } else if drawn.is_end && !request.new.ignore_eos {
                Some(Finish::Stop)
            } else {
                None
            };
            result.outputs.push(Output {
                request: request.new.id,
                token: Some((drawn.token, drawn.logprob)),
                finish,
            });
            finish.is_none()
        });
        result
    }

    /// Ends all requests with `abort`.
    pub(crate) fn abort_all(&mut self) -> Vec<Output> {
        self.step = None;
        self.running.drain(..).chain(self.waiting.drain(..)).map(|r| aborted(r.new.id)).collect()
    }

    /// Ends those with `abort`; others are not touched.
    pub(crate) fn abort(&mut self, ids: &[u64]) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut gone = |request: &Request| {
            let hit = ids.contains(&request.new.id);
            if hit {
                outputs.push(aborted(request.new.id));
            }
            !hit
        };
        self.running.retain(&mut gone);
        self.waiting.retain(&mut gone);
        if self.running.is_empty() {
            self.step = None;
        }
        outputs
    }

    /// Forgets the prefix cache. Fails while blocks are held, unless running requests may lose theirs: they are
    /// recomputed when they go on (CONTRACT 1.1, 1.2 [src], section 7 [run]).
    pub(crate) fn reset_prefix_cache(&mut self, preempt_running: bool) -> bool {
        if !self.running.is_empty() {
            if !preempt_running {
                return false;
            }
            // Preempted: in front of those that wait, in their order. A pause for new ones holds them as well.
            for mut request in self.running.drain(..).rev() {
                request.needs_prefill = true;
                self.preemptions += 1;
                self.waiting.push_front(request);
            }
            self.step = None;
        }
        self.prefix_cache.clear();
        true
    }

    pub(crate) fn stats(&self, iteration_tokens: Option<u64>, model: &Model) -> Stats {
        let held: u64 = self.running.iter().filter(|r| !r.needs_prefill).map(Request::tokens).sum();
        Stats {
            running: u32::try_from(self.running.len()).unwrap_or(u32::MAX),
            waiting: u32::try_from(self.waiting.len()).unwrap_or(u32::MAX),
            kv_usage: (held as f64 / model.kv_tokens().max(1) as f64).min(1.0),
            iteration_tokens,
            prefix_queries: self.prefix_queries,
            prefix_hits: self.prefix_hits,
            preemptions: self.preemptions,
        }
    }
}

fn aborted(request: u64) -> Output {
    Output { request, token: None, finish: Some(Finish::Abort) }
}

#[cfg(test)]
mod tests;
