//! The writer thread: the only one that changes the file.

use super::lanes::{Commit, Lanes, Row, Sampled, Work};
use super::record::{HostSample, Outcome, Record, Sample};
use super::retention::Believed;
use super::{Error, Keep, OpenReport, Options};
use rusqlite::{Connection, TransactionBehavior, params};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A checkpoint at rest is worth its fsync after so many rows, or after [`CHECKPOINT_AT_LEAST`].
const CHECKPOINT_ROWS: u64 = 1000;
const CHECKPOINT_AT_LEAST: Duration = Duration::from_secs(60);
/// Past so many rows the WAL must be bounded, whether there is rest or not.
const CHECKPOINT_ROWS_ANYWAY: u64 = 100_000;

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) lanes: Arc<Lanes>,
    pub(super) options: Options,
    /// Position of the last entry written.
    last_seq: u64,
    /// This boot, and its row in `boots` once that has been written.
    boot_id: String,
    boot: Option<i64>,
    /// The settings that each engine was last started with.
    fingerprints: HashMap<String, String>,
    last_commit: Instant,
    rows_since_checkpoint: u64,
    last_checkpoint: Instant,
    next_retention: Instant,
    /// The wall clock, for ages.
    believed: Believed,
    /// Said once until it succeeds again, so that a full disk does not flood the log.
    sample_write_failed: bool,
}

/// SQLite's integers are signed; a value beyond them is as good as unknown.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn opt(value: Option<u64>) -> Option<i64> {
    value.map(int)
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        path: PathBuf,
        lanes: Arc<Lanes>,
        options: Options,
        report: &OpenReport,
    ) -> Result<Writer, Error> {
        let prepare = || -> rusqlite::Result<HashMap<String, String>> {
            let mut statement = connection.prepare("SELECT engine, fingerprint FROM engines")?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let fingerprints = prepare().map_err(|source| Error::sqlite("read", &path, source))?;
        let now = Instant::now();
        let mut writer = Writer {
            connection,
            path,
            lanes,
            options,
            last_seq: report.last_seq,
            boot_id: report.boot_id.clone(),
            boot: None,
            fingerprints,
            last_commit: now,
            rows_since_checkpoint: 0,
            last_checkpoint: now,
            next_retention: now,
            believed: Believed::new(super::wall_seconds(), now),
            sample_write_failed: false,
        };
        // A first write of ours syncs the WAL's header now rather than on the first handoff.
        let first = writer.boot().and_then(|_| touch(&writer.connection));
        match first.map_err(|source| Error::sqlite("write", &writer.path, source)) {
            Ok(()) => {}
            Err(damaged @ Error::Damaged { .. }) => return Err(damaged),
            // No room now is no reason not to come up: engines may be serving that want their agent.
            Err(error) => {
                tracing::error!(%error, "the journal is opened, but cannot be written yet");
                writer.lanes.wrote(Some(&error));
            }
        }
        Ok(writer)
    }

    /// This boot's row, written where it is not there yet.
    fn boot(&mut self) -> rusqlite::Result<i64> {
        if let Some(boot) = self.boot {
            return Ok(boot);
        }
        self.connection
            .execute("INSERT INTO boots (boot_id) VALUES (?1) ON CONFLICT DO NOTHING", [&self.boot_id])?;
        let row = self.connection.query_row(
            "SELECT boot FROM boots WHERE boot_id = ?1",
            [&self.boot_id],
            |row| row.get(0),
        )?;
        self.boot = Some(row);
        Ok(row)
    }

    /// Works until the lanes are closed and empty.
    pub(super) fn run(mut self) {
        let abandon = Abandon(Arc::clone(&self.lanes));
        let mut rest_at = Instant::now() + self.options.rest_after;
        loop {
            match self.lanes.next(rest_at) {
                Work::Commits(commits) => {
                    self.commits(commits);
                    self.last_commit = Instant::now();
                    rest_at = self.last_commit + self.options.rest_after;
                }
                Work::Samples(samples) => self.samples(samples),
                Work::Flushed(waiting) => {
                    for done in waiting {
                        // Whoever asked may have gone away.
                        let _ = done.send(());
                    }
                }
                Work::Rest => {
                    self.rest();
                    rest_at = Instant::now() + self.options.rest_after;
                }
                Work::Closed => break,
            }
            if self.rows_since_checkpoint >= CHECKPOINT_ROWS_ANYWAY && !self.lanes.is_urgent() {
                self.checkpoint();
            }
        }
        self.checkpoint();
        drop(abandon);
    }

    /// What is done when nobody waits.
    pub(super) fn rest(&mut self) {
        let now = Instant::now();
        if now >= self.next_retention {
            let wall = self.believed.look(super::wall_seconds(), now);
            match self.retain(wall) {
                Ok(true) => self.next_retention = now + self.options.retain_every,
                // Interrupted by work: go on at the next rest.
                Ok(false) => {}
                Err(source) => {
                    self.next_retention = now + self.options.retain_every;
                    tracing::warn!(journal = %self.path.display(), error = %source, "cannot delete old records");
                }
            }
        }
        let is_due = self.rows_since_checkpoint >= CHECKPOINT_ROWS
            || (self.rows_since_checkpoint > 0 && self.last_checkpoint.elapsed() >= CHECKPOINT_AT_LEAST);
        if is_due && !self.lanes.is_urgent() {
            self.checkpoint();
        }
    }

    /// Copies the WAL into the main file; readers are not in its way, nor it in theirs.
    fn checkpoint(&mut self) {
        let done = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(source) = done.and_then(|()| touch(&self.connection)) {
            tracing::warn!(journal = %self.path.display(), error = %source, "cannot checkpoint the journal");
        }
        // After a failure as well: trying again at every turn would only be in the way.
        self.rows_since_checkpoint = 0;
        self.last_checkpoint = Instant::now();
    }

    pub(super) fn note_rows(&mut self, rows: usize) {
        self.rows_since_checkpoint += rows as u64;
    }

    pub(super) fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// One transaction for everybody who waits.
    fn commits(&mut self, commits: Vec<Commit>) {
        let mut lasts = Vec::with_capacity(commits.len());
        let before = self.last_seq;
        let written = self.write(&commits, &mut lasts);
        match written {
            Ok(()) => {
                self.lanes.wrote(None);
                #[cfg(debug_assertions)]
                super::die::counted(&commits);
                for (commit, last) in commits.into_iter().zip(lasts) {
                    self.note_rows(commit.rows.len());
                    let _ = commit.done.send(Ok(last));
                }
            }
            Err(source) => {
                self.last_seq = before;
                let error = Error::sqlite("write", &self.path, source);
                self.lanes.wrote(Some(&error));
                for commit in commits {
                    let _ = commit.done.send(Err(error.clone()));
                }
            }
        }
    }

    fn write(&mut self, commits: &[Commit], lasts: &mut Vec<u64>) -> rusqlite::Result<()> {
        let boot = self.boot()?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut learned = Vec::new();
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO entries (seq, at_ns, wall, boot, run, operation, kind, engine, body)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?;
            for commit in commits {
                for row in commit.rows.iter() {
                    self.last_seq += 1;
                    let new = &row.new;
                    insert.execute(params![
                        int(self.last_seq),
                        int(new.at.0),
                        new.wall,
                        boot,
                        new.run,
                        new.operation.map(|operation| int(operation.0)),
                        new.record.kind(),
                        new.record.engine(),
                        row.body,
                    ])?;
                    derive(&transaction, row, self.last_seq, &self.fingerprints, &mut learned)?;
                }
                for Keep { key, body } in &commit.keep {
                    keep(&transaction, key, body.as_deref())?;
                }
                lasts.push(self.last_seq);
            }
        }
        transaction.commit()?;
        self.fingerprints.extend(learned);
        Ok(())
    }

    fn samples(&mut self, samples: Vec<Sampled>) {
        let count = samples.len();
        match self.write_samples(&samples) {
            Ok(()) => {
                self.note_rows(count);
                self.lanes.wrote(None);
                self.sample_write_failed = false;
            }
            Err(source) => {
                self.lanes.count_dropped(count as u64);
                let error = Error::sqlite("write", &self.path, source);
                self.lanes.wrote(Some(&error));
                if !std::mem::replace(&mut self.sample_write_failed, true) {
                    tracing::warn!(%error, "samples are dropped until the journal can be written again");
                }
            }
        }
    }

    /// Writes at once, past the lanes.
    #[cfg(test)]
    pub(super) fn write_now(&mut self, news: Vec<super::NewRecord>) -> Result<u64, Error> {
        let rows = news.into_iter().map(Row::encode).collect::<Result<_, _>>()?;
        let (done, mut answer) = tokio::sync::oneshot::channel();
        self.commits(vec![Commit { rows, keep: Vec::new(), done }]);
        answer.try_recv().unwrap_or_else(|_| Err(Error::Closed { path: self.path.clone() }))
    }

    /// The same for samples.
    #[cfg(test)]
    pub(super) fn sample_now(&mut self, samples: Vec<Sample>) {
        self.samples(samples.into_iter().map(Sampled::Device).collect());
    }

    fn write_samples(&mut self, samples: &[Sampled]) -> rusqlite::Result<()> {
        let boot = self.boot()?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut device = transaction.prepare_cached(
                "INSERT INTO samples (at_ns, wall, boot, device, used, engines) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?;
            let mut host = transaction.prepare_cached(
                "INSERT INTO host_samples (at_ns, wall, boot, engine, rss, pss) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?;
            for sample in samples {
                match sample {
                    Sampled::Device(Sample { at, wall, device: name, used, engines }) => {
                        // A list of names and numbers always encodes.
                        let engines = serde_json::to_string(engines).unwrap_or_else(|_| "[]".to_owned());
                        device.execute(params![int(at.0), wall, boot, name, opt(*used), engines])?;
                    }
                    Sampled::Host(HostSample { at, wall, engine, rss, pss }) => {
                        host.execute(params![int(at.0), wall, boot, engine, opt(*rss), opt(*pss)])?;
                    }
                }
            }
        }
        transaction.commit()
    }
}

/// Keeps the tables that are derived from entries in step with them, in the same transaction.
fn derive(
    connection: &Connection,
    row: &Row,
    seq: u64,
    fingerprints: &HashMap<String, String>,
    learned: &mut Vec<(String, String)>,
) -> rusqlite::Result<()> {
    let new = &row.new;
    match (&new.record, new.run.as_deref()) {
        (Record::RunStarted { plan, .. }, Some(run)) => {
            connection
                .prepare_cached(
                    "INSERT INTO runs (run, plan, first_seq, last_seq, started) VALUES (?1, ?2, ?3, ?3, ?4)
                     ON CONFLICT (run) DO UPDATE SET plan = excluded.plan, started = excluded.started",
                )?
                .execute(params![run, plan, int(seq), new.wall])?;
        }
        (Record::RunEnded { outcome }, Some(run)) => {
            let word = match outcome {
                Outcome::Failed { code, .. } => code.as_str(),
                other => other.as_str(),
            };
            connection
                .prepare_cached("UPDATE runs SET last_seq = ?2, ended = ?3, outcome = ?4 WHERE run = ?1")?
                .execute(params![run, int(seq), new.wall, word])?;
        }
        (Record::Configured { engine, fingerprint }, _) => {
            connection
                .prepare_cached(
                    "INSERT INTO engines (engine, fingerprint) VALUES (?1, ?2)
                     ON CONFLICT (engine) DO UPDATE SET fingerprint = excluded.fingerprint",
                )?
                .execute(params![engine, fingerprint])?;
            learned.push((engine.clone(), fingerprint.clone()));
        }
        (Record::Footprint { engine, tier, device_bytes, host_bytes, pss_bytes }, _) => {
            let just_learned = learned.iter().rev().find(|(name, _)| name == engine).map(|(_, print)| print);
            let fingerprint = just_learned.or_else(|| fingerprints.get(engine)).map_or("", String::as_str);
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO footprints
                         (engine, fingerprint, tier, device_bytes, host_bytes, pss_bytes, wall, seq)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    engine,
                    fingerprint,
                    tier.as_str(),
                    opt(*device_bytes),
                    opt(*host_bytes),
                    opt(*pss_bytes),
                    new.wall,
                    int(seq),
                ])?;
        }
        _ => {}
    }
    Ok(())
}

/// Replaces what is kept under a key.
fn keep(connection: &Connection, key: &str, body: Option<&str>) -> rusqlite::Result<()> {
    match body {
        Some(body) => connection
            .prepare_cached("INSERT OR REPLACE INTO kept (key, body) VALUES (?1, ?2)")?
            .execute([key, body])
            .map(drop),
        None => connection.prepare_cached("DELETE FROM kept WHERE key = ?1")?.execute([key]).map(drop),
    }
}

/// A small write of our own, so that what SQLite does once after a checkpoint is done at rest.
fn touch(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES ('checkpointed', ?1)")?
        .execute([super::wall_seconds()])
        .map(drop)
}

/// Whatever ends the writer, nobody is left waiting for it.
struct Abandon(Arc<Lanes>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
