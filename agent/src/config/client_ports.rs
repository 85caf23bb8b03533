//! Ports that the kernel gives to outgoing connections.
//!
//! A server's port among them works until the server is down for a moment: then any client on the machine may be given it,
//! and the server's next start finds it taken. Engines go down and come up again all the time here.

use std::fs;
use std::ops::RangeInclusive;

/// Where the kernel says from which port to which.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Where it says which of them it leaves out.
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The ports that outgoing connections are given. `Default` is none: nothing is known of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientPorts {
    given: Option<RangeInclusive<u16>>,
    reserved: Vec<RangeInclusive<u16>>,
}

impl ClientPorts {
    /// Those of this machine; none where it does not say.
    pub fn of_this_machine() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read(RANGE), &read(RESERVED))
    }

    /// From the texts of the two files.
    pub(super) fn parse(range: &str, reserved: &str) -> Self {
        let mut bounds = range.split_ascii_whitespace().map_while(|word| word.parse().ok());
        let given = match (bounds.next(), bounds.next()) {
            (Some(first), Some(last)) => Some(first..=last),
            _ => None,
        };
        let one = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        ClientPorts { given, reserved: reserved.split(',').filter_map(one).collect() }
    }

    /// The range, if a port lies in it and is not left out.
    pub fn with(&self, port: u16) -> Option<&RangeInclusive<u16>> {
        let left_out = self.reserved.iter().any(|range| range.contains(&port));
        self.given.as_ref().filter(|range| range.contains(&port) && !left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let ports = ClientPorts::parse("32768\t60999\n", "\n");
        assert_eq!(ports.with(8000), None);
        assert_eq!(ports.with(32_767), None);
        assert_eq!(ports.with(32_768), Some(&(32_768..=60_999)));
        assert_eq!(ports.with(60_999), Some(&(32_768..=60_999)));
        assert_eq!(ports.with(61_000), None);
    }

    #[test]
    fn reserved_ports_are_given_to_nobody() {
        let ports = ClientPorts::parse("32768 60999", "40000,41000-41010\n");
        let given: Vec<u16> = [39_999, 40_000, 40_001, 40_999, 41_000, 41_010, 41_011]
            .into_iter()
            .filter(|port| ports.with(*port).is_some())
            .collect();
        assert_eq!(given, [39_999, 40_001, 40_999, 41_011]);
    }

    #[test]
    fn a_machine_that_does_not_say_gives_none() {
        for text in ["", "x y", "1", "70000 80000"] {
            assert_eq!(ClientPorts::parse(text, ""), ClientPorts::default(), "{text}");
        }
        assert_eq!(ClientPorts::default().with(40_000), None);
    }
}
