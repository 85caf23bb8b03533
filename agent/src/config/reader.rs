//! Reads a parsed TOML document into raw types without stopping at the first mistake.
//!
//! serde stops at the first mistake, so the raw types are read by hand here. One declaration, [`section!`], says which
//! keys a table has, what type each takes and what it means; the reader, the list of known keys (for suggestions) and
//! the JSON schema all come out of it, so that they cannot disagree.
//!
//! A key that is there but unreadable is [`Field::Bad`]: its problem is already reported, and no later check may say
//! that the key is missing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::Problems;
use super::units;

/// A value with its place, in bytes of the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// What became of a key.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Field<T> {
    /// It is not there.
    #[default]
    Absent,
    /// It is there and wrong; the problem is reported.
    Bad,
    /// It is there.
    Given(Located<T>),
}

impl<T> Field<T> {
    /// The value with its place.
    pub(super) fn located(&self) -> Option<&Located<T>> {
        match self {
            Field::Given(located) => Some(located),
            Field::Absent | Field::Bad => None,
        }
    }

    /// The value.
    pub(super) fn get(&self) -> Option<&T> {
        self.located().map(|located| &located.value)
    }

    /// A copy of the value, or `default`.
    pub(super) fn or(&self, default: T) -> T
    where
        T: Clone,
    {
        self.get().cloned().unwrap_or(default)
    }

    /// Whether the key is not there at all.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Field::Absent)
    }
}

/// A size in bytes, written with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

/// A duration, written with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

/// One value, or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OneOrMany<T>(pub(super) Vec<Located<T>>);

/// What the reader knows while it walks: where it is and where problems go.
pub(super) struct Reading<'a> {
    pub(super) problems: &'a mut Problems,
    pub(super) key: String,
}

impl Reading<'_> {
    fn inside<R>(&mut self, suffix: &str, f: impl FnOnce(&mut Reading<'_>) -> R) -> R {
        let key = if self.key.is_empty() || suffix.starts_with('[') {
            format!("{}{suffix}", self.key)
        } else {
            format!("{}.{suffix}", self.key)
        };
        f(&mut Reading { problems: self.problems, key })
    }

    /// Reports a value of the wrong type.
    fn mismatch(&mut self, value: &DeValue<'_>, span: &Range<usize>, wanted: &str, help: &str) {
        let message = format!("`{}` takes {wanted}, not {}", self.key, article(value));
        self.problems.error("wrong_type", span, self.key.clone(), message).help(help);
    }

    /// Reports a key that this table does not have. `known` are those that it has.
    pub(super) fn unknown_key(&mut self, name: &str, span: &Range<usize>, known: &[&str]) {
        let place = if self.key.is_empty() { "the file".to_owned() } else { format!("`{}`", self.key) };
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}.{name}", self.key) };
        let help = match nearest(name, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known keys are {}", list(known.iter().copied())),
        };
        let message = format!("{place} has no key `{name}`");
        self.problems.error("unknown_key", span, key, message).label("unknown key").help(help);
    }
}

/// A type that a TOML value can be read into.
pub(super) trait FromToml: Sized {
    /// Reads it, or reports why not.
    fn from_toml(value: &DeValue<'_>, span: &Range<usize>, reading: &mut Reading<'_>) -> Option<Self>;
}

/// Reads one key of a table.
pub(super) fn read_field<T: FromToml>(
    name: &str,
    value: &Spanned<DeValue<'_>>,
    reading: &mut Reading<'_>,
) -> Field<T> {
    let span = value.span();
    reading.inside(name, |reading| match T::from_toml(value.get_ref(), &span, reading) {
        Some(value) => Field::Given(Located { value, span }),
        None => Field::Bad,
    })
}

/// The table, or a report that the value is none.
pub(super) fn as_table<'v, 'i>(
    value: &'v DeValue<'i>,
    span: &Range<usize>,
    reading: &mut Reading<'_>,
) -> Option<&'v DeTable<'i>> {
    let table = value.as_table();
    if table.is_none() {
        reading.mismatch(value, span, "a table", "write its keys below a header in brackets");
    }
    table
}

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
pub(super) fn read_word<T: Copy>(
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

/// Declares a type that is written as one of a few words.
macro_rules! words {
    ($ty:ty, [$($word:literal => $value:expr),* $(,)?]) => {
        impl $crate::config::reader::FromToml for $ty {
            fn from_toml(
                value: &toml::de::DeValue<'_>,
                span: &std::ops::Range<usize>,
                reading: &mut $crate::config::reader::Reading<'_>,
            ) -> Option<Self> {
                $crate::config::reader::read_word(value, span, reading, &[$(($word, $value)),*])
            }
        }
        impl $crate::config::reader::Described for $ty {
            fn described(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($word),*] })
            }
        }
    };
}
pub(super) use words;

/// A type's part of the JSON schema. (A trait of ours, since words are types of other crates.)
pub(super) trait Described {
    /// The schema of one value.
    fn described(generator: &mut SchemaGenerator) -> Schema;
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

/// Schema of a table, from its keys: name, documentation, schema, whether it must be there.
pub(super) fn table_schema(doc: &str, keys: Vec<(&'static str, String, Schema, bool)>) -> Schema {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    for (name, doc, mut schema, must) in keys {
        if !doc.is_empty() {
            schema.insert("description".to_owned(), doc.into());
        }
        properties.insert(name.to_owned(), schema.to_value());
        if must {
            required.push(name);
        }
    }
    let mut schema = json_schema!({
        "type": "object",
        "description": doc,
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema
}

/// Joins the lines of a documentation comment.
pub(super) fn join_doc(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A table declared by [`section!`].
pub(super) trait Section {
    /// Its keys that are there and readable, each with its value's place.
    fn given(&self) -> Vec<(&'static str, &Range<usize>)>;
}

/// Declares a table: its struct, its reader and its schema. `key (required): Type` must be there.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        struct $name:ident { $( $(#[doc = $key_doc:literal])* $key:ident $(($must:ident))? : $ty:ty ),* $(,)? }
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub(super) struct $name { $( $(#[doc = $key_doc])* pub(super) $key: $crate::config::reader::Field<$ty> ),* }

        impl $name {
            /// Every key that the table has.
            pub(super) const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];
        }

        impl $crate::config::reader::FromToml for $name {
            fn from_toml(
                value: &toml::de::DeValue<'_>,
                span: &std::ops::Range<usize>,
                reading: &mut $crate::config::reader::Reading<'_>,
            ) -> Option<Self> {
                let table = $crate::config::reader::as_table(value, span, reading)?;
                Some(Self::from_table(table, reading))
            }
        }

        impl $name {
            /// Reads every key of the table and reports those that it does not have.
            pub(super) fn from_table(
                table: &toml::de::DeTable<'_>,
                reading: &mut $crate::config::reader::Reading<'_>,
            ) -> Self {
                let mut out = Self::default();
                for (name, value) in table.iter() {
                    match name.get_ref().as_ref() {
                        $(stringify!($key) => {
                            out.$key = $crate::config::reader::read_field(stringify!($key), value, reading);
                        })*
                        other => reading.unknown_key(other, &name.span(), Self::KEYS),
                    }
                }
                out
            }
        }

        impl $crate::config::reader::Section for $name {
            fn given(&self) -> Vec<(&'static str, &std::ops::Range<usize>)> {
                [$((stringify!($key), self.$key.located().map(|value| &value.span))),*]
                    .into_iter()
                    .filter_map(|(key, span)| Some((key, span?)))
                    .collect()
            }
        }

        impl $crate::config::reader::Described for $name {
            fn described(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let keys = vec![$((
                    stringify!($key),
                    $crate::config::reader::join_doc(&[$($key_doc),*]),
                    <$ty as $crate::config::reader::Described>::described(generator),
                    false $(|| stringify!($must) == "required")?,
                )),*];
                $crate::config::reader::table_schema(&$crate::config::reader::join_doc(&[$($doc),*]), keys)
            }
        }
    };
}
pub(super) use section;

/// The known word that was probably meant.
pub(super) fn nearest<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let folded = word.to_lowercase().replace('-', "_");
    // Very long words are compared with nothing: the distance costs the product of the lengths.
    if folded.len() > 64 {
        return None;
    }
    known
        .map(|candidate| {
            (strsim::damerau_levenshtein(&folded, &candidate.to_lowercase().replace('-', "_")), candidate)
        })
        .filter(|(distance, candidate)| *distance <= candidate.len() / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `a, b and c`
pub(super) fn list<'k>(words: impl Iterator<Item = &'k str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.as_slice() {
        [] => "none".to_owned(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

fn article(value: &DeValue<'_>) -> Cow<'static, str> {
    match value {
        DeValue::String(text) => {
            Cow::Owned(format!("the text \"{}\"", text.chars().take(60).collect::<String>()))
        }
        DeValue::Integer(n) => {
            Cow::Owned(format!("the number {}", n.as_str().chars().take(60).collect::<String>()))
        }
        DeValue::Float(n) => {
            Cow::Owned(format!("the number {}", n.as_str().chars().take(60).collect::<String>()))
        }
        DeValue::Boolean(flag) => Cow::Owned(format!("{flag}")),
        DeValue::Datetime(_) => Cow::Borrowed("a date"),
        DeValue::Array(_) => Cow::Borrowed("a list"),
        DeValue::Table(_) => Cow::Borrowed("a table"),
    }
}
