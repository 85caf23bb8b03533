//! What processes use, as `/proc` shows it.

use anyhow::Context;

/// The unit of `/proc/PID/stat` (`USER_HZ`), the same on every machine that the agent is for.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time that these processes have used together, s.
///
/// # Errors
/// One of them has gone.
pub fn cpu_seconds(pids: &[u32]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .with_context(|| format!("process {pid} has gone"))?;
        // The name may hold spaces: the fields begin after its bracket.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("/proc/PID/stat");
        sum += (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND;
    }
    Ok(sum)
}

/// Resident memory of these processes together, MiB; what they share counts for each.
///
/// # Errors
/// One of them has gone.
pub fn rss_mib(pids: &[u32]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for pid in pids {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .with_context(|| format!("process {pid} has gone"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/PID/status")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        sum += kib / 1024.0;
    }
    Ok(sum)
}

/// Open files of a process.
///
/// # Errors
/// It has gone.
pub fn open_files(pid: u32) -> anyhow::Result<usize> {
    let dir =
        std::fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("process {pid} has gone"))?;
    Ok(dir.count())
}
