//! Hotbunk under a systemd that was really booted, by README's own lines, as its units have it.
//!
//! ```text
//!   cargo test -p hotbunk-tests --test systemd -- --ignored --nocapture
//!
//!   test ── boot.sh keep ── unshare ── systemd (pid 1) ── hotbunk-agent.service ── shim ── engine …
//!    │         └ the disk: this machine's files, and what was changed, in memory       └ as user hotbunk, hardened
//!    └─ nsenter: systemctl, journalctl, hotbunk-ctl as an operator types them;  HTTP to the gateway as clients do
//! ```
//!
//! Each test boots a machine of its own: private processes, mounts, control groups, host name, network and boot id, so
//! that addresses, paths and user are the installed ones and nothing outside is touched. It takes a fraction of a second.
//! The machine lives as long as a pipe to the test is open, so it ends with the test, however that ends.
//!
//! Engines are simulated, programs are the ones that cargo has built; all else is what README says. Where this machine
//! cannot do it (no root, no overlayfs, no cgroup 2, no systemd), the test fails and says what is missing: somebody has
//! asked for it.

mod adopting;
mod installed;
mod machine;
mod rebooting;
mod reloading;
mod restarting;
mod running;
mod starting;
