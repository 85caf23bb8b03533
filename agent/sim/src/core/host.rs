//! Host memory, really allocated and touched, at a scale: so that RSS moves when a backup is pinned.

use crate::process::resident_bytes;

/// The engine core's host memory.
#[derive(Debug)]
pub(crate) struct HostMemory {
    scale: u64,
    blocks: Vec<Vec<u8>>,
}

impl HostMemory {
    /// Takes what the processes themselves hold in vLLM (`simulated_bytes`), less what this small tree holds already,
    /// so that the tree's RSS times the scale is the simulated figure.
    pub(crate) fn with_base(simulated_bytes: u64, scale: u64) -> Self {
        let mut memory = HostMemory { scale, blocks: Vec::new() };
        let own = resident_bytes(std::process::id()).unwrap_or(0);
        let parent = rustix::process::getppid()
            .and_then(|p| u32::try_from(p.as_raw_nonzero().get()).ok())
            .and_then(resident_bytes)
            .unwrap_or(0);
        // The resource tracker is as small as this process is now.
        let tree = 2 * own + parent;
        memory.take((simulated_bytes / scale).saturating_sub(tree));
        memory
    }

    /// Pins a backup: never given back in the life of the process (CONTRACT fact 9, 5 [iss]).
    pub(crate) fn pin(&mut self, simulated_bytes: u64) {
        self.take(simulated_bytes / self.scale);
    }

    fn take(&mut self, bytes: u64) {
        if let Ok(bytes) = usize::try_from(bytes)
            && bytes > 0
        {
            // Not zero: zeroed pages would stay unbacked.
            self.blocks.push(vec![1; bytes]);
        }
    }

    /// Bytes really taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_shows_in_rss_at_the_scale() {
        let mut memory = HostMemory { scale: 4, blocks: Vec::new() };
        let before = resident_bytes(std::process::id()).unwrap();
        memory.pin(256 << 20);
        let after = resident_bytes(std::process::id()).unwrap();
        assert_eq!(memory.taken(), 64 << 20);
        assert!(after >= before + (60 << 20), "{before} {after}");
    }
}
