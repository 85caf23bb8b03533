//! An engine in a container: how it is found and ended, and what its runtime's command line must say and must not.

use super::OneEngine;
use crate::config::check::command::{Command, Runtime};
use crate::config::check::missing;
use crate::config::checked::Container;
use crate::config::raw::RawContainer;
use crate::config::reader::{Field, Located};

/// Stands for the engine's name.
const NAME: &str = "{name}";

impl OneEngine<'_, '_, '_> {
    pub(super) fn container(&mut self, command: Command<'_>, name: &str) -> Option<Container> {
        let raw = self.raw;
        let runtime = command.runtime();
        let Some(table) = raw.container.located() else {
            if runtime.is_some() && !matches!(raw.container, Field::Bad) {
                let key = self.key("container");
                let span = raw.command.located().map_or(self.table, |command| &command.span);
                let message = "a container is no descendant of the command that starts it, and nothing says how it is ended";
                self.checking.problems.error("container_without_stop", span, key, message).help(
                    "add [engine.container] with `stop = [\"docker\", \"stop\", …]`, or run vLLM itself",
                );
            }
            return None;
        };
        let written: &RawContainer = &table.value;
        if written.stop.is_absent() {
            let path = self.key("container");
            let example = "`stop = [\"docker\", \"stop\", \"{name}\"]`";
            missing(self.checking.problems, &table.span, &path, "stop", example);
        }
        let stop = self.words(&written.stop, "container.stop", name);
        let kill = self.words(&written.kill, "container.kill", name);
        let id_file = {
            let key = self.key("container.id_file");
            self.checking.path(&written.id_file, &key)
        };
        let id_file = id_file.map(|path| path.to_string_lossy().replace(NAME, name).into());
        if let Some(runtime) = runtime {
            self.runtime(runtime, id_file.is_some());
        }
        Some(Container { stop, kill, id_file })
    }

    fn words(&mut self, field: &Field<Vec<Located<String>>>, key: &str, name: &str) -> Vec<String> {
        let Some(words) = field.located() else { return Vec::new() };
        if words.value.first().is_none_or(|program| program.value.trim().is_empty()) {
            let key = self.key(key);
            self.checking
                .problems
                .error("empty", &words.span, key, "the command names no program")
                .help("write program and arguments: [\"docker\", \"stop\", \"{name}\"]");
        }
        words.value.iter().map(|word| word.value.replace(NAME, name)).collect()
    }

    /// What a runtime does by itself must not be what the agent does.
    fn runtime(&mut self, runtime: Runtime<'_>, has_id: bool) {
        let key = self.key("command");
        let problems = &mut self.checking.problems;
        if let Some(policy) = runtime.values(&["--restart"]).into_iter().find(|value| value.text != "no") {
            problems
                .error(
                    "conflict",
                    policy.span,
                    key.clone(),
                    "the runtime would start it again behind the agent",
                )
                .help("drop --restart: the agent starts it again, with back-off");
        }
        let span = self.raw.command.located().map_or(self.table, |command| &command.span);
        if !runtime.has(&["--rm", "--replace"]) && runtime.has(&["--name"]) {
            problems
                .warning("container_stays", span, key.clone(), "a container that has ended keeps its name")
                .help("add \"--rm\", or the next start is refused by the runtime");
        }
        if let Some(flag) = ["-d", "--detach"].into_iter().find(|flag| runtime.has(&[flag])) {
            problems
                .warning(
                    "container_detached",
                    span,
                    key.clone(),
                    format!("with {flag} nobody keeps its output"),
                )
                .help(format!("drop {flag}: the agent keeps the client attached, and its output"));
        }
        if !runtime.shares_network() && !has_id {
            let message = "a published port is listened on by the runtime, which does not tell the container";
            problems
                .error("container_unknown", span, key, message)
                .help("add \"--cidfile\", \"PATH\" and `id_file = \"PATH\"`, or use \"--network\", \"host\"");
        }
    }
}
