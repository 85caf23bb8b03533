//! The fixed words of the vocabulary, as they stand in requests, answers, configuration and metrics.

use crate::error::ErrorCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A word that is not in the list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not a {what}; use {allowed}", allowed = allowed.join(", "))]
pub struct UnknownWord {
    /// What was given.
    pub word: String,
    /// What was expected, a noun.
    pub what: &'static str,
    /// The words that exist.
    pub allowed: &'static [&'static str],
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];
            /// Every word, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(s: &str) -> Result<Self, UnknownWord> {
                match s {
                    $($word => Ok($name::$variant),)+
                    _ => Err(UnknownWord { word: s.to_owned(), what: $what, allowed: $name::WORDS }),
                }
            }
        }
    };
}

words! {
    /// Where an engine's state lives, from the quickest to serve to the slowest.
    Tier ("tier") {
        /// Weights and KV cache on the device, scheduler running.
        Awake = "awake",
        /// Weights on the device, KV cache released.
        Parked = "parked",
        /// Weights in host memory.
        Level1 = "level1",
        /// Weights on disk, process alive.
        Level2 = "level2",
        /// No process.
        Stopped = "stopped",
    }
}

words! {
    /// A handoff plan asked for by name.
    Strategy ("strategy") {
        /// The quickest order and tier that fit.
        Auto = "auto",
        /// The outgoing engine sleeps before the incoming one wakes.
        SleepFirst = "sleep-first",
        /// The incoming engine wakes and answers before the outgoing one sleeps.
        WakeFirst = "wake-first",
        /// Only the KV cache moves; the outgoing engine's weights stay on the device.
        Park = "park",
    }
}

words! {
    /// In which order a handoff moves memory.
    Order ("order") {
        /// The incoming engine wakes first.
        MakeBeforeBreak = "make-before-break",
        /// The outgoing engine sleeps first.
        BreakBeforeMake = "break-before-make",
    }
}

words! {
    /// What happens to the running requests of an engine that goes to sleep.
    Drain ("drain policy") {
        /// They are waited for until the deadline; then the operation is given up.
        Wait = "wait",
        /// They are frozen and go on when the engine wakes.
        Freeze = "freeze",
        /// They are aborted.
        Abort = "abort",
    }
}

words! {
    /// What kind of work an operation is.
    OperationKind ("kind of operation") {
        /// One engine to sleep, another to wake.
        Switch = "switch",
        /// One engine into a sleeping tier.
        Sleep = "sleep",
        /// One engine awake, beside what is awake.
        Wake = "wake",
        /// A process started.
        Start = "start",
        /// A process stopped.
        Stop = "stop",
        /// Stop and start.
        Restart = "restart",
        /// A failed engine may be started again.
        Reset = "reset",
        /// A repair begun by the agent itself.
        Repair = "repair",
        /// Every engine out of the way for maintenance.
        Pause = "pause",
        /// What served before maintenance serves again.
        Resume = "resume",
        /// A server that somebody else has started is taken over.
        Adopt = "adopt",
    }
}

words! {
    /// How far an operation or a cycle run has come.
    State ("state") {
        /// Accepted, waits for its turn.
        Queued = "queued",
        /// Steps are being done.
        Running = "running",
        /// Ended as asked for.
        Succeeded = "succeeded",
        /// Ended otherwise; `error` says how.
        Failed = "failed",
        /// Given up because somebody asked.
        Cancelled = "cancelled",
    }
}

impl State {
    /// Whether nothing more will happen.
    pub fn is_over(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }

    /// The state of something that ended, with an error or without.
    pub fn of_end(error: Option<ErrorCode>) -> State {
        match error {
            None => State::Succeeded,
            Some(ErrorCode::Cancelled) => State::Cancelled,
            Some(_) => State::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_serde_writes_and_what_is_parsed() {
        for tier in Tier::ALL {
            assert_eq!(serde_json::to_value(tier).unwrap(), tier.as_str());
            assert_eq!(tier.as_str().parse::<Tier>().unwrap(), *tier);
        }
        for strategy in Strategy::ALL {
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.as_str());
        }
    }

    #[test]
    fn an_unknown_word_lists_the_known_ones() {
        let error = "lvl1".parse::<Tier>().unwrap_err();
        assert_eq!(error.to_string(), "`lvl1` is not a tier; use awake, parked, level1, level2, stopped");
    }
}
