//! Typed values on the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use hotbunk_api::operation::MAX_DEADLINE_S;
use hotbunk_api::words::{Drain, Strategy, Tier, UnknownWord};

/// A strategy's word.
pub(crate) fn strategy() -> impl TypedValueParser<Value = Strategy> {
    PossibleValuesParser::new(Strategy::WORDS).try_map(|word| word.parse::<Strategy>())
}

/// A drain policy's word.
pub(crate) fn drain() -> impl TypedValueParser<Value = Drain> {
    PossibleValuesParser::new(Drain::WORDS).try_map(|word| word.parse::<Drain>())
}

/// A tier that an engine can be left in.
pub(crate) fn leave() -> impl TypedValueParser<Value = Tier> {
    PossibleValuesParser::new(["parked", "level1", "level2", "stopped"]).try_map(parse_tier)
}

/// A tier that an engine can sleep in.
pub(crate) fn sleep_tier() -> impl TypedValueParser<Value = Tier> {
    PossibleValuesParser::new(["parked", "level1", "level2"]).try_map(parse_tier)
}

fn parse_tier(word: String) -> Result<Tier, UnknownWord> {
    word.parse()
}

/// A duration with its unit, as seconds: `30s`, `1m 30s`, `500ms`.
///
/// # Errors
/// A sentence.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().is_ok();
    let parsed = text.parse::<jiff::SignedDuration>();
    match parsed {
        _ if number => Err(format!("it needs a unit: `{text}s`?")),
        Err(_) => Err("it is not a duration: use for example 30s, 1m30s or 500ms".to_owned()),
        Ok(d) if d.is_negative() || d.as_secs_f64() > MAX_DEADLINE_S => {
            Err("it must lie between 0s and 24h".to_owned())
        }
        Ok(d) => Ok(d.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_their_unit() {
        assert_eq!(duration("30s"), Ok(30.0));
        assert_eq!(duration("1m30s"), Ok(90.0));
        assert_eq!(duration("500ms"), Ok(0.5));
        assert!(duration("30").unwrap_err().contains("`30s`"));
        for bad in ["", "soon", "-3s", "25h", "NaN"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
