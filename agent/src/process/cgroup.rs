//! An engine's own control group, where the host lets us have one.
//!
//! A process cannot leave its cgroup by forking or by `setsid`, and `cgroup.kill` ends all members at once, however
//! fast they fork. So an engine gets a group of its own, `hotbunk/ENGINE-SHIMPID`, below the cgroup that the agent
//! itself runs in (that is what systemd delegates), in whichever cgroup2 hierarchy is mounted: `/sys/fs/cgroup`, or
//! `/sys/fs/cgroup/unified` on hybrid hosts. No controller is switched on; the group only counts heads.
//!
//! The shim is not a member: it joins, starts the engine, and goes back, so that the engine is inside from its first
//! instruction and `cgroup.kill` spares the shim.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tree::ProcStat;

/// Name of the group that holds all engines' groups.
const PARENT: &str = "hotbunk";

/// One engine's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes the group for one engine.
    ///
    /// # Errors
    /// Where there is no cgroup2 hierarchy, or it is not ours to write in.
    pub(super) fn create(engine: &str, shim_pid: u32) -> io::Result<Cgroup> {
        let parent = own_group()?.join(PARENT);
        match fs::create_dir(&parent) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        remove_deserted(&parent);
        let path = parent.join(format!("{engine}-{shim_pid}"));
        // An empty group left by an earlier process of this pid can be removed, a populated one cannot.
        match fs::remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&path)?;
        Ok(Cgroup { path })
    }

    /// The group at a recorded path; `None` where the path does not look like one that [`Cgroup::create`] makes.
    pub(super) fn recorded(path: &Path, engine: &str, shim_pid: u32) -> Option<Cgroup> {
        let named = path.file_name()?.to_str()? == format!("{engine}-{shim_pid}");
        let placed = path.parent()?.file_name()? == PARENT;
        (named && placed && path.is_absolute()).then(|| Cgroup { path: path.to_owned() })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `action` as a member of the group, so that whatever it forks is born there, then returns to the group
    /// the process came from.
    ///
    /// # Errors
    /// Where the process could not enter (`action` has not run), or could not return.
    pub(super) fn inside<T>(&self, action: impl FnOnce() -> T) -> Result<T, Inside<T>> {
        let home = own_group().map_err(Inside::NotEntered)?;
        enter(&self.path).map_err(Inside::NotEntered)?;
        let result = action();
        match enter(&home) {
            Ok(()) => Ok(result),
            Err(error) => Err(Inside::NotLeft(error, result)),
        }
    }

    /// Every process in the group and in groups below it.
    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        for group in self.groups() {
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.trim().parse::<u32>().ok()));
        }
        pids
    }

    /// Kills every member (Linux 5.14 and later; before that the file is missing and this is an error).
    ///
    /// # Errors
    /// The kernel's answer.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Removes the group and those below it; what is still populated stays.
    pub(super) fn remove(&self) {
        for group in self.groups().iter().rev() {
            remove_group(group);
        }
        if let Some(parent) = self.path.parent() {
            // Stays while other engines have groups in it.
            let _ = fs::remove_dir(parent);
        }
    }

    /// The group and all below it, parents first.
    fn groups(&self) -> Vec<PathBuf> {
        let mut groups = vec![self.path.clone()];
        let mut next = 0;
        while let Some(group) = groups.get(next).cloned() {
            next += 1;
            for entry in fs::read_dir(&group).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    groups.push(entry.path());
                }
            }
        }
        groups
    }
}

/// Removes one group, if nobody is in it. A process leaves its group a little after it has become a zombie, so a group
/// whose last member has just died may need a moment; one that is still busy then holds a process that the sweep has
/// reported, and stays.
fn remove_group(group: &Path) {
    for _ in 0..20 {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(2));
            }
            _ => return,
        }
    }
}

/// Removes the groups of shims that were killed and whose record nobody has found.
fn remove_deserted(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let shim = name.to_str().and_then(|name| name.rsplit_once('-')?.1.parse::<u32>().ok());
        if shim.is_some_and(|pid| ProcStat::read(pid).is_none()) {
            // Fails where a process is in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// What kept [`Cgroup::inside`] from its work.
#[derive(Debug)]
pub(super) enum Inside<T> {
    /// The group could not be entered; nothing was done.
    NotEntered(io::Error),
    /// The work is done, but the process is still a member.
    NotLeft(io::Error, T),
}

/// Moves the whole calling process.
fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// The directory of the calling process's own cgroup in the cgroup2 hierarchy.
fn own_group() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    find_own_group(&mounts, &groups).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "no cgroup2 hierarchy that shows this process")
    })
}

fn find_own_group(mountinfo: &str, cgroup: &str) -> Option<PathBuf> {
    let own = Path::new(cgroup.lines().find_map(|line| line.strip_prefix("0::"))?);
    mountinfo.lines().find_map(|line| {
        // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE SUPER
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = left.split(' ').skip(3);
        let (root, mountpoint) = (unescape(fields.next()?), unescape(fields.next()?));
        let below = own.strip_prefix(&root).ok()?;
        // A process outside its cgroup namespace's root reads as `/../other`.
        let plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        plain.then(|| Path::new(&mountpoint).join(below))
    })
}

/// mountinfo writes space, tab, newline and backslash as octal escapes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 1 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory
27 25 0:24 / /sys/fs/cgroup/unified rw,relatime shared:8 master:1 - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_group_is_found_on_hybrid_and_pure_hosts() {
        let groups = "4:memory:/x\n0::/system.slice/hotbunk.service\n";
        assert_eq!(
            find_own_group(HYBRID, groups),
            Some("/sys/fs/cgroup/unified/system.slice/hotbunk.service".into())
        );
        let pure = "30 1 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(find_own_group(pure, "0::/\n"), Some("/sys/fs/cgroup".into()));
    }

    #[test]
    fn a_mount_of_a_part_shows_only_that_part() {
        let part = "30 1 0:25 /pod/a /sys/fs/c\\040g rw - cgroup2 cgroup2 rw\n";
        assert_eq!(find_own_group(part, "0::/pod/a/b\n"), Some("/sys/fs/c g/b".into()));
        assert_eq!(find_own_group(part, "0::/other\n"), None);
    }

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!(find_own_group(HYBRID, "4:memory:/x\n"), None);
        assert_eq!(find_own_group("", "0::/\n"), None);
        let pure = "30 1 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(find_own_group(pure, "0::/../elsewhere\n"), None);
    }

    #[test]
    fn a_recorded_path_must_be_one_of_ours() {
        let good = Path::new("/sys/fs/cgroup/x/hotbunk/A-12");
        assert!(Cgroup::recorded(good, "A", 12).is_some());
        assert!(Cgroup::recorded(good, "A", 13).is_none());
        assert!(Cgroup::recorded(Path::new("/sys/fs/cgroup/system.slice"), "A", 12).is_none());
        assert!(Cgroup::recorded(Path::new("/"), "A", 12).is_none());
        assert!(Cgroup::recorded(Path::new("hotbunk/A-12"), "A", 12).is_none());
    }
}
