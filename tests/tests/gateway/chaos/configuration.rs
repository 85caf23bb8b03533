//! The node's configuration file, as its operator changes it while all runs.

use crate::draw::Draw;
use hotbunk_tests::{File, Node};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// The variable by which an engine's process shows with which version of its settings it was started.
pub(super) const MARK: &str = "HB_MARK";

/// Files that no agent takes: what is added to a good one.
const ERRORS: [&str; 4] = [
    "[polcy]\n",
    "[[engine]]\nname = \"A\"\n",
    "[[engine]]\nname = \"half\n",
    "[[device]]\nname = \"gpu0\"\nledger = \"/nowhere\"\n",
];

/// What is wanted, and the file that says so.
#[derive(Debug)]
pub(super) struct Configuration {
    path: PathBuf,
    base: File,
    /// By engine, the version of what its process is started with.
    marks: BTreeMap<&'static str, u32>,
    /// A setting that only the agent goes by, ms.
    residency_ms: u64,
    /// What stands in the file is what is wanted, and the agent goes by it.
    pub(super) is_wanted: bool,
    /// What stands in the file cannot be changed but by another agent.
    pub(super) takes_an_agent: bool,
}

impl Configuration {
    pub(super) fn of(node: &Node) -> Self {
        let marks = BTreeMap::from([("A", 0), ("B", 0)]);
        let (path, base) = (node.config(), node.file());
        Configuration { path, base, marks, residency_ms: 50, is_wanted: true, takes_an_agent: false }
    }

    fn file(&self) -> File {
        self.marks.iter().fold(self.base.clone(), |file, (engine, mark)| {
            file.engine(engine, "env = {", &format!("env = {{ {MARK} = \"{mark}\",")).engine(
                engine,
                "min_residency = \"50ms\"",
                &format!("min_residency = \"{}ms\"", self.residency_ms),
            )
        })
    }

    /// The file says what is wanted.
    pub(super) fn write(&self) {
        self.file().write();
    }

    /// The version of an engine's process that is wanted.
    pub(super) fn mark(&self, engine: &str) -> u32 {
        self.marks.get(engine).copied().unwrap_or_default()
    }

    /// Another version of an engine's process is wanted from now on; the file says so.
    pub(super) fn change(&mut self, engine: &str) {
        if let Some((_, mark)) = self.marks.iter_mut().find(|(name, _)| **name == engine) {
            *mark += 1;
        }
        self.write();
    }

    /// The version before is wanted again; the file says so.
    pub(super) fn take_back(&mut self, engine: &str) {
        if let Some((_, mark)) = self.marks.iter_mut().find(|(name, _)| **name == engine) {
            *mark -= 1;
        }
        self.write();
    }

    /// A setting that only the agent goes by is another one from now on; the file says so.
    pub(super) fn change_own(&mut self, draw: &mut Draw) {
        self.residency_ms = 20 + (self.residency_ms + 1 + draw.below(80)) % 100;
        self.write();
    }

    /// The file has errors.
    pub(super) fn spoil(&mut self, draw: &mut Draw) {
        let error = ERRORS[usize::try_from(draw.below(ERRORS.len() as u64)).unwrap_or(0)];
        self.file().tables(error).write();
    }

    /// An engine is not in the file any more.
    pub(super) fn remove(&mut self, engine: &str) {
        let other = if engine == "A" { "B" } else { "A" };
        let begins = |name: &str| format!("awake_at_start = \"{name}\"");
        self.file().without(engine).replace(&begins("A"), &begins(other)).write();
        self.is_wanted = false;
    }

    /// From the next agent on, a copy of each engine's weights takes more host memory than any machine has.
    pub(super) fn host_is_too_small(&mut self) {
        self.write();
        let text = fs::read_to_string(&self.path).expect("the configuration");
        let line = |line: &str| match line.starts_with("host_memory = ") {
            true => "host_memory = \"1000GiB\"\n".to_owned(),
            false => format!("{line}\n"),
        };
        fs::write(&self.path, text.lines().map(line).collect::<String>()).expect("the configuration");
        (self.is_wanted, self.takes_an_agent) = (false, true);
    }

    /// The file says again what is wanted; the agent has to be told.
    pub(super) fn restore(&mut self) {
        self.write();
        (self.is_wanted, self.takes_an_agent) = (true, false);
    }
}

/// The version of its settings that a process was started with; `None` of one that is gone.
pub(super) fn mark_of(pid: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let text = String::from_utf8_lossy(&environment).into_owned();
    text.split('\0').find_map(|line| line.strip_prefix(MARK)?.strip_prefix('=')?.parse().ok())
}
