//! The types that a key may take, and how each is read and described.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use super::section::Described;
use super::{Field, FromToml, Located, Reading, as_table, list, nearest, read_field};
use crate::config::units;

/// A size in bytes, written with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) struct Size(pub(in crate::config) u64);

/// A duration, written with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) struct Span(pub(in crate::config) Duration);

/// One value, or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) struct OneOrMany<T>(pub(in crate::config) Vec<Located<T>>);

impl FromToml for String {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            reading.mismatch(value, span, "a text", "put it in quotation marks");
        }
        text
    }
}

impl FromToml for bool {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let flag = value.as_bool();
        if flag.is_none() {
            reading.mismatch(value, span, "true or false", "write true or false, without quotation marks");
        }
        flag
    }
}

fn read_integer<T: TryFrom<i128>>(
    value: &DeValue<'_>,
    span: &Range<usize>,
    reading: &mut Reading<'_>,
    (low, high): (i128, i128),
) -> Option<T> {
    let help = format!("write a whole number from {low} to {high}, without quotation marks");
    let Some(integer) = value.as_integer() else {
        reading.mismatch(value, span, "a whole number", &help);
        return None;
    };
    let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
    let fitting = number.filter(|n| (low..=high).contains(n)).and_then(|n| T::try_from(n).ok());
    if fitting.is_none() {
        let key = reading.key.clone();
        let message = format!("`{key}` is out of range");
        reading.problems.error("out_of_range", span, key, message).help(help);
    }
    fitting
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl FromToml for $ty {
            fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
                read_integer(value, span, reading, (i128::from(<$ty>::MIN), i128::from(<$ty>::MAX)))
            }
        }
    )*};
}
integers!(u16, u32, i32);

impl FromToml for f64 {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let number = match value {
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            DeValue::Integer(integer) => {
                i64::from_str_radix(integer.as_str(), integer.radix()).ok().map(|n| n as f64)
            }
            _ => None,
        };
        let finite = number.filter(|n| n.is_finite());
        if finite.is_none() {
            reading.mismatch(value, span, "a number", "write a number, without quotation marks");
        }
        finite
    }
}

impl FromToml for Size {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let Some(text) = value.as_str() else {
            let help = match value.as_integer() {
                Some(n) => format!("a bare number has no unit: write \"{n}GiB\", \"{n}MiB\" or \"{n}B\""),
                None => "write a number and a unit in quotation marks, as in \"4GiB\"".to_owned(),
            };
            reading.mismatch(value, span, "a size with its unit", &help);
            return None;
        };
        read_unit(units::parse_size(text), span, reading).map(Size)
    }
}

impl FromToml for Span {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let Some(text) = value.as_str() else {
            let help = match value.as_integer() {
                Some(n) => format!("a bare number has no unit: write \"{n}s\" or \"{n}ms\""),
                None => "write a number and a unit in quotation marks, as in \"30s\"".to_owned(),
            };
            reading.mismatch(value, span, "a duration with its unit", &help);
            return None;
        };
        read_unit(units::parse_duration(text), span, reading).map(Span)
    }
}

impl<T: FromToml> FromToml for OneOrMany<T> {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        match value {
            DeValue::Array(_) => Vec::from_toml(value, span, reading).map(OneOrMany),
            _ => T::from_toml(value, span, reading)
                .map(|value| OneOrMany(vec![Located { value, span: span.clone() }])),
        }
    }
}

fn read_unit<T>(
    result: Result<T, units::Error>,
    span: &Range<usize>,
    reading: &mut Reading<'_>,
) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let key = reading.key.clone();
            reading
                .problems
                .error("bad_unit", span, key.clone(), format!("`{key}`: {error}"))
                .help(error.help());
            None
        }
    }
}

impl<T: FromToml> FromToml for Vec<Located<T>> {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let Some(array) = value.as_array() else {
            let help = match value {
                DeValue::Table(_) => format!("write the header in double brackets: [[{}]]", reading.key),
                _ => "write it in brackets, as in [\"one\", \"two\"]".to_owned(),
            };
            reading.mismatch(value, span, "a list", &help);
            return None;
        };
        let mut out = Vec::with_capacity(array.len());
        let mut whole = true;
        for (i, item) in array.iter().enumerate() {
            let span = item.span();
            match reading.inside(&format!("[{i}]"), |reading| T::from_toml(item.get_ref(), &span, reading)) {
                Some(value) => out.push(Located { value, span }),
                None => whole = false,
            }
        }
        // Tables are kept although one of them is no table; a list of words with one unreadable word is unreadable.
        (whole || array.iter().any(|item| item.get_ref().is_table())).then_some(out)
    }
}

impl<T: FromToml> FromToml for BTreeMap<String, Located<T>> {
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self> {
        let table = as_table(value, span, reading)?;
        let mut out = BTreeMap::new();
        for (name, value) in table.iter() {
            if let Field::Given(located) = read_field(name.get_ref(), value, reading) {
                out.insert(name.get_ref().to_string(), located);
            }
        }
        Some(out)
    }
}

/// Reads one of a few words.
pub(in crate::config) fn read_word<T: Copy>(
    value: &DeValue<'_>,
    span: &Range<usize>,
    reading: &mut Reading<'_>,
    words: &[(&'static str, T)],
) -> Option<T> {
    let choices = list(words.iter().map(|(word, _)| *word));
    let Some(text) = value.as_str() else {
        reading.mismatch(value, span, "a word", &format!("use one of {choices}, in quotation marks"));
        return None;
    };
    let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let help = match nearest(text, words.iter().map(|(word, _)| *word)) {
            Some(meant) => format!("did you mean \"{meant}\"? Known are {choices}"),
            None => format!("use one of {choices}"),
        };
        let key = reading.key.clone();
        let message = format!("`{key}` cannot be \"{text}\"");
        reading.problems.error("unknown_word", span, key, message).help(help);
    }
    found
}

macro_rules! described_by_schemars {
    ($($ty:ty),*) => {$(
        impl Described for $ty {
            fn described(generator: &mut SchemaGenerator) -> Schema {
                <$ty as JsonSchema>::json_schema(generator)
            }
        }
    )*};
}
described_by_schemars!(String, bool, u16, u32, i32, f64);

impl Described for Size {
    fn described(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB|TiB)\s*$" })
    }
}

impl Described for Span {
    fn described(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^\s*[0-9].*[A-Za-zµ]\s*$" })
    }
}

impl<T: Described> Described for OneOrMany<T> {
    fn described(generator: &mut SchemaGenerator) -> Schema {
        let one = T::described(generator);
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }
}

impl<T: Described> Described for Vec<Located<T>> {
    fn described(generator: &mut SchemaGenerator) -> Schema {
        let items = T::described(generator);
        json_schema!({ "type": "array", "items": items })
    }
}

impl<T: Described> Described for BTreeMap<String, Located<T>> {
    fn described(generator: &mut SchemaGenerator) -> Schema {
        let values = T::described(generator);
        json_schema!({ "type": "object", "additionalProperties": values })
    }
}
