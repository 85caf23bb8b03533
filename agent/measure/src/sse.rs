//! An incremental parser for server-sent events.
//!
//! Bytes come in chunks that end anywhere; events go out as soon as their blank line has come. The parser follows the
//! HTML standard's grammar: lines end in LF, CR or CRLF, a byte order mark may stand in front, a line that begins with a
//! colon is a comment, `data` fields of one event are joined by LF, an event without data is dropped, an event whose
//! blank line never comes is dropped. `id` and `retry` concern reconnection, which nobody does here: they are ignored.
//!
//! What is held back is bounded: a server that never ends a line cannot fill the memory.

/// The largest event that is held, in bytes, unless told otherwise.
pub const DEFAULT_LIMIT: usize = 1 << 20;

/// An event larger than the parser's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct TooLarge {
    /// The bound, in bytes.
    pub limit: usize,
}

/// One event, borrowed from the parser while it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field; empty where there was none (which means `message`).
    pub name: &'a [u8],
    /// The `data` fields, joined by LF.
    pub data: &'a [u8],
}

/// The state between two chunks.
#[derive(Debug)]
pub struct Parser {
    limit: usize,
    /// The line that has begun.
    line: Vec<u8>,
    /// The data of the event that has begun, each field followed by LF.
    data: Vec<u8>,
    name: Vec<u8>,
    /// The last line ended in CR: a LF that follows belongs to it.
    after_cr: bool,
    /// No line has ended yet: a byte order mark may stand in front of this one.
    first_line: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Parser::with_limit(DEFAULT_LIMIT)
    }
}

impl Parser {
    /// A parser that holds at most `limit` bytes of one event.
    pub fn with_limit(limit: usize) -> Self {
        Parser {
            limit,
            line: Vec::new(),
            data: Vec::new(),
            name: Vec::new(),
            after_cr: false,
            first_line: true,
        }
    }

    /// Takes the next bytes and hands out every event that they complete, in order.
    ///
    /// # Errors
    /// [`TooLarge`] once an event exceeds the bound. The parser is of no use afterwards.
    pub fn feed(&mut self, mut chunk: &[u8], mut on_event: impl FnMut(Event<'_>)) -> Result<(), TooLarge> {
        while !chunk.is_empty() {
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            let Some(end) = chunk.iter().position(|&b| b == b'\n' || b == b'\r') else {
                self.room_for(chunk.len())?;
                self.line.extend_from_slice(chunk);
                return Ok(());
            };
            self.room_for(end)?;
            self.after_cr = chunk[end] == b'\r';
            if self.line.is_empty() {
                self.take_line(&chunk[..end], &mut on_event);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&chunk[..end]);
                self.take_line(&line, &mut on_event);
                line.clear();
                self.line = line;
            }
            chunk = &chunk[end + 1..];
        }
        Ok(())
    }

    /// Whether an event has begun and not ended: at the end of a stream, whether it broke off inside one.
    pub fn is_inside_event(&self) -> bool {
        !self.line.is_empty() || !self.data.is_empty() || !self.name.is_empty()
    }

    fn room_for(&self, more: usize) -> Result<(), TooLarge> {
        let held = self.line.len() + self.data.len() + self.name.len();
        if held + more > self.limit { Err(TooLarge { limit: self.limit }) } else { Ok(()) }
    }

    fn take_line(&mut self, line: &[u8], on_event: &mut impl FnMut(Event<'_>)) {
        let line = if std::mem::take(&mut self.first_line) {
            line.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            if let Some(data) = self.data.strip_suffix(b"\n") {
                on_event(Event { name: &self.name, data });
            }
            self.data.clear();
            self.name.clear();
            return;
        }
        let (field, value) = match line.iter().position(|&b| b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, [].as_slice()),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Owned = (Vec<u8>, Vec<u8>);

    fn parse(chunks: &[&[u8]]) -> Vec<Owned> {
        let mut parser = Parser::default();
        let mut events = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, |e| events.push((e.name.to_vec(), e.data.to_vec()))).unwrap();
        }
        events
    }

    fn datas(text: &str) -> Vec<String> {
        parse(&[text.as_bytes()]).into_iter().map(|(_, d)| String::from_utf8(d).unwrap()).collect()
    }

    #[test]
    fn the_grammar() {
        assert_eq!(datas("data: a\n\ndata:b\n\n"), ["a", "b"], "one space after the colon is not data");
        assert_eq!(datas("data:  a\n\n"), [" a"], "only one");
        assert_eq!(datas("data: a\r\n\r\ndata: b\r\rdata: c\n\n"), ["a", "b", "c"], "three line ends");
        assert_eq!(datas("data: a\ndata: b\n\n"), ["a\nb"], "several data lines");
        assert_eq!(datas(": keep-alive\n\ndata: a\n: in between\ndata: b\n\n"), ["a\nb"], "comments");
        assert_eq!(datas("\u{feff}data: a\n\n"), ["a"], "byte order mark in front");
        assert_eq!(datas("data: a\n\n\u{feff}data: b\n\n"), ["a"], "and only in front");
        assert_eq!(datas("event: x\n\ndata: a\n\n"), ["a"], "an event without data is dropped");
        assert_eq!(datas("data\n\n"), [""], "a field without a colon has no value");
        assert_eq!(datas("data: a\n\ndata: b\n"), ["a"], "an event without its blank line is dropped");
        assert_eq!(datas("id: 1\nretry: 5\nother: x\ndata: a\n\n"), ["a"], "other fields are ignored");
        let named = parse(&[b"event: error\ndata: a\n\ndata: b\n\n"]);
        assert_eq!(
            named,
            [(b"error".to_vec(), b"a".to_vec()), (Vec::new(), b"b".to_vec())],
            "a name is for one event"
        );
    }

    #[test]
    fn an_event_that_has_begun_is_seen() {
        let mut parser = Parser::default();
        assert!(!parser.is_inside_event());
        parser.feed(b"data: a", |_| {}).unwrap();
        assert!(parser.is_inside_event());
        parser.feed(b"\n", |_| {}).unwrap();
        assert!(parser.is_inside_event());
        parser.feed(b"\n", |_| {}).unwrap();
        assert!(!parser.is_inside_event());
    }

    #[test]
    fn the_bound_holds_over_lines_and_over_chunks() {
        let mut parser = Parser::with_limit(64);
        let mut fed = 0;
        let refused = loop {
            match parser.feed(b"xxxxxxxx", |_| {}) {
                Ok(()) => fed += 8,
                Err(e) => break e,
            }
            assert!(fed <= 64, "an endless line is refused");
        };
        assert_eq!(refused, TooLarge { limit: 64 });

        let mut parser = Parser::with_limit(64);
        let many: Vec<u8> = b"data: 123456\n".repeat(20);
        assert!(parser.feed(&many, |_| {}).is_err(), "many lines of one event are refused");

        let mut parser = Parser::with_limit(64);
        let mut events = 0;
        parser.feed(&b"data: 123456\n\n".repeat(1000), |_| events += 1).unwrap();
        assert_eq!(events, 1000, "many small events are not");
    }

    /// A second parser, written the slow way, over a whole text.
    fn by_the_book(text: &[u8]) -> Vec<Owned> {
        let text = text.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(text);
        let mut lines = vec![Vec::new()];
        let mut bytes = text.iter().copied().peekable();
        while let Some(b) = bytes.next() {
            match b {
                b'\r' => {
                    bytes.next_if_eq(&b'\n');
                    lines.push(Vec::new());
                }
                b'\n' => lines.push(Vec::new()),
                b => lines.last_mut().unwrap().push(b),
            }
        }
        lines.pop();
        let mut events = Vec::new();
        let (mut name, mut data): (Vec<u8>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
        for line in lines {
            if line.is_empty() {
                if !data.is_empty() {
                    events.push((name.clone(), data.join(&b'\n')));
                }
                name.clear();
                data.clear();
                continue;
            }
            let mut parts = line.splitn(2, |&b| b == b':');
            let field = parts.next().unwrap_or_default();
            let value = parts.next().unwrap_or_default();
            let value = if value.first() == Some(&b' ') { &value[1..] } else { value };
            match field {
                b"data" => data.push(value.to_vec()),
                b"event" => name = value.to_vec(),
                _ => {}
            }
        }
        events
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            4 => Just("data: ".to_owned()),
            1 => Just("data".to_owned()),
            1 => Just("event: ".to_owned()),
            1 => Just(": ".to_owned()),
            1 => Just(":".to_owned()),
            1 => Just("\u{feff}".to_owned()),
            4 => "[a-zé{}\": ]{0,12}",
            6 => prop_oneof![Just("\n"), Just("\r"), Just("\r\n"), Just("\n\n")].prop_map(str::to_owned),
        ];
        proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_events(text in stream(), cuts in proptest::collection::vec(1usize..9, 1..40)) {
            let expected = by_the_book(&text);
            let mut rest = text.as_slice();
            let mut chunks = Vec::new();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
                chunks.push(chunk);
                rest = tail;
            }
            prop_assert_eq!(&parse(&chunks), &expected);
            prop_assert_eq!(&parse(&[&text]), &expected);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = Parser::with_limit(50);
            let _ = parser.feed(&bytes, |_| {});
        }
    }
}
