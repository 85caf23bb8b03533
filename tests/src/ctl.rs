//! The client as a process.

use crate::binaries::ctl_binary;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// What a command wrote and how it ended.
#[derive(Debug)]
pub struct Done {
    /// Exit code.
    pub code: Option<i32>,
    /// Data.
    pub stdout: String,
    /// The rest.
    pub stderr: String,
}

impl Done {
    /// Asserts the exit code.
    ///
    /// # Panics
    /// It was another.
    #[track_caller]
    pub fn exits(self, code: hotbunk_api::error::ExitCode) -> Self {
        let wanted = i32::from(code.number());
        assert_eq!(self.code, Some(wanted), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// What it wrote, as JSON.
    ///
    /// # Panics
    /// It is none.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// Runs the client against the agent on a socket.
///
/// # Panics
/// It cannot be run.
pub async fn ctl(socket: &Path, args: &[&str]) -> Done {
    let output = Command::new(ctl_binary())
        .args(args)
        .env_clear()
        .env("HOTBUNK_SOCKET", socket)
        .env("TZ", "UTC")
        .env("COLUMNS", "200")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the client can be run");
    Done {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
