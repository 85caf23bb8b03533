//! Declarations of tables and words: struct, reader and schema in one.

use std::ops::Range;

use schemars::{Schema, SchemaGenerator, json_schema};

/// A type's part of the JSON schema. (A trait of ours, since words are types of other crates.)
pub(in crate::config) trait Described {
    /// The schema of one value.
    fn described(generator: &mut SchemaGenerator) -> Schema;
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
pub(in crate::config) use words;

/// Schema of a table, from its keys: name, documentation, schema, whether it must be there.
pub(in crate::config) fn table_schema(doc: &str, keys: Vec<(&'static str, String, Schema, bool)>) -> Schema {
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
pub(in crate::config) fn join_doc(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// A table declared by [`section!`].
pub(in crate::config) trait Section {
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
pub(in crate::config) use section;
