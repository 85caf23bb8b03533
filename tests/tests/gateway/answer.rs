//! What an answer must be, and whether it is: the text to the byte, the form of streams and of errors.

use hotbunk_sim::profile::Profile;
use hotbunk_sim::tokens::{draw, hash_text, word};
use serde_json::Value;

/// The text that an engine of this role must answer a prompt with, at temperature 0.
pub(crate) fn expected(role: &str, prompt: &str, tokens: u32) -> String {
    let profile = Profile::load("l20").expect("the built-in profile");
    let weights = hash_text(&profile.engine(role).expect("a role of the profile").model);
    let mut chain = hash_text(prompt);
    let mut text = String::new();
    for position in 0..tokens {
        let drawn = draw(chain, weights, position, 1);
        chain = drawn.state;
        text.push(' ');
        text.push_str(word(drawn.token));
    }
    text
}

/// An error in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Complaint {
    /// `error.code`.
    pub(crate) code: String,
    /// `error.message`.
    pub(crate) message: String,
}

impl Complaint {
    /// Reads `{"error":{"message":…,"type":…,"code":…}}`; anything else is said.
    pub(crate) fn read(body: &Value) -> Result<Self, String> {
        let error = body.get("error").ok_or_else(|| format!("no error object: {body}"))?;
        let word = |key: &str| match error.get(key).and_then(Value::as_str) {
            Some(word) if !word.is_empty() => Ok(word.to_owned()),
            _ => Err(format!("no `{key}` in {error}")),
        };
        word("type")?;
        Ok(Complaint { code: word("code")?, message: word("message")? })
    }
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// With its last token, and `[DONE]`.
    Whole,
    /// With an error event.
    Error(Complaint),
}

/// A streamed completion as it comes in. Bytes go in as they arrive; whatever is not well-formed is said at once.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    rest: Vec<u8>,
    /// What the tokens say so far.
    pub(crate) text: String,
    /// How many came.
    pub(crate) tokens: usize,
    /// Comments between events.
    pub(crate) comments: usize,
    finish: Option<String>,
    error: Option<Complaint>,
    is_done: bool,
}

impl Streamed {
    /// More bytes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        while let Some(at) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.rest.drain(..at + 2).collect();
            let event = String::from_utf8(event).map_err(|e| format!("an event is not UTF-8: {e}"))?;
            self.event(event.trim_end_matches('\n'))?;
        }
        Ok(())
    }

    fn event(&mut self, event: &str) -> Result<(), String> {
        if self.is_done {
            return Err(format!("after [DONE]: {event:?}"));
        }
        if event.starts_with(':') && !event.contains('\n') {
            self.comments += 1;
            return Ok(());
        }
        let Some(data) = event.strip_prefix("data: ").filter(|data| !data.contains('\n')) else {
            return Err(format!("an event that is none: {event:?}"));
        };
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let data: Value =
            serde_json::from_str(data).map_err(|e| format!("an event's data: {e}: {data:?}"))?;
        if self.error.is_some() {
            return Err(format!("after the error: {data}"));
        }
        if data.get("error").is_some() {
            self.error = Some(Complaint::read(&data)?);
            return Ok(());
        }
        if let Some(finish) = &self.finish {
            return Err(format!("after the finish ({finish}): {data}"));
        }
        let choice = &data["choices"][0];
        let text = choice["text"].as_str().ok_or_else(|| format!("no text in {data}"))?;
        self.text.push_str(text);
        self.tokens += usize::from(!text.is_empty());
        self.finish = choice["finish_reason"].as_str().map(str::to_owned);
        Ok(())
    }

    /// The body has ended: how, or what is wrong with that.
    pub(crate) fn end(&self) -> Result<End, String> {
        if !self.rest.is_empty() {
            return Err(format!("half an event at the end: {:?}", String::from_utf8_lossy(&self.rest)));
        }
        match (&self.finish, &self.error, self.is_done) {
            (None, Some(error), _) => Ok(End::Error(error.clone())),
            (Some(finish), None, true) if finish == "length" => Ok(End::Whole),
            (finish, error, done) => {
                Err(format!("it ends with finish {finish:?}, error {error:?}, [DONE] {done}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "data: {\"choices\":[{\"text\":\" sail\",\"finish_reason\":null}]}\n\n";
    const LAST: &str = "data: {\"choices\":[{\"text\":\" bunk\",\"finish_reason\":\"length\"}]}\n\n";
    const DONE: &str = "data: [DONE]\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"code\":\"c\"}}\n\n";

    fn end(parts: &[&str]) -> Result<End, String> {
        let mut streamed = Streamed::default();
        // Cut anywhere.
        for byte in parts.concat().as_bytes() {
            streamed.feed(&[*byte])?;
        }
        streamed.end()
    }

    #[test]
    fn whole_streams_and_errors_are_told_apart() {
        assert_eq!(end(&[": wait\n\n", TOKEN, ": wait\n\n", LAST, DONE]), Ok(End::Whole));
        let complaint = Complaint { code: "c".to_owned(), message: "m".to_owned() };
        assert_eq!(end(&[TOKEN, ERROR, DONE]), Ok(End::Error(complaint.clone())));
        assert_eq!(end(&[ERROR]), Ok(End::Error(complaint)));
    }

    #[test]
    fn whatever_is_cut_doubled_or_passed_off_is_said() {
        let abort = LAST.replace("length", "abort");
        for wrong in [
            vec![TOKEN],
            vec![TOKEN, LAST],
            vec![TOKEN, DONE],
            vec![LAST, LAST, DONE],
            vec![LAST, DONE, DONE],
            vec![LAST, ERROR],
            vec![ERROR, TOKEN],
            vec![&TOKEN[..20]],
            vec![&abort, DONE],
            vec!["data: {\"error\":{\"message\":\"\"}}\n\n"],
            vec!["event: x\ndata: y\n\n", LAST, DONE],
        ] {
            assert!(end(&wrong).is_err(), "{wrong:?}");
        }
    }
}
