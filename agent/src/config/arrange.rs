//! A configuration in the order of a former one.
//!
//! Engines and devices go by their index everywhere in a living agent, and an index never changes its meaning. A file that
//! is read again may name them in another order, leave some out and add others; so what it says is laid out anew:
//!
//! ```text
//!   former   A  B  C         file   D  C  A          arranged   A  B* C  D      * not in the file any more
//! ```
//!
//! Every index within the configuration is renamed with it.

use super::Limits;
use super::checked::{Config, Device, Engine};

impl Config {
    /// The same configuration with everything that the former one had at the index that it had there, and what is new
    /// behind it. An engine that is missing keeps its former entry, marked as retired; a device that is missing keeps its
    /// entry as well (that is for the caller to refuse).
    #[must_use]
    pub fn arranged(mut self, former: &Config) -> Config {
        let devices = order(
            former.devices.iter().map(|d| d.name.as_str()),
            self.devices.iter().map(|d| d.name.as_str()),
        );
        let engines = order(
            former.engines.iter().map(|e| e.name.as_str()),
            self.engines.iter().map(|e| e.name.as_str()),
        );
        for engine in &mut self.engines {
            engine.devices = engine.devices.iter().map(|at| now_at(&devices, *at)).collect();
        }
        for at in &mut self.policy.awake_at_start {
            *at = now_at(&engines, *at);
        }
        for tenant in &mut self.gateway.tenants {
            let limits = std::mem::take(&mut tenant.limits);
            let of = |from: &Origin| match from {
                Origin::File(at) => limits.get(*at).copied().unwrap_or_default(),
                Origin::Former(_) => Limits::default(),
            };
            tenant.limits = engines.iter().map(of).collect();
        }
        let mut written: Vec<Option<Engine>> =
            std::mem::take(&mut self.engines).into_iter().map(Some).collect();
        self.engines = engines
            .iter()
            .filter_map(|from| match from {
                Origin::File(at) => written[*at].take(),
                Origin::Former(at) => Some(Engine { retired: true, ..former.engines[*at].clone() }),
            })
            .collect();
        let written: Vec<Device> = std::mem::take(&mut self.devices);
        let device = |from: &Origin| match from {
            Origin::File(at) => written[*at].clone(),
            Origin::Former(at) => former.devices[*at].clone(),
        };
        self.devices = devices.iter().map(device).collect();
        self
    }
}

/// Where an entry of the arranged list comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The file, at its index there.
    File(usize),
    /// The former configuration, at its index there.
    Former(usize),
}

/// The arranged list: all of the former names in their order, then what only the file has.
fn order<'a>(former: impl Iterator<Item = &'a str>, file: impl Iterator<Item = &'a str>) -> Vec<Origin> {
    let file: Vec<&str> = file.collect();
    let mut left: Vec<bool> = vec![true; file.len()];
    let mut all: Vec<Origin> = Vec::new();
    for (at, name) in former.enumerate() {
        all.push(match file.iter().position(|other| *other == name) {
            Some(now) => {
                left[now] = false;
                Origin::File(now)
            }
            None => Origin::Former(at),
        });
    }
    all.extend(left.iter().enumerate().filter(|(_, left)| **left).map(|(at, _)| Origin::File(at)));
    all
}

/// Where an index of the file is in the arranged list; every one is.
fn now_at(order: &[Origin], at: usize) -> usize {
    order.iter().position(|from| *from == Origin::File(at)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Facts, parse};
    use std::path::Path;

    /// Engines of these names, each on a device.
    fn config(engines: &[(&str, &str)], more: &str) -> Config {
        let mut text = String::new();
        for device in ["gpu0", "gpu1"] {
            text.push_str(&format!("[[device]]\nname = \"{device}\"\nindex = {}\n", &device[3..]));
        }
        for (name, device) in engines {
            let port = 8100 + u16::from(name.as_bytes()[0]);
            text.push_str(&format!(
                r#"
                [[engine]]
                name = "{name}"
                model = "m-{name}"
                device = "{device}"
                port = {port}
                command = ["vllm", "serve", "m-{name}", "--host", "127.0.0.1", "--port", "{port}", "--enable-sleep-mode"]
                env = {{ VLLM_SERVER_DEV_MODE = "1" }}
                "#
            ));
        }
        text.push_str(more);
        let parsed = parse(&text, Path::new("/etc/hotbunk/hotbunk.toml"), &Facts::default());
        parsed.unwrap_or_else(|problems| panic!("{}", problems.render(false))).0
    }

    fn names(config: &Config) -> Vec<&str> {
        config.engines.iter().map(|e| e.name.as_str()).collect()
    }

    #[test]
    fn what_was_there_keeps_its_index_and_what_is_new_comes_behind_it() {
        let former = config(&[("A", "gpu0"), ("B", "gpu0"), ("C", "gpu1")], "");
        let file = config(&[("D", "gpu1"), ("C", "gpu1"), ("A", "gpu0")], "");
        let arranged = file.clone().arranged(&former);
        assert_eq!(names(&arranged), ["A", "B", "C", "D"]);
        let retired: Vec<bool> = arranged.engines.iter().map(|e| e.retired).collect();
        assert_eq!(retired, [false, true, false, false]);
        // Once more with the same file: the same, and without the mark once it is named again.
        assert_eq!(file.arranged(&arranged), arranged);
        let back = config(&[("B", "gpu0"), ("A", "gpu0"), ("C", "gpu1"), ("D", "gpu1")], "");
        let back = back.arranged(&arranged);
        assert_eq!(names(&back), ["A", "B", "C", "D"]);
        assert!(back.engines.iter().all(|e| !e.retired));
    }

    #[test]
    fn every_index_goes_along() {
        let more = |awake: &str, model: &str| {
            format!(
                "[policy]\nawake_at_start = \"{awake}\"\n[[tenant]]\nname = \"red\"\nkey_sha256 = \"{}\"\n\
                 max_in_flight = 9\n[[tenant.model]]\nname = \"{model}\"\nmax_in_flight = 3\n",
                "ab".repeat(32)
            )
        };
        let former = config(&[("A", "gpu0"), ("B", "gpu1")], &more("A", "m-A"));
        let mut file = config(&[("C", "gpu1"), ("B", "gpu1")], &more("B", "m-C"));
        // The file's own order of devices is another one.
        file.devices.reverse();
        for engine in &mut file.engines {
            engine.devices = engine.devices.iter().map(|at| 1 - at).collect();
        }
        let arranged = file.arranged(&former);
        assert_eq!(names(&arranged), ["A", "B", "C"]);
        let devices: Vec<&str> = arranged.devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(devices, ["gpu0", "gpu1"]);
        assert_eq!(arranged.engines[2].devices, [1]);
        assert_eq!(arranged.policy.awake_at_start, [1]);
        let limits: Vec<Option<u32>> =
            arranged.gateway.tenants[0].limits.iter().map(|l| l.max_in_flight).collect();
        assert_eq!(limits, [None, Some(9), Some(3)]);
        // The same engine has the same fingerprint, wherever it stands.
        assert_eq!(arranged.fingerprint(1), former.fingerprint(1));
    }
}
