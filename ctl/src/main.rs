//! `ctl` operates Hotbunk's agent over its control socket.
//!
//! # Theory of operation
//!
//! ```text
//!   args (what was typed) ──► place (which socket) ──► commands/… (one file each) ──► hotbunk_api::client
//!                                                          │
//!                      stdout: data, or JSON ◄─────────────┼─────────────► stderr: progress, notes, one line of error
//!                                                          ▼
//!                                                     exit code
//! ```
//!
//! `ctl` decides nothing: it sends one request, waits where that makes sense, and says how it ended. Interrupting it
//! ends the waiting, never the operation. The exit codes are [`hotbunk_api::error::ExitCode`].

mod app;
mod args;
mod commands;
mod context;
mod failure;
mod gateway;
mod human;
mod operate;
mod output;
mod place;
mod progress;
mod words;

fn main() -> std::process::ExitCode {
    app::run().into()
}
