//! Reads a parsed TOML document into raw types without stopping at the first mistake.
//!
//! serde stops at the first mistake, so the raw types are read by hand here. One declaration, [`section!`], says which
//! keys a table has, what type each takes and what it means; the reader, the list of known keys (for suggestions) and
//! the JSON schema all come out of it, so that they cannot disagree.
//!
//! A key that is there but unreadable is [`Field::Bad`]: its problem is already reported, and no later check may say
//! that the key is missing.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::Problems;

mod section;
mod values;

pub(super) use section::{Described, Section, join_doc, section, table_schema, words};
pub(super) use values::{OneOrMany, Size, Span, read_word};

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
