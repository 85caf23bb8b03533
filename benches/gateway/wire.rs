//! HTTP/1.1 as far as framing goes: where a head ends, and whether a body is whole.

/// How a message says where its body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After so many bytes.
    Length(usize),
    /// With an empty chunk.
    Chunked,
}

impl Framing {
    /// Whether these bytes hold the whole body. Trailers are not expected.
    pub(crate) fn is_whole(self, body: &[u8]) -> bool {
        match self {
            Framing::Length(bytes) => body.len() >= bytes,
            Framing::Chunked => body.ends_with(b"0\r\n\r\n"),
        }
    }
}

/// The first place of `needle`.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

/// Where the body begins, once the head is whole.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// How the body of this head is framed; no word of it is a body of no bytes.
pub(crate) fn framing(head: &[u8]) -> Framing {
    let mut lines = head.split(|b| *b == b'\n');
    let value = lines.find_map(|line| {
        let name = b"content-length:";
        let is_length = line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name);
        is_length.then(|| String::from_utf8_lossy(&line[name.len()..]).trim().parse().ok())
    });
    match value {
        Some(length) => Framing::Length(length.unwrap_or(0)),
        None if head.windows(7).any(|w| w.eq_ignore_ascii_case(b"chunked")) => Framing::Chunked,
        None => Framing::Length(0),
    }
}
