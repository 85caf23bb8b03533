//! Server-sent events: the same events under every chunking, and those that the grammar says.

use hotbunk_measure::sse::Parser;

/// One event: its name and its data.
type Owned = (Vec<u8>, Vec<u8>);

/// Small, so that inputs reach it.
const LIMIT: usize = 96;

/// The first byte says how the rest is cut.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&cut, text)) = bytes.split_first() else { return };
    let expected = by_the_book(text);
    let step = usize::from(cut % 16) + 1;
    assert_eq!(parse(text, step, usize::MAX), (expected.clone(), true), "cut into pieces of {step}");
    assert_eq!(parse(text, text.len().max(1), usize::MAX), (expected.clone(), true), "uncut");
    let (events, whole) = parse(text, step, LIMIT);
    assert!(expected.starts_with(&events), "a bound changes no event before it strikes");
    assert!(!whole || events.len() == expected.len(), "a bound that did not strike hides none");
    assert!(events.iter().all(|(name, data)| name.len() + data.len() <= LIMIT), "larger than the bound");
}

/// The events, and whether the bound was kept.
fn parse(text: &[u8], step: usize, limit: usize) -> (Vec<Owned>, bool) {
    let mut parser = Parser::with_limit(limit);
    let mut events = Vec::new();
    for chunk in text.chunks(step) {
        if parser.feed(chunk, |e| events.push((e.name.to_vec(), e.data.to_vec()))).is_err() {
            return (events, false);
        }
    }
    (events, true)
}

/// The grammar written down the slow way, over the whole text.
fn by_the_book(text: &[u8]) -> Vec<Owned> {
    let text = text.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(text);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut rest = text.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte == b'\r' || byte == b'\n' {
            if byte == b'\r' {
                rest.next_if_eq(&b'\n');
            }
            lines.push(std::mem::take(&mut line));
        } else {
            line.push(byte);
        }
    }
    // A line that never ended is none.
    let (mut events, mut name, mut data) = (Vec::new(), Vec::new(), Vec::<Vec<u8>>::new());
    for line in lines {
        if line.is_empty() {
            if !data.is_empty() {
                events.push((name.clone(), data.join(&b'\n')));
            }
            name.clear();
            data.clear();
            continue;
        }
        let (field, value) = match line.iter().position(|&b| b == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line.as_slice(), [].as_slice()),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => data.push(value.to_vec()),
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    events
}
