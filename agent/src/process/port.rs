//! Identity before control: whose listening socket is it?
//!
//! `/sleep` sent to a stranger's server would put a stranger's model to sleep. So before the agent trusts
//! `127.0.0.1:PORT`, it asks the kernel which processes hold the listening socket: `/proc/net/tcp` gives the socket's
//! inode, and an open `socket:[inode]` under `/proc/PID/fd` its holders.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::{fs, io};

/// Who listens on a port of the loopback address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// Every listening socket is held by one of the given processes.
    Ours,
    /// A listening socket is held by none of them.
    Foreign {
        /// Its holder, where it can be seen.
        pid: Option<u32>,
    },
    /// Nothing would accept a connection.
    NobodyListens,
    /// It cannot be told: the kernel's table or one of the given processes could not be read.
    Unknown {
        /// What could not be read, and why.
        why: String,
    },
}

/// The listening sockets that would accept a connection to 127.0.0.1, by inode and port, from the text of `/proc/net/tcp` or
/// `/proc/net/tcp6`.
fn listening(table: &str) -> BTreeSet<(u64, u16)> {
    let mut sockets = BTreeSet::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
        let (Some(local), Some(&"0A"), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else {
            continue;
        };
        let Some((address, hex_port)) = local.split_once(':') else { continue };
        if let Ok(port) = u16::from_str_radix(hex_port, 16)
            && accepts_loopback(address)
            && let Ok(inode) = inode.parse()
        {
            sockets.insert((inode, port));
        }
    }
    sockets
}

/// The inodes of those on one port.
fn listening_inodes(table: &str, port: u16) -> BTreeSet<u64> {
    listening(table).into_iter().filter(|(_, on)| *on == port).map(|(inode, _)| inode).collect()
}

/// Whether a socket bound to this address (hexadecimal, each 32-bit word in host order) accepts connections to
/// 127.0.0.1. Whether a `::` socket is IPv6 only cannot be seen here, so it counts.
fn accepts_loopback(address: &str) -> bool {
    let words: Option<Vec<u32>> = address
        .as_bytes()
        .chunks(8)
        .map(|word| u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok())
        .collect();
    match words.as_deref() {
        Some([word]) => {
            let ip = Ipv4Addr::from(word.to_ne_bytes());
            ip == Ipv4Addr::LOCALHOST || ip.is_unspecified()
        }
        Some(&[a, b, c, d]) => {
            let mut bytes = [0; 16];
            for (to, word) in bytes.chunks_mut(4).zip([a, b, c, d]) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
            let ip = Ipv6Addr::from(bytes);
            ip.is_unspecified() || ip.to_ipv4_mapped() == Some(Ipv4Addr::LOCALHOST)
        }
        _ => false,
    }
}

fn inodes_of_port(port: u16) -> io::Result<BTreeSet<u64>> {
    let mut inodes = listening_inodes(&fs::read_to_string("/proc/net/tcp")?, port);
    // A kernel without IPv6 has no second table.
    if let Ok(table) = fs::read_to_string("/proc/net/tcp6") {
        inodes.extend(listening_inodes(&table, port));
    }
    Ok(inodes)
}

/// Inodes of the sockets a process holds open.
fn sockets_of(pid: u32) -> io::Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor closed meanwhile is none.
        let Ok(target) = entry.and_then(|entry| fs::read_link(entry.path())) else { continue };
        let inode: Option<u64> =
            target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inodes.extend(inode);
    }
    Ok(inodes)
}

/// The ports of the loopback address on which these processes listen; what cannot be read is left out.
pub fn ports_of(pids: &[u32]) -> BTreeSet<u16> {
    let held: BTreeSet<u64> = pids.iter().filter_map(|pid| sockets_of(*pid).ok()).flatten().collect();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let all = tables.iter().flat_map(|table| listening(table));
    all.filter(|(inode, _)| held.contains(inode)).map(|(_, port)| port).collect()
}

/// Whether anybody listens on `127.0.0.1:port`. Reads two small files, unlike [`listening_owner`].
///
/// # Errors
/// Where `/proc/net/tcp` cannot be read.
pub fn is_listened(port: u16) -> io::Result<bool> {
    Ok(!inodes_of_port(port)?.is_empty())
}

/// Every process seen to hold a socket that accepts connections to `127.0.0.1:port`; `None` where nothing listens.
/// The list is empty where the holders belong to another user.
///
/// # Errors
/// Where `/proc/net/tcp` cannot be read.
pub fn listening_owner(port: u16) -> io::Result<Option<Vec<u32>>> {
    let inodes = inodes_of_port(port)?;
    Ok((!inodes.is_empty()).then(|| holders(&inodes)))
}

fn holders(inodes: &BTreeSet<u64>) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| sockets_of(*pid).is_ok_and(|held| !held.is_disjoint(inodes)))
        .collect()
}

/// Whether `127.0.0.1:port` is served by one of `pids` (an engine's whole tree). Several sockets may share a port
/// (`SO_REUSEPORT`, vLLM's `--api-server-count`); then each must be theirs.
pub fn port_belongs_to(port: u16, pids: &[u32]) -> Ownership {
    let inodes = match inodes_of_port(port) {
        Ok(inodes) if inodes.is_empty() => return Ownership::NobodyListens,
        Ok(inodes) => inodes,
        Err(error) => return Ownership::Unknown { why: format!("/proc/net/tcp: {error}") },
    };
    let mut held = BTreeSet::new();
    let mut unreadable = None;
    for pid in pids {
        match sockets_of(*pid) {
            Ok(sockets) => held.extend(sockets),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                unreadable = Some(format!("/proc/{pid}/fd: {error}"));
            }
            // It ended meanwhile.
            Err(_) => {}
        }
    }
    let strange: BTreeSet<u64> = inodes.difference(&held).copied().collect();
    if strange.is_empty() {
        return Ownership::Ours;
    }
    let holder = holders(&strange).into_iter().next();
    match (holder, unreadable) {
        (None, Some(why)) => Ownership::Unknown { why },
        (pid, _) => Ownership::Foreign { pid },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// As the kernel prints an address on this machine.
    fn hex(bytes: &[u8]) -> String {
        let word = |word: &[u8]| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        bytes.chunks(4).map(|chunk| format!("{:08X}", word(chunk))).collect()
    }

    fn table(rows: &[(&[u8], u16, &str, u64)]) -> String {
        let mut text = HEADER.to_owned();
        for (address, port, state, inode) in rows {
            let address = hex(address);
            text +=
                &format!("   0: {address}:{port:04X} 00000000:0000 {state} 0:0 00:0 0 1000 0 {inode} 1 x\n");
        }
        text
    }

    #[test]
    fn only_listeners_that_loopback_reaches_count() {
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
        let text = table(&[
            (&[127, 0, 0, 1], 8001, "0A", 1),
            (&[127, 0, 0, 1], 8001, "01", 2),
            (&[0, 0, 0, 0], 8001, "0A", 3),
            (&[10, 0, 0, 1], 8001, "0A", 4),
            (&[127, 0, 0, 1], 8002, "0A", 5),
            (&Ipv6Addr::UNSPECIFIED.octets(), 8001, "0A", 6),
            (&Ipv6Addr::LOCALHOST.octets(), 8001, "0A", 7),
            (&mapped, 8001, "0A", 8),
        ]);
        assert_eq!(listening_inodes(&text, 8001), BTreeSet::from([1, 3, 6, 8]));
        assert!(listening_inodes("garbage\n\n 0: x 0A\n 0: zz:zz q 0A a b c d e f", 8001).is_empty());
    }

    #[test]
    fn a_port_is_told_from_a_strangers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("address").port();
        let me = std::process::id();
        assert_eq!(port_belongs_to(port, &[me]), Ownership::Ours);
        assert!(listening_owner(port).expect("readable").expect("listens").contains(&me));
        // A pid of nobody: the listener is a stranger's then, and it is named.
        // (A child that another test has just forked may hold it as well, until its exec.)
        assert!(matches!(port_belongs_to(port, &[u32::MAX]), Ownership::Foreign { pid: Some(_) }));
        assert!(matches!(port_belongs_to(port, &[]), Ownership::Foreign { pid: Some(_) }));
        drop(listener);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while port_belongs_to(port, &[me]) != Ownership::NobodyListens {
            assert!(std::time::Instant::now() < deadline, "somebody still listens on {port}");
            std::thread::yield_now();
        }
    }
}
