//! Writing to people: a closed pipe is no error.

use super::syslog;
use std::io::Write;

/// Data, to stdout.
pub fn out(text: &str) {
    drop(std::io::stdout().lock().write_all(text.as_bytes()));
}

/// One line of anything else, to stderr.
pub fn say(text: &str) {
    let line = if syslog::is_stderr() { syslog::prioritised(text) } else { format!("{text}\n") };
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}
