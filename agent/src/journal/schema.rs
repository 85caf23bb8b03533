//! The file: its tables, how old files are brought up to date, and what is done with a bad one.

use super::{Error, OpenReport};
use crate::clock;
use hotbunk_core::ids::OperationId;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, TransactionBehavior};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `PRAGMA application_id` of a journal: "HBjn".
const APPLICATION_ID: i32 = 0x4842_6a6e;
/// Files up to this size are checked page by page when they are opened; larger ones only where they are read.
const CHECK_UP_TO_BYTES: u64 = 64 << 20;
/// How long a write waits for another program's lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// `MIGRATIONS[n]` brings schema `n` to `n + 1`; a new file is schema 0. Never edit one that has been released.
pub(super) const MIGRATIONS: &[&str] = &[include_str!("schema_v1.sql"), include_str!("schema_v2.sql")];

/// Opens the journal for writing and says what was found.
pub(super) fn open(path: &Path) -> Result<(Connection, OpenReport), Error> {
    let opened = try_open(path, MIGRATIONS).and_then(|(connection, from)| {
        let report = describe(&connection).map_err(|source| Error::sqlite("read", path, source))?;
        Ok((connection, from, report))
    });
    match opened {
        Err(Error::Damaged { source, .. }) => begin_anew(path, &source),
        other => other.map(|(connection, from, report)| (connection, completed(report, path, from))),
    }
}

/// Sets a damaged file aside and opens a new one in its place.
pub(super) fn begin_anew(path: &Path, why: &rusqlite::Error) -> Result<(Connection, OpenReport), Error> {
    let aside = move_aside(path)?;
    let (connection, from) = try_open(path, MIGRATIONS)?;
    let report = describe(&connection).map_err(|source| Error::sqlite("read", path, source))?;
    let report = OpenReport { set_aside: Some((aside, why.to_string())), ..completed(report, path, from) };
    Ok((connection, report))
}

/// What the file does not say of itself.
fn completed(mut report: OpenReport, path: &Path, from: u32) -> OpenReport {
    report.path = path.to_owned();
    report.created = from == 0;
    report.migrated_from = (from != 0 && from != version_of(MIGRATIONS)).then_some(from);
    report
}

/// Takes the lock that keeps other agents away; it goes with the file that is returned, or with the process.
pub(super) fn lock(journal: &Path) -> Result<File, Error> {
    let path = with_suffix(journal, ".lock");
    let fail = |source: std::io::Error| Error::Lock { path: path.clone(), source: Arc::new(source) };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { path: journal.to_owned() }),
        Err(TryLockError::Error(source)) => Err(fail(source)),
    }
}

/// Whether nobody holds that lock now.
pub(super) fn is_unused(journal: &Path) -> Result<(), Error> {
    if with_suffix(journal, ".lock").exists() { lock(journal).map(drop) } else { Ok(()) }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn version_of(migrations: &[&str]) -> u32 {
    u32::try_from(migrations.len()).unwrap_or(u32::MAX)
}

/// Opens, checks and migrates; returns the schema that the file had. [`Error::Damaged`] means: set it aside.
pub(super) fn try_open(path: &Path, migrations: &[&str]) -> Result<(Connection, u32), Error> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let classify = |source: rusqlite::Error| match source.sqlite_error_code() {
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::Open { path: path.to_owned(), source: Arc::new(source) }
        }
        _ => Error::sqlite("read", path, source),
    };
    let mut connection = Connection::open_with_flags(path, flags).map_err(classify)?;
    connection.busy_timeout(LOCK_PATIENCE).map_err(classify)?;
    connection.set_prepared_statement_cache_capacity(32);
    // Before anything is written: whose file is it, how old is it, is it whole?
    let found: u32 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(classify)?;
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(classify)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(classify)?;
    let is_new = found == 0 && application == 0 && tables == 0;
    if !is_new && application != APPLICATION_ID {
        return Err(Error::Foreign { path: path.to_owned() });
    }
    let supported = version_of(migrations);
    if found > supported {
        return Err(Error::Newer { path: path.to_owned(), found, supported });
    }
    if !is_new {
        check(&connection, path).map_err(classify)?;
    }
    if is_new {
        // Both must be set before the first table is made.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(classify)?;
    }
    configure(&connection).map_err(classify)?;
    migrate(&mut connection, path, found, migrations)?;
    Ok((connection, found))
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    // `journal_mode` answers with a row, which `pragma_update` would take for an error.
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", 16 << 20, |_| Ok(()))?;
    connection.pragma_update(None, "temp_store", "MEMORY")
}

/// Fails with a corruption error where the file is damaged.
fn check(connection: &Connection, path: &Path) -> rusqlite::Result<()> {
    let is_small = std::fs::metadata(path).is_ok_and(|file| file.len() <= CHECK_UP_TO_BYTES);
    if !is_small {
        return Ok(());
    }
    let finding: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if finding == "ok" {
        return Ok(());
    }
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    Err(rusqlite::Error::SqliteFailure(code, Some(finding)))
}

/// Runs the missing migrations, each in a transaction of its own with its version number.
fn migrate(connection: &mut Connection, path: &Path, from: u32, migrations: &[&str]) -> Result<(), Error> {
    for (to, script) in (1u32..).zip(migrations).skip(from as usize) {
        let mut run = || -> rusqlite::Result<()> {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(script)?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", to)?;
            transaction.commit()
        };
        run().map_err(|source| match Error::sqlite("write", path, source) {
            Error::Sqlite { source, .. } => {
                Error::Migrate { path: path.to_owned(), from: to - 1, to, source }
            }
            clear => clear,
        })?;
    }
    Ok(())
}

/// Renames the file and what belongs to it. Nothing is deleted: somebody may want to look at it.
fn move_aside(path: &Path) -> Result<PathBuf, Error> {
    let time = clock::wall().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut aside = with_suffix(path, &format!(".damaged-{time}"));
    for again in 2.. {
        if !aside.exists() {
            break;
        }
        aside = with_suffix(path, &format!(".damaged-{time}-{again}"));
    }
    for suffix in ["", "-wal", "-shm"] {
        let (from, to) = (with_suffix(path, suffix), with_suffix(&aside, suffix));
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::SetAside { path: from, aside: to, source: Arc::new(source) }),
            Ok(()) => {}
        }
    }
    Ok(aside)
}

fn describe(connection: &Connection) -> rusqlite::Result<OpenReport> {
    let last_agent: Option<String> = connection
        .query_row(
            "SELECT kind FROM entries WHERE kind IN ('agent_started', 'agent_stopped') ORDER BY seq DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    let last_boot_id = connection
        .query_row(
            "SELECT boot_id FROM entries JOIN boots USING (boot) ORDER BY seq DESC LIMIT 1",
            [],
            |row| row.get(0),
        )
        .optional()?;
    Ok(OpenReport {
        path: PathBuf::new(),
        created: false,
        migrated_from: None,
        set_aside: None,
        last_seq: highest(connection, "seq")?,
        next_operation: OperationId(highest(connection, "operation")? + 1),
        stopped_in_order: last_agent.map(|kind| kind == "agent_stopped"),
        last_boot_id,
        boot_id: boot_id(),
    })
}

/// The highest `seq` or `operation` ever used, 0 where none was. What retention has deleted must not be numbered again:
/// it leaves its highest numbers in `meta`.
pub(super) fn highest(connection: &Connection, column: &str) -> rusqlite::Result<u64> {
    let sql = format!(
        "SELECT max(coalesce((SELECT max({column}) FROM entries), 0),
                    coalesce((SELECT value FROM meta WHERE key = 'last_{column}'), 0))"
    );
    let value: i64 = connection.query_row(&sql, [], |row| row.get(0))?;
    Ok(u64::try_from(value).unwrap_or(0))
}

/// This boot's id; `unknown` where the kernel does not say.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
