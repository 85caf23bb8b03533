//! What a service manager keeps for an agent while there is none: descriptors, by `sd_pid_notify_with_fds(3)`.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Sent by [`FdStore`] to itself.
const END: &[u8] = b"end";

type Kept = Arc<Mutex<Vec<(String, OwnedFd)>>>;

/// A socket to notify, and what was stored by way of it. Dropped, it closes everything.
#[derive(Debug)]
pub(crate) struct FdStore {
    path: PathBuf,
    kept: Kept,
}

impl FdStore {
    /// Listens.
    ///
    /// # Panics
    /// There is no socket to be had.
    pub(crate) fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("a socket");
        let kept = Kept::default();
        let keeps = Arc::clone(&kept);
        std::thread::spawn(move || while listen(&socket, &keeps) {});
        FdStore { path: path.to_owned(), kept }
    }

    /// What `NOTIFY_SOCKET` is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Other handles of what is stored, with names. It stays stored until somebody asks for its removal.
    ///
    /// # Panics
    /// There is no descriptor left.
    pub(crate) fn kept(&self) -> Vec<(String, OwnedFd)> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().expect("a descriptor");
        kept.iter().map(|(name, fd)| (name.clone(), copy(fd))).collect()
    }
}

impl Drop for FdStore {
    fn drop(&mut self) {
        let end = UnixDatagram::unbound().and_then(|socket| socket.send_to(END, &self.path));
        // The thread has ended already.
        drop(end);
    }
}

/// Takes one message; `false` at the end.
fn listen(socket: &UnixDatagram, kept: &Kept) -> bool {
    let mut text = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut rights, RecvFlags::CMSG_CLOEXEC);
    let Ok(got) = got else { return false };
    let text = &text[..got.bytes];
    if text == END {
        return false;
    }
    let text = String::from_utf8_lossy(text);
    let has = |line: &str| text.lines().any(|l| l == line);
    let name = text.lines().find_map(|l| l.strip_prefix("FDNAME=")).unwrap_or("stored").to_owned();
    let of = |message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None };
    let fds: Vec<OwnedFd> = rights.drain().filter_map(of).flatten().collect();
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if has("FDSTOREREMOVE=1") {
        kept.retain(|(stored, _)| *stored != name);
    } else if has("FDSTORE=1") {
        kept.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
    }
    // Anything else that came is closed, which is what `BARRIER=1` waits for.
    true
}
