//! Engines' logs, as the control API shows and follows them.

use crate::control::LogStream;
use crate::effects::EngineSlot;
use futures_util::stream;
use hotbunk_api::logs::{LogLine, LogTail};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};

/// How often a followed file is looked at; only while somebody follows it.
const LOOK: Duration = Duration::from_millis(250);

/// The last lines of an engine's log, of this incarnation or, where it has none, of the last.
pub async fn tail(slot: &EngineSlot, lines: u32) -> LogTail {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    let (pid, text) = match slot.process() {
        Some(process) => (Some(process.incarnation().pid), process.tail(lines).await),
        None => (None, last_lines(slot.log_path(), lines).await),
    };
    LogTail {
        engine: slot.config.name.clone(),
        path: slot.log_path().map(|p| p.display().to_string()),
        lines: text.into_iter().map(|text| LogLine { pid, text }).collect(),
    }
}

async fn last_lines(path: Option<PathBuf>, lines: usize) -> Vec<String> {
    let Some(path) = path else { return Vec::new() };
    let text = tokio::fs::read(path).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|&l| l.to_owned()).collect()
}

/// The same, and every line that follows, over restarts of the engine.
pub async fn follow(slot: Arc<EngineSlot>, lines: u32) -> LogStream {
    let path = slot.log_path();
    let at = match &path {
        Some(path) => tokio::fs::metadata(path).await.map_or(0, |m| m.len()),
        None => 0,
    };
    let ready = tail(&slot, lines).await.lines.into();
    let follower = Follower { slot, path, at, rest: Vec::new(), ready };
    Box::pin(stream::unfold(follower, |mut follower| async move {
        let line = follower.next().await;
        Some((line, follower))
    }))
}

struct Follower {
    slot: Arc<EngineSlot>,
    path: Option<PathBuf>,
    at: u64,
    rest: Vec<u8>,
    ready: VecDeque<LogLine>,
}

impl Follower {
    async fn next(&mut self) -> LogLine {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return line;
            }
            if self.read().await.is_none() {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Reads what is new; `None` where nothing is.
    async fn read(&mut self) -> Option<()> {
        let current = self.slot.log_path();
        if current != self.path {
            (self.path, self.at) = (current, 0);
            self.rest.clear();
        }
        let path = self.path.as_ref()?;
        let mut file = File::open(path).await.ok()?;
        let length = file.metadata().await.ok()?.len();
        if length < self.at {
            // It reached its limit and was begun anew.
            self.at = 0;
        }
        file.seek(SeekFrom::Start(self.at)).await.ok()?;
        let mut new = Vec::new();
        let got = file.take(1 << 20).read_to_end(&mut new).await.ok()?;
        if got == 0 {
            return None;
        }
        self.at += u64::try_from(got).unwrap_or(0);
        self.rest.extend(new);
        let pid = self.slot.process().map(|p| p.incarnation().pid);
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.ready.push_back(LogLine { pid, text });
        }
        Some(())
    }
}
