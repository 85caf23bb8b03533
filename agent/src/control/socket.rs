//! The control socket: made atomically, never taken from a living agent.
//!
//! The new socket is bound under a temporary name, given its mode and group, and only then renamed into place, so
//! that nobody ever meets it half made. What lies at the place before is looked at first: a socket that somebody
//! accepts on belongs to a running agent; one that refuses is what a killed agent left behind; anything else is not
//! ours to remove.
//!
//! A socket that was handed over ([`crate::inherited`]) is neither made nor removed here. Who may call is decided by the
//! caller's credentials either way.

use rustix::fs::{Gid, Mode, chmod, chown};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent is up.
    #[error("another agent{} is already listening on {}", pid.map_or_else(String::new, |p| format!(" (pid {p})")), path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The agent's pid, where the kernel tells.
        pid: Option<i32>,
    },
    /// Something that is no socket is in its place.
    #[error("{} is in the way of the control socket: it is not a socket; move it away", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error("the socket path {} is too long: {length} bytes, at most {MAX_PATH_BYTES}; choose a shorter directory", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// The file system said no.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// `sun_path` holds 108 bytes with the final zero.
const MAX_PATH_BYTES: usize = 107;

/// A listening socket with its place in the file system; the file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Device and inode, so that a successor's socket at the same place is not removed. `None`: the file is not ours.
    file: Option<(u64, u64)>,
}

impl Socket {
    /// Binds the control socket at `path` with mode 0660 and, where given, the group `group`. The directory is made
    /// where it is missing (mode 0755 less the umask). Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error`].
    pub fn bind(path: &Path, group: Option<u32>) -> Result<Self, Error> {
        let io_error = |what| {
            let path = path.to_owned();
            move |source: io::Error| Error::Io { what, path, source }
        };
        let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(io_error("make the directory of"))?;
        refuse_living(path)?;

        let temporary = directory.join(format!(".ctl.{}", std::process::id()));
        for candidate in [path, &temporary] {
            let length = candidate.as_os_str().len();
            if length > MAX_PATH_BYTES {
                return Err(Error::TooLong { path: path.to_owned(), length });
            }
        }
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io_error("bind")(e)),
            _ => {}
        }
        let listener = UnixListener::bind(&temporary).map_err(io_error("bind"))?;
        let finish = || -> Result<(u64, u64), Error> {
            chmod(&temporary, Mode::from_raw_mode(0o660))
                .map_err(|e| io_error("set the mode of")(e.into()))?;
            if let Some(group) = group {
                chown(&temporary, None, Some(Gid::from_raw(group)))
                    .map_err(|e| io_error("give to its group")(e.into()))?;
            }
            let metadata = fs::symlink_metadata(&temporary).map_err(io_error("look at"))?;
            fs::rename(&temporary, path).map_err(io_error("put into place"))?;
            Ok((metadata.dev(), metadata.ino()))
        };
        match finish() {
            Ok(file) => Ok(Socket { listener: Some(listener), path: path.to_owned(), file: Some(file) }),
            Err(e) => {
                drop(fs::remove_file(&temporary));
                Err(e)
            }
        }
    }

    /// One that somebody else has made at `path`, and keeps: its mode and its end are theirs. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn given(listener: std::os::unix::net::UnixListener, path: &Path) -> Result<Self, Error> {
        let listener = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = listener.map_err(|source| Error::Io {
            what: "accept on the socket that was handed over,",
            path: path.to_owned(),
            source,
        })?;
        Ok(Socket { listener: Some(listener), path: path.to_owned(), file: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listener, once.
    pub(super) fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Ok(metadata) = fs::symlink_metadata(&self.path)
            && Some((metadata.dev(), metadata.ino())) == self.file
        {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Lets pass what may be replaced: nothing, or a socket that nobody accepts on.
fn refuse_living(path: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::Io { what: "look at", path: path.to_owned(), source }),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(Error::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(stream) => {
            let credentials = rustix::net::sockopt::socket_peercred(&stream).ok();
            let pid = credentials.map(|c| c.pid.as_raw_nonzero().get());
            Err(Error::InUse { path: path.to_owned(), pid })
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Err(source) => Err(Error::Io { what: "find out who listens on", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn socket_at(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("deep/control.sock")
    }

    #[tokio::test]
    async fn it_has_mode_0660_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket_at(&directory);
        let socket = Socket::bind(&path, None).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary name is left");
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_living_agent_keeps_its_socket_and_a_dead_ones_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket_at(&directory);
        let living = Socket::bind(&path, None).unwrap();
        let refused = Socket::bind(&path, None).unwrap_err();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(&refused, Error::InUse { pid: Some(pid), .. } if *pid == own), "{refused}");
        assert!(refused.to_string().contains(&format!("(pid {own})")), "{refused}");
        drop(living);

        // A killed agent leaves its socket behind: the standard library's listener does not remove it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _replaced = Socket::bind(&path, None).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn a_successors_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = socket_at(&directory);
        let first = Socket::bind(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Socket::bind(&path, None).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn files_in_the_way_and_long_paths_are_refused_with_their_reason() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::bind(&path, None).unwrap_err(), Error::NotASocket { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");

        let long = directory.path().join("d".repeat(100)).join("control.sock");
        let error = Socket::bind(&long, None).unwrap_err();
        assert!(matches!(error, Error::TooLong { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_socket_that_was_handed_over_outlives_its_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let kept = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut socket = Socket::given(kept.try_clone().unwrap(), &path).unwrap();
        let listener = socket.take_listener().unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert_eq!(accepted.peer_cred().unwrap().uid(), rustix::process::geteuid().as_raw());
        drop((listener, socket));
        UnixStream::connect(&path).unwrap();
    }
}
