//! Changing the configuration file under a running agent, as an operator does.

use crate::agent::Agent;
use crate::node::Node;
use hotbunk_api::client::Error;
use hotbunk_api::error::ApiError;
use hotbunk_api::reload::{EngineChange, ReloadReport, ReloadRequest};
use std::fs;
use std::path::PathBuf;

/// A node's configuration file, taken apart into its tables.
#[derive(Debug, Clone)]
pub struct File {
    path: PathBuf,
    tables: Vec<String>,
}

impl Node {
    /// Its configuration file as it is now.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn file(&self) -> File {
        let text = fs::read_to_string(self.config()).expect("the configuration");
        let mut tables = vec![String::new()];
        for line in text.lines() {
            if line.starts_with('[') {
                tables.push(String::new());
            }
            if let Some(table) = tables.last_mut() {
                table.push_str(line);
                table.push('\n');
            }
        }
        File { path: self.config(), tables }
    }
}

fn is_of(table: &str, engine: &str) -> bool {
    table.starts_with("[[engine]]") && table.contains(&format!("\nname = \"{engine}\"\n"))
}

impl File {
    /// Without an engine.
    #[must_use]
    pub fn without(mut self, engine: &str) -> Self {
        self.tables.retain(|table| !is_of(table, engine));
        self
    }

    /// With the engine as another version of the file has it.
    ///
    /// # Panics
    /// That one does not have it either.
    #[must_use]
    pub fn with(mut self, engine: &str, of: &File) -> Self {
        self.tables.push(of.tables.iter().find(|table| is_of(table, engine)).expect("an engine").clone());
        self
    }

    /// Something within an engine's table is another text.
    ///
    /// # Panics
    /// It does not stand there.
    #[must_use]
    pub fn engine(mut self, engine: &str, from: &str, to: &str) -> Self {
        let table = self.tables.iter_mut().find(|table| is_of(table, engine)).expect("an engine");
        assert!(table.contains(from), "{from:?} is not in {table}");
        *table = table.replace(from, to);
        self
    }

    /// A further line in an engine's table.
    ///
    /// # Panics
    /// There is no such engine.
    #[must_use]
    pub fn line(mut self, engine: &str, line: &str) -> Self {
        let table = self.tables.iter_mut().find(|table| is_of(table, engine)).expect("an engine");
        table.push_str(line);
        table.push('\n');
        self
    }

    /// Another vLLM release of an engine.
    #[must_use]
    pub fn version(self, engine: &str, from: &str, to: &str) -> Self {
        self.engine(engine, &format!("\"--version\", \"{from}\""), &format!("\"--version\", \"{to}\""))
    }

    /// Something anywhere is another text.
    ///
    /// # Panics
    /// It does not stand there.
    #[must_use]
    pub fn replace(mut self, from: &str, to: &str) -> Self {
        assert!(self.tables.iter().any(|table| table.contains(from)), "{from:?} is nowhere");
        self.tables.iter_mut().for_each(|table| *table = table.replace(from, to));
        self
    }

    /// Further tables.
    #[must_use]
    pub fn tables(mut self, text: &str) -> Self {
        self.tables.push(format!("{text}\n"));
        self
    }

    /// The engines in the other order.
    #[must_use]
    pub fn reversed(mut self) -> Self {
        let (mut engines, rest): (Vec<String>, Vec<String>) =
            std::mem::take(&mut self.tables).into_iter().partition(|table| table.starts_with("[[engine]]"));
        engines.reverse();
        self.tables = rest;
        self.tables.extend(engines);
        self
    }

    /// Puts it in the agent's way.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write(&self) {
        fs::write(&self.path, self.tables.concat()).expect("the configuration");
    }
}

impl Agent {
    /// Has the configuration file read again, over the control API.
    ///
    /// # Errors
    /// It is refused for now.
    ///
    /// # Panics
    /// There is no answer.
    pub async fn reload(&self) -> Result<ReloadReport, ApiError> {
        match self.api.reload(&ReloadRequest { dry_run: false }).await {
            Ok(report) => Ok(report),
            Err(Error::Api(error)) => Err(error),
            Err(other) => panic!("no answer: {other}"),
        }
    }

    /// The same, and it must be applied; what becomes of each engine, `A unchanged, B restart`.
    ///
    /// # Panics
    /// It is refused.
    pub async fn reloaded(&self) -> String {
        let report = self.reload().await.expect("a report");
        assert!(report.outcome.is_ok(), "{report:#?}");
        changes(&report)
    }
}

/// What becomes of each engine, in words.
pub fn changes(report: &ReloadReport) -> String {
    let word = |change: EngineChange| change.as_str();
    let all = report.engines.iter().map(|e| format!("{} {}", e.engine, word(e.change)));
    all.collect::<Vec<_>>().join(", ")
}
