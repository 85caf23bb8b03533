//! The engine's hold on its devices: a share of every allocation on each.

use crate::args::Settings;
use crate::ledger::{self, DeviceLedger, LedgerHeader, Owner};
use crate::model::MIB;

/// Label of the neighbour that the fault `neighbour_alloc_in_sleep` brings.
const NEIGHBOUR: &str = "foreign";
/// What CUDA says.
pub(crate) const OUT_OF_MEMORY: &str = "CUDA Error: out of memory at cumem_allocator.cpp";

/// The devices of one engine, one a worker.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Each with the process that owns what is taken of it.
    ledgers: Vec<(DeviceLedger, Owner)>,
    engine: String,
    neighbour: Option<(Owner, u64)>,
}

impl Devices {
    /// Opens the ledgers; one that does not exist is created as the profile's device.
    pub(crate) fn open(settings: &Settings, owners: Vec<Owner>) -> Result<Self, String> {
        let mut ledgers = Vec::new();
        for (index, (path, owner)) in settings.args.device_ledger.iter().zip(owners).enumerate() {
            let device = &settings.profile.device;
            let header = LedgerHeader::new(&device.name, index, device.total_mib * MIB);
            ledgers.push((DeviceLedger::open_or_create(path, header).map_err(|e| describe(&e))?, owner));
        }
        Ok(Devices { ledgers, engine: settings.args.name.clone(), neighbour: None })
    }

    /// Takes a share of the bytes on every device, or nothing.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(), String> {
        let share = self.share(bytes);
        if share == 0 {
            return Ok(());
        }
        for (index, (ledger, owner)) in self.ledgers.iter().enumerate() {
            if let Err(error) = ledger.allocate(*owner, &self.engine, share) {
                for (earlier, owner) in &self.ledgers[..index] {
                    drop(earlier.free(*owner, &self.engine, share));
                }
                return Err(describe(&error));
            }
        }
        Ok(())
    }

    /// Gives a share of the bytes back on every device.
    pub(crate) fn release(&self, bytes: u64) -> Result<(), String> {
        let share = self.share(bytes);
        if share == 0 {
            return Ok(());
        }
        self.ledgers
            .iter()
            .try_for_each(|(ledger, owner)| ledger.free(*owner, &self.engine, share))
            .map_err(|e| describe(&e))
    }

    fn share(&self, bytes: u64) -> u64 {
        bytes / u64::try_from(self.ledgers.len()).unwrap_or(1).max(1)
    }

    /// Free bytes of the first device, device-wide, as `cudaMemGetInfo` tells.
    pub(crate) fn free_bytes(&self) -> Result<u64, String> {
        let first = self.ledgers.first();
        first.map_or(Ok(0), |(ledger, _)| ledger.usage().map(|u| u.free()).map_err(|e| describe(&e)))
    }

    /// Capacity of the first device.
    pub(crate) fn total_bytes(&self) -> Result<u64, String> {
        let first = self.ledgers.first();
        first.map_or(Ok(0), |(ledger, _)| ledger.header().map(|h| h.total_bytes).map_err(|e| describe(&e)))
    }

    /// Another process's memory on the first device, owned by pid 1 so that it lives.
    pub(crate) fn bring_neighbour(&mut self, bytes: u64) {
        if let (Some((ledger, _)), Some(owner)) = (self.ledgers.first(), Owner::of(1))
            && ledger.allocate(owner, NEIGHBOUR, bytes).is_ok()
        {
            self.neighbour = Some((owner, bytes));
        }
    }

    /// The neighbour goes.
    pub(crate) fn dismiss_neighbour(&mut self) {
        if let (Some((ledger, _)), Some((owner, bytes))) = (self.ledgers.first(), self.neighbour.take()) {
            drop(ledger.free(owner, NEIGHBOUR, bytes));
        }
    }
}

fn describe(error: &ledger::Error) -> String {
    match error {
        ledger::Error::OutOfMemory { .. } => OUT_OF_MEMORY.to_owned(),
        other => other.to_string(),
    }
}
