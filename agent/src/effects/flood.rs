//! Whether an engine floods its log.
//!
//! A shim keeps the newest files of an engine's output, so nothing is ever filled up; but what says why an engine is
//! unwell may be pushed out. A log that turns over in days is as it should be; one that does within a minute is a
//! flood, and is told.

use std::path::Path;
use std::time::Duration;

/// All kept files written within this time: a flood.
const WITHIN: Duration = Duration::from_secs(60);

/// Bytes of this log that are not kept any more, where the kept ones were written within a minute.
///
/// `PATH.1`, `PATH.2`, … are the files that a full `PATH` was renamed to; of all of them and `PATH` the newest `keep`
/// are there.
pub(super) fn lost_bytes(path: &Path, max_bytes: u64, keep: u64) -> Option<u64> {
    let stem = format!("{}.", path.file_name()?.to_str()?);
    let rotated = std::fs::read_dir(path.parent()?).ok()?.flatten().filter_map(|entry| {
        let number: u64 = entry.file_name().to_str()?.strip_prefix(&stem)?.parse().ok()?;
        Some((number, entry.metadata().ok()?.modified().ok()?))
    });
    let rotated: Vec<_> = rotated.collect();
    let (newest, _) = rotated.iter().max()?;
    let (_, oldest_written) = rotated.iter().min()?;
    let lost = (newest + 1).checked_sub(keep).filter(|files| *files > 0)?;
    // A clock that was set back makes it look like the future, which is no age at all.
    let age = oldest_written.elapsed().unwrap_or_default();
    (age < WITHIN).then(|| lost.saturating_mul(max_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    #[test]
    fn a_log_that_turns_over_within_a_minute_is_a_flood() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("20261130-x.log");
        let write = |suffix: &str, age_s: u64| {
            let file = File::create(dir.path().join(format!("20261130-x.log{suffix}"))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
        };
        write("", 0);
        assert_eq!(lost_bytes(&path, 10, 3), None);
        write(".1", 1);
        write(".2", 1);
        assert_eq!(lost_bytes(&path, 10, 3), None, "three files are kept, and there are three");
        write(".7", 1);
        assert_eq!(lost_bytes(&path, 10, 3), Some(50), "eight were written");
        write(".1", 3600);
        assert_eq!(lost_bytes(&path, 10, 3), None, "an hour's worth is kept");
    }
}
