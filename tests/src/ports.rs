//! Ports for servers that a test starts, now and again later.
//!
//! A port that the kernel names (`bind` to 0) is free at that moment only. It is one of those that it also gives to outgoing
//! connections, so while an engine is down (and many a test takes it down) any client on the machine may sit on it, and
//! the engine finds its port taken. Those below that range are given to nobody unasked; of them a test program keeps each
//! that it has chosen locked, for as long as it runs, against the other test programs of its user.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Where the kernel says which ports it gives to outgoing connections, first and last.
const GIVEN_TO_CLIENTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Where no well-known service is.
const LOWEST: u16 = 15_000;
/// So many should be there to choose among.
const ENOUGH: u16 = 4_000;

/// A port that nobody listens on, that no outgoing connection is given, and that no test program is told again.
///
/// # Panics
/// There is none.
pub fn free_port() -> u16 {
    static MINE: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let range = not_given_to_clients();
    let locks = locks();
    let mut mine = MINE.lock().unwrap_or_else(PoisonError::into_inner);
    // Every program begins elsewhere, so that most of them find one at once.
    let (width, pid) = (u32::from(range.end - range.start), std::process::id());
    let from = pid.wrapping_mul(2_654_435_761) % width;
    for offset in 0..width {
        let port = range.start + u16::try_from((from + offset) % width).expect("within the range");
        let lock = File::create(locks.join(port.to_string())).expect("a lock file");
        if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            mine.push(lock);
            return port;
        }
    }
    panic!("no free port from {} to {}", range.start, range.end);
}

fn not_given_to_clients() -> Range<u16> {
    let text = fs::read_to_string(GIVEN_TO_CLIENTS).unwrap_or_default();
    let bounds: Vec<u16> = text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
    match bounds[..] {
        [low, _] if low >= LOWEST + ENOUGH => LOWEST..low,
        [_, high] if high <= u16::MAX - ENOUGH => high + 1..u16::MAX,
        // Everything is given to clients: then these as well.
        _ => LOWEST..32_768,
    }
}

/// Where the locks are: one directory for every test program of this user.
fn locks() -> PathBuf {
    let user = fs::metadata("/proc/self").map(|of| of.uid()).expect("this process");
    let dir = std::env::temp_dir().join(format!("hotbunk-test-ports-{user}"));
    fs::create_dir_all(&dir).expect("a directory for the locks");
    dir
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_port_is_given_twice_and_each_can_be_listened_on() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()));
        let range = not_given_to_clients();
        assert!(ports.iter().all(|port| range.contains(port)), "{ports:?} {range:?}");
    }
}
