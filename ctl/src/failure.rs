//! How a command fails: one line, and an exit code.

use crate::context::{Awaited, AwaitedKind, Context};
use crate::output::note;
use crate::place;
use hotbunk_api::client::Error;
use hotbunk_api::error::{ApiError, ErrorBody, ErrorCode, ExitCode};
use std::io;
use std::io::Write;
use std::path::Path;

/// Why a command did not succeed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    exit: ExitCode,
    /// The API's code, or one of `ctl`'s own.
    code: String,
    message: String,
    help: Option<String>,
    /// As the agent said it.
    api: Option<Box<ApiError>>,
    /// Whether the data on stdout says it already.
    told: bool,
    /// The name that was asked for, in case the agent does not know it.
    asked_name: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: ExitCode, code: &str, message: impl Into<String>) -> Self {
        Failure {
            exit,
            code: code.to_owned(),
            message: message.into(),
            help: None,
            api: None,
            told: false,
            asked_name: None,
        }
    }

    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// An operation or run that was accepted and failed: its JSON has been written, so no second document follows.
    pub(crate) fn of_resource(what: &str, error: Option<&ApiError>, note: Option<&str>) -> Self {
        let (exit, code) =
            error.map_or((ExitCode::Failed, "failed"), |e| (e.code.exit_code(), e.code.as_str()));
        let why = error.map_or_else(String::new, |e| format!(": {}", e.message));
        let note = note.map_or_else(String::new, |n| format!(" ({n})"));
        let mut failure = Failure::new(exit, code, format!("{what}{why}{note}"));
        failure.help = error.and_then(|e| e.help.clone());
        failure.already_told()
    }

    /// The data on stdout says it already: no second JSON document follows.
    #[must_use]
    pub(crate) fn already_told(mut self) -> Self {
        self.told = true;
        self
    }

    /// Ctrl-C. Where nothing is left behind there is nothing to say: that is how `--watch` and `--follow` end.
    pub(crate) fn interrupted(awaited: Option<Awaited>) -> Self {
        let failure = |message: String| Failure::new(ExitCode::Interrupted, "interrupted", message);
        let Some(Awaited { kind, id, accepted }) = awaited else {
            return failure(String::new()).already_told();
        };
        let (what, help) = match kind {
            AwaitedKind::Operation => (format!("operation {id}"), "`ctl status` shows it".to_owned()),
            AwaitedKind::Run => (
                format!("cycle run {id}"),
                format!("`ctl cycle show {id}` shows it, `ctl cycle cancel {id}` ends it"),
            ),
        };
        if accepted {
            failure(format!("interrupted; {what} goes on")).help(help)
        } else {
            failure(format!("interrupted before the agent had answered; {what} may go on")).help(help)
        }
    }

    /// The agent may have accepted what was asked for, but its answer was lost. Under the same id it can be asked for
    /// again without doing it twice.
    #[must_use]
    pub(crate) fn while_asking(mut self, id: &str) -> Self {
        if self.exit == ExitCode::OutcomeUnknown {
            self.help = Some(format!("the same command with `--id {id}` asks again without doing it twice"));
        }
        self
    }

    /// The agent went away, or did not answer, after it had accepted something.
    #[must_use]
    pub(crate) fn while_waiting(mut self, what: &str) -> Self {
        if matches!(self.exit, ExitCode::Unreachable | ExitCode::OutcomeUnknown) {
            self.exit = ExitCode::OutcomeUnknown;
            self.message = format!("how {what} ended is not known: {}", self.message);
            self.help = Some("when the agent is back, `ctl status` and `ctl journal` tell".to_owned());
        }
        self
    }

    /// Remembers the engine that was asked for, so that a similar name can be suggested.
    #[must_use]
    pub(crate) fn asked_for(mut self, name: &str) -> Self {
        self.asked_name = Some(name.to_owned());
        self
    }

    /// Adds the name that was probably meant.
    pub(crate) async fn with_suggestions(mut self, context: &Context) -> Self {
        let (Some(asked), Some(api), Ok(client)) = (&self.asked_name, &self.api, context.client()) else {
            return self;
        };
        let known: Vec<String> = match api.code {
            ErrorCode::UnknownEngine => match client.status().await {
                Ok(status) => status.engines.into_iter().map(|e| e.name).collect(),
                Err(_) => return self,
            },
            ErrorCode::UnknownPlan => match client.cycles().await {
                Ok(cycles) => cycles.plans.into_iter().map(|p| p.name).collect(),
                Err(_) => return self,
            },
            _ => return self,
        };
        if let Some(close) = closest(asked, &known) {
            let meant = format!("did you mean `{close}`?");
            self.help = Some(self.help.map_or(meant.clone(), |help| format!("{help}; {meant}")));
        }
        self
    }

    /// What went wrong, a sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The exit code, before anything is said.
    pub(crate) fn exit_code(&self) -> ExitCode {
        self.exit
    }

    /// Says it and gives the exit code.
    pub(crate) fn report(self, json: bool) -> ExitCode {
        if !self.message.is_empty() {
            let help = self.help.as_deref().map_or_else(String::new, |help| format!("; {help}"));
            note(format!("ctl: {}{help}", self.message));
        }
        if json && !self.told {
            let document = match self.api {
                Some(error) => serde_json::to_string_pretty(&ErrorBody { error: *error }),
                None => serde_json::to_string_pretty(&serde_json::json!({
                    "error": { "code": self.code, "message": self.message, "help": self.help },
                })),
            };
            if let Ok(document) = document {
                drop(writeln!(io::stdout(), "{document}"));
            }
        }
        self.exit
    }
}

/// The known name that is nearest to what was asked for, if it is near.
fn closest<'a>(asked: &str, known: &'a [String]) -> Option<&'a str> {
    if let Some(same) = known.iter().find(|name| name.eq_ignore_ascii_case(asked)) {
        return Some(same);
    }
    let near = known.iter().map(|name| (strsim::osa_distance(asked, name), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may differ; a one-letter name is never near to another.
    (distance * 3 <= name.chars().count().max(asked.chars().count())).then_some(name)
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let mut failure = Failure::new(error.code.exit_code(), error.code.as_str(), error.message.clone());
        let again = error.retry_after_s.map(|s| format!("try again in {}", crate::human::seconds(s)));
        failure.help = match (error.help.clone(), again) {
            (Some(help), Some(again)) => Some(format!("{help}; {again}")),
            (help, again) => help.or(again),
        };
        failure.api = Some(Box::new(error));
        failure
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Api(error) => error.into(),
            Error::Unreachable { socket, source } => unreachable(&socket, &source, message),
            Error::Timeout { .. } => Failure::new(ExitCode::OutcomeUnknown, "timeout", message)
                .help("it may be busy or stuck; its log tells"),
            Error::Lost { .. } => Failure::new(ExitCode::OutcomeUnknown, "connection_lost", message)
                .help("it was stopped or has failed; its log tells"),
            Error::BadAnswer { ref source, .. } => {
                let why = source.source().map_or_else(|| source.to_string(), ToString::to_string);
                Failure::new(ExitCode::Failed, "bad_answer", format!("{message}: {why}"))
                    .help("ctl and agent should be of one version")
            }
        }
    }
}

fn unreachable(socket: &Path, source: &io::Error, message: String) -> Failure {
    let failure = |exit, message: String| Failure::new(exit, "unreachable", message);
    let system = Path::new(place::SYSTEM);
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            failure(ExitCode::Forbidden, format!("{} may not be opened: permission denied", socket.display()))
                .help("use sudo, or join the group that owns the socket")
        }
        io::ErrorKind::NotFound if socket != system && system.exists() => {
            failure(ExitCode::Unreachable, format!("{message}: there is no such socket"))
                .help(format!("root's agent has its own: --socket {}", place::SYSTEM))
        }
        io::ErrorKind::NotFound => {
            failure(ExitCode::Unreachable, format!("{message}: there is no such socket"))
                .help("start it with `systemctl start hotbunk-agent` or `hotbunk-agent run --config FILE`")
        }
        io::ErrorKind::ConnectionRefused => failure(
            ExitCode::Unreachable,
            format!("{message}: an agent that is gone left this socket behind"),
        )
        .help("start it with `systemctl start hotbunk-agent` or `hotbunk-agent run --config FILE`"),
        _ => failure(ExitCode::Unreachable, format!("{message}: {source}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_near_names_are_suggested() {
        let known: Vec<String> = ["A", "B", "llama-8b", "qwen"].map(str::to_owned).to_vec();
        assert_eq!(closest("b", &known), Some("B"));
        assert_eq!(closest("C", &known), None);
        assert_eq!(closest("lama-8b", &known), Some("llama-8b"));
        assert_eq!(closest("qwne", &known), Some("qwen"));
        assert_eq!(closest("mistral", &known), None);
        assert_eq!(closest("x", &[]), None);
    }

    #[test]
    fn losing_the_agent_while_waiting_is_an_unknown_outcome() {
        let gone = Failure::new(ExitCode::Unreachable, "unreachable", "no agent answers on /x");
        let waited = gone.while_waiting("operation 7");
        assert_eq!(waited.exit, ExitCode::OutcomeUnknown);
        assert!(waited.message.starts_with("how operation 7 ended is not known"), "{}", waited.message);
        let refused = Failure::new(ExitCode::Refused, "busy", "busy");
        assert_eq!(refused.clone().while_waiting("operation 7"), refused);
    }
}
