//! The operation log: what the engine did and how long it really took, by the engine's own clock.
//!
//! JSON lines, appended. An interval is the engine's own time and nothing else: a sleep begins when the worker is
//! entered (waiting for requests to end is a `drain` of its own), a first token begins when the request reached the
//! engine core. The record is written before the answer leaves the engine, so whoever has the answer finds the record.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What an engine did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Process start until the engine core is ready.
    Start,
    /// Waiting for running requests (`mode=wait`).
    Drain,
    /// `/sleep`, level 0 included.
    Sleep,
    /// `/wake_up`.
    Wake,
    /// `/release_kv_cache_memory`.
    ReleaseKvCache,
    /// `collective_rpc reload_weights`.
    ReloadWeights,
    /// `/reset_prefix_cache`.
    ResetPrefixCache,
    /// `/pause`.
    Pause,
    /// `/resume`.
    Resume,
    /// Any other method of `collective_rpc`.
    Rpc,
    /// A request's arrival in the scheduler until its first token.
    FirstToken,
}

/// One operation of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRecord {
    /// The engine's name (`--name`).
    pub engine: String,
    /// What it did.
    pub op: Op,
    /// Parameters (`level=1 mode=wait`), request id, or the error.
    pub detail: String,
    /// Start, nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// End, the same clock.
    pub ended_ns: u64,
    /// Whether it did what it was asked.
    pub ok: bool,
}

/// Why the operation log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened.
    #[error("operation log {path}: cannot open it")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file cannot be read.
    #[error("operation log {path}: cannot read it")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Appends records; several engines may share one file.
#[derive(Debug)]
pub struct OpLogWriter {
    file: File,
}

impl OpLogWriter {
    /// Opens the file for appending and makes it where it is missing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| Error::Open { path: path.to_owned(), source })?;
        Ok(OpLogWriter { file })
    }

    /// Appends one record as one write.
    pub fn write(&mut self, record: &OpRecord) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// Reads records as they are appended.
#[derive(Debug)]
pub struct OpLogReader {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
    partial: Vec<u8>,
}

impl OpLogReader {
    /// Prepares to read from the beginning; the file need not exist yet.
    pub fn open(path: &Path) -> Self {
        OpLogReader { path: path.to_owned(), file: None, offset: 0, partial: Vec::new() }
    }

    /// Records that were completed since the last call. A line that is no record is skipped; a line without its end
    /// is kept for the next call; a file that became shorter is read from its beginning.
    pub fn read_new(&mut self) -> Result<Vec<OpRecord>, Error> {
        let wrap = |path: &Path, source| Error::Read { path: path.to_owned(), source };
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                Err(source) => return Err(Error::Open { path: self.path.clone(), source }),
            }
        }
        let Some(file) = self.file.as_mut() else { return Ok(Vec::new()) };
        let length = file.metadata().map_err(|e| wrap(&self.path, e))?.len();
        if length < self.offset {
            self.offset = 0;
            self.partial.clear();
        }
        file.seek(SeekFrom::Start(self.offset)).map_err(|e| wrap(&self.path, e))?;
        let read = file.read_to_end(&mut self.partial).map_err(|e| wrap(&self.path, e))?;
        self.offset += u64::try_from(read).unwrap_or(0);
        let Some(last) = self.partial.iter().rposition(|b| *b == b'\n') else { return Ok(Vec::new()) };
        let rest = self.partial.split_off(last + 1);
        let complete = std::mem::replace(&mut self.partial, rest);
        Ok(complete.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u64) -> OpRecord {
        OpRecord {
            engine: "A".into(),
            op: Op::Sleep,
            detail: "level=1".into(),
            began_ns: n,
            ended_ns: n + 5,
            ok: true,
        }
    }

    #[test]
    fn a_reader_sees_each_record_once_and_waits_for_the_end_of_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ops.jsonl");
        let mut reader = OpLogReader::open(&path);
        assert!(reader.read_new().unwrap().is_empty());
        let mut writer = OpLogWriter::open(&path).unwrap();
        writer.write(&record(1)).unwrap();
        assert_eq!(reader.read_new().unwrap(), vec![record(1)]);
        let line = serde_json::to_string(&record(2)).unwrap();
        let (head, tail) = line.split_at(10);
        writer.file.write_all(head.as_bytes()).unwrap();
        assert!(reader.read_new().unwrap().is_empty());
        writer.file.write_all(tail.as_bytes()).unwrap();
        writer.file.write_all(b"\nnot json\n").unwrap();
        assert_eq!(reader.read_new().unwrap(), vec![record(2)]);
        assert!(reader.read_new().unwrap().is_empty());
    }
}
