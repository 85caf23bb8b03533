//! What the gateway has to know of a JSON body: `model`, `stream`, and how large the work may be.
//!
//! The whole text is checked to be JSON, since a body that an engine cannot read had better not cause a switch. But
//! nothing is built of what does not matter: strings and numbers are skipped where they stand. A key that comes twice
//! counts as the last one does, as it does for Python's parser, which reads the body next.

use serde::Deserializer as _;
use serde::de::{self, Deserialize, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Bytes of a text for one token, roughly: an estimate for the token bucket, settled later from `usage`.
const BYTES_PER_TOKEN: u64 = 4;
/// What an answer is taken to need where the request does not bound it.
const USUAL_ANSWER_TOKENS: u64 = 256;
/// What an image or a recording is taken to need.
const ATTACHMENT_TOKENS: u64 = 1024;
/// A run of base64 that is longer is no text.
const LONGEST_WORD: usize = 1024;

/// What a body says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peek<'a> {
    /// `model`.
    pub model: Cow<'a, str>,
    /// `stream`.
    pub stream: bool,
    /// Of the prompt, roughly.
    pub prompt_tokens: u64,
    /// Of the answer, at most or as usual.
    pub answer_tokens: u64,
}

/// Why a body says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// No JSON.
    #[error("the body is not valid JSON: {0}")]
    Malformed(String),
    /// JSON, but no object.
    #[error("the body must be a JSON object, not {0}")]
    NotAnObject(&'static str),
    /// An object without a model.
    #[error("the body has no `model`: name one of those that GET /v1/models lists")]
    NoModel,
    /// A model that is no text.
    #[error("`model` must be a string, not {0}")]
    ModelNotText(&'static str),
}

/// Looks into a body.
pub(super) fn peek(body: &[u8]) -> Result<Peek<'_>, Error> {
    let malformed = |e: serde_json::Error| Error::Malformed(e.to_string());
    let mut json = serde_json::Deserializer::from_slice(body);
    let top = json.deserialize_any(TopVisitor).map_err(malformed)?;
    json.end().map_err(malformed)?;
    let top = top.map_err(Error::NotAnObject)?;
    let model = match top.model {
        None | Some(Value::Other("null")) => return Err(Error::NoModel),
        Some(Value::Text(model)) => model,
        Some(other) => return Err(Error::ModelNotText(other.kind())),
    };
    let answer_tokens = top.limits.into_iter().flatten().max().unwrap_or(USUAL_ANSWER_TOKENS);
    Ok(Peek { model, stream: top.stream, prompt_tokens: prompt_tokens(body), answer_tokens })
}

/// Tokens of all text in a body, roughly. Attachments count as attachments, not as text.
pub(super) fn prompt_tokens(body: &[u8]) -> u64 {
    let bytes = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    if body.len() <= LONGEST_WORD {
        return bytes(body.len()) / BYTES_PER_TOKEN;
    }
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_' | b'=');
    let (mut text, mut attachments) = (0u64, 0u64);
    for run in body.split(|b| !is_base64(*b)) {
        if run.len() > LONGEST_WORD {
            attachments += 1;
        } else {
            text = text.saturating_add(bytes(run.len()) + 1);
        }
    }
    (text / BYTES_PER_TOKEN).saturating_add(attachments.saturating_mul(ATTACHMENT_TOKENS))
}

/// Whether a form's field or a JSON value says yes, as vLLM's parser reads it.
pub(super) fn is_yes(text: &str) -> bool {
    ["true", "1", "on", "yes", "t", "y"].iter().any(|yes| text.trim().eq_ignore_ascii_case(yes))
}

#[derive(Default)]
struct Top<'a> {
    model: Option<Value<'a>>,
    stream: bool,
    /// `max_tokens`, `max_completion_tokens`, `max_output_tokens`.
    limits: [Option<u64>; 3],
}

/// `Err` is the kind of what is no object.
type Outcome<'a> = Result<Top<'a>, &'static str>;

struct TopVisitor;

impl<'de> Visitor<'de> for TopVisitor {
    type Value = Outcome<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut top = Top::default();
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Model => top.model = Some(map.next_value()?),
                Key::Stream => top.stream = map.next_value::<Value<'de>>()?.is_yes(),
                Key::Limit(at) => top.limits[at] = map.next_value::<Value<'de>>()?.whole(),
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Ok(top))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err("an array"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Err("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Err("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Err("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Err("a number"))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Err("a string"))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Err("null"))
    }
}

/// A key that matters, or one that does not.
enum Key {
    Model,
    Stream,
    Limit(usize),
    Other,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(match key {
                    "model" => Key::Model,
                    "stream" => Key::Stream,
                    "max_tokens" => Key::Limit(0),
                    "max_completion_tokens" => Key::Limit(1),
                    "max_output_tokens" => Key::Limit(2),
                    _ => Key::Other,
                })
            }
        }
        from.deserialize_identifier(KeyVisitor)
    }
}

/// A value of one of those keys.
enum Value<'a> {
    Text(Cow<'a, str>),
    Bool(bool),
    Whole(u64),
    Other(&'static str),
}

impl Value<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Bool(_) => "a boolean",
            Value::Whole(_) => "a number",
            Value::Other(kind) => kind,
        }
    }

    fn is_yes(&self) -> bool {
        match self {
            Value::Bool(yes) => *yes,
            Value::Whole(n) => *n == 1,
            Value::Text(text) => is_yes(text),
            Value::Other(_) => false,
        }
    }

    fn whole(&self) -> Option<u64> {
        if let Value::Whole(n) = self { Some(*n) } else { None }
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ValueVisitor;
        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_bool<E>(self, yes: bool) -> Result<Value<'de>, E> {
                Ok(Value::Bool(yes))
            }

            fn visit_u64<E>(self, n: u64) -> Result<Value<'de>, E> {
                Ok(Value::Whole(n))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Value<'de>, E> {
                Ok(Value::Other("a number"))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
                Ok(Value::Other("a number"))
            }

            fn visit_unit<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Other("null"))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Value::Other("an array"))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Value::Other("an object"))
            }
        }
        from.deserialize_any(ValueVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn model(body: &str) -> Result<String, Error> {
        peek(body.as_bytes()).map(|p| p.model.into_owned())
    }

    #[test]
    fn model_stream_and_size() {
        let seen = peek(br#"{"messages":[{"x":1}],"stream":true,"max_tokens":7,"model":"a/b"}"#).unwrap();
        assert_eq!((&*seen.model, seen.stream), ("a/b", true));
        assert!(matches!(seen.model, Cow::Borrowed(_)), "nothing was copied");
        assert_eq!((seen.answer_tokens, seen.prompt_tokens), (7, 65 / 4));
        let seen = peek(br#"{"model":"\u0061\"b","stream":"on"}"#).unwrap();
        assert_eq!((&*seen.model, seen.stream), ("a\"b", true));
        assert_eq!(seen.answer_tokens, USUAL_ANSWER_TOKENS);
        assert_eq!(model(r#"{"model":"first","model":"last"}"#).unwrap(), "last");
        assert!(!peek(br#"{"model":"a","stream":null}"#).unwrap().stream);
        assert!(!peek(br#"{"model":"a","stream":[true]}"#).unwrap().stream);
        assert!(peek(br#"{"model":"a","stream":1}"#).unwrap().stream);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for body in
            ["", " ", "{", r#"{"model":"a""#, r#"{"model":"a"} x"#, r#"{"model":"a",}"#, "nonsense", "NaN"]
        {
            assert!(matches!(model(body), Err(Error::Malformed(_))), "{body}: {:?}", model(body));
        }
        assert_eq!(model("[1,{}]"), Err(Error::NotAnObject("an array")));
        assert_eq!(model("\"model\""), Err(Error::NotAnObject("a string")));
        assert_eq!(model("null"), Err(Error::NotAnObject("null")));
        assert_eq!(model("{}"), Err(Error::NoModel));
        assert_eq!(model(r#"{"model":null}"#), Err(Error::NoModel));
        assert_eq!(model(r#"{"nested":{"model":"a"}}"#), Err(Error::NoModel));
        for (value, kind) in
            [("1", "a number"), ("-1.5", "a number"), ("true", "a boolean"), ("[\"a\"]", "an array")]
        {
            assert_eq!(model(&format!("{{\"model\":{value}}}")), Err(Error::ModelNotText(kind)));
        }
        assert_eq!(model(r#"{"model":{"model":"a"}}"#), Err(Error::ModelNotText("an object")));
    }

    #[test]
    fn depth_is_no_danger() {
        let deep = format!("{{\"x\":{}{},\"model\":\"a\"}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(model(&deep).unwrap(), "a");
    }

    #[test]
    fn attachments_are_not_counted_as_text() {
        let image = "A".repeat(4_000_000);
        let body = json!({"model": "m", "max_tokens": 1, "messages": [{"image_url": {"url": format!("data:image/png;base64,{image}")}}]});
        let seen = prompt_tokens(body.to_string().as_bytes());
        assert!((ATTACHMENT_TOKENS..ATTACHMENT_TOKENS + 100).contains(&seen), "{seen}");
        // Text without spaces stays text.
        let text = "水".repeat(4_000);
        assert!(prompt_tokens(text.as_bytes()) >= 3_000);
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map("model|stream|max_tokens|[a-z\"\\\\]{0,4}", inner, 0..6)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// It sees what a whole parse sees, of any JSON.
        #[test]
        fn it_agrees_with_a_whole_parse(value in any_json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let seen = peek(text.as_bytes());
            match (value.as_object(), value.get("model")) {
                (None, _) => prop_assert!(matches!(seen, Err(Error::NotAnObject(_)))),
                (_, None | Some(serde_json::Value::Null)) => prop_assert_eq!(seen, Err(Error::NoModel)),
                (_, Some(serde_json::Value::String(model))) => {
                    let seen = seen.unwrap();
                    prop_assert_eq!(&*seen.model, model);
                    let stream = value.get("stream");
                    if let Some(yes) = stream.and_then(serde_json::Value::as_bool) {
                        prop_assert_eq!(seen.stream, yes);
                    }
                }
                _ => prop_assert!(matches!(seen, Err(Error::ModelNotText(_)))),
            }
        }

        /// A body that was cut off is malformed wherever it was cut.
        #[test]
        fn every_truncation_is_malformed(value in any_json(), model in "[a-z]{1,8}") {
            let mut value = serde_json::json!({ "x": value, "model": model, "stream": true });
            value["y"] = "é\"\\".into();
            let text = serde_json::to_vec(&value).unwrap();
            for cut in 0..text.len() {
                prop_assert!(matches!(peek(&text[..cut]), Err(Error::Malformed(_))), "cut at {}", cut);
            }
            prop_assert_eq!(&*peek(&text).unwrap().model, &model);
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = peek(&bytes);
        }
    }
}
