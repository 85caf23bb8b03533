//! Reading: on connections of its own, never in the writer's way.
//!
//! Decoding is tolerant, so that a journal which a newer version has written to (after a roll-back, say) stays
//! readable: what this version cannot decode is skipped, counted and reported with the page.

use super::Error;
use super::record::{Entry, HostSample, Record, Sample};
use hotbunk_core::ids::OperationId;
use hotbunk_core::tier::Tier;
use hotbunk_core::time::Moment;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Row, params_from_iter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Which entries to read. All conditions must hold; the answer ascends by `seq`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    run: Option<String>,
    operation: Option<OperationId>,
    since: Option<u64>,
    kinds: Vec<String>,
    engine: Option<String>,
    first: Option<usize>,
    last: Option<usize>,
}

impl Query {
    /// Everything.
    pub fn all() -> Self {
        Query::default()
    }

    /// Only this cycle run.
    #[must_use]
    pub fn run(mut self, run: impl Into<String>) -> Self {
        self.run = Some(run.into());
        self
    }

    /// Only this operation.
    #[must_use]
    pub fn operation(mut self, operation: OperationId) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Only what follows this position.
    #[must_use]
    pub fn since(mut self, seq: u64) -> Self {
        self.since = Some(seq);
        self
    }

    /// Only this kind ([`Record::kind`]); several calls add up.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kinds.push(kind.into());
        self
    }

    /// Only facts about this engine ([`Record::engine`]).
    #[must_use]
    pub fn engine(mut self, engine: impl Into<String>) -> Self {
        self.engine = Some(engine.into());
        self
    }

    /// At most the first `count`.
    #[must_use]
    pub fn first(mut self, count: usize) -> Self {
        (self.first, self.last) = (Some(count), None);
        self
    }

    /// At most the last `count`.
    #[must_use]
    pub fn last(mut self, count: usize) -> Self {
        (self.last, self.first) = (Some(count), None);
        self
    }

    /// The SQL and its parameters.
    fn sql(&self) -> (String, Vec<Value>) {
        let mut sql = String::from("SELECT seq, at_ns, wall, run, operation, body FROM entries WHERE 1");
        let mut values: Vec<Value> = Vec::new();
        let mut also = |condition: &str, value: Value| {
            values.push(value);
            sql.push_str(" AND ");
            sql.push_str(condition);
        };
        if let Some(run) = &self.run {
            also("run = ?", Value::Text(run.clone()));
        }
        if let Some(operation) = self.operation {
            also("operation = ?", Value::Integer(int(operation.0)));
        }
        if let Some(seq) = self.since {
            also("seq > ?", Value::Integer(int(seq)));
        }
        if let Some(engine) = &self.engine {
            also("engine = ?", Value::Text(engine.clone()));
        }
        if !self.kinds.is_empty() {
            sql.push_str(" AND kind IN (?");
            sql.push_str(&", ?".repeat(self.kinds.len() - 1));
            sql.push(')');
            values.extend(self.kinds.iter().cloned().map(Value::Text));
        }
        let (order, limit) = match (self.first, self.last) {
            (_, Some(count)) => (" ORDER BY seq DESC LIMIT ?", Some(count)),
            (Some(count), None) => (" ORDER BY seq LIMIT ?", Some(count)),
            (None, None) => (" ORDER BY seq", None),
        };
        sql.push_str(order);
        values.extend(limit.map(|count| Value::Integer(int(count as u64))));
        (sql, values)
    }
}

/// Entries, and what could not be read of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// Ascending by `seq`.
    pub entries: Vec<Entry>,
    /// Entries that this version cannot decode: of a kind it does not know, or damaged.
    pub skipped: u64,
    /// Position of the last entry looked at, skipped ones included: go on from here with [`Query::since`]. 0 where
    /// there was none.
    pub last_seq: u64,
}

/// A cycle run as the journal knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Its name.
    pub run: String,
    /// Its cycle plan's name.
    pub plan: String,
    /// Position of its first entry.
    pub first_seq: u64,
    /// When it began, epoch seconds.
    pub started: f64,
    /// When it ended, epoch seconds; `None` where it has not, or where the agent was killed.
    pub ended: Option<f64>,
    /// `ok`, `cancelled`, or the code of its failure.
    pub outcome: Option<String>,
}

/// The latest footprint of an engine at a tier.
#[derive(Debug, Clone, PartialEq)]
pub struct FootprintRow {
    /// Engine's name.
    pub engine: String,
    /// The settings it was measured with; `None` where none were recorded before it.
    pub fingerprint: Option<String>,
    /// Tier.
    pub tier: Tier,
    /// Device bytes.
    pub device_bytes: Option<u64>,
    /// Resident host bytes.
    pub host_bytes: Option<u64>,
    /// Proportional host bytes.
    pub pss_bytes: Option<u64>,
    /// When it was measured, epoch seconds.
    pub wall: f64,
    /// The entry that it comes from (retention may have deleted it).
    pub seq: u64,
}

/// A stretch of time, both ends included.
#[derive(Debug, Clone, PartialEq)]
pub enum Span {
    /// By the wall clock, epoch seconds.
    Wall {
        /// Begin.
        from: f64,
        /// End.
        to: f64,
    },
    /// By the monotonic clock of one boot.
    Monotonic {
        /// Which boot: instants of different boots cannot be compared.
        boot_id: String,
        /// Begin.
        from: Moment,
        /// End.
        to: Moment,
    },
}

impl Span {
    /// Condition and parameters. Each uses an index: monotonic spans are few and short, and are read for reports only.
    fn sql(&self) -> (&'static str, [Value; 3]) {
        match self {
            Span::Wall { from, to } => (
                "wall >= ?1 AND wall <= ?2 AND ?3 IS NULL",
                [Value::Real(*from), Value::Real(*to), Value::Null],
            ),
            Span::Monotonic { boot_id, from, to } => (
                "at_ns >= ?1 AND at_ns <= ?2 AND boot = (SELECT boot FROM boots WHERE boot_id = ?3)",
                [Value::Integer(int(from.0)), Value::Integer(int(to.0)), Value::Text(boot_id.clone())],
            ),
        }
    }
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn maybe_unsigned(value: Option<i64>) -> Option<u64> {
    value.and_then(|value| u64::try_from(value).ok())
}

/// A read-only connection. Its calls block for as long as the disk takes: use [`super::Journal::read`] in async code.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    path: PathBuf,
}

impl Reader {
    /// Opens the journal at `path` for reading; it must exist.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader, Error> {
        let path = path.as_ref().to_owned();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(&path, flags)
            .and_then(|connection| connection.busy_timeout(Duration::from_secs(2)).map(|()| connection));
        match opened {
            Ok(connection) => Ok(Reader { connection, path }),
            Err(source) => Err(Error::Open { path, source: Arc::new(source) }),
        }
    }

    fn list<T>(
        &self,
        sql: &str,
        values: impl IntoIterator<Item = Value>,
        mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<Option<T>>,
    ) -> Result<Vec<T>, Error> {
        let run = || -> rusqlite::Result<Vec<T>> {
            let mut statement = self.connection.prepare_cached(sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut taken = Vec::new();
            while let Some(row) = rows.next()? {
                taken.extend(take(row)?);
            }
            Ok(taken)
        };
        run().map_err(|source| Error::sqlite("read", &self.path, source))
    }

    /// The entries that `query` asks for.
    pub fn entries(&self, query: &Query) -> Result<Page, Error> {
        let (sql, values) = query.sql();
        self.page(&sql, values, query.last.is_some())
    }

    fn page(&self, sql: &str, values: Vec<Value>, is_descending: bool) -> Result<Page, Error> {
        let (mut skipped, mut last_seq) = (0, 0);
        let mut entries = self.list(sql, values, |row| {
            let seq = unsigned(row.get(0)?);
            last_seq = last_seq.max(seq);
            let entry = decode(seq, row)?;
            skipped += u64::from(entry.is_none());
            Ok(entry)
        })?;
        if is_descending {
            entries.reverse();
        }
        Ok(Page { entries, skipped, last_seq })
    }

    /// The acceptance of every operation that has no end yet: what an agent that was killed has left behind.
    pub fn unfinished_operations(&self) -> Result<Page, Error> {
        let sql = "SELECT seq, at_ns, wall, run, operation, body FROM entries AS began
                   WHERE kind = 'operation_accepted' AND operation IS NOT NULL
                     AND NOT EXISTS (SELECT 1 FROM entries AS ended
                                     WHERE ended.operation = began.operation AND ended.kind = 'operation_ended')
                   ORDER BY seq";
        self.page(sql, Vec::new(), false)
    }

    /// Everything that is kept, by key.
    pub fn kept(&self) -> Result<Vec<(String, String)>, Error> {
        self.list("SELECT key, body FROM kept ORDER BY key", [], |row| Ok(Some((row.get(0)?, row.get(1)?))))
    }

    /// All cycle runs, the latest last.
    pub fn runs(&self) -> Result<Vec<RunRow>, Error> {
        let sql = "SELECT run, plan, first_seq, started, ended, outcome FROM runs ORDER BY first_seq";
        self.list(sql, [], |row| {
            Ok(Some(RunRow {
                run: row.get(0)?,
                plan: row.get(1)?,
                first_seq: unsigned(row.get(2)?),
                started: row.get(3)?,
                ended: row.get(4)?,
                outcome: row.get(5)?,
            }))
        })
    }

    /// The latest footprints, of every engine and settings. Rows of a tier that this version does not know are left out.
    pub fn footprints(&self) -> Result<Vec<FootprintRow>, Error> {
        let sql = "SELECT engine, fingerprint, tier, device_bytes, host_bytes, pss_bytes, wall, seq
                   FROM footprints ORDER BY engine, seq";
        self.list(sql, [], |row| {
            let Ok(tier) = row.get_ref(2)?.as_str().unwrap_or_default().parse::<Tier>() else {
                return Ok(None);
            };
            let fingerprint: String = row.get(1)?;
            Ok(Some(FootprintRow {
                engine: row.get(0)?,
                fingerprint: (!fingerprint.is_empty()).then_some(fingerprint),
                tier,
                device_bytes: maybe_unsigned(row.get(3)?),
                host_bytes: maybe_unsigned(row.get(4)?),
                pss_bytes: maybe_unsigned(row.get(5)?),
                wall: row.get(6)?,
                seq: unsigned(row.get(7)?),
            }))
        })
    }

    /// Device samples of a stretch of time, ascending; of one device where `device` names it.
    pub fn samples(&self, span: &Span, device: Option<&str>) -> Result<Vec<Sample>, Error> {
        let (condition, values) = span.sql();
        let sql = format!(
            "SELECT at_ns, wall, device, used, engines FROM samples
             WHERE {condition} AND (?4 IS NULL OR device = ?4) ORDER BY wall, rowid"
        );
        self.list(&sql, values.into_iter().chain([text(device)]), |row| {
            Ok(Some(Sample {
                at: Moment(unsigned(row.get(0)?)),
                wall: row.get(1)?,
                device: row.get(2)?,
                used: maybe_unsigned(row.get(3)?),
                engines: serde_json::from_str(row.get_ref(4)?.as_str().unwrap_or_default())
                    .unwrap_or_default(),
            }))
        })
    }

    /// Host samples of a stretch of time, ascending; of one engine where `engine` names it.
    pub fn host_samples(&self, span: &Span, engine: Option<&str>) -> Result<Vec<HostSample>, Error> {
        let (condition, values) = span.sql();
        let sql = format!(
            "SELECT at_ns, wall, engine, rss, pss FROM host_samples
             WHERE {condition} AND (?4 IS NULL OR engine = ?4) ORDER BY wall, rowid"
        );
        self.list(&sql, values.into_iter().chain([text(engine)]), |row| {
            Ok(Some(HostSample {
                at: Moment(unsigned(row.get(0)?)),
                wall: row.get(1)?,
                engine: row.get(2)?,
                rss: maybe_unsigned(row.get(3)?),
                pss: maybe_unsigned(row.get(4)?),
            }))
        })
    }

    /// The id that the next operation gets.
    pub fn next_operation(&self) -> Result<OperationId, Error> {
        super::schema::highest(&self.connection, "operation")
            .map(|highest| OperationId(highest + 1))
            .map_err(|source| Error::sqlite("read", &self.path, source))
    }
}

fn text(value: Option<&str>) -> Value {
    value.map_or(Value::Null, |value| Value::Text(value.to_owned()))
}

fn decode(seq: u64, row: &Row<'_>) -> rusqlite::Result<Option<Entry>> {
    let body = row.get_ref(5)?.as_str().unwrap_or_default();
    let Ok(record) = serde_json::from_str::<Record>(body) else { return Ok(None) };
    Ok(Some(Entry {
        seq,
        at: Moment(unsigned(row.get(1)?)),
        wall: row.get(2)?,
        run: row.get(3)?,
        operation: maybe_unsigned(row.get(4)?).map(OperationId),
        record,
    }))
}
