//! What is remembered of an engine for whoever asks how it is. Nothing here decides anything: decisions are the core's,
//! from its own state.

use hotbunk_core::effect::Note;

/// Why an engine that has run before has no process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// Somebody asked for it.
    Operator,
    /// A handoff left it so.
    Handoff,
    /// It should sleep and cannot: it is switched by restart.
    CannotSleep,
    /// Nobody had used it for long: its idle ladder.
    Idle,
    /// The node is paused for maintenance.
    Maintenance,
    /// The agent is stopping.
    Shutdown,
}

/// How a canary compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Whether the tokens were the recorded ones.
    pub matched: bool,
    /// When, epoch seconds.
    pub at: f64,
}

/// The memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// What was wrong with it last, a sentence.
    pub trouble: Option<String>,
    /// Why it stopped last.
    pub stopped: Option<Stopped>,
    /// How its canary compared last, in this life.
    pub canary: Option<Compared>,
    /// Requests running or waiting in it, at its last survey since it came to rest.
    pub in_flight: Option<u64>,
    /// Raised with each change of tier or condition: an answer to a question from before it is stale.
    pub changes: u64,
}

impl Seen {
    /// Takes in what the core says of this engine. `closing`: the agent is stopping.
    pub fn note(&mut self, note: &Note, closing: bool) {
        match note {
            Note::Incident { detail, .. } => self.trouble = Some(detail.clone()),
            Note::Transition { to, reason, .. } => {
                // Surveys are of engines at rest: what was counted before says nothing now.
                self.in_flight = None;
                self.changes += 1;
                if *to == "stopped" {
                    self.stopped = Some(match reason.as_str() {
                        _ if closing => Stopped::Shutdown,
                        "switch" | "wake" => Stopped::Handoff,
                        "start" | "repair" => Stopped::CannotSleep,
                        "idle" => Stopped::Idle,
                        "pause" => Stopped::Maintenance,
                        _ => Stopped::Operator,
                    });
                }
            }
            _ => {}
        }
    }

    /// A new life begins.
    pub fn spawned(&mut self) {
        (self.canary, self.in_flight) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotbunk_core::effect::Incident;
    use hotbunk_core::event::{Drain, Request};
    use hotbunk_core::ids::EngineId;

    fn transition(to: &'static str, reason: &str) -> Note {
        Note::Transition { engine: EngineId(0), from: "awake", to, reason: reason.to_owned() }
    }

    #[test]
    fn why_it_stopped() {
        let drain = Drain::default();
        let switch = Request::Switch { to: EngineId(1), strategy: None, leave: None, drain };
        let stop = Request::Stop { engine: EngineId(0), drain };
        let start = Request::Start { engine: EngineId(0), rehearse: None, awake: false };
        let cases = [
            (switch.verb(), false, Stopped::Handoff),
            (stop.verb(), false, Stopped::Operator),
            (stop.verb(), true, Stopped::Shutdown),
            (start.verb(), false, Stopped::CannotSleep),
            ("stopped by command", false, Stopped::Operator),
            (Request::Pause { tier: None, drain }.verb(), false, Stopped::Maintenance),
            ("idle", false, Stopped::Idle),
        ];
        for (reason, closing, expected) in cases {
            let mut seen = Seen::default();
            seen.note(&transition("moving", "an operation takes it"), closing);
            assert_eq!(seen.stopped, None);
            seen.note(&transition("stopped", reason), closing);
            assert_eq!(seen.stopped, Some(expected), "{reason}");
        }
    }

    #[test]
    fn the_last_trouble_stays_and_counts_do_not_outlive_the_rest() {
        let mut seen = Seen { in_flight: Some(3), ..Seen::default() };
        let crashed = |detail: &str| Note::Incident {
            incident: Incident::Crashed,
            engine: Some(EngineId(0)),
            device: None,
            detail: detail.to_owned(),
        };
        seen.note(&crashed("A: exited with code 1"), false);
        assert_eq!(seen.in_flight, Some(3), "an incident moves nothing");
        seen.note(&crashed("A: killed by SIGKILL"), false);
        seen.note(&transition("backoff", "its process is gone"), false);
        assert_eq!(seen.trouble.as_deref(), Some("A: killed by SIGKILL"));
        assert_eq!((seen.in_flight, seen.changes), (None, 1));
        seen.canary = Some(Compared { matched: true, at: 1.0 });
        seen.spawned();
        assert_eq!(seen.canary, None);
    }
}
