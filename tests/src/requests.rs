//! What an engine was asked, by its own request log: the control calls in short words.

use hotbunk_sim::RequestRecord;
use std::path::{Path, PathBuf};

/// The request log of one engine, read from a mark on.
#[derive(Debug)]
pub struct Requests {
    path: PathBuf,
    read: usize,
}

impl Requests {
    /// The log that an engine writes with the flag `--request-log`, from its beginning.
    pub fn of(path: &Path) -> Self {
        Requests { path: path.to_owned(), read: 0 }
    }

    /// The control calls since the last question: what changes an engine's state, and nothing else. `sleep1:wait`,
    /// `wake`, `wake-weights`, `wake-kv`, `release-kv`, `reload`, `reset`, `pause:wait`, `resume`, `rpc-wake`,
    /// `rpc-sleep1`.
    ///
    /// # Panics
    /// A line is no record.
    pub fn calls(&mut self) -> String {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let new = &lines[self.read.min(lines.len())..];
        self.read = lines.len();
        let records = new.iter().map(|line| serde_json::from_str::<RequestRecord>(line).expect("a record"));
        records.filter_map(|r| word(&r)).collect::<Vec<_>>().join(" ")
    }
}

fn word(request: &RequestRecord) -> Option<String> {
    if request.method != "POST" || request.path.starts_with("/v1/") || request.path.starts_with("/sim/") {
        return None;
    }
    let pairs = request.query.split('&').filter_map(|pair| pair.split_once('='));
    let value = |key: &str| pairs.clone().find(|(k, _)| *k == key).map(|(_, v)| v);
    let mode = value("mode").map(|mode| format!(":{mode}")).unwrap_or_default();
    Some(match request.path.as_str() {
        "/sleep" => format!("sleep{}{mode}", value("level").unwrap_or("?")),
        "/wake_up" => match value("tags") {
            None => "wake".to_owned(),
            Some("weights") => "wake-weights".to_owned(),
            Some("kv_cache") => "wake-kv".to_owned(),
            Some(other) => format!("wake-{other}"),
        },
        "/release_kv_cache_memory" => "release-kv".to_owned(),
        "/reset_prefix_cache" => "reset".to_owned(),
        // 0.12 to 0.15 read the one parameter, 0.16 the other: both must be there.
        "/pause" if value("wait_for_inflight_requests") == Some("true") => format!("pause{mode}"),
        "/pause" => format!("pause{mode}-without-wait"),
        "/resume" => "resume".to_owned(),
        "/collective_rpc" => match request.body["method"].as_str() {
            Some("reload_weights") => "reload".to_owned(),
            Some("wake_up") => "rpc-wake".to_owned(),
            Some("sleep") => format!("rpc-sleep{}", request.body["kwargs"]["level"]),
            other => format!("rpc-{other:?}"),
        },
        other => other.to_owned(),
    })
}
