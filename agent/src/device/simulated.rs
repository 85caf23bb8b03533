//! The simulated device: the ledger file that all simulated engines of the node share.

use super::source::{LedgerLook, Look, Source};
use hotbunk_sim::ledger::DeviceLedger;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Source {
    /// The ledger at `path`. It is read anew for each sample, so a ledger that is made anew is found again.
    pub fn simulated(path: PathBuf) -> Self {
        let file = path.clone();
        let look: Look = Arc::new(move || look(&file).map_err(|error| sentence(&error)));
        Source::Ledger { path, look }
    }
}

fn look(path: &Path) -> Result<LedgerLook, hotbunk_sim::ledger::Error> {
    let usage = DeviceLedger::open(path)?.usage()?;
    let mut by_pid = BTreeMap::new();
    for allocation in &usage.allocations {
        *by_pid.entry(allocation.owner.pid).or_insert(0_u64) += allocation.bytes;
    }
    Ok(LedgerLook {
        used_bytes: usage.used(),
        processes: by_pid.into_iter().collect(),
        model: usage.header.name,
        uuid: usage.header.uuid,
        total_bytes: usage.header.total_bytes,
    })
}

/// What an error says, with what lies beneath.
fn sentence(error: &dyn Error) -> String {
    let below = std::iter::successors(error.source(), |error| (*error).source());
    below.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}
