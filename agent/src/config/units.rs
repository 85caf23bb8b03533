//! Sizes and durations as people write them: `"4GiB"`, `"512 MiB"`, `"30s"`, `"1h 30m"`.
//!
//! A unit is always demanded and only one family of size units is read: a card "with 4 GB" has 4 GiB, and a memory plan
//! that is 7 % off is worse than a question. What is refused comes back with what was probably meant.

use std::time::Duration;

use bytesize::ByteSize;
use jiff::fmt::friendly::{Designator, Spacing, SpanParser, SpanPrinter};

/// What a text should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes.
    Size,
    /// Time.
    Duration,
}

impl Quantity {
    /// An example, and the units.
    fn usage(self) -> &'static str {
        match self {
            Quantity::Size => "write a number and B, KiB, MiB, GiB or TiB, as in \"4GiB\"",
            Quantity::Duration => {
                "write a number and ms, s, m, h or d, as in \"500ms\", \"30s\" or \"1h 30m\""
            }
        }
    }
}

/// Why a text is no size or no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` {reason}")]
pub struct Error {
    /// What was written.
    pub text: String,
    /// What it should have been.
    pub quantity: Quantity,
    /// What is wrong with it.
    pub reason: Reason,
    /// What was probably meant, whole.
    pub meant: Option<String>,
}

/// What is wrong with a size or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No unit.
    #[error("has no unit")]
    NoUnit,
    /// A unit that is not read.
    #[error("has an unknown unit")]
    Unit,
    /// No number in front.
    #[error("does not begin with a number")]
    NoNumber,
    /// Not representable.
    #[error("is too large")]
    TooLarge,
    /// A part of a byte.
    #[error("is not a whole number of bytes")]
    Fraction,
    /// Anything else.
    #[error("is no duration")]
    Malformed,
}

impl Error {
    fn new(text: &str, quantity: Quantity, reason: Reason) -> Self {
        Error { text: text.to_owned(), quantity, reason, meant: None }
    }

    fn meant(self, meant: Option<String>) -> Self {
        Error { meant, ..self }
    }

    /// What to write instead.
    pub fn help(&self) -> String {
        match &self.meant {
            Some(meant) => format!("write \"{meant}\""),
            None => self.quantity.usage().to_owned(),
        }
    }
}

const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a size.
///
/// # Errors
/// Anything but a number and one of the units B, KiB, MiB, GiB, TiB.
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let wrong = |reason| Error::new(text, Quantity::Size, reason);
    let (number, unit) = split_number(text);
    if number.parse::<f64>().is_err() {
        return Err(wrong(Reason::NoNumber));
    }
    if unit.is_empty() {
        return Err(wrong(Reason::NoUnit).meant(Some(format!("{number}GiB"))));
    }
    let Some(&(_, factor)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        let lower = unit.to_ascii_lowercase();
        let meant = SIZES.iter().find(|(name, _)| {
            let letter = &name[..1].to_ascii_lowercase();
            let rest = lower.strip_prefix(letter.as_str());
            rest.is_some_and(|rest| {
                matches!(rest, "" | "b" | "i" | "ib") || (*name == "B" && rest.starts_with("yte"))
            })
        });
        return Err(wrong(Reason::Unit).meant(meant.map(|(name, _)| format!("{number}{name}"))));
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor).ok_or_else(|| wrong(Reason::TooLarge)),
        Err(_) => fractional(number, factor).map_err(wrong),
    }
}

/// The number that a text begins with, and what follows it.
fn split_number(text: &str) -> (&str, &str) {
    let trimmed = text.trim();
    let rest = trimmed.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    (&trimmed[..trimmed.len() - rest.len()], rest.trim())
}

/// `1.5` × unit, exactly: the digits after the point are scaled as integers.
fn fractional(number: &str, factor: u64) -> Result<u64, Reason> {
    let (whole, part) = number.split_once('.').ok_or(Reason::TooLarge)?;
    if part.len() > 15 {
        return Err(Reason::Fraction);
    }
    let read = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u128>() };
    let whole = read(whole).map_err(|_| Reason::TooLarge)?;
    let part_value = read(part).map_err(|_| Reason::NoNumber)?;
    let scale = 10_u128.pow(u32::try_from(part.len()).unwrap_or(0));
    let numerator = whole
        .checked_mul(scale)
        .and_then(|n| n.checked_add(part_value))
        .and_then(|n| n.checked_mul(u128::from(factor)))
        .ok_or(Reason::TooLarge)?;
    if !numerator.is_multiple_of(scale) {
        return Err(Reason::Fraction);
    }
    u64::try_from(numerator / scale).map_err(|_| Reason::TooLarge)
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
///
/// # Errors
/// Anything but numbers with the units of jiff's friendly notation up to hours, or a whole number of days (24 hours).
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let wrong = |reason| Error::new(text, Quantity::Duration, reason);
    let trimmed = text.trim();
    let (number, unit) = split_number(text);
    if number.parse::<f64>().is_err() {
        return Err(wrong(Reason::NoNumber));
    }
    if unit.is_empty() {
        return Err(wrong(Reason::NoUnit).meant(Some(format!("{number}s"))));
    }
    // jiff leaves calendar units out of plain durations; here a day is 24 hours.
    if unit == "d"
        && let Ok(days) = number.parse::<u64>()
    {
        return days.checked_mul(86_400).map(Duration::from_secs).ok_or_else(|| wrong(Reason::TooLarge));
    }
    SpanParser::new().parse_unsigned_duration(trimmed).map_err(|_| {
        if !unit.chars().all(char::is_alphabetic) {
            return wrong(Reason::Malformed);
        }
        let lower = unit.to_lowercase();
        match ["ms", "s", "m", "h", "d"].into_iter().find(|name| *name == lower) {
            // The unit is right as it stands, so the number is not.
            Some(name) if name == unit => wrong(Reason::TooLarge),
            meant => wrong(Reason::Unit).meant(meant.map(|name| format!("{number}{name}"))),
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
