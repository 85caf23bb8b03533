//! What the gateway has to know of a form (`multipart/form-data`, how recordings are sent): its fields `model` and
//! `stream`. Files in it are skipped, not read.

use super::peek::{self, Peek};
use memchr::memmem;
use std::borrow::Cow;

/// A field is short; what is longer is a file.
const LONGEST_FIELD: usize = 4096;
/// A recording is no text; its length says little about its tokens.
const RECORDING_TOKENS: u64 = 1024;

/// Why a form says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// The content type has no boundary.
    #[error("the content type multipart/form-data has no boundary")]
    NoBoundary,
    /// The body is not what the content type says.
    #[error("the body is not a whole multipart form: {0}")]
    Malformed(&'static str),
    /// There is no such field.
    #[error("the form has no field `model`: name one of those that GET /v1/models lists")]
    NoModel,
}

/// Whether a content type is a form's.
pub(super) fn is_form(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default();
    media.trim().eq_ignore_ascii_case("multipart/form-data")
}

/// Looks into a form.
pub(super) fn peek<'a>(content_type: &str, body: &'a [u8]) -> Result<Peek<'a>, Error> {
    let boundary = boundary(content_type).ok_or(Error::NoBoundary)?;
    let delimiter = format!("--{boundary}");
    let between = format!("\r\n{delimiter}");
    let next = memmem::Finder::new(between.as_bytes());
    let mut rest = match body.strip_prefix(delimiter.as_bytes()) {
        Some(rest) => rest,
        // Text before the first part is allowed, and ignored.
        None => &body[after(&next, body).ok_or(Error::Malformed("its boundary is not there"))?..],
    };
    let (mut model, mut stream) = (None, false);
    loop {
        if rest.starts_with(b"--") {
            break;
        }
        let line = memmem::find(rest, b"\r\n").ok_or(Error::Malformed("it ends inside a boundary"))?;
        // From the line's end on, so that a part without headers begins with an empty line.
        let part = &rest[line..];
        let head =
            memmem::find(part, b"\r\n\r\n").ok_or(Error::Malformed("it ends inside a part's headers"))?;
        let content = &part[head + 4..];
        let end = next.find(content).ok_or(Error::Malformed("it ends inside a part"))?;
        let value = &content[..end];
        if value.len() <= LONGEST_FIELD {
            match name(&part[..head]) {
                Some(b"model") => model = std::str::from_utf8(value).ok(),
                Some(b"stream") => stream = std::str::from_utf8(value).is_ok_and(peek::is_yes),
                _ => {}
            }
        }
        rest = &content[end + between.len()..];
    }
    let model = Cow::Borrowed(model.ok_or(Error::NoModel)?);
    Ok(Peek { model, stream, prompt_tokens: RECORDING_TOKENS, answer_tokens: RECORDING_TOKENS })
}

fn after(finder: &memmem::Finder<'_>, text: &[u8]) -> Option<usize> {
    finder.find(text).map(|at| at + finder.needle().len())
}

fn boundary(content_type: &str) -> Option<&str> {
    content_type.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        let is_it = name.trim().eq_ignore_ascii_case("boundary") && (1..=70).contains(&bare.len());
        is_it.then_some(bare)
    })
}

/// The field's name, from a part's headers; none for a file.
fn name(headers: &[u8]) -> Option<&[u8]> {
    let mut lines = headers.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let disposition = lines.find_map(|line| {
        let colon = memchr::memchr(b':', line)?;
        line[..colon].eq_ignore_ascii_case(b"content-disposition").then(|| &line[colon + 1..])
    })?;
    let mut name = None;
    for parameter in disposition.split(|b| *b == b';').map(<[u8]>::trim_ascii) {
        let Some(equals) = memchr::memchr(b'=', parameter) else { continue };
        let (key, value) = (&parameter[..equals], &parameter[equals + 1..]);
        if key.eq_ignore_ascii_case(b"filename") || key.eq_ignore_ascii_case(b"filename*") {
            return None;
        }
        if key.eq_ignore_ascii_case(b"name") {
            let bare = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\""));
            name = Some(bare.unwrap_or(value));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "multipart/form-data; boundary=\"x-y\"";

    fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (head, value) in parts {
            out.extend_from_slice(
                format!("--x-y\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes(),
            );
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"--x-y--\r\n");
        out
    }

    #[test]
    fn its_model_is_found_among_files() {
        let body = form(&[
            ("name=\"file\"; filename=\"a.wav\"", b"RIFF\r\n\0\xff name=\"model\""),
            ("name=\"model\"; filename=\"model\"", b"a file"),
            ("name=\"model\"", b"whisper"),
            ("name=stream", b"True"),
        ]);
        let seen = peek(TYPE, &body).unwrap();
        assert_eq!((&*seen.model, seen.stream), ("whisper", true));
        assert!(is_form(TYPE) && is_form("Multipart/Form-Data;boundary=q") && !is_form("application/json"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(peek("multipart/form-data", b""), Err(Error::NoBoundary));
        assert_eq!(peek(TYPE, b"{}"), Err(Error::Malformed("its boundary is not there")));
        assert_eq!(peek(TYPE, &form(&[("name=\"file\"", b"x")])), Err(Error::NoModel));
        assert_eq!(peek(TYPE, &form(&[("name=\"model\"", &[0xff])])), Err(Error::NoModel));
    }

    proptest! {
        #[test]
        fn a_form_that_was_cut_off_is_malformed(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let body = form(&[("name=\"file\"; filename=f", &value), ("name=\"model\"", b"m")]);
            prop_assert_eq!(&*peek(TYPE, &body).unwrap().model, "m");
            for cut in 0..body.len() - 4 {
                prop_assert!(matches!(peek(TYPE, &body[..cut]), Err(Error::Malformed(_))), "cut at {}", cut);
            }
        }

        #[test]
        fn no_bytes_are_too_odd(body in prop::collection::vec(any::<u8>(), 0..80), of in ".{0,30}") {
            let _ = peek(&format!("multipart/form-data; {of}"), &body);
            let mut body = body;
            body.splice(0..0, *b"--x-y\r\n");
            let _ = peek(TYPE, &body);
        }
    }
}
