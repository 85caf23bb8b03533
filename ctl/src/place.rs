//! Where the agent's control socket is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The socket's name in its directory.
const FILE: &str = "control.sock";

/// Where root's agent has it.
pub(crate) const SYSTEM: &str = "/run/hotbunk/control.sock";

/// The place, from the flag (or `HOTBUNK_SOCKET`, which clap has put there), then what systemd gives a service, then
/// the user's own; where the user runs no agent, the machine's, if it can be reached. `None` where nothing says.
pub(crate) fn socket(
    flag: Option<&Path>,
    root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
    is_there: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let directory = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(path) = flag {
        return Some(path.to_owned());
    }
    // With several directories systemd separates them by colons; the first is ours.
    if let Some(list) = directory("RUNTIME_DIRECTORY") {
        let first = std::env::split_paths(&list).next();
        return first.map(|d| d.join(FILE));
    }
    if root {
        return Some(PathBuf::from(SYSTEM));
    }
    let own = directory("XDG_RUNTIME_DIR").map(|d| PathBuf::from(d).join("hotbunk").join(FILE));
    // Whoever is in the service's group operates the machine's, and usually runs none.
    let system = Path::new(SYSTEM);
    if !own.as_deref().is_some_and(&is_there) && is_there(system) {
        return Some(system.to_owned());
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(flag: Option<&str>, root: bool, variables: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
        socket(flag.map(Path::new), root, variable, |_| false).map(|p| p.display().to_string())
    }

    #[test]
    fn who_runs_no_agent_finds_the_machine_s() {
        let variable = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/user/7"));
        let own = Path::new("/run/user/7/hotbunk/control.sock");
        let found = |there: &[&Path]| socket(None, false, variable, |path| there.contains(&path)).unwrap();
        assert_eq!(found(&[Path::new(SYSTEM)]), Path::new(SYSTEM));
        assert_eq!(found(&[Path::new(SYSTEM), own]), own, "one's own goes first");
        assert_eq!(found(&[]), own, "where an agent of one's own would be");
        assert_eq!(socket(None, false, |_| None, |_| true).unwrap(), Path::new(SYSTEM));
    }

    #[test]
    fn the_order_is_flag_then_service_then_user() {
        let all = [("RUNTIME_DIRECTORY", "/run/a:/run/b"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(place(Some("/x"), true, &all).as_deref(), Some("/x"));
        assert_eq!(place(None, true, &all).as_deref(), Some("/run/a/control.sock"));
        assert_eq!(place(None, true, &all[1..]).as_deref(), Some(SYSTEM));
        assert_eq!(place(None, false, &all[1..]).as_deref(), Some("/run/user/7/hotbunk/control.sock"));
        assert_eq!(place(None, false, &[("XDG_RUNTIME_DIR", "")]), None);
    }
}
