//! Tokens and log-probabilities without a model: a hash chain over the weights' identity, the prompt and the position.
//!
//! The same weights, prompt and settings give the same text, always; weights that are not what they should be
//! (discarded and never reloaded, or corrupted) give other text from the next token on. A request that was frozen and
//! recomputed goes on with the same chain, so its text is byte for byte what it would have been.

/// Words a token is drawn from; each is written with a space before it.
const WORDS: [&str; 64] = [
    "sail", "bunk", "watch", "port", "star", "board", "anchor", "deck", "mast", "rope", "tide", "wind",
    "wave", "salt", "keel", "hull", "bow", "stern", "crew", "mate", "cook", "lamp", "bell", "chart", "map",
    "north", "south", "east", "west", "night", "dawn", "dusk", "storm", "calm", "fog", "rain", "sun", "moon",
    "cloud", "gull", "whale", "cod", "net", "hook", "line", "knot", "plank", "pitch", "tar", "oar", "row",
    "drift", "steer", "turn", "hold", "cargo", "crate", "barrel", "water", "bread", "rum", "song", "tale",
    "home",
];

/// Mixes two words (the finaliser of splitmix64): every bit of both reaches every bit of the result.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Hashes text (FNV-1a).
pub fn hash_text(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// How many tokens a text has: its words.
pub fn count_words(text: &str) -> u32 {
    u32::try_from(text.split_whitespace().count()).unwrap_or(u32::MAX)
}

/// The text of a token, with its leading space.
pub fn word(token: u32) -> &'static str {
    WORDS[token as usize % WORDS.len()]
}

/// What one step of the chain yields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The chain's next state.
    pub state: u64,
    /// The token.
    pub token: u32,
    /// Its log-probability: the weights' own, plus a little noise in batches larger than one.
    pub logprob: f64,
    /// The model would end here.
    pub is_end: bool,
}

/// Draws the next token.
pub fn draw(state: u64, weights: u64, position: u32, batch: u32) -> Drawn {
    let state = mix(mix(state, weights), u64::from(position));
    let unit = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
    let exact = -0.02 - 1.5 * unit(mix(state, 1));
    // A batch changes the order of floating point sums, nothing more.
    let noise = if batch > 1 { 0.004 * (unit(mix(state, u64::from(batch) + 16)) - 0.5) } else { 0.0 };
    Drawn {
        state,
        token: u32::try_from(state % WORDS.len() as u64).unwrap_or(0),
        logprob: exact + noise,
        is_end: position > 0 && mix(state, 2).is_multiple_of(300),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(weights: u64, prompt: &str, batch: u32) -> String {
        let mut state = hash_text(prompt);
        let mut out = String::new();
        for position in 0..40 {
            let drawn = draw(state, weights, position, batch);
            state = drawn.state;
            out.push(' ');
            out.push_str(word(drawn.token));
        }
        out
    }

    #[test]
    fn text_depends_on_weights_and_prompt_and_nothing_else() {
        assert_eq!(text(1, "hello", 1), text(1, "hello", 4));
        assert_ne!(text(1, "hello", 1), text(2, "hello", 1));
        assert_ne!(text(1, "hello", 1), text(1, "hullo", 1));
    }

    #[test]
    fn noise_is_small_and_absent_alone() {
        for position in 0..100 {
            let alone = draw(7, 7, position, 1);
            let batched = draw(7, 7, position, 4);
            assert_eq!(alone, draw(7, 7, position, 1));
            assert!((alone.logprob - batched.logprob).abs() <= 0.002);
            assert!(alone.logprob < 0.0);
        }
    }

    #[test]
    fn words_are_plain_so_that_chunks_need_no_escaping() {
        assert!(WORDS.iter().all(|w| w.bytes().all(|b| b.is_ascii_lowercase())));
        assert_eq!(count_words("  two\n words "), 2);
    }
}
