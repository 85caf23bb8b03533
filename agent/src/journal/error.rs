//! What can go wrong, told apart by what an operator can do about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What can go wrong with the journal. Cloneable, because several waiting commits may fail together.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or created.
    #[error(
        "cannot open the journal {path}; its folder must exist and the agent must be allowed to write there"
    )]
    Open {
        /// The journal.
        path: PathBuf,
        /// SQLite's reason.
        source: Arc<rusqlite::Error>,
    },
    /// Another agent writes to the file.
    #[error(
        "the journal {path} is in use by another agent; stop that one, or give this one a state directory of its own"
    )]
    InUse {
        /// The journal.
        path: PathBuf,
    },
    /// The lock beside the file cannot be taken.
    #[error("cannot lock {path}; its folder must exist and the agent must be allowed to write there")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// The file has a schema that this program does not know.
    #[error(
        "the journal {path} was written by a newer Hotbunk (schema {found}, this one knows {supported}); start that \
         version, or move the file away to begin a new journal"
    )]
    Newer {
        /// The journal.
        path: PathBuf,
        /// Its `PRAGMA user_version`.
        found: u32,
        /// The newest that this program knows.
        supported: u32,
    },
    /// The file is a healthy database, but not a journal.
    #[error("{path} is a SQLite database of another program; choose another file for the journal")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// An old file could not be brought up to date; it is unchanged.
    #[error("cannot bring the journal {path} from schema {from} to {to}; it was left as it was")]
    Migrate {
        /// The journal.
        path: PathBuf,
        /// Its schema.
        from: u32,
        /// The schema that failed.
        to: u32,
        /// SQLite's reason.
        source: Arc<rusqlite::Error>,
    },
    /// A damaged file could not be renamed.
    #[error("the journal {path} is damaged and cannot be set aside as {aside}; move it away by hand")]
    SetAside {
        /// The journal.
        path: PathBuf,
        /// The name it should have got.
        aside: PathBuf,
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// The writer thread could not be started.
    #[error("cannot start the journal's writer thread")]
    Thread {
        /// The system's reason.
        source: Arc<std::io::Error>,
    },
    /// No room. Nothing of the batch was written.
    #[error("no room left on the disk of the journal {path}; free some, or lower the journal's retention")]
    DiskFull {
        /// The journal.
        path: PathBuf,
    },
    /// The file or its file system is read-only. Nothing of the batch was written.
    #[error("the journal {path} cannot be written: the file or its file system is read-only")]
    ReadOnly {
        /// The journal.
        path: PathBuf,
    },
    /// The file was found damaged while it was in use.
    #[error("the journal {path} is damaged; a restart of the agent sets it aside and begins a new one")]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// SQLite's reason.
        source: Arc<rusqlite::Error>,
    },
    /// Another process has kept the file locked for longer than a commit may wait.
    #[error("another process keeps the journal {path} locked; close any program that writes to it")]
    Locked {
        /// The journal.
        path: PathBuf,
    },
    /// Any other failure of a read or write. Nothing of the batch was written.
    #[error("cannot {action} the journal {path}")]
    Sqlite {
        /// `read` or `write`.
        action: &'static str,
        /// The journal.
        path: PathBuf,
        /// SQLite's reason.
        source: Arc<rusqlite::Error>,
    },
    /// A record could not be turned into JSON.
    #[error("cannot encode a journal record of kind {kind}")]
    Encode {
        /// Its kind.
        kind: &'static str,
        /// The encoder's reason.
        source: Arc<serde_json::Error>,
    },
    /// The journal was closed, or its writer is gone.
    #[error("the journal {path} is closed")]
    Closed {
        /// The journal.
        path: PathBuf,
    },
}

impl Error {
    /// Gives SQLite's error the class that decides what an operator can do.
    pub(super) fn sqlite(action: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as Code;
        let path = path.to_owned();
        // The WAL's index, a file beside the journal, found no room.
        let extended = source.sqlite_error().map(|error| error.extended_code);
        if extended == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) {
            return Error::DiskFull { path };
        }
        match source.sqlite_error_code() {
            Some(Code::DiskFull) => Error::DiskFull { path },
            Some(Code::ReadOnly) => Error::ReadOnly { path },
            Some(Code::DatabaseBusy | Code::DatabaseLocked) => Error::Locked { path },
            Some(Code::DatabaseCorrupt | Code::NotADatabase) => {
                Error::Damaged { path, source: Arc::new(source) }
            }
            _ => Error::Sqlite { action, path, source: Arc::new(source) },
        }
    }
}
