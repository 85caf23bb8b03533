//! Where the agent's control socket is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The socket's name in its directory.
const FILE: &str = "control.sock";

/// Where root's agent has it.
pub(crate) const SYSTEM: &str = "/run/hotbunk/control.sock";

/// The place, from the flag (or `HOTBUNK_SOCKET`, which clap has put there), then what systemd gives a service, then
/// the user's own; `None` where nothing says.
pub(crate) fn socket(
    flag: Option<&Path>,
    root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
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
    directory("XDG_RUNTIME_DIR").map(|d| PathBuf::from(d).join("hotbunk").join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(flag: Option<&str>, root: bool, variables: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
        socket(flag.map(Path::new), root, variable).map(|p| p.display().to_string())
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
