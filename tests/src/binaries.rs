//! Where cargo has put the programs under test.

use std::path::PathBuf;

/// The agent.
///
/// # Panics
/// It has not been built: tests of another package cannot make cargo build it.
pub fn agent_binary() -> PathBuf {
    binary("hotbunk-agent")
}

/// The client.
///
/// # Panics
/// It has not been built.
pub fn ctl_binary() -> PathBuf {
    binary("ctl")
}

/// `target/PROFILE/NAME`, beside `target/PROFILE/deps/TEST`.
fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} has not been built beside {}: run `cargo test --workspace`", test.display())
    })
}
