//! A stream of server-sent events on its way through: passed on event by event, and watched.
//!
//! [`Splitter`] lets only whole events leave. Then a comment may be put in at any time, and whatever the stream's end,
//! its last event is whole: an error event after it is well formed. It costs nothing where the engine sends whole events,
//! as vLLM does: the chunk goes out as it came, without a copy. Bytes are never changed, only held until their event is.
//!
//! [`Watch`] looks for three things in the events and parses only those that have the word in question: an end that is
//! no success (`finish_reason` is `abort`, in each API's words), the number of tokens in `usage`, and how many events
//! there were.

use super::route::Face;
use bytes::{Bytes, BytesMut};
use memchr::memmem::{Finder, FinderRev};
use serde_json::Value;
use std::sync::LazyLock;

/// An event that is longer than this is passed on in parts: it may carry a whole prompt's log-probabilities.
const LONGEST_EVENT: usize = 1 << 20;
/// How much of what was passed on is needed to see the end of an event: `\n\r` before `\n`.
const TAIL: usize = 3;

/// Cuts a stream at the ends of its events.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// What has come and is no whole event yet.
    held: BytesMut,
    /// So much of it has been passed on all the same.
    sent: usize,
}

impl Splitter {
    /// Takes a chunk; what may go out: whole events, or nothing yet.
    pub(super) fn push(&mut self, mut chunk: Bytes) -> Bytes {
        if self.held.is_empty() {
            return match last_end(&chunk) {
                Some(end) if end == chunk.len() => chunk,
                Some(end) => {
                    let whole = chunk.split_to(end);
                    self.hold(chunk);
                    whole
                }
                None => {
                    self.hold(chunk);
                    self.overflow()
                }
            };
        }
        self.held.extend_from_slice(&chunk);
        match last_end(&self.held).filter(|end| *end > self.sent) {
            Some(end) => {
                let mut whole = self.held.split_to(end).freeze();
                let whole = whole.split_off(std::mem::take(&mut self.sent));
                if self.held.is_empty() {
                    // Its memory is the event's now.
                    self.held = BytesMut::new();
                }
                whole
            }
            None => self.overflow(),
        }
    }

    fn hold(&mut self, chunk: Bytes) {
        self.held = BytesMut::from(chunk);
        self.sent = 0;
    }

    /// Passes on an event that does not end, but for what is needed to see its end.
    fn overflow(&mut self) -> Bytes {
        if self.held.len() < LONGEST_EVENT && self.sent == 0 {
            return Bytes::new();
        }
        let keep = self.held.len().saturating_sub(TAIL);
        let part = Bytes::copy_from_slice(&self.held[self.sent..]);
        self.held = BytesMut::from(&self.held[keep..]);
        self.sent = self.held.len();
        part
    }

    /// Whether what went out ends with an event's end, so that something may be put in.
    pub(super) fn is_between_events(&self) -> bool {
        self.sent == 0
    }

    /// What is left when the stream has ended.
    pub(super) fn rest(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held).freeze();
        held.slice(std::mem::take(&mut self.sent)..)
    }
}

/// Where the last whole event ends: behind an empty line. Lines end with `\n`, `\r\n` or `\r`.
fn last_end(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    while let Some(at) = memchr::memrchr2(b'\n', b'\r', &text[..end]) {
        let before = &text[..at];
        // The line before must have ended right before this line's end.
        let line = if text[at] == b'\n' { before.strip_suffix(b"\r").unwrap_or(before) } else { before };
        if line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
            return Some(at + 1);
        }
        // `\r\n` alone is the end of one line, of which `\r` may be all that was looked at.
        end = at;
    }
    None
}

/// The offset of each event in whole events, with its text.
fn events(whole: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = whole.get(at..).filter(|rest| !rest.is_empty())?;
        let length = first_end(rest).unwrap_or(rest.len());
        let start = at;
        at += length;
        Some((start, &rest[..length]))
    })
}

fn first_end(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = memchr::memchr2(b'\n', b'\r', &text[from..]).map(|at| from + at) {
        let end = if text[at..].starts_with(b"\r\n") { at + 2 } else { at + 1 };
        // Is the next line empty?
        let rest = &text[end..];
        if rest.starts_with(b"\r\n") {
            return Some(end + 2);
        }
        if rest.first().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
            return Some(end + 1);
        }
        from = end;
    }
    None
}

/// The JSON of an event: its `data` lines together.
fn data(event: &[u8]) -> Option<Value> {
    let lines = event.split(|b| matches!(b, b'\n' | b'\r'));
    let data: Vec<&[u8]> = lines.filter_map(|line| line.strip_prefix(b"data:")).collect();
    serde_json::from_slice(&data.concat()).ok()
}

static ABORT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"abort\""));
static CANCELLED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"cancelled\""));
static NO_STOP: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"stop_reason\""));
static TOTAL: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new("\"total_tokens\":"));
static INPUT: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new("\"input_tokens\":"));
static OUTPUT: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new("\"output_tokens\":"));
static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\n\n"));

/// What has been seen of a stream.
#[derive(Debug)]
pub(super) struct Watch {
    face: Face,
    events: u64,
    total: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    over: bool,
}

impl Watch {
    /// Nothing yet.
    pub(super) fn new(face: Face) -> Self {
        Watch { face, events: 0, total: None, input: None, output: None, over: false }
    }

    /// The answer is complete: what may still come is the end of the connection.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Looks at whole events. The offset of the first one that says that the engine gave the request up; it and what
    /// follows must not reach the client.
    pub(super) fn look(&mut self, whole: &[u8]) -> Option<usize> {
        self.events += u64::try_from(END.find_iter(whole).count()).unwrap_or(0);
        self.count(whole);
        self.over |= says_over(self.face, whole);
        let word = word(self.face);
        word.find(whole)?;
        let gave_up =
            |event: &[u8]| word.find(event).is_some() && data(event).is_some_and(|d| is_abort(self.face, &d));
        events(whole).find(|(_, event)| gave_up(event)).map(|(at, _)| at)
    }

    /// Looks at a whole plain answer; whether the engine gave the request up.
    pub(super) fn look_at_answer(&mut self, body: &[u8]) -> bool {
        self.count(body);
        word(self.face).find(body).is_some()
            && serde_json::from_slice(body).is_ok_and(|answer| is_abort_answer(self.face, &answer))
    }

    fn count(&mut self, text: &[u8]) {
        if let Some(n) = number_after(&TOTAL, text) {
            self.total = Some(n);
        }
        if self.face == Face::Messages {
            self.input = number_after(&INPUT, text).or(self.input);
            self.output = number_after(&OUTPUT, text).or(self.output);
        }
    }

    /// Tokens of prompt and answer, as `usage` says; none where it said nothing.
    pub(super) fn usage(&self) -> Option<u64> {
        match (self.total, self.input, self.output) {
            (Some(total), ..) => Some(total),
            (None, None, None) => None,
            (None, input, output) => Some(input.unwrap_or(0).saturating_add(output.unwrap_or(0))),
        }
    }

    /// The same, or a guess: an event for each token.
    pub(super) fn tokens(&self, prompt: u64) -> u64 {
        self.usage().unwrap_or_else(|| prompt.saturating_add(self.events))
    }
}

/// Whether a line of these whole events is the one by which an answer ends. A string of JSON has no line of its own, so no
/// text can pass for it.
fn says_over(face: Face, whole: &[u8]) -> bool {
    let last: &[&[u8]] = match face {
        Face::OpenAi => &[b"data: [DONE]"],
        Face::Responses => &[b"event: response.completed", b"event: response.incomplete"],
        Face::Messages => &[b"event: message_stop"],
    };
    let of_a_line = |found: usize| found == 0 || matches!(whole[found - 1], b'\n' | b'\r');
    last.iter().any(|line| memchr::memmem::find_iter(whole, line).any(of_a_line))
}

/// A word without which nothing has been given up.
fn word(face: Face) -> &'static Finder<'static> {
    match face {
        Face::OpenAi => &ABORT,
        Face::Responses => &CANCELLED,
        Face::Messages => &NO_STOP,
    }
}

fn is_abort(face: Face, event: &Value) -> bool {
    match face {
        Face::OpenAi => is_abort_answer(face, event),
        Face::Responses => event.get("response").is_some_and(|response| is_abort_answer(face, response)),
        // The first event has no reason yet either.
        Face::Messages => {
            event.get("type").is_some_and(|t| t == "message_delta")
                && event.pointer("/delta/stop_reason").is_some_and(Value::is_null)
        }
    }
}

fn is_abort_answer(face: Face, answer: &Value) -> bool {
    match face {
        Face::OpenAi => {
            let choices = answer.get("choices").and_then(Value::as_array);
            choices.is_some_and(|c| c.iter().any(|c| c.get("finish_reason").is_some_and(|r| r == "abort")))
        }
        Face::Responses => answer.get("status").is_some_and(|status| status == "cancelled"),
        Face::Messages => {
            answer.get("type").is_some_and(|t| t == "message")
                && answer.get("stop_reason").is_some_and(Value::is_null)
        }
    }
}

/// The number behind the last occurrence of a key. Inside a JSON string the key's quotes would be escaped, so it is a
/// key where it is found.
fn number_after(key: &FinderRev<'_>, text: &[u8]) -> Option<u64> {
    let at = key.rfind(text)? + key.needle().len();
    let digits = text[at..].trim_ascii_start();
    let end = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds a text in chunks; what came out, piece by piece, and the rest.
    fn cut(text: &[u8], cuts: &[usize]) -> (Vec<Bytes>, Bytes) {
        let mut splitter = Splitter::default();
        let (mut out, mut from) = (Vec::new(), 0);
        let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (text.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(text.len());
        for to in cuts {
            let piece = splitter.push(Bytes::copy_from_slice(&text[from..to]));
            from = to;
            if !piece.is_empty() {
                assert!(splitter.is_between_events());
                out.push(piece);
            }
        }
        (out, splitter.rest())
    }

    #[test]
    fn whole_events_pass_without_a_copy() {
        let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
        let mut splitter = Splitter::default();
        let out = splitter.push(chunk.clone());
        assert_eq!(out.as_ptr(), chunk.as_ptr());
        assert_eq!(out, chunk);
        assert!(splitter.is_between_events());
        assert!(splitter.rest().is_empty());
    }

    #[test]
    fn every_line_end_is_one() {
        for (text, whole) in [
            ("a\n\nb", 3),
            ("a\r\n\r\nb", 5),
            ("a\r\rb", 3),
            ("a\n\r\nb", 4),
            ("a\r\n\nb", 4),
            ("a\nb\nc\n\n", 7),
            ("a\n\nb\n", 3),
        ] {
            assert_eq!(last_end(text.as_bytes()), Some(whole), "{text:?}");
        }
        for text in ["", "a", "a\n", "a\r\n", "\n", "a\nb\n", "a\r\nb\r\n"] {
            assert_eq!(last_end(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn an_event_without_end_is_passed_on_in_parts() {
        let mut splitter = Splitter::default();
        let mut out = BytesMut::new();
        let text = [b"data: ".as_slice(), &vec![b'x'; 3 * LONGEST_EVENT], b"\n\ndata: y\n\nz"].concat();
        let mut raw = 0;
        for chunk in text.chunks(100_001) {
            out.extend_from_slice(&splitter.push(Bytes::copy_from_slice(chunk)));
            raw += usize::from(!splitter.is_between_events());
        }
        assert!(raw > 10, "it was not held as a whole");
        assert!(splitter.is_between_events(), "and its end was seen");
        assert_eq!(out, text[..text.len() - 1]);
        assert_eq!(splitter.rest(), "z");
    }

    #[test]
    fn an_answer_is_over_with_the_line_that_says_so() {
        let over = |face, text: &[u8]| {
            let mut watch = Watch::new(face);
            watch.look(text);
            watch.is_over()
        };
        assert!(over(Face::OpenAi, b"data: {\"a\":1}\n\ndata: [DONE]\n\n"));
        assert!(over(Face::OpenAi, b"data: [DONE]\r\n\r\n"));
        assert!(!over(Face::OpenAi, b"data: {\"text\":\"data: [DONE]\"}\n\n"));
        assert!(over(Face::Responses, b"event: response.completed\ndata: {}\n\n"));
        assert!(!over(Face::Responses, b"data: {\"text\":\"event: response.completed\"}\n\n"));
        assert!(over(Face::Messages, b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
        assert!(!over(Face::Messages, b"event: message_delta\ndata: {}\n\n"));
    }

    proptest! {
        /// Whatever the chunks: nothing is lost, nothing is changed, only whole events come out.
        #[test]
        fn under_every_chunking(
            text in "(data: [a-c]{0,3}(\n|\r\n)|(\n|\r\n)|: c\n\n){0,12}",
            cuts in prop::collection::vec(any::<usize>(), 0..8),
        ) {
            let (pieces, rest) = cut(text.as_bytes(), &cuts);
            for piece in &pieces {
                prop_assert_eq!(last_end(piece), Some(piece.len()));
            }
            let all: Vec<u8> = pieces.iter().flatten().chain(&rest).copied().collect();
            prop_assert_eq!(all, text.as_bytes());
        }

        /// An abort is seen in the same event, whatever the chunks.
        #[test]
        fn an_abort_is_seen_under_every_chunking(before in 0usize..4, cuts in prop::collection::vec(any::<usize>(), 0..6)) {
            let token = "data: {\"choices\":[{\"text\":\" \\\"abort\\\"\",\"finish_reason\":null}]}\n\n";
            let abort = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\": \"abort\"}]}\n\ndata: [DONE]\n\n";
            let text = token.repeat(before) + abort;
            let (pieces, _) = cut(text.as_bytes(), &cuts);
            let mut watch = Watch::new(Face::OpenAi);
            let mut passed = 0;
            let mut seen = false;
            for piece in pieces {
                if let Some(at) = watch.look(&piece) {
                    passed += at;
                    seen = true;
                    break;
                }
                passed += piece.len();
            }
            prop_assert!(seen);
            prop_assert_eq!(passed, token.len() * before);
        }
    }

    #[test]
    fn giving_up_in_each_apis_words() {
        let see = |face, event: &str| {
            Watch::new(face).look(format!("event: x\ndata: {event}\n\n").as_bytes()).is_some()
        };
        assert!(see(Face::OpenAi, r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"abort"}]}"#));
        assert!(!see(Face::OpenAi, r#"{"choices":[{"text":"x","finish_reason":"stop","note":"abort"}]}"#));
        assert!(!see(
            Face::OpenAi,
            r#"{"choices":[{"text":"\"finish_reason\":\"abort\"","finish_reason":null}]}"#
        ));
        assert!(see(Face::Responses, r#"{"type":"response.completed","response":{"status":"cancelled"}}"#));
        assert!(!see(
            Face::Responses,
            r#"{"type":"response.completed","response":{"status":"completed","x":"cancelled"}}"#
        ));
        assert!(see(Face::Messages, r#"{"type":"message_delta","delta":{"stop_reason":null}}"#));
        assert!(!see(Face::Messages, r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#));
        assert!(!see(Face::Messages, r#"{"type":"message_start","message":{"stop_reason":null}}"#));
        let answer = |face, body: &str| Watch::new(face).look_at_answer(body.as_bytes());
        assert!(answer(Face::OpenAi, r#"{"choices":[{"message":{},"finish_reason":"abort"}]}"#));
        assert!(!answer(
            Face::OpenAi,
            r#"{"choices":[{"message":{"content":"\"abort\""},"finish_reason":"length"}]}"#
        ));
        assert!(answer(Face::Messages, r#"{"type":"message","stop_reason":null}"#));
        assert!(answer(Face::Responses, r#"{"status":"cancelled"}"#));
    }

    #[test]
    fn usage_is_the_last_one_said() {
        let mut watch = Watch::new(Face::OpenAi);
        watch.look(b"data: {\"text\":\"\\\"total_tokens\\\":99\"}\n\n");
        assert_eq!((watch.usage(), watch.tokens(5)), (None, 6));
        watch.look(
            b"data: {\"usage\":{\"total_tokens\": 7}}\n\ndata: {\"usage\":{\"total_tokens\":12,\"x\":1}}\n\n",
        );
        assert_eq!((watch.usage(), watch.tokens(5)), (Some(12), 12));
        let mut watch = Watch::new(Face::Messages);
        watch.look(b"data: {\"usage\":{\"input_tokens\":20,\"output_tokens\":0}}\n\n");
        watch.look(b"data: {\"usage\":{\"output_tokens\":4}}\n\n");
        assert_eq!(watch.usage(), Some(24));
    }
}
