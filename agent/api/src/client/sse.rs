//! Server-sent events out of a byte stream, whatever its chunks.
//!
//! Only what the agent sends is read: `data` (one or more lines), `id` and `event` are understood, comments
//! (keep-alives) are dropped. An event without data is no event.

/// Longest line that is kept. The agent's events are far smaller; a peer that never ends a line must not fill memory.
const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// A line longer than 16 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of the event stream is longer than 16 MiB")]
pub(super) struct TooLong;

/// Collects chunks, yields the data of whole events.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    data: Option<String>,
    last_was_cr: bool,
}

impl Parser {
    /// Takes a chunk; gives the data of every event that it completes.
    ///
    /// # Errors
    /// [`TooLong`].
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        for &byte in chunk {
            let after_cr = std::mem::replace(&mut self.last_was_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ if self.line.len() >= MAX_LINE_BYTES => return Err(TooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<String> {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        if line.is_empty() {
            return self.data.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        if field == "data" {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunking_gives_the_same_events() {
        let text = ": hello\n\nid: 1\nevent: x\ndata: {\"a\":\"ü\"}\n\ndata:two\r\ndata: lines\r\n\r\n\nid: 3\n\ndata: cut off";
        let bytes = text.as_bytes();
        let expected = vec!["{\"a\":\"ü\"}".to_owned(), "two\nlines".to_owned()];
        for size in 1..=bytes.len() {
            let mut parser = Parser::default();
            let events: Vec<String> = bytes.chunks(size).flat_map(|c| parser.push(c).unwrap()).collect();
            assert_eq!(events, expected, "chunks of {size}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = Parser::default();
        let chunk = vec![b'x'; 1024 * 1024];
        assert!((0..17).any(|_| parser.push(&chunk).is_err()));
    }
}
