//! What was tried, and survived.

use crate::draw::say;
use std::collections::BTreeMap;
use std::time::Duration;

/// What became of one kind of fault.
#[derive(Debug, Default)]
struct Row {
    struck: usize,
    longest: Duration,
    whole: Duration,
    incidents: BTreeMap<String, usize>,
    skipped: Option<&'static str>,
}

/// By kind.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<&'static str, Row>);

impl Table {
    /// It struck, and after this time everything was whole again.
    pub(super) fn survived(&mut self, name: &'static str, took: Duration, incidents: &[String]) {
        let row = self.0.entry(name).or_default();
        row.struck += 1;
        row.longest = row.longest.max(took);
        row.whole += took;
        for code in incidents {
            *row.incidents.entry(code.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }

    /// It cannot be tried here.
    pub(super) fn skipped(&mut self, name: &'static str, why: &'static str) {
        self.0.entry(name).or_default().skipped = Some(why);
    }

    pub(super) fn print(&self, seed: u64, took: Duration) {
        let struck: usize = self.0.values().map(|row| row.struck).sum();
        let kinds = self.0.values().filter(|row| row.struck > 0).count();
        say(&format!("{struck} faults of {kinds} kinds, seed {seed}, {:.0} s", took.as_secs_f64()));
        for (name, row) in &self.0 {
            if let Some(why) = row.skipped {
                say(&format!("     - {name:<40} SKIPPED: {why}"));
                continue;
            }
            let incidents: Vec<String> =
                row.incidents.iter().map(|(code, n)| format!("{code} {n}")).collect();
            let mean = row.whole.as_secs_f64() / row.struck.max(1) as f64;
            say(&format!(
                "  {:>4} {name:<40} whole again after {mean:>4.1} s, at most {:>4.1} s; {}",
                row.struck,
                row.longest.as_secs_f64(),
                if incidents.is_empty() { "no incident".to_owned() } else { incidents.join(", ") }
            ));
        }
    }
}
