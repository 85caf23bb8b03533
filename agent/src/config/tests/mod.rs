//! Tests of the configuration as a whole.

mod accepted;
mod properties;
mod refused;
mod systemd;

use std::path::{Path, PathBuf};

use super::*;

/// A small sound configuration; tests change it.
const SOUND: &str = r#"
[[device]]
name = "gpu0"
index = 0

[[engine]]
name = "A"
model = "a"
port = 8101
command = ["vllm", "serve", "a", "--host", "127.0.0.1", "--port", "8101", "--enable-sleep-mode"]
env = { VLLM_SERVER_DEV_MODE = "1" }

[[engine]]
name = "B"
model = "b"
port = 8102
command = ["vllm", "serve", "b", "--host", "127.0.0.1", "--port", "8102", "--enable-sleep-mode"]
env = { VLLM_SERVER_DEV_MODE = "1" }
"#;

fn check(text: &str) -> Result<(Config, Diagnostics), Diagnostics> {
    parse(text, Path::new("/etc/hotbunk/hotbunk.toml"), &Facts::default())
}

/// Replaces a part of the sound configuration, which must be there.
fn with(part: &str, by: &str) -> String {
    assert!(SOUND.contains(part), "{part}");
    SOUND.replacen(part, by, 1)
}

/// The rendering of what is wrong, or that nothing is.
fn rendered(text: &str) -> String {
    match check(text) {
        Ok((_, warnings)) if warnings.is_empty() => "accepted\n".to_owned(),
        Ok((_, warnings)) => format!("accepted with warnings\n\n{warnings}"),
        Err(diagnostics) => diagnostics.to_string(),
    }
}

fn codes(text: &str) -> Vec<&'static str> {
    let diagnostics = match check(text) {
        Ok((_, warnings)) => warnings,
        Err(diagnostics) => diagnostics,
    };
    diagnostics.problems().iter().map(|problem| problem.code).collect()
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
