//! What is deleted, and when: by age, then by size; in small parts, and only while nobody waits.
//!
//! A run goes whole or not at all, because a report of half a run would be wrong without looking so. Footprints stay:
//! the planner lives by them. The highest numbers are kept in `meta`, so that nothing is ever numbered twice.
//! A clock that was set forward by mistake deletes nothing for a day ([`Believed`]); one set back only deletes later.

use super::writer::Writer;
use rusqlite::{OptionalExtension, params};
use std::time::{Duration, Instant};

/// Rows of one transaction.
const PART: i64 = 500;
/// Pages given back to the file system in one transaction.
const VACUUM_PAGES: i64 = 256;
/// Entries that size alone never takes.
const ALWAYS_KEEP_ENTRIES: i64 = 1000;

/// A wall clock that has jumped forward is believed after so long: what it would have deleted does not come back.
const BELIEVE_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A jump of less is none.
const JUMP_S: f64 = 60.0;

/// The wall clock as far as retention believes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Believed {
    /// The wall clock when it was believed last, epoch seconds, and when that was.
    wall: f64,
    at: Instant,
    /// Since when it is ahead of where it should be.
    ahead_since: Option<Instant>,
}

impl Believed {
    pub(super) fn new(wall: f64, at: Instant) -> Self {
        Believed { wall, at, ahead_since: None }
    }

    /// The time to count ages from, epoch seconds.
    pub(super) fn look(&mut self, wall: f64, now: Instant) -> f64 {
        let expected = self.wall + now.saturating_duration_since(self.at).as_secs_f64();
        let jumped = wall > expected + JUMP_S;
        let since = jumped.then(|| self.ahead_since.unwrap_or(now));
        self.ahead_since = since;
        match since {
            Some(since) if now.saturating_duration_since(since) < BELIEVE_AFTER => expected,
            _ => {
                *self = Believed::new(wall, now);
                wall
            }
        }
    }
}

/// Seconds since the epoch, `age` before `now`.
fn cutoff(now: f64, age: Duration) -> f64 {
    now - age.as_secs_f64()
}

impl Writer {
    /// Deletes what is too old or too much. False where it stopped because somebody waits.
    pub(super) fn retain(&mut self, now: f64) -> rusqlite::Result<bool> {
        let samples = cutoff(now, self.options.keep_samples);
        let entries = cutoff(now, self.options.keep_entries);
        self.note_highest()?;
        for table in ["samples", "host_samples"] {
            if !self.delete_samples(table, samples)? {
                return Ok(false);
            }
        }
        while let Some(run) = self.run_before(entries)? {
            if !self.delete_run(&run)? {
                return Ok(false);
            }
        }
        let old = "DELETE FROM entries WHERE seq IN
                       (SELECT seq FROM entries
                        WHERE wall < ?1 AND (run IS NULL OR run NOT IN (SELECT run FROM runs))
                        ORDER BY seq LIMIT ?2)";
        if !self.in_parts(|writer| writer.connection.execute(old, params![entries, PART]))? {
            return Ok(false);
        }
        if !self.shrink_to_size()? {
            return Ok(false);
        }
        self.vacuum()
    }

    /// Oldest samples first, then the oldest of runs and entries, until the file holds no more than it may.
    fn shrink_to_size(&mut self) -> rusqlite::Result<bool> {
        while self.used_bytes()? > self.options.max_bytes {
            if self.lanes.is_urgent() {
                return Ok(false);
            }
            let mut deleted = 0;
            for table in ["samples", "host_samples"] {
                deleted += self.delete_oldest_samples(table)?;
            }
            if deleted == 0 {
                deleted = self.delete_oldest_entries()?;
            }
            if deleted == 0 {
                // What is left is kept whatever its size.
                break;
            }
            self.note_rows(deleted);
        }
        Ok(true)
    }

    fn delete_oldest_samples(&mut self, table: &str) -> rusqlite::Result<usize> {
        let sql = format!(
            "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY wall LIMIT {PART})"
        );
        self.connection.execute(&sql, [])
    }

    fn delete_oldest_entries(&mut self) -> rusqlite::Result<usize> {
        let keep_from = i64::try_from(self.last_seq()).unwrap_or(i64::MAX) - ALWAYS_KEEP_ENTRIES;
        let oldest: Option<(i64, Option<String>)> = self
            .connection
            .query_row(
                "SELECT seq, run FROM entries WHERE seq <= ?1 ORDER BY seq LIMIT 1",
                [keep_from],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        match oldest {
            None => Ok(0),
            Some((_, Some(run))) => {
                let last: i64 = self.connection.query_row(
                    "SELECT max(seq) FROM entries WHERE run = ?1",
                    [&run],
                    |row| row.get(0),
                )?;
                if last > keep_from {
                    return Ok(0);
                }
                let gone = self.connection.execute("DELETE FROM entries WHERE run = ?1", [&run])?;
                self.connection.execute("DELETE FROM runs WHERE run = ?1", [&run])?;
                Ok(gone)
            }
            Some((_, None)) => self.connection.execute(
                "DELETE FROM entries WHERE seq IN
                     (SELECT seq FROM entries WHERE run IS NULL AND seq <= ?1 ORDER BY seq LIMIT ?2)",
                params![keep_from, PART],
            ),
        }
    }

    /// Bytes of the pages that hold something.
    fn used_bytes(&self) -> rusqlite::Result<u64> {
        let pragma = |name: &str| -> rusqlite::Result<i64> {
            self.connection.pragma_query_value(None, name, |row| row.get(0))
        };
        let pages = pragma("page_count")? - pragma("freelist_count")?;
        Ok(u64::try_from(pages * pragma("page_size")?).unwrap_or(0))
    }

    fn note_highest(&mut self) -> rusqlite::Result<()> {
        self.connection.execute_batch(
            "INSERT OR REPLACE INTO meta (key, value)
                 SELECT 'last_seq', max(seq) FROM entries HAVING max(seq) IS NOT NULL;
             INSERT OR REPLACE INTO meta (key, value)
                 SELECT 'last_operation', max(operation) FROM entries HAVING max(operation) IS NOT NULL;",
        )
    }

    fn run_before(&self, wall: f64) -> rusqlite::Result<Option<String>> {
        self.connection
            .query_row(
                "SELECT run FROM runs WHERE coalesce(ended, started) < ?1 ORDER BY started LIMIT 1",
                [wall],
                |row| row.get(0),
            )
            .optional()
    }

    fn delete_run(&mut self, run: &str) -> rusqlite::Result<bool> {
        // The row of the run goes first: a reader never sees a run with half its entries.
        self.connection.execute("DELETE FROM runs WHERE run = ?1", [run])?;
        let sql = "DELETE FROM entries WHERE seq IN (SELECT seq FROM entries WHERE run = ?1 LIMIT ?2)";
        self.in_parts(|writer| writer.connection.execute(sql, params![run, PART]))
    }

    fn delete_samples(&mut self, table: &str, before: f64) -> rusqlite::Result<bool> {
        let sql = format!(
            "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE wall < ?1 ORDER BY wall LIMIT ?2)"
        );
        self.in_parts(|writer| writer.connection.execute(&sql, params![before, PART]))
    }

    /// Repeats `part` until it changes nothing; false where it stopped because somebody waits.
    fn in_parts(
        &mut self,
        mut part: impl FnMut(&mut Self) -> rusqlite::Result<usize>,
    ) -> rusqlite::Result<bool> {
        loop {
            if self.lanes.is_urgent() {
                return Ok(false);
            }
            let changed = part(self)?;
            if changed == 0 {
                return Ok(true);
            }
            self.note_rows(changed);
        }
    }

    fn vacuum(&mut self) -> rusqlite::Result<bool> {
        loop {
            let free: i64 = self.connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
            // A few free pages are used again at once; giving them back would only cost.
            if free < VACUUM_PAGES {
                return Ok(true);
            }
            if self.lanes.is_urgent() {
                return Ok(false);
            }
            let mut statement =
                self.connection.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
        }
    }
}
