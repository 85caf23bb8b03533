//! The canary: is it still the same model?
//!
//! A wake can succeed by every sign and yield other weights (CONTRACT: level 2 without reload, lost buffers, corrupted
//! pages). So a fixed prompt is answered greedily after the warm-up, three times, and what came is recorded: tokens, and
//! the log-probability of each with the spread of the three. After a wake the same prompt must yield the same.
//!
//! **Tokens must be equal, log-probabilities near.** Kernels choose other orders of summation by batch size and cache
//! state, so the last bits vary from run to run; a model with other weights is off by far more. The tolerance is four
//! times the spread of the recording and at least [`FLOOR`]. Where two tokens are nearly equally likely even a healthy
//! engine may choose differently: the recording keeps only the tokens before the first that its own three probes
//! disagree on, and refuses to be one if they disagree at once.
//!
//! One token ([`Depth::First`]) costs next to nothing and is enough where weights were only moved (parked, level 1);
//! after a reload (level 2) all recorded tokens are compared ([`Depth::All`]).

use hotbunk_measure::Token;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is asked, always. Long enough for attention over several positions, short enough for the smallest context.
pub const PROMPT: &str = "The watch changes at midnight. One sailor climbs out of the bunk, the other lies down in it, \
                          still warm. Nobody else on board has noticed that";

/// How many tokens are recorded.
pub const TOKENS: u32 = 8;

/// How many probes a recording is made of.
pub const PROBES: usize = 3;

/// The smallest tolerance, in nats. bf16 carries eight bits of mantissa, so a logit near 20 moves by steps of 0.06–0.12.
pub const FLOOR: f64 = 0.15;

/// How many times the recorded spread is tolerated.
const SPREADS: f64 = 4.0;

/// How much of a recording is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The first token alone.
    First,
    /// Every recorded token.
    All,
}

/// A recorded token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Its id, where the engine tells it.
    pub id: Option<u32>,
    /// Its text.
    pub text: String,
    /// Mean log-probability over the probes, where the engine tells it.
    pub logprob: Option<f64>,
    /// How far a log-probability may be from the mean.
    pub tolerance: f64,
}

/// A recording. It belongs to one incarnation: a restart may choose other kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    tokens: Vec<Expected>,
}

/// Why no recording could be made of some probes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unstable {
    /// Too few probes to learn a spread from.
    #[error("a canary is recorded from {PROBES} answers, {got} came")]
    TooFew {
        /// How many came.
        got: usize,
    },
    /// The engine tells neither token ids nor log-probabilities, or sent no token.
    #[error("the engine's answers list no tokens: it must support `logprobs` or `return_token_ids`")]
    NoTokens,
    /// The probes disagree at once.
    #[error("the engine is not deterministic: the same greedy prompt began with {0} different tokens")]
    FirstTokens(usize),
}

/// What differs.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// Which token, from 0.
    pub position: usize,
    /// What was recorded.
    pub expected: String,
    /// What came.
    pub got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}: expected {}, got {}", self.position + 1, self.expected, self.got)
    }
}

impl Canary {
    /// Learns from the answers of [`PROBES`] identical probes.
    ///
    /// # Errors
    /// [`Unstable`] where nothing can be learned from them.
    pub fn record(answers: &[Vec<Token>]) -> Result<Self, Unstable> {
        if answers.len() < PROBES {
            return Err(Unstable::TooFew { got: answers.len() });
        }
        let shortest = answers.iter().map(Vec::len).min().unwrap_or(0);
        let mut tokens = Vec::new();
        for place in 0..shortest {
            let column: Vec<&Token> = answers.iter().map(|a| &a[place]).collect();
            if !column.iter().all(|t| is_same(column[0].id, &column[0].text, t)) {
                if place == 0 {
                    let mut different: Vec<_> = column.iter().map(|t| (t.id, &t.text)).collect();
                    different.sort();
                    different.dedup();
                    return Err(Unstable::FirstTokens(different.len()));
                }
                break;
            }
            tokens.push(Expected::learn(&column));
        }
        if tokens.is_empty() { Err(Unstable::NoTokens) } else { Ok(Canary { tokens }) }
    }

    /// How many tokens a probe of this depth must ask for.
    pub fn tokens(&self, depth: Depth) -> u32 {
        match depth {
            Depth::First => 1,
            // At most TOKENS, so it fits.
            Depth::All => u32::try_from(self.tokens.len()).unwrap_or(TOKENS),
        }
    }

    /// What is recorded, in order.
    pub fn recorded(&self) -> &[Expected] {
        &self.tokens
    }

    /// Compares an answer. Anything missing is a mismatch: a canary that cannot be checked must not pass.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, depth: Depth, answer: &[Token]) -> Result<(), Mismatch> {
        let depth = self.tokens(depth) as usize;
        for (position, expected) in self.tokens.iter().take(depth).enumerate() {
            let got = answer.get(position);
            if !got.is_some_and(|token| expected.admits(token)) {
                return Err(Mismatch {
                    position,
                    expected: expected.to_string(),
                    got: got.map_or_else(|| "nothing".to_owned(), |t| show(t.id, &t.text, t.logprob)),
                });
            }
        }
        Ok(())
    }
}

impl Expected {
    fn learn(column: &[&Token]) -> Self {
        let first = column[0];
        let all: Option<Vec<f64>> = column.iter().map(|t| t.logprob).collect();
        let (logprob, spread) = match &all {
            Some(values) => {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                (Some(mean), values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max))
            }
            None => (None, 0.0),
        };
        Expected { id: first.id, text: first.text.clone(), logprob, tolerance: FLOOR.max(SPREADS * spread) }
    }

    fn admits(&self, got: &Token) -> bool {
        is_same(self.id, &self.text, got)
            && match (self.logprob, got.logprob) {
                (None, _) => true,
                // NaN is near nothing.
                (Some(mean), Some(value)) => (value - mean).abs() <= self.tolerance,
                (Some(_), None) => false,
            }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.id, &self.text, self.logprob))?;
        if self.logprob.is_some() { write!(f, " ± {:.2}", self.tolerance) } else { Ok(()) }
    }
}

/// By id where both have one: several tokens may decode to the same text, or to none.
fn is_same(id: Option<u32>, text: &str, got: &Token) -> bool {
    match (id, got.id) {
        (Some(a), Some(b)) => a == b,
        _ => text == got.text,
    }
}

fn show(id: Option<u32>, text: &str, logprob: Option<f64>) -> String {
    let mut shown = format!("{text:?}");
    if let Some(id) = id {
        shown += &format!(" (id {id})");
    }
    if let Some(logprob) = logprob {
        shown += &format!(" at {logprob:.3}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, logprob: f64) -> Token {
        Token { id: Some(id), text: format!("t{id}"), logprob: Some(logprob) }
    }

    fn answers(columns: &[[(u32, f64); 3]]) -> Vec<Vec<Token>> {
        (0..3).map(|row| columns.iter().map(|c| token(c[row].0, c[row].1)).collect()).collect()
    }

    fn recorded() -> Canary {
        Canary::record(&answers(&[
            [(7, -1.0); 3],
            [(8, -2.0), (8, -2.2), (8, -1.8)],
            [(9, -3.0), (9, -3.0), (5, -3.0)],
        ]))
        .unwrap()
    }

    #[test]
    fn only_what_the_probes_agree_on_is_kept() {
        let canary = recorded();
        assert_eq!(canary.tokens(Depth::All), 2);
        assert_eq!(canary.tokens(Depth::First), 1);
        let tolerances: Vec<f64> = canary.recorded().iter().map(|e| e.tolerance).collect();
        assert_eq!(tolerances[0], FLOOR);
        assert!((tolerances[1] - 0.8).abs() < 1e-9, "four times the spread");
    }

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        assert_eq!(
            Canary::record(&answers(&[[(1, -1.0), (2, -1.0), (1, -1.0)]])),
            Err(Unstable::FirstTokens(2))
        );
        assert_eq!(Canary::record(&vec![Vec::new(); 3]), Err(Unstable::NoTokens));
        assert_eq!(Canary::record(&answers(&[[(1, -1.0); 3]])[..2]), Err(Unstable::TooFew { got: 2 }));
    }

    #[test]
    fn the_same_model_passes() {
        let canary = recorded();
        assert_eq!(canary.compare(Depth::First, &[token(7, -1.1)]), Ok(()));
        assert_eq!(canary.compare(Depth::All, &[token(7, -0.9), token(8, -2.7), token(1, 0.0)]), Ok(()));
    }

    #[test]
    fn another_model_does_not() {
        let canary = recorded();
        let other = canary.compare(Depth::First, &[token(3, -1.0)]).unwrap_err();
        assert_eq!(
            other.to_string(),
            r#"token 1: expected "t7" (id 7) at -1.000 ± 0.15, got "t3" (id 3) at -1.000"#
        );
        assert!(canary.compare(Depth::First, &[token(7, -1.2)]).is_err(), "log-probability off");
        assert!(canary.compare(Depth::First, &[token(7, f64::NAN)]).is_err(), "no number");
        assert!(canary.compare(Depth::First, &[Token { logprob: None, ..token(7, 0.0) }]).is_err(), "none");
        assert!(canary.compare(Depth::First, &[]).is_err(), "nothing");
        let short = canary.compare(Depth::All, &[token(7, -1.0)]).unwrap_err();
        assert_eq!((short.position, short.got.as_str()), (1, "nothing"));
    }

    /// As engines below 0.10.2 answer: no ids, so texts are compared; and as seen on real 0.32: empty texts, so ids are.
    #[test]
    fn ids_go_before_texts() {
        let bare = |text: &str| Token { id: None, text: text.into(), logprob: Some(-1.0) };
        let by_text = Canary::record(&vec![vec![bare("a")]; 3]).unwrap();
        assert_eq!(by_text.compare(Depth::All, &[bare("a")]), Ok(()));
        assert!(by_text.compare(Depth::All, &[bare("b")]).is_err());
        let empty = |id| Token { id: Some(id), text: String::new(), logprob: Some(-6.0) };
        let by_id = Canary::record(&vec![vec![empty(142)]; 3]).unwrap();
        assert!(by_id.compare(Depth::All, &[empty(147)]).is_err());
    }

    #[test]
    fn without_log_probabilities_tokens_decide() {
        let silent = |id| Token { id: Some(id), text: String::new(), logprob: None };
        let canary = Canary::record(&vec![vec![silent(1), silent(2)]; 3]).unwrap();
        assert_eq!(canary.compare(Depth::All, &[silent(1), silent(2)]), Ok(()));
        assert!(canary.compare(Depth::All, &[silent(1), silent(3)]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn a_recording_passes_each_of_its_own_answers(
            values in proptest::collection::vec(proptest::array::uniform3((0u32..3, -20.0f64..0.0)), 1..8),
        ) {
            let answers = answers(&values);
            if let Ok(canary) = Canary::record(&answers) {
                for answer in &answers {
                    proptest::prop_assert_eq!(canary.compare(Depth::All, answer), Ok(()));
                    proptest::prop_assert_eq!(canary.compare(Depth::First, answer), Ok(()));
                }
            }
        }
    }
}
