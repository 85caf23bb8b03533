//! Proofs that an engine answers, and that it is still itself.

use super::Client;
use super::canary::{self, Canary, Depth, Mismatch, Unstable};
use super::http::Budget;
use hotbunk_core::time::Moment;
use hotbunk_measure::{Error as Failure, ProbeSpec, Timed};
use std::time::Duration;

/// What a warm-up request asks for: prefill, and enough steps to see decoding as well.
const WARM_UP_TOKENS: u32 = 8;

/// What a probe proves.
#[derive(Debug, Clone, Copy)]
pub enum ProbeKind<'a> {
    /// One token comes.
    FirstToken,
    /// The recorded tokens come.
    Canary {
        /// What must come.
        recorded: &'a Canary,
        /// How much of it.
        depth: Depth,
    },
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeEnd {
    /// A complete answer; nothing was compared.
    Answered,
    /// A complete answer, and the recorded one.
    Matched,
    /// A complete answer, and another one: repeat once, then fail closed.
    Mismatched(Mismatch),
    /// The deadline passed: a sleeping engine lets requests hang, a busy one lets them wait.
    Unknown,
    /// Anything else.
    Failed(Failure),
}

/// A probe's instants and its end.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeResult {
    /// Sent.
    pub sent: Moment,
    /// First token, where one came.
    pub first_token: Option<Moment>,
    /// The answer was complete, or it failed.
    pub ended: Moment,
    /// How.
    pub end: ProbeEnd,
}

impl ProbeResult {
    /// Whether it proved what it should.
    pub fn ok(&self) -> bool {
        matches!(self.end, ProbeEnd::Answered | ProbeEnd::Matched)
    }

    fn new(timed: &Timed, end: ProbeEnd) -> Self {
        ProbeResult {
            sent: Moment(timed.sent),
            first_token: timed.first_token.map(Moment),
            ended: Moment(timed.ended),
            end,
        }
    }
}

/// Why a canary could not be recorded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecordError {
    /// A probe failed.
    #[error("a canary's probe failed: {0}")]
    Probe(Failure),
    /// The answers are of no use.
    #[error(transparent)]
    Unstable(#[from] Unstable),
}

impl Client {
    /// Sends one probe. Only to an engine whose memory is verified to be back: otherwise the request hangs, or kills
    /// the engine.
    pub async fn probe(&self, kind: ProbeKind<'_>, deadline: Duration) -> ProbeResult {
        let (spec, check) = match kind {
            ProbeKind::FirstToken => (ProbeSpec::one_token(canary::PROMPT, deadline), None),
            ProbeKind::Canary { recorded, depth } => {
                (canary_spec(recorded.tokens(depth), deadline), Some((recorded, depth)))
            }
        };
        let timed = hotbunk_measure::probe(&self.target, &spec).await;
        let end = match (plain_end(&timed), check) {
            (ProbeEnd::Answered, Some((recorded, depth))) => match recorded.compare(depth, &timed.tokens) {
                Ok(()) => ProbeEnd::Matched,
                Err(mismatch) => ProbeEnd::Mismatched(mismatch),
            },
            (end, _) => end,
        };
        ProbeResult::new(&timed, end)
    }

    /// Records the canary: identical probes one after the other, on an engine that is warm and otherwise idle. The
    /// deadline is for all of them. The results are for the journal, also where nothing could be recorded.
    pub async fn record_canary(&self, deadline: Duration) -> (Vec<ProbeResult>, Result<Canary, RecordError>) {
        let budget = Budget::new(deadline);
        let mut results = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..canary::PROBES {
            let spec = canary_spec(canary::TOKENS, budget.left());
            let timed = hotbunk_measure::probe(&self.target, &spec).await;
            let end = plain_end(&timed);
            results.push(ProbeResult::new(&timed, end));
            if let Some(e) = timed.error {
                return (results, Err(RecordError::Probe(e)));
            }
            answers.push(timed.tokens);
        }
        (results, Canary::record(&answers).map_err(RecordError::from))
    }

    /// Sends `n` short requests one after the other and stops at the first that fails. The deadline is for all of them:
    /// the first may take long (18 s seen on real vLLM's CPU build, against 0.03 s for the second).
    pub async fn warm_up(&self, n: u32, deadline: Duration) -> Vec<ProbeResult> {
        let budget = Budget::new(deadline);
        let mut results = Vec::new();
        for _ in 0..n {
            let spec = ProbeSpec {
                max_tokens: WARM_UP_TOKENS,
                ..ProbeSpec::one_token(canary::PROMPT, budget.left())
            };
            let timed = hotbunk_measure::probe(&self.target, &spec).await;
            let end = plain_end(&timed);
            let failed = end != ProbeEnd::Answered;
            results.push(ProbeResult::new(&timed, end));
            if failed {
                break;
            }
        }
        results
    }
}

fn canary_spec(tokens: u32, deadline: Duration) -> ProbeSpec {
    ProbeSpec { max_tokens: tokens, detail: true, ..ProbeSpec::one_token(canary::PROMPT, deadline) }
}

/// How it ended before anything is compared.
fn plain_end(timed: &Timed) -> ProbeEnd {
    match &timed.error {
        None => ProbeEnd::Answered,
        Some(Failure::Timeout { .. }) => ProbeEnd::Unknown,
        Some(e) => ProbeEnd::Failed(e.clone()),
    }
}
