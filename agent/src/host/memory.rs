//! How much memory the machine has for us: its own, or what the agent's cgroup allows.

use super::Error;
use super::tree::field_bytes;
use std::fs;
use std::path::{Path, PathBuf};

/// Capacity and room, bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostMemory {
    /// What can be had at most.
    pub total: u64,
    /// What can be had now without swapping: free memory, and page cache that can be dropped.
    pub available: u64,
    /// The cgroup that allows less than the machine has, where there is one.
    pub limited_by: Option<PathBuf>,
}

impl HostMemory {
    /// Reads the machine's memory and the limits of the agent's cgroup and those above it.
    ///
    /// # Errors
    /// `/proc/meminfo` cannot be read or understood. A cgroup that cannot be read sets no limit.
    pub fn read() -> Result<Self, Error> {
        read_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }
}

fn read_in(proc: &Path, cgroups: &Path) -> Result<HostMemory, Error> {
    let path = proc.join("meminfo");
    let text = fs::read_to_string(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
    let field = |field| field_bytes(&text, field).ok_or_else(|| Error::Missing { path: path.clone(), field });
    let mut memory =
        HostMemory { total: field("MemTotal")?, available: field("MemAvailable")?, limited_by: None };
    for limit in limits(proc, cgroups) {
        if limit.total < memory.total {
            memory.total = limit.total;
            memory.limited_by = Some(limit.cgroup);
        }
        memory.available = memory.available.min(limit.available);
    }
    Ok(memory)
}

/// What one cgroup allows, bytes.
struct Limit {
    cgroup: PathBuf,
    total: u64,
    available: u64,
}

/// The names of one cgroup version's files.
struct Version {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: page cache that is dropped first.
    reclaimable: &'static str,
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Version = Version { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };

/// The limits of the cgroups that this process is in, with those above them.
fn limits(proc: &Path, cgroups: &Path) -> Vec<Limit> {
    let membership = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in membership.lines() {
        // `4:memory:/path` in version 1, `0::/path` in version 2 (under `unified` on hybrid hosts).
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (base, version) = match controllers {
            "" if cgroups.join("unified").is_dir() => (cgroups.join("unified"), V2),
            "" => (cgroups.to_path_buf(), V2),
            _ if controllers.split(',').any(|c| c == "memory") => (cgroups.join("memory"), V1),
            _ => continue,
        };
        let here = base.join(path.trim_start_matches('/'));
        // In a container the path may be the host's; then the container's own cgroup is mounted at the root.
        let here = if here.is_dir() { here } else { base.clone() };
        limits.extend(
            here.ancestors().take_while(|dir| dir.starts_with(&base)).filter_map(|dir| limit(dir, &version)),
        );
    }
    limits
}

/// What a cgroup allows; `None` where it has no limit or cannot be read.
fn limit(cgroup: &Path, version: &Version) -> Option<Limit> {
    let number = |file| fs::read_to_string(cgroup.join(file)).ok()?.trim().parse::<u64>().ok();
    let total = number(version.limit)?;
    let usage = number(version.usage)?;
    let stat = fs::read_to_string(cgroup.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat
        .lines()
        .find_map(|line| line.strip_prefix(version.reclaimable)?.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let available = total.saturating_sub(usage.saturating_sub(reclaimable));
    Some(Limit { cgroup: cgroup.to_path_buf(), total, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn read(files: &[(&str, &str)]) -> HostMemory {
        let dir = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    800 kB\n";
        write(dir.path(), &[("proc/meminfo", meminfo)]);
        write(dir.path(), files);
        let mut memory = read_in(&dir.path().join("proc"), &dir.path().join("cg")).unwrap();
        memory.limited_by = memory.limited_by.map(|path| path.strip_prefix(dir.path()).unwrap().to_owned());
        memory
    }

    fn memory(total: u64, available: u64, limited_by: Option<&str>) -> HostMemory {
        HostMemory { total, available, limited_by: limited_by.map(Into::into) }
    }

    #[test]
    fn without_a_limit_it_is_the_machines() {
        assert_eq!(read(&[]), memory(1_024_000, 819_200, None));
        // Version 1 says "no limit" with a number beyond every machine, version 2 with a word.
        let unlimited = [
            ("proc/self/cgroup", "4:memory:/a\n0::/b\n"),
            ("cg/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
            ("cg/memory/a/memory.usage_in_bytes", "5\n"),
            ("cg/unified/b/memory.max", "max\n"),
            ("cg/unified/b/memory.current", "5\n"),
        ];
        assert_eq!(read(&unlimited), memory(1_024_000, 819_200, None));
    }

    #[test]
    fn the_tightest_cgroup_above_us_counts_and_its_page_cache_is_room() {
        let nested = [
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("cg/cgroup.controllers", "memory\n"),
            ("cg/outer/memory.max", "500000\n"),
            ("cg/outer/memory.current", "450000\n"),
            ("cg/outer/memory.stat", "anon 1\ninactive_file 250000\n"),
            ("cg/outer/inner/memory.max", "600000\n"),
            ("cg/outer/inner/memory.current", "10000\n"),
        ];
        assert_eq!(read(&nested), memory(500_000, 300_000, Some("cg/outer")));
    }

    #[test]
    fn in_a_container_its_cgroup_is_at_the_root() {
        let container = [
            ("proc/self/cgroup", "5:cpu,memory:/docker/0123\n"),
            ("cg/memory/memory.limit_in_bytes", "400000\n"),
            ("cg/memory/memory.usage_in_bytes", "100000\n"),
            ("cg/memory/memory.stat", "total_inactive_file 50000\n"),
        ];
        assert_eq!(read(&container), memory(400_000, 350_000, Some("cg/memory")));
    }

    #[test]
    fn a_strange_meminfo_is_an_error_that_names_the_line() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &[("meminfo", "MemTotal: 5 kB\n")]);
        let error = read_in(dir.path(), dir.path()).unwrap_err().to_string();
        assert!(error.ends_with("meminfo has no `MemAvailable`"), "{error}");
    }

    #[test]
    fn this_machine_has_some() {
        let memory = HostMemory::read().unwrap();
        assert!(0 < memory.available && memory.available <= memory.total, "{memory:?}");
    }
}
