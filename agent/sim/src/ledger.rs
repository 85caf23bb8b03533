//! The simulated device's memory: a small JSON file that every engine of the node shares.
//!
//! It behaves as a driver does. An allocation belongs to a process (pid and start time, so a pid used again is another
//! process); when the process is gone or a zombie its bytes are gone with it, whoever looks next; a living orphan
//! keeps its own. An allocation that does not fit fails, as CUDA's does, and changes nothing.
//!
//! Writers take an exclusive lock on `PATH.lock` and replace the file by rename. So readers need no lock, never see
//! half a file, not even after a writer was killed in the middle, and never hold a writer up at 100 reads a second.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What the device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerHeader {
    /// Product name, as NVML reports it.
    pub name: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Capacity in bytes.
    pub total_bytes: u64,
}

impl LedgerHeader {
    /// A device with a UUID made of its index on the node.
    pub fn new(name: &str, index: usize, total_bytes: u64) -> Self {
        LedgerHeader {
            name: name.to_owned(),
            uuid: format!("GPU-5e1f0000-0000-4000-8000-{index:012x}"),
            total_bytes,
        }
    }

    /// The reference's device: an L20 of 46068 MiB.
    pub fn l20(index: usize) -> Self {
        LedgerHeader::new("NVIDIA L20", index, 46068 << 20)
    }
}

/// A process, so that a pid used again is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

impl Owner {
    /// The running process with this pid; `None` where there is none or it is a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let (state, start_ticks) = proc_stat(pid)?;
        (!matches!(state, 'Z' | 'X')).then_some(Owner { pid, start_ticks })
    }

    /// This process.
    pub fn current() -> Option<Self> {
        Owner::of(std::process::id())
    }

    /// Whether that very process still runs.
    pub fn is_alive(self) -> bool {
        Owner::of(self.pid) == Some(self)
    }
}

/// State letter and start time of a process.
fn proc_stat(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets: the fields begin after its last bracket.
    let fields = &stat[stat.rfind(')')? + 1..];
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((state, start_ticks))
}

/// The bytes of one process under one label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Whose.
    #[serde(flatten)]
    pub owner: Owner,
    /// The engine's name, or `foreign`.
    pub engine: String,
    /// Bytes.
    pub bytes: u64,
}

/// One consistent look at the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// What the device is.
    pub header: LedgerHeader,
    /// Allocations of living processes.
    pub allocations: Vec<Allocation>,
}

impl Usage {
    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.allocations.iter().map(|a| a.bytes).sum()
    }

    /// Bytes that can still be allocated.
    pub fn free(&self) -> u64 {
        self.header.total_bytes.saturating_sub(self.used())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    header: LedgerHeader,
    allocations: Vec<Allocation>,
}

/// Why the ledger refused or could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The allocation does not fit.
    #[error("out of memory: {asked} bytes asked for, {free} of {total} free")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free.
        free: u64,
        /// Capacity.
        total: u64,
    },
    /// The process that should own the memory does not run.
    #[error("process {pid} does not run and can own no device memory")]
    NoSuchProcess {
        /// Which.
        pid: u32,
    },
    /// The file or its lock cannot be used.
    #[error("device ledger {path}: cannot {action}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Doing what.
        action: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a ledger.
    #[error("device ledger {path}: not a ledger; remove it and create it anew")]
    Format {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

/// A handle to one device's ledger; cheap to keep and to clone.
#[derive(Debug, Clone)]
pub struct DeviceLedger {
    path: PathBuf,
}

impl DeviceLedger {
    /// Creates the ledger. One that is there with the same header is kept, with the allocations of living processes:
    /// orphans of an earlier run hold their memory, as they would on a device.
    pub fn create(path: &Path, header: LedgerHeader) -> Result<Self, Error> {
        let ledger = DeviceLedger { path: path.to_owned() };
        let _lock = ledger.lock()?;
        let allocations = match ledger.read() {
            Ok(content) if content.header == header => content.allocations,
            _ => Vec::new(),
        };
        ledger.write(&Content { header, allocations })?;
        Ok(ledger)
    }

    /// Opens a ledger that exists.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let ledger = DeviceLedger { path: path.to_owned() };
        ledger.read()?;
        Ok(ledger)
    }

    /// Opens a ledger, and creates it where there is none.
    pub fn open_or_create(path: &Path, header: LedgerHeader) -> Result<Self, Error> {
        match DeviceLedger::open(path) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                DeviceLedger::create(path, header)
            }
            other => other,
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the device is.
    pub fn header(&self) -> Result<LedgerHeader, Error> {
        Ok(self.read()?.header)
    }

    /// A consistent look: header and allocations of living processes.
    pub fn usage(&self) -> Result<Usage, Error> {
        let mut content = self.read()?;
        content.allocations.retain(|a| a.owner.is_alive());
        Ok(Usage { header: content.header, allocations: content.allocations })
    }

    /// Bytes in use, device-wide.
    pub fn used(&self) -> Result<u64, Error> {
        Ok(self.usage()?.used())
    }

    /// `(pid, bytes, engine)` of every living process on the device.
    pub fn processes(&self) -> Result<Vec<(u32, u64, String)>, Error> {
        Ok(self.usage()?.allocations.into_iter().map(|a| (a.owner.pid, a.bytes, a.engine)).collect())
    }

    /// Adds bytes to a process's allocation, or refuses and changes nothing.
    pub fn allocate(&self, owner: Owner, engine: &str, bytes: u64) -> Result<(), Error> {
        self.change(|content| {
            if !owner.is_alive() {
                return Err(Error::NoSuchProcess { pid: owner.pid });
            }
            let used: u64 = content.allocations.iter().map(|a| a.bytes).sum();
            let total = content.header.total_bytes;
            let free = total.saturating_sub(used);
            if bytes > free {
                return Err(Error::OutOfMemory { asked: bytes, free, total });
            }
            match content.allocations.iter_mut().find(|a| a.owner == owner && a.engine == engine) {
                Some(allocation) => allocation.bytes += bytes,
                None => content.allocations.push(Allocation { owner, engine: engine.to_owned(), bytes }),
            }
            Ok(())
        })
    }

    /// Takes bytes from a process's allocation; more than it has takes all.
    pub fn free(&self, owner: Owner, engine: &str, bytes: u64) -> Result<(), Error> {
        self.change(|content| {
            for allocation in &mut content.allocations {
                if allocation.owner == owner && allocation.engine == engine {
                    allocation.bytes = allocation.bytes.saturating_sub(bytes);
                }
            }
            content.allocations.retain(|a| a.bytes > 0);
            Ok(())
        })
    }

    fn change(&self, edit: impl FnOnce(&mut Content) -> Result<(), Error>) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut content = self.read()?;
        content.allocations.retain(|a| a.owner.is_alive());
        edit(&mut content)?;
        self.write(&content)
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(self.path.as_os_str());
        name.push(suffix);
        PathBuf::from(name)
    }

    /// The exclusive lock, held until the file is dropped; the kernel drops it for a process that is killed.
    fn lock(&self) -> Result<File, Error> {
        let path = self.beside(".lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.and_then(|file| file.lock().map(|()| file));
        file.map_err(|source| Error::Io { path, action: "lock it", source })
    }

    fn read(&self) -> Result<Content, Error> {
        let bytes = std::fs::read(&self.path).map_err(|source| Error::Io {
            path: self.path.clone(),
            action: "read it",
            source,
        })?;
        serde_json::from_slice(&bytes).map_err(|source| Error::Format { path: self.path.clone(), source })
    }

    fn write(&self, content: &Content) -> Result<(), Error> {
        let wrap = |source| Error::Io { path: self.path.clone(), action: "write it", source };
        let bytes = serde_json::to_vec(content).map_err(|e| wrap(e.into()))?;
        let new = self.beside(".new");
        std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &self.path)).map_err(wrap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small(dir: &tempfile::TempDir, total_bytes: u64) -> DeviceLedger {
        let header = LedgerHeader { name: "test".into(), uuid: "GPU-0".into(), total_bytes };
        DeviceLedger::create(&dir.path().join("gpu0.json"), header).unwrap()
    }

    #[test]
    fn an_allocation_that_does_not_fit_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = small(&dir, 100);
        let me = Owner::current().unwrap();
        ledger.allocate(me, "A", 60).unwrap();
        assert!(matches!(
            ledger.allocate(me, "B", 41),
            Err(Error::OutOfMemory { asked: 41, free: 40, total: 100 })
        ));
        assert_eq!(ledger.used().unwrap(), 60);
        ledger.allocate(me, "B", 40).unwrap();
        let me = std::process::id();
        assert_eq!(ledger.processes().unwrap(), vec![(me, 60, "A".into()), (me, 40, "B".into())]);
    }

    #[test]
    fn a_killed_process_gives_its_bytes_back_even_as_a_zombie_and_a_reused_pid_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = small(&dir, 100);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let owner = Owner::of(child.id()).unwrap();
        ledger.allocate(owner, "A", 70).unwrap();
        assert_eq!(ledger.used().unwrap(), 70);
        let earlier = Owner { pid: owner.pid, start_ticks: owner.start_ticks + 1 };
        assert!(matches!(ledger.allocate(earlier, "A", 1), Err(Error::NoSuchProcess { .. })));
        child.kill().unwrap();
        // Not yet waited for: first dying, then a zombie.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while ledger.used().unwrap() != 0 {
            assert!(std::time::Instant::now() < deadline, "the dead process's bytes did not return");
            std::thread::yield_now();
        }
        ledger.allocate(Owner::current().unwrap(), "B", 100).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn creating_again_keeps_the_living() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = small(&dir, 100);
        ledger.allocate(Owner::current().unwrap(), "A", 30).unwrap();
        assert_eq!(small(&dir, 100).used().unwrap(), 30);
        assert_eq!(small(&dir, 200).used().unwrap(), 0);
    }

    #[test]
    fn two_threads_lose_no_update() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = small(&dir, 1 << 20);
        let me = Owner::current().unwrap();
        std::thread::scope(|scope| {
            for name in ["A", "B"] {
                let ledger = &ledger;
                scope.spawn(move || {
                    for _ in 0..50 {
                        ledger.allocate(me, name, 3).unwrap();
                        ledger.free(me, name, 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(ledger.used().unwrap(), 200);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn used_never_exceeds_capacity_and_equals_the_sum(ops in proptest::collection::vec((0..3usize, any::<bool>(), 0..60u64), 1..25)) {
            let dir = tempfile::tempdir().unwrap();
            let ledger = small(&dir, 100);
            let me = Owner::current().unwrap();
            let mut held = [0u64; 3];
            for (who, add, bytes) in ops {
                let name = ["A", "B", "C"][who];
                if add {
                    let fits = held.iter().sum::<u64>() + bytes <= 100;
                    prop_assert_eq!(ledger.allocate(me, name, bytes).is_ok(), fits);
                    if fits { held[who] += bytes; }
                } else {
                    ledger.free(me, name, bytes).unwrap();
                    held[who] = held[who].saturating_sub(bytes);
                }
                prop_assert_eq!(ledger.used().unwrap(), held.iter().sum::<u64>());
            }
        }
    }
}
