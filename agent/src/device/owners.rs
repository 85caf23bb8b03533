//! Whose bytes: from the driver's process ids to engines.
//!
//! The driver lists process ids of the host. In a container with its own process ids, the agent's and the driver's
//! numbers have nothing to do with each other, or the list is empty. So an engine that is not in the list may hold
//! nothing, or may hold anything. It is taken to hold nothing only where the mapping has been *seen to work* (some
//! listed process was an engine's) and the list holds no stranger that could be it; else its bytes are unknown.

use super::reading::Process;
use std::collections::HashMap;

/// Which engine each process id belongs to, and whether ids have been seen to match.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    by_pid: HashMap<u32, String>,
    /// Engine names, sorted, each once.
    engines: Vec<String>,
    proven: bool,
}

impl Owners {
    /// Replaces the snapshot; what was seen to work stays so.
    pub fn set(&mut self, by_pid: HashMap<u32, String>) {
        self.engines = by_pid.values().cloned().collect();
        self.engines.sort_unstable();
        self.engines.dedup();
        self.by_pid = by_pid;
    }

    /// Notes whether ids match. Returns whether that is news.
    pub fn observe(&mut self, processes: &[Process]) -> bool {
        let news = !self.proven && processes.iter().any(|p| self.by_pid.contains_key(&p.pid));
        self.proven |= news;
        news
    }

    /// Bytes by engine, for every engine that has processes; `None` is unknown.
    pub fn attribute(&self, processes: Option<&[Process]>) -> Vec<(String, Option<u64>)> {
        self.engines.iter().map(|engine| (engine.clone(), self.bytes_of(engine, processes))).collect()
    }

    /// The bytes of one engine; `None` is unknown.
    pub fn bytes_of(&self, engine: &str, processes: Option<&[Process]>) -> Option<u64> {
        let processes = processes?;
        let mut own = None;
        let mut strangers = false;
        for process in processes {
            match self.by_pid.get(&process.pid) {
                Some(owner) if owner == engine => {
                    own = Some(own.unwrap_or(0_u64).saturating_add(process.bytes?))
                }
                Some(_) => {}
                None => strangers = true,
            }
        }
        match own {
            Some(bytes) => Some(bytes),
            None if self.proven && !strangers => Some(0),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(pairs: &[(u32, &str)]) -> Owners {
        let mut owners = Owners::default();
        owners.set(pairs.iter().map(|(pid, engine)| (*pid, (*engine).to_owned())).collect());
        owners
    }

    fn process(pid: u32, bytes: impl Into<Option<u64>>) -> Process {
        Process { pid, bytes: bytes.into() }
    }

    #[test]
    fn bytes_of_a_tree_are_summed_and_an_untold_part_makes_the_sum_unknown() {
        let owners = owners(&[(1, "A"), (2, "A"), (3, "B")]);
        let list = [process(1, 10), process(2, 5), process(3, None), process(9, 7)];
        assert_eq!(owners.attribute(Some(&list)), [("A".to_owned(), Some(15)), ("B".to_owned(), None)]);
        assert_eq!(owners.attribute(None), [("A".to_owned(), None), ("B".to_owned(), None)]);
    }

    #[test]
    fn an_absent_engine_holds_nothing_only_where_ids_are_known_to_match() {
        let mut owners = owners(&[(1, "A"), (3, "B")]);
        // An empty list, as in a container: says nothing.
        assert_eq!(owners.bytes_of("A", Some(&[])), None);
        // Ids of another namespace.
        assert!(!owners.observe(&[process(70_001, 4)]));
        assert_eq!(owners.bytes_of("A", Some(&[process(70_001, 4)])), None);
        // B was seen: from now on absence means something, unless a stranger is there.
        assert!(owners.observe(&[process(3, 4)]));
        assert!(!owners.observe(&[process(3, 4)]));
        assert_eq!(owners.bytes_of("A", Some(&[process(3, 4)])), Some(0));
        assert_eq!(owners.bytes_of("A", Some(&[process(3, 4), process(70_001, 1)])), None);
        assert_eq!(owners.bytes_of("B", Some(&[])), Some(0));
    }
}
