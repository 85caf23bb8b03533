//! Sizes and durations as people write them: `"4GiB"`, `"512 MiB"`, `"30s"`, `"1h 30m"`.
//!
//! A unit is always demanded and only one family of size units is read: a card "with 4 GB" has 4 GiB, and a memory plan
//! that is 7 % off is worse than a question. What is refused comes back with what was probably meant.

use std::time::Duration;

use bytesize::ByteSize;
use jiff::fmt::friendly::{Designator, Spacing, SpanParser, SpanPrinter};

/// Why a text is no size or no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No unit.
    #[error("`{0}` has no unit")]
    NoUnit(String),
    /// A unit that is not read.
    #[error("`{unit}` is not a unit of {of}")]
    Unit {
        /// What was written.
        unit: String,
        /// `size` or `time`.
        of: &'static str,
        /// What was probably meant, whole.
        meant: Option<String>,
    },
    /// No number in front.
    #[error("`{0}` does not begin with a number")]
    NoNumber(String),
    /// Not representable.
    #[error("`{0}` is too large")]
    TooLarge(String),
    /// More bytes than a whole number of them.
    #[error("`{0}` is not a whole number of bytes")]
    Fraction(String),
    /// Anything else about a duration.
    #[error("`{0}` is not a duration")]
    Duration(String),
}

impl Error {
    /// What to write instead.
    pub fn help(&self) -> String {
        match self {
            Error::Unit { meant: Some(meant), .. } => format!("write \"{meant}\""),
            Error::Unit { of: "size", .. } => "sizes take B, KiB, MiB, GiB or TiB, as in \"4GiB\"".to_owned(),
            Error::NoUnit(_) | Error::NoNumber(_) | Error::TooLarge(_) | Error::Fraction(_) => {
                "write a number and a unit, as in \"4GiB\" or \"30s\"".to_owned()
            }
            Error::Unit { .. } | Error::Duration(_) => {
                "durations take ms, s, m, h or d, as in \"500ms\", \"30s\" or \"1h 30m\"".to_owned()
            }
        }
    }
}

const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a size.
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = trimmed.split_at(digits);
    let unit = unit.trim();
    if number.is_empty() || number.parse::<f64>().is_err() {
        return Err(Error::NoNumber(text.to_owned()));
    }
    if unit.is_empty() {
        return Err(Error::NoUnit(text.to_owned()));
    }
    let Some(&(_, factor)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        let first = unit.to_ascii_uppercase();
        let meant = SIZES
            .iter()
            .find(|(name, _)| name[..1] == first[..first.chars().next().map_or(0, char::len_utf8)])
            .filter(|_| {
                let rest = first.get(1..).unwrap_or("");
                matches!(rest, "" | "B" | "I" | "IB" | "YTE" | "YTES")
            });
        return Err(Error::Unit {
            unit: unit.to_owned(),
            of: "size",
            meant: meant.map(|(name, _)| format!("{number}{name}")),
        });
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor).ok_or_else(|| Error::TooLarge(text.to_owned())),
        Err(_) => fractional(number, factor, text),
    }
}

/// `1.5` × unit, exactly: the digits after the point are scaled as integers.
fn fractional(number: &str, factor: u64, text: &str) -> Result<u64, Error> {
    let too_large = || Error::TooLarge(text.to_owned());
    let Some((whole, part)) = number.split_once('.') else { return Err(too_large()) };
    if part.len() > 15 {
        return Err(Error::Fraction(text.to_owned()));
    }
    let read = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u128>() };
    let whole = read(whole).map_err(|_| too_large())?;
    let part_value = read(part).map_err(|_| Error::NoNumber(text.to_owned()))?;
    let scale = 10_u128.pow(u32::try_from(part.len()).unwrap_or(0));
    let numerator = whole
        .checked_mul(scale)
        .and_then(|n| n.checked_add(part_value))
        .and_then(|n| n.checked_mul(u128::from(factor)))
        .ok_or_else(too_large)?;
    if numerator % scale != 0 {
        return Err(Error::Fraction(text.to_owned()));
    }
    u64::try_from(numerator / scale).map_err(|_| too_large())
}

/// A size that [`parse_size`] reads back to the same bytes.
pub fn format_size(bytes: u64) -> String {
    let (name, factor) = SIZES
        .iter()
        .rev()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .unwrap_or(&SIZES[0]);
    format!("{}{name}", bytes / factor)
}

/// A size for people, rounded: `28.0 GiB`.
pub fn show_size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// Reads a duration.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let trimmed = text.trim();
    if !trimmed.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(Error::NoNumber(text.to_owned()));
    }
    if trimmed.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(Error::NoUnit(text.to_owned()));
    }
    // A day is taken as 24 hours: jiff leaves calendar units out of plain durations.
    if let Some(days) = trimmed.strip_suffix('d').map(str::trim_end)
        && let Ok(days) = days.parse::<u64>()
    {
        let seconds = days.checked_mul(86_400).ok_or_else(|| Error::TooLarge(text.to_owned()))?;
        return Ok(Duration::from_secs(seconds));
    }
    SpanParser::new().parse_unsigned_duration(trimmed).map_err(|_| {
        let unit = trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
        let number =
            &trimmed[..trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len()];
        let lower = unit.to_lowercase();
        let meant = ["ms", "s", "m", "h", "d"]
            .into_iter()
            .find(|name| lower == *name || (lower == "min." && *name == "m"))
            .map(|name| format!("{number}{name}"));
        if unit.chars().all(char::is_alphabetic) && !unit.is_empty() {
            Error::Unit { unit: unit.to_owned(), of: "time", meant }
        } else {
            Error::Duration(text.to_owned())
        }
    })
}

/// A duration that [`parse_duration`] reads back to the same nanosecond.
pub fn format_duration(duration: Duration) -> String {
    SpanPrinter::new()
        .designator(Designator::Compact)
        .spacing(Spacing::None)
        .unsigned_duration_to_string(&duration)
}
